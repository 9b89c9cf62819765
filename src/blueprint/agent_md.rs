//! Agent files: Markdown with a frontmatter, whose body is the system prompt.
//!
//! Owns which keys a frontmatter may have and what becomes of each. Refuses keys that would run
//! things on the reader's machine. `lua/` turns the fields into an agent's table.

use serde::Serialize;
use serde_json::{Map, Value};
use serde_saphyr::{Budget, Options};

use super::diagnostics::{Finding, Position, code, hint_for};

const MAX_FRONTMATTER_BYTES: usize = 64 << 10;
/// The keys that an agent has.
const FIELDS: [&str; 10] = [
    "description",
    "effort",
    "labels",
    "maxTurns",
    "model",
    "name",
    "template",
    "tool",
    "tools",
    "worker_binding",
];
/// Other names of keys that an agent has.
const ALIASES: [(&str, &str); 2] = [("max_turns", "maxTurns"), ("steps", "maxTurns")];
/// The most turns that an agent may have.
const MAX_TURNS: u64 = 10_000;
/// Further keys that such files have elsewhere, and what becomes of each: nothing here goes by them.
const ELSEWHERE: [(&str, &str); 38] = [
    ("allowed-tools", "left out; list what it may use in `tools`"),
    ("alwaysApply", EDITOR),
    ("argument-hint", "left out; a task has an input, with a schema if you give one"),
    ("author", ABOUT),
    ("background", "left out; the flow says what runs side by side: `ctx:spawn`, `ctx:all`"),
    ("capabilities", ABOUT),
    ("category", ABOUT),
    ("color", EDITOR),
    ("disable", "left out; an agent that nothing runs does nothing"),
    ("disable-model-invocation", "left out; only a flow runs agents"),
    (
        "disallowedTools",
        "left out, and so it may use more than there: list what it may use in `tools`",
    ),
    ("globs", EDITOR),
    ("handoffs", "left out; the flow says who is next"),
    ("hidden", EDITOR),
    ("infer", "left out; only a flow runs agents"),
    ("initialPrompt", "left out; `prompt` in the blueprint is the first message"),
    ("is_background", "left out; the flow says what runs side by side: `ctx:spawn`, `ctx:all`"),
    ("isolation", "left out; `environment` in the blueprint says where a process works"),
    ("kind", ABOUT),
    ("license", ABOUT),
    ("lints", "left out; `check` has other findings"),
    ("memory", "left out; `ctx.state` keeps what a run must remember"),
    ("metadata", ABOUT),
    ("mode", SESSION),
    ("permission", PERMISSION),
    ("permissionMode", PERMISSION),
    ("priority", ABOUT),
    ("readonly", "left out; `environment` in the blueprint says what a process may write"),
    ("skills", SESSION),
    ("tags", ABOUT),
    ("target", EDITOR),
    ("temperature", SESSION),
    ("timeout_mins", "left out; `timeout` in the blueprint bounds an attempt"),
    ("top_p", SESSION),
    ("triggers", "left out; `on` of a blueprint says what starts a run"),
    ("user-invocable", "left out; only a flow runs agents"),
    ("version", ABOUT),
    ("when_to_use", ABOUT),
];
const ABOUT: &str = "left out; it says something about the file";
const EDITOR: &str = "left out; it is for the program that the file was written for";
const SESSION: &str = "left out; it is for the session or the model that does the work to decide";
const PERMISSION: &str =
    "left out; what it may do is for the session that does the work, and for `environment`";
/// Keys that would run programs, and why that is no file's to say.
const REFUSED: [(&str, &str); 3] = [
    ("hooks", "its commands would run on this host at times of the file's choosing"),
    ("mcp-servers", "it would start programs on this host; declare servers in moonswarm.toml"),
    ("mcpServers", "it would start programs on this host; declare servers in moonswarm.toml"),
];

/// The handling of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The host holds it.
    Enforced,
    /// The operator is told, and may not be able to hold it.
    Advisory,
    /// The file is refused because of it.
    Refused,
}

/// One key of a frontmatter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyReport {
    /// The key.
    pub key: String,
    /// The handling.
    pub standing: Standing,
    /// The reason, and the alternative.
    pub reason: &'static str,
}

/// An agent file, read.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentFile {
    /// The agent's keys as far as the file gives them: `name`, `description`, `tools` (an array),
    /// `model`, `effort`, `labels` (an object of texts), `tool`, `maxTurns` (a number), `template` (a
    /// boolean), `worker` (an object of `subagent_type` and `tools`, from `worker_binding`) and
    /// `system`.
    pub fields: Map<String, Value>,
    /// The handling of each key, in the order of the file.
    pub report: Vec<KeyReport>,
    /// The place at which the body begins, without the blanks before it.
    pub body_at: Position,
}

