//! Tasks for people over HTTP: forms, several answers, and who may give one.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, eventually, refusal, send};

const ASKS: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "asks",
  agents = { own = { operator = "queue", queue = "q" } },
  flow = function(ctx)
    ctx:all {
      work = function() return ctx:run("own", 1) end,
      ask = function()
        return ctx:approve { title = "Ship it?", by = { "ann", "bob" }, required = 2, timeout = "1h" }
      end,
    }
    return "shipped"
  end }"#;

/// The one open task of a kind.
async fn open(daemon: &Daemon, kind: &str) -> Value {
    eventually(&format!("an open task of kind {kind}"), async || {
        let (_, list) = send(daemon.get(&format!("/v1/tasks?kind={kind}"))).await;
        list["items"].as_array().unwrap().first().cloned().ok_or(list)
    })
    .await
}

async fn named(daemon: &Daemon, name: &str) -> String {
    let body = json!({"role": "approver", "ttl": "1h", "name": name});
    let (status, minted) = send(daemon.post("/v1/tokens", &body)).await;
    assert_eq!(status, 201, "{minted}");
    minted["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn two_named_people_answer_what_they_were_shown_and_a_worker_never() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = daemon.run_source(ASKS, json!(null)).await;
    let listed = open(&daemon, "human").await;
    assert_eq!((&listed["required"], &listed["by"]), (&json!(2), &json!(["ann", "bob"])));
    let path = format!("/v1/tasks/{}", listed["id"].as_str().unwrap());
    let (_, task) = send(daemon.get(&path)).await;
    let names: Vec<&str> = task["form"]["fields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|field| field["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"approved") && names.contains(&"note"), "{task}");
    assert!(task["expires_at"].is_string(), "{task}");

    let lease = json!({"queue": "q", "wait": "20s"});
    let (_, leased) = send(daemon.post("/v1/worker/lease", &lease)).await;
    let handle = leased[0]["handle"].as_str().unwrap().to_owned();
    let (ann, bob) = (named(&daemon, "ann").await, named(&daemon, "bob").await);
    let answer = |token: &str, body: Value| {
        daemon.with(token, Method::POST, &format!("{path}/answer")).json(&body)
    };
    let yes = json!({"output": {"approved": true}, "revision": task["revision"]});
    let said = |code: &str| (403, code.to_owned());
    assert_eq!(refusal(answer(&handle, yes.clone())).await, said("self_approval"));
    assert_eq!(refusal(answer(&daemon.token, yes.clone())).await, said("wrong_role"));
    let stale = json!({"output": {"approved": true}, "revision": "0000000000000000"});
    assert_eq!(refusal(answer(&ann, stale)).await, (409, "stale_task".to_owned()));
    let wrong = json!({"output": {"approved": "yes"}});
    assert_eq!(refusal(answer(&ann, wrong)).await, (422, "invalid_result".to_owned()));

    let (status, open) = send(answer(&ann, yes.clone())).await;
    assert_eq!((status, &open["state"]), (200, &json!("pending")), "{open}");
    assert_eq!(open["answers"][0]["by"], "ann", "{open}");
    let again = refusal(answer(&ann, yes.clone())).await;
    assert_eq!(again, (409, "already_answered".to_owned()));
    let (_, done) = send(answer(&bob, yes)).await;
    assert_eq!(done["state"], "completed", "{done}");
    let result = daemon.with(&handle, Method::POST, "/v1/worker/result");
    assert_eq!(send(result.json(&json!({"output": 1}))).await.0, 200);
    assert_eq!(daemon.ended(&run).await["output"], "shipped");
}

