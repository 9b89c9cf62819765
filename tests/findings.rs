//! Every finding that there is has a blueprint in docs/findings.md that shows it, and one that does not.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use moonswarm::{
    blueprint::{Bundle, Operators, code},
    flow::ValuePath,
    host,
    lua::{Limits, Program},
    operator::Registry,
};

/// The operators that always exist, an MCP server that is called `files`, and a quorum over
/// `verdict` that is called `sure`.
struct WithFiles(Registry);

impl Operators for WithFiles {
    fn kind(&self, name: &str) -> Option<&str> {
        match name {
            "files" => Some("mcp"),
            "model" => Some("llm"),
            "sure" => Some("composite"),
            _ => self.0.kind(name),
        }
    }

    fn requires_worker_binding(&self, name: &str) -> bool {
        self.0.requires_worker_binding(name)
    }

    fn is_model(&self, name: &str) -> bool {
        name == "model"
    }

    fn requires_tool(&self, name: &str) -> bool {
        name == "files"
    }

    fn kinds(&self, name: &str) -> Vec<&str> {
        if name == "sure" { vec!["echo"] } else { self.kind(name).into_iter().collect() }
    }

    fn compared(&self, name: &str) -> Vec<ValuePath> {
        if name == "sure" { vec!["verdict".parse().unwrap()] } else { Vec::new() }
    }

    fn refuses_environment(&self, environment: &Value) -> Vec<(String, String)> {
        self.0.refuses_environment(environment)
    }

    fn check_layer(&self, layer: &Value) -> Result<(), String> {
        self.0.check_layer(layer)
    }

    fn names(&self) -> Vec<String> {
        Operators::names(&self.0)
    }
}

/// The codes that a bundle's findings have.
fn codes(files: BTreeMap<String, Arc<str>>) -> Vec<String> {
    let bundle = match Bundle::from_files(files, Some("example.lua")) {
        Ok(bundle) => bundle,
        Err(error) => return vec![error.finding("example.lua").code.to_owned()],
    };
    let operators = WithFiles(host::builtin_operators());
    let findings = match Program::compile(bundle, &operators, &Limits::default()) {
        Ok((program, warnings)) => warnings.into_iter().chain(program.notes()).collect(),
        Err(findings) => findings,
    };
    findings.into_iter().map(|finding| finding.code.to_owned()).collect()
}

/// Every Lua file below a directory that is no test.
fn sources(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if name.ends_with(".lua") && !name.ends_with("_test.lua") {
            found.push(path);
        }
    }
    found
}

#[test]
fn no_blueprint_of_the_repository_has_a_false_alarm() {
    let files = sources(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/blueprints")));
    assert!(files.len() > 25, "{files:?}");
    let operators = WithFiles(host::builtin_operators());
    for path in files {
        let bundle = Bundle::load(&path).unwrap();
        let findings = match Program::compile(bundle, &operators, &Limits::default()) {
            Ok((program, warnings)) => warnings.into_iter().chain(program.notes()).collect(),
            Err(findings) => findings,
        };
        // Operators and environments of their configurations are not known here.
        let elsewhere = [code::UNKNOWN_OPERATOR, code::ENVIRONMENT, code::TOOLS_UNUSED];
        let alarms: Vec<_> =
            findings.into_iter().filter(|finding| !elsewhere.contains(&finding.code)).collect();
        assert!(alarms.is_empty(), "{}: {alarms:#?}", path.display());
    }
}

#[test]
fn every_finding_is_shown_by_its_example_and_by_no_right_one() {
    let text = include_str!("../docs/findings.md");
    let mut lines = text.lines();
    let (mut section, mut files) = (String::new(), BTreeMap::<String, Arc<str>>::new());
    let mut shown: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    while let Some(line) = lines.next() {
        if let Some(head) = line.strip_prefix("## ") {
            section = head.split(':').next().unwrap_or(head).to_owned();
            continue;
        }
        let Some(info) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let block: Arc<str> = format!("{}\n", block.join("\n")).into();
        match info.split_once(' ') {
            Some((_, "wrong")) => {
                let mut all = std::mem::take(&mut files);
                all.insert("example.lua".to_owned(), block);
                let found = codes(all);
                assert!(found.contains(&section), "{section}: the wrong example has {found:?}");
                shown.entry(section.clone()).or_default().0 += 1;
            }
            Some((_, "right")) => {
                let mut all = std::mem::take(&mut files);
                all.insert("example.lua".to_owned(), block);
                assert_eq!(codes(all), [""; 0], "{section}: the right example");
                shown.entry(section.clone()).or_default().1 += 1;
            }
            Some((_, file)) => {
                let path = file.strip_prefix("file ").expect("a block is wrong, right or a file");
                files.insert(path.to_owned(), block);
            }
            None => panic!("{section}: a block that is neither wrong nor right"),
        }
    }
    for (code, meaning) in code::ALL {
        assert!(text.contains(&format!("## {code}: {meaning}\n")), "{code}: {meaning}");
        let (wrong, right) = shown.get(*code).copied().unwrap_or_default();
        assert!(wrong > 0 && right > 0, "{code} needs a wrong and a right example");
    }
}