/// Reads an agent file.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn parse(path: &str, text: &str) -> Result<AgentFile, Finding> {
    let (file, findings) = read(path, text);
    match findings.into_iter().next() {
        None => Ok(file),
        Some(first) => Err(first),
    }
}

/// Reads what can be read of an agent file, with everything that is wrong with it.
pub fn read(path: &str, text: &str) -> (AgentFile, Vec<Finding>) {
    let mut reader = HeadReader { path, text, findings: Vec::new(), report: Vec::new() };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Some((frontmatter, body)) = split(text) else {
        let finding = reader
            .finding(Position::START, code::BAD_AGENT_FILE, "there is no frontmatter")
            .hint("begin the file with a line `---`, then `name: …` and so on, then another `---`");
        reader.findings.push(finding);
        let file = AgentFile { fields: Map::new(), report: Vec::new(), body_at: Position::START };
        return (file, reader.findings);
    };
    let mut fields = reader.fields(frontmatter);
    let body_offset = text.len() - body.trim_start().len();
    let system = body.trim();
    if !system.is_empty() {
        fields.insert("system".to_owned(), system.into());
    }
    let body_at = Position::of_offset(text, body_offset);
    (AgentFile { fields, report: reader.report, body_at }, reader.findings)
}

/// The text between the two `---` lines, and what follows them.
fn split(text: &str) -> Option<(&str, &str)> {
    let (blank, rest) = text.strip_prefix("---")?.split_once('\n')?;
    if !blank.trim().is_empty() {
        return None;
    }
    let mut offset = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Some((&rest[..offset], &rest[offset + line.len()..]));
        }
        offset += line.len();
    }
    None
}

struct HeadReader<'t> {
    path: &'t str,
    text: &'t str,
    findings: Vec<Finding>,
    report: Vec<KeyReport>,
}