#[tokio::test]
async fn a_task_asks_a_person_in_any_case_of_the_name() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let source = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "asks", flow = function(ctx)
          ctx:approve { title = "Ship it?", by = { "Ann", "Bob" }, required = 2 }
          return "shipped" end }"#;
    let run = daemon.run_source(source, json!(null)).await;
    let task = open(&daemon, "human").await;
    let path = format!("/v1/tasks/{}/answer", task["id"].as_str().unwrap());
    let answer = |token: &str| {
        let yes = json!({"output": {"approved": true}});
        daemon.with(token, Method::POST, &path).json(&yes)
    };
    let (ann, again) = (named(&daemon, "ann").await, named(&daemon, "Ann").await);
    let asked = async |token: &str| {
        let (_, list) = send(daemon.with(token, Method::GET, "/v1/tasks?mine=true")).await;
        list["items"].as_array().unwrap().len()
    };
    assert_eq!((asked(&ann).await, asked(&again).await), (1, 1));
    assert_eq!(send(answer(&ann)).await.0, 200);
    assert_eq!(refusal(answer(&again)).await, (409, "already_answered".to_owned()));
    assert_eq!((asked(&ann).await, asked(&again).await), (0, 0));
    let eve = named(&daemon, "eve").await;
    assert_eq!(refusal(answer(&eve)).await, (403, "wrong_role".to_owned()));
    let bob = named(&daemon, "bob").await;
    assert_eq!(send(answer(&bob)).await.0, 200);
    assert_eq!(daemon.ended(&run).await["output"], "shipped");
}

#[tokio::test]
async fn the_inbox_of_a_person_has_nothing_that_another_token_of_theirs_has_answered() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let source = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "asks", flow = function(ctx)
          ctx:approve { title = "Ship it?", by = "approver", required = 2 }
          return "shipped" end }"#;
    let run = daemon.run_source(source, json!(null)).await;
    let task = open(&daemon, "human").await;
    let path = format!("/v1/tasks/{}/answer", task["id"].as_str().unwrap());
    let unnamed = async || {
        let (status, minted) =
            send(daemon.post("/v1/tokens", &json!({"role": "approver", "ttl": "1h"}))).await;
        assert_eq!(status, 201, "{minted}");
        minted["token"].as_str().unwrap().to_owned()
    };
    let answer = |token: &str| {
        let yes = json!({"output": {"approved": true}});
        daemon.with(token, Method::POST, &path).json(&yes)
    };
    let asked = async |token: &str| {
        let (_, list) = send(daemon.with(token, Method::GET, "/v1/tasks?mine=true")).await;
        list["items"].as_array().unwrap().len()
    };
    let (one, two, bob) = (unnamed().await, unnamed().await, named(&daemon, "bob").await);
    assert_eq!((asked(&one).await, asked(&two).await), (1, 1));
    assert_eq!(send(answer(&one)).await.0, 200);
    assert_eq!(refusal(answer(&two)).await, (409, "already_answered".to_owned()));
    assert_eq!((asked(&one).await, asked(&two).await, asked(&bob).await), (0, 0, 1));
    assert_eq!(send(answer(&bob)).await.0, 200);
    assert_eq!(daemon.ended(&run).await["output"], "shipped");
}

#[tokio::test]
async fn an_operator_ends_the_time_for_an_answer_and_an_approver_does_not() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let source = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "asks", flow = function(ctx)
          local ok, err = pcall(function() return ctx:approve { title = "x" } end)
          return err.kind end }"#;
    let run = daemon.run_source(source, json!(null)).await;
    let task = open(&daemon, "human").await;
    let path = format!("/v1/tasks/{}/expire", task["id"].as_str().unwrap());
    let ann = named(&daemon, "ann").await;
    let refused = refusal(daemon.with(&ann, Method::POST, &path)).await;
    assert_eq!(refused, (403, "forbidden_verb".to_owned()));
    let (status, expired) = send(daemon.with(&daemon.token, Method::POST, &path)).await;
    assert_eq!((status, &expired["state"]), (200, &json!("failed")), "{expired}");
    assert_eq!(daemon.ended(&run).await["output"], "timeout");
    let again = refusal(daemon.with(&daemon.token, Method::POST, &path)).await;
    assert_eq!(again, (409, "run_closed".to_owned()));
}

