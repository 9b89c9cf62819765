//! An agent's loop, compiled: what its model sees of its tools, who executes them, what its rules say.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::{Map, Value, json};

use super::{
    Agent, CompiledAgent, Definition, Schema, SchemaError,
    check::text_arguments,
    expression::{self, Reading, has_slots},
    model_loop::{ModelLoop, On, Rule, Target, Tool, name_fits, tool_name},
};
use crate::{
    flow::{
        StateOp,
        response::{Face, Judge, Moment, Owner, Sums, Verdict},
    },
    protocol::{Failure, FunctionTool, Json, failure::kind, fold::fold},
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
    /// Whether its agent takes the text by itself.
    bare: bool,
    timeout_ms: Option<u64>,
    does: Does,
}

/// What a call comes to.
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
        /// What every key begins with.
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

/// What a loop asks of its agent: tools, schemas, rules.
#[derive(Debug)]
pub struct LoopJudge {
    agent: Arc<CompiledAgent>,
    compiled: Arc<CompiledLoop>,
    /// The tools that servers were found to have, by the names that the model sees.
    found: Mutex<BTreeMap<String, (String, String)>>,
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

    /// What is declared.
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
        let one = |description: Option<String>, input: Option<Json>, bare, does| {
            let parameters = match &input {
                Some(input) => object(input),
                None if bare => text_arguments().to_value(),
                None => json!({ "type": "object" }),
            };
            let schema = Schema::compile_value(parameters.clone(), input.is_some() || bare)?;
            Ok(vec![Self {
                face: face(tool, tool.name.clone(), description, parameters),
                schema,
                bare,
                timeout_ms: tool.timeout_ms,
                does,
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
            does: Does::State { op, scope: scope.cloned(), prefix: prefix.to_owned() },
        })
    }

    /// What a call of it comes to.
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
            Self::Search => StateOp::Search { query: text("query"), limit: FOUND },
            Self::Set => StateOp::Set { key, value: Json::from(&arguments["value"]), opts: None },
            Self::Delete => StateOp::Delete { key },
        }
    }

    /// What the model is given of what was found: keys without the prefix, and none beyond it.
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

impl LoopJudge {
    /// The judge of a loop of an agent.
    pub fn new(agent: Arc<CompiledAgent>, compiled: Arc<CompiledLoop>) -> Self {
        Self { agent, compiled, found: Mutex::default() }
    }

    /// What a call of a tool by its name comes to, its input, and the time for an attempt.
    pub fn call(&self, name: &str, arguments: &Json) -> Option<(Does, Json, Option<u64>)> {
        if let Some(tool) = self.compiled.tools.iter().find(|tool| tool.face.tool.name == name) {
            return Some((tool.does.clone(), tool.input(arguments), tool.timeout_ms));
        }
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let (agent, tool) = found.get(name)?.clone();
        Some((Does::Task { agent, tool: Some(tool) }, arguments.clone(), None))
    }

    fn rule_says(
        &self,
        rule: &Rule,
        slots: &Map<String, Value>,
        verdict: &mut Verdict,
    ) -> Result<(), String> {
        if let Some(when) = &rule.when {
            let holds = expression::evaluate(when, Reading::Condition, slots);
            if holds.map_err(|error| error.message)? != Value::Bool(true) {
                return Ok(());
            }
        }
        let text = |text: &Option<String>| match text {
            Some(text) if has_slots(text) => {
                let said = expression::evaluate(text, Reading::Slots, slots);
                let said = said.map_err(|error| error.message)?;
                Ok(Some(said.as_str().map_or_else(|| said.to_string(), str::to_owned)))
            }
            text => Ok::<_, String>(text.clone()),
        };
        verdict.halt = verdict.halt.take().or(text(&rule.halt)?);
        verdict.deny = verdict.deny.take().or(text(&rule.deny)?);
        verdict.ask |= rule.ask;
        verdict.say.extend(text(&rule.say)?);
        match (&mut verdict.set, &rule.set) {
            (Some(Value::Object(laid)), Some(Value::Object(more))) => laid.extend(more.clone()),
            (laid, Some(set)) => *laid = Some(set.clone()),
            (_, None) => {}
        }
        Ok(())
    }
}

