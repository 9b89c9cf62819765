//! The shape of the source: which room may use which, and what only one room may know.
//!
//! Reads `src/` as text. Every rule says in its message what it wants, and the tests at the end
//! show that each can fail.

#[path = "architecture/circles.rs"]
mod circles;
#[path = "architecture/mutants.rs"]
mod mutants;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use circles::Room;

/// The rooms and root files in import order: each uses only what stands before it.
const ORDER: &[&str] = &[
    "protocol",
    "schema",
    "journal",
    "flow",
    "token",
    "clock",
    "tasks",
    "memory",
    "fault",
    "metrics",
    "blueprint",
    "lua",
    "middleware",
    "store",
    "environment",
    "session",
    "operator",
    "spawner",
    "respond",
    "engine",
    "testkit",
    "door",
    "api",
    "mcp",
    "dashboard",
    "config",
    "telemetry",
    "host",
    "cli",
];

/// Rooms of plain data and decisions: no runtime, no IO.
const PURE: &[&str] = &["protocol", "schema", "journal", "flow", "token"];

/// What a pure room does not know.
const IMPURE: &[&str] =
    &["tokio", "reqwest", "std::fs", "std::net", "std::process", "std::thread", "std::env"];

/// Libraries, and the rooms that alone know them.
const ONLY: &[(&str, &[&str])] = &[
    ("mlua", &["lua"]),
    ("rusqlite", &["store"]),
    ("tokio_postgres", &["store"]),
    ("axum", &["door", "api", "mcp", "dashboard"]),
];

/// Lines that a file may have before its tests.
const LONGEST: usize = 600;

/// The kinds of operators. The engine asks a backend or a row what it can do, and compares none.
const KINDS: &[&str] = &[
    "human", "main_ai", "main-ai", "queue", "process", "echo", "lua", "llm", "http", "webhook",
    "mcp",
];

/// Marks of work that was left lying.
const LEFTOVERS: &[&str] = &["TODO", "FIXME", "XXX", "HACK"];

/// A file of the source: its path below `src/`, and its text.
struct Source<'a> {
    path: &'a str,
    text: &'a str,
}

impl<'a> Source<'a> {
    /// The room, or the root file's name.
    fn room(&self) -> &'a str {
        let first = self.path.split('/').next().unwrap_or(self.path);
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// The lines with their numbers, without comments.
    fn code(&self) -> impl Iterator<Item = (usize, &'a str)> {
        (1..)
            .zip(self.text.lines())
            .map(|(number, line)| (number, line.split("//").next().unwrap_or_default()))
    }

    /// The comments with their line numbers.
    fn comments(&self) -> impl Iterator<Item = (usize, &'a str)> {
        (1..)
            .zip(self.text.lines())
            .filter_map(|(number, line)| Some((number, line.trim().strip_prefix("//")?)))
    }

    /// How many lines stand before the tests.
    fn length(&self) -> usize {
        self.text.lines().take_while(|line| *line != "#[cfg(test)]").count()
    }

    /// Whether all of it is test code.
    fn is_test(&self) -> bool {
        self.path.ends_with("tests.rs") || self.path.contains("/tests/")
    }

    /// Everything that breaks a rule.
    fn complaints(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut say =
            |line: usize, what: String| found.push(format!("{}:{line}: {what}", self.path));
        let room = self.room();
        let rank = ORDER.iter().position(|it| *it == room);
        if rank.is_none() && !matches!(room, "lib" | "main") {
            say(1, format!("the room {room} has no place in the order"));
        }
        if self.path.ends_with("mod.rs") {
            say(1, "a module is `x.rs` beside its folder `x/`, not `x/mod.rs`".to_owned());
        }
        for (line, used) in self.rooms_used() {
            match (rank, ORDER.iter().position(|it| *it == used)) {
                (Some(own), Some(other)) if other > own => {
                    say(line, format!("{room} stands before {used} and must not use it"));
                }
                _ => {}
            }
        }
        for (line, code) in self.code() {
            for (library, owners) in ONLY {
                // The name of another program, which is imported from, is no use of a library.
                let code = code.replace("mlua-swarm", "");
                if !owners.contains(&room) && has_word(&code, library) {
                    say(line, format!("only {} knows {library}", owners.join(" and ")));
                }
            }
            if PURE.contains(&room) {
                for what in IMPURE.iter().filter(|what| has_word(code, what)) {
                    say(line, format!("{room} is pure and must not know {what}"));
                }
            }
            let is_kind = |kind: &&&str| code.contains(&format!("\"{kind}\""));
            if room == "engine"
                && !self.is_test()
                && line <= self.length()
                && let Some(kind) = KINDS.iter().find(is_kind)
            {
                say(line, format!("the engine names the kind {kind}: the backend says what it is"));
            }
            if room == "engine" && code.contains("kind") && code.contains("= HUMAN") {
                say(line, "the engine compares a kind: the backend says what it is".to_owned());
            }
            if has_word(code, "unsafe") && !self.path.starts_with("lua/raw") {
                say(line, "unsafe code is for lua/raw alone".to_owned());
            }
            if has_word(code, "todo!") || has_word(code, "unimplemented!") {
                say(line, "unfinished".to_owned());
            }
        }
        for (line, comment) in self.comments() {
            if let Some(word) = LEFTOVERS.iter().find(|word| has_word(comment, word)) {
                say(line, format!("a comment says {word}"));
            }
        }
        if !self.is_test() && self.length() > LONGEST {
            say(LONGEST, format!("{} lines before the tests: split it", self.length()));
        }
        found
    }

