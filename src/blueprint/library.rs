//! The author's library as a table: what editors are told of it, and what `check` knows of it.
//!
//! One row a function. A test compares it with what the sandbox really offers.

/// A function of the library.
#[derive(Debug, Clone, Copy)]
pub struct Function {
    /// The owner: `ctx`, `ctx.state`, `swarm`, `swarm.schema`, …
    pub of: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its arguments: name, type in Luau; a `?` at the end of the type for one that may be left out.
    pub takes: &'static [(&'static str, &'static str)],
    /// The return type, in Luau; empty for none.
    pub gives: &'static str,
    /// One line about it.
    pub about: &'static str,
}

/// A value of the library that is no function.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// The owner.
    pub of: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its type, in Luau.
    pub is: &'static str,
    /// One line about it.
    pub about: &'static str,
}

const fn f(
    of: &'static str,
    name: &'static str,
    takes: &'static [(&'static str, &'static str)],
    gives: &'static str,
    about: &'static str,
) -> Function {
    Function { of, name, takes, gives, about }
}

/// Returns true if functions of an owner are called with a colon.
pub fn is_method(of: &str) -> bool {
    matches!(of, "ctx" | "ctx.state" | "f" | "run")
}

/// The names that an owner has.
pub fn names(of: &str) -> Vec<&'static str> {
    let functions = FUNCTIONS.iter().filter(|it| it.of == of).map(|it| it.name);
    functions.chain(FIELDS.iter().filter(|it| it.of == of).map(|it| it.name)).collect()
}

/// Tables that functions take or give and that blueprints are made of, as Luau writes them. `check`
/// knows the same keys.
pub const TYPES: &[(&str, &str)] = &[
    ("Duration", "string | number"),
    ("Time", "string | number"),
    (
        "Failure",
        "{ kind: string, message: string, step: number?, agent: string?, attempt: number?, retryable: boolean?, data: any? }",
    ),
    (
        "Retry",
        "{ max_attempts: number?, backoff: Duration?, factor: number?, max: Duration?, jitter: boolean?, on_interrupt: string? }",
    ),
    (
        "Ask",
        "{ items: {any}?, instructions: string?, tools: {any}?, tool_choice: any?, parallel_tool_calls: boolean?, max_tool_calls: number?, options: any? }",
    ),
    (
        "Piece",
        "{ type: string, item: number, part: number?, delta: string?, begins: any?, whole: any?, step: number, attempt: number, agent: string }",
    ),
    (
        "RunOptions",
        "{ timeout: Duration?, retry: Retry?, operator: string?, idempotency_key: string?, summary: string?, session: string?, ask: Ask?, on_delta: ((Piece) -> ())? }",
    ),
    ("MapOptions", "{ concurrency: number?, on_error: string? }"),
    ("WaitOptions", "{ timeout: Duration? }"),
    ("CallOptions", "{ version: string?, tags: { [string]: string }? }"),
    (
        "DispatchOptions",
        "{ timeout: Duration?, retry: Retry?, idempotency_key: string?, summary: string?, session: string? }",
    ),
    ("DispatchManyOptions", "{ concurrency: number? }"),
    ("StatusOptions", "{ progress: number? }"),
    (
        "ApproveOptions",
        "{ title: string, body: string?, form: any?, timeout: Duration?, by: any?, required: number?, remind: Duration? }",
    ),
    (
        "SetOptions",
        "{ ttl: Duration?, if_revision: number?, lifetime: string?, tier: string?, content_kind: string?, salience: number? }",
    ),
    ("SearchOptions", "{ limit: number? }"),
    ("TraverseOptions", "{ relation: string?, depth: number? }"),
    ("Artifact", "{ id: string, hash: string, size: number }"),
    ("Schema", "any"),
    ("Node", "{ [any]: any }"),
    ("Money", "string | number"),
    ("Budget", "{ tokens: number?, usd: Money? }"),
    ("WorkerBinding", "{ subagent_type: string, tools: {string}? }"),
    ("Context", "{ steps: {string}?, artifacts: {string}? }"),
    ("Flush", "{ prefix: string?, required: boolean?, scope: any? }"),
    ("Compaction", "{ at: number, keep: number?, strategy: string?, flush: Flush? }"),
    ("Exceeded", "{ downgrade: string }"),
    (
        "Rule",
        "{ before: any?, after: any?, when: string?, deny: any?, ask: any?, halt: any?, say: any?, set: any? }",
    ),
    (
        "Tool",
        "{ name: string?, description: string?, input: Schema?, fn: ((any) -> any)?, agent: string?, operator: string?, state: any?, mcp: string?, http: any?, allow: {string}?, approve: any?, parallel_safe: boolean?, compaction: string?, prefix: string?, scope: any?, timeout: Duration? }",
    ),
    (
        "Agent",
        "{ operator: string?, name: string?, description: string?, system: string?, template: boolean?, prompt: string?, input: Schema?, output: Schema?, worker: WorkerBinding?, context: Context?, audit: (string | {string})?, command: {string}?, check: boolean?, cwd: string?, env: { [string]: string }?, environment: any?, queue: string?, labels: { [string]: string }?, tool: string?, fn: ((any) -> any)?, by: (string | {string})?, required: number?, remind: Duration?, retry: Retry?, timeout: Duration?, park: Duration?, lease: Duration?, max_concurrency: number?, budget: Budget?, tools: {any}?, model: string?, effort: string?, maxTurns: number?, max_turns: number?, max_cost: Money?, max_duration: Duration?, max_tool_calls: number?, max_repeats: number?, max_failures: number?, rules: {Rule}?, warn_at: number?, on_exceeded: (string | Exceeded)?, compaction: Compaction? }",
    ),
    ("Task", "{ agent: string, input: any, opts: { [string]: any } }"),
    (
        "Trigger",
        "{ schedule: string?, zone: string?, missed: string?, signal: string?, watch: (string | {string})?, root: string?, settle: Duration?, max_open: number?, input: any?, tags: { [string]: string }? }",
    ),
    (
        "Limits",
        "{ steps: number?, depth: number?, wall: Duration?, width: number?, open_tasks: number?, tokens: number?, usd: Money? }",
    ),
    (
        "McpTool",
        "{ name: string?, description: string?, read_only: boolean?, destructive: boolean?, idempotent: boolean?, prompt: boolean?, uri: string?, mime_type: string?, needs: (string | {string})? }",
    ),
    (
        "Blueprint",
        "{ name: string, edition: number?, description: string?, mcp: (boolean | McpTool)?, operator: string?, input: Schema?, output: Schema?, agents: { [string]: Agent }?, flow: any, middleware: { any }?, limits: Limits?, on: { Trigger }? }",
    ),
];

