//! An agent's loop, compiled: what its model sees of its tools, who executes them, what its rules say.

pub(super) mod judge;

use serde_json::{Value, json};

use super::{
    Agent, Definition, Schema, SchemaError,
    check::text_arguments,
    model_loop::{ModelLoop, Target, Tool},
};
use crate::{
    flow::{
        StateOp,
        response::{Face, Owner},
    },
    protocol::{FunctionTool, Json},
};

/// The most tools of one server that a model is shown.
const SHOWN: usize = 256;
/// The most that a search of state gives.
const FOUND: usize = 20;

/// The loop of an agent, compiled once.
#[derive(Debug, Default)]
pub struct CompiledLoop {
    declared: ModelLoop,
    tools: Vec<CompiledTool>,
}

/// A tool, ready to be called.
#[derive(Debug, Clone)]
pub struct CompiledTool {
    face: Face,
    schema: Schema,
    /// True if its agent takes the text by itself.
    bare: bool,
    timeout_ms: Option<u64>,
    does: Does,
    /// The name of its entry in the agent's `tools`.
    entry: String,
    /// The operator that executes it; none for state.
    operator: Option<String>,
}

/// The target of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Does {
    /// A task of an agent; one that a tool stands for has the agent's name before a slash.
    Task {
        /// The agent.
        agent: String,
        /// The tool of a server.
        tool: Option<String>,
    },
    /// An operation on state.
    State {
        /// Which.
        op: StateCall,
        /// Which scope; the run's own if absent.
        scope: Option<String>,
        /// The prefix of every key.
        prefix: String,
    },
}

/// An operation on state that a model can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateCall {
    /// The value of a key.
    Get,
    /// The keys.
    List,
    /// The values that have every word of a query.
    Search,
    /// Writes a value.
    Set,
    /// Removes one.
    Delete,
}

/// The name of the agent that stands for a tool.
pub(super) fn stand_in(agent: &str, tool: &Tool) -> String {
    format!("{agent}/{}", tool.name)
}

impl CompiledLoop {
    /// Compiles what an agent declares.
    pub(super) fn compile(
        name: &str,
        declared: &ModelLoop,
        definition: &Definition,
    ) -> Result<Self, SchemaError> {
        let mut tools = Vec::new();
        for tool in &declared.tools {
            tools.extend(CompiledTool::compile(name, tool, definition)?);
        }
        Ok(Self { declared: declared.clone(), tools })
    }

    /// The agents that stand for the tools of one, by name.
    pub(super) fn stand_ins(name: &str, declared: &ModelLoop) -> Vec<(String, Agent)> {
        let stand_in = |tool: &Tool| {
            let operator = match &tool.target {
                Target::Operator(operator) => operator,
                Target::Mcp { server, .. } => server,
                Target::Function(_) => "lua",
                Target::Agent(_) | Target::State { .. } => return None,
            };
            let agent = Agent {
                operator: operator.to_owned(),
                timeout_ms: tool.timeout_ms,
                has_fn: matches!(tool.target, Target::Function(_)),
                check: true,
                ..Agent::default()
            };
            Some((stand_in(name, tool), agent))
        };
        declared.tools.iter().filter_map(stand_in).collect()
    }

    /// The declaration.
    pub fn declared(&self) -> &ModelLoop {
        &self.declared
    }

    /// The tools that are known before any server is asked, as the loop goes by them.
    pub fn faces(&self) -> Vec<Face> {
        self.tools.iter().map(|tool| tool.face.clone()).collect()
    }

    /// The agents that stand for servers, which are asked for their tools.
    pub fn servers(&self, agent: &str) -> Vec<String> {
        let is_server = |tool: &&Tool| matches!(tool.target, Target::Mcp { .. });
        self.declared.tools.iter().filter(is_server).map(|tool| stand_in(agent, tool)).collect()
    }
}

impl CompiledTool {
    /// A tool as the model sees it; state is several, a server none until it is asked.
    fn compile(
        agent: &str,
        tool: &Tool,
        definition: &Definition,
    ) -> Result<Vec<Self>, SchemaError> {
        let operator = match &tool.target {
            Target::Agent(of) => definition.agents.get(of).map(|agent| agent.operator.clone()),
            Target::Operator(operator) | Target::Mcp { server: operator, .. } => {
                Some(operator.clone())
            }
            Target::Function(_) => Some("lua".to_owned()),
            Target::State { .. } => None,
        };
        let one = |description: Option<String>, input: Option<Json>, bare, does| {
            let parameters = match &input {
                Some(input) => object(input),
                None if bare => text_arguments().to_value(),
                None => json!({ "type": "object" }),
            };
            let closed = (input.is_some() && !tool.open) || bare;
            let schema = Schema::compile_value(parameters.clone(), closed)?;
            Ok(vec![Self {
                face: face(tool, tool.name.clone(), description, parameters),
                schema,
                bare,
                timeout_ms: tool.timeout_ms,
                does,
                entry: tool.name.clone(),
                operator,
            }])
        };
        match &tool.target {
            Target::Mcp { .. } => Ok(Vec::new()),
            Target::State { write, scope, prefix } => {
                let calls = [
                    StateCall::Get,
                    StateCall::List,
                    StateCall::Search,
                    StateCall::Set,
                    StateCall::Delete,
                ];
                let calls = calls.into_iter().filter(|call| *write || !call.writes());
                calls.map(|call| Self::state(tool, call, scope.as_ref(), prefix)).collect()
            }
            Target::Agent(of) => {
                let of_agent = definition.agents.get(of);
                let own = of_agent.and_then(|agent| agent.input.clone());
                let description = tool.description.clone();
                let description = description.or_else(|| of_agent?.description.clone());
                let bare = tool.input.is_none() && own.is_none();
                let does = Does::Task { agent: of.clone(), tool: None };
                one(description, tool.input.clone().or(own), bare, does)
            }
            Target::Operator(_) | Target::Function(_) => {
                let does = Does::Task { agent: stand_in(agent, tool), tool: None };
                one(tool.description.clone(), tool.input.clone(), false, does)
            }
        }
    }

