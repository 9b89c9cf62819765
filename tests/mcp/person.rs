//! A client of an older revision that answers what it is asked during a call.

#![expect(deprecated, reason = "sampling and roots are deprecated, and still part of the protocol")]

use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        ClientConfig, CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams,
        ElicitResult, ElicitationAction, ListRootsResult, Root, SamplingMessage,
    },
    service::RequestContext,
};
use serde_json::json;

/// Answers what it is asked, always the same.
pub struct Person(pub ClientConfig);

impl ClientHandler for Person {
    fn get_info(&self) -> ClientConfig {
        self.0.clone()
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let shown = json!(request);
        assert_eq!(shown["message"], "Who are you?", "{shown}");
        let fields = &shown["requestedSchema"]["properties"];
        let field = fields.as_object().unwrap().keys().next().unwrap().clone();
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({field: "moon"})))
    }

    async fn create_message(
        &self,
        request: CreateMessageRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let shown = json!(request);
        assert!(shown["messages"].to_string().contains("How many?"), "{shown}");
        let said = SamplingMessage::assistant_text(r#"{"count": 3}"#);
        Ok(CreateMessageResult::new(said, "m".to_owned()))
    }

    async fn list_roots(
        &self,
        _context: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        Ok(ListRootsResult::new(vec![Root::new("file:///a")]))
    }
}
