//! The page of a step whose agent is a model: its conversation, live.

use reqwest::Method;
use serde_json::json;

use crate::{
    live::Live,
    person::Person,
    support::{
        Daemon,
        provider::{Answer, Bit, Gate, Provider, Turn},
        send,
    },
};

const TALK: &str = r#"
local swarm = require("swarm")
local s = swarm.schema
return swarm.blueprint {
  name = "talk",
  edition = 2,
  agents = {
    it = { operator = "model", system = "You <b>add</b>.", prompt = "Add **1** and 2.", tools = {
      { name = "add", description = "Adds.", input = s.object { a = s.integer, b = s.integer }, approve = "ask",
        fn = function(input) return { sum = input.a + input.b } end },
    } },
  },
  flow = function(ctx) return ctx:run("it", {}) end,
}
"#;

/// Asks for a sum, and says it once the gate is open.
fn provider(gate: &Gate) -> Provider {
    let gate = gate.clone();
    Provider::start(move |number, asked| {
        if number == 0 {
            let calls = vec![("call_1", "add", "{\"a\": 1, \"b\": 2}")];
            let reasoning = "I think of <i>sums</i>.";
            let turn = Turn { reasoning, text: "Let me **see**.", calls };
            return Answer::turn(&turn, &asked.path);
        }
        let turn = Turn::text("It is 3, <script>alert(1)</script> of course");
        let events = turn.events(&asked.path);
        let second = events.iter().position(|it| it.contains("of ")).unwrap();
        let mut bits: Vec<_> = events.into_iter().map(|it| Bit::Send(it.into_bytes())).collect();
        bits.insert(second, Bit::Wait(gate.clone()));
        Answer::stream(bits)
    })
}

#[tokio::test]
async fn a_conversation_is_shown_with_its_tools_approvals_and_what_is_said_now() {
    let dir = tempfile::tempdir().unwrap();
    let gate = Gate::default();
    let provider = provider(&gate);
    let config = format!(
        "[operators.model]\nkind = \"llm\"\napi = \"chat\"\nmodel = \"mock\"\nbase_url = \"{}\"\n\
         allow_hosts = [\"127.0.0.1\"]\n",
        provider.base_url
    );
    let toml = dir.path().join("moonswarm.toml");
    std::fs::write(&toml, config).unwrap();
    let flags = ["--config".as_ref(), toml.as_os_str()];
    let daemon = Daemon::start_with(&dir.path().join("data"), &flags);
    let put = daemon.put("/v1/blueprints/talk", &json!({ "source": TALK }));
    let (status, stored) = send(put).await;
    assert_eq!(status, 200, "{stored}");
    let (_, view) = send(daemon.post("/v1/runs", &json!({ "blueprint": "talk" }))).await;
    let run = view["id"].as_str().unwrap().to_owned();
    daemon.waits(&run, "task").await;
    let desk = Person::of_role(&daemon, "operator").await;
    let path = format!("/ui/runs/{run}/steps/1");
    let page = desk.get(&path).await.page();
    for part in [
        "Conversation",
        "Turn 1",
        "<strong>see</strong>",
        "I think of &lt;i&gt;sums",
        "⚙ <bdi>add</bdi>",
        "<span class=\"key\">b</span>: <span>2</span>",
        "A person is asked",
        "Add <strong>1</strong>",
        "You &lt;b&gt;add",
        "data-live=\"/ui/live/runs/",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let raw = desk.get(&format!("{path}?raw=1")).await.page();
    assert!(raw.contains("Let me **see**.") && !raw.contains("<strong>see"), "{raw}");

    let mut live = Live::of(&daemon, &desk, &format!("/ui/live/runs/{run}/steps/1")).await;
    let (_, tasks) = send(daemon.get("/v1/tasks")).await;
    let task = tasks["items"][0]["id"].as_str().unwrap().to_owned();
    assert!(page.contains(&format!("/ui/inbox/{task}")), "{page}");
    let boss = crate::person::mint(&daemon, "approver", &json!({ "name": "ann" })).await;
    let answer = daemon.with(&boss, Method::POST, &format!("/v1/tasks/{task}/answer"));
    let (status, body) = send(answer.json(&json!({ "output": { "approved": true } }))).await;
    assert_eq!(status, 200, "{body}");
    // The call begins once it is answered, and ends a moment later.
    let html = live.shows("step", "<span class=\"key\">sum</span>: <span>3").await;
    assert!(html.contains("✓ answered by") && html.contains("ann"), "{html}");
    let said = live.shows("step-saying", "alert(1)").await;
    assert!(said.contains("It is 3, &lt;script&gt;") && !said.contains("course"), "{said}");
    gate.open();
    let html = live.shows("step", "of course").await;
    assert!(html.contains("Turn 2") && !html.contains("<script>"), "{html}");
    live.ends().await;
    assert_eq!(daemon.ended(&run).await["status"], "completed");
    let ended = desk.get(&path).await.page();
    assert!(!ended.contains("data-live=") && ended.contains("Turn 2"), "{ended}");
    // The page of a turn and of a call are whole as well.
    for step in 2..=4 {
        desk.get(&format!("/ui/runs/{run}/steps/{step}")).await.page();
    }
}
