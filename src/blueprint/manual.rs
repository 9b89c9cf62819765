//! The pages of docs/lua: one a function of the library, from its row in [`super::library`] and its
//! part of `lua/manual.md`. `moonswarm doc` shows them in a terminal.

use std::fmt::Write as _;

use super::library::{self, FIELDS, FUNCTIONS, Function, is_method};

const MANUAL: &str = include_str!("../../lua/manual.md");

/// The length in bytes above which the declaration of a type is written on several lines.
const LONGEST_LINE: usize = 110;

/// Owners, in the order of the index, with what they are.
const OWNERS: [(&str, &str); 10] = [
    ("ctx", "What a flow can do. Each call is durable: what it gave is in the journal."),
    ("ctx.state", "The run's own state; `ctx:scope` gives others with the same methods."),
    ("f", "A branch that `ctx:spawn` began."),
    ("swarm", "`local swarm = require(\"swarm\")`."),
    ("swarm.schema", "Schemas in short; `local s = swarm.schema`."),
    ("swarm.nodes", "Flows that are tables; `local n = swarm.nodes`."),
    ("swarm.json", "JSON text."),
    ("swarm.time", "Times as text."),
    ("swarm.test", "`local t = require(\"swarm.test\")`, in files that `moonswarm test` runs."),
    ("run", "A run in a test, from `t.start`."),
];

/// The entry of the manual for a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'t> {
    /// The function as it is called: `ctx:run`, `swarm.fail`.
    pub name: &'t str,
    /// The description.
    pub text: &'t str,
    /// The errors.
    pub errors: &'t str,
    /// Code that shows it.
    pub example: &'t str,
}

/// The entries of the manual, in its order.
pub fn entries() -> Vec<Entry<'static>> {
    let sections = MANUAL.split("## ").skip(1);
    sections.filter_map(entry).collect()
}

fn entry(section: &str) -> Option<Entry<'_>> {
    let (name, rest) = section.split_once('\n')?;
    let (text, rest) = rest.split_once("\nErrors:")?;
    let (errors, rest) = rest.split_once("```lua\n")?;
    let (example, _) = rest.split_once("```")?;
    Some(Entry { name: name.trim(), text: text.trim(), errors: errors.trim(), example })
}

/// A function as it is called.
pub fn name_of(function: &Function) -> String {
    let dot = if is_method(function.of) { ":" } else { "." };
    format!("{}{dot}{}", function.of, function.name)
}

/// The file of a function's page, below docs/lua.
pub fn file_of(function: &Function) -> String {
    format!("{}.{}.md", function.of, function.name)
}

/// A function's page; none if the manual says nothing about it.
pub fn page(function: &Function) -> Option<String> {
    let name = name_of(function);
    let entry = entries().into_iter().find(|entry| entry.name == name)?;
    let mut out = format!("# {name}\n\n{}\n\n```luau\n{}\n", function.about, signature(function));
    for (name, is) in types_of(function) {
        let _ = writeln!(out, "{}", type_text(name, is));
    }
    let _ = write!(
        out,
        "```\n\n{}\n\n## Errors\n\n{}\n\n## Example\n\n```lua\n{}```\n\n[All functions](README.md)\n",
        entry.text,
        sentence(entry.errors),
        entry.example,
    );
    Some(out)
}

/// The list of all functions and values.
pub fn index() -> String {
    let mut out = String::from(
        "# The library, function by function\n\n\
         These are the functions for blueprints and their tests. [Blueprints](../blueprints.md) explains how they work\n\
         together. `moonswarm doc NAME` shows a page in the terminal.\n\n\
         All examples are executed by the tests of this program. A line `--> 3` states the output of the flow, and\n\
         `--> fails blocked` the kind of its failure. The examples share these agents:\n\n\
         | agent | what it does |\n|---|---|\n\
         | `planner`, `coder`, `reviewer` | return their input |\n\
         | `double` | doubles `n` |\n\
         | `slow` | never answers |\n\
         | `broken` | fails with kind `worker` |\n\n\
         The stored blueprint `child` returns `{ got = input }`. The tests run `example.lua`: it calls its `reviewer` `times`\n\
         times, and gives `help` to its `helper`, a model with the tool `add`.\n",
    );
    for (of, about) in OWNERS {
        let _ = write!(out, "\n## {of}\n\n{about}\n\n| | |\n|---|---|\n");
        for field in FIELDS.iter().filter(|it| it.of == of) {
            let _ = writeln!(out, "| `{of}.{}` | {} |", field.name, field.about);
        }
        for function in FUNCTIONS.iter().filter(|it| it.of == of) {
            let (name, file) = (name_of(function), file_of(function));
            let _ = writeln!(out, "| [`{name}`]({file}) | {} |", function.about);
        }
    }
    out
}

