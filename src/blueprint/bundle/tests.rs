use std::{fs, path::Path};

use tempfile::TempDir;

use super::*;

fn files(list: &[(&str, &str)]) -> BTreeMap<String, Arc<str>> {
    list.iter().map(|(path, text)| ((*path).to_owned(), Arc::from(*text))).collect()
}

fn directory(list: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (path, text) in list {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    directory
}

fn paths(bundle: &Bundle) -> Vec<&str> {
    bundle.files().keys().map(String::as_str).collect()
}

#[test]
fn the_hash_is_the_one_that_stored_runs_were_pinned_to() {
    let bundle =
        Bundle::from_files(files(&[("main.lua", "return 1"), ("a/b.md", "hi")]), None).unwrap();
    assert_eq!(bundle.hash(), GOLDEN);
}

const GOLDEN: &str = "dea5e7e170c2462249a06e38523be1ef724f914e7908b76e6e63d71d9ab4326f";

#[test]
fn the_hash_tells_apart_what_only_looks_alike_when_joined() {
    let hash = |list: &[(&str, &str)]| {
        Bundle::from_files(files(list), Some("a.lua")).unwrap().hash().to_owned()
    };
    let one = hash(&[("a.lua", "xb.lua"), ("c", "")]);
    assert_ne!(one, hash(&[("a.lua", "x"), ("b.luac", "")]));
    assert_ne!(one, hash(&[("a.lua", "xb.lua")]));
    assert_eq!(one, hash(&[("c", ""), ("a.lua", "xb.lua")]));
}

#[test]
fn the_stored_form_reads_back_and_another_version_is_refused() {
    let bundle = Bundle::from_source("hello.lua", "return 1").unwrap();
    let mut bytes = bundle.encode();
    assert_eq!(Bundle::decode(&bytes).unwrap(), bundle);
    let damaged = &bytes[..bytes.len() - 1];
    assert!(matches!(Bundle::decode(damaged), Err(BundleError::Damaged)));
    bytes[0] = 9;
    assert!(matches!(Bundle::decode(&bytes), Err(BundleError::UnknownFormat(9))));
    assert!(matches!(Bundle::decode(&[]), Err(BundleError::Damaged)));
}

#[test]
fn the_json_form_names_its_entry_or_has_an_obvious_one() {
    let read = |text: &str| serde_json::from_str::<Bundle>(text);
    assert_eq!(read(r#"{"files":{"x.lua":"", "a.md":""}}"#).unwrap().entry(), "x.lua");
    assert_eq!(read(r#"{"files":{"x.lua":"", "main.lua":""}}"#).unwrap().entry(), "main.lua");
    assert_eq!(
        read(r#"{"files":{"x.lua":"", "y.lua":""}, "entry":"y.lua"}"#).unwrap().entry(),
        "y.lua"
    );
    assert!(read(r#"{"files":{"x.lua":"", "y.lua":""}}"#).is_err());
    assert!(read(r#"{"files":{"x.lua":""}, "entry":"y.lua"}"#).is_err());
    assert!(read(r#"{"files":{"x.lua":""}, "extra":1}"#).is_err());
    let bundle = read(r#"{"files":{"x.lua":"1"}}"#).unwrap();
    assert_eq!(
        serde_json::to_string(&bundle).unwrap(),
        r#"{"files":{"x.lua":"1"},"entry":"x.lua"}"#
    );
}

#[test]
fn paths_that_leave_the_bundle_are_refused() {
    for path in ["", "/etc/passwd", "../x", "a/../x", "a//b", "./a", "a\\b", "C:x", "a\nb", "a/"] {
        let outcome = Bundle::from_files(files(&[("m.lua", ""), (path, "")]), Some("m.lua"));
        assert!(matches!(outcome, Err(BundleError::Path { .. })), "{path:?}");
    }
}

#[test]
fn each_limit_is_refused_just_above_it() {
    let many = |count: usize| -> BTreeMap<String, Arc<str>> {
        (0..count).map(|index| (format!("{index}.lua"), Arc::from(""))).collect()
    };
    assert!(Bundle::from_files(many(MAX_FILES), Some("0.lua")).is_ok());
    let outcome = Bundle::from_files(many(MAX_FILES + 1), Some("0.lua"));
    assert!(matches!(outcome, Err(BundleError::TooManyFiles)));
    let large = "x".repeat(MAX_FILE_BYTES);
    assert!(Bundle::from_source("a.lua", large.as_str()).is_ok());
    let outcome = Bundle::from_source("a.lua", format!("{large}x"));
    assert!(matches!(outcome, Err(BundleError::FileTooLarge(_))));
    let all: BTreeMap<_, _> =
        (0..9).map(|i| (format!("{i}.lua"), Arc::from(large.as_str()))).collect();
    assert!(matches!(Bundle::from_files(all, Some("0.lua")), Err(BundleError::TooLarge)));
}

#[test]
fn loading_takes_what_is_referred_to_and_nothing_else() {
    let directory = directory(&[
        (
            "review.lua",
            r#"
local parts = require("./lib/parts")
local swarm = require("swarm")
-- require("./commented")
return swarm.blueprint { agents = { a = swarm.agent_md("agents/a.md", { system = swarm.template "t.md" }) },
  prompt = [[{% include "inline.md" %}]], command = { "python3", "{{ bundle }}/tools/count.py" } }"#,
        ),
        ("lib/parts.luau", r#"return require("./deep")"#),
        ("lib/deep.lua", r#"return { require("../top"), require("./../pack") }"#),
        ("top.lua", r#"return require("../outside")"#),
        ("pack/init.luau", r#"return require("./inner")"#),
        ("pack/inner.luau", "return {}"),
        ("agents/a.md", "---\nname: a\n---\n{%- include 'shared/rules.md' %}"),
        ("shared/rules.md", "rules"),
        ("t.md", "t"),
        ("inline.md", "i"),
        ("tools/count.py", "pass"),
        ("commented.lua", ""),
        ("secret.txt", ""),
    ]);
    let bundle = Bundle::load(&directory.path().join("review.lua")).unwrap();
    assert_eq!(
        paths(&bundle),
        [
            "agents/a.md",
            "inline.md",
            "lib/deep.lua",
            "lib/parts.luau",
            "pack/init.luau",
            "pack/inner.luau",
            "review.lua",
            "shared/rules.md",
            "t.md",
            "tools/count.py",
            "top.lua",
        ]
    );
    assert_eq!(bundle.resolve_module("review.lua", "./lib/parts"), Some("lib/parts.luau"));
    assert_eq!(bundle.resolve_module("lib/parts.luau", "./deep"), Some("lib/deep.lua"));
    assert_eq!(bundle.resolve_module("lib/parts.luau", "../top"), Some("top.lua"));
    assert_eq!(bundle.resolve_module("lib/parts.luau", "../t"), None);
    assert_eq!(bundle.resolve_module("lib/parts.luau", "../../top"), None);
    assert_eq!(bundle.resolve_file("./t.md"), Some("t.md"));
}

#[test]
fn a_flow_as_json_brings_its_programs_and_templates() {
    let directory = directory(&[
        (
            "t.json",
            r#"{"x":[[1],2],"agents":{"p":{"command":["sh","{{ bundle }}/go.sh"],"prompt":"it's {% include \"a.md\" %}"}}}"#,
        ),
        ("go.sh", ""),
        ("a.md", "{% include 'b.md' %}"),
        ("b.md", ""),
    ]);
    let bundle = Bundle::load(&directory.path().join("t.json")).unwrap();
    assert_eq!(paths(&bundle), ["a.md", "b.md", "go.sh", "t.json"]);
}

#[test]
fn an_include_in_a_string_with_escapes_is_taken() {
    let directory = directory(&[
        ("a.lua", r#"return { prompt = "{% include \"b.md\" %}" }"#),
        ("b.md", "{% include 'c.md' ignore missing %}{% include 'd.md' ignore missing %}"),
        ("c.md", ""),
    ]);
    let bundle = Bundle::load(&directory.path().join("a.lua")).unwrap();
    assert_eq!(paths(&bundle), ["a.lua", "b.md", "c.md"]);
}

#[test]
fn loading_never_leaves_the_directory() {
    let directory = directory(&[
        (
            "in/a.lua",
            r#"require("../b") require("./../b") require("/etc/x") swarm.template("../b.md")"#,
        ),
        ("b.lua", ""),
        ("b.md", ""),
    ]);
    let bundle = Bundle::load(&directory.path().join("in/a.lua")).unwrap();
    assert_eq!(paths(&bundle), ["a.lua"]);
}

#[cfg(unix)]
#[test]
fn a_symbolic_link_is_refused_wherever_it_stands() {
    let directory = directory(&[
        ("a.lua", r#"require("./link")"#),
        ("b.lua", r#"swarm.template("dir/x.md")"#),
        ("real/x.md", ""),
    ]);
    let at = directory.path();
    std::os::unix::fs::symlink("/etc/hostname", at.join("link.lua")).unwrap();
    std::os::unix::fs::symlink(at.join("real"), at.join("dir")).unwrap();
    for entry in ["a.lua", "b.lua"] {
        let outcome = Bundle::load(&at.join(entry));
        assert!(matches!(outcome, Err(BundleError::Path { .. })), "{entry}: {outcome:?}");
    }
}

#[test]
fn what_is_no_text_file_is_refused_with_its_name() {
    let directory = directory(&[("big.lua", &"-".repeat(MAX_FILE_BYTES + 1))]);
    fs::write(directory.path().join("bin.lua"), [0xff, 0xfe]).unwrap();
    let load = |name: &str| Bundle::load(&directory.path().join(name));
    assert!(matches!(load("bin.lua"), Err(BundleError::NotText(_))));
    assert!(matches!(load("big.lua"), Err(BundleError::FileTooLarge(_))));
    let missing = load("none.lua").unwrap_err();
    assert_eq!(missing.finding("none.lua").code, code::MISSING_FILE);
    assert!(matches!(Bundle::load(directory.path()), Err(BundleError::Io { .. })));
    assert!(matches!(Bundle::load(Path::new("/")), Err(BundleError::Io { .. })));
}

#[test]
fn a_bundle_is_written_out_read_only_and_only_once() {
    let bundle = Bundle::from_files(files(&[("m.lua", "1"), ("a/b.md", "2")]), None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("bundle");
    bundle.write_to(&to).unwrap();
    bundle.write_to(&to).unwrap();
    assert_eq!(fs::read_to_string(to.join("a/b.md")).unwrap(), "2");
    assert!(fs::metadata(to.join("m.lua")).unwrap().permissions().readonly());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}
