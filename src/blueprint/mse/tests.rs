use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{draft::Draft, expr::expression, helpers::Helpers, import, lua::quote, *};
use crate::blueprint::tokens::{Kind, Token, tokens};

fn options(trust: bool) -> Options {
    let operators = ["main-ai".to_owned()].into();
    Options { trust, model: None, operators, edition: 1 }
}

fn imported(document: &Value, trust: bool) -> Imported {
    import(document, &options(trust)).unwrap()
}

fn refused(document: &Value) -> String {
    import(document, &options(true)).unwrap_err().to_string()
}

/// A blueprint with an agent `a`, which returns its input.
fn blueprint(flow: Value) -> Value {
    let agent = json!({"name": "a", "kind": "rust_fn", "spec": {"fn_id": "identity"}});
    json!({"id": "b", "flow": flow, "agents": [agent]})
}

fn path(at: &str) -> Value {
    json!({"op": "path", "at": at})
}

fn lit(value: Value) -> Value {
    json!({"op": "lit", "value": value})
}

#[test]
fn each_of_the_20_expressions_has_its_form() {
    let (x, one, text) = (path("$.x"), lit(json!(1)), lit(json!("t")));
    let two = |op: &str, lhs: &Value, rhs: &Value| json!({"op": op, "lhs": lhs, "rhs": rhs});
    let of = |op: &str, arg: &Value| json!({"op": op, "arg": arg});
    for (value, expected) in [
        (path("$.a[\"b.c\"]"), r#"get(doc, "a", "b.c")"#),
        (path("$"), "doc"),
        (lit(json!({"a": [null, -1]})), "{ a = { null, -1 } }"),
        (two("eq", &x, &text), r#"get(doc, "x") == "t""#),
        (two("eq", &x, &path("$.y")), r#"same(get(doc, "x"), get(doc, "y"))"#),
        (two("ne", &x, &lit(json!([]))), r#"not same(get(doc, "x"), swarm.array {})"#),
        (two("lt", &x, &one), r#"get(doc, "x") < 1"#),
        (two("lte", &x, &one), r#"get(doc, "x") <= 1"#),
        (two("gt", &x, &one), r#"get(doc, "x") > 1"#),
        (two("gte", &x, &lit(json!(-1))), r#"get(doc, "x") >= (-1)"#),
        (of("not", &two("lt", &x, &one)), r#"not (get(doc, "x") < 1)"#),
        (
            json!({"op": "and", "args": [x, two("lt", &x, &one)]}),
            r#"truthy(get(doc, "x")) and (get(doc, "x") < 1)"#,
        ),
        (json!({"op": "and", "args": []}), "true"),
        (json!({"op": "or", "args": [x]}), r#"truthy(get(doc, "x"))"#),
        (of("exists", &x), r#"exists(function() return get(doc, "x") end)"#),
        (two("add", &x, &one), r#"number(get(doc, "x")) + 1"#),
        (two("sub", &one, &two("sub", &one, &x)), r#"1 - (1 - number(get(doc, "x")))"#),
        (two("mul", &x, &text), r#"number(get(doc, "x")) * number("t")"#),
        (two("div", &one, &x), r#"1 / divisor(get(doc, "x"))"#),
        (two("mod", &one, &lit(json!(0))), "1 % divisor(0)"),
        (of("len", &x), r#"len(get(doc, "x"))"#),
        (json!({"op": "in", "needle": one, "haystack": x}), r#"contains(get(doc, "x"), 1)"#),
        (
            json!({"op": "call_extern", "ref": "math.sqrt", "args": [one]}),
            r#"externs["math.sqrt"](1)"#,
        ),
    ] {
        let code = expression(&mut Draft::default(), &value, "e", 0).unwrap();
        assert_eq!(code.text, expected, "{value}");
    }
    for wrong in [
        json!({"op": "exec"}),
        json!({"op": "lit"}),
        json!({"op": "not", "arg": x, "more": 1}),
        json!(1),
    ] {
        assert!(expression(&mut Draft::default(), &wrong, "e", 0).is_err(), "{wrong}");
    }
}

#[test]
fn each_of_the_7_nodes_has_its_form_and_an_unknown_one_is_refused() {
    let set = |at: &str| json!({"kind": "let", "at": at, "value": lit(json!(1))});
    let step = json!({"kind": "step", "ref": "a", "in": path("$"), "out": path("$.r")});
    for (node, parts) in [
        (step.clone(), &[r#"doc = put(doc, ctx:run("a", doc), "r")"#][..]),
        (
            json!({"kind": "seq", "children": [set("$.x"), set("ctx.y")]}),
            &[r#"doc = put(doc, 1, "x")"#, r#"doc = put(doc, 1, "y")"#],
        ),
        (
            json!({"kind": "assign", "at": path("$.x"), "value": lit(json!(2))}),
            &[r#"doc = put(doc, 2, "x")"#],
        ),
        (
            json!({"kind": "branch", "cond": path("$.c"), "then": set("$.x"), "else": set("$.y")}),
            &[r#"if boolean(get(doc, "c")) then"#, "else"],
        ),
        (
            json!({"kind": "loop", "counter": path("$.n"), "cond": path("$.c"), "max": 3, "body": set("$.x")}),
            &[r#"while round < 3 and truthy(get(doc, "c")) do"#, r#"doc = put(doc, round, "n")"#],
        ),
        (
            json!({"kind": "try", "body": step, "catch": set("$.x"), "err_at": path("$.e")}),
            &["pcall(function()", "doc = before", r#"put(doc, tostring(problem), "e")"#],
        ),
    ] {
        let lua = imported(&blueprint(node), false).lua;
        for part in parts {
            assert!(lua.contains(part), "{part}\n{lua}");
        }
    }
    for (join, part) in [
        ("all", "ctx:map(list("),
        ("any", "race_lanes(ctx, "),
        ("race", "first_lane(ctx, "),
        ("all_settled", "settle_lanes(ctx, "),
    ] {
        let node = json!({"kind": "fanout", "items": path("$.i"), "bind": path("$.x"), "body": set("$.y"),
            "join": join, "out": path("$.o")});
        assert!(
            imported(&blueprint(node), false).lua.contains(&format!("local joined = {part}")),
            "{join}"
        );
    }
    for (node, why) in [
        (json!({"kind": "goto"}), "unknown node \"goto\""),
        (
            json!({"kind": "step", "ref": "nobody", "in": path("$"), "out": path("$.x")}),
            "import flow.ref: there is no agent",
        ),
        (
            json!({"kind": "seq", "children": [{"kind": "let", "at": "$.r[0]", "value": lit(json!(1))}]}),
            "import flow.children[0]: \"$.r[0]\" is no path",
        ),
        (
            json!({"kind": "step", "ref": "a", "in": path("$"), "out": lit(json!(1))}),
            "only a path can be written to",
        ),
        (
            json!({"kind": "let", "at": "$.x", "value": lit(json!(1)), "when": 1}),
            "unknown key \"when\"",
        ),
    ] {
        let problem = refused(&blueprint(node));
        assert!(problem.contains(why), "{why}: {problem}");
    }
}

#[test]
fn a_flow_that_is_too_deep_or_too_long_is_refused() {
    let mut node = json!({"kind": "seq", "children": []});
    for _ in 0..61 {
        node = json!({"kind": "seq", "children": [node]});
    }
    assert!(refused(&blueprint(node)).contains("levels deep"));
    let one = json!({"kind": "let", "at": "$.x", "value": lit(json!(1))});
    let many = json!({"kind": "seq", "children": vec![one; 10_001]});
    assert!(refused(&blueprint(many)).contains("parts"));
}

#[test]
fn the_runner_of_an_agent_is_found_as_mlua_swarm_finds_it() {
    let runner =
        |variant: &str| json!({"backend": "ws_operator", "variant": variant, "tools": ["Read"]});
    let named = |name: &str| json!({"name": name, "runner": runner(name)});
    let agent = |more: Value| {
        let mut agent =
            json!({"name": "a", "kind": "operator", "spec": {"operator_ref": "main_ai"}});
        agent.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        agent
    };
    for (more, subagent) in [
        (json!({"runner": runner("own"), "runner_ref": "pool"}), "own"),
        (json!({"runner_ref": "pool", "profile": {"worker_binding": "old"}}), "pool"),
        (json!({"profile": {"worker_binding": "old", "tools": ["Read"]}}), "old"),
        (json!({}), "default"),
    ] {
        let document = json!({"id": "b", "flow": {"kind": "seq", "children": []}, "agents": [agent(more)],
            "operators": [{"name": "main_ai"}], "runners": [named("pool"), named("default")], "default_runner": "default"});
        let imported = imported(&document, false);
        let expected =
            format!("worker = {{ subagent_type = \"{subagent}\", tools = {{ \"Read\" }} }}");
        assert!(imported.lua.contains(&expected), "{}", imported.lua);
        assert!(imported.lua.contains("operator = \"main-ai\""), "{}", imported.lua);
        assert_eq!(imported.report.decide, []);
    }
    let none = json!({"id": "b", "flow": {"kind": "seq", "children": []}, "agents": [agent(json!({}))], "operators": [{"name": "main_ai"}]});
    let decide = imported(&none, false).report.decide;
    assert_eq!(decide[0].at, "agents.a");
    assert!(decide[0].what.contains("it has no runner"), "{decide:?}");
}

#[test]
fn a_command_is_a_comment_until_it_is_trusted() {
    let document = json!({"id": "b", "flow": {"kind": "step", "ref": "a", "in": path("$.x"), "out": path("$.y")},
        "agents": [{"name": "a", "kind": "subprocess", "spec": {"program": "shred-it", "args": ["-rf", "{prompt}"]}}]});
    let code = |lua: &str| {
        lua.lines().filter(|it| !it.trim_start().starts_with("--")).collect::<Vec<_>>().join("\n")
    };
    let careful = imported(&document, false);
    assert!(careful.lua.contains("--   command = {"), "{}", careful.lua);
    assert!(!code(&careful.lua).contains("shred-it"), "{}", careful.lua);
    assert!(careful.report.decide[0].what.contains("--trust"));
    let trusted = imported(&document, true);
    let written = code(&trusted.lua);
    assert!(written.contains("operator = \"process\""), "{written}");
    // Arguments that are written out are no templates.
    assert!(
        written.contains("\"shred-it\",\n        \"-rf\",\n        \"{prompt}\","),
        "{written}"
    );
    assert!(trusted.report.decide.is_empty());
}

/// Strings that want to be more than strings.
const HOSTILE: [&str; 8] = [
    "\"] os.execute(\"x\") --[[",
    "x\n os.execute('x') --",
    "]] os.execute('x') --[==[",
    "\\\" .. os.execute('x') .. \\\"",
    "`{os.execute('x')}`",
    "\u{202e}--\u{2028}os.execute('x')\u{7}\r",
    "{{ os.execute('x') }}{% raw %}",
    "end, os.execute(\"x\"), function()",
];

/// A document with such a string in every place that takes one.
fn hostile(text: &str) -> Value {
    let object = json!({text: text, "$step_meta": {"ref": text}, "list": [text, null]});
    let part = format!("$[\"{}\"]", text.replace('"', ""));
    json!({
        "id": text, text: text, "schema_version": text, "default_init_ctx": object, "check_policy": text,
        "metas": [{"name": text, "ctx": object}], "default_agent_ctx": object,
        "metadata": {"description": text, "tags": [text], "project_name_alias": text, text: text},
        "spawner_hints": {"layers": [text]}, "hints": {"global": object},
        "operators": [{"name": text, "display_name": text, "spec": object}],
        "runners": [{"name": text, "runner": {"backend": "ws_operator", "variant": text, "tools": [text]}}],
        "subprocesses": [{"name": text, "argv": [text, "{prompt}", "{system}", text], "stdin": text, "cwd": text,
            "env": {text: text}, "stream_mode": text, "output": {"format": text, "result_ptr": format!("/{text}"), text: text}}],
        "audits": [{"agent": "auditor", "steps": [text], "mode": text}],
        "agents": [
            {"name": text, "kind": "operator", "runner_ref": text, "spec": {"operator_ref": text, text: text},
                "profile": {"system_prompt": text, "model": text, "effort": text, "description": text, text: text},
                "verdict": {"channel": "part", "values": [text]}, "meta": {"ctx": object, "tags": [text], text: text}},
            {"name": "auditor", "kind": "agent_block", "spec": {"script_path": text, "mcp_servers": [text]},
                "profile": {"system_prompt": format!("{text}\n{text}"), "tools": [text]}},
            {"name": "script", "kind": "lua", "spec": {"source": format!("{text}\n{text}"), "label": text}},
            {"name": "named", "kind": "lua", "spec": {"fn_id": text}},
            {"name": "fn", "kind": "rust_fn", "spec": {"fn_id": text}},
            {"name": "program", "kind": "subprocess", "spec": {"program": text, "args": [text], "stream_mode": text}},
            {"name": "template", "kind": "subprocess", "runner": {"backend": "subprocess", "template": text},
                "profile": {"system_prompt": text, "model": text}},
        ],
        "flow": {"kind": "seq", "children": [
            {"kind": "step", "ref": text, "in": lit(object.clone()), "out": path(&part)},
            {"kind": "step", "ref": "template", "in": path(&part), "out": path("$.x")},
            {"kind": "let", "at": part, "value": {"op": "call_extern", "ref": text, "args": [lit(object)]}},
        ]},
    })
}

/// The calls that a blueprint of this room may have.
const CALLS: [&str; 33] = [
    "require",
    "swarm.blueprint",
    "swarm.fail",
    "swarm.array",
    "swarm.agent_md",
    "swarm.json.encode",
    "s.enum",
    "s.object",
    "s.any",
    "ctx:run",
    "ctx:try",
    "ctx:map",
    "ctx:race",
    "ctx:log",
    "ctx:artifact",
    "table.clone",
    "table.concat",
    "utf8.len",
    "string.match",
    "type",
    "pcall",
    "error",
    "tostring",
    "tonumber",
    "getmetatable",
    "next",
    "lane",
    "read",
    "pick",
    "externs[]",
    "put",
    "get",
    "same",
];

/// Everything that a source calls, as `a.b:c`.
fn calls(source: &str) -> Vec<String> {
    const KEYWORDS: [&str; 14] = [
        "and", "do", "else", "elseif", "end", "function", "if", "in", "local", "not", "or",
        "return", "then", "while",
    ];
    let all = tokens(source);
    let name = |token: &Token<'_>| match token.kind {
        Kind::Name(name) if !KEYWORDS.contains(&name) => Some(name.to_owned()),
        _ => None,
    };
    let mut found = Vec::new();
    for (at, token) in all.iter().enumerate().skip(1) {
        let opens =
            token.is_symbol("(") || token.is_symbol("{") || matches!(token.kind, Kind::Text { .. });
        assert!(!matches!(token.kind, Kind::Interpolation { .. }), "an interpolated string");
        if !opens {
            continue;
        }
        let before = &all[at - 1];
        if before.is_symbol("]") && token.is_symbol("(") {
            let inside = at >= 4 && all[at - 4].is_name("externs") && all[at - 2].text().is_some();
            assert!(inside, "a call of an index");
            found.push("externs[]".to_owned());
        } else if before.is_symbol(")") && !token.is_symbol("{") {
            panic!("a call of a result");
        } else if let Some(last) = name(before) {
            let (mut called, mut first) = (last, at - 1);
            while first >= 2 && (all[first - 1].is_symbol(".") || all[first - 1].is_symbol(":")) {
                let Kind::Symbol(sign) = all[first - 1].kind else { break };
                called = format!("{}{sign}{called}", name(&all[first - 2]).unwrap_or_default());
                first -= 2;
            }
            if first == 0 || !all[first - 1].is_name("function") {
                found.push(called);
            }
        }
    }
    found
}

#[test]
fn hostile_strings_become_no_call_that_was_not_mapped() {
    for text in HOSTILE {
        for trust in [false, true] {
            let imported = imported(&hostile(text), trust);
            for called in calls(&imported.lua) {
                let mapped =
                    CALLS.contains(&called.as_str()) || Helpers::names().any(|it| it == called);
                assert!(mapped, "{called}\n{}", imported.lua);
            }
            assert_eq!(imported.lua.matches("require(").count(), 1, "{}", imported.lua);
            assert!(
                !imported.lua.contains(['\r', '\u{7}', '\u{202e}', '\u{2028}']),
                "{}",
                imported.lua
            );
            for (path, text) in &imported.files {
                let normal = |it| matches!(it, std::path::Component::Normal(_));
                assert!(Path::new(path).components().all(normal) && path.is_ascii(), "{path}");
                assert!(path.ends_with(".md") && !text.is_empty());
            }
            assert!(!imported.files.is_empty());
        }
    }
}

#[test]
fn the_test_for_calls_finds_those_that_are_not_mapped() {
    let source =
        "x(1) a.b:c {} d 'x' local function f(g) return h \"y\" end -- no(1)\nlocal s = 'no(2)'";
    assert_eq!(calls(source), ["x", "a.b:c", "d", "h"]);
}

proptest::proptest! {
    #[test]
    fn a_quoted_string_is_one_token_whatever_is_in_it(text in "\\PC*|[\"\\\\\\n\\r\\]\\[={}`-]{0,40}") {
        let quoted = quote(&text);
        let read = tokens(&quoted);
        proptest::prop_assert_eq!(read.len(), 1);
        proptest::prop_assert!(!quoted.contains('\n'));
    }
}

/// A directory with a document, agents, and files outside of it.
fn files() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("secret.txt", "secret");
    write("in/b.json", "{}");
    write("in/note.txt", "a note");
    write(
        "in/agents/r.md",
        "---\nname: r\ntools: Read, Grep\neffort: high\nworker_binding: claude\nabtest: true\n---\nYou\nreview.\n",
    );
    write("in/agents/h.md", "---\nname: h\nhooks: {}\n---\nNo.\n");
    dir
}

fn resolved(dir: &tempfile::TempDir, document: Value) -> Result<(Value, Report), ImportError> {
    let root = dir.path().join("in");
    let directory = Directory::open(&root, &root.join("b.json")).unwrap();
    let mut report = Report::default();
    resolve(document, directory, &mut report).map(|document| (document, report))
}

#[test]
fn a_reference_stays_in_the_directory() {
    let dir = files();
    let (read, report) =
        resolved(&dir, json!({"x": [{"$file": "note.txt"}, "@file:/etc/passwd"]})).unwrap();
    assert_eq!(read, json!({"x": ["a note", "@file:/etc/passwd"]}));
    assert!(report.differs[0].what.contains("is text: no file is read"), "{report:?}");
    let absolute = dir.path().join("secret.txt").display().to_string();
    for path in [
        "../secret.txt",
        "agents/../../secret.txt",
        &absolute,
        "",
        "nothing.txt",
        "link.txt",
        "out/secret.txt",
    ] {
        #[cfg(unix)]
        for (link, to) in [("link.txt", "../secret.txt"), ("out", "..")] {
            let _ = std::os::unix::fs::symlink(to, dir.path().join("in").join(link));
        }
        for key in ["$file", "$agent_md"] {
            let problem = resolved(&dir, json!({"x": {key: path}})).unwrap_err().to_string();
            assert!(problem.contains("directory of the blueprint"), "{path}: {problem}");
        }
        let problem = resolved(&dir, json!({"blueprint_ref_includes": [path], "x": 1}));
        assert!(problem.is_err(), "{path}");
    }
    let (read, _) =
        resolved(&dir, json!({"blueprint_ref_includes": ["agents"], "x": {"$file": "h.md"}}))
            .unwrap();
    assert!(read["x"].as_str().unwrap().ends_with("No.\n"));
}

#[test]
fn an_agent_file_is_an_agent_and_the_keys_beside_it_are_stronger() {
    let dir = files();
    let document = json!({"agents": [{"$agent_md": "agents/r.md", "spec": {"operator_ref": "o"}}]});
    let (read, report) = resolved(&dir, document).unwrap();
    assert_eq!(
        read["agents"][0],
        json!({"name": "r", "spec": {"operator_ref": "o"}, "profile": {"system_prompt": "You\nreview.", "model": null,
            "effort": "high", "tools": ["Read", "Grep"], "description": null, "worker_binding": "claude"}})
    );
    assert!(report.differs[0].what.contains("`abtest`"), "{report:?}");
    let refused = resolved(&dir, json!({"$agent_md": "agents/h.md"})).unwrap_err().to_string();
    assert!(refused.contains("hooks"), "{refused}");
}
