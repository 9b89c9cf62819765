//! The library's description for editors: LuaCATS for the Lua language server, and a definition file
//! for Luau's. Both are written from [`super::library`].

use std::fmt::Write as _;

use super::library::{FIELDS, FUNCTIONS, Function, TYPES, fields_of, is_method};

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
    let choices = choices(is);
    if choices.len() > 1 {
        return choices.into_iter().map(cats).collect::<Vec<_>>().join("|");
    }
    match is {
        "any" | "string" | "number" | "boolean" => is.to_owned(),
        "...any" => "any ...".to_owned(),
        is if is.contains("->") => "function".to_owned(),
        is if is.contains(" | ") => {
            cats(is.strip_prefix('(').and_then(|it| it.strip_suffix(')')).unwrap_or("any"))
        }
        is => match is.strip_prefix('{').and_then(|it| it.strip_suffix('}')) {
            Some(inside) if !inside.contains(':') => format!("{}[]", cats(inside.trim())),
            _ => "table".to_owned(),
        },
    }
}

/// The alternatives of a type, as far as they stand outside of brackets.
fn choices(is: &str) -> Vec<&str> {
    let (mut found, mut depth, mut from) = (Vec::new(), 0_usize, 0);
    for (at, c) in is.char_indices() {
        match c {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => {
                found.push(is[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    found.push(is[from..].trim());
    found
}

/// The stubs of what Luau has beside Lua.
pub fn luacats_luau() -> &'static str {
    include_str!("../../lua/luau_stubs.lua")
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
        "runtime.version": "Lua 5.4",
        "runtime.nonstandardSymbol": ["continue", "+=", "-=", "*=", "/=", "//=", "%=", "^="],
        "runtime.path": ["?.lua", "?.luau", ".luals/?.lua", ".luals/?/init.lua"],
        "workspace.library": [".luals"],
        // A place in a list is no mistake that an editor could see.
        "diagnostics.disable": ["lowercase-global", "need-check-nil"],
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
    fn every_key_that_check_takes_is_known_to_editors() {
        let (cats, luau) = (luacats(), luau());
        for (of, keys) in [
            ("Agent", &["budget", "environment", "by", "required", "remind", "template"][..]),
            ("Limits", &["tokens", "usd", "open_tasks", "width"][..]),
            ("Trigger", &["watch", "root", "settle", "max_open"][..]),
            ("Blueprint", &["edition"][..]),
        ] {
            for key in keys {
                assert!(super::super::library::keys(of).contains(key), "{of}.{key}");
                assert!(cats.contains(&format!("---@field {key}? ")), "{key}");
                assert!(luau.contains(&format!(" {key}: ")), "{key}");
            }
        }
        assert!(cats.contains("---@param turns any[]|function\n"), "{cats}");
        assert!(cats.contains("---@field by? string|string[]\n"), "{cats}");
        assert!(cats.contains("---@field on? moonswarm.Trigger[]\n"), "{cats}");
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
