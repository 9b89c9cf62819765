//! What editors are told of the library: LuaCATS for the Lua language server, and a definition file
//! for Luau's. Both are written from [`super::library`].

use std::fmt::Write as _;

use super::library::{FIELDS, FUNCTIONS, Function, is_method};

/// The classes of the library: what the table calls them, their name as a type, and what
/// `require` gives.
const CLASSES: [(&str, &str); 10] = [
    ("ctx", "Ctx"),
    ("ctx.state", "State"),
    ("f", "Branch"),
    ("swarm", "Swarm"),
    ("swarm.json", "JsonLibrary"),
    ("swarm.time", "TimeLibrary"),
    ("swarm.schema", "SchemaLibrary"),
    ("swarm.nodes", "Nodes"),
    ("swarm.test", "TestLibrary"),
    ("run", "TestRun"),
];

/// Tables that functions take or give, as Luau writes them.
pub(super) const TYPES: &[(&str, &str)] = &[
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
    ("CallOptions", "{ version: string? }"),
    (
        "DispatchOptions",
        "{ timeout: string?, retry: any?, idempotency_key: string?, summary: string?, session: string?, concurrency: number? }",
    ),
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
    (
        "Agent",
        "{ operator: string?, system: string?, prompt: string?, description: string?, input: Schema?, output: Schema?, worker: { subagent_type: string, tools: {string}? }?, command: {string}?, check: boolean?, cwd: string?, env: { [string]: string }?, queue: string?, labels: { [string]: string }?, tool: string?, fn: ((any) -> any)?, retry: Retry?, timeout: Duration?, park: Duration?, max_concurrency: number?, tools: {any}?, model: string?, effort: string?, name: string?, max_turns: number?, max_cost: any?, max_duration: Duration?, max_tool_calls: number?, max_repeats: number?, max_failures: number?, rules: {any}?, warn_at: number?, on_exceeded: any?, compaction: { at: number, keep: number?, strategy: string?, flush: any? }? }",
    ),
    ("Task", "{ agent: string, input: any, opts: { [string]: any } }"),
    (
        "Trigger",
        "{ schedule: string?, zone: string?, missed: string?, signal: string?, input: any? }",
    ),
    (
        "Blueprint",
        "{ name: string, description: string?, operator: string?, input: Schema?, output: Schema?, agents: { [string]: Agent }?, flow: any, middleware: { any }?, limits: { steps: number?, depth: number?, wall: Duration? }?, on: { Trigger }? }",
    ),
];

/// The stubs of the Lua language server.
pub fn luacats() -> String {
    let mut out = String::from(
        "---@meta\n-- Written by `moonswarm init`: what an editor knows of the library.\n\n",
    );
    for (name, is) in TYPES {
        match fields_of(is) {
            Some(fields) => {
                let _ = writeln!(out, "---@class moonswarm.{name}");
                for (field, is) in fields {
                    let (is, mark) = match is.strip_suffix('?') {
                        Some(is) => (is, "?"),
                        None => (is, ""),
                    };
                    let _ = writeln!(out, "---@field {field}{mark} {}", cats(is));
                }
            }
            None => {
                let _ = writeln!(out, "---@alias moonswarm.{name} {}", cats(is));
            }
        }
        out.push('\n');
    }
    for (of, class) in CLASSES {
        let _ = writeln!(out, "---@class moonswarm.{class}");
        for field in FIELDS.iter().filter(|it| it.of == of) {
            let _ = writeln!(out, "---@field {} {} {}", field.name, cats(field.is), field.about);
        }
        let _ = writeln!(out, "local {class} = {{}}\n");
        for function in FUNCTIONS.iter().filter(|it| it.of == of) {
            cats_function(function, class, &mut out);
        }
    }
    out.push_str("return Swarm\n");
    out
}

/// The stubs of `require("swarm.test")`.
pub fn luacats_test() -> String {
    "---@meta\n\n---@type moonswarm.TestLibrary\nlocal test\n\nreturn test\n".to_owned()
}

fn cats_function(function: &Function, class: &str, out: &mut String) {
    let _ = writeln!(out, "---{}", function.about);
    for (name, is) in function.takes {
        let (is, mark) = match is.strip_suffix('?') {
            Some(is) => (is, "?"),
            None => (*is, ""),
        };
        let _ = writeln!(out, "---@param {name}{mark} {}", cats(is));
    }
    match function.gives {
        "" | "never" => {}
        gives => {
            let inside = gives.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
            for one in inside.map_or(vec![gives], |it| it.split(", ").collect()) {
                let _ = writeln!(out, "---@return {}", cats(one));
            }
        }
    }
    let names: Vec<_> = function.takes.iter().map(|(name, _)| *name).collect();
    let dot = if is_method(function.of) { ":" } else { "." };
    let _ = writeln!(out, "function {class}{dot}{}({}) end\n", function.name, names.join(", "));
}

