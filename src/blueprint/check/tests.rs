mod flow;

use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;

/// The operators that always exist.
struct Builtin;

impl Operators for Builtin {
    fn kind(&self, name: &str) -> Option<&str> {
        ["main_ai", "human", "process", "lua", "queue", "echo"]
            .into_iter()
            .find(|kind| kind.replace('_', "-") == name)
    }

    fn requires_worker_binding(&self, name: &str) -> bool {
        name == "main-ai"
    }

    fn is_leased(&self, name: &str) -> bool {
        ["main-ai", "queue"].contains(&name)
    }

    fn names(&self) -> Vec<String> {
        ["main-ai", "human", "process", "lua", "queue", "echo"].map(String::from).into()
    }
}

fn function() -> Value {
    json!({"$function": {"file": "a.lua", "line": 1}})
}

/// Checks a tree against a bundle of `a.lua` with this source and further files. The sources are
/// pieces, so that what they do not declare is no finding.
fn check_with(source: &str, tree: &Value, files: &[(&str, &str)]) -> Checked {
    let mut checked = check_all(source, tree, files);
    checked.findings.retain(|finding| finding.code != code::UNKNOWN_GLOBAL);
    checked
}

fn check_all(source: &str, tree: &Value, files: &[(&str, &str)]) -> Checked {
    let mut all: BTreeMap<String, _> =
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).into())).collect();
    all.insert("a.lua".to_owned(), source.into());
    check(tree, &Bundle::from_files(all, Some("a.lua")).unwrap(), &Builtin)
}

/// The findings as `line:column code`.
fn places(source: &str, tree: &Value, files: &[(&str, &str)]) -> Vec<String> {
    let findings = check_with(source, tree, files).findings;
    findings.iter().map(|f| format!("{}:{}:{} {}", f.file, f.line, f.column, f.code)).collect()
}

/// The findings for one agent `x`, written on line 2 of the source from column 17 on.
fn agent(source: &str, agent: Value) -> Vec<String> {
    let source =
        format!("return swarm.blueprint {{ name = 'n', flow = f,\n agents = {{ x = {source} }} }}");
    let tree = json!({"name": "n", "flow": function(), "agents": {"x": agent}});
    let found = check_with(&source, &tree, &[]).findings;
    assert!(found.iter().all(|f| f.line == 2), "{found:?}");
    found.iter().map(|f| format!("{} {}", f.column, f.code)).collect()
}

#[test]
fn a_source_that_breaks_off_in_a_table_is_checked_without_a_panic() {
    let found = check_with("return swarm.blueprint{agents", &Value::Null, &[]).findings;
    assert!(!found.is_empty());
}

#[test]
fn a_good_blueprint_becomes_a_definition() {
    let tree = json!({"name": "review-loop", "description": "d", "flow": function(),
        "input": {"type": "object", "properties": {"issue": {"type": "string"}}},
        "limits": {"steps": 5000, "depth": 4.0, "wall": "6h"},
        "agents": {
            "coder": {"operator": "main-ai", "system": "{{ issue }} {{ run.input.issue }}", "timeout": "20m", "max_concurrency": 4,
                "worker": {"subagent_type": "coder", "tools": ["Read"]}, "retry": {"max_attempts": 3, "backoff": "2s"}},
            "tests": {"operator": "process", "command": ["cargo", "test"], "check": false, "env": {"A": "b"}, "park": 1.5},
            "sum": {"operator": "lua", "fn": function(), "tools": {}}}});
    let checked = check_with("return swarm.blueprint {}", &tree, &[]);
    assert_eq!(checked.findings, []);
    let definition = checked.definition.unwrap();
    assert_eq!(definition.wall_ms, Some(21_600_000));
    assert_eq!((definition.max_steps, definition.max_depth), (Some(5_000), Some(4)));
    let coder = &definition.agents["coder"];
    assert_eq!((coder.retry.max_attempts, coder.retry.backoff_ms), (3, 2_000));
    assert_eq!((coder.timeout_ms, coder.max_concurrency), (Some(1_200_000), Some(4)));
    assert_eq!(coder.worker.as_ref().unwrap().tools, ["Read"]);
    let tests = &definition.agents["tests"];
    assert_eq!((tests.check, tests.park_ms, tests.env["A"].as_str()), (false, Some(1_500), "b"));
    assert!(definition.agents["sum"].has_fn && definition.agents["sum"].check);
}