/// The fields of a table type: name and type, the type with its `?`.
pub(super) fn fields_of(is: &str) -> Option<Vec<(&str, &str)>> {
    let inside = is.strip_prefix("{ ")?.strip_suffix(" }")?;
    if inside.starts_with('[') {
        return None;
    }
    let (mut depth, mut from, mut fields) = (0_u32, 0, Vec::new());
    for (at, c) in inside.char_indices().chain([(inside.len(), ',')]) {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                let (name, is) = inside[from..at].trim().split_once(':')?;
                fields.push((name.trim(), is.trim()));
                from = at + 1;
            }
            _ => {}
        }
    }
    Some(fields)
}

/// The keys of a table type, sorted.
pub(super) fn keys(of: &str) -> Vec<&'static str> {
    let fields = TYPES.iter().find(|(name, _)| *name == of).and_then(|(_, is)| fields_of(is));
    let mut keys: Vec<_> = fields.unwrap_or_default().into_iter().map(|(key, _)| key).collect();
    keys.sort_unstable();
    keys
}

/// The globals of the sandbox.
#[rustfmt::skip]
pub const GLOBALS: &[&str] = &[
    "assert", "bit32", "coroutine", "error", "getmetatable", "ipairs", "math", "next", "pairs", "pcall", "print",
    "rawequal", "rawget", "rawlen", "rawset", "require", "select", "setmetatable", "string", "table", "tonumber",
    "tostring", "type", "typeof", "unpack", "utf8", "xpcall",
];

