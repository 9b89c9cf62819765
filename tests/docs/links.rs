//! The documents as texts: every link within them leads somewhere, and their lines are short.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

/// The documents, with their texts.
fn documents(dir: &Path, into: &mut HashMap<PathBuf, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            documents(&path, into);
        } else if path.extension().is_some_and(|it| it == "md") {
            into.insert(path.clone(), fs::read_to_string(&path).unwrap());
        }
    }
}

/// All documents of the repository, with their texts.
fn all_documents() -> HashMap<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = HashMap::new();
    documents(&root.join("docs"), &mut all);
    let around = [
        "README.md",
        "examples/README.md",
        "CHANGELOG.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ];
    for name in around {
        all.insert(root.join(name), fs::read_to_string(root.join(name)).unwrap());
    }
    all
}

/// The lines that are no code, each with its number and without its pieces of code.
fn prose(text: &str) -> Vec<(usize, String)> {
    let (mut code, mut lines) = (false, Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code {
            let words = line.split('`').step_by(2);
            lines.push((number, words.collect::<Vec<_>>().join("`")));
        }
    }
    lines
}

/// What a heading is linked by.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut code = false;
    let headings = text.lines().filter(|line| {
        code ^= line.starts_with("```");
        !code && line.starts_with('#')
    });
    let slug = |line: &str| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(slug).collect()
}

/// The targets of links in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

#[test]
fn every_link_between_documents_leads_to_a_file_and_a_heading() {
    let all = all_documents();
    let (mut broken, mut links) = (Vec::new(), 0);
    for (path, text) in &all {
        for (number, line) in prose(text) {
            for target in targets(&line).filter(|it| !it.contains("://")) {
                let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
                let place = format!("{}:{number}: {target}", path.display());
                links += 1;
                let there = match file {
                    "" => path.clone(),
                    file => path.parent().unwrap().join(file),
                };
                let Ok(there) = there.canonicalize() else {
                    broken.push(place);
                    continue;
                };
                let known =
                    all.iter().find(|(it, _)| it.canonicalize().is_ok_and(|it| it == there));
                if !anchor.is_empty()
                    && !known.is_some_and(|(_, text)| anchors(text).contains(anchor))
                {
                    broken.push(place);
                }
            }
        }
    }
    broken.sort();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(links > 150, "only {links} links were seen");
}

#[test]
fn a_line_of_prose_has_fewer_than_120_characters() {
    let mut long = Vec::new();
    for (path, text) in all_documents() {
        let mut code = false;
        for (number, line) in (1..).zip(text.lines()) {
            code ^= line.trim_start().starts_with("```");
            // The rows of a table cannot be broken.
            if !code && !line.starts_with('|') && line.chars().count() >= 120 {
                long.push(format!("{}:{number}", path.display()));
            }
        }
    }
    long.sort();
    assert!(long.is_empty(), "{}", long.join("\n"));
}