#[test]
fn all_findings_come_at_once_in_the_order_of_the_source() {
    let source = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "review loop",
  middlewares = {},
  environment = {},
  agents = {
    coder = { operator = "main-aj", timout = "5m", timeout = "5 minutes" },
    tests = { operator = "process" },
  },
  flow = function(ctx, input)
    local a, b = 1, 2
    if a then b = if a then 1 else 2 end
    ctx:run("codr", { x = 1 })
    return ctx:try("tests")
  end,
  limits = { steps = 0 },
}
"#;
    let tree = json!({"name": "review loop", "middlewares": {}, "environment": {}, "flow": function(), "limits": {"steps": 0},
        "agents": {"coder": {"operator": "main-aj", "timout": "5m", "timeout": "5 minutes"}, "tests": {"operator": "process"}}});
    let checked = check_with(source, &tree, &[]);
    assert_eq!(checked.definition, None);
    let report: Vec<_> = checked.findings.iter().map(Finding::to_string).collect();
    insta::assert_snapshot!(report.join("\n"));
}

#[test]
fn what_is_no_table_is_no_blueprint() {
    for tree in [json!(null), json!(3), json!([]), function()] {
        assert_eq!(places("\nreturn 3", &tree, &[]), ["a.lua:1:1 MS-B002"]);
    }
}

#[test]
fn missing_keys_are_reported_where_the_blueprint_or_the_agent_begins() {
    assert_eq!(
        places("\n return swarm.blueprint {}", &json!({}), &[]),
        ["a.lua:2:9 MS-B012", "a.lua:2:9 MS-B012"]
    );
    assert_eq!(agent("{}", json!({})), ["13 MS-B012"]);
    assert_eq!(
        agent("{ operator = 'echo', worker = {} }", json!({"operator": "echo", "worker": {}})),
        ["38 MS-B012"]
    );
}

#[test]
fn the_flow_must_be_a_function_or_a_node() {
    let source = "return swarm.blueprint { name = 'n', flow = {} }";
    assert_eq!(places(source, &json!({"name": "n", "flow": {}}), &[]), ["a.lua:1:45 MS-B070"]);
    assert_eq!(places(source, &json!({"name": "n", "flow": 3}), &[]), ["a.lua:1:45 MS-B011"]);
}

#[test]
fn wrong_types_are_reported_at_the_value() {
    assert_eq!(
        agent(
            "{ operator = 'process', command = 'ls' }",
            json!({"operator": "process", "command": "ls"})
        ),
        ["51 MS-B011"]
    );
    assert_eq!(
        agent(
            "{ operator = 'process', command = { 'ls', 3 } }",
            json!({"operator": "process", "command": ["ls", 3]})
        ),
        ["59 MS-B011"]
    );
    assert_eq!(agent("{ operator = 3 }", json!({"operator": 3})), ["30 MS-B011"]);
    assert_eq!(agent("3", json!(3)), ["17 MS-B011"]);
    assert_eq!(
        agent("{ operator = 'lua', fn = 'x' }", json!({"operator": "lua", "fn": "x"})),
        ["42 MS-B011"]
    );
}

