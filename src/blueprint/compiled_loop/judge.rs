//! Answers the questions of a running loop about its agent: tools, schemas, rules.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::{CompiledLoop, Does, SHOWN, face, object, stand_in};
use crate::{
    blueprint::{
        CompiledAgent, Schema,
        expression::{self, Reading, has_slots},
        model_loop::{On, Rule, Target, Tool, name_fits, tool_name},
    },
    flow::response::{Face, Judge, Moment, RuleVerdict, Sums},
    protocol::{Failure, FunctionTool, Json, failure::kind, fold::fold},
};

/// Answers the questions of a loop about its agent: tools, schemas, rules.
#[derive(Debug)]
pub struct LoopJudge {
    agent: Arc<CompiledAgent>,
    pub(super) compiled: Arc<CompiledLoop>,
    /// The tools that servers were found to have, by the names that the model sees.
    found: Mutex<BTreeMap<String, (String, String)>>,
}

impl LoopJudge {
    /// The judge of a loop of an agent.
    pub fn new(agent: Arc<CompiledAgent>, compiled: Arc<CompiledLoop>) -> Self {
        Self { agent, compiled, found: Mutex::default() }
    }

    /// Returns the target of a call of a tool, its input, and the time limit of an attempt.
    pub fn call(&self, name: &str, arguments: &Json) -> Option<(Does, Json, Option<u64>)> {
        if let Some(tool) = self.compiled.tools.iter().find(|tool| tool.face.tool.name == name) {
            return Some((tool.does.clone(), tool.input(arguments), tool.timeout_ms));
        }
        let found = self.found.lock();
        let (agent, tool) = found.get(name)?.clone();
        Some((Does::Task { agent, tool: Some(tool) }, arguments.clone(), None))
    }

    /// Returns true if a list of allowed operators permits the calls of a tool: it has the tool's
    /// name, the name of its entry in the agent's `tools`, or the operator that executes it.
    pub fn permits(&self, allowed: &[String], name: &str) -> bool {
        let has = |it: &str| allowed.iter().any(|allowed| allowed == it);
        if let Some(tool) = self.compiled.tools.iter().find(|tool| tool.face.tool.name == name) {
            return has(name) || has(&tool.entry) || tool.operator.as_deref().is_some_and(has);
        }
        let found = self.found.lock();
        let Some((server, _)) = found.get(name) else { return has(name) };
        let entry = |tool: &&Tool| stand_in(self.agent.name(), tool) == *server;
        let entry = self.compiled.declared.tools.iter().find(entry);
        let operator = entry.and_then(|tool| match &tool.target {
            Target::Mcp { server, .. } => Some(server.as_str()),
            _ => None,
        });
        has(name) || entry.is_some_and(|tool| has(&tool.name)) || operator.is_some_and(has)
    }

    fn rule_says(
        &self,
        rule: &Rule,
        slots: &Map<String, Value>,
        verdict: &mut RuleVerdict,
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
        let mut found = self.found.lock();
        let shown = tools.into_iter().filter(allowed).take(SHOWN);
        let mut taken = HashSet::new();
        shown
            .filter_map(|mut tool| {
                let name = tool_name(&format!("{}__{}", of.name, tool.name));
                // One that would pass for another of the same server is not shown.
                taken.insert(name.clone()).then(|| {
                    // Two servers can have one name for a tool. The model sees that of the first.
                    let its = std::mem::take(&mut tool.name);
                    found.entry(name.clone()).or_insert_with(|| (server.to_owned(), its));
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
        accepted.map_err(|violations| crate::schema::first_of(&violations))
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

    fn rule(&self, moment: &Moment<'_>, sums: &Sums) -> Result<RuleVerdict, Failure> {
        let rules = &self.compiled.declared.rules;
        let mut verdict = RuleVerdict::default();
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

/// The values that the expressions of rules can use.
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