    fn state(
        tool: &Tool,
        op: StateCall,
        scope: Option<&String>,
        prefix: &str,
    ) -> Result<Self, SchemaError> {
        let (word, about, parameters) = op.shape();
        let parameters = json!({
            "type": "object",
            "properties": parameters,
            "required": op.required(),
            "additionalProperties": false,
        });
        let about = match &tool.description {
            Some(own) => format!("{own} {about}"),
            None => about.to_owned(),
        };
        let name = format!("{}_{word}", tool.name);
        Ok(Self {
            schema: Schema::compile_value(parameters.clone(), true)?,
            face: face(tool, name, Some(about), parameters),
            bare: false,
            timeout_ms: None,
            entry: tool.name.clone(),
            operator: None,
            does: Does::State { op, scope: scope.cloned(), prefix: prefix.to_owned() },
        })
    }

    /// The target of its calls.
    pub fn does(&self) -> &Does {
        &self.does
    }

    /// Time for one attempt, in milliseconds.
    pub fn timeout_ms(&self) -> Option<u64> {
        self.timeout_ms
    }

    /// The input of its task: the arguments, or the text alone where its agent takes any input.
    pub fn input(&self, arguments: &Json) -> Json {
        match (self.bare, arguments.to_value().get("input")) {
            (true, Some(input)) => input.into(),
            _ => arguments.clone(),
        }
    }
}

fn face(tool: &Tool, name: String, description: Option<String>, parameters: Value) -> Face {
    Face {
        tool: FunctionTool { name, description, parameters, strict: None },
        owner: Owner::Host,
        approve: tool.approve,
        parallel_safe: tool.parallel_safe,
        policy: tool.policy,
    }
}

/// A schema as models take it: that of an object.
fn object(schema: &Json) -> Value {
    match schema.to_value() {
        Value::Object(mut schema) => {
            schema.entry("type").or_insert_with(|| "object".into());
            Value::Object(schema)
        }
        _ => json!({ "type": "object" }),
    }
}

impl StateCall {
    fn writes(self) -> bool {
        matches!(self, Self::Set | Self::Delete)
    }

    /// Its word, what it is for, and the properties of its arguments.
    fn shape(self) -> (&'static str, &'static str, Value) {
        let key = || json!({ "type": "string", "minLength": 1, "maxLength": 900 });
        match self {
            Self::Get => ("get", "Gives the value of a key, or null.", json!({ "key": key() })),
            Self::List => (
                "list",
                "Lists the keys that begin with a prefix.",
                json!({ "prefix": { "type": "string", "maxLength": 900 } }),
            ),
            Self::Search => (
                "search",
                "Finds the values that have every word of a query, the best first.",
                json!({ "query": { "type": "string", "minLength": 1, "maxLength": 1000 } }),
            ),
            Self::Set => {
                ("set", "Keeps a value under a key.", json!({ "key": key(), "value": {} }))
            }
            Self::Delete => ("delete", "Removes a key.", json!({ "key": key() })),
        }
    }

    fn required(self) -> Value {
        match self {
            Self::Get | Self::Delete => json!(["key"]),
            Self::List => json!([]),
            Self::Search => json!(["query"]),
            Self::Set => json!(["key", "value"]),
        }
    }

    /// The operation that a call with these arguments is; every key begins with the prefix.
    pub fn op(self, arguments: &Json, prefix: &str) -> StateOp {
        let arguments = arguments.to_value();
        let text = |key: &str| arguments[key].as_str().unwrap_or_default().to_owned();
        let key = format!("{prefix}{}", text("key"));
        match self {
            Self::Get => StateOp::Get { key },
            Self::List => StateOp::List { prefix: format!("{prefix}{}", text("prefix")) },
            Self::Search => {
                StateOp::Search { query: text("query"), limit: FOUND, prefix: prefix.to_owned() }
            }
            Self::Set => StateOp::Set { key, value: Json::from(&arguments["value"]), opts: None },
            Self::Delete => StateOp::Delete { key },
        }
    }

    /// Returns the result for the model: keys without the prefix, and only those that have it.
    pub fn shown(self, found: Json, prefix: &str) -> Json {
        let own = |key: &str| key.strip_prefix(prefix).map(str::to_owned);
        let Value::Array(found) = found.to_value() else { return found };
        let shown: Vec<Value> = match self {
            Self::List => {
                let keys = found.iter().filter_map(|key| own(key.as_str()?));
                keys.map(Value::from).collect()
            }
            Self::Search => {
                let hits = found.into_iter().filter_map(|mut hit| {
                    let key = own(hit["key"].as_str()?)?;
                    hit["key"] = key.into();
                    Some(hit)
                });
                hits.collect()
            }
            Self::Get | Self::Set | Self::Delete => found,
        };
        Value::Array(shown).into()
    }
}

#[cfg(test)]
mod tests;