#[test]
fn operators_and_their_keys_must_fit() {
    assert_eq!(agent("{ operator = 'nope' }", json!({"operator": "nope"})), ["30 MS-B020"]);
    assert_eq!(agent("{ operator = 'main-ai' }", json!({"operator": "main-ai"})), ["30 MS-B021"]);
    assert_eq!(agent("{ operator = 'process' }", json!({"operator": "process"})), ["30 MS-B022"]);
    assert_eq!(agent("{ operator = 'lua' }", json!({"operator": "lua"})), ["30 MS-B023"]);
    assert_eq!(
        agent(
            "{ operator = 'echo', fn = f, queue = 'q' }",
            json!({"operator": "echo", "fn": function(), "queue": "q"})
        ),
        ["38 MS-B024", "46 MS-B024"]
    );
    assert_eq!(
        agent("{ operator = 'queue', queue = 'q' }", json!({"operator": "queue", "queue": "q"})),
        [""; 0]
    );
    let labels = |value: &str| {
        let source = format!("{{ operator = 'queue', labels = {{ gpu = '{value}' }} }}");
        agent(&source, json!({"operator": "queue", "labels": {"gpu": value}}))
    };
    assert_eq!(labels("true"), [""; 0]);
    assert_eq!(labels("a b"), ["48 MS-B013"]);
    assert_eq!(
        agent(
            "{ operator = 'echo', labels = l, tool = 't' }",
            json!({"operator": "echo", "labels": {}, "tool": "t"})
        ),
        ["38 MS-B024", "50 MS-B024"]
    );
}

/// The findings for a blueprint with this `operator` and these agents.
fn by_default(operator: Value, agents: Value) -> Checked {
    let source = format!(
        "return swarm.blueprint {{ name = 'n', flow = f,\n operator = {operator},\n agents = {{ {} }} }}",
        agents
            .as_object()
            .unwrap()
            .keys()
            .map(|name| format!("{name} = a"))
            .collect::<Vec<_>>()
            .join(",\n ")
    );
    let tree = json!({"name": "n", "flow": function(), "operator": operator, "agents": agents});
    check_with(&source, &tree, &[])
}

#[test]
fn agents_without_an_operator_have_that_of_the_blueprint() {
    let agents = json!({"a": {}, "b": {"operator": "human"}});
    let checked = by_default(json!("echo"), agents);
    let found = checked.definition.expect("no finding").agents;
    assert_eq!(found["a"].operator, "echo");
    assert_eq!(found["b"].operator, "human");
}

/// It is reported once, where it is written, however many agents would have it.
#[test]
fn an_unknown_operator_of_the_blueprint_is_reported_once() {
    let places = |checked: Checked| {
        let found = checked.findings.iter();
        found.map(|f| format!("{}:{} {}", f.line, f.column, f.code)).collect::<Vec<_>>()
    };
    let agents = json!({"a": {}, "b": {}, "c": {"operator": "echo"}});
    let wrong = by_default(json!("ehco"), agents);
    assert!(wrong.findings[0].hint.as_deref().unwrap().contains("`echo`"), "{:?}", wrong.findings);
    assert_eq!(places(wrong), ["2:13 MS-B020"]);
    assert_eq!(places(by_default(json!("ehco"), json!({}))), ["2:13 MS-B020"]);
    // What the operator needs is asked of each agent that has it.
    assert_eq!(places(by_default(json!("main-ai"), json!({"a": {}}))), ["3:13 MS-B021"]);
}

#[test]
fn the_effort_of_an_agent_is_kept_and_is_a_text() {
    let of = |effort: Value| {
        by_default(json!("echo"), json!({"a": {"effort": effort}}))
            .definition
            .map(|it| it.agents["a"].effort.clone())
    };
    assert_eq!(of(json!("high")), Some(Some("high".into())));
    assert_eq!(of(json!(3)), None);
    let source = "{ operator = 'echo', effort = 3 }";
    assert_eq!(agent(source, json!({"operator": "echo", "effort": 3})), ["47 MS-B011"]);
}

#[test]
fn a_lease_is_for_workers_outside_of_the_host() {
    for operator in ["echo", "human"] {
        let source = format!("{{ operator = '{operator}', lease = '5m' }}");
        let found = agent(&source, json!({"operator": operator, "lease": "5m"}));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].ends_with("MS-B024"), "{found:?}");
    }
    let of_queue = |more: Value| {
        let mut tree = json!({"operator": "queue", "lease": "5m"});
        tree.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let tree = json!({"name": "n", "flow": function(), "agents": {"x": tree}});
        let source = "return swarm.blueprint { name = 'n', flow = f, agents = { x = { } } }";
        check_with(source, &tree, &[]).definition.expect("no error").agents["x"].lease.unwrap()
    };
    let lease = |attempts| crate::blueprint::definition::Lease { ms: 300_000, attempts };
    assert_eq!(of_queue(json!({})), lease(3));
    let retry = json!({"retry": {"max_attempts": 7}});
    assert_eq!(of_queue(retry), lease(7));
    assert_eq!(of_queue(json!({"retry": {}})), lease(1), "the policy that is written counts");
}

