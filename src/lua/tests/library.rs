//! The library that editors are told of is the one that there is.

use super::*;
use crate::blueprint::library::{FIELDS, FUNCTIONS, names};

/// The functions that a source of the library defines, by what stands before their name.
fn defined<'s>(source: &'s str, owner: &str) -> Vec<&'s str> {
    let prefix = format!("function {owner}.");
    source.lines().filter_map(|line| line.strip_prefix(&prefix)?.split('(').next()).collect()
}

#[test]
fn every_function_has_a_row() {
    let sources = [
        (include_str!("../../../lua/ctx.luau"), "methods", "ctx"),
        (include_str!("../../../lua/ctx.luau"), "state", "ctx.state"),
        (include_str!("../../../lua/ctx.luau"), "spawned", "f"),
        (include_str!("../../../lua/swarm.luau"), "swarm", "swarm"),
        (include_str!("../../../lua/swarm.luau"), "swarm.json", "swarm.json"),
        (include_str!("../../../lua/swarm.luau"), "swarm.time", "swarm.time"),
        (include_str!("../../../lua/schema.luau"), "schema", "swarm.schema"),
        (include_str!("../../../lua/test.luau"), "t", "swarm.test"),
        (include_str!("../../../lua/test.luau"), "run", "run"),
    ];
    for (source, owner, of) in sources {
        let known = names(of);
        let found = defined(source, owner);
        assert!(!found.is_empty(), "{owner}");
        let lacking: Vec<_> =
            found.into_iter().filter(|name| !name.contains('.') && !known.contains(name)).collect();
        assert_eq!(lacking, [""; 0], "add a row for each to src/blueprint/library.rs ({of})");
    }
}

#[test]
fn every_row_is_there() {
    let mut body = String::from("local missing = swarm.array {}\n");
    for (of, name) in FUNCTIONS
        .iter()
        .map(|it| (it.of, it.name))
        .chain(FIELDS.iter().map(|it| (it.of, it.name)))
        .filter(|(of, name)| !matches!(*of, "f" | "run" | "swarm.test") && *name != "trigger")
    {
        body.push_str(&format!(
            "if not pcall(function() return assert({of}[\"{name}\"] ~= nil) end) then table.insert(missing, \"{of}.{name}\") end\n"
        ));
    }
    body.push_str("return missing");
    assert_eq!(Bench::new().value(&body), json!([]));
}
