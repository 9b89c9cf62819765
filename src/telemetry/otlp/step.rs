//! The attributes of a step's span, in the GenAI conventions of OpenTelemetry.
//!
//! Names that the conventions do not have begin with `moonswarm.`.

use serde_json::Value;

use super::{
    contents,
    message::{self, KeyValue, SpanKind},
    open_step::{OpenStep, Style},
};
use crate::{
    engine::VersionFacts,
    journal::{Outcome, Usage},
    operator::{HUMAN, ToolServer},
    protocol::{Json, ModelReply, StepKind},
};

/// A step as its span shows it.
pub(super) struct Step {
    pub(super) name: String,
    pub(super) kind: SpanKind,
    pub(super) attributes: Vec<KeyValue>,
}

/// Returns the name, kind and attributes of a step's span; `None` if it has no span. `asking` is the
/// agent whose model is asked.
pub(super) fn described(
    open: &OpenStep,
    outcome: &Outcome,
    asking: Option<&str>,
    (version, style): (&VersionFacts, &Style),
) -> Option<Step> {
    let internal = |name: String| Step { name, kind: SpanKind::Internal, attributes: Vec::new() };
    Some(match open.kind {
        StepKind::Task => match mcp_tool(open, version, style) {
            Some(called) => mcp_call(&called),
            None => agent(open, version, style),
        },
        StepKind::ModelCall => chat(open, outcome, asking, (version, style)),
        StepKind::ToolCall => tool(open, version, style),
        StepKind::Child => internal(format!("call {}", open.name)),
        StepKind::Signal => internal(format!("wait {}", open.name)),
        StepKind::Timer => internal("sleep".to_owned()),
        StepKind::State | StepKind::Local => return None,
    })
}

fn agent(open: &OpenStep, version: &VersionFacts, style: &Style) -> Step {
    let mut attributes = vec![
        message::text("gen_ai.operation.name", "invoke_agent"),
        message::text("gen_ai.agent.name", &open.name),
    ];
    let facts = version.agent(&open.name);
    let operator = facts.and_then(|it| style.operators.get(&it.operator));
    let source = operator.and_then(|it| it.source.as_ref());
    if let Some(facts) = facts {
        attributes.push(message::text("moonswarm.operator", &facts.operator));
        let model = facts.model.as_ref().or(source.and_then(|it| it.model.as_ref()));
        attributes.extend(model.map(|it| message::text("gen_ai.request.model", it)));
    }
    if let Some(source) = source {
        provider(source.provider, style, &mut attributes);
    }
    let kind = match operator.is_some_and(|it| it.is_inside) {
        true => SpanKind::Internal,
        false => SpanKind::Client,
    };
    Step { name: format!("invoke_agent {}", open.name), kind, attributes }
}

fn chat(
    open: &OpenStep,
    outcome: &Outcome,
    asking: Option<&str>,
    (version, style): (&VersionFacts, &Style),
) -> Step {
    let mut attributes = vec![message::text("gen_ai.operation.name", "chat")];
    let reply: Option<ModelReply> = outcome.output().and_then(|output| output.decode().ok());
    // A question to a model has the name of the operator.
    let source = style.operators.get(&open.name).and_then(|it| it.source.as_ref());
    let own = asking.and_then(|agent| version.agent(agent)?.model.clone());
    let answered = reply.as_ref().map(|it| it.model.clone()).filter(|it| !it.is_empty());
    let asked = own.or_else(|| source?.model.clone()).or_else(|| answered.clone());
    if let Some(source) = source {
        provider(source.provider, style, &mut attributes);
        if let Some((host, port)) = &source.server {
            attributes.push(message::text("server.address", host));
            attributes.push(message::whole("server.port", (*port).into()));
        }
    }
    attributes.push(message::text("moonswarm.operator", &open.name));
    attributes.extend(asked.as_ref().map(|it| message::text("gen_ai.request.model", it)));
    attributes.extend(answered.map(|it| message::text("gen_ai.response.model", it)));
    attributes.extend(reply.map(|it| {
        message::list("gen_ai.response.finish_reasons", contents::finish_reason(it.stop))
    }));
    let name = asked.map_or_else(|| "chat".to_owned(), |model| format!("chat {model}"));
    Step { name, kind: SpanKind::Client, attributes }
}

fn provider(name: &str, style: &Style, attributes: &mut Vec<KeyValue>) {
    attributes.push(message::text("gen_ai.provider.name", name));
    if !style.latest_only {
        attributes.push(message::text("gen_ai.system", name));
    }
}

fn tool(open: &OpenStep, version: &VersionFacts, style: &Style) -> Step {
    let mut attributes = vec![
        message::text("gen_ai.operation.name", "execute_tool"),
        message::text("gen_ai.tool.name", &open.name),
        message::text("gen_ai.tool.type", "function"),
    ];
    attributes.extend(open.call_id.as_ref().map(|it| message::text("gen_ai.tool.call.id", it)));
    let mut kind = SpanKind::Internal;
    if let Some(called) = mcp_tool(open, version, style) {
        called.describe(&mut attributes);
        kind = SpanKind::Client;
    }
    Step { name: format!("execute_tool {}", open.name), kind, attributes }
}

/// A tool of an MCP server, and the server.
struct McpTool<'a> {
    tool: &'a str,
    server: Option<&'a ToolServer>,
}