#[test]
fn numbers_durations_and_retries_are_checked() {
    let echo = |source: &str, key: &str, value: Value| {
        agent(
            &format!("{{ operator = 'echo', {source} }}"),
            json!({"operator": "echo", key: value}),
        )
    };
    assert_eq!(echo("max_concurrency = 0", "max_concurrency", json!(0)), ["56 MS-B015"]);
    assert_eq!(echo("max_concurrency = 1.5", "max_concurrency", json!(1.5)), ["56 MS-B015"]);
    assert_eq!(echo("timeout = 'x'", "timeout", json!("x")), ["48 MS-B030"]);
    assert_eq!(echo("timeout = -1", "timeout", json!(-1)), ["48 MS-B030"]);
    assert_eq!(echo("timeout = 0", "timeout", json!(0)), ["48 MS-B030"]);
    assert_eq!(echo("retry = { factor = 0 }", "retry", json!({"factor": 0})), ["57 MS-B031"]);
    assert_eq!(
        echo(
            "retry = { max = '1s', backoff = '2s' }",
            "retry",
            json!({"max": "1s", "backoff": "2s"})
        ),
        ["54 MS-B031"]
    );
    assert_eq!(
        echo("retry = { on_interrupt = 'no' }", "retry", json!({"on_interrupt": "no"})),
        ["63 MS-B031"]
    );
    assert_eq!(echo("retry = { tries = 3 }", "retry", json!({"tries": 3})), ["48 MS-B010"]);
    assert_eq!(echo("model = 'm'", "model", json!("m")), [""; 0]);
    assert_eq!(echo("budget = { x = 1 }", "budget", json!({"x": 1})), ["49 MS-B010"]);
    assert_eq!(echo("budget = { usd = 1 }", "budget", json!({"usd": "-1"})), ["55 MS-B015"]);
    assert_eq!(echo("on = {}", "on", json!({})), ["38 MS-B014"]);
}

#[test]
fn names_are_checked_at_their_keys() {
    let source = "return swarm.blueprint { name = 'n', flow = f, agents = { ['a b'] = { operator = 'echo' } } }";
    let tree = json!({"name": "n", "flow": function(), "agents": {"a b": {"operator": "echo"}}});
    assert_eq!(places(source, &tree, &[]), ["a.lua:1:59 MS-B013"]);
}

#[test]
fn bad_schemas_are_reported_at_the_field_that_is_wrong() {
    let source =
        "{ operator = 'echo', input = s.object { a = s.string, b = s.any { type = 'strin' } } }";
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "strin"}}});
    assert_eq!(agent(source, json!({"operator": "echo", "input": schema})), ["90 MS-B040"]);
    let source = "{ operator = 'echo', input = { path = 'string' } }";
    assert_eq!(
        agent(source, json!({"operator": "echo", "input": {"path": "string"}})),
        ["46 MS-B040"]
    );
    assert_eq!(
        agent("{ operator = 'echo', output = 3 }", json!({"operator": "echo", "output": 3})),
        ["47 MS-B011"]
    );
}

#[test]
fn undefined_slots_are_reported_inside_the_template() {
    let schema = json!({"type": "object", "properties": {"step": {"type": "string"}}});
    let source = "{ operator = 'echo', input = I, prompt = 'Do {{ stepp }} {{ input.step }} {{ input.x }} {{ run.nope }}' }";
    let prompt = "Do {{ stepp }} {{ input.step }} {{ input.x }} {{ run.nope }}";
    assert_eq!(
        agent(source, json!({"operator": "echo", "input": schema, "prompt": prompt})),
        ["65 MS-B051", "94 MS-B051", "108 MS-B051"]
    );
}

