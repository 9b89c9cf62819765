//! A coding agent that works on a queue of tasks, with the MCP client alone.

use serde_json::{Value, json};

use crate::{
    client::{Agent, operator},
    support::{Daemon, Shell, send},
};

/// Ten tasks, two at a time; each adds to a list, so that work that counts twice is seen.
const TEN: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "ten",
  agents = { a = { operator = "main-ai", system = "You double.", prompt = "Double {{ n }}.",
    worker = { subagent_type = "doubler" },
    output = { type = "object", properties = { twice = { type = "integer" } },
      required = { "twice" } } } },
  flow = function(ctx)
    local numbers = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }
    return ctx:map(numbers, function(n) return ctx:run("a", { n = n }).twice end,
      { concurrency = 2 })
  end,
}
"#;

/// What an agent remembers of its work: nothing but this survives its process.
struct Worker {
    session: Value,
    after: Option<u64>,
    done: usize,
}

impl Worker {
    /// The next task; what was canceled is dropped.
    async fn next(&mut self, agent: &Agent) -> Option<Value> {
        loop {
            let mut ask = json!({"session": self.session, "wait_seconds": 45});
            if let Some(after) = self.after {
                ask["after"] = after.into();
            }
            let next = agent.ok("next_task", ask).await;
            self.after = next["after"].as_u64();
            match next["kind"].as_str() {
                Some("task") => return Some(next["task"].clone()),
                Some("cancel") => {}
                _ => return None,
            }
        }
    }

    async fn report(&mut self, agent: &Agent, task: &Value) -> Value {
        let prompt = task["prompt"].as_str().unwrap();
        assert_eq!(task["system"], "You double.", "{task}");
        let n: u64 = prompt.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
        let told =
            json!({"session": self.session, "task": task["task"], "output": {"twice": 2 * n}});
        let accepted = agent.ok("report_task", told).await;
        self.done += 1;
        accepted
    }
}

async fn stored(daemon: &Daemon) {
    assert_eq!(send(daemon.put("/v1/blueprints/ten", &json!({"source": TEN}))).await.0, 200);
}

#[tokio::test]
async fn an_agent_takes_ten_tasks_and_loses_its_process_and_nothing_is_lost_or_doubled() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    stored(&daemon).await;
    let token = operator(&daemon).await;
    let env = [("MOONSWARM_TOKEN", token.as_str())];
    let agent = Agent::stdio(&data, &env).await;
    let opened = agent.ok("open_session", json!({})).await;
    assert!(opened.get("token").is_none(), "no token passes through the model: {opened}");
    let run = agent.ok("start_run", json!({"blueprint": "ten"})).await["id"].clone();
    let mut worker = Worker { session: opened["session"].clone(), after: None, done: 0 };
    while worker.done < 4 {
        let task = worker.next(&agent).await.expect("a task comes");
        worker.report(&agent, &task).await;
    }
    let half = worker.next(&agent).await.expect("a task comes");
    agent.kill().await;

    // Another process, which knows the session and nothing else: what was not done comes again.
    let agent = Agent::stdio(&data, &env).await;
    worker.after = None;
    let again = worker.next(&agent).await.expect("the same task");
    assert_eq!(again["task"], half["task"]);
    worker.report(&agent, &again).await;
    assert_eq!(worker.report(&agent, &again).await["repeated"], true, "its answer may be lost");
    worker.done -= 1;
    // The daemon is lost as well.
    daemon.kill();
    let daemon = Daemon::start(&data);
    let agent = Agent::http(&daemon, &token).await;
    while worker.done < 10 {
        let task = worker.next(&agent).await.expect("a task comes");
        worker.report(&agent, &task).await;
    }
    let ended = agent.ok("get_run", json!({"run": run, "wait_seconds": 45})).await;
    assert_eq!(ended["output"], json!([2, 4, 6, 8, 10, 12, 14, 16, 18, 20]), "{ended}");
    let steps = agent.ok("list_steps", json!({"run": run, "limit": 100})).await;
    let tasks = steps["items"].as_array().unwrap().iter().filter(|step| step["name"] == "a");
    let attempts: Vec<_> = tasks.map(|step| step["attempts"].clone()).collect();
    assert_eq!(attempts.len(), 10, "{steps}");
}

