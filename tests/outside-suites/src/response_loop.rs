//! The loop, called as the crate `onwards` calls it.

use std::sync::Arc;

use async_trait::async_trait;
pub use moonswarm::respond::multi_step::{LoopConfig, LoopError};
use moonswarm::{
    protocol::ModelDelta,
    respond::multi_step::{EventSink, Model, ResponseLoop},
};
use serde_json::{Value, json};

use crate::{
    client::HttpClient,
    traits::{ExecutorError, MultiStepStore, RequestContext, ToolExecutor},
};

#[cfg(test)]
#[path = "response_loop_tests.rs"]
mod tests;

/// Where models are asked.
#[derive(Debug, Clone)]
pub struct UpstreamTarget {
    pub url: String,
    pub api_key: Option<String>,
}

/// A model behind a URL.
struct Upstream<'a> {
    target: &'a UpstreamTarget,
    client: Arc<dyn HttpClient + Send + Sync>,
}

#[async_trait]
impl Model for Upstream<'_> {
    async fn call(
        &self,
        request: &Value,
        heard: &(dyn Fn(ModelDelta) + Send + Sync),
    ) -> Result<Value, ExecutorError> {
        let key = self.target.api_key.as_deref();
        let answered = self.client.post(&self.target.url, key, request.to_string()).await;
        let text = answered.map_err(ExecutorError::ExecutionError)?;
        if request["stream"] != true {
            let answer = serde_json::from_str(&text);
            return answer.map_err(|error| ExecutorError::ExecutionError(error.to_string()));
        }
        let mut said = String::new();
        for data in text.lines().filter_map(|line| line.trim().strip_prefix("data: ")) {
            let chunk: Value = serde_json::from_str(data).unwrap_or_default();
            if let Some(delta) = chunk["choices"][0]["delta"]["content"].as_str() {
                said.push_str(delta);
                heard(ModelDelta::Text { item: 0, part: 0, delta: delta.to_owned() });
            }
        }
        Ok(json!({ "choices": [{ "message": { "role": "assistant", "content": said } }] }))
    }
}

/// Drives a response to its end.
#[allow(clippy::too_many_arguments, reason = "the call is the other crate's")]
pub async fn run_response_loop<S: MultiStepStore, T: ToolExecutor>(
    store: &S,
    tools: &T,
    context: &RequestContext,
    target: &UpstreamTarget,
    client: Arc<dyn HttpClient + Send + Sync>,
    sink: Option<&dyn EventSink>,
    request_id: &str,
    scope: Option<&str>,
    config: LoopConfig,
    depth: u32,
) -> Result<Value, LoopError> {
    assert!(scope.is_none() && depth == 0, "a loop within another is begun by its step");
    let model = Upstream { target, client };
    let parts = ResponseLoop { sink, config, ..ResponseLoop::new(store, tools, &model, context) };
    moonswarm::respond::multi_step::run_response_loop(parts, request_id).await
}