#[test]
fn slots_that_default_or_defined_looks_at_are_not_reported() {
    let schema = json!({"type": "object", "properties": {"step": {"type": "string"}}});
    let prompt = "{{ nope | default('') }} {{ (nope | default(''))[:3] }} {{ (input.x | d).y() }} \
                  {% if run.z is defined %}{{ run.z }}{% endif %}";
    let agent =
        |prompt: &str| agent("A", json!({"operator": "echo", "input": schema, "prompt": prompt}));
    assert_eq!(agent(prompt), [""; 0]);
    assert_eq!(agent("{{ nope.x | default(step) }}").len(), 1, "it has no attributes");
    let source =
        "{ operator = 'echo', input = I, prompt = '{{ a | default(1) }}{# {{ a }} #}{{ a }}' }";
    let prompt = "{{ a | default(1) }}{# {{ a }} #}{{ a }}";
    let beside = json!({"operator": "echo", "input": schema, "prompt": prompt});
    let tree = json!({"name": "n", "flow": function(), "agents": {"x": beside}});
    assert_eq!(self::agent(source, beside), ["95 MS-B051"]);
    // Versions with such a prompt were stored without a finding, and still compile.
    assert!(check_with("", &tree, &[]).definition.is_some());
}

#[test]
fn a_template_full_of_undefined_names_says_that_not_all_are_shown() {
    let schema = json!({"type": "object", "properties": {}});
    let prompt: String = (0..20_000).map(|n| format!("{{{{ name{n} }}}}")).collect();
    let agent = json!({"operator": "echo", "input": schema, "prompt": prompt});
    let tree = json!({"name": "n", "flow": function(), "agents": {"x": agent}});
    let found = check_with("", &tree, &[]).findings;
    let cut = found.iter().filter(|it| it.hint.as_ref().is_some_and(|it| it.contains("not all")));
    assert_eq!((found.len(), cut.count()), (200, 1));
}

#[test]
fn without_an_input_schema_any_slot_may_come_with_the_input() {
    let prompt = "{{ whatever }} {{ input.x }} {{ run.input.y }} {{ directive }}";
    assert_eq!(agent("A", json!({"operator": "echo", "prompt": prompt})), [""; 0]);
    let open = json!({"type": "object", "properties": {}, "additionalProperties": true});
    assert_eq!(agent("A", json!({"operator": "echo", "prompt": prompt, "input": open})), [""; 0]);
    let text = json!({"type": "string"});
    assert_eq!(
        agent("A", json!({"operator": "echo", "prompt": prompt, "input": text})),
        ["13 MS-B051"]
    );
}

#[test]
fn templates_are_mapped_to_the_files_that_they_come_from() {
    let source = r#"return swarm.blueprint { name = "n", flow = f, agents = {
  long = { operator = "echo", system = [[
one
{{ broken ]] },
  file = { operator = "echo", system = swarm.template("t.md") },
  md = swarm.agent_md("b.md", { operator = "echo" }),
} }"#;
    let template = "x\n  {{ run.nope }}";
    let tree = json!({"name": "n", "flow": function(), "agents": {
        "long": {"operator": "echo", "system": "one\n{{ broken "},
        "file": {"operator": "echo", "system": template},
        "md": {"name": "b", "operator": "echo", "system": template}}});
    let body = format!("---\nname: b\n---\n\n{template}\n");
    assert_eq!(
        places(source, &tree, &[("t.md", template), ("b.md", &body)]),
        ["a.lua:4:4 MS-B050", "b.md:6:6 MS-B051", "t.md:2:6 MS-B051",]
    );
}

#[test]
fn what_an_agent_file_is_given_besides_is_not_located_in_it() {
    let source = "local opts = { prompt = '{{ run.nope }}' }\n\
                  return swarm.blueprint { name = 'n', flow = f,\n \
                  agents = { x = swarm.agent_md('b.md', opts) } }";
    let agent = json!({"name": "b", "operator": "echo", "system": "S", "prompt": "{{ run.nope }}"});
    let tree = json!({"name": "n", "flow": function(), "agents": {"x": agent}});
    let files = [("b.md", "---\nname: b\n---\nS")];
    assert_eq!(places(source, &tree, &files), ["a.lua:3:13 MS-B051"]);
}