/// The values that are no functions.
#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    Field { of: "ctx", name: "run_id", is: "string", about: "The run's id." },
    Field { of: "ctx", name: "blueprint", is: "string", about: "The blueprint: name@hash." },
    Field { of: "ctx", name: "input", is: "any", about: "The run's input." },
    Field { of: "ctx", name: "trigger", is: "any", about: "What started the run." },
    Field { of: "ctx", name: "state", is: "State", about: "The run's state." },
    Field { of: "swarm", name: "null", is: "any", about: "An explicit null." },
    Field { of: "swarm", name: "schema", is: "SchemaLibrary", about: "Schemas in short." },
    Field { of: "swarm", name: "nodes", is: "Nodes", about: "Flows that are tables." },
    Field { of: "swarm", name: "middleware", is: "{[string]: (any) -> any}", about: "Layers around tasks that are data." },
    Field { of: "swarm", name: "json", is: "JsonLibrary", about: "JSON text." },
    Field { of: "swarm", name: "time", is: "TimeLibrary", about: "Times as text." },
    Field { of: "swarm.schema", name: "string", is: "Schema", about: "A text." },
    Field { of: "swarm.schema", name: "integer", is: "Schema", about: "A whole number." },
    Field { of: "swarm.schema", name: "number", is: "Schema", about: "A number." },
    Field { of: "swarm.schema", name: "boolean", is: "Schema", about: "True or false." },
    Field { of: "swarm.schema", name: "null", is: "Schema", about: "Nothing." },
    Field { of: "swarm.schema", name: "any", is: "Schema", about: "Anything." },
];

