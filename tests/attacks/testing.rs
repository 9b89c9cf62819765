//! Tests of blueprints that somebody else wrote: the host runs them, and they can neither stay, nor
//! grow, nor reach anything of the host.

use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, PATIENCE, Shell, eventually, send, when};

/// The address space of the daemon.
const SPACE: u64 = 3 << 30;
/// The memory by which requests to run tests may make it grow, in bytes.
const GROWTH: u64 = 700 << 20;

/// A blueprint whose flow and agent are Lua.
fn blueprint(flow: &str) -> String {
    format!(
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"it\", agents = {{\n\
         calc = {{ operator = \"lua\", fn = function(input) if input == \"stay\" then while true do end end return input end }},\n\
         work = {{ operator = \"process\", command = {{ \"sh\", \"-c\", \"env > marker; cat\" }} }} }},\n\
         flow = function(ctx, input) {flow} end }}"
    )
}

/// A request to run one test with this body, on a blueprint with this flow.
fn body(flow: &str, test: &str) -> Value {
    let test = format!(
        "local t = require(\"swarm.test\")\nt.test(\"it\", function()\nlocal run = t.start(\"main.lua\", {{}})\n{test}\nend)"
    );
    json!({ "source": blueprint(flow), "tests": { "a_test.lua": test }, "timeout": "1s" })
}