impl HeadReader<'_> {
    fn finding(&self, at: Position, code: &'static str, message: impl Into<String>) -> Finding {
        Finding::error(self.path, at, code, message)
    }

    fn fields(&mut self, frontmatter: &str) -> Map<String, Value> {
        let read = match yaml(frontmatter).or_else(|error| by_lines(frontmatter).ok_or(error)) {
            Ok(Value::Object(read)) => read,
            Ok(Value::Null) => Map::new(),
            Ok(_) => {
                let at = Position { line: 2, column: 1 };
                let message = "the frontmatter is not a list of `key: value` lines";
                self.findings.push(self.finding(at, code::BAD_AGENT_FILE, message));
                return Map::new();
            }
            Err(error) => {
                let finding = self.yaml_finding(frontmatter, &error);
                self.findings.push(finding);
                return Map::new();
            }
        };
        let mut fields = Map::new();
        for (key, value) in read {
            let Some(value) = self.field(&key, value) else { continue };
            let name = named(&key).to_owned();
            if fields.contains_key(&name) {
                let message = format!("`{key}` says `{name}` a second time");
                let at = self.key_position(&key);
                self.findings.push(self.finding(at, code::BAD_AGENT_FILE, message));
                continue;
            }
            fields.insert(name, value);
        }
        if let Some(binding) = fields.remove("worker_binding") {
            let mut worker = Map::from_iter([("subagent_type".to_owned(), binding)]);
            worker.extend(fields.get("tools").map(|tools| ("tools".to_owned(), tools.clone())));
            fields.insert("worker".to_owned(), worker.into());
        }
        fields
    }

    fn field(&mut self, key: &str, value: Value) -> Option<Value> {
        let at = self.key_position(key);
        let mut note = |standing, reason| {
            self.report.push(KeyReport { key: key.to_owned(), standing, reason });
        };
        if let Some((_, reason)) = REFUSED.iter().find(|(it, _)| *it == key) {
            note(Standing::Refused, reason);
            let message = format!("the key `{key}` is refused: it would run programs on this host");
            let finding = self
                .finding(at, code::REFUSED_AGENT_FILE_KEY, message)
                .hint("remove it; what an agent may run is declared in the blueprint");
            self.findings.push(finding);
            return None;
        }
        if let Some((_, reason)) = ELSEWHERE.iter().find(|(it, _)| *it == key) {
            note(Standing::Advisory, reason);
            return None;
        }
        if !FIELDS.contains(&named(key)) {
            let message = format!("unknown key `{key}` in the frontmatter");
            let mut finding = self.finding(at, code::UNKNOWN_AGENT_FILE_KEY, message);
            finding.hint = hint_for(key, &FIELDS);
            self.findings.push(finding);
            return None;
        }
        match named(key) {
            "tools" => note(
                Standing::Advisory,
                "told to whoever does the work; what a process may do is for `environment`",
            ),
            "model" | "effort" => note(Standing::Advisory, "told to whoever does the work"),
            "worker_binding" => note(
                Standing::Enforced,
                "the `worker.subagent_type` of the agent, with `tools` as its tools",
            ),
            "name" => note(Standing::Enforced, "the agent's name"),
            "description" => note(Standing::Enforced, "kept with the agent"),
            "template" => note(Standing::Enforced, "whether the text of the file is a template"),
            "labels" => note(Standing::Enforced, "only a worker that has them gets a task"),
            "maxTurns" => note(
                Standing::Enforced,
                "the loop's `max_turns` where the operator is a model; no other one has turns",
            ),
            _ => note(Standing::Enforced, "the tool of a server that its tasks call"),
        }
        let (read, wanted) = match named(key) {
            "tools" => (tools(&value), "a list of names"),
            "labels" => (labels(value), "a list of `name: text` lines"),
            "maxTurns" => (turns(&value), "a whole number from 1 to 10000"),
            "template" => (value.is_boolean().then_some(value), "true or false"),
            _ => (value.is_string().then_some(value), "text"),
        };
        if read.is_none() {
            let message = format!("`{key}` in the frontmatter is not {wanted}");
            self.findings.push(self.finding(at, code::WRONG_TYPE, message));
        }
        read
    }

    fn key_position(&self, key: &str) -> Position {
        let line = self.text.lines().skip(1).position(|line| {
            line.trim_start_matches(['"', '\'']).strip_prefix(key).is_some_and(|rest| {
                rest.trim_start_matches(['"', '\'']).trim_start().starts_with(':')
            })
        });
        let line = line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
        Position { line: line.saturating_add(2), column: 1 }
    }

    fn yaml_finding(&self, frontmatter: &str, error: &serde_saphyr::Error) -> Finding {
        if let Some((index, line)) = unquoted_colon(frontmatter) {
            let (key, value) = line.split_once(": ").unwrap_or((line, ""));
            let column = key.chars().count() + 3;
            let at = Position {
                line: u32::try_from(index).unwrap_or(u32::MAX - 2) + 2,
                column: u32::try_from(column).unwrap_or(u32::MAX),
            };
            let message = format!("the value of `{key}` has a colon in it and no quotes around it");
            let shown: String = value.chars().take(60).collect();
            let more = if shown.len() < value.len() { "…" } else { "" };
            return self.finding(at, code::BAD_AGENT_FILE, message).hint(format!(
                "put it in quotes: `{key}: \"{}{more}\"`",
                shown.trim().replace('\\', "\\\\").replace('"', "\\\"")
            ));
        }
        let at = error.location().map_or(Position { line: 2, column: 1 }, |location| Position {
            line: u32::try_from(location.line()).unwrap_or(u32::MAX - 1).max(1) + 1,
            column: u32::try_from(location.column()).unwrap_or(u32::MAX).max(1),
        });
        let message = error.to_string();
        let first = message.lines().next().unwrap_or("it is not YAML");
        self.finding(at, code::BAD_AGENT_FILE, format!("the frontmatter is not YAML: {first}"))
    }
}

/// The first top-level line whose plain value holds `: `, which YAML takes for a nested mapping.
fn unquoted_colon(frontmatter: &str) -> Option<(usize, &str)> {
    frontmatter.lines().enumerate().find(|(_, line)| {
        line.split_once(": ").is_some_and(|(key, value)| {
            let value = value.trim();
            !key.starts_with([' ', '#', '-'])
                && !value.starts_with(['"', '\'', '[', '{', '|', '>', '#'])
                && value.contains(": ")
        })
    })
}

fn yaml(frontmatter: &str) -> Result<Value, serde_saphyr::Error> {
    let budget = Budget {
        max_reader_input_bytes: Some(MAX_FRONTMATTER_BYTES),
        max_events: 10_000,
        max_aliases: 0,
        max_anchors: 0,
        max_depth: 16,
        max_documents: 1,
        max_nodes: 5_000,
        max_total_scalar_bytes: MAX_FRONTMATTER_BYTES,
        ..Budget::default()
    };
    let options = Options {
        budget: Some(budget),
        strict_booleans: true,
        with_snippet: false,
        ..Options::default()
    };
    serde_saphyr::from_str_with_options(frontmatter, options)
}