/// The functions.
#[rustfmt::skip]
pub const FUNCTIONS: &[Function] = &[
    f("ctx", "run", &[("agent", "string"), ("input", "any?"), ("opts", "RunOptions?")], "any", "One task: its result, or its error raised."),
    f("ctx", "try", &[("agent", "string"), ("input", "any?"), ("opts", "RunOptions?")], "(any, Failure?)", "One task: its result, or nil and the error."),
    f("ctx", "map", &[("list", "{any}"), ("fn", "(any, number) -> any"), ("opts", "MapOptions?")], "{any}", "A branch for each item; results in the order of the list."),
    f("ctx", "all", &[("functions", "{[any]: () -> any}")], "{[any]: any}", "Functions side by side; the first error cancels the rest."),
    f("ctx", "race", &[("functions", "{[any]: () -> any}")], "(any, any)", "The key and the result of the first that succeeds; the others are canceled."),
    f("ctx", "spawn", &[("fn", "() -> any")], "Branch", "A branch beside the flow."),
    f("ctx", "sleep", &[("duration", "Duration")], "", "Waits."),
    f("ctx", "sleep_until", &[("time", "Time")], "", "Waits until a time."),
    f("ctx", "timeout", &[("duration", "Duration"), ("fn", "() -> ...any")], "...any", "What the function returns, or an error of the kind timeout."),
    f("ctx", "now", &[], "number", "Seconds since 1970; the same again in a replay."),
    f("ctx", "uuid", &[], "string", "A new id; the same again in a replay."),
    f("ctx", "random", &[("low", "number?"), ("high", "number?")], "number", "A random number; the same again in a replay."),
    f("ctx", "wait", &[("signal", "string"), ("opts", "WaitOptions?")], "(any, string?)", "The payload of a signal, or nil and \"timeout\"."),
    f("ctx", "signal", &[("run_id", "string"), ("name", "string"), ("payload", "any?")], "", "Sends another run a signal."),
    f("ctx", "approve", &[("opts", "ApproveOptions")], "any", "A person's answer; a no raises human_rejected."),
    f("ctx", "call", &[("blueprint", "string"), ("input", "any?"), ("opts", "CallOptions?")], "any", "A child run: its output."),
    f("ctx", "dispatch", &[("operator", "string"), ("input", "any?"), ("opts", "DispatchOptions?")], "any", "One task of an operator, without an agent: its result."),
    f("ctx", "dispatch_many", &[("list", "{any}"), ("opts", "DispatchManyOptions?")], "{any}", "Several of those side by side; each failure stays in its own place."),
    f("ctx", "continue_as", &[("input", "any?")], "", "Starts a fresh history under the same run."),
    f("ctx", "artifact", &[("name", "string"), ("data", "string")], "Artifact", "Keeps a file of the run."),
    f("ctx", "read_artifact", &[("id", "any")], "string", "The text of a file."),
    f("ctx", "publish", &[("topic", "string"), ("data", "any?")], "", "An event for watchers."),
    f("ctx", "status", &[("text", "string"), ("opts", "StatusOptions?")], "", "What lists show of the run."),
    f("ctx", "log", &[("level", "string"), ("message", "any"), ("data", "any?")], "", "A line in the run's log."),
    f("ctx", "on_query", &[("name", "string"), ("fn", "(any) -> any")], "", "A read-only answer for others."),
    f("ctx", "scope", &[("which", "any")], "State", "State outside of the run: \"global\", \"session\", { custom = … }."),
    f("ctx", "defer", &[("fn", "() -> ()")], "", "Compensation, when the flow fails or is canceled."),
    f("ctx.state", "get", &[("key", "string")], "any", "A value, or nil."),
    f("ctx.state", "set", &[("key", "string"), ("value", "any"), ("opts", "SetOptions?")], "", "Writes a value."),
    f("ctx.state", "delete", &[("key", "string")], "", "Removes a value."),
    f("ctx.state", "list", &[("prefix", "string?")], "{string}", "The sorted keys."),
    f("ctx.state", "add", &[("key", "string"), ("by", "number?")], "number", "Adds to a number; gives the sum."),
    f("ctx.state", "append", &[("key", "string"), ("value", "any")], "{any}", "Adds to a list; gives the list."),
    f("ctx.state", "merge", &[("key", "string"), ("value", "{[string]: any}")], "{[string]: any}", "Lays a table over one; gives the table."),
    f("ctx.state", "search", &[("query", "string"), ("opts", "SearchOptions?")], "{any}", "The values that fit words best."),
    f("ctx.state", "link", &[("from", "string"), ("to", "string"), ("relation", "string"), ("metadata", "any?")], "", "Links two keys."),
    f("ctx.state", "unlink", &[("from", "string"), ("to", "string"), ("relation", "string")], "", "Removes a link."),
    f("ctx.state", "traverse", &[("from", "string"), ("opts", "TraverseOptions?")], "{any}", "The keys that links lead to."),
    f("f", "await", &[], "any", "What the branch returned, or its error raised."),
    f("f", "cancel", &[], "", "Gives the branch up."),
    f("swarm", "blueprint", &[("definition", "Blueprint")], "any", "Declares a blueprint."),
    f("swarm", "agent_md", &[("path", "string"), ("overrides", "{[string]: any}?")], "{[string]: any}", "An agent from a Markdown file."),
    f("swarm", "fail", &[("kind", "string"), ("message", "any?"), ("data", "any?")], "never", "Ends the run failed, with a typed reason."),
    f("swarm", "array", &[("list", "{any}?")], "{any}", "A list, also when it is empty."),
    f("swarm.json", "encode", &[("value", "any")], "string", "A value as JSON."),
    f("swarm.json", "decode", &[("text", "string")], "any", "The value that JSON says."),
    f("swarm.time", "format", &[("seconds", "number")], "string", "A time as RFC 3339."),
    f("swarm.time", "parse", &[("text", "string")], "number", "The seconds of a time in RFC 3339."),
    f("swarm.schema", "object", &[("properties", "{[string]: Schema}")], "Schema", "A table with these keys."),
    f("swarm.schema", "array", &[("items", "Schema")], "Schema", "A list."),
    f("swarm.schema", "map", &[("values", "Schema")], "Schema", "A table with any keys."),
    f("swarm.schema", "enum", &[("values", "{any}")], "Schema", "One of these values."),
    f("swarm.schema", "literal", &[("value", "any")], "Schema", "This value."),
    f("swarm.schema", "const", &[("value", "any")], "Schema", "This value."),
    f("swarm.schema", "union", &[("choices", "{Schema}")], "Schema", "Any of these."),
    f("swarm.schema", "one_of", &[("choices", "{Schema}")], "Schema", "Exactly one of these."),
    f("swarm.nodes", "seq", &[("node", "Node")], "Node", "One after the other."),
    f("swarm.nodes", "step", &[("node", "Node")], "Node", "One task."),
    f("swarm.nodes", "parallel", &[("node", "Node")], "Node", "Side by side."),
    f("swarm.nodes", "map", &[("node", "Node")], "Node", "For each item of a list."),
    f("swarm.nodes", "race", &[("node", "Node")], "Node", "The first that succeeds."),
    f("swarm.nodes", "branch", &[("node", "Node")], "Node", "if_, then_, else_."),
    f("swarm.nodes", "switch", &[("node", "Node")], "Node", "One of several cases."),
    f("swarm.nodes", "loop", &[("node", "Node")], "Node", "Again, up to max times."),
    f("swarm.nodes", "try", &[("node", "Node")], "Node", "With a node for a failure."),
    f("swarm.nodes", "assign", &[("node", "Node")], "Node", "Sets names."),
    f("swarm.nodes", "wait", &[("node", "Node")], "Node", "For a signal."),
    f("swarm.nodes", "sleep", &[("node", "Node")], "Node", "For a time."),
    f("swarm.nodes", "approve", &[("node", "Node")], "Node", "For a person."),
    f("swarm.nodes", "call", &[("node", "Node")], "Node", "A child run."),
    f("swarm.nodes", "fail", &[("node", "Node")], "Node", "Ends the flow failed."),
    f("swarm.test", "test", &[("name", "string"), ("fn", "() -> ()")], "", "Declares a test."),
    f("swarm.test", "start", &[("path", "string"), ("input", "any?")], "TestRun", "Makes a run ready."),
    f("swarm.test", "blueprint", &[("path", "string")], "", "Stores a blueprint that the run calls."),
    f("swarm.test", "failure", &[("fields", "{kind: string?, message: string?, retryable: boolean?, data: any?}")], "any", "An answer that is a failure."),
    f("swarm.test", "equal", &[("got", "any"), ("expected", "any"), ("message", "string?")], "", "Both are the same."),
    f("swarm.test", "match", &[("got", "any"), ("part", "any"), ("message", "string?")], "", "What is expected is a part of what was got."),
    f("swarm.test", "ok", &[("value", "any"), ("message", "string?")], "", "It is true."),
    f("swarm.test", "raises", &[("fn", "() -> ...any"), ("kind", "string?")], "Failure", "The function raises an error of this kind."),
    f("swarm.test", "snapshot", &[("value", "any"), ("name", "string")], "", "The value is as it was."),
    f("run", "mock", &[("agent", "string"), ("answer", "any")], "", "What the agent answers, each time."),
    f("run", "mock_sequence", &[("agent", "string"), ("answers", "{any}")], "", "What the agent answers, one after the other."),
    f("run", "model", &[("agent", "string"), ("turns", "{any} | (any) -> any")], "", "What the agent's model says, turn by turn."),
    f("run", "mock_recorded", &[("path", "string")], "", "What agents answered in an exported run."),
    f("run", "answer", &[("agent", "string"), ("value", "any")], "", "What a person says to the next task."),
    f("run", "reject", &[("agent", "string"), ("reason", "string?")], "", "A person's no to the next task."),
    f("run", "signal", &[("name", "string"), ("payload", "any?")], "", "Sends a signal."),
    f("run", "advance", &[("duration", "Duration")], "", "Lets time pass."),
    f("run", "cancel", &[("reason", "string?")], "", "Cancels the run."),
    f("run", "query", &[("name", "string"), ("argument", "any?")], "any", "Asks the run."),
    f("run", "finish", &[], "any", "Lets it go on to its end; its output."),
    f("run", "fails", &[("kind", "string?")], "Failure", "Lets it go on to its failure."),
    f("run", "status", &[], "string", "Where it stands."),
    f("run", "waiting", &[], "{any}", "What it waits for."),
    f("run", "steps", &[], "{any}", "Its chain."),
    f("run", "count", &[("agent", "string")], "number", "How many tasks the agent had."),
    f("run", "inputs", &[("agent", "string")], "{any}", "The inputs of the agent's tasks."),
    f("run", "snapshot", &[("name", "string")], "", "The chain is as it was."),
];