impl Judge for LoopJudge {
    fn faces(&self, server: &str, tools: Vec<FunctionTool>) -> Vec<Face> {
        let declared = &self.compiled.declared.tools;
        let Some(of) = declared.iter().find(|tool| stand_in(self.agent.name(), tool) == server)
        else {
            return Vec::new();
        };
        let Target::Mcp { allow, .. } = &of.target else { return Vec::new() };
        let allowed = |tool: &FunctionTool| {
            allow.as_ref().is_none_or(|allow| allow.iter().any(|it| name_fits(it, &tool.name)))
        };
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = tools.into_iter().filter(allowed).take(SHOWN);
        let mut taken = HashSet::new();
        shown
            .filter_map(|mut tool| {
                let name = tool_name(&format!("{}__{}", of.name, tool.name));
                // One that would pass for another of the same server is not shown.
                taken.insert(name.clone()).then(|| {
                    found.insert(name.clone(), (server.to_owned(), std::mem::take(&mut tool.name)));
                    face(of, name, tool.description, object(&tool.parameters.into()))
                })
            })
            .collect()
    }

    fn arguments(&self, tool: &FunctionTool, arguments: Value) -> Result<Value, String> {
        let own = self.compiled.tools.iter().find(|it| it.face.tool.name == tool.name);
        let accepted = match own {
            Some(own) => own.schema.accept(arguments),
            // A server's schema that is none is the server's to judge.
            None => match Schema::compile_value(tool.parameters.clone(), false) {
                Ok(schema) => schema.validate(&arguments).map(|()| arguments),
                Err(_) => Ok(arguments),
            },
        };
        accepted.map_err(|violations| {
            let first = violations.first();
            first.map_or_else(String::new, |it| format!(" at {}: {}", it.path, it.message))
        })
    }

    fn output(&self, text: &str) -> Result<Json, String> {
        let schema = self.agent.output();
        if schema.is_any() {
            return Ok(Value::from(text).into());
        }
        let mut why = None;
        for candidate in fold(&Value::from(text).into()) {
            match schema.accept_json(&candidate) {
                Ok(value) => return Ok(value),
                // The last is what the text was unfolded to.
                Err(violations) => {
                    why = violations.first().map(|it| format!("at {}: {}", it.path, it.message));
                }
            }
        }
        Err(why.unwrap_or_else(|| "it is no JSON".to_owned()))
    }

    fn rule(&self, moment: &Moment<'_>, sums: &Sums) -> Result<Verdict, Failure> {
        let rules = &self.compiled.declared.rules;
        let mut verdict = Verdict::default();
        if rules.is_empty() {
            return Ok(verdict);
        }
        let slots = slots(moment, sums);
        for (place, rule) in (1..).zip(rules) {
            let is_asked = match (&rule.on, moment) {
                (On::BeforeModel, Moment::BeforeModel)
                | (On::AfterModel, Moment::AfterModel { .. }) => true,
                (On::BeforeTool(name), Moment::BeforeTool { tool, .. })
                | (On::AfterTool(name), Moment::AfterTool { tool, .. }) => name_fits(name, tool),
                _ => false,
            };
            if is_asked {
                self.rule_says(rule, &slots, &mut verdict).map_err(|why| {
                    let message = format!("rule {place} of agent {}: {why}", self.agent.name());
                    Failure::new(kind::SCRIPT, message)
                })?;
            }
        }
        Ok(verdict)
    }
}

/// What the expressions of rules can use.
fn slots(moment: &Moment<'_>, sums: &Sums) -> Map<String, Value> {
    let cost = sums.used.usd().and_then(|usd| f64::try_from(usd).ok());
    let mut slots = json!({
        "turn": sums.turns, "calls": sums.calls, "cost": cost.unwrap_or(0.0),
        "tokens": sums.used.tokens().unwrap_or(0),
        "tool": null, "input": null, "output": null, "error": null, "text": null,
    });
    match moment {
        Moment::BeforeModel => {}
        Moment::AfterModel { text, .. } => slots["text"] = (*text).into(),
        Moment::BeforeTool { tool, arguments } => {
            slots["tool"] = (*tool).into();
            slots["input"] = (*arguments).clone();
        }
        Moment::AfterTool { tool, output, error } => {
            slots["tool"] = (*tool).into();
            slots["output"] = output.map_or(Value::Null, Json::to_value);
            slots["error"] = error.map_or(Value::Null, |it| it.message.clone().into());
        }
    }
    match slots {
        Value::Object(slots) => slots,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests;
