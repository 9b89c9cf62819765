//! The deliberate breaks of `scripts/mutants`: each names a text that is in its file exactly once.

use std::{fs, path::Path};

/// Returns the mutants whose text is not in its file exactly once.
fn lost(list: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let is_lost = |line: &&str| {
        let mut parts = line.split(" | ");
        let (_, file, old) = (parts.next(), parts.next(), parts.next());
        let text = file.and_then(&read).unwrap_or_default();
        // A text over several lines is written with `\n`.
        let count = |old: &str| text.matches(old).count();
        !old.is_some_and(|old| count(old) == 1 || count(&old.replace("\\n", "\n")) == 1)
    };
    lines.filter(is_lost).map(str::to_owned).collect()
}

#[test]
fn every_mutant_names_a_text_that_is_there_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut missing = Vec::new();
    for list in fs::read_dir(root.join("scripts/mutants")).unwrap() {
        let list = fs::read_to_string(list.unwrap().path()).unwrap();
        missing.extend(lost(&list, |file| fs::read_to_string(root.join(file)).ok()));
    }
    assert!(missing.is_empty(), "name the text as it is now:\n{}", missing.join("\n"));
}

#[test]
fn a_text_that_is_missing_or_there_twice_is_found() {
    let read = |file: &str| (file == "a.rs").then(|| "one\ntwo two\nthree".to_owned());
    for (old, is_lost) in [("one", false), ("one\\ntwo", false), ("two", true), ("four", true)] {
        let line = format!("name | a.rs | {old} | new | test(/x/)");
        assert_eq!(lost(&line, read).len(), usize::from(is_lost), "{old}");
    }
    assert_eq!(lost("# a note\n\nname | b.rs | one | new | test(/x/)", read).len(), 1);
}
