//! Converts a task to a call of a tool, and its result to a reply.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use serde_json::{Value, json};

use super::{
    server::{Server, Tools},
    settings::{McpSettings, Where},
};
use crate::{
    blueprint::did_you_mean,
    environment::Environments,
    middleware::TaskDone,
    operator::{
        Backend, Builtin, Delivery, Reply, Residence, Settings, ShownSettings, Task, ToolServer,
    },
    protocol::{Failure, FunctionTool, Json, failure::kind},
};

/// The time limit of `doctor` for a server and its tools.
const INSPECTION: Duration = Duration::from_secs(15);
/// The maximum number of tools that `doctor` lists.
const LISTED: usize = 12;
/// The number of characters of a tool's output that a failure keeps.
const MESSAGE: usize = 500;
/// The maximum number of tools that a failure lists.
const NAMED: usize = 20;

/// Calls a tool for each attempt.
pub(super) struct Mcp {
    server: Server,
    tool: Option<String>,
    timeout: Duration,
}

impl Mcp {
    pub(super) fn new(settings: McpSettings, environments: Arc<Environments>) -> Self {
        Self {
            server: Server::new(settings.server, settings.start_within, environments),
            tool: settings.tool,
            timeout: settings.timeout,
        }
    }

    async fn call(&self, task: &Task, input: &Json) -> Result<Reply, Failure> {
        let Some(tool) = task.agent.tool.as_deref().or(self.tool.as_deref()) else {
            let message = format!(
                "agent {} names no tool: give it `tool = \"…\"`, or its operator one in the \
                 configuration",
                task.agent_name
            );
            return Err(Failure::new(kind::REFUSED, message));
        };
        let arguments = arguments(input)?;
        let mut tools = self.server.tools().await?;
        if !tools.contains_key(tool) {
            // The tool may be new, on a server that does not announce changes.
            self.server.forget_tools().await;
            tools = self.server.tools().await?;
        }
        let schema = tools.get(tool).ok_or_else(|| unknown(tool, &tools))?;
        let arguments = Value::Object(arguments);
        schema.validate(&arguments).map_err(|violations| {
            let what = crate::schema::first_of(&violations);
            let message = format!("the input breaks the schema of the tool {tool}{what}");
            Failure::new(kind::INVALID_INPUT, message)
        })?;
        let Value::Object(arguments) = arguments else { unreachable!("it was made an object") };
        task.reporter.delivered(Delivery { worker: format!("{} {tool}", self.server.name()) });
        let result = self.server.call(tool, arguments, task.trace).await?;
        output(tool, result).map(|output| Reply::Done(TaskDone::new(output)))
    }
}

#[async_trait]
impl Backend for Mcp {
    fn kind(&self) -> &'static str {
        "mcp"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    fn is_portable(&self) -> bool {
        // A server without a host is a child of this process.
        self.server.place().server.is_some()
    }

    fn requires_tool(&self) -> bool {
        self.tool.is_none()
    }

    fn tool_server(&self) -> Option<ToolServer> {
        Some(self.server.place())
    }

    fn timeout(&self) -> Option<Duration> {
        Some(self.timeout)
    }

    async fn list_tools(&self, task: Arc<Task>) -> Result<Vec<FunctionTool>, Failure> {
        task.reporter.delivered(Delivery { worker: self.server.name().to_owned() });
        tokio::select! {
            biased;
            () = task.cancel.cancelled() => {
                Err(Failure::new(kind::CANCELED, "the attempt was given up"))
            }
            listed = self.server.described() => listed,
        }
    }

    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        tokio::select! {
            biased;
            () = task.cancel.cancelled() => {
                Err(Failure::new(kind::CANCELED, "the attempt was given up"))
            }
            done = self.call(&task, &input) => done,
        }
    }
}

/// Returns the input as arguments of a tool: an object, empty for null.
fn arguments(input: &Json) -> Result<JsonObject, Failure> {
    match input.to_value() {
        Value::Object(arguments) => Ok(arguments),
        Value::Null => Ok(JsonObject::new()),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            let message = "a tool's input is an object of its arguments";
            Err(Failure::new(kind::INVALID_INPUT, message))
        }
    }
}

fn unknown(tool: &str, tools: &Tools) -> Failure {
    let names = || tools.keys().map(String::as_str);
    let hint = match did_you_mean(tool, names()) {
        Some(likely) => format!("did you mean {likely:?}?"),
        None => format!("it has {}", names().take(NAMED).collect::<Vec<_>>().join(", ")),
    };
    Failure::new(kind::REFUSED, format!("the MCP server has no tool {tool:?}; {hint}"))
}

