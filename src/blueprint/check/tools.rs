//! Checks the loop of an agent's model: tools, limits, rules, compaction.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    checker::Checker,
    value::{Table, describe, is_function},
};
use crate::{
    blueprint::{
        definition::Agent,
        diagnostics::{code, did_you_mean},
        expression::{self, Reading},
        library,
        locate::pointer,
        model_loop::{Flush, ModelLoop, On, Rule, Target, Tool, tool_name},
    },
    flow::response::{Approve, Compaction, Exceeded},
    protocol::{CompactionPolicy, Json, ToolMetadata},
    schema::Schema,
};

const TARGETS: [&str; 6] = ["agent", "fn", "http", "mcp", "operator", "state"];
/// The keys that only a model's loop goes by.
const LOOP: [&str; 10] = [
    "compaction",
    "max_cost",
    "max_duration",
    "max_failures",
    "max_repeats",
    "max_tool_calls",
    "max_turns",
    "on_exceeded",
    "rules",
    "warn_at",
];
/// The names that a rule's condition can use.
pub(crate) const SLOTS: [&str; 9] =
    ["turn", "calls", "cost", "tokens", "tool", "input", "output", "error", "text"];
/// Tools and rules of one agent.
const MOST: usize = 256;

impl Checker<'_> {
    /// The loop of an agent, where its operator is a model.
    pub(super) fn model_loop(&mut self, table: &Table<'_>, operator: &str) -> Option<ModelLoop> {
        let is_model = self.operators.is_model(operator);
        if !is_model {
            if self.operators.kind(operator).is_some() {
                self.no_loop(table, operator);
            }
            return None;
        }
        Some(ModelLoop {
            tools: self.tools(table),
            max_turns: self
                .integer(table, "max_turns", 1..=10_000)
                .or_else(|| table.get("maxTurns")?.as_u64()?.try_into().ok()),
            max_cost: self.money(table, "max_cost"),
            max_duration_ms: self.positive_duration(table, "max_duration"),
            max_repeats: self.integer(table, "max_repeats", 2..=10_000),
            max_failures: self.integer(table, "max_failures", 1..=10_000),
            max_tool_calls: self.integer(table, "max_tool_calls", 0..=100_000),
            rules: self.rules(table),
            compaction: self.compaction(table),
            flush: self.flush(table),
            warn_at: self.part(table, "warn_at"),
            exceeded: self.exceeded(table),
        })
    }

    /// Reports the settings of a loop in an agent that has none.
    fn no_loop(&mut self, table: &Table<'_>, operator: &str) {
        let what = table.what().to_owned();
        for key in LOOP.iter().filter(|key| table.get(key).is_some()) {
            let message = format!("`{key}` in {what}, and `{operator}` is no model");
            let finding = self
                .at_key(&table.pointer(key), code::TOOLS_UNUSED, message)
                .hint("remove it, or use an operator that is a model");
            self.findings.push(finding);
        }
        let listed = table.get("tools").and_then(Value::as_array);
        for (index, tool) in listed.into_iter().flatten().enumerate() {
            if tool.is_object() {
                let at = pointer(&table.pointer("tools"), &index.to_string());
                let message = format!("a tool of {what}, and `{operator}` calls none");
                let finding = self
                    .at_value(&at, code::TOOLS_UNUSED, message)
                    .hint("write the name of a tool that its worker has, or use a model");
                self.findings.push(finding);
            }
        }
    }

    fn tools(&mut self, table: &Table<'_>) -> Vec<Tool> {
        let what = table.what().to_owned();
        let at = table.pointer("tools");
        let mut tools = Vec::new();
        let entries: &[Value] = match table.get("tools") {
            Some(Value::Array(entries)) => entries,
            Some(Value::Object(map)) if map.is_empty() => &[],
            None => &[],
            Some(other) => {
                self.wrong_type(table, "tools", "a list of tools", other);
                &[]
            }
        };
        if entries.len() > MOST {
            let message = format!("`tools` in {what} has more than {MOST} entries");
            self.findings.push(self.at_value(&at, code::OUT_OF_RANGE, message));
        }
        for (index, entry) in entries.iter().take(MOST).enumerate() {
            let at = pointer(&at, &index.to_string());
            let tool = match entry {
                Value::String(name) => Some(Tool {
                    name: tool_name(name),
                    description: None,
                    input: None,
                    open: false,
                    approve: Approve::Allow,
                    parallel_safe: true,
                    policy: CompactionPolicy::Normal,
                    timeout_ms: None,
                    target: Target::Agent(name.clone()),
                }),
                other => match Table::new(other, &at, &format!("tool {} of {what}", index + 1)) {
                    Some(tool) => self.tool(&tool, index + 1),
                    None => {
                        let message = format!(
                            "tool {} of {what} must be an agent's name or a table, and is {}",
                            index + 1,
                            describe(other)
                        );
                        self.findings.push(self.at_value(&at, code::WRONG_TYPE, message));
                        None
                    }
                },
            };
            tools.extend(tool);
        }
        tools
    }

    fn tool(&mut self, table: &Table<'_>, place: usize) -> Option<Tool> {
        self.known_keys(table, &library::keys("Tool"), &[]);
        let what = table.what().to_owned();
        let targets: Vec<&str> =
            TARGETS.iter().copied().filter(|key| table.get(key).is_some()).collect();
        let [target] = targets[..] else {
            let message = format!("{what} must have one of {}", TARGETS.join(", "));
            let finding = self.at_value(table.at(), code::BAD_TOOL, message);
            self.findings.push(finding.hint("such as `{ agent = \"reader\" }`"));
            return None;
        };
        let name = self.text(table, "name");
        let mut declared = None;
        let (target, default) = match target {
            "fn" => {
                let value = table.get("fn")?;
                if !is_function(value) {
                    self.wrong_type(table, "fn", "a function", value);
                }
                (Target::Function(place), name.clone().unwrap_or_default())
            }
            "agent" => {
                let agent = self.text(table, "agent")?;
                (Target::Agent(agent.clone()), tool_name(&agent))
            }
            "state" => (self.state_tool(table)?, "state".to_owned()),
            "mcp" => {
                let server = self.kind_of(table, "mcp", Some("mcp"))?;
                let allow = table.get("allow").map(|_| self.texts(table, "allow"));
                let default = tool_name(&server);
                (Target::Mcp { server, allow: allow.map(Option::unwrap_or_default) }, default)
            }
            "http" => {
                let operator = self.kind_of(table, "http", Some("http"))?;
                let default = tool_name(&operator);
                (Target::Operator(operator), default)
            }
            _ => {
                let operator = self.kind_of(table, "operator", None)?;
                declared = self.declared_tool(table, &operator);
                let default = declared.as_ref().map_or(&*operator, |tool| &tool.name);
                let default = tool_name(default);
                (Target::Operator(operator), default)
            }
        };
        for (key, fits) in [
            ("allow", matches!(target, Target::Mcp { .. })),
            ("scope", matches!(target, Target::State { .. })),
            ("prefix", matches!(target, Target::State { .. })),
            ("input", !matches!(target, Target::Mcp { .. } | Target::State { .. })),
        ] {
            if !fits && table.get(key).is_some() {
                let message = format!("`{key}` has no use in {what}");
                let finding = self.at_key(&table.pointer(key), code::BAD_TOOL, message);
                self.findings.push(finding.hint("remove it"));
            }
        }
        let name = name.unwrap_or(default);
        if name.is_empty() || tool_name(&name) != name {
            let message = match name.is_empty() {
                true => format!("{what} is a function and needs a `name`"),
                false => format!("{name:?} is not the name of a tool ({what})"),
            };
            let finding = self
                .at_value(table.at(), code::BAD_TOOL, message)
                .hint("a tool's name has at most 64 letters, digits, `_` and `-`");
            self.findings.push(finding);
        }
        let own = self.schema(table, "input", true);
        let description = self.text(table, "description");
        let safe = self.boolean(table, "parallel_safe");
        Some(Tool {
            name,
            description: description.or_else(|| Some(declared.as_ref()?.description.clone())),
            open: own.is_none() && declared.is_some(),
            parallel_safe: safe.unwrap_or(declared.as_ref().is_none_or(|it| it.parallel_safe)),
            input: own.or(declared.map(|tool| tool.input_schema)).map(Into::into),
            policy: self.policy(table),
            approve: self.approval(table),
            timeout_ms: self.positive_duration(table, "timeout"),
            target,
        })
    }

    /// The tool that an operator declares itself to be; its schema must be one.
    fn declared_tool(&mut self, table: &Table<'_>, operator: &str) -> Option<ToolMetadata> {
        let declared = self.operators.tool(operator)?.clone();
        let fault = match &declared.input_schema {
            Value::Object(_) => Schema::compile_value(declared.input_schema.clone(), false)
                .err()
                .map(|error| format!("at {}: {}", error.path, error.message)),
            other => Some(format!("it is {}", describe(other))),
        };
        if let Some(fault) = fault {
            let message = format!("the schema that the operator `{operator}` declares: {fault}");
            let finding = self.at_value(&table.pointer("operator"), code::BAD_SCHEMA, message);
            self.findings.push(finding.hint("give the tool an `input` of its own"));
            return None;
        }
        Some(declared)
    }

    /// The treatment of a tool's calls in a compaction.
    fn policy(&mut self, table: &Table<'_>) -> CompactionPolicy {
        let Some(text) = self.text(table, "compaction") else { return CompactionPolicy::Normal };
        serde_json::from_value(text.into()).unwrap_or_else(|_| {
            let message = format!("`compaction` in {} is no policy", table.what());
            let finding = self
                .at_value(&table.pointer("compaction"), code::BAD_TOOL, message)
                .hint("write \"pinned\", \"normal\", \"compress_first\" or \"discard_when_done\"");
            self.findings.push(finding);
            CompactionPolicy::Normal
        })
    }

    fn approval(&mut self, table: &Table<'_>) -> Approve {
        match self.text(table, "approve").as_deref() {
            None | Some("allow") => Approve::Allow,
            Some("ask") => Approve::Ask,
            Some("deny") => Approve::Deny,
            Some(_) => {
                let message = format!("`approve` in {} is no answer", table.what());
                let finding = self
                    .at_value(&table.pointer("approve"), code::BAD_TOOL, message)
                    .hint("write \"ask\", \"allow\" or \"deny\"");
                self.findings.push(finding);
                Approve::Allow
            }
        }
    }

    fn state_tool(&mut self, table: &Table<'_>) -> Option<Target> {
        let write = match self.text(table, "state")?.as_str() {
            "read" => false,
            "write" => true,
            _ => {
                let message = format!("`state` in {} is neither", table.what());
                let finding = self
                    .at_value(&table.pointer("state"), code::BAD_TOOL, message)
                    .hint("write \"read\" or \"write\"");
                self.findings.push(finding);
                return None;
            }
        };
        let prefix = self.text(table, "prefix").unwrap_or_default();
        Some(Target::State { write, scope: self.text(table, "scope"), prefix })
    }

    /// The operator that a key names, which must be of a kind.
    fn kind_of(&mut self, table: &Table<'_>, key: &str, kind: Option<&str>) -> Option<String> {
        let name = self.text(table, key)?;
        let operators = self.operators;
        let found = operators.kinds(&name);
        let fits = kind.is_none_or(|kind| found.contains(&kind));
        if found.is_empty() || !fits {
            let mut names = operators.names();
            names.retain(|it| kind.is_none_or(|kind| operators.kinds(it).contains(&kind)));
            names.sort();
            let shown: String = name.chars().take(80).collect();
            let of = kind.map_or_else(String::new, |kind| format!(" of kind {kind}"));
            let message = format!("there is no operator `{shown}`{of} ({})", table.what());
            let hint = match did_you_mean(&name, names.iter().map(String::as_str)) {
                Some(likely) => format!("did you mean `{likely}`?"),
                None if names.is_empty() => "declare it in moonswarm.toml".to_owned(),
                None => format!("there are: {}", names.join(", ")),
            };
            let finding = self.at_value(&table.pointer(key), code::UNKNOWN_OPERATOR, message);
            self.findings.push(finding.hint(hint));
            return None;
        }
        Some(name)
    }

    fn rules(&mut self, table: &Table<'_>) -> Vec<Rule> {
        let what = table.what().to_owned();
        let mut rules = Vec::new();
        let list = self.list(table, "rules");
        for (index, (value, at)) in list.into_iter().take(MOST).enumerate() {
            match Table::new(value, &at, &format!("rule {} of {what}", index + 1)) {
                Some(rule) => rules.extend(self.rule(&rule)),
                None => {
                    let message = format!("a rule is a table, and this is {}", describe(value));
                    self.findings.push(self.at_value(&at, code::WRONG_TYPE, message));
                }
            }
        }
        rules
    }

    fn rule(&mut self, table: &Table<'_>) -> Option<Rule> {
        self.known_keys(table, &library::keys("Rule"), &[]);
        let (before, after) = (self.text(table, "before"), self.text(table, "after"));
        let any = |name: String| if name == "tool" { "*".to_owned() } else { name };
        let on = match (before, after) {
            (Some(_), Some(_)) => return self.bad_rule(table, "has both `before` and `after`"),
            (None, None) if table.get("when").is_none() => {
                return self.bad_rule(table, "says neither `before` nor `after` nor `when`");
            }
            (None, None) => On::BeforeModel,
            (Some(it), None) if it == "model" => On::BeforeModel,
            (None, Some(it)) if it == "model" => On::AfterModel,
            (Some(it), None) => On::BeforeTool(any(it)),
            (None, Some(it)) => On::AfterTool(any(it)),
        };
        for key in ["when", "halt", "deny", "say"] {
            let Some(text) = self.text(table, key) else { continue };
            let reading = if key == "when" { Reading::Condition } else { Reading::Slots };
            let wrong = match expression::names(&text, reading) {
                Err(error) => Some(error.message),
                Ok(names) => names
                    .into_iter()
                    .find(|name| !SLOTS.contains(&name.split('.').next().unwrap_or(name)))
                    .map(|name| format!("there is no `{name}`; there are {}", SLOTS.join(", "))),
            };
            if let Some(wrong) = wrong {
                let message = format!("`{key}` in {}: {wrong}", table.what());
                self.findings.push(self.at_value(&table.pointer(key), code::BAD_RULE, message));
            }
        }
        let rule = Rule {
            when: self.text(table, "when"),
            halt: self.text(table, "halt"),
            deny: self.text(table, "deny"),
            ask: self.boolean(table, "ask").unwrap_or(false),
            set: table.get("set").cloned(),
            say: self.text(table, "say"),
            on,
        };
        let of_call = rule.deny.is_some() || rule.ask;
        let of_tool = matches!(rule.on, On::BeforeTool(_) | On::AfterTool(_));
        match (&rule.on, &rule.set) {
            (On::BeforeTool(_), Some(set)) if !set.is_object() => {
                self.bad_rule(table, "`set` before a tool lays a table over its arguments")
            }
            (_, Some(_)) if !of_tool => self.bad_rule(table, "`set` goes with a tool"),
            (on, _) if of_call && !matches!(on, On::BeforeTool(_)) => {
                self.bad_rule(table, "`deny` and `ask` go with `before` and a tool")
            }
            _ if !of_call && rule.halt.is_none() && rule.say.is_none() && rule.set.is_none() => {
                self.bad_rule(table, "does nothing: write one of halt, deny, ask, set, say")
            }
            (On::BeforeTool(_), _) if rule.say.is_some() => {
                self.bad_rule(table, "`say` goes with the model, or with `after` and a tool")
            }
            _ => Some(rule),
        }
    }

    fn bad_rule(&mut self, table: &Table<'_>, why: &str) -> Option<Rule> {
        let message = format!("{}: {why}", table.what());
        let finding = self
            .at_value(table.at(), code::BAD_RULE, message)
            .hint("such as `{ before = \"shell\", when = \"calls > 20\", deny = \"enough\" }`");
        self.findings.push(finding);
        None
    }

    fn compaction(&mut self, table: &Table<'_>) -> Option<Compaction> {
        let what = format!("`compaction` of {}", table.what());
        let table = self.table(table, "compaction", &what)?;
        self.known_keys(&table, &library::keys("Compaction"), &[]);
        if table.get("at").is_none() {
            self.missing(&table, "at", "at = 100000");
        }
        let at = self.integer(&table, "at", 1..=u32::MAX);
        let keep = self.integer(&table, "keep", 1..=10_000).unwrap_or(4);
        let summarize = match self.text(&table, "strategy").as_deref() {
            None | Some("drop") => false,
            Some("summarize") => true,
            Some(_) => {
                let message = format!("`strategy` in {what} is neither");
                let finding = self
                    .at_value(&table.pointer("strategy"), code::OUT_OF_RANGE, message)
                    .hint("write \"drop\" or \"summarize\"");
                self.findings.push(finding);
                false
            }
        };
        Some(Compaction { at_tokens: u64::from(at?), keep, summarize })
    }

    /// The place to which turns are written before they leave the conversation.
    fn flush(&mut self, table: &Table<'_>) -> Option<Flush> {
        let what = format!("`compaction.flush` of {}", table.what());
        let compaction = Table::new(table.get("compaction")?, &table.pointer("compaction"), &what)?;
        let default = Flush { scope: None, prefix: "turns/".to_owned(), required: true };
        match compaction.get("flush")? {
            Value::Bool(flush) => flush.then_some(default),
            Value::Object(map) if map.is_empty() => Some(default),
            _ => {
                let flush = self.table(&compaction, "flush", &what)?;
                self.known_keys(&flush, &library::keys("Flush"), &[]);
                Some(Flush {
                    scope: self.text(&flush, "scope"),
                    prefix: self.text(&flush, "prefix").unwrap_or(default.prefix),
                    required: self.boolean(&flush, "required").unwrap_or(true),
                })
            }
        }
    }

    /// A number from 0 to 1.
    fn part(&mut self, table: &Table<'_>, key: &str) -> Option<f64> {
        let part = self.number(table, key)?;
        if !(0.0..=1.0).contains(&part) {
            let message = format!("`{key}` of {} is from 0 to 1", table.what());
            let at = table.pointer(key);
            self.findings.push(self.at_value(&at, code::OUT_OF_RANGE, message));
            return None;
        }
        Some(part)
    }

    /// Checks the action for a loop that has spent its money.
    fn exceeded(&mut self, table: &Table<'_>) -> Exceeded {
        let what = format!("`on_exceeded` of {}", table.what());
        match table.get("on_exceeded") {
            None => Exceeded::Halt,
            Some(Value::String(word)) if word == "halt" => Exceeded::Halt,
            Some(Value::String(word)) if word == "continue" => Exceeded::Continue,
            Some(Value::Object(_)) => {
                let Some(table) = self.table(table, "on_exceeded", &what) else {
                    return Exceeded::Halt;
                };
                self.known_keys(&table, &library::keys("Exceeded"), &[]);
                self.required_text(&table, "downgrade").map_or(Exceeded::Halt, Exceeded::Downgrade)
            }
            Some(_) => {
                let message = format!("{what} is no decision");
                let finding = self
                    .at_value(&table.pointer("on_exceeded"), code::OUT_OF_RANGE, message)
                    .hint("write \"halt\", \"continue\" or { downgrade = \"a-cheaper-model\" }");
                self.findings.push(finding);
                Exceeded::Halt
            }
        }
    }

    /// Checks of tools once every agent is known: those that are agents exist, no two of
    /// an agent have the same name, and rules are about tools that there are.
    pub(super) fn tools_together(&mut self, agents: &BTreeMap<String, Agent>) {
        for (name, agent) in agents {
            let Some(model) = &agent.model_loop else { continue };
            let at = pointer(&pointer("/agents", name), "tools");
            let mut seen = BTreeSet::new();
            for (index, tool) in model.tools.iter().enumerate() {
                let at = pointer(&at, &index.to_string());
                if let Target::Agent(of) = &tool.target
                    && !agents.contains_key(of)
                {
                    let message = format!(
                        "tool {} of agent `{name}` is the agent `{}`, which is not declared",
                        index + 1,
                        of.chars().take(80).collect::<String>()
                    );
                    let hint = match did_you_mean(of, agents.keys().map(String::as_str)) {
                        Some(likely) => format!("did you mean `{likely}`?"),
                        None => "an agent's own tools are agents, operators, servers and \
                                 functions of the blueprint"
                            .to_owned(),
                    };
                    let finding = self.at_value(&at, code::UNKNOWN_TOOL, message).hint(hint);
                    self.findings.push(finding);
                }
                if !seen.insert(&tool.name) {
                    let message = format!("two tools of agent `{name}` are called `{}`", tool.name);
                    let finding = self
                        .at_value(&at, code::TOOL_TWICE, message)
                        .hint("give one of them a `name` of its own");
                    self.findings.push(finding);
                }
            }
            self.rules_together(name, model);
        }
    }

    fn rules_together(&mut self, agent: &str, model: &ModelLoop) {
        // What servers and state bring is known by the beginning of its name only.
        let fits = |pattern: &str| {
            pattern.ends_with('*')
                || model.tools.iter().any(|tool| match tool.target {
                    Target::Mcp { .. } => pattern.starts_with(&format!("{}__", tool.name)),
                    Target::State { .. } => pattern.starts_with(&format!("{}_", tool.name)),
                    _ => tool.name == pattern,
                })
        };
        let at = pointer(&pointer("/agents", agent), "rules");
        for (index, rule) in model.rules.iter().enumerate() {
            let (On::BeforeTool(tool) | On::AfterTool(tool)) = &rule.on else { continue };
            if !fits(tool) {
                let at = pointer(&at, &index.to_string());
                let message = format!(
                    "rule {} of agent `{agent}` is about the tool `{tool}`, which it does not have",
                    index + 1
                );
                let finding = self.at_value(&at, code::UNKNOWN_TOOL, message);
                let finding = match did_you_mean(tool, model.tools.iter().map(|it| &*it.name)) {
                    Some(likely) => finding.hint(format!("did you mean `{likely}`?")),
                    None => finding.hint("\"model\", \"tool\" for any tool, or a tool's name"),
                };
                self.findings.push(finding);
            }
        }
    }
}

/// The JSON Schema of arguments that are nothing but a text.
pub(crate) fn text_arguments() -> Json {
    serde_json::json!({
        "type": "object",
        "properties": { "input": { "type": "string", "description": "What is asked." } },
        "required": ["input"],
        "additionalProperties": false,
    })
    .into()
}
