//! The server as clients over HTTP reach it: each request is an [`Operation`], in whose span its
//! requests to the API are.

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams,
        CompleteResult, CustomRequest, CustomResult, DiscoverResult, GetPromptRequestParams,
        GetPromptResponse, GetTaskParams, GetTaskResult, InitializeRequestParams, InitializeResult,
        ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
        PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ServerConfig,
        SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
        UpdateTaskParams,
    },
    service::{NotificationContext, RequestContext, SubscriptionContext},
};

use super::{
    desk::Desk,
    operation::{About, Operation},
    prompts, tools,
};
use crate::{engine::Engine, metrics::OTHER};

/// The server, and the counters of its requests.
#[derive(Clone)]
pub(super) struct Observed {
    desk: Desk,
    engine: Engine,
}

type Context = RequestContext<RoleServer>;
type Answer<T> = Result<T, ErrorData>;

impl Observed {
    pub(super) fn new(desk: Desk, engine: Engine) -> Self {
        Self { desk, engine }
    }

    /// Begins a request. What it asks of the API belongs to its span.
    fn begin(&self, context: &mut Context, method: &'static str) -> Operation<'_> {
        let operation = Operation::begin(&self.engine, &About::of(context, method));
        if let Some(span) = operation.span() {
            context.meta.set_traceparent(span.to_string());
        }
        context.extensions.insert(operation.target().clone());
        operation
    }
}

/// Methods that are handled as they are: `name(parameters) -> result, "method"`.
macro_rules! observed {
    ($($name:ident($params:ty) -> $result:ty, $method:expr;)*) => {
        $(async fn $name(&self, request: $params, mut context: Context) -> Answer<$result> {
            let operation = self.begin(&mut context, $method);
            operation.end(self.desk.$name(request, context).await)
        })*
    };
}

impl ServerHandler for Observed {
    fn get_info(&self) -> ServerConfig {
        self.desk.get_info()
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.desk.get_tool(name)
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        self.desk.accepted_subscription_filter(requested)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.desk.on_initialized(context).await;
    }

    async fn ping(&self, mut context: Context) -> Answer<()> {
        let operation = self.begin(&mut context, "ping");
        operation.end(self.desk.ping(context).await)
    }

    async fn discover(&self, mut context: Context) -> Answer<DiscoverResult> {
        let operation = self.begin(&mut context, "server/discover");
        operation.end(self.desk.discover(context).await)
    }

    async fn listen(&self, context: SubscriptionContext) -> Answer<()> {
        let about = About::of(context.request_context(), "subscriptions/listen");
        let operation = Operation::begin(&self.engine, &about);
        operation.end(self.desk.listen(context).await)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        mut context: Context,
    ) -> Answer<CallToolResponse> {
        let operation = self.begin(&mut context, "tools/call");
        if tools::is_own(&request.name) {
            operation.target().set(&request.name);
        }
        let result = self.desk.call_tool(request, context).await;
        match &result {
            Ok(CallToolResponse::Complete(complete)) => {
                operation.end_tool(complete.is_error == Some(true));
                result
            }
            _ => operation.end(result),
        }
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        mut context: Context,
    ) -> Answer<GetPromptResponse> {
        let operation = self.begin(&mut context, "prompts/get");
        if prompts::is_own(&request.name) {
            operation.target().set(&request.name);
        }
        operation.end(self.desk.get_prompt(request, context).await)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        mut context: Context,
    ) -> Answer<ReadResourceResponse> {
        let operation = self.begin(&mut context, "resources/read").with_uri(&request.uri);
        operation.end(self.desk.read_resource(request, context).await)
    }

    #[expect(deprecated, reason = "clients of older revisions subscribe like this")]
    async fn subscribe(&self, request: SubscribeRequestParams, mut context: Context) -> Answer<()> {
        let operation = self.begin(&mut context, "resources/subscribe").with_uri(&request.uri);
        operation.end(self.desk.subscribe(request, context).await)
    }

    #[expect(deprecated, reason = "clients of older revisions subscribe like this")]
    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        mut context: Context,
    ) -> Answer<()> {
        let operation = self.begin(&mut context, "resources/unsubscribe").with_uri(&request.uri);
        operation.end(self.desk.unsubscribe(request, context).await)
    }

    observed! {
        initialize(InitializeRequestParams) -> InitializeResult, "initialize";
        complete(CompleteRequestParams) -> CompleteResult, "completion/complete";
        list_tools(Option<PaginatedRequestParams>) -> ListToolsResult, "tools/list";
        list_prompts(Option<PaginatedRequestParams>) -> ListPromptsResult, "prompts/list";
        list_resources(Option<PaginatedRequestParams>) -> ListResourcesResult, "resources/list";
        list_resource_templates(Option<PaginatedRequestParams>) -> ListResourceTemplatesResult,
            "resources/templates/list";
        get_task(GetTaskParams) -> GetTaskResult, "tasks/get";
        update_task(UpdateTaskParams) -> (), "tasks/update";
        cancel_task(CancelTaskParams) -> (), "tasks/cancel";
        on_custom_request(CustomRequest) -> CustomResult, OTHER;
    }

    #[expect(deprecated, reason = "clients of older revisions set it")]
    async fn set_level(
        &self,
        request: rmcp::model::SetLevelRequestParams,
        mut context: Context,
    ) -> Answer<()> {
        let operation = self.begin(&mut context, "logging/setLevel");
        operation.end(self.desk.set_level(request, context).await)
    }
}