#[tokio::test]
async fn the_inbox_has_what_asks_me_and_what_was_answered() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let mint = async |name: &str| {
        let body = json!({ "role": "approver", "ttl": "1h", "name": name });
        let (_, minted) = send(daemon.post("/v1/tokens", &body)).await;
        minted["token"].as_str().unwrap().to_owned()
    };
    let (ann, bob) = (mint("ann").await, mint("bob").await);
    for who in ["ann", "bob"] {
        let source = format!(
            r#"return require("swarm").blueprint {{ name = "asks", agents = {{ ask = {{ operator = "human", prompt = "Ship?", by = "{who}" }} }},
              flow = function(ctx) return ctx:run("ask", {{}}) end }}"#
        );
        let run = daemon.run_source(&source, json!({})).await;
        daemon.waits(&run, "task").await;
    }
    let list = async |token: &str, query: &str| {
        let (status, list) =
            send(daemon.with(token, Method::GET, &format!("/v1/tasks?{query}"))).await;
        assert_eq!(status, 200, "{list}");
        list["items"].as_array().unwrap().clone()
    };
    assert_eq!(list(&ann, "").await.len(), 2);
    let [mine] = list(&ann, "mine=true").await.try_into().unwrap();
    assert_eq!(mine["by"], json!(["ann"]));
    assert!(list(&ann, "status=answered").await.is_empty());
    // By the words of the prompt, the agent and the summary; of all tasks, or of those that ask me.
    assert_eq!(list(&ann, "q=SHIP").await.len(), 2);
    assert_eq!(list(&ann, "q=ship+ask&mine=true").await.len(), 1);
    assert!(list(&ann, "q=ship+it").await.is_empty());
    let [first] = list(&ann, "q=ship&limit=1").await.try_into().unwrap();
    let page = send(daemon.with(&ann, Method::GET, "/v1/tasks?q=ship&limit=1")).await.1;
    let next = format!("q=ship&limit=1&cursor={}", page["next_cursor"].as_str().unwrap());
    let [second] = list(&ann, &next).await.try_into().unwrap();
    assert_ne!(first["id"], second["id"]);
    let wrong = daemon.with(&ann, Method::GET, "/v1/tasks?q=%20*");
    assert_eq!(refusal(wrong).await, (400, "bad_query".to_owned()));
    let path = |task: &Value| format!("/v1/tasks/{}/answer", task["id"].as_str().unwrap());
    let answer =
        daemon.with(&ann, Method::POST, &path(&mine)).json(&json!({ "output": "my secret words" }));
    assert_eq!(send(answer).await.0, 200);
    let [other] = list(&bob, "mine=true").await.try_into().unwrap();
    let reject = daemon.with(&bob, Method::POST, &path(&other)).json(&json!({ "reject": "no" }));
    assert_eq!(send(reject).await.0, 200);

    let all = list(&ann, "status=answered").await;
    let said: Vec<_> = all
        .iter()
        .map(|it| (it["by"].as_str().unwrap(), it["outcome"].as_str().unwrap()))
        .collect();
    assert_eq!(said, [("bob", "rejected"), ("ann", "answered")], "the newest first");
    assert!(!json!(all).to_string().contains("secret words"), "{all:?}");
    assert_eq!(list(&ann, "state=answered&q=BOB").await.len(), 1);
    assert!(list(&ann, "state=answered&q=bob+ann").await.is_empty());
    let own = list(&ann, "state=answered&mine=true").await;
    assert_eq!((own.len(), &own[0]["id"]), (1, &mine["id"]));
    let first = send(daemon.with(&ann, Method::GET, "/v1/tasks?status=answered&limit=1")).await.1;
    let cursor = first["next_cursor"].as_str().unwrap().replace(' ', "%20");
    let rest = list(&ann, &format!("status=answered&limit=1&cursor={cursor}")).await;
    assert_eq!(rest[0]["by"], "ann");
    let wrong = daemon.with(&ann, Method::GET, "/v1/tasks?status=answered&kind=human");
    assert_eq!(refusal(wrong).await, (400, "bad_query".to_owned()));
    let worker = daemon.with("wh_x", Method::GET, "/v1/tasks?status=answered");
    assert_eq!(refusal(worker).await.0, 401);
}