    /// The rooms that its `crate::` paths name, with the lines they begin in.
    fn rooms_used(&self) -> Vec<(usize, String)> {
        let code: String = self.code().map(|(_, line)| format!("{line}\n")).collect();
        let mut used = Vec::new();
        for (at, path) in code.match_indices("crate::") {
            let line = 1 + code[..at].matches('\n').count();
            let rest = &code[at + path.len()..];
            let names = if rest.starts_with('{') { group(rest) } else { vec![word(rest)] };
            used.extend(names.into_iter().map(|name| (line, name)));
        }
        used
    }
}

/// The identifier that a text begins with.
fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The first names of a group: `{a::{b, c}, d}` has `a` and `d`.
fn group(text: &str) -> Vec<String> {
    let (mut depth, mut names, mut fresh) = (0, Vec::new(), false);
    for (at, c) in text.char_indices() {
        match c {
            '{' => {
                depth += 1;
                fresh = depth == 1;
            }
            '}' if depth == 1 => break,
            '}' => depth -= 1,
            ',' if depth == 1 => fresh = true,
            c if fresh && !c.is_whitespace() => {
                names.push(word(&text[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    names
}

/// Whether a text has a word that is not a part of a longer one.
fn has_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(part)
            && (word.ends_with('!') || !text[at + word.len()..].chars().next().is_some_and(part))
    })
}

fn rust_files(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("src/ can be read") {
        let path = entry.expect("src/ can be read").path();
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|it| it == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn every_file_keeps_to_the_rules_of_the_house() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    assert!(files.len() > 100, "only {} files found in {}", files.len(), src.display());

    let mut complaints = Vec::new();
    let mut missing: Vec<&str> = ORDER.to_vec();
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file is text");
        let path = file.strip_prefix(&src).expect("it was found there").to_string_lossy();
        let source = Source { path: &path, text: &text };
        complaints.extend(source.complaints());
        missing.retain(|room| *room != source.room());
    }
    let page = fs::read_to_string(src.with_file_name("ARCHITECTURE.md")).expect("it is text");
    let rows: String = page.lines().filter(|line| line.starts_with("| `")).collect();
    let unnamed = ORDER.iter().filter(|room| !rows.contains(&format!("`{room}`")));
    complaints.extend(unnamed.map(|room| format!("ARCHITECTURE.md has no row for {room}")));
    complaints
        .extend(missing.iter().map(|room| format!("the order names {room}, and it is not there")));
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn files_of_a_room_use_each_other_in_one_direction() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    let mut rooms: BTreeMap<String, Room> = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file is text");
        let path = file.strip_prefix(&src).expect("it was found there").to_string_lossy();
        let source = Source { path: &path, text: &text };
        if !source.is_test() {
            let room = source.room().to_owned();
            rooms.entry(room.clone()).or_insert_with(|| Room::new(&room)).add(&path, &text);
        }
    }
    let mut complaints = Vec::new();
    for (name, room) in &rooms {
        let circles = room.circles();
        complaints.extend(circles.iter().map(|circle| format!("{name}: {}", circle.join(", "))));
    }
    assert!(complaints.is_empty(), "files in circles:\n{}", complaints.join("\n"));
}

#[test]
fn the_data_of_a_run_knows_nothing_of_what_changes_it() {
    const KNOWN: &[&str] = &["run", "view", "error", "settings"];
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src.join("engine"), &mut files);
    let mut engine = Room::new("engine");
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file is text");
        let path = file.strip_prefix(&src).expect("it was found there").to_string_lossy();
        engine.add(&path, &text);
    }
    let first = |path: &str| path.split("::").next().unwrap_or_default().to_owned();
    let edges = engine.edges();
    let own: Vec<_> = edges.iter().filter(|(from, _)| first(from) == "run").collect();
    assert!(own.len() > 10, "the files of engine/run/ were not found");
    let beyond: Vec<_> =
        own.into_iter().filter(|(_, to)| !KNOWN.contains(&first(to).as_str())).collect();
    assert!(beyond.is_empty(), "engine/run/ is data alone: {beyond:?}");
}

