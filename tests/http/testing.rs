//! Tests of blueprints that come with a request.

use serde_json::{Value, json};

use crate::support::{Daemon, Shell, refusal, send};

const SOURCE: &str = r#"local swarm = require("swarm")
local rules = require("./rules")
return swarm.blueprint {
  name = "review",
  agents = { coder = { operator = "main-ai", worker = { subagent_type = "coder" } } },
  flow = function(ctx, input)
    local diff = ctx:run("coder", input)
    if rules.large(diff) then
      return { verdict = "split" }
    end
    return { verdict = "pass", diff = diff }
  end,
}"#;
const RULES: &str =
    "local rules = {}\nfunction rules.large(n)\n  return n > 5\nend\nreturn rules\n";

fn tests(body: &str) -> String {
    format!("local t = require(\"swarm.test\")\n{body}")
}

const PASSES: &str = r#"t.test("a small one passes", function()
  local run = t.start("review.lua", { n = 1 })
  run:mock("coder", function(input) return input.n end)
  print("so", { far = 1 })
  t.equal(run:finish(), { verdict = "pass", diff = 1 })
end)
"#;
const FAILS: &str = r#"t.test("a large one", function()
  local run = t.start("review.lua", { n = 1 })
  run:mock("coder", 2)
  t.equal(run:finish().verdict, "split")
end)
"#;

fn bundle() -> Value {
    json!({ "files": { "review.lua": SOURCE, "rules.lua": RULES }, "entry": "review.lua" })
}

async fn play(daemon: &Daemon, mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (status, answer) = send(daemon.post("/v1/test", &body)).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

#[tokio::test]
async fn tests_come_back_with_their_failures_and_the_lines_that_never_ran() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let both = tests(&format!("{PASSES}{FAILS}"));
    let answer = play(&daemon, bundle(), json!({ "tests": { "review_test.lua": both } })).await;
    assert_eq!(answer["ok"], false);
    assert_eq!(
        (&answer["passed"], &answer["failed"], &answer["skipped"]),
        (&json!(1), &json!(1), &json!(0))
    );
    let file = &answer["files"][0];
    assert_eq!((&file["file"], &file["broken"]), (&json!("review_test.lua"), &Value::Null));
    let (first, second) = (&file["tests"][0], &file["tests"][1]);
    assert_eq!((&first["name"], &first["line"]), (&json!("a small one passes"), &json!(2)));
    assert_eq!((&first["passed"], &first["failure"]), (&json!(true), &Value::Null));
    assert_eq!(first["printed"], json!(["so\t{\"far\":1}"]));
    let failure = &second["failure"];
    assert_eq!(failure["kind"], "assertion");
    assert_eq!((&failure["file"], &failure["line"]), (&json!("review_test.lua"), &json!(11)));
    assert!(failure["message"].as_str().unwrap().contains("expected \"split\", got \"pass\""));
    let coverage = answer["coverage"].as_array().unwrap();
    let flow = coverage.iter().find(|it| it["file"] == "review.lua").unwrap();
    assert_eq!(flow["missed"], json!([[9, 9]]), "{flow}");

    let one = json!({ "tests": { "review_test.lua": tests(&format!("{PASSES}{FAILS}")) }, "filter": "small", "crash": true });
    let answer = play(&daemon, bundle(), one).await;
    assert_eq!((&answer["ok"], &answer["passed"]), (&json!(true), &json!(1)));
    assert!(answer["files"][0]["tests"][0]["crashes"].as_u64().unwrap() > 1, "{answer}");

    let none = json!({ "tests": { "review_test.lua": tests(PASSES) }, "filter": "nobody's" });
    let answer = play(&daemon, bundle(), none).await;
    assert_eq!((&answer["ok"], &answer["passed"]), (&json!(false), &json!(0)));
}

#[tokio::test]
async fn a_stored_blueprint_is_tested_with_what_stands_beside_the_tests() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    assert_eq!(send(daemon.put("/v1/blueprints/review", &bundle())).await.0, 200);
    let test = tests(
        "local cases = require(\"./cases\")\nt.test(\"cases\", function()\n\
         local run = t.start(\"../review.lua\", {})\nrun:mock(\"coder\", cases.large)\n\
         t.snapshot(run:finish(), \"verdict\")\nt.snapshot(1, \"unknown\")\nend)",
    );
    let mut beside = json!({
        "t/review_test.lua": test, "t/cases.lua": "return { large = 9 }",
        "t/snapshots/review_test/verdict.json": "{\n  \"verdict\": \"split\"\n}\n",
    });
    let named = || json!({ "blueprint": "review" });
    let answer = play(&daemon, named(), json!({ "tests": beside })).await;
    assert_eq!(answer["ok"], true, "{answer}");
    let printed = answer["files"][0]["tests"][0]["printed"][0].as_str().unwrap();
    assert!(printed.contains("there is no t/snapshots/review_test/unknown.json"), "{printed}");
    beside["t/snapshots/review_test/verdict.json"] = json!("1\n");
    let answer = play(&daemon, named(), json!({ "tests": beside })).await;
    let said = answer["files"][0]["tests"][0]["failure"]["message"].as_str().unwrap();
    assert!(said.contains("it is not as in t/snapshots/review_test/verdict.json"), "{said}");

    let broken = json!({ "tests": { "a_test.lua": "t.test(", "b_test.lua": tests(PASSES) } });
    let answer = play(&daemon, named(), broken).await;
    assert_eq!((&answer["ok"], &answer["passed"]), (&json!(false), &json!(1)));
    assert!(answer["files"][0]["broken"].as_str().unwrap().contains("a_test.lua:1"), "{answer}");
}

#[tokio::test]
async fn what_is_no_request_to_run_tests_says_why() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let source = json!({ "source": "return 1", "tests": { "a_test.lua": "return 1" } });
    let with = |key: &str, value: Value| {
        let mut body = source.clone();
        body[key] = value;
        body
    };
    let invalid = "invalid_body";
    for (body, status, code) in [
        (json!({ "source": "return 1" }), 422, invalid),
        (json!({ "tests": { "a_test.lua": "" } }), 422, invalid),
        (with("tests", json!({})), 422, invalid),
        (with("tests", json!({ "a.lua": "" })), 422, invalid),
        (with("tests", json!({ "main.lua": "", "a_test.lua": "" })), 422, invalid),
        (with("tests", json!({ "../a_test.lua": "" })), 422, "blueprint_invalid"),
        (with("timeout", json!("11s")), 422, invalid),
        (with("timeout", json!("0s")), 422, invalid),
        (with("timeout", json!("x")), 422, invalid),
        (with("blueprint", json!("x")), 422, invalid),
        (with("test", json!({})), 422, "unknown_field"),
        (json!({ "blueprint": "none", "tests": { "a_test.lua": "" } }), 404, "not_found"),
    ] {
        let refused = refusal(daemon.post("/v1/test", &body)).await;
        assert_eq!(refused, (status, code.to_owned()), "{body}");
    }
    // A blueprint that cannot run is what its test says.
    let test = tests("t.test(\"x\", function() t.start(\"main.lua\") end)");
    let answer =
        play(&daemon, json!({ "source": "return 1" }), json!({ "tests": { "a_test.lua": test } }))
            .await;
    let said = answer["files"][0]["tests"][0]["failure"]["message"].as_str().unwrap();
    assert!(said.contains("MS-B002") && said.contains("main.lua"), "{said}");
}
