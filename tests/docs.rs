//! Every whole blueprint in a document is one that `moonswarm check` has nothing to say about.

use std::{fs, path::Path};

use moonswarm::{
    blueprint::Bundle,
    host,
    lua::{Limits, Program},
};

/// The Lua blocks of a document that are whole blueprints, with the lines they begin in.
fn blueprints(markdown: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut block: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(markdown.lines()) {
        match &mut block {
            None if line == "```lua" => block = Some((number + 1, String::new())),
            None => {}
            Some(_) if line == "```" => {
                found.extend(block.take().filter(|(_, text)| text.contains("swarm.blueprint")));
            }
            Some((_, text)) => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    found
}

#[test]
fn every_whole_blueprint_in_a_document_compiles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut checked = 0;
    for file in docs.chain([root.join("README.md")]) {
        // These show blueprints that are wrong on purpose.
        let wrong = file.ends_with("errors.md") || file.ends_with("findings.md");
        if wrong || file.extension().is_none_or(|it| it != "md") {
            continue;
        }
        for (line, text) in blueprints(&fs::read_to_string(&file).unwrap()) {
            let place = format!("{}:{line}", file.display());
            let bundle = Bundle::from_source("example.lua", text).unwrap();
            let compiled = Program::compile(bundle, &host::builtin_operators(), &Limits::default());
            let (_, findings) =
                compiled.unwrap_or_else(|findings| panic!("{place}: {findings:#?}"));
            assert!(findings.is_empty(), "{place}: {findings:#?}");
            checked += 1;
        }
    }
    assert!(checked >= 2, "only {checked} blueprints found");
}

#[test]
fn a_block_counts_as_a_blueprint_only_when_it_is_a_whole_one() {
    let text = "```lua\nx = 1\n```\n```lua\nreturn swarm.blueprint {}\n```\n```sh\nls\n```\n";
    assert_eq!(blueprints(text), [(5, "return swarm.blueprint {}\n".to_owned())]);
}