#[test]
fn files_that_are_not_there_and_agent_files_that_are_wrong_are_reported() {
    let source = "require('./gone')\nlocal t = swarm.template 'no.md'\nlocal a = swarm.agent_md('b.md')\nlocal i = \"{% include '../x' %}\"\n";
    let files = [
        ("b.md", "---\nhooks: {}\n---\n"),
        ("c.lua", "ctx:run('who')"),
        ("d.md", "a\n{% include 'e' %}"),
    ];
    let tree = json!({"name": "n", "flow": function()});
    assert_eq!(
        places(source, &tree, &files),
        [
            "a.lua:1:9 MS-B003",
            "a.lua:2:26 MS-B003",
            "a.lua:4:11 MS-B003",
            "b.md:2:1 MS-B062",
            "c.lua:1:9 MS-B025",
            "d.md:2:1 MS-B003",
        ]
    );
}

/// The files of a bundle.
fn all(files: &[(&str, &str)]) -> BTreeMap<String, std::sync::Arc<str>> {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).into())).collect()
}

#[test]
fn includes_in_a_flow_as_json_are_reported_if_they_lead_nowhere() {
    let source = r#"{"name": "n", "edition": 2, "flow": {"kind": "step", "agent": "x"},
 "agents": {"x": {"operator": "echo",
  "prompt": "{% include \"gone.md\" %}{% include \"there.md\" %}", "description": "[[1],"}}}"#;
    let tree: Value = serde_json::from_str(source).unwrap();
    let bundle = Bundle::from_files(all(&[("t.json", source), ("there.md", "")]), Some("t.json"));
    let found = check(&tree, &bundle.unwrap(), &Builtin).findings;
    let found: Vec<_> = found.iter().map(Finding::to_string).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("t.json:3:13: warning[MS-B003]: there is no file \"gone.md\""));
}

#[test]
fn an_include_that_is_not_needed_may_lead_nowhere() {
    let source = "local a = \"{% include \\\"gone.md\\\" %}\"\n\
                  local b = '{# {% include \"no.md\" %} #}{% include \"no.md\" ignore missing %}'";
    let text = "{% raw %}{% include 'no.md' %}{% endraw %}\n{% include 'no/' ~ run.id %}";
    let tree = json!({"name": "n", "flow": function()});
    assert_eq!(places(source, &tree, &[("d.md", text)]), ["a.lua:1:11 MS-B003"]);
    // Versions with such a string were stored without a finding, and still compile.
    assert!(check_with(source, &tree, &[("d.md", text)]).definition.is_some());
}

#[test]
fn only_the_library_has_templates_that_must_be_files() {
    let source = "local mail = require('./mail')\nlocal a = mail.template('hello')\n\
                  local lib = require('swarm')\nlocal b = lib.template('no.md')\n\
                  local c = require('swarm').template('no.md')\n";
    let tree = json!({"name": "n", "flow": function()});
    assert_eq!(
        places(source, &tree, &[("mail.lua", "return {}")]),
        ["a.lua:4:24 MS-B003", "a.lua:5:37 MS-B003"]
    );
}

