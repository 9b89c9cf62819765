//! Who has a run's tasks: seats, take-overs, the delegate.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    client::{Opened, Socket, blueprint, open},
    support::{Daemon, Shell, eventually, refusal, send, when},
};

const TWO: &str = r#"ctx:run("coder", { n = 1 })
    return ctx:run("coder", { n = 2 })"#;

async fn start(daemon: &Daemon, body: &Value) -> String {
    let (status, view) = send(daemon.post("/v1/runs", body)).await;
    assert_eq!(status, 201, "{view}");
    view["id"].as_str().unwrap().to_owned()
}

async fn pair(daemon: &Daemon) -> [(Opened, Socket); 2] {
    let (a, b) = (open(daemon).await, open(daemon).await);
    let sockets = (a.connect(daemon).await, b.connect(daemon).await);
    [(a, sockets.0), (b, sockets.1)]
}

#[tokio::test]
async fn a_take_over_moves_the_work_and_fences_the_former_holder() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let [(a, mut first), (b, mut second)] = pair(&daemon).await;
    let seats = json!({"main-ai": a.id});
    let run = start(&daemon, &json!({"source": blueprint(TWO), "seats": seats})).await;
    let spawn = first.until("task/spawn").await;
    let task = spawn["params"]["task"].clone();
    first.ask("task/accept", json!({"task": task})).await;

    let taken = second.ask("seat/acquire", json!({"run": run})).await;
    assert_eq!((&taken["session"], &taken["epoch"]), (&json!(b.id), &json!(2)), "{taken}");
    let again = second.ask("seat/acquire", json!({"run": run})).await;
    assert_eq!(again["epoch"], 2, "whoever has it, has it");
    let gone = first.until("task/cancel").await;
    assert_eq!(gone["params"]["task"], task);
    let late = json!({"task": task, "output": "late"});
    assert_eq!(first.refused("task/result", late).await, "fenced");
    let handle = spawn["params"]["handle"].as_str().unwrap();
    let http = daemon.with(handle, Method::POST, "/v1/worker/result");
    assert_eq!(refusal(http.json(&json!({"output": "late"}))).await, (409, "fenced".to_owned()));

    for n in 0..2 {
        let spawn = second.until("task/spawn").await;
        assert_eq!(spawn["params"]["attempt"], if n == 0 { 2 } else { 1 }, "{spawn}");
        second.ask("task/result", json!({"task": spawn["params"]["task"], "output": n})).await;
    }
    let view = daemon.ended(&run).await;
    assert_eq!(view["output"], 1);
    assert_eq!(view["seats"]["main-ai"], json!({"session": b.id, "epoch": 2}), "{view}");
}

