//! Flows that are tables: whether each node is one, has what it needs, and can be reached.
//!
//! The sandbox has brought the flow into its one form before (lua/nodes.luau). Names and types
//! within expressions are looked at in `names`.

mod names;
mod walk;

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use serde_json::{Map, Value, json};

use super::{
    checker::Checker,
    value::{Table, describe, is_function},
};
use crate::blueprint::{
    definition::Agent,
    diagnostics::{code, hint_for},
    duration::{old_form, parse_duration, seconds_to_ms},
    expression::{self, Reading, has_slots},
    locate::pointer,
};
use walk::{Known, Node, Scope, Walk};

/// The kinds of nodes, each with the keys that it may have beside `kind`, `id` and `description`.
pub(in crate::blueprint) const KINDS: [(&str, &[&str]); 15] = [
    ("approve", &["body", "by", "form", "remind", "required", "timeout", "title"]),
    ("assign", &["set", "value"]),
    ("branch", &["else", "if", "then"]),
    ("call", &["blueprint", "input", "version"]),
    ("fail", &["data", "error", "message"]),
    ("loop", &["as", "body", "else", "max", "until", "while"]),
    ("map", &["as", "body", "concurrency", "index", "on_error", "over"]),
    ("parallel", &["branches", "children"]),
    ("race", &["branches", "children"]),
    ("seq", &["children"]),
    ("sleep", &["for", "until"]),
    (
        "step",
        &[
            "agent",
            "idempotency_key",
            "input",
            "operator",
            "retry",
            "session",
            "summary",
            "timeout",
        ],
    ),
    ("switch", &["cases", "default", "on"]),
    ("try", &["as", "body", "catch", "finally"]),
    ("wait", &["signal", "timeout"]),
];

const COMMON: [&str; 3] = ["description", "id", "kind"];

impl Checker<'_> {
    /// Checks a flow that is a table.
    pub(super) fn nodes(
        &mut self,
        flow: &Value,
        input: Option<&Value>,
        agents: &BTreeMap<String, Agent>,
    ) {
        let scope = Scope::of_run(input);
        let outputs = agents.iter().filter_map(|(name, agent)| {
            Some((name.as_str(), Rc::new(agent.output.as_ref()?.to_value())))
        });
        let outputs = outputs.collect();
        let chained = BTreeSet::new();
        Walk { checker: self, agents, scope, outputs, chained, errors: 0 }.node(flow, "/flow");
    }
}