#[test]
fn a_file_of_the_bundle_that_a_command_names_and_that_is_not_there_is_a_warning() {
    let check = |argument: &str, variable: &str| {
        let source = format!(
            "return swarm.blueprint {{ name = 'n', flow = f, agents = {{ x = {{ operator = 'process',\n \
             command = {{ 'sh', '{argument}' }}, env = {{ LIB = '{variable}' }} }} }} }}"
        );
        let agent = json!({"operator": "process", "command": ["sh", argument],
            "env": {"LIB": variable}});
        let tree = json!({"name": "n", "flow": function(), "agents": {"x": agent}});
        let checked = check_with(&source, &tree, &[("go.sh", ""), ("lib/a.py", "")]);
        assert!(checked.definition.is_some(), "{:?}", checked.findings);
        let found = checked.findings.iter();
        found.map(|it| format!("{}:{} {}", it.line, it.column, it.code)).collect::<Vec<_>>()
    };
    for missing in ["{{ bundle }}/gone.sh", "{{bundle}}/gone.sh --all", "{{ bundle }}/../go.sh"] {
        assert_eq!(check(missing, "x"), ["2:21 MS-B003"], "{missing}");
    }
    assert_eq!(check("x", "{{ bundle }}/libs:/usr/lib"), ["2:42 MS-B003"]);
    for right in [
        "{{ bundle }}/go.sh",
        "{{ bundle }}/go.sh --all; true",
        "{{ bundle }}/./lib/",
        "{{ bundle }}/lib:/usr/lib",
        "{{ bundle }}/",
        "{{ bundle }}",
        "{{ bundle }}/{{ input.name }}.sh",
        "{{ bundle }}/lib/*.py",
    ] {
        assert_eq!(check(right, right), [""; 0], "{right}");
    }
}

#[test]
fn what_is_built_elsewhere_is_located_where_it_is_used() {
    let source = "local x = { operator = 'nope' }\nreturn swarm.blueprint({ name = 'n', flow = f, agents = { x = x } })";
    let tree = json!({"name": "n", "flow": function(), "agents": {"x": {"operator": "nope"}}});
    assert_eq!(places(source, &tree, &[]), ["a.lua:2:59 MS-B020"]);
    let source = "return build()";
    assert_eq!(places(source, &tree, &[]), ["a.lua:1:1 MS-B020"]);
}

#[test]
fn functions_inside_of_the_table_do_not_confuse_the_places() {
    let source = r#"return swarm.blueprint {
  name = "n",
  flow = function(ctx)
    while x do if a then return { operator = 1 } elseif b then c() else d() end end
    for i = 1, if q then 1 elseif r then 2 else 3 do repeat local z = `{ {1, 2} } {"}"}` until i end
    return (function() return if a then if b then 1 else 2 else 3 end)()
  end,
  limits = { wall = "x" },
}"#;
    let tree = json!({"name": "n", "flow": function(), "limits": {"wall": "x"}});
    assert_eq!(places(source, &tree, &[]), ["a.lua:8:21 MS-B030"]);
}

#[test]
fn hostile_sources_and_templates_are_read_in_linear_time_and_little_stack() {
    let tree = json!({"name": "n", "flow": function()});
    for piece in ["{", "(", "`{", "{%", "[=", "if ", "\"{% include '"] {
        let deep =
            format!("return swarm.blueprint {}{}", piece.repeat(12_000), ")}".repeat(12_000));
        check_with(&deep, &tree, &[("t.md", &piece.repeat(12_000))]);
    }
    let chains =
        ["{{ (", "{{ [", "{{ not ", "{{ -", "{{ a|a", "{{ a.a", "{% if a %}", "{% elif a %}"];
    for chain in chains {
        let piece = chain.trim_start_matches("{{ ");
        let deep = format!("{{% if a %}}{chain}{}", piece.repeat(50_000));
        let tree = json!({"name": "n", "flow": function(), "agents": {"x": {"operator": "echo", "prompt": deep}}});
        assert!(!check_with("", &tree, &[]).findings.is_empty());
    }
}

#[test]
fn a_schema_as_deep_as_values_can_be_is_compiled() {
    let schema = (0..100).fold(
        json!({"type": "string"}),
        |inner, _| json!({"type": "object", "properties": {"a": inner}}),
    );
    let tree = json!({"name": "n", "flow": function(), "input": schema});
    assert_eq!(check_with("", &tree, &[]).findings, []);
}

