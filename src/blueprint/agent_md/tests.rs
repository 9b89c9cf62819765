use serde_json::json;

use super::*;

fn findings(text: &str) -> Vec<String> {
    read("a.md", text).1.iter().map(Finding::to_string).collect()
}

#[test]
fn a_well_formed_file_gives_its_fields() {
    let text = "---\nname: reviewer\ndescription: Reviews code\ntools: Read, Bash(git:*, ls), Grep\nmodel: opus\n---\n\n# Role\nYou review.\n";
    let file = parse("a.md", text).unwrap();
    assert_eq!(
        Value::Object(file.fields),
        json!({"name": "reviewer", "description": "Reviews code", "model": "opus",
            "tools": ["Read", "Bash(git:*, ls)", "Grep"], "system": "# Role\nYou review."})
    );
    assert_eq!(file.body_line, 8);
    let standings: Vec<_> =
        file.report.iter().map(|key| (key.key.as_str(), key.standing)).collect();
    assert_eq!(
        standings,
        [
            ("name", Standing::Enforced),
            ("description", Standing::Enforced),
            ("tools", Standing::Advisory),
            ("model", Standing::Advisory),
        ]
    );
}

#[test]
fn lists_windows_newlines_and_a_byte_order_mark_are_read() {
    let file =
        parse("a.md", "\u{feff}---\r\nname: a\r\ntools:\r\n  - Read\r\n---\r\nBody\r\n").unwrap();
    assert_eq!(
        Value::Object(file.fields),
        json!({"name": "a", "tools": ["Read"], "system": "Body"})
    );
}

#[test]
fn keys_that_run_things_are_refused_and_unknown_ones_reported_together() {
    insta::assert_snapshot!(
        findings("---\nname: a\nhooks:\n  x: y\ntoolss: Read\nmcpServers: {}\n---\n").join("\n")
    );
    let (file, _) = read("a.md", "---\nhooks: 1\n---\n");
    assert_eq!(file.report[0].standing, Standing::Refused);
}

#[test]
fn what_a_queue_or_a_server_needs_can_stand_in_the_file() {
    let text = "---\nname: a\ntool: read_file\nlabels:\n  gpu: \"true\"\n  zone: b\n---\nBody\n";
    let file = parse("a.md", text).unwrap();
    assert_eq!(file.fields["tool"], "read_file");
    assert_eq!(file.fields["labels"], json!({"gpu": "true", "zone": "b"}));
    let wrong = findings("---\nname: a\nlabels: [gpu]\n---\nBody\n");
    assert!(wrong[0].contains("`labels` in the frontmatter is not a list of `name: text` lines"));
}

#[test]
fn an_unquoted_colon_gets_help() {
    insta::assert_snapshot!(
        findings("---\nname: a\ndescription: Reviews \"code\". Use when: it is ready\n---\nBody")
            .join("\n")
    );
}

#[test]
fn what_is_no_frontmatter_is_an_error_with_its_place() {
    for (text, line) in [
        ("# Just text", 1),
        ("---\nname: a\n", 1),
        ("---\n- a\n---\n", 2),
        ("---\nname: a\nname: b\n---\n", 3),
        ("---\nname: [a\n---\n", 2),
        ("---\nname: 3\ntools: {a: b}\n---\n", 2),
    ] {
        let found = parse("a.md", text).unwrap_err();
        assert!(found.line >= line, "{text:?}: {found}");
    }
}

#[test]
fn deep_wide_and_aliased_yaml_is_refused() {
    let deep = format!("---\nname: {}{}\n---\n", "[".repeat(5_000), "]".repeat(5_000));
    let alias = "---\nname: &a [x, x]\ntools: [*a, *a]\n---\n";
    let large = format!("---\nname: {}\n---\n", "x".repeat(MAX_FRONTMATTER_BYTES + 1));
    for text in [deep.as_str(), alias, large.as_str()] {
        assert_eq!(parse("a.md", text).unwrap_err().code, code::BAD_AGENT_FILE);
    }
}

#[test]
fn an_empty_frontmatter_leaves_the_body() {
    assert_eq!(Value::Object(parse("a.md", "---\n---\nx").unwrap().fields), json!({"system": "x"}));
}