/// The most methods that a type of the engine has, over all of its files.
const MOST_METHODS: usize = 60;

/// Adds the methods of a file's types, those of traits aside.
fn count_methods(text: &str, into: &mut BTreeMap<String, usize>) {
    let mut own = None;
    for line in text.lines().take_while(|line| *line != "#[cfg(test)]") {
        if let Some(head) = line.strip_prefix("impl").filter(|_| !line.contains(" for ")) {
            let after = head.split_once("> ").filter(|_| head.starts_with('<'));
            own = Some(word(after.map_or(head, |(_, name)| name).trim_start()));
        } else if line == "}" {
            own = None;
        } else if let Some(name) = &own
            && line.starts_with("    ")
            && !line.starts_with("     ")
            && has_word(line.split('(').next().unwrap_or_default(), "fn")
        {
            *into.entry(name.clone()).or_default() += 1;
        }
    }
}

#[test]
fn no_type_of_the_engine_is_a_hall() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src.join("engine"), &mut files);
    let mut methods = BTreeMap::new();
    for file in files {
        count_methods(&fs::read_to_string(&file).expect("a source file is text"), &mut methods);
    }
    assert!(methods["Engine"] > 20, "the methods of Engine were not found: {methods:?}");
    methods.retain(|_, count| *count > MOST_METHODS);
    assert!(methods.is_empty(), "too many methods: {methods:?}");
}

#[test]
fn methods_are_counted_by_their_type() {
    let mut methods = BTreeMap::new();
    let text = "impl A {\n    pub fn a(&self) {}\n    async fn b() {\n        fn c() {}\n    }\n}\n\
                impl T for A {\n    fn d() {}\n}\nimpl<'e> B<'e> {\n    fn f() {}\n}\n\
                #[cfg(test)]\nimpl A {\n    fn e() {}\n}\n";
    count_methods(text, &mut methods);
    assert_eq!(methods, BTreeMap::from([("A".to_owned(), 2), ("B".to_owned(), 1)]));
}

#[test]
fn a_circle_of_files_is_found_and_a_name_that_is_passed_on_is_none() {
    let mut room = Room::new("engine");
    room.add("engine.rs", "mod a;\nmod b;\npub use a::{A, B};\n");
    room.add("engine/a.rs", "use super::B;\npub struct A;\n");
    room.add("engine/b.rs", "use crate::{\n    flow,\n    engine::{A, c::C},\n};\n");
    room.add("engine/c.rs", "pub use d::C;\nmod d;\n");
    room.add("engine/c/d.rs", "// use crate::engine::b\npub struct C;\n");
    assert_eq!(room.circles(), [[""; 0]; 0]);
    room.add("engine/c/d.rs", "fn f() { super::super::b::g() }\n");
    assert_eq!(room.circles(), [["engine::b", "engine::c::d"]]);
}

/// The functions that `src/lib.rs` lists as the way of a result: the path of each, without `fn`.
fn way_of_a_result(lib: &str) -> Vec<Vec<&str>> {
    let (_, way) = lib.split_once("//! # The way of a result\n").expect("lib.rs shows the way");
    let way = way.lines().take_while(|line| line.len() > 4);
    let mut functions = Vec::new();
    for line in way {
        let is_item = line.split_once(". `").filter(|(number, _)| number.len() <= 6);
        if let Some((_, rest)) = is_item {
            functions.push(rest.split('`').next().unwrap_or_default().split("::").collect());
        }
    }
    functions
}

