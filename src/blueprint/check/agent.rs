//! One agent: its keys, and whether they fit its operator.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    checker::Checker,
    value::{Table, is_function},
};
use crate::{
    blueprint::{
        Budget, ContextNames, Labels, asking,
        definition::{Agent, Lease, Retry, WorkerBinding},
        diagnostics::{code, did_you_mean},
        library,
        locate::pointer,
    },
    flow::Asking,
    protocol::Json,
};

const LATER_KEYS: [&str; 2] = ["middleware", "on"];

/// The keys that only one kind of operator has a use for.
const KEYS_OF_KINDS: &[(&str, &str)] = &[
    ("by", "human"),
    ("remind", "human"),
    ("required", "human"),
    ("command", "process"),
    ("check", "process"),
    ("cwd", "process"),
    ("env", "process"),
    ("environment", "process"),
    ("fn", "lua"),
    ("labels", "queue"),
    ("queue", "queue"),
    ("tool", "mcp"),
];

/// The number of silent workers that a task is given to, if its agent has a lease and no `retry`.
const SILENT: u32 = 3;
/// The maximum number of auditors of an agent.
const AUDITORS: usize = 8;

/// The names of a context's steps, or of its files.
const NAMES: usize = 256;

impl Checker<'_> {
    /// Reads an agent; `operator` is that of the blueprint, for agents without one.
    pub(super) fn agent(
        &mut self,
        table: &Table<'_>,
        run_input: Option<&Value>,
        operator: Option<&str>,
    ) -> Agent {
        self.known_keys(table, &library::keys("Agent"), &LATER_KEYS);
        // An agent file names its agent; the key that it stands under is what counts.
        self.text(table, "name");
        let has_fn = match table.get("fn") {
            None => false,
            Some(value) if is_function(value) => true,
            Some(value) => {
                self.wrong_type(table, "fn", "a function", value);
                true
            }
        };
        let input = self.schema(table, "input", true);
        let operator = match operator.filter(|_| table.get("operator").is_none()) {
            Some(default) => default.to_owned(),
            None => self.required_text(table, "operator").unwrap_or_default(),
        };
        let model_loop = self.model_loop(table, &operator).map(Box::new);
        let retry = self.retry(table);
        let agent = Agent {
            system: self.text(table, "system"),
            literal: self.boolean(table, "template") == Some(false),
            prompt: self.text(table, "prompt"),
            description: self.text(table, "description"),
            output: self.schema(table, "output", false).map(Into::into),
            worker: self.worker(table),
            command: self.command(table),
            check: self.boolean(table, "check").unwrap_or(true),
            cwd: self.cwd(table),
            env: self.env(table),
            environment: self.environment(table),
            queue: self.text(table, "queue"),
            labels: self.labels(table),
            tool: self.text(table, "tool"),
            asking: self.asking(table),
            context: self.context(table),
            audit: self.one_or_more(table, "audit"),
            has_fn,
            timeout_ms: self.positive_duration(table, "timeout"),
            park_ms: self.positive_duration(table, "park"),
            lease: self.lease(table, &retry),
            retry,
            max_concurrency: self.integer(table, "max_concurrency", 1..=100_000),
            tools: match &model_loop {
                Some(model) => model.tools.iter().map(|tool| tool.name.clone()).collect(),
                None => self.names_of_tools(table),
            },
            budget: self.budget(table),
            model: self.text(table, "model"),
            effort: self.text(table, "effort"),
            input: input.as_ref().map(Into::into),
            operator,
            file_turns: self.integer(table, "maxTurns", 1..=10_000),
            model_loop,
        };
        if let Some(queue) = &agent.queue {
            self.name(queue, &table.pointer("queue"));
        }
        self.prompts(table, input.as_ref(), run_input);
        self.commands(table, input.as_ref());
        if !agent.operator.is_empty() {
            self.operator(table, &agent);
        }
        agent
    }

    /// Reports an operator that does not exist, where it is named.
    pub(super) fn unknown_operator(&mut self, at: &str, operator: &str, what: &str) {
        let mut names = self.operators.names();
        names.sort();
        let shown: String = operator.chars().take(80).collect();
        let message = format!("there is no operator `{shown}` ({what})");
        let likely = did_you_mean(operator, names.iter().map(String::as_str));
        let hint = match (self.operators.declaration(operator), likely) {
            (Some(lines), _) => format!(
                "`{shown}` is a kind of operator: declare one in moonswarm.toml, and name it here\n{lines}"
            ),
            (None, Some(likely)) => format!("did you mean `{likely}`?"),
            (None, None) => format!("there are: {}", names.join(", ")),
        };
        let finding = self.at_value(at, code::UNKNOWN_OPERATOR, message).hint(hint);
        self.findings.push(finding);
    }

    fn operator(&mut self, table: &Table<'_>, agent: &Agent) {
        let at = table.pointer("operator");
        let what = table.what().to_owned();
        let operators = self.operators;
        let Some(kind) = operators.kind(&agent.operator) else {
            // That of the blueprint is reported there, once.
            if table.get("operator").is_some() {
                self.unknown_operator(&at, &agent.operator, &what);
            }
            return;
        };
        if operators.requires_worker_binding(&agent.operator) && table.get("worker").is_none() {
            let message =
                format!("{what} has no `worker`, which the operator `{}` needs", agent.operator);
            let finding = self
                .at_value(&at, code::WORKER_NEEDED, message)
                .hint("add `worker = { subagent_type = \"…\", tools = { … } }`");
            self.findings.push(finding);
        }
        let kinds = operators.kinds(&agent.operator);
        if kinds.contains(&"process") && table.get("command").is_none_or(is_empty) {
            let finding = self
                .at_value(
                    &at,
                    code::COMMAND_NEEDED,
                    format!("{what} is a process without `command`"),
                )
                .hint("add `command = { \"program\", \"argument\" }`");
            self.findings.push(finding);
        }
        if kinds.contains(&"lua") && !agent.has_fn {
            let finding = self
                .at_value(&at, code::FN_NEEDED, format!("{what} is a lua agent without `fn`"))
                .hint("add `fn = function(input) return … end`");
            self.findings.push(finding);
        }
        if operators.requires_tool(&agent.operator) && agent.tool.is_none() {
            let message = format!("{what} names no `tool`, and neither does `{}`", agent.operator);
            let finding = self
                .at_value(&at, code::TOOL_NEEDED, message)
                .hint("add `tool = \"…\"`; `moonswarm doctor` lists a server's tools");
            self.findings.push(finding);
        }
        if agent.lease.is_some() && !operators.is_leased(&agent.operator) {
            let message = format!(
                "`lease` in {what} means nothing: `{}` works in the host, or asks people",
                agent.operator
            );
            let finding = self
                .at_key(&table.pointer("lease"), code::KEY_DOES_NOT_FIT, message)
                .hint("remove it; `timeout` bounds an attempt of any operator");
            self.findings.push(finding);
        }
        self.compared(table, agent);
        for &(key, of) in KEYS_OF_KINDS {
            // A model that is a script may be one that the agent itself writes.
            let answers = key == "fn" && kinds.contains(&"llm");
            if !kinds.contains(&of) && !answers && table.get(key).is_some() {
                let message = format!(
                    "`{key}` in {what} is only for {of} operators, and `{}` is of kind {kind}",
                    agent.operator
                );
                let finding = self
                    .at_key(&table.pointer(key), code::KEY_DOES_NOT_FIT, message)
                    .hint(format!("remove it, or use an operator of kind {of}"));
                self.findings.push(finding);
            }
        }
    }

    /// The command of a process: a list, which no shell reads.
    fn command(&mut self, table: &Table<'_>) -> Vec<String> {
        let command = self.texts(table, "command");
        if let (Some(Value::String(line)), Some(finding)) =
            (table.get("command"), self.findings.last_mut())
        {
            let line: String = line.chars().take(80).collect();
            finding.hint = Some(format!(
                "write the program and its arguments, {{ \"ls\", \"-l\" }}, or ask a shell: {{ \"sh\", \"-c\", {line:?} }}"
            ));
        }
        command.unwrap_or_default()
    }

    fn budget(&mut self, table: &Table<'_>) -> Budget {
        let what = format!("`budget` of {}", table.what());
        let Some(budget) = self.table(table, "budget", &what) else { return Budget::default() };
        self.known_keys(&budget, &library::keys("Budget"), &[]);
        self.amounts(&budget)
    }

    /// Reports a compared path that the results of the agent cannot have.
    fn compared(&mut self, table: &Table<'_>, agent: &Agent) {
        let Some(output) = agent.output.as_ref().map(Json::to_value) else { return };
        for path in self.operators.compared(&agent.operator) {
            let mut schema = &output;
            for name in path.segments() {
                let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
                    break;
                };
                let Some(inner) = properties.get(name) else {
                    let message = format!(
                        "the operator `{}` compares {path}, and `output` of {} has no `{name}`",
                        agent.operator,
                        table.what()
                    );
                    let finding = self
                        .at_value(&table.pointer("output"), code::NOTHING_TO_COMPARE, message)
                        .hint(format!(
                            "add `{name}` to the schema, or change the operator's `path`"
                        ));
                    self.findings.push(finding);
                    break;
                };
                schema = inner;
            }
        }
    }

    fn worker(&mut self, table: &Table<'_>) -> Option<WorkerBinding> {
        let what = format!("`worker` of {}", table.what());
        let worker = self.table(table, "worker", &what)?;
        self.known_keys(&worker, &library::keys("WorkerBinding"), &[]);
        Some(WorkerBinding {
            subagent_type: self.required_text(&worker, "subagent_type").unwrap_or_default(),
            tools: self.texts(&worker, "tools").unwrap_or_default(),
        })
    }

    /// The directory of a process: relative, and not above the run's.
    fn cwd(&mut self, table: &Table<'_>) -> Option<String> {
        let cwd = self.text(table, "cwd")?;
        if cwd.starts_with('/') || cwd.split('/').any(|part| part == "..") || cwd.contains('\0') {
            let message = format!("`cwd` in {} leads out of the run's directory", table.what());
            let finding = self
                .at_value(&table.pointer("cwd"), code::OUT_OF_RANGE, message)
                .hint("a path relative to the run's working directory, without `..`");
            self.findings.push(finding);
        }
        Some(cwd)
    }

    fn env(&mut self, table: &Table<'_>) -> std::collections::BTreeMap<String, String> {
        let what = format!("`env` of {}", table.what());
        let Some(env) = self.table(table, "env", &what) else {
            return Default::default();
        };
        let mut out = std::collections::BTreeMap::new();
        for (name, _) in env.entries() {
            if name.is_empty() || name.contains(['=', '\0']) {
                let message = format!("{name:?} in {what} is not a variable's name");
                let finding = self.at_key(&env.pointer(name), code::BAD_NAME, message);
                self.findings.push(finding);
            }
            if let Some(value) = self.text(&env, name) {
                out.insert(name.clone(), value);
            }
        }
        out
    }

    /// Reads the place where a process runs; a part that this host cannot give is an error.
    fn environment(&mut self, table: &Table<'_>) -> Option<crate::protocol::Json> {
        let declared = table.get("environment")?;
        if !matches!(declared, Value::String(_) | Value::Object(_)) {
            self.wrong_type(table, "environment", "a table or a name", declared);
            return None;
        }
        let what = table.what().to_owned();
        for (reason, helps) in self.operators.refuses_environment(declared) {
            let message = format!("the environment of {what}: {reason}");
            let finding = self
                .at_value(&table.pointer("environment"), code::ENVIRONMENT, message)
                .hint(helps);
            self.findings.push(finding);
        }
        Some(declared.into())
    }

    /// The earlier steps and files that a worker may open.
    fn context(&mut self, table: &Table<'_>) -> ContextNames {
        let what = format!("`context` of {}", table.what());
        let Some(context) = self.table(table, "context", &what) else {
            return ContextNames::default();
        };
        self.known_keys(&context, &library::keys("Context"), &[]);
        let names = ContextNames {
            steps: self.texts(&context, "steps").unwrap_or_default(),
            artifacts: self.texts(&context, "artifacts").unwrap_or_default(),
        };
        for (key, listed) in [("steps", &names.steps), ("artifacts", &names.artifacts)] {
            let wrong = |name: &&String| name.is_empty() || name.matches('*').count() > 1;
            let wrong = listed.iter().find(wrong).map(|name| {
                format!("{name:?} in {what}: a name is not empty, and has at most one `*`")
            });
            let many = (listed.len() > NAMES)
                .then(|| format!("`{key}` in {what} has more than {NAMES} names"));
            if let Some(message) = wrong.or(many) {
                let at = context.pointer(key);
                self.findings.push(self.at_value(&at, code::OUT_OF_RANGE, message));
            }
        }
        names
    }

    fn labels(&mut self, table: &Table<'_>) -> Labels {
        let what = format!("`labels` of {}", table.what());
        let Some(labels) = self.table(table, "labels", &what) else {
            return Labels::default();
        };
        let names: Vec<String> = labels.entries().map(|(name, _)| name.clone()).collect();
        let pairs = names.into_iter().filter_map(|name| {
            let value = self.text(&labels, &name)?;
            Some((name, value))
        });
        Labels::new(pairs.collect()).unwrap_or_else(|error| {
            let message = format!("failed to {error} ({what})");
            let at = table.pointer("labels");
            self.findings.push(self.at_value(&at, code::BAD_NAME, message));
            Labels::default()
        })
    }

    /// Whom a task for people asks.
    fn asking(&mut self, table: &Table<'_>) -> Asking {
        let asking = Asking {
            by: self.one_or_more(table, "by"),
            required: self.integer(table, "required", 1..=asking::MOST_ANSWERERS),
            remind_ms: self.positive_duration(table, "remind"),
        };
        if let Some((key, what)) = asking::complaint(&asking) {
            let finding = self
                .at_value(
                    &table.pointer(key),
                    code::OUT_OF_RANGE,
                    format!("`{key}` in {}: {what}", table.what()),
                )
                .hint("a role lets any number of people answer");
            self.findings.push(finding);
        }
        asking
    }

    /// One text, or a list of them.
    pub(super) fn one_or_more(&mut self, table: &Table<'_>, key: &str) -> Vec<String> {
        match table.get(key) {
            Some(Value::String(one)) => vec![one.clone()],
            Some(_) => self.texts(table, key).unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// Reports auditors that are not declared, and agents that have too many.
    pub(super) fn auditors(&mut self, agents: &BTreeMap<String, Agent>) {
        let declared: Vec<&str> = agents.keys().map(String::as_str).collect();
        for (name, agent) in agents {
            let at = pointer(&pointer("/agents", name), "audit");
            if agent.audit.len() > AUDITORS {
                let message = format!("agent `{name}` has more than {AUDITORS} auditors");
                let finding = self.at_value(&at, code::OUT_OF_RANGE, message);
                self.findings.push(finding);
            }
            for auditor in agent.audit.iter().filter(|it| !agents.contains_key(*it)) {
                let shown: String = auditor.chars().take(80).collect();
                let message =
                    format!("the auditor `{shown}` of agent `{name}` is not declared as an agent");
                let mut finding = self.at_value(&at, code::UNKNOWN_AGENT, message);
                if let Some(likely) = did_you_mean(auditor, declared.iter().copied()) {
                    finding = finding.hint(format!("did you mean `{likely}`?"));
                }
                self.findings.push(finding);
            }
        }
    }

    /// The tools that a worker is told of: names; what is no name is a tool of a model's.
    fn names_of_tools(&mut self, table: &Table<'_>) -> Vec<String> {
        match table.get("tools") {
            Some(Value::Array(tools)) if tools.iter().any(Value::is_object) => {
                tools.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            _ => self.texts(table, "tools").unwrap_or_default(),
        }
    }

    pub(super) fn positive_duration(&mut self, table: &Table<'_>, key: &str) -> Option<u64> {
        let duration = self.duration(table, key)?;
        if duration == 0 {
            let message = format!("`{key}` in {} leaves no time at all", table.what());
            let finding = self
                .at_value(&table.pointer(key), code::BAD_DURATION, message)
                .hint("leave it out for the default");
            self.findings.push(finding);
        }
        Some(duration)
    }

    /// The lease: without a policy of its own, an agent gives a task to so many silent workers.
    fn lease(&mut self, table: &Table<'_>, retry: &Retry) -> Option<Lease> {
        let ms = self.positive_duration(table, "lease")?;
        let has_policy = table.get("retry").is_some();
        Some(Lease { ms, attempts: if has_policy { retry.max_attempts } else { SILENT } })
    }

    fn retry(&mut self, table: &Table<'_>) -> Retry {
        let mut retry = Retry::default();
        let what = format!("`retry` of {}", table.what());
        let Some(table) = self.table(table, "retry", &what) else {
            return retry;
        };
        self.known_keys(&table, &library::keys("Retry"), &[]);
        if let Some(attempts) = self.integer(&table, "max_attempts", 1..=1_000) {
            retry.max_attempts = attempts;
        }
        if let Some(backoff) = self.duration(&table, "backoff") {
            retry.backoff_ms = backoff;
        }
        if let Some(max) = self.duration(&table, "max") {
            retry.max_ms = max;
        }
        if let Some(factor) = self.number(&table, "factor") {
            if (1.0..=100.0).contains(&factor) {
                retry.factor = factor;
            } else {
                let message = format!("`factor` in {what} must be from 1 to 100, and is {factor}");
                self.bad_retry(&table, "factor", message);
            }
        }
        retry.jitter = self.boolean(&table, "jitter").unwrap_or(retry.jitter);
        match self.text(&table, "on_interrupt").as_deref() {
            None | Some("retry") => {}
            Some("fail") => retry.fail_on_interrupt = true,
            Some(_) => {
                let message = format!("`on_interrupt` in {what} must be \"retry\" or \"fail\"");
                self.bad_retry(&table, "on_interrupt", message);
            }
        }
        if retry.max_ms < retry.backoff_ms {
            if table.get("max").is_some() {
                let message = format!("`max` in {what} is shorter than the first pause");
                self.bad_retry(&table, "max", message);
            } else {
                retry.max_ms = retry.backoff_ms;
            }
        }
        retry
    }

    fn bad_retry(&mut self, table: &Table<'_>, key: &str, message: String) {
        let finding = self.at_value(&table.pointer(key), code::BAD_RETRY, message);
        self.findings.push(finding);
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