/// Runs tests; returns the answer.
async fn play(daemon: &Daemon, body: &Value) -> Value {
    let (status, answer) = send(daemon.post("/v1/test", body)).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The failure of the only test, or why its file was broken.
fn failure(answer: &Value) -> String {
    let file = &answer["files"][0];
    let found = file["broken"].as_str().or(file["tests"][0]["failure"]["message"].as_str());
    found.unwrap_or_else(|| panic!("it passed: {answer}")).to_owned()
}

#[tokio::test]
async fn a_test_without_an_end_is_ended_wherever_it_stays() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let ever = "while true do end";
    let rows = [
        ("return 1", ever, "a_test.lua:4: the test ran for more than"),
        (
            "return 1",
            "while true do pcall(function() while true do end end) end",
            "ran for more than",
        ),
        ("return 1", "while true do pcall(run.status, run) end", "took longer than 1000 ms"),
        (ever, "run:finish()", "main.lua:5: the script ran for more than"),
        ("while true do ctx:sleep(\"1d\") end", "run:finish()", "took longer than 1000 ms"),
        (
            "return ctx:run(\"calc\", \"stay\")",
            "run:finish()",
            "main.lua:3: the agent ran for more than",
        ),
        (
            "return ctx:run(\"calc\", 1)",
            "run:mock(\"calc\", function() while true do end end) run:finish()",
            "ran for more than",
        ),
        ("while true do ctx:run(\"calc\", 1) end", "run:finish()", "took longer than 1000 ms"),
    ];
    for (flow, test, why) in rows {
        let answer = play(&daemon, &body(flow, test)).await;
        let found = failure(&answer);
        // On a busy machine the wall clock may be the first to end it.
        let is_ended = found.contains(why) || found.contains("took longer than 1000 ms");
        assert!(is_ended, "{test}: {found}");
        assert_eq!(answer["ok"], false);
        let took = answer["files"][0]["tests"][0]["took_ms"].as_u64().unwrap();
        assert!(took < 8_000, "{test}: {took} ms");
    }
    let mut whole = body("return 1", "");
    whole["tests"] = json!({ "a_test.lua": ever });
    assert!(failure(&play(&daemon, &whole).await).contains("a_test.lua:1: the test ran for more"));
    // All repetitions of a test share its time.
    let mut crashes = body("for i = 1, 500 do ctx:run(\"calc\", i) end", "run:finish()");
    crashes["crash"] = json!(true);
    let found = failure(&play(&daemon, &crashes).await);
    assert!(found.contains("took longer than"), "{found}");
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn a_test_that_grows_is_ended_and_the_host_keeps_its_size() {
    let shell = Shell::new();
    let daemon = Daemon::start_within(SPACE, &shell.path("data"), &[]);
    let before = daemon.resident();
    let rows = [
        ("return 1", "local all = {} while true do all[#all + 1] = (\"x\"):rep(1e6) .. #all end"),
        (
            "local all = {} while true do all[#all + 1] = (\"x\"):rep(1e6) .. #all end",
            "run:finish()",
        ),
        (
            "local i = 0 while true do i += 1 ctx.state:set(\"k\" .. i, (\"x\"):rep(1e6)) end",
            "run:finish()",
        ),
        ("while true do ctx:run(\"calc\", (\"x\"):rep(3e6)) end", "run:finish()"),
        ("return 1", "local i = 0 while true do i += 1 run:mock(\"a\" .. i, (\"x\"):rep(3e6)) end"),
        ("return 1", "while true do t.start(\"main.lua\", (\"x\"):rep(3e6)) end"),
        (
            "local all = {} for i = 1, 1000 do all[i] = function() return ctx:run(\"work\", (\"x\"):rep(1e6)) end end return #ctx:all(all)",
            "run:mock(\"work\", 1) run:finish()",
        ),
        ("while true do ctx:artifact(\"a\", (\"x\"):rep(3e6)) end", "run:finish()"),
        (
            "for i = 1, 100 do ctx:run(\"calc\", (\"x\"):rep(1e5)) end ctx:wait(\"go\")",
            "local all = {} while true do all[#all + 1] = run:steps() end",
        ),
    ];
    for (flow, test) in rows {
        let mut it = body(flow, test);
        it["timeout"] = json!("5s");
        let found = failure(&play(&daemon, &it).await);
        let grown = daemon.resident().saturating_sub(before);
        assert!(grown < GROWTH, "{test}: {} MiB more: {found}", grown >> 20);
    }
    let (status, host) = send(daemon.get("/readyz")).await;
    assert_eq!(status, 200, "{host}");
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn what_a_test_prints_and_names_is_cut() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let rows = [
        ("return 1", "while true do print((\"x\"):rep(1000)) end"),
        ("return 1", "while true do print(1) run:status() end"),
        ("return 1", "for i = 1, 100 do print((\"x\"):rep(1e5)) end error((\"y\"):rep(1e6))"),
        ("while true do ctx:log((\"x\"):rep(1e5)) ctx:sleep(1) end", "run:finish()"),
        ("return 1", "while true do pcall(t.snapshot, 1, (\"x\"):rep(1e5)) end"),
    ];
    for (flow, test) in rows {
        let answer = play(&daemon, &body(flow, test)).await;
        let size = answer.to_string().len();
        assert!(size < 64 << 10, "{test}: {size} bytes");
    }
    // So few that a debug build on a busy machine reads the file within half of a test's time: a file
    // that takes longer is broken, and none of its tests runs.
    let many = "local t = require(\"swarm.test\")\nfor i = 1, 600 do\n\
                t.test((\"é\"):rep(200) .. i, function() error((\"y\"):rep(1e5)) end)\nend";
    let mut body = body("return 1", "");
    body["timeout"] = json!("10s");
    body["tests"] = json!({ "a_test.lua": many });
    let answer = play(&daemon, &body).await;
    assert_eq!(answer["files"][0]["broken"], Value::Null, "{answer}");
    // At most 200 are run; on a slow machine their time ends before.
    let count = |key: &str| answer[key].as_u64().unwrap();
    assert!((1..=200).contains(&count("failed")), "{}", count("failed"));
    assert_eq!(count("failed") + count("skipped"), 600);
    let size = answer.to_string().len();
    assert!(size < 512 << 10, "{size} bytes");
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn a_test_reaches_nothing_of_the_host() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let stored = blueprint("return 7").replace("name = \"it\"", "name = \"kept\"");
    let put = daemon.put("/v1/blueprints/kept", &json!({ "source": stored }));
    assert_eq!(send(put).await.0, 200);
    let state = json!({ "value": "of the host" });
    assert_eq!(send(daemon.put("/v1/state/global/k", &state)).await.0, 200);
    let run = daemon
        .run_source(&blueprint("return { id = ctx:artifact(\"a\", \"of the host\") }"), Value::Null)
        .await;
    let artifact = daemon.ended(&run).await["output"]["id"].clone();

    // Files: only those of the request.
    let own = data.display();
    for path in
        ["/etc/passwd", "../../../etc/passwd", "moonswarm.db", &format!("{own}/moonswarm.db")]
    {
        for call in ["t.start", "t.blueprint", "run:mock_recorded"] {
            let call =
                format!("{call}({path:?})").replace("run:mock_recorded(", "run:mock_recorded(");
            let found = failure(&play(&daemon, &body("return 1", &call)).await);
            assert!(
                found.contains("there is no") || found.contains("not found"),
                "{call}: {found}"
            );
        }
    }
    // Blueprints, state and artifacts of the host.
    let call = body("return ctx:call(\"kept\", {})", "run:finish()");
    let found = failure(&play(&daemon, &call).await);
    assert!(found.contains("there is no blueprint kept") || found.contains("not found"), "{found}");
    let seen = "t.equal(run:finish(), { nothing = true })";
    let answer = play(
        &daemon,
        &body("return { nothing = ctx.state:get(\"k\", { scope = \"global\" }) == nil }", seen),
    )
    .await;
    assert_eq!(answer["ok"], true, "{answer}");
    let read = format!("return ctx:read_artifact({artifact})");
    let found = failure(&play(&daemon, &body(&read, "run:finish()")).await);
    assert!(!found.contains("of the host"), "{found}");
    // Programs: a task of one is an error, and the sandbox has no other way.
    let answer = play(&daemon, &body("return ctx:run(\"work\", 1)", "run:finish()")).await;
    assert!(failure(&answer).contains("nobody answers for the agent `work`"), "{answer}");
    for call in ["os.execute", "io.open", "os.getenv", "loadstring", "debug.getregistry"] {
        let gone = format!("t.ok(not pcall(function() return {call}(\"x\") end)) run:finish()");
        let answer = play(&daemon, &body("return 1", &gone)).await;
        assert_eq!(answer["ok"], true, "{call}: {answer}");
    }
    // Nothing of it is left: no run, no version, no file.
    let (_, runs) = send(daemon.get("/v1/runs")).await;
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "{runs}");
    let (_, listed) = send(daemon.get("/v1/blueprints")).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    let mut left = vec![data.clone()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(name != "marker" && name != "snapshots", "{}", path.display());
            if path.is_dir() {
                left.push(path);
            }
        }
    }
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn an_account_has_one_place_and_who_goes_away_leaves_it() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = |name: &'static str| {
        let asked = json!({ "role": "operator", "name": name, "ttl": "1h" });
        let daemon = &daemon;
        async move {
            send(daemon.post("/v1/tokens", &asked)).await.1["token"].as_str().unwrap().to_owned()
        }
    };
    let (ada, bob) = (token("ada").await, token("bob").await);
    let long = body("return 1", "while true do pcall(run.status, run) end");
    let of = |token: &str| daemon.with(token, Method::POST, "/v1/test").json(&long);
    let hundred = join_all((0..100).map(|_| async {
        let answer = of(&ada).send().await.unwrap();
        let after = answer.headers().get("retry-after").is_some();
        (answer.status().as_u16(), after)
    }));
    let (statuses, other) =
        tokio::join!(hundred, async { of(&bob).send().await.unwrap().status() });
    assert_eq!(other.as_u16(), 200, "another account has a place of its own");
    let played = statuses.iter().filter(|(status, _)| *status == 200).count();
    assert!((1..50).contains(&played), "{statuses:?}");
    assert!(statuses.iter().all(|it| *it == (200, false) || *it == (429, true)), "{statuses:?}");

    // A child has the account of its parent.
    let child = daemon
        .with(&ada, Method::POST, "/v1/tokens")
        .json(&json!({ "role": "operator", "ttl": "1h" }));
    let child = send(child).await.1["token"].as_str().unwrap().to_owned();
    let mut ten = long.clone();
    ten["timeout"] = json!("10s");
    let short = json!({ "source": blueprint("return 1"), "tests": { "a_test.lua":
        "local t = require(\"swarm.test\") t.test(\"x\", function() t.start(\"main.lua\", {}):finish() end)" } });
    let gone = async {
        // The child may have the place at that moment.
        loop {
            let asked = daemon.with(&ada, Method::POST, "/v1/test").json(&ten);
            match asked.timeout(Duration::from_secs(3)).send().await {
                Ok(answer) => assert_eq!(answer.status().as_u16(), 429),
                Err(gone) => break gone,
            }
        }
    };
    let refused = eventually("the child is refused", async || {
        let (status, answer) =
            send(daemon.with(&child, Method::POST, "/v1/test").json(&short)).await;
        when(status == 429 && answer["code"] == "busy", answer)
    });
    let (gone, ()) = tokio::join!(gone, refused);
    assert!(gone.is_timeout(), "the client gave up: {gone}");
    let free = async {
        eventually("the place is free again", async || {
            let (status, answer) =
                send(daemon.with(&ada, Method::POST, "/v1/test").json(&short)).await;
            when(status == 200, answer)
        })
        .await;
    };
    assert!(tokio::time::timeout(PATIENCE, free).await.is_ok());
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn tests_need_their_verb_and_a_stored_blueprint_needs_its_scope() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let put = daemon.put("/v1/blueprints/it", &json!({ "source": blueprint("return 1") }));
    assert_eq!(send(put).await.0, 200);
    let test = "local t = require(\"swarm.test\") t.test(\"x\", function() t.start(\"main.lua\", {}):finish() end)";
    let named = json!({ "blueprint": "it", "tests": { "a_test.lua": test } });
    let posted = json!({ "source": blueprint("return 1"), "tests": { "a_test.lua": test } });
    let asked = async |grant: Value, body: &Value| {
        let (status, made) = send(daemon.post("/v1/tokens", &grant)).await;
        assert_eq!(status, 201, "{made}");
        let token = made["token"].as_str().unwrap();
        let (status, answer) = send(daemon.with(token, Method::POST, "/v1/test").json(body)).await;
        (status, answer["code"].as_str().unwrap_or_default().to_owned())
    };
    let operator = |more: Value| {
        let mut grant = json!({ "role": "operator", "ttl": "1h" });
        grant.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        grant
    };
    let fine = (200, String::new());
    let no_verb = (403, "forbidden_verb".to_owned());
    assert_eq!(asked(operator(json!({})), &named).await, fine);
    assert_eq!(asked(operator(json!({ "verbs": ["blueprint.test"] })), &posted).await, fine);
    assert_eq!(asked(operator(json!({ "verbs": ["blueprint.test"] })), &named).await, no_verb);
    assert_eq!(asked(operator(json!({ "verbs": ["blueprint.check"] })), &posted).await, no_verb);
    assert_eq!(asked(json!({ "role": "observer", "ttl": "1h" }), &posted).await, no_verb);
    let other = operator(json!({ "scopes": ["blueprint:other"] }));
    assert_eq!(asked(other, &named).await, (403, "forbidden_scope".to_owned()));
    assert_eq!(daemon.stop(), Some(0));
}