/// Reads a frontmatter that people write and YAML does not take: each known key begins a line, and
/// its value goes on, colons and all, up to the next such line. None if it is not even that.
fn by_lines(frontmatter: &str) -> Option<Value> {
    if frontmatter.len() > MAX_FRONTMATTER_BYTES {
        return None;
    }
    let mut values: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in frontmatter.lines() {
        let begun = line.split_once(':').filter(|(key, rest)| {
            is_known(key) && (rest.is_empty() || rest.starts_with([' ', '\t']))
        });
        match begun {
            // What runs things is refused however it is written: YAML has the last word on it.
            Some((key, _)) if REFUSED.iter().any(|(it, _)| *it == key) => return None,
            Some((key, _)) if values.iter().any(|(seen, _)| *seen == key) => return None,
            Some((key, rest)) => values.push((key, vec![rest.trim()])),
            // Only a description is written over several lines without marks.
            None => match values.last_mut()? {
                ("description", lines) => lines.push(line.trim_end()),
                _ if line.trim().is_empty() => {}
                // A list or a mapping below its key.
                (_, lines) if lines[0].is_empty() && line.starts_with([' ', '\t']) => {
                    lines.push(line);
                }
                _ => return None,
            },
        }
    }
    let mut map = Map::new();
    for (key, lines) in values {
        if key != "description" && lines.len() > 1 {
            let Ok(Value::Object(mut alone)) = yaml(&format!("{key}:{}", lines.join("\n"))) else {
                return None;
            };
            map.insert(key.to_owned(), alone.remove(key).unwrap_or(Value::Null));
            continue;
        }
        let text = lines.join("\n").trim().to_owned();
        // A value that is YAML by itself (a list, a quoted text) is what it says.
        let value = match yaml(&format!("{key}: {text}")) {
            Ok(Value::Object(mut alone)) => alone.remove(key).unwrap_or(Value::Null),
            // It was meant as YAML, and is wrong as such.
            _ if text.starts_with(['[', '{', '&', '!', '|', '>', '%', '@', '`', '"', '\'']) => {
                return None;
            }
            _ => Value::String(text),
        };
        map.insert(key.to_owned(), value);
    }
    (!map.is_empty()).then_some(Value::Object(map))
}

fn is_known(key: &str) -> bool {
    let of = |keys: &[(&str, &str)]| keys.iter().any(|(it, _)| *it == key);
    FIELDS.contains(&named(key)) || of(&ELSEWHERE) || of(&REFUSED)
}

/// The name of a key here.
fn named(key: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == key).map_or(key, |(_, name)| name)
}

/// Writes an agent as such a file, so that [`parse`] gives the same fields again.
pub fn write(fields: &Map<String, Value>) -> String {
    let mut out = String::from("---\n");
    let binding = fields.get("worker").and_then(|it| it.get("subagent_type"));
    const KEYS: [&str; 9] = [
        "name",
        "description",
        "tool",
        "tools",
        "labels",
        "model",
        "effort",
        "maxTurns",
        "template",
    ];
    for key in KEYS {
        if let Some(value) = fields.get(key) {
            // JSON is YAML.
            out.push_str(&format!("{key}: {value}\n"));
        }
    }
    if let Some(binding) = binding {
        out.push_str(&format!("worker_binding: {binding}\n"));
    }
    out.push_str("---\n");
    if let Some(system) = fields.get("system").and_then(Value::as_str) {
        out.push_str(&format!("\n{}\n", system.trim()));
    }
    out
}

/// The maximum number of model calls.
fn turns(value: &Value) -> Option<Value> {
    let turns = match value {
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_u64(),
    };
    turns.filter(|turns| (1..=MAX_TURNS).contains(turns)).map(Value::from)
}

/// The labels that a pull worker needs: texts by name.
fn labels(value: Value) -> Option<Value> {
    let all = value.as_object().is_some_and(|map| map.values().all(Value::is_string));
    all.then_some(value)
}

/// Returns a list of tools, of a list, of a map of names to true, or of text with commas. A comma in
/// parentheses does not separate.
fn tools(value: &Value) -> Option<Value> {
    match value {
        Value::Array(names) => names.iter().all(Value::is_string).then(|| value.clone()),
        Value::String(text) => {
            let mut depth = 0_u32;
            let names = text.split(|c| {
                match c {
                    '(' => depth += 1,
                    ')' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                c == ',' && depth == 0
            });
            Some(names.map(str::trim).filter(|name| !name.is_empty()).map(Value::from).collect())
        }
        Value::Null => Some(Value::Array(Vec::new())),
        // Some programs write which tools are on and which are off.
        Value::Object(map) if !map.is_empty() && map.values().all(Value::is_boolean) => {
            let on = map.iter().filter(|(_, on)| **on == Value::Bool(true));
            Some(on.map(|(name, _)| Value::from(name.as_str())).collect())
        }
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests;