#[test]
fn overrides_of_an_agent_file_are_located_in_their_table() {
    let source = r#"local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint {
  name = "n",
  agents = {
    reviewer = swarm.agent_md("b.md", { operator = "echo", timeout = "soon",
      output = s.object { verdict = s.enum { "pass", "blocked" } } }),
  },
  flow = function(ctx) return ctx:run("reviewer") end,
}"#;
    let tree = json!({"name": "n", "flow": function(), "agents": {"reviewer":
        {"name": "b", "system": "x", "operator": "echo", "timeout": "soon"}}});
    let files = [("b.md", "---\nname: b\n---\nx")];
    assert_eq!(places(source, &tree, &files), ["a.lua:6:70 MS-B030"]);
}

#[test]
fn a_chain_over_the_listed_values_of_an_output_handles_each_or_has_an_else() {
    let agent = |values: Value| {
        let verdict = json!({"enum": values});
        let output = json!({"type": "object", "properties": {"verdict": verdict}});
        json!({"operator": "echo", "output": output})
    };
    let agents = json!({"review": agent(json!(["pass", "blocked", "unsure"])),
        "other": agent(json!(["pass", "blocked"]))});
    let tree = json!({"name": "n", "flow": function(), "agents": agents});
    let found = |body: &str| {
        let source = format!(
            "return function(ctx)\nlocal r = ctx:run(\"review\", {{}})\n\
             local o = ctx:run(\"other\", {{}})\n{body}\nend"
        );
        places(&source, &tree, &[])
    };
    let chain = |end: &str| {
        format!(
            "if r.verdict == \"pass\" then ctx:log(\"a\")\n\
             elseif r.verdict == 'blocked' then\n\
             for i = 1, 2 do if i == 1 then repeat local x = {{ \"end\" }} until x end end\n{end}"
        )
    };
    assert_eq!(found(&chain("end")), ["a.lua:4:1 MS-B088"]);
    for handled in [
        chain("else ctx:log(\"b\") end"),
        chain("elseif r.verdict == \"unsure\" then ctx:log(\"b\") end"),
        chain("elseif r.sure then ctx:log(\"b\") end"),
        chain("end").replace("r.verdict", "o.verdict"),
        chain("end").replace("r.verdict", "o.r.verdict"),
        "if r.verdict == \"pass\" then ctx:log(\"a\") end".to_owned(),
        format!("r = o\n{}", chain("end")),
        format!("local function f(r)\n{}\nend", chain("end")),
        format!("for _, r in ipairs({{}}) do\n{}\nend", chain("end")),
        "return if r.verdict == \"pass\" then 1 elseif r.verdict == \"blocked\" then 2 else 3"
            .into(),
    ] {
        assert_eq!(found(&handled), [""; 0], "{handled}");
    }
}

#[test]
fn findings_are_bounded() {
    let source = "ctx:run('nobody')".repeat(5_000);
    let found = check_all(&source, &json!({"name": "n", "flow": function()}), &[]).findings;
    assert_eq!(found.len(), MAX_FINDINGS);
}

/// Any JSON, often with the keys that the checker looks at.
fn any_tree() -> impl Strategy<Value = Value> {
    let keys = "name|flow|agents|input|output|limits|operator|system|prompt|retry|worker|command|env|timeout|fn|properties|type|default|items|[$]ref|[$]function|a/b~|";
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[{%}a-z\"'. #/é]{0,12}".prop_map(Value::from),
        "echo|process|lua|main-ai|object|array|#|[{][{] input.x [}][}]|5m".prop_map(Value::from),
        Just(function()),
    ];
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys, inner), 0..6)
                .prop_map(|entries| Value::Object(Map::from_iter(entries))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn no_tree_and_no_source_makes_the_check_panic(
        tree in any_tree(),
        agent in any_tree(),
        source in "(return swarm.blueprint|[{]|[}]|[(]|[)]|name|=|agents|'x'|\\[|\\]|,|end|function|if|then|else|`|\n| ){0,40}",
    ) {
        check_with(&source, &tree, &[]);
        let tree = json!({"name": "n", "flow": function(), "agents": {"x": agent}});
        let checked = check_with(&source, &tree, &[]);
        prop_assert_eq!(checked.definition.is_some(), !checked.findings.iter().any(Finding::is_error));
    }
}
