//! Findings in the source of a flow: its calls, its habits and its globals.

use super::*;

/// Returns the findings in a flow with this body, each as `column code`.
fn habits(body: &str) -> Vec<String> {
    let source = format!(
        "return swarm.blueprint {{ name = 'n', flow = function(ctx, input)\n{body}\nend }}"
    );
    let found = check_with(&source, &json!({"name": "n", "flow": function()}), &[]).findings;
    found.iter().map(|f| format!("{} {}", f.column, f.code)).collect()
}

#[test]
fn calls_that_do_not_exist_are_found_with_what_was_meant() {
    assert_eq!(habits("ctx:runn('a') ctx.state:gett('k')"), ["5 MS-B080", "25 MS-B080"]);
    assert_eq!(
        habits("ctx:log('info', 'x') ctx.state:get('k') other:thing() local y = ctx.run_id"),
        [""; 0]
    );
    let source = "return swarm.blueprint { name = 'n', flow = function(ctx) ctx:mapp({}) end }";
    let found = check_with(source, &json!({"name": "n", "flow": function()}), &[]).findings;
    assert_eq!(found[0].hint.as_deref(), Some("did you mean `map`?"));
}

#[test]
fn branches_that_nobody_waits_for_are_found() {
    assert_eq!(habits("ctx:spawn(f)"), ["1 MS-B082"]);
    assert_eq!(habits("local f = ctx:spawn(g)"), ["7 MS-B082"]);
    assert_eq!(habits("local f = ctx:spawn(g)\nf:await()"), [""; 0]);
    assert_eq!(habits("return { ctx:spawn(g) }"), [""; 0]);
    assert_eq!(habits("ctx:spawn(function() f({ 1 }) end):await()"), [""; 0]);
    assert_eq!(habits("local r = ctx:spawn(g):await()"), [""; 0]);
    assert_eq!(habits("ctx:spawn(function() f():await() end)"), ["1 MS-B082"]);
}

#[test]
fn loops_without_an_end_are_found() {
    assert_eq!(habits("while true do local x = 1 end"), ["1 MS-B083"]);
    assert_eq!(habits("while true do ctx:sleep(1) for i = 1, 3 do break end end"), ["1 MS-B083"]);
    for fine in [
        "while true do if x then break end end",
        "while true do ctx:sleep(1) if y then return 1 end end",
        "while true do ctx:continue_as(1) end",
        "while x do end",
        "while true do local y = if x then 1 else 2 if y == 2 then break end end",
        "while true do for i = 1, 3 do local y = if a then if b then 1 else 2 else 3 end if y then break end end",
    ] {
        assert_eq!(habits(fine), [""; 0], "{fine}");
    }
}

#[test]
fn what_differs_in_a_replay_is_found_and_names_of_one_s_own_are_not() {
    assert_eq!(
        habits("local t = os.time() local r = math.random(3)"),
        ["11 MS-B084", "31 MS-B084"]
    );
    assert_eq!(
        habits("local os = {} local t = os.time() local x = math.floor(1) local y = a.os.b"),
        [""; 0]
    );
    let own = "local function f(io, n) io.write(n) end for _, debug in pairs(t) do debug.x() end";
    assert_eq!(habits(own), [""; 0]);
    assert_eq!(habits("local x os.time()"), ["9 MS-B084"]);
}