#[tokio::test]
async fn a_wrong_output_is_refused_with_what_is_wrong_and_a_declined_task_is_given_back() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    stored(&daemon).await;
    let agent = Agent::http(&daemon, &operator(&daemon).await).await;
    let session = agent.ok("open_session", json!({})).await["session"].clone();
    let none = agent.ok("next_task", json!({"session": session, "wait_seconds": 0})).await;
    assert_eq!((&none["kind"], &none["task"]), (&json!("none"), &Value::Null));
    let run = agent.ok("start_run", json!({"blueprint": "ten"})).await["id"].clone();
    let mut worker = Worker { session: session.clone(), after: None, done: 0 };
    let task = worker.next(&agent).await.unwrap();
    let wrong = json!({"session": session, "task": task["task"], "output": {"twice": "two"}});
    let said = agent.refused("report_task", wrong).await;
    assert!(said.contains("invalid_result") && said.contains("violations"), "{said}");
    let progress = json!({"session": session, "task": task["task"], "text": "half", "percent": 50});
    agent.ok("task_progress", progress).await;
    let ask = json!({"session": session, "task": task["task"], "question": "Which?"});
    agent.ok("ask_senior", ask).await;
    let advice = format!("/v1/tasks/{}/advice", task["task"].as_str().unwrap());
    assert_eq!(send(daemon.post(&advice, &json!({"answer": "this"}))).await.0, 200);
    loop {
        let ask = json!({"session": session, "after": worker.after, "wait_seconds": 45});
        let next = agent.ok("next_task", ask).await;
        worker.after = next["after"].as_u64();
        if next["kind"] == "answer" {
            assert_eq!(next["task"]["answer"], "this");
            assert_eq!(next["task"]["prompt"], task["prompt"], "{next}");
            break;
        }
        assert_eq!(next["kind"], "task", "the other branch of the flow: {next}");
    }
    let no = json!({"session": session, "task": task["task"], "reason": "busy"});
    agent.ok("decline_task", no).await;
    let ended = agent.ok("get_run", json!({"run": run, "wait_seconds": 45})).await;
    assert_eq!(ended["error"]["kind"], "operator_unavailable", "{ended}");
}

#[tokio::test]
async fn the_program_is_a_host_of_its_own_where_there_is_none() {
    let shell = Shell::new();
    let data = shell.path("data");
    let agent = Agent::stdio(&data, &[]).await;
    let flow =
        r#"return require("swarm").blueprint { name = "two", flow = function() return 2 end }"#;
    let run = agent.ok("start_run", json!({"source": flow, "wait_seconds": 45})).await;
    assert_eq!((&run["status"], &run["output"]), (&json!("completed"), &json!(2)));
    let (said, code) = agent.close().await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("a host runs here"), "{said}");
    let daemon = Daemon::start(&data);
    let agent = Agent::stdio(&data, &[]).await;
    assert_eq!(agent.ok("get_run", json!({"run": run["id"]})).await["output"], 2);
    let (said, code) = agent.close().await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("attached to {}", daemon.url)), "{said}");
}

/// A session cannot act on an attempt that it does not have.
#[tokio::test]
async fn a_tool_acts_on_the_attempt_that_it_names() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    stored(&daemon).await;
    let token = operator(&daemon).await;
    let agent = Agent::http(&daemon, &token).await;
    let opened = agent.ok("open_session", json!({})).await;
    agent.ok("start_run", json!({"blueprint": "ten"})).await;
    let mut worker = Worker { session: opened["session"].clone(), after: None, done: 0 };
    let task = worker.next(&agent).await.expect("a task comes");
    assert_eq!(task["attempt"], 1);
    let about = |attempt: u32, more: Value| {
        let mut all = json!({"session": worker.session, "task": task["task"], "attempt": attempt});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    for (tool, more) in [
        ("report_task", json!({"output": {"twice": 0}})),
        ("decline_task", json!({"reason": "no"})),
        ("task_progress", json!({"text": "half"})),
        ("ask_senior", json!({"question": "Which?"})),
    ] {
        let refused = agent.refused(tool, about(2, more)).await;
        assert!(
            refused.contains("fenced") || refused.contains("foreign_task"),
            "{tool}: {refused}"
        );
    }
    agent.ok("task_progress", about(1, json!({"text": "half"}))).await;
    agent.ok("decline_task", about(1, json!({"reason": "later"}))).await;
}
