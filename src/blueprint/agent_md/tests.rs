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
    assert_eq!(file.body_at.line, 8);
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
fn blanks_behind_the_lines_around_the_frontmatter_do_not_matter() {
    for (begin, end) in [("--- ", "---"), ("---\t ", "--- \t"), ("--- \r", "--- \r")] {
        let text = format!("{begin}\nname: a\n{end}\nBody\n");
        let file = parse("a.md", &text).unwrap();
        assert_eq!(Value::Object(file.fields), json!({"name": "a", "system": "Body"}), "{text:?}");
        assert_eq!(file.body_at.line, 4);
    }
    assert_eq!(findings("--- a\nname: a\n---\n").len(), 1);
}

#[test]
fn the_body_begins_behind_the_blanks_before_it() {
    let (file, _) = read("a.md", "---\nname: a\n---\n \n  Body\n");
    assert_eq!(file.body_at, Position { line: 5, column: 3 });
}

#[test]
fn keys_that_run_things_are_refused_and_unknown_ones_reported_together() {
    insta::assert_snapshot!(
        findings("---\nname: a\nhooks:\n  x: y\ntoolss: Read\nmcpServers: {}\n---\n").join("\n")
    );
    let (file, _) = read("a.md", "---\nhooks: 1\n---\n");
    assert_eq!(file.report[0].standing, Standing::Refused);
}

/// As such files are found: a description over several lines, with colons, quotes and tags.
const WILD: &str = r#"---
name: code-reviewer
description: Use this agent when code was written. Examples: <example>
Context: the user wrote a function.
user: "Please check it: is it right?"
assistant: "I will use the code-reviewer agent"
<commentary>
Since code was written: review it.
</commentary>
</example>
tools: Read, Grep, Agent(explore, plan), Bash(git:*)
model: opus
color: purple
---

You review: carefully.
"#;

#[test]
fn a_description_over_several_lines_with_colons_is_read_as_it_is_written() {
    let file = parse("a.md", WILD).unwrap();
    let description = file.fields["description"].as_str().unwrap();
    assert!(description.starts_with("Use this agent when"), "{description}");
    assert!(description.ends_with("</example>"), "{description}");
    assert!(description.contains("assistant: \"I will"), "{description}");
    assert_eq!(
        file.fields["tools"],
        json!(["Read", "Grep", "Agent(explore, plan)", "Bash(git:*)"])
    );
    assert_eq!(file.fields["model"], "opus");
    assert!(!file.fields.contains_key("color"));
    let color = file.report.iter().find(|it| it.key == "color").unwrap();
    assert_eq!(color.standing, Standing::Advisory);
    let one = parse("a.md", "---\nname: a\ndescription: Use when: ready\n---\nB").unwrap();
    assert_eq!(one.fields["description"], "Use when: ready");
}

#[test]
fn what_is_written_is_read_back_the_same() {
    for text in
        [WILD, "---\nname: a\n---\n", "---\ndescription: \"x: y\"\ntools: []\n---\n\n# A\n---\nb"]
    {
        let fields = parse("a.md", text).unwrap().fields;
        let again = parse("a.md", &write(&fields)).unwrap();
        assert_eq!(again.fields, fields);
        assert_eq!(write(&again.fields), write(&fields));
    }
}

#[test]
fn turns_are_a_limit_of_the_agent_under_each_of_their_names() {
    for (key, value) in [("maxTurns", "30"), ("max_turns", "\"30\""), ("steps", "30")] {
        let file = parse("a.md", &format!("---\nname: a\n{key}: {value}\n---\nB")).unwrap();
        assert_eq!(file.fields["maxTurns"], 30, "{key}");
        assert_eq!(file.report[1].standing, Standing::Enforced);
        assert!(file.report[1].reason.contains("`max_turns`"));
        let again = parse("a.md", &write(&file.fields)).unwrap();
        assert_eq!(again.fields, file.fields);
    }
    for wrong in ["0", "10001", "many", "[1]", "1.5"] {
        let found = findings(&format!("---\nname: a\nmaxTurns: {wrong}\n---\nB"));
        assert!(
            found[0].contains("`maxTurns` in the frontmatter is not a whole number"),
            "{found:?}"
        );
    }
    let twice = findings("---\nname: a\nmaxTurns: 3\nsteps: 4\n---\nB");
    assert!(twice[0].contains("`steps` says `maxTurns` a second time"), "{twice:?}");
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
fn what_stands_below_a_key_is_read_also_beside_a_description_without_quotes() {
    let text = "---\nname: a\ndescription: Looks: everywhere\ntools:\n  - Read\n  - Grep\n\
                lints:\n  all: allow\n---\nBody\n";
    let file = parse("a.md", text).unwrap();
    assert_eq!(file.fields["description"], "Looks: everywhere");
    assert_eq!(file.fields["tools"], json!(["Read", "Grep"]));
    let loose = "---\nname: a\ndescription: Looks: everywhere\nmodel: m\n  x: y\n---\nBody\n";
    assert!(parse("a.md", loose).is_err());
}

#[test]
fn the_effort_and_the_binding_of_a_file_are_kept() {
    let text = "---\nname: a\neffort: high\ntools: Read\nworker_binding: claude\n---\nBody\n";
    let file = parse("a.md", text).unwrap();
    assert_eq!(file.fields["effort"], "high");
    assert_eq!(file.fields["worker"], json!({"subagent_type": "claude", "tools": ["Read"]}));
    assert_eq!(parse("a.md", &write(&file.fields)).unwrap().fields, file.fields);
}

#[test]
fn lines_that_no_key_begins_and_keys_that_run_things_get_no_second_reading() {
    for text in ["---\n: : :\nname: a: b\n---\n", "---\nname: a: b\nhooks: x: y\n---\n"] {
        assert!(parse("a.md", text).is_err(), "{text}");
    }
    insta::assert_snapshot!(
        findings("---\nname: a\nnotes: Reviews code. Use when: it is ready\n---\nBody").join("\n"),
        @r#"
    a.md:3:8: error[MS-B060]: the value of `notes` has a colon in it and no quotes around it
      hint: put it in quotes: `notes: "Reviews code. Use when: it is ready"`
    "#
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