/// Returns the result of a call: the structured content, otherwise the JSON or text of its text
/// blocks, otherwise all of its content.
fn output(tool: &str, result: CallToolResult) -> Result<Json, Failure> {
    let words: Option<Vec<&str>> = result
        .content
        .iter()
        .map(|block| match block {
            ContentBlock::Text(text) => Some(text.text.as_str()),
            _ => None,
        })
        .collect();
    let words = words.map(|words| words.join("\n"));
    let content = || serde_json::to_value(&result.content).expect("it came as JSON");
    if result.is_error == Some(true) {
        let said: String = words.iter().flat_map(|words| words.chars()).take(MESSAGE).collect();
        let message = match said.trim() {
            "" => format!("the tool {tool} says that it failed"),
            said => format!("the tool {tool} failed: {said}"),
        };
        let data =
            result.structured_content.clone().unwrap_or_else(|| json!({ "content": content() }));
        return Err(Failure::new(kind::WORKER, message).with_data(data.into()));
    }
    if let Some(structured) = result.structured_content {
        return Ok(structured.into());
    }
    Ok(match words {
        Some(words) if result.content.is_empty() && words.is_empty() => Json::null(),
        Some(words) => serde_json::from_str::<Value>(&words).unwrap_or(Value::String(words)).into(),
        None => content().into(),
    })
}

#[async_trait]
impl Settings for McpSettings {
    fn kind(&self) -> &'static str {
        "mcp"
    }

    fn build(&self, builtin: &Builtin) -> Arc<dyn Backend> {
        Arc::new(Mcp::new(self.clone(), Arc::clone(&builtin.environments)))
    }

    fn shown(&self) -> ShownSettings {
        let shown = match &self.server {
            Where::Command { command, env } => {
                ShownSettings::default().command("command", command).variables("env", env)
            }
            Where::Url { url, headers, egress } => ShownSettings::default()
                .url("url", url)
                .headers("headers", headers)
                .with("allow_private", egress.allow_private)
                .list("allow_hosts", &egress.allow_hosts),
        };
        shown
            .maybe("tool", self.tool.as_ref())
            .time("start_within", self.start_within)
            .time("timeout", self.timeout)
    }

    async fn inspect(&self, builtin: &Builtin) -> Result<String, String> {
        let environments = Arc::clone(&builtin.environments);
        let server = Server::new(self.server.clone(), self.start_within, environments);
        let tools = tokio::time::timeout(INSPECTION, server.tools())
            .await
            .map_err(|_| format!("the server did not list its tools within {INSPECTION:?}"))?
            .map_err(|failure| failure.message)?;
        if let Some(tool) = &self.tool
            && !tools.contains_key(tool)
        {
            return Err(format!("the server has no tool {tool:?}"));
        }
        let names: Vec<_> = tools.keys().take(LISTED).map(String::as_str).collect();
        let more = if tools.len() > LISTED { ", …" } else { "" };
        Ok(format!("{} tool(s): {}{more}", tools.len(), names.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(value: Value) -> Result<Json, Failure> {
        output("find", serde_json::from_value(value).unwrap())
    }

    fn text(text: &str) -> Value {
        json!({ "type": "text", "text": text })
    }

    #[test]
    fn structured_content_goes_before_words_and_words_that_are_json_are_json() {
        let both = json!({ "content": [text("x")], "structuredContent": { "n": 1 } });
        assert_eq!(result(both).unwrap().as_str(), r#"{"n":1}"#);
        let json = json!({ "content": [text("[1, 2]")] });
        assert_eq!(result(json).unwrap().as_str(), "[1,2]");
        let words = json!({ "content": [text("two"), text("lines")] });
        assert_eq!(result(words).unwrap().as_str(), r#""two\nlines""#);
        assert_eq!(result(json!({ "content": [] })).unwrap(), Json::null());
        let image = json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" });
        let mixed = result(json!({ "content": [text("see"), image] })).unwrap().to_value();
        assert_eq!((&mixed[0]["text"], &mixed[1]["type"]), (&json!("see"), &json!("image")));
    }

    #[test]
    fn an_error_is_a_workers_failure_in_the_tools_words() {
        let failure = result(json!({ "content": [text("no such file")], "isError": true }));
        let failure = failure.unwrap_err();
        assert!(failure.is(kind::WORKER) && !failure.retryable);
        assert_eq!(failure.message, "the tool find failed: no such file");
    }

    #[test]
    fn only_an_object_is_arguments() {
        assert!(arguments(&Json::null()).unwrap().is_empty());
        assert!(arguments(&Json::parse("[1]").unwrap()).unwrap_err().is(kind::INVALID_INPUT));
    }
}