#[tokio::test]
async fn two_sessions_without_a_seat_are_a_wait_that_names_its_command() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let [(_a, _first), (b, mut second)] = pair(&daemon).await;
    let run = start(&daemon, &json!({"source": blueprint(r#"return ctx:run("coder", {})"#)})).await;
    let (_, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
    let command = format!("moonswarm seat {run} main-ai <session>");
    assert_eq!(view["waiting_on"][0]["subject"]["session"]["state"], "several", "{view}");
    let shown = shell.run(&["show", &run, "--data", "data"]).ok();
    assert!(shown.stdout.contains(&command), "{shown:?}");
    let done = shell.run(&["seat", &run, "main-ai", &b.id, "--data", "data"]).ok();
    assert!(done.stderr.contains(&b.id), "{done:?}");
    let spawn = second.until("task/spawn").await;
    assert_eq!(spawn["params"]["attempt"], 1, "nobody had it before: {spawn}");
    second.ask("task/result", json!({"task": spawn["params"]["task"], "output": 7})).await;
    assert_eq!(daemon.ended(&run).await["output"], 7);
}

#[tokio::test]
async fn a_run_goes_to_the_session_that_started_it() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let [(_a, mut first), (_b, mut second)] = pair(&daemon).await;
    let body = json!({"source": blueprint(r#"return ctx:run("coder", {})"#)});
    for (socket, output) in [(&mut first, 1), (&mut second, 2)] {
        let run = socket.ask("run/start", body.clone()).await["id"].clone();
        let spawn = socket.until("task/spawn").await;
        assert_eq!(spawn["params"]["run"], run);
        let result = json!({"task": spawn["params"]["task"], "output": output});
        socket.ask("task/result", result).await;
        let ended = socket.ask("run/get", json!({"run": run, "wait": "30s"})).await;
        assert_eq!(ended["output"], output, "{ended}");
    }
}

#[tokio::test]
async fn a_seat_is_taken_by_open_sessions_of_its_operator_only() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let session = open(&daemon).await;
    let run = start(&daemon, &json!({"source": blueprint(r#"ctx:wait("go")"#)})).await;
    let take = |operator: &str, id: &str| {
        daemon.post(&format!("/v1/runs/{run}/seats/{operator}"), &json!({"session": id}))
    };
    assert_eq!(refusal(take("echo", &session.id)).await, (409, "wrong_seat".to_owned()));
    assert_eq!(refusal(take("main-ai", "ses_x")).await, (404, "not_found".to_owned()));
    let (status, taken) = send(take("main-ai", &session.id)).await;
    assert_eq!((status, &taken["epoch"]), (200, &json!(1)), "{taken}");
    let seats = json!({"source": blueprint("return 1"), "seats": {"echo": session.id}});
    assert_eq!(refusal(daemon.post("/v1/runs", &seats)).await, (409, "wrong_seat".to_owned()));
}

#[tokio::test]
async fn a_closed_session_gives_back_what_it_had() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let a = open(&daemon).await;
    let mut first = a.connect(&daemon).await;
    let source = blueprint(
        r#"return ctx:map({ 1, 2 }, function(i) return ctx:run("coder", { n = i }) end)"#,
    );
    let run = start(&daemon, &json!({"source": source})).await;
    let accepted = first.until("task/spawn").await;
    first.until("task/spawn").await;
    first.ask("task/accept", json!({"task": accepted["params"]["task"]})).await;
    assert_eq!(send(daemon.delete(&format!("/v1/sessions/{}", a.id))).await.0, 204);
    assert_eq!(first.end().await.0, 1000);
    assert_eq!(a.try_connect(&daemon, None).await.err().unwrap().0, 401);
    let (_, look) = send(daemon.get(&format!("/v1/sessions/{}", a.id))).await;
    assert!(look["closed_at"].is_string(), "{look}");
    let handle = accepted["params"]["handle"].as_str().unwrap();
    let late = daemon.with(handle, Method::POST, "/v1/worker/result").json(&json!({"output": 0}));
    assert_eq!(refusal(late).await, (409, "fenced".to_owned()));

    let mut second = open(&daemon).await.connect(&daemon).await;
    for _ in 0..2 {
        let spawn = second.until("task/spawn").await;
        assert_eq!(spawn["params"]["attempt"], 2, "{spawn}");
        second.ask("task/result", json!({"task": spawn["params"]["task"], "output": 5})).await;
    }
    assert_eq!(daemon.ended(&run).await["output"], json!([5, 5]));
}

#[tokio::test]
async fn a_delegate_gets_every_task_and_nobody_else_any() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let [(a, mut first), (_b, mut second)] = pair(&daemon).await;
    let source = blueprint(
        r#"local noted = ctx:run("note", { to = "echo" })
           local ship = ctx:approve { title = "Ship?" }
           return { noted = noted, ship = ship, code = ctx:run("coder", {}) }"#,
    );
    let body = json!({"source": source, "delegate": a.id, "seats": {"main-ai": a.id}});
    let run = start(&daemon, &body).await;
    let mut agents = Vec::new();
    for n in 0..3 {
        let spawn = first.until("task/spawn").await;
        agents.push(spawn["params"]["agent"].as_str().unwrap().to_owned());
        let output = if n == 1 { json!({"approved": true}) } else { json!({"n": n}) };
        let task = &spawn["params"]["task"];
        first.ask("task/result", json!({"task": task, "output": output})).await;
    }
    assert_eq!(agents, ["note", "approve", "coder"]);
    let view = daemon.ended(&run).await;
    assert_eq!(view["output"]["noted"], json!({"n": 0}), "echo did not run as well: {view}");
    assert_eq!(view["delegate"], a.id.as_str());
    assert_eq!(second.ask("tasks/list", json!({})).await["items"], json!([]));
    let gone = json!({"source": blueprint("return 1"), "delegate": "ses_gone"});
    assert_eq!(refusal(daemon.post("/v1/runs", &gone)).await, (404, "not_found".to_owned()));
}

#[tokio::test]
async fn a_delegation_whose_session_is_gone_says_so_and_a_seat_moves_it() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let [(a, mut first), (b, mut second)] = pair(&daemon).await;
    let source = blueprint(r#"return { ctx:run("note", { to = "echo" }), ctx:run("coder", {}) }"#);
    let run = start(&daemon, &json!({"source": source, "delegate": a.id})).await;
    first.until("task/spawn").await;
    let (status, _) = send(daemon.delete(&format!("/v1/sessions/{}", a.id))).await;
    assert_eq!(status, 204);
    eventually("a wait that names the closed session", async || {
        let (_, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
        let session = &view["waiting_on"][0]["subject"]["session"];
        when(*session == json!({"state": "closed", "id": a.id}), view)
    })
    .await;
    let shown = shell.run(&["show", &run, "--data", "data"]).ok();
    let command = format!("moonswarm seat {run} main-ai <session>");
    assert!(shown.stdout.contains(&command) || shown.stderr.contains(&command), "{shown:?}");

    let words: Vec<_> =
        command.split(' ').skip(1).map(|it| it.replace("<session>", &b.id)).collect();
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.extend(["--data", "data"]);
    shell.run(&words).ok().says(&[&format!("{} takes every task of {run}", b.id)]);

    for n in 0..2 {
        let spawn = second.until("task/spawn").await;
        let task = &spawn["params"]["task"];
        second.ask("task/result", json!({"task": task, "output": n})).await;
    }
    let view = daemon.ended(&run).await;
    assert_eq!((&view["output"], &view["delegate"]), (&json!([0, 1]), &json!(b.id)), "{view}");
    assert_eq!(view["seats"], Value::Null, "{view}");
}

#[tokio::test]
async fn the_tasks_of_a_delegate_that_is_gone_go_where_the_configuration_says() {
    let shell = Shell::new();
    let file = shell.write("moonswarm.toml", "fallback = [\"seat\", \"only\"]\n");
    let env = [("MOONSWARM_CONFIG", file.to_str().unwrap())];
    let daemon = Daemon::launch(&shell.path("data"), &env).unwrap();
    let [(a, mut first), (_b, mut second)] = pair(&daemon).await;
    let source = blueprint(r#"return { ctx:run("coder", {}), ctx:run("coder", {}) }"#);
    let run = start(&daemon, &json!({"source": source, "delegate": a.id})).await;
    first.until("task/spawn").await;
    let (status, _) = send(daemon.delete(&format!("/v1/sessions/{}", a.id))).await;
    assert_eq!(status, 204);
    // No seat was taken, and the other is the only session that is open.
    for n in 0..2 {
        let spawn = second.until("task/spawn").await;
        let task = &spawn["params"]["task"];
        second.ask("task/result", json!({"task": task, "output": n})).await;
    }
    let view = daemon.ended(&run).await;
    assert_eq!((&view["output"], &view["delegate"]), (&json!([0, 1]), &json!(a.id)), "{view}");
}

#[tokio::test]
async fn a_called_run_has_the_seats_of_its_caller() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let [(a, mut first), (_b, _second)] = pair(&daemon).await;
    let child = blueprint(r#"return ctx:run("coder", { n = 1 })"#).replace("\"team\"", "\"below\"");
    let (status, stored) =
        send(daemon.put("/v1/blueprints/below", &json!({"source": child}))).await;
    assert_eq!(status, 200, "{stored}");
    let source = blueprint(r#"return ctx:call("below")"#);
    let seats = json!({"main-ai": a.id});
    let run = start(&daemon, &json!({"source": source, "seats": seats})).await;

    let spawn = first.until("task/spawn").await;

    let below = spawn["params"]["run"].as_str().unwrap();
    assert_ne!(below, run);
    let (_, view) = send(daemon.get(&format!("/v1/runs/{below}"))).await;
    assert_eq!(
        (&view["parent"], &view["seats"]["main-ai"]["session"]),
        (&json!(run), &json!(a.id))
    );
    first.ask("task/result", json!({"task": spawn["params"]["task"], "output": 5})).await;
    assert_eq!(daemon.ended(&run).await["output"], 5);
}