impl Walk<'_, '_, '_> {
    /// Checks one node; says whether the flow ends in it, and the schema of its value as far as it
    /// is known.
    fn node(&mut self, value: &Value, at: &str) -> (bool, Known) {
        let Some(node) = self.open(value, at) else { return (false, None) };
        let (ends, schema) = self.kind(&node);
        if let Some(id) = node.get("id").and_then(Value::as_str) {
            self.scope.set(id, schema.clone());
        }
        (ends, schema)
    }

    fn open<'t>(&mut self, value: &'t Value, at: &str) -> Option<Node<'t>> {
        let kinds: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
        let Some(map) = value.as_object().filter(|_| !is_function(value)) else {
            let message = format!("a node is a table, and this is {}", describe(value));
            self.find(at, code::BAD_NODE, message, Some("write `n.step { agent = … }`".into()));
            return None;
        };
        let Some(kind) = map.get("kind").and_then(Value::as_str) else {
            let hint = format!("there are: {}", kinds.join(", "));
            self.find(at, code::BAD_NODE, "a node needs a `kind`".into(), Some(hint));
            return None;
        };
        let Some((kind, keys)) = KINDS.iter().find(|(known, _)| *known == kind) else {
            let shown: String = kind.chars().take(80).collect();
            let message = format!("there is no node of the kind `{shown}`");
            self.find(&pointer(at, "kind"), code::BAD_NODE, message, hint_for(kind, &kinds));
            return None;
        };
        let what = match map.get("id").and_then(Value::as_str) {
            Some(id) => format!("the {kind} `{id}`"),
            None if kind.starts_with('a') => format!("an {kind}"),
            None => format!("a {kind}"),
        };
        let node = Node { map, kind, at: at.to_owned(), what };
        let mut known = keys.to_vec();
        known.extend(COMMON);
        known.sort_unstable();
        if let Some(table) = Table::new(value, at, &node.what) {
            self.checker.known_keys(&table, &known, &[]);
        }
        for key in ["id", "as", "index"] {
            self.own_name(&node, key);
        }
        Some(node)
    }

    /// A name that the node gives to something: one that expressions can say.
    fn own_name(&mut self, node: &Node<'_>, key: &str) {
        let Some(value) = node.get(key) else { return };
        let at = self.below(&node.at, key);
        let Some(name) = value.as_str() else {
            let message =
                format!("`{key}` of {} must be a name, and is {}", node.what, describe(value));
            return self.find(&at, code::WRONG_TYPE, message, None);
        };
        let word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !word
            || matches!(
                name,
                "input"
                    | "run"
                    | "true"
                    | "false"
                    | "none"
                    | "not"
                    | "and"
                    | "or"
                    | "in"
                    | "is"
                    | "if"
                    | "else"
            )
        {
            let hint = "letters, digits and `_`, not beginning with a digit, and neither `input` nor `run`";
            self.find(
                &at,
                code::BAD_NAME,
                format!("{name:?} is not a name for a value"),
                Some(hint.into()),
            );
        }
    }

    fn kind(&mut self, node: &Node<'_>) -> (bool, Known) {
        match node.kind {
            "seq" => self.seq(node),
            "step" => (false, self.step(node)),
            "parallel" | "race" => self.side_by_side(node),
            "map" => (false, self.map(node)),
            "branch" => self.branch(node),
            "switch" => self.switch(node),
            "loop" => self.loop_(node),
            "try" => self.try_(node),
            "assign" => (false, self.assign(node)),
            "wait" => {
                self.text(node, "signal", true);
                self.duration(node, "timeout", false);
                (false, None)
            }
            "sleep" => {
                match (node.get("for"), node.get("until")) {
                    (None, None) => self.missing(node, "for"),
                    (Some(_), _) => self.duration(node, "for", true),
                    (None, Some(until)) => {
                        self.fill(until, &self.below(&node.at, "until"), &node.what);
                    }
                }
                (false, None)
            }
            "approve" => {
                self.text(node, "title", true);
                self.text(node, "body", false);
                self.filled(node, "by");
                self.number(node, "required", 1.0);
                self.duration(node, "remind", false);
                self.duration(node, "timeout", false);
                let form = node.get("form").cloned();
                (false, known(form.unwrap_or_else(|| json!({ "type": "object" }))))
            }
            "call" => {
                self.text(node, "blueprint", true);
                self.text(node, "version", false);
                self.filled(node, "input");
                (false, None)
            }
            "fail" => {
                self.text(node, "error", true);
                self.text(node, "message", false);
                self.filled(node, "data");
                (true, None)
            }
            other => unreachable!("`open` knows every kind, and {other} is none"),
        }
    }

    fn seq(&mut self, node: &Node<'_>) -> (bool, Known) {
        let (mut ended, mut last) = (false, None);
        let Some(children) = self.children(node, true) else { return (false, None) };
        for (child, at) in children {
            if ended {
                let message = "nothing gets here: the node before it always fails".to_owned();
                self.warn(&at, code::UNREACHABLE, message);
                break;
            }
            (ended, last) = self.node(child, &at);
        }
        (ended, last)
    }

    fn step(&mut self, node: &Node<'_>) -> Known {
        self.text(node, "agent", true);
        for key in ["operator", "idempotency_key", "summary", "session"] {
            self.text(node, key, false);
        }
        self.duration(node, "timeout", false);
        self.filled(node, "input");
        self.filled(node, "retry");
        let name = node.get("agent").and_then(Value::as_str).filter(|name| !has_slots(name))?;
        if !self.agents.contains_key(name) {
            let declared: Vec<&str> = self.agents.keys().map(String::as_str).collect();
            let message = format!("{} runs the agent `{name}`, which is not declared", node.what);
            let hint = hint_for(name, &declared).or_else(|| {
                Some(format!("declare it: agents = {{ {name} = {{ operator = … }} }}"))
            });
            self.find(&self.below(&node.at, "agent"), code::UNKNOWN_AGENT, message, hint);
        }
        self.outputs.get(name).cloned()
    }

    /// Branches that begin together: what each sets is there after all of a parallel.
    fn side_by_side(&mut self, node: &Node<'_>) -> (bool, Known) {
        let named = node.get("branches").is_some();
        let list = if named { self.table(node, "branches") } else { self.children(node, true) };
        let Some(list) = list else { return (false, None) };
        let mut set: BTreeMap<String, Known> = BTreeMap::new();
        let (mut all_end, mut any_ends) = (true, false);
        let count = list.len();
        for (child, at) in list {
            let before = self.scope.enter();
            let (ends, _) = self.node(child, &at);
            all_end &= ends;
            any_ends |= ends;
            for (name, schema) in self.scope.leave(before) {
                if node.kind == "parallel" && set.contains_key(&name) {
                    let message = format!("another branch beside it sets `{name}` as well");
                    self.warn(&at, code::NAME_TWICE, message);
                }
                set.insert(name, schema);
            }
        }
        if node.kind == "race" {
            let value = json!({ "type": "object", "properties": { "winner": {}, "value": {} } });
            return (all_end && count > 0, known(value));
        }
        for (name, schema) in set {
            self.scope.set(&name, schema);
        }
        let kind = if named { "object" } else { "array" };
        (any_ends, known(json!({ "type": kind })))
    }

    fn map(&mut self, node: &Node<'_>) -> Known {
        let items = self.over(node);
        self.number(node, "concurrency", 1.0);
        match node.get("on_error") {
            None => {}
            Some(Value::String(word)) if word == "fail" || word == "collect" => {}
            Some(_) => {
                let message =
                    format!("`on_error` of {} must be \"fail\" or \"collect\"", node.what);
                self.find(&self.below(&node.at, "on_error"), code::WRONG_TYPE, message, None);
            }
        }
        let before = self.scope.enter();
        let item = node.get("as").and_then(Value::as_str).unwrap_or("item");
        self.scope.set(item, items.map(Rc::new));
        if let Some(index) = node.get("index").and_then(Value::as_str) {
            self.scope.set(index, known(json!({ "type": "integer" })));
        }
        let (_, schema) = self.one(node, "body", true);
        self.scope.leave(before);
        let collects = node.get("on_error").and_then(Value::as_str) == Some("collect");
        let items = schema.filter(|_| !collects).map(|schema| Value::clone(&schema));
        known(json!({ "type": "array", "items": items.unwrap_or_else(|| json!({})) }))
    }

    fn branch(&mut self, node: &Node<'_>) -> (bool, Known) {
        let constant = self.condition(node, "if", true);
        for (key, dead) in [("then", Some(false)), ("else", Some(true))] {
            if constant == dead && node.get(key).is_some() {
                let message =
                    format!("nothing gets here: the condition of {} is always the same", node.what);
                self.warn(&self.below(&node.at, key), code::UNREACHABLE, message);
            }
        }
        self.every_branch(node);
        let (then_ends, then) = self.one(node, "then", true);
        let (else_ends, otherwise) = self.one(node, "else", false);
        (then_ends && else_ends, then.filter(|then| otherwise.as_ref() == Some(then)))
    }

    fn switch(&mut self, node: &Node<'_>) -> (bool, Known) {
        match node.get("on") {
            None => self.missing(node, "on"),
            Some(Value::String(text)) => {
                self.expression(text, Reading::Expression, &self.below(&node.at, "on"), &node.what);
            }
            Some(_) => {}
        }
        let mut all_end = true;
        for (child, at) in self.table(node, "cases").unwrap_or_default() {
            all_end &= self.node(child, &at).0;
        }
        if node.get("cases").is_none() {
            self.missing(node, "cases");
        } else if node.get("default").is_none() {
            self.every_value(node);
        }
        let (default_ends, _) = self.one(node, "default", false);
        (all_end && default_ends, None)
    }

    /// A switch without a default has a case for every value that the schema of `on` lists.
    fn every_value(&mut self, node: &Node<'_>) {
        let on = node.get("on").and_then(Value::as_str).and_then(expression::path);
        let Some(schema) = on.and_then(|on| self.scope.schema(on)) else { return };
        let Some(values) = schema.get("enum").and_then(Value::as_array) else { return };
        let cases = node.get("cases").and_then(Value::as_object);
        let Some(cases) = cases else { return };
        let handled = |value: &&Value| match value.as_str() {
            Some(text) => cases.contains_key(text),
            None => cases.contains_key(&value.to_string()),
        };
        let left: Vec<String> =
            values.iter().filter(|value| !handled(value)).map(|it| format!("{it}")).collect();
        if !left.is_empty() {
            let message = format!("no case of {} handles {}", node.what, left.join(", "));
            self.warn(&self.below(&node.at, "cases"), code::UNHANDLED_VALUE, message);
        }
    }

    fn loop_(&mut self, node: &Node<'_>) -> (bool, Known) {
        match node.get("max") {
            None => {
                let hint = "add `max = 10`: a loop without a bound may never end";
                let message = format!("`max` is missing in {}", node.what);
                self.find(&node.at.clone(), code::MISSING_KEY, message, Some(hint.into()));
            }
            Some(Value::Number(max)) if max.as_f64() == Some(0.0) => {
                let message = format!("nothing gets here: {} has no round", node.what);
                self.warn(&self.below(&node.at, "body"), code::UNREACHABLE, message);
            }
            Some(_) => self.number(node, "max", 0.0),
        }
        let round = node.get("as").and_then(Value::as_str).unwrap_or("round");
        self.scope.set(round, known(json!({ "type": "integer" })));
        // What the body sets is not there before the first round.
        self.condition(node, "while", false);
        let (ends, schema) = self.one(node, "body", true);
        self.condition(node, "until", false);
        let (else_ends, _) = self.one(node, "else", false);
        (ends && node.get("while").is_none() && (node.get("else").is_none() || else_ends), schema)
    }

    fn try_(&mut self, node: &Node<'_>) -> (bool, Known) {
        let (body_ends, schema) = self.one(node, "body", true);
        let name = node.get("as").and_then(Value::as_str).unwrap_or("error");
        self.scope.set(name, known(json!({ "type": "object" })));
        let (catch_ends, _) = self.one(node, "catch", false);
        let (finally_ends, _) = self.one(node, "finally", false);
        let caught = node.get("catch").is_some();
        if !caught && node.get("finally").is_none() {
            self.missing(node, "catch");
        }
        ((body_ends && (!caught || catch_ends)) || finally_ends, schema.filter(|_| !caught))
    }

    fn assign(&mut self, node: &Node<'_>) -> Known {
        match (node.get("set"), node.get("value")) {
            (None, None) => self.missing(node, "set"),
            (Some(_), Some(_)) => {
                let message = format!("{} has both `set` and `value`", node.what);
                let hint = "`set = { name = value }` sets names, `id` and `value` set one";
                self.find(
                    &self.below(&node.at, "value"),
                    code::KEY_DOES_NOT_FIT,
                    message,
                    Some(hint.into()),
                );
            }
            (Some(Value::Object(values)), None) => {
                for (name, value) in values {
                    self.fill(value, &pointer(&self.below(&node.at, "set"), name), &node.what);
                }
                for (name, value) in values {
                    let schema = self.schema_of(value);
                    self.scope.set(name, schema);
                }
            }
            (Some(other), None) => {
                let message = format!(
                    "`set` of {} must be a table of names, and is {}",
                    node.what,
                    describe(other)
                );
                self.find(&self.below(&node.at, "set"), code::WRONG_TYPE, message, None);
            }
            (None, Some(value)) => {
                self.fill(value, &self.below(&node.at, "value"), &node.what);
                return self.schema_of(value);
            }
        }
        None
    }

    /// The node below a key.
    fn one(&mut self, node: &Node<'_>, key: &str, needed: bool) -> (bool, Known) {
        match node.get(key) {
            Some(child) => self.node(child, &self.below(&node.at, key)),
            None => {
                if needed {
                    self.missing(node, key);
                }
                (false, None)
            }
        }
    }

    fn children<'t>(&mut self, node: &Node<'t>, needed: bool) -> Option<Vec<(&'t Value, String)>> {
        match node.map.get("children") {
            Some(Value::Array(children)) if !children.is_empty() => {
                let at = |n: usize| {
                    let within = pointer(&pointer(&node.at, "children"), &n.to_string());
                    // In Lua, children may stand in the node itself.
                    let direct = pointer(&node.at, &n.to_string());
                    if self.checker.outline.spot(&within).is_none()
                        && self.checker.outline.spot(&direct).is_some()
                    {
                        return direct;
                    }
                    within
                };
                Some(children.iter().enumerate().map(|(n, child)| (child, at(n))).collect())
            }
            Some(other) if !other.is_array() && !other.as_object().is_some_and(Map::is_empty) => {
                let message = format!(
                    "`children` of {} must be a list, and is {}",
                    node.what,
                    describe(other)
                );
                self.find(&pointer(&node.at, "children"), code::WRONG_TYPE, message, None);
                None
            }
            _ => {
                if needed {
                    let message = format!("{} has no nodes in it", node.what);
                    self.find(
                        &node.at,
                        code::MISSING_KEY,
                        message,
                        Some("list them in `children`".into()),
                    );
                }
                None
            }
        }
    }

    fn table<'t>(&mut self, node: &Node<'t>, key: &str) -> Option<Vec<(&'t Value, String)>> {
        let at = self.below(&node.at, key);
        match node.map.get(key)? {
            Value::Object(map) => {
                let mut names: Vec<&String> = map.keys().collect();
                names.sort();
                Some(names.into_iter().map(|name| (&map[name], pointer(&at, name))).collect())
            }
            other => {
                let message = format!(
                    "`{key}` of {} must be a table of nodes, and is {}",
                    node.what,
                    describe(other)
                );
                self.find(&at, code::WRONG_TYPE, message, None);
                None
            }
        }
    }

    fn text(&mut self, node: &Node<'_>, key: &str, needed: bool) {
        match node.get(key) {
            None if needed => self.missing(node, key),
            None => {}
            Some(value @ Value::String(_)) => {
                self.fill(value, &self.below(&node.at, key), &node.what);
            }
            Some(other) => {
                let message = format!(
                    "`{key}` of {} must be a string, and is {}",
                    node.what,
                    describe(other)
                );
                self.find(&self.below(&node.at, key), code::WRONG_TYPE, message, None);
            }
        }
    }

    fn number(&mut self, node: &Node<'_>, key: &str, least: f64) {
        match node.get(key) {
            None => {}
            Some(value @ Value::String(text)) if has_slots(text) => {
                self.fill(value, &self.below(&node.at, key), &node.what);
            }
            Some(value) => {
                let fits = value.as_f64().is_some_and(|n| n >= least && n.fract() == 0.0);
                if !fits {
                    let message =
                        format!("`{key}` of {} must be a whole number from {least}", node.what);
                    self.find(&self.below(&node.at, key), code::OUT_OF_RANGE, message, None);
                }
            }
        }
    }

    fn duration(&mut self, node: &Node<'_>, key: &str, needed: bool) {
        let at = self.below(&node.at, key);
        let fits = match node.get(key) {
            None if needed => return self.missing(node, key),
            None => return,
            Some(value @ Value::String(text)) if has_slots(text) => {
                return self.fill(value, &at, &node.what);
            }
            Some(Value::String(text)) => {
                if let Some((why, instead)) = old_form(text) {
                    let message = format!("`{key}` of {}: \"{text}\" {why}", node.what);
                    let finding = self.checker.at_value(&at, code::OLD_DURATION, message);
                    let finding = finding.hint(format!("write \"{instead}\"")).warning();
                    self.checker.findings.push(finding);
                }
                parse_duration(text).is_ok()
            }
            Some(value) => value.as_f64().and_then(seconds_to_ms).is_some(),
        };
        if !fits {
            let message = format!("`{key}` of {} is not a duration", node.what);
            let hint =
                "write \"250ms\", \"90s\", \"20m\", \"1h30m\", \"2d\" or a number of seconds";
            self.find(&at, code::BAD_DURATION, message, Some(hint.into()));
        }
    }

    fn filled(&mut self, node: &Node<'_>, key: &str) {
        if let Some(value) = node.get(key) {
            self.fill(value, &self.below(&node.at, key), &node.what);
        }
    }
}

fn known(schema: Value) -> Known {
    Some(Rc::new(schema))
}

#[cfg(test)]
mod tests;