impl McpTool<'_> {
    /// Adds the attributes that the conventions have for a call of an MCP server.
    fn describe(&self, attributes: &mut Vec<KeyValue>) {
        attributes.push(message::text("mcp.method.name", "tools/call"));
        let Some(ToolServer { transport, server, .. }) = self.server else { return };
        attributes.push(message::text("network.transport", *transport));
        if let Some((host, port)) = server {
            attributes.push(message::text("network.protocol.name", "http"));
            attributes.push(message::text("server.address", host));
            attributes.push(message::whole("server.port", (*port).into()));
        }
    }
}

fn mcp_call(called: &McpTool<'_>) -> Step {
    let tool = called.tool;
    let mut attributes = vec![
        message::text("gen_ai.operation.name", "execute_tool"),
        message::text("gen_ai.tool.name", tool),
    ];
    called.describe(&mut attributes);
    Step { name: format!("tools/call {tool}"), kind: SpanKind::Client, attributes }
}

/// Returns the tool of an MCP server that a step calls: its worker is `SERVER TOOL`. The agent says
/// which, if the call was not sent.
fn mcp_tool<'a>(
    open: &'a OpenStep,
    version: &'a VersionFacts,
    style: &'a Style,
) -> Option<McpTool<'a>> {
    let server_of = |operator: &str| style.operators.get(operator)?.tool_server.as_ref();
    let agent = version.agent(&open.name);
    let own = agent.and_then(|it| server_of(&it.operator));
    let called = open.worker.as_deref().and_then(|worker| worker.split_once(' '));
    if let Some((name, tool)) = called {
        if let Some(server) = own.filter(|it| it.name == name) {
            return Some(McpTool { tool, server: Some(server) });
        }
        let servers = style.operators.values().filter_map(|it| it.tool_server.as_ref());
        let mut named = servers.filter(|it| it.name == name);
        if let Some(server) = named.next() {
            // Two servers of one name are not told apart.
            let is_only = named.all(|other| other == server);
            return Some(McpTool { tool, server: is_only.then_some(server) });
        }
    }
    let tool = agent?.tool.as_deref()?;
    own.map(|server| McpTool { tool, server: Some(server) })
}

/// Returns true if the worker of a step may be a person, whose name is then the name of the worker.
pub(super) fn may_be_a_person(open: &OpenStep, version: &VersionFacts, style: &Style) -> bool {
    if open.is_followed {
        return true;
    }
    let of_agent = || version.agent(&open.name).map(|it| it.operator.as_str());
    let operator = match open.kind {
        StepKind::ModelCall => Some(open.name.as_str()),
        // A member of a composite has the name of its operator here.
        StepKind::Task => {
            let member = open.call_id.as_deref().filter(|it| style.operators.contains_key(*it));
            member.or_else(of_agent)
        }
        _ => of_agent(),
    };
    match operator.and_then(|name| style.operators.get(name)) {
        Some(facts) => facts.kind == HUMAN,
        None => mcp_tool(open, version, style).is_none(),
    }
}

/// Adds the usage that was reported.
pub(super) fn spent(usage: Option<&Usage>, attributes: &mut Vec<KeyValue>) {
    let Some(usage) = usage else { return };
    for (key, value) in [
        ("gen_ai.usage.input_tokens", usage.input_tokens),
        ("gen_ai.usage.output_tokens", usage.output_tokens),
        ("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens),
        ("gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens),
    ] {
        attributes.extend(value.map(|value| message::whole(key, value)));
    }
    let cost = usage.cost.as_deref().and_then(|cost| cost.parse().ok());
    attributes.extend(cost.map(|usd| message::number("moonswarm.cost.usd", usd)));
}

/// Adds the input and the output of a step.
pub(super) fn contents(
    open: &OpenStep,
    output: Option<&Json>,
    version: &VersionFacts,
    attributes: &mut Vec<KeyValue>,
) {
    let is_tool = attributes.iter().any(|it| it.key == "gen_ai.tool.name");
    match open.kind {
        StepKind::ModelCall => {
            let asked = open.input.as_deref();
            attributes.extend(asked.map(|it| message::text("gen_ai.input.messages", it)));
            let system = open.system.as_deref();
            attributes.extend(system.map(|it| message::text("gen_ai.system_instructions", it)));
            let reply: Option<ModelReply> = output.and_then(|output| output.decode().ok());
            attributes.extend(reply.and_then(|reply| contents::reply(version, &reply)));
        }
        StepKind::Task | StepKind::ToolCall | StepKind::Child => {
            let output = output.and_then(|output| contents::text_of(version, "output", output));
            let input = open.input.as_deref();
            if is_tool {
                let input = input.map(|it| message::text("gen_ai.tool.call.arguments", it));
                let output = output.map(|it| message::text("gen_ai.tool.call.result", it));
                attributes.extend(input.into_iter().chain(output));
            } else {
                let output = output.map(|it| contents::output(&it));
                attributes.extend(input.map(contents::input).into_iter().chain(output));
            }
        }
        StepKind::Signal | StepKind::Timer | StepKind::State | StepKind::Local => {}
    }
}

/// Returns the attributes of the trigger of a run.
pub(super) fn of_trigger(trigger: &Value) -> Vec<KeyValue> {
    let mut attributes = Vec::new();
    for (key, name) in [
        ("kind", "moonswarm.trigger.kind"),
        ("schedule", "moonswarm.trigger.schedule"),
        ("zone", "moonswarm.trigger.zone"),
        ("watch", "moonswarm.trigger.watch"),
        ("signal", "moonswarm.trigger.signal"),
    ] {
        attributes.extend(trigger[key].as_str().map(|value| message::text(name, value)));
    }
    let missed = trigger["missed"].as_bool();
    attributes.extend(missed.map(|missed| message::boolean("moonswarm.trigger.missed", missed)));
    attributes
}