/// A type of the table, as LuaCATS writes it.
fn cats(is: &str) -> String {
    let known = TYPES.iter().map(|(name, _)| *name).chain(CLASSES.iter().map(|(_, name)| *name));
    if let Some(name) = known.into_iter().find(|name| *name == is) {
        return format!("moonswarm.{name}");
    }
    if let Some(is) = is.strip_suffix('?') {
        return format!("{}?", cats(is));
    }
    match is {
        "any" | "string" | "number" | "boolean" => is.to_owned(),
        "...any" => "any ...".to_owned(),
        is if is.contains("->") => "function".to_owned(),
        is if is.contains(" | ") => is.replace(" | ", "|"),
        is => match is.strip_prefix('{').and_then(|it| it.strip_suffix('}')) {
            Some(inside) if !inside.contains(':') => format!("{}[]", cats(inside.trim())),
            _ => "table".to_owned(),
        },
    }
}

/// The fields of a table type: name and type, the type with its `?`.
fn fields_of(is: &str) -> Option<Vec<(&str, &str)>> {
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

/// The definition file for Luau's language server.
pub fn luau() -> String {
    let mut out =
        String::from("-- Written by `moonswarm init`: what an editor knows of the library.\n\n");
    for (name, is) in TYPES {
        let _ = writeln!(out, "export type {name} = {is}");
    }
    out.push('\n');
    for (of, class) in CLASSES {
        let _ = writeln!(out, "export type {class} = {{");
        for field in FIELDS.iter().filter(|it| it.of == of) {
            let _ = writeln!(out, "  -- {}\n  {}: {},", field.about, field.name, field.is);
        }
        for function in FUNCTIONS.iter().filter(|it| it.of == of) {
            let own = if is_method(of) { vec![format!("self: {class}")] } else { Vec::new() };
            let takes = own.into_iter().chain(
                function.takes.iter().map(|(name, is)| format!("{}: {is}", luau_name(name))),
            );
            let gives = if function.gives.is_empty() { "()" } else { function.gives };
            let _ = writeln!(
                out,
                "  -- {}\n  {}: ({}) -> {gives},",
                function.about,
                function.name,
                takes.collect::<Vec<_>>().join(", ")
            );
        }
        out.push_str("}\n\n");
    }
    out.push_str("declare swarm: Swarm\n");
    out
}

fn luau_name(name: &str) -> &str {
    if name == "fn" { "callback" } else { name }
}

/// The settings of the Lua language server for a directory with blueprints.
pub fn luarc() -> String {
    let settings = serde_json::json!({
        "$schema": "https://raw.githubusercontent.com/LuaLS/vscode-lua/master/setting/schema.json",
        "runtime.version": "LuaJIT",
        "runtime.path": ["?.lua", "?.luau", ".luals/?.lua", ".luals/?/init.lua"],
        "workspace.library": [".luals"],
        "diagnostics.disable": ["lowercase-global"],
    });
    format!("{settings:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_in_both_files() {
        let (cats, luau) = (luacats(), luau());
        for function in FUNCTIONS {
            let (_, class) = CLASSES.iter().find(|(of, _)| *of == function.of).unwrap();
            let dot = if is_method(function.of) { ":" } else { "." };
            assert!(
                cats.contains(&format!("function {class}{dot}{}(", function.name)),
                "{function:?}"
            );
            assert!(luau.contains(&format!("\n  {}: (", function.name)), "{function:?}");
        }
        for (name, is) in TYPES {
            assert!(luau.contains(&format!("export type {name} = {is}\n")), "{name}");
            assert!(cats.contains(&format!("moonswarm.{name}")), "{name}");
        }
    }

    #[test]
    fn stubs_look_as_editors_want_them() {
        let cats = luacats();
        let run = "---One task: its result, or its error raised.\n---@param agent string\n\
                   ---@param input? any\n---@param opts? moonswarm.RunOptions\n---@return any\n\
                   function Ctx:run(agent, input, opts) end\n";
        assert!(cats.contains(run), "{cats}");
        assert!(cats.contains("---@class moonswarm.MapOptions\n---@field concurrency? number\n"));
        assert!(
            luau().contains(
                "  run: (self: Ctx, agent: string, input: any?, opts: RunOptions?) -> any,"
            )
        );
    }
}