/// The name with its arguments, as Luau writes them.
fn signature(function: &Function) -> String {
    let takes = function.takes.iter().map(|(name, is)| format!("{name}: {is}"));
    let takes = takes.collect::<Vec<_>>().join(", ");
    let gives = match function.gives {
        "" => String::new(),
        gives => format!(" -> {gives}"),
    };
    format!("{}({takes}){gives}", name_of(function))
}

/// The table types that a signature names, and those that these name.
fn types_of(function: &Function) -> Vec<(&'static str, &'static str)> {
    let mut text = signature(function);
    let mut found: Vec<(&str, &str)> = Vec::new();
    while let Some(next) = library::TYPES.iter().find(|(name, _)| {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        !found.iter().any(|(known, _)| known == name) && words.into_iter().any(|it| it == *name)
    }) {
        text.push_str(next.1);
        found.push(*next);
    }
    found
}

/// Returns the declaration of a type; one field per line if one line is too long.
fn type_text(name: &str, is: &str) -> String {
    let line = format!("type {name} = {is}");
    let fields = is.strip_prefix("{ ").and_then(|is| is.strip_suffix(" }"));
    let Some(fields) = fields.filter(|_| line.len() > LONGEST_LINE) else { return line };
    let mut depth = 0_usize;
    let mut text = format!("type {name} = {{\n  ");
    for c in fields.chars() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
        match (c, depth) {
            (',', 0) => text.push_str(",\n "),
            _ => text.push(c),
        }
    }
    text.push_str(",\n}");
    text
}

/// Returns the text with a capital first letter.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path};

    use super::*;

    #[test]
    fn every_function_has_an_entry_and_every_entry_a_function() {
        let names: Vec<_> = FUNCTIONS.iter().map(name_of).collect();
        let written: Vec<_> = entries().iter().map(|entry| entry.name.to_owned()).collect();
        let lacking: Vec<_> = names.iter().filter(|name| !written.contains(name)).collect();
        assert_eq!(lacking, [""; 0], "add a section for each to lua/manual.md");
        let strange: Vec<_> = written.iter().filter(|name| !names.contains(name)).collect();
        assert_eq!(strange, [""; 0], "lua/manual.md tells of functions that there are none of");
        assert_eq!(MANUAL.matches("\n## ").count() + 1, written.len(), "a section has no parts");
    }

    #[test]
    fn the_pages_are_the_ones_in_docs() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/lua");
        let mut wanted: BTreeMap<String, String> =
            FUNCTIONS.iter().filter_map(|it| Some((file_of(it), page(it)?))).collect();
        wanted.insert("README.md".to_owned(), index());
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            // It may not be there yet.
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            for (file, text) in &wanted {
                fs::write(dir.join(file), text).unwrap();
            }
        }
        let there = fs::read_dir(&dir).unwrap().map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read_to_string(entry.path()).unwrap())
        });
        let there: BTreeMap<_, _> = there.collect();
        for (file, text) in &wanted {
            assert_eq!(
                there.get(file),
                Some(text),
                "docs/lua/{file}: run this test with UPDATE_GOLDEN=1"
            );
        }
        assert_eq!(there.len(), wanted.len(), "a page that no function has");
    }

    #[test]
    fn a_page_has_its_signature_with_the_types_that_it_names() {
        let run = FUNCTIONS.iter().find(|it| (it.of, it.name) == ("ctx", "run")).unwrap();
        let page = page(run).unwrap();
        let head = "ctx:run(agent: string, input: any?, opts: RunOptions?) -> any\n";
        assert!(page.contains(head), "{page}");
        for name in ["RunOptions", "Retry", "Duration"] {
            assert!(page.contains(&format!("\ntype {name} = ")), "{name}: {page}");
        }
        assert!(!page.contains("type Failure"));
    }
}
