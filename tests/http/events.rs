//! The events of a run: numbered without a gap, whatever happens to the connection and the daemon.

use serde_json::{Value, json};

use crate::{
    feed::Feed,
    support::{Daemon, Shell, send},
};

const FLOW: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "events", agents = { echo = { operator = "echo" } },
  flow = function(ctx)
    for n = 1, 5 do
      ctx:log("info", "round " .. n)
      ctx:run("echo", n)
      ctx:wait("go")
    end
    return "over"
  end }"#;

/// Reads events until `enough` says so, or the stream ends.
async fn read(
    daemon: &Daemon,
    run: &str,
    after: u64,
    enough: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    let path = format!("/v1/runs/{run}/events?starting_after={after}");
    let answer = daemon.get(&path).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let (mut feed, mut events) = (Feed::of(answer), Vec::new());
    while let Some(event) = feed.next().await {
        let over = enough(&event);
        events.push(event);
        if over {
            break;
        }
    }
    events
}

fn numbers(events: &[Value]) -> Vec<u64> {
    events.iter().filter_map(|event| event["seq"].as_u64()).collect()
}

#[tokio::test]
async fn a_stream_goes_on_where_it_broke_off_when_the_daemon_was_killed() {
    let shell = Shell::new();
    let data = shell.path("data");
    let mut daemon = Daemon::start(&data);
    let run = daemon.run_source(FLOW, json!({})).await;
    let mut all = Vec::new();
    for round in 1..=5 {
        let waits =
            |event: &Value| event["type"] == "step.scheduled" && event["data"]["kind"] == "signal";
        let after = numbers(&all).last().copied().unwrap_or(0);
        let read = read(&daemon, &run, after, waits).await;
        assert!(!read.is_empty(), "round {round}");
        all.extend(read);
        daemon.kill();
        daemon = Daemon::start(&data);
        let (status, _) =
            send(daemon.post(&format!("/v1/runs/{run}/signals/go"), &json!(round))).await;
        assert_eq!(status, 204);
    }
    let after = numbers(&all).last().copied().unwrap();
    all.extend(read(&daemon, &run, after, |_| false).await);
    let seen = numbers(&all);
    assert_eq!(seen, (1..=seen.len() as u64).collect::<Vec<_>>());
    assert_eq!(all.last().unwrap()["type"], "run.ended");
    let logs = all.iter().filter(|event| event["type"] == "log").count();
    assert_eq!(logs, 5);
    let again = read(&daemon, &run, 0, |_| false).await;
    assert_eq!(numbers(&again), seen, "the whole history, once more");
    let last = read(&daemon, &run, seen.len() as u64, |_| false).await;
    assert!(last.is_empty(), "{last:?}");
}

#[tokio::test]
async fn a_browser_resumes_with_the_header_it_sends_by_itself() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let flow = FLOW.replace("ctx:wait(\"go\")", "");
    let run = daemon.run_source(&flow, json!({})).await;
    let ended = daemon.ended(&run).await;
    let last = ended["last_event"].as_u64().unwrap();
    let request = daemon.get(&format!("/v1/runs/{run}/events"));
    let answer = request.header("last-event-id", (last - 1).to_string()).send().await.unwrap();
    let text = answer.text().await.unwrap();
    assert_eq!(text.matches("event: ").count(), 1, "{text}");
    assert!(text.contains("event: run.ended") && text.contains(&format!("id: {last}")), "{text}");
}