#[test]
fn agents_that_nothing_runs_are_found_unless_names_are_computed() {
    let agents = json!({"a": {"operator": "echo"}, "b": {"operator": "echo"}});
    let tree = json!({"name": "n", "flow": function(), "agents": agents});
    let check = |body: &str| {
        let source = format!(
            "return swarm.blueprint {{ name = 'n', agents = {{ a = x, b = y }}, flow = function(ctx) {body} end }}"
        );
        check_with(&source, &tree, &[])
            .findings
            .iter()
            .map(|f| f.message.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(check("ctx:run('a')"), ["nothing runs the agent `b`"]);
    assert_eq!(check("ctx:run('a') ctx:run(name)"), [""; 0]);
    assert_eq!(check("for _, n in { 'a', 'b' } do ctx:run(n) end"), [""; 0]);
}

#[test]
fn an_agent_that_only_another_agent_of_a_flow_as_json_names_is_not_unused() {
    let tree = json!({"name": "n", "edition": 2, "flow": {"kind": "step", "agent": "coder"},
        "agents": {"coder": {"operator": "echo", "audit": "checker"},
            "checker": {"operator": "echo"}, "idle": {"operator": "echo"}}});
    let files = BTreeMap::from([("t.json".to_owned(), tree.to_string().into())]);
    let bundle = Bundle::from_files(files, Some("t.json")).unwrap();
    let found = check(&tree, &bundle, &Builtin).findings;
    let found: Vec<_> = found.iter().map(|it| it.message.as_str()).collect();
    assert_eq!(found, ["nothing runs the agent `idle`"]);
}

/// The findings about names and calls in a flow with this body, in an edition.
fn in_flow(edition: u32, body: &str, files: &[(&str, &str)]) -> Vec<String> {
    let source = format!(
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"n\", edition = {edition},\nflow = function(ctx, input)\n{body}\nend }}"
    );
    let tree = json!({"name": "n", "edition": edition, "flow": function()});
    let found = check_all(&source, &tree, files).findings;
    found.iter().map(|it| format!("{it}").replace("\n  hint:", " |")).collect()
}

#[test]
fn a_forgotten_ctx_and_other_unknown_globals_say_what_was_meant() {
    for (body, expected) in [
        (
            "return run('e')",
            "a.lua:4:8: error[MS-B085]: unknown global `run` | did you mean `ctx:run(…)`?",
        ),
        (
            "return pritn(1)",
            "a.lua:4:8: error[MS-B085]: unknown global `pritn` | did you mean `print`?",
        ),
        ("local x = foo return x", "a.lua:4:11: warning[MS-B085]: unknown global `foo`"),
        (
            "do local total = 1 end return total + 1",
            "a.lua:4:31: warning[MS-B085]: unknown global `total` | there is a local `total` elsewhere in the file; it does not hold here",
        ),
        (
            "return s.string",
            "a.lua:4:8: error[MS-B085]: unknown global `s` | `local s = swarm.schema`",
        ),
    ] {
        assert_eq!(in_flow(2, body, &[]), [expected], "{body}");
    }
    assert!(in_flow(1, "return run('e')", &[])[0].contains("warning[MS-B085]"));
    let set = [("b.lua", "function helper() end")];
    assert_eq!(in_flow(2, "return helper()", &set), [""; 0]);
    assert_eq!(in_flow(2, "total = 1 return total", &[]), [""; 0]);
}

#[test]
fn arguments_of_ctx_that_are_written_out_are_checked() {
    for (body, expected) in [
        (
            "return ctx:publish('t', {}) or ctx:wait('x', { timout = 5 })",
            "a.lua:4:48: error[MS-B086]: `opts` of `ctx:wait` has no `timout` | did you mean `timeout`?",
        ),
        (
            "return ctx:run('e', {}, { retry = { backof = '1s' } })",
            "`retry` in `opts` of `ctx:run` has no `backof` | did you mean `backoff`?",
        ),
        (
            "return ctx:sleep('5 minutes')",
            "`duration` of `ctx:sleep`: \"5 minutes\" is not a duration",
        ),
        ("return ctx:map('x', print)", "`list` of `ctx:map` must be a table, and is text"),
        ("return ctx:wait()", "`ctx:wait` needs `signal`"),
        ("return ctx:spawn({})", "`fn` of `ctx:spawn` must be a function, and is a table"),
        ("return ctx:approve { body = 'x' }", "`opts` of `ctx:approve` needs `title`"),
        ("return ctx.state:get(1)", "`key` of `ctx.state:get` must be text, and is a number"),
    ] {
        let found = in_flow(2, body, &[]);
        let one = found.iter().any(|it| it.contains("error[MS-B086]") && it.contains(expected));
        assert!(one || found == [expected], "{body}: {found:?}");
    }
    for right in [
        "return ctx:run('e', nil, nil)",
        "return ctx:wait(unpack(input.names))",
        "return ctx:sleep(if input.slow then '1h' else 5)",
        "return ctx:run('e', {}, { timeout = 5, retry = { max_attempts = 2, jitter = false } })",
        "return ctx:dispatch('echo', {}, { timeout = 30, retry = {} })",
        "return ctx:log('info', 5, { a = 1 })",
        "return ctx:all { a = function() return 1 end }",
        "return ctx:run('e', {}, { on_delta = function(piece) end })",
    ] {
        let found = in_flow(2, right, &[]);
        assert!(!found.iter().any(|it| it.contains("MS-B086")), "{right}: {found:?}");
    }
}

#[test]
fn a_module_that_is_not_there_is_found_before_it_is_required() {
    let found = in_flow(2, "return require('rules')", &[("rules.lua", "return 1")]);
    assert_eq!(
        found,
        ["a.lua:4:16: error[MS-B003]: there is no module \"rules\" | did you mean `./rules`?"]
    );
    assert!(in_flow(1, "return require('cjson')", &[])[0].contains("warning[MS-B003]"));
}

#[test]
fn a_second_result_is_a_warning() {
    let found = in_flow(2, "return 1, 2", &[]);
    assert!(found[0].starts_with("a.lua:4:11: warning[MS-B087]"), "{found:?}");
    assert_eq!(in_flow(2, "local f = function() return 1, 2 end return f()", &[]), [""; 0]);
}

#[test]
fn what_is_no_template_may_show_how_files_are_included() {
    let source = "return swarm.blueprint { name = 'n', edition = 2, flow = f, agents = {\n\
                  md = swarm.agent_md('b.md', { operator = 'echo' }),\n\
                  run = { operator = 'process', command = { '{{ bundle }}/c.py' } } } }";
    let text = "Write `{% include 'header.html' %}`.";
    let body = format!("---\nname: b\n---\n{text}\n");
    let found = |template: bool| {
        let tree = json!({"name": "n", "edition": 2, "flow": function(), "agents": {
            "md": {"operator": "echo", "system": text, "template": template},
            "run": {"operator": "process", "command": ["{{ bundle }}/c.py"]}}});
        places(source, &tree, &[("b.md", &body), ("c.py", text)])
    };
    assert_eq!(found(false), [""; 0]);
    assert_eq!(found(true), ["b.md:4:8 MS-B003"]);
    // The same where it is written in the blueprint.
    let source =
        format!("return swarm.blueprint {{ agents = {{ a = {{ system = \"{text}\" }} }} }}");
    let found = |template: bool| {
        let agent = json!({"operator": "echo", "system": text, "template": template});
        let tree = json!({"name": "n", "flow": function(), "agents": {"a": agent}});
        places(&source, &tree, &[])
    };
    assert_eq!(found(false), [""; 0]);
    assert_eq!(found(true), ["a.lua:1:52 MS-B003"]);
}

#[test]
fn keys_of_nodes_that_lua_keeps_for_itself_are_located() {
    let source = "return swarm.blueprint { name = 'n', agents = { a = x },\n \
                  flow = n.branch { if_ = 'nope',\n \
                  then_ = n.step { agent = 'a',\n \
                  input = '{{ gone }}' } } }";
    let step = json!({"kind": "step", "agent": "a", "input": "{{ gone }}"});
    let tree = json!({"name": "n", "agents": {"a": {"operator": "echo"}},
        "flow": {"kind": "branch", "if": "nope", "then": step}});
    assert_eq!(places(source, &tree, &[]), ["a.lua:2:26 MS-B072", "a.lua:4:10 MS-B072"]);
}

#[test]
fn too_many_findings_say_so_and_hide_no_error() {
    let tree = json!({"name": "n", "flow": function()});
    let warnings = "os.a()\n".repeat(300);
    let is_cut = |it: &Finding| it.hint.as_ref().is_some_and(|it| it.contains("not all findings"));
    let errors = |found: &[Finding]| {
        let errors = found.iter().filter(|it| it.is_error());
        errors.map(|it| format!("{}:{} {}", it.file, it.line, it.code)).collect::<Vec<_>>()
    };
    let checked = check_with(&format!("{warnings}ctx:zz()\n"), &tree, &[]);
    assert_eq!(errors(&checked.findings), ["a.lua:301 MS-B080"]);
    let shown = checked.findings.iter().filter(|it| it.code == code::NOT_DETERMINISTIC);
    assert_eq!((shown.count(), checked.findings.iter().filter(|it| is_cut(it)).count()), (200, 1));
    assert_eq!(checked.definition, None);
    // The same for all files together.
    let names: Vec<_> = (0..6).map(|n| format!("b{n}.lua")).collect();
    let mut files: Vec<_> = names.iter().map(|it| (it.as_str(), warnings.as_str())).collect();
    files.push(("z.lua", "ctx:zz()\n"));
    let checked = check_all("", &tree, &files);
    assert_eq!((checked.findings.len(), checked.definition), (1_000, None));
    assert_eq!(errors(&checked.findings), ["z.lua:1 MS-B080"]);
    assert!(is_cut(checked.findings.last().unwrap()));
    // One more than is shown is said as well; as many as are shown are all.
    for (count, cut) in [(200, 0), (201, 1)] {
        let found = check_with(&"os.a()\n".repeat(count), &tree, &[]).findings;
        assert_eq!(found.iter().filter(|it| is_cut(it)).count(), cut, "{count}");
    }
}

#[test]
fn what_is_allowed_takes_no_room_from_what_is_shown() {
    let tree = json!({"name": "n", "flow": function()});
    let shown = |source: &str, tree: &Value, code: &str| {
        let found = check_all(source, tree, &[]).findings;
        let found = found.into_iter().filter(|it| it.code == code);
        found
            .map(|it| (it.line, it.hint.is_some_and(|it| it.contains("not all"))))
            .collect::<Vec<_>>()
    };
    for (mistake, code) in [
        ("os.a()", code::NOT_DETERMINISTIC),
        ("ctx:sleep('x')", code::BAD_ARGUMENT),
        ("return g#()", code::UNKNOWN_GLOBAL),
    ] {
        let one = |n: usize| format!("do {} end", mistake.replace('#', &n.to_string()));
        let allowed = (0..300).map(|n| format!("{} -- allow {code}: an example\n", one(n)));
        let source =
            format!("local function f(ctx)\n{}{}\nend\n", allowed.collect::<String>(), one(300));
        assert_eq!(shown(&source, &tree, code), [(302, false)], "{mistake}");
    }
    let output = json!({"type": "object", "properties": {"verdict": {"enum": ["a", "b", "c"]}}});
    let agents = json!({"review": {"operator": "echo", "output": output}});
    let tree = json!({"name": "n", "flow": function(), "agents": agents});
    let chain = "if r.verdict == 'a' then elseif r.verdict == 'b' then end";
    let allowed = format!("{chain} -- allow MS-B088: an example\n").repeat(100);
    let source =
        format!("return function(ctx)\nlocal r = ctx:run('review')\n{allowed}{chain}\nend");
    assert_eq!(shown(&source, &tree, code::UNHANDLED_VALUE), [(103, false)]);
}

#[test]
fn sources_full_of_mistakes_are_read_in_linear_time() {
    let tree = json!({"name": "n", "flow": function()});
    for piece in ["os.a()\n", "ctx:zz()\n"] {
        let found = check_with(&piece.repeat(40_000), &tree, &[]).findings;
        assert!(found.len() >= 200, "{piece}");
    }
    // Also where all stand in one line that allows them, and where nothing that begins has an end.
    for piece in ["for\n", "while true do\n"] {
        check_with(&piece.repeat(40_000), &tree, &[]);
    }
    let (piece, code) = ("os.a() ".repeat(40_000), code::NOT_DETERMINISTIC);
    let found = check_with(&format!("{piece}-- allow {code}: it's meant"), &tree, &[]).findings;
    assert!(found.iter().all(|it| it.code != code));
    let mut spawned = String::new();
    let mut globals = String::new();
    for n in 0..30_000 {
        spawned.push_str(&format!("local a{n} = ctx:spawn(f)\n"));
        globals.push_str(&format!("known{n} = 1\n"));
    }
    assert!(check_with(&spawned, &tree, &[]).findings.len() >= 200);
    for n in 0..200 {
        globals.push_str(&format!("nowhere{n}.f()\n"));
    }
    assert!(check_all(&globals, &tree, &[]).findings.len() >= 200);
}