#[test]
fn the_way_of_a_result_is_the_one_that_the_map_shows() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let way = way_of_a_result(include_str!("../src/lib.rs"));
    assert_eq!(way.len(), 10, "{way:?}");
    let mut rooms: Vec<String> = Vec::new();
    for path in &way {
        let (function, file) = path.split_last().expect("a function has a file");
        let text = fs::read_to_string(src.join(file.join("/")).with_extension("rs"));
        let text = text.unwrap_or_else(|_| panic!("there is no file of {path:?}"));
        let is_there = text.lines().any(|line| has_word(line, "fn") && has_word(line, function));
        assert!(is_there, "{path:?} is not defined there");
        // The engine's folders count as rooms of their own.
        let room = if path[0] == "engine" { path[..2].join("::") } else { path[0].to_owned() };
        if rooms.last() != Some(&room) {
            assert!(!rooms.contains(&room), "the way turns back to {room}");
            rooms.push(room);
        }
    }
    assert!(rooms.len() <= 8, "{rooms:?}");
}

#[test]
fn the_map_and_the_entry_stay_short() {
    let lines = |text: &str| text.lines().count();
    assert!(lines(include_str!("../src/lib.rs")) <= 141);
    assert!(lines(include_str!("../src/main.rs")) < 20);
}

fn complaints(path: &str, text: &str) -> Vec<String> {
    Source { path, text }.complaints()
}

#[test]
fn a_room_that_uses_a_later_one_is_found() {
    let grouped = "use crate::{\n    protocol::{Json, engine},\n    engine::Engine,\n};\n";
    assert_eq!(
        complaints("journal/entry.rs", grouped),
        ["journal/entry.rs:1: journal stands before engine and must not use it"]
    );
    assert_eq!(complaints("engine/run.rs", "fn f() { crate::host::open() }").len(), 1);
    assert_eq!(complaints("engine/run.rs", "use crate::{journal::Fact, store};"), [""; 0]);
    assert_eq!(complaints("cli/app.rs", "use crate::host::Host;"), [""; 0]);
}

#[test]
fn a_library_outside_its_room_is_found() {
    assert_eq!(complaints("engine/a.rs", "use mlua::Lua;").len(), 1);
    assert_eq!(complaints("api/a.rs", "let c = rusqlite::Connection::open(p);").len(), 1);
    assert_eq!(complaints("cli/a.rs", "use axum::Router;").len(), 1);
    assert_eq!(complaints("lua/a.rs", "use mlua::Lua;"), [""; 0]);
    assert_eq!(complaints("engine/a.rs", "// as mlua does\nlet mlua_like = 1;"), [""; 0]);
}

#[test]
fn a_pure_room_with_a_runtime_or_a_file_is_found() {
    assert_eq!(complaints("flow/op.rs", "use tokio::sync::mpsc;").len(), 1);
    assert_eq!(complaints("token/keys.rs", "std::fs::read(path)").len(), 1);
    assert_eq!(complaints("store.rs", "std::fs::read(path)"), [""; 0]);
}

#[test]
fn a_comparison_of_kinds_in_the_engine_is_found() {
    assert_eq!(complaints("engine/a.rs", "if row.kind == \"human\" {").len(), 1);
    assert_eq!(complaints("engine/a.rs", "if row.kind != HUMAN {").len(), 1);
    assert_eq!(complaints("engine/tests/a.rs", "operator: \"human\""), [""; 0]);
    assert_eq!(complaints("operator/a.rs", "if row.kind == \"human\" {"), [""; 0]);
}

#[test]
fn what_is_unsafe_unfinished_or_too_long_is_found() {
    assert_eq!(complaints("store/a.rs", "unsafe { f() }").len(), 1);
    assert_eq!(complaints("lua/raw/a.rs", "unsafe { f() }"), [""; 0]);
    assert_eq!(complaints("api/a.rs", "    todo!()").len(), 1);
    assert_eq!(complaints("api/a.rs", "// FIXME: later").len(), 1);
    let long = "\n".repeat(LONGEST + 1);
    assert_eq!(complaints("api/a.rs", &long).len(), 1);
    assert_eq!(complaints("api/a.rs", &format!("#[cfg(test)]\n{long}")), [""; 0]);
    assert_eq!(complaints("attic/a.rs", "").len(), 1);
    assert_eq!(complaints("api/mod.rs", "").len(), 1);
}
