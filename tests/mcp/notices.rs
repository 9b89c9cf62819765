//! Notices of changes: subscriptions of every revision, over both transports.

use std::time::Duration;

use reqwest::Method;
use rmcp::{
    model::{
        ServerNotification, SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams,
    },
    service::{Subscription, SubscriptionEnd},
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    client::{Agent, mint, older, operator},
    support::{Daemon, Shell, eventually, send, when},
};

/// Takes signals until one of them says that it is the last.
const STEPS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint { name = "steps", flow = function(ctx)
  repeat
    local said = ctx:wait("go")
    ctx:status("at " .. tostring(said.n))
  until said.last
end }
"#;

fn tool(name: &str, text: &str) -> Value {
    let source = format!(
        r#"return require("swarm").blueprint {{ name = "{name}", description = "{text}", mcp = true,
          flow = function() return 1 end }}"#
    );
    json!({ "source": source })
}

async fn started(daemon: &Daemon) -> String {
    daemon.run_source(STEPS, json!(null)).await
}

async fn go(daemon: &Daemon, run: &str, n: u32, last: bool) {
    let path = format!("/v1/runs/{run}/signals/go");
    let sent = send(daemon.post(&path, &json!({ "n": n, "last": last }))).await;
    assert_eq!(sent.0, 204, "{}", sent.1);
}

fn of_run(run: &str) -> SubscriptionFilter {
    SubscriptionFilter::builder().resource_subscription(format!("moonswarm://runs/{run}")).build()
}

fn of_tools() -> SubscriptionFilter {
    SubscriptionFilter::builder().tools_list_changed().build()
}

/// The next notice: the URI of a resource, or a list; none where the subscription has ended.
async fn next(subscription: &mut Subscription) -> Option<String> {
    let next = tokio::time::timeout(Duration::from_secs(30), subscription.next()).await;
    match next.expect("a notice comes").unwrap()? {
        ServerNotification::ResourceUpdatedNotification(it) => Some(it.params.uri),
        ServerNotification::ToolListChangedNotification(_) => Some("tools".to_owned()),
        ServerNotification::PromptListChangedNotification(_) => Some("prompts".to_owned()),
        ServerNotification::ResourceListChangedNotification(_) => Some("resources".to_owned()),
        other => panic!("{other:?}"),
    }
}

/// The status text of a run, as the client reads it.
async fn text_of(agent: &Agent, run: &str) -> Value {
    let read = agent.read(&format!("moonswarm://runs/{run}")).await.unwrap();
    let run: Value = serde_json::from_str(read["text"].as_str().unwrap()).unwrap();
    run["status_text"].clone()
}

#[tokio::test]
async fn a_change_right_after_the_confirmation_is_never_missed() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let token = operator(&daemon).await;
    let agents = [
        Agent::http(&daemon, &token).await,
        Agent::stdio(&data, &[("MOONSWARM_TOKEN", token.as_str())]).await,
    ];
    for agent in agents {
        let run = started(&daemon).await;
        for n in 1..=8 {
            let mut heard = agent.listen(of_run(&run)).await;
            go(&daemon, &run, n, n == 8).await;
            let uri = next(&mut heard).await;
            assert_eq!(uri.as_deref(), Some(&*format!("moonswarm://runs/{run}")), "{n}");
            // The last of a burst of changes has a notice as well.
            let what = format!("at {n}");
            while text_of(&agent, &run).await != json!(what) {
                next(&mut heard).await;
            }
            heard.cancel().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_step_and_a_file_of_a_run_are_watched_and_their_end_is_told() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let agent = Agent::http(&daemon, &operator(&daemon).await).await;
    let run = started(&daemon).await;
    daemon.waits(&run, "signal").await;
    let steps = agent.ok("list_steps", json!({ "run": run })).await;
    let seq = steps["items"][0]["seq"].as_u64().unwrap();
    let step = format!("moonswarm://runs/{run}/steps/{seq}");
    let filter = SubscriptionFilter::builder().resource_subscriptions([
        step.clone(),
        "moonswarm://docs/flows.md".to_owned(),
        format!("moonswarm://runs/{run}/steps/999"),
        "moonswarm://nothing".to_owned(),
    ]);
    let mut heard = agent.listen(filter.build()).await;
    let accepted = heard.acknowledged().resource_subscriptions.clone().unwrap();
    assert_eq!(accepted, ["moonswarm://docs/flows.md".to_owned(), step.clone()]);
    go(&daemon, &run, 1, true).await;
    assert_eq!(next(&mut heard).await, Some(step));
    daemon.ended(&run).await;
    let mut heard = agent.listen(of_run(&run)).await;
    assert_eq!(send(daemon.delete(&format!("/v1/runs/{run}"))).await.0, 204);
    heard.cancel().await.unwrap();
    let heard = agent.listen(of_run(&run)).await;
    assert_eq!(heard.acknowledged().resource_subscriptions, None, "it exists no more");
}

#[tokio::test]
async fn the_list_of_tools_changes_with_the_blueprints_that_are_tools() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let token = operator(&daemon).await;
    let env = [("MOONSWARM_TOKEN", token.as_str())];
    let http = Agent::http(&daemon, &token).await;
    let mut pipe = Agent::piped(&data, &env, older()).await;
    let mut heard = http.listen(of_tools()).await;
    assert_eq!(heard.acknowledged(), &of_tools());
    let put = async |name: &str, body: Value| {
        let (status, answer) = send(daemon.put(&format!("/v1/blueprints/{name}"), &body)).await;
        assert_eq!(status, 200, "{answer}");
    };
    // What is no tool is no change; what an agent saves is none.
    put("steps", json!({ "source": STEPS })).await;
    let saved = tool("saved", "Saved.")["source"].clone();
    let writes = ["blueprint.write", "blueprint.read"];
    let writer = json!({"role": "admin", "ttl": "1h", "verbs": writes});
    let writer = Agent::http(&daemon, &mint(&daemon, writer).await).await;
    writer.ok("save_blueprint", json!({ "name": "saved", "source": saved })).await;
    put("one", tool("one", "First.")).await;
    assert_eq!(next(&mut heard).await.as_deref(), Some("tools"));
    assert_eq!(pipe.hears().await, "tools");
    let names = pipe.names().await;
    assert!(names.contains(&"one".to_owned()) && !names.contains(&"saved".to_owned()), "{names:?}");
    put("one", tool("one", "Second.")).await;
    assert_eq!(next(&mut heard).await.as_deref(), Some("tools"));
    assert_eq!(pipe.hears().await, "tools");
    assert_eq!(send(daemon.post("/v1/blueprints/one/archive", &json!(null))).await.0, 200);
    assert_eq!(next(&mut heard).await.as_deref(), Some("tools"));
    assert_eq!(pipe.hears().await, "tools");
    assert!(!http.names().await.contains(&"one".to_owned()));
    assert_eq!(pipe.heard_more(), None, "one notice a change");
}

/// A blueprint with this key `mcp`.
fn offered(name: &str, key: &str) -> Value {
    let source = format!(
        r#"return require("swarm").blueprint {{ name = "{name}", description = "Offered.",
          mcp = {key}, flow = function() return "said" end }}"#
    );
    json!({ "source": source })
}

#[tokio::test]
async fn the_lists_of_prompts_and_resources_change_with_their_blueprints() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let token = operator(&daemon).await;
    let newest = Agent::http(&daemon, &token).await;
    let env = [("MOONSWARM_TOKEN", token.as_str())];
    let mut pipe = Agent::piped(&data, &env, older()).await;
    let mut session = Agent::speaking(&daemon, &token, older()).await;
    let filter = SubscriptionFilter::builder().prompts_list_changed().resources_list_changed();
    let mut heard = newest.listen(filter.build()).await;
    let changes = [
        ("ask", r#"{ prompt = true }"#, "prompts"),
        ("note", r#"{ uri = "notes://one" }"#, "resources"),
        ("day", r#"{ uri = "notes://{day}" }"#, "resources"),
    ];
    for (name, key, list) in changes {
        let path = format!("/v1/blueprints/{name}");
        assert_eq!(send(daemon.put(&path, &offered(name, key))).await.0, 200, "{name}");
        assert_eq!(next(&mut heard).await.as_deref(), Some(list), "{name}");
        assert_eq!(pipe.hears().await, list, "{name}");
        assert_eq!(session.hears().await, list, "{name}");
    }
    assert!(pipe.prompts().await.contains(&"ask".to_owned()));
    assert!(session.resources().await.contains(&"notes://one".to_owned()));
    // A resource that is a blueprint is watched by its version: no run starts.
    subscribe(&session, "notes://one").await.unwrap();
    subscribe(&pipe, "notes://monday").await.unwrap();
    for name in ["note", "day"] {
        let source = offered(
            name,
            if name == "note" {
                r#"{ uri = "notes://one" }"#
            } else {
                r#"{ uri = "notes://{day}" }"#
            },
        );
        let source = source["source"].as_str().unwrap().replace("said", "other");
        let put = daemon.put(&format!("/v1/blueprints/{name}"), &json!({ "source": source }));
        assert_eq!(send(put).await.0, 200);
    }
    assert_eq!(session.hears().await, "notes://one");
    assert_eq!(pipe.hears().await, "notes://monday");
    assert_eq!(send(daemon.get("/v1/runs")).await.1["items"], json!([]));
    // From a prompt to a tool: two lists, and nothing of a third.
    assert_eq!(send(daemon.put("/v1/blueprints/ask", &offered("ask", "true"))).await.0, 200);
    assert_eq!(next(&mut heard).await.as_deref(), Some("prompts"));
    for agent in [&mut pipe, &mut session] {
        assert_eq!([agent.hears().await, agent.hears().await], ["tools", "prompts"]);
        assert_eq!(agent.heard_more(), None, "one notice a change");
    }
}

#[tokio::test]
async fn a_token_is_told_of_what_it_may_read_and_of_nothing_else() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (own, other) = (started(&daemon).await, started(&daemon).await);
    let narrow = json!({"role": "observer", "scopes": [format!("run:{own}")], "ttl": "1h"});
    let agent = Agent::http(&daemon, &mint(&daemon, narrow).await).await;
    let uri = |run: &str| format!("moonswarm://runs/{run}");
    let filter = SubscriptionFilter::builder()
        .resource_subscriptions([uri(&own), uri(&other)])
        .tools_list_changed()
        .prompts_list_changed()
        .resources_list_changed();
    let mut heard = agent.listen(filter.build()).await;
    let accepted = SubscriptionFilter::builder();
    let accepted = accepted.resource_subscription(uri(&own)).tools_list_changed();
    let accepted = accepted.prompts_list_changed().resources_list_changed().build();
    assert_eq!(heard.acknowledged(), &accepted);
    // It may not start blueprints, so none is in its lists.
    let shown = tool("one", "First.");
    assert_eq!(send(daemon.put("/v1/blueprints/one", &shown)).await.0, 200);
    go(&daemon, &other, 1, false).await;
    go(&daemon, &own, 1, false).await;
    assert_eq!(next(&mut heard).await, Some(uri(&own)));
}

#[tokio::test]
async fn a_revoked_token_hears_nothing_more() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = started(&daemon).await;
    let body = json!({"role": "operator", "ttl": "1h"});
    let minted = send(daemon.post("/v1/tokens", &body)).await.1;
    let agent = Agent::http(&daemon, minted["token"].as_str().unwrap()).await;
    let mut heard = agent.listen(of_run(&run)).await;
    let path = format!("/v1/tokens/{}", minted["jti"].as_str().unwrap());
    assert_eq!(send(daemon.delete(&path)).await.0, 204);
    go(&daemon, &run, 1, false).await;
    let seen = tokio::time::timeout(Duration::from_secs(30), heard.next()).await;
    assert!(matches!(seen, Ok(Ok(None) | Err(_))), "{seen:?}");
}

#[tokio::test]
async fn subscriptions_have_a_limit_and_their_places_come_back() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let token = operator(&daemon).await;
    let agent = Agent::http(&daemon, &token).await;
    let run = started(&daemon).await;
    let uris = (0..65).map(|n| format!("moonswarm://runs/{run}/steps/{n}"));
    let many = SubscriptionFilter::builder().resource_subscriptions(uris).build();
    let refused = agent.peer().listen(many).await.unwrap_err().to_string();
    assert!(refused.contains("at most 64 resources"), "{refused}");
    let mut open = Vec::new();
    for _ in 0..16 {
        open.push(agent.listen(of_run(&run)).await);
    }
    let refused = agent.peer().listen(of_run(&run)).await.unwrap_err().to_string();
    assert!(refused.contains("too many subscriptions"), "{refused}");
    // The same token in another spelling has no other places.
    let listen = json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen",
        "params": {"notifications": {"toolsListChanged": true}}});
    let request = daemon.bare(Method::POST, "/mcp").json(&listen);
    let (_, refused) = send(request.header("authorization", format!("bearer  {token}"))).await;
    assert!(
        refused["error"]["message"].to_string().contains("too many subscriptions"),
        "{refused}"
    );
    let other = Agent::http(&daemon, &operator(&daemon).await).await;
    other.listen(of_run(&run)).await;
    open.pop().unwrap().cancel().await.unwrap();
    eventually("the place comes back", async || {
        agent.peer().listen(of_run(&run)).await.map(drop).map_err(|error| error.to_string())
    })
    .await;

    // The same for a client of a pipe that speaks an older revision.
    let env = [("MOONSWARM_TOKEN", token.as_str())];
    let pipe = Agent::piped(&data, &env, older()).await;
    let pages = pipe.resources().await;
    let docs = pages.iter().filter(|uri| uri.starts_with("moonswarm://docs/"));
    let mut count = 0;
    for uri in docs {
        subscribe(&pipe, uri).await.unwrap();
        count += 1;
    }
    assert!(count < 64, "too many pages for this test");
    for _ in count..64 {
        let run = started(&daemon).await;
        subscribe(&pipe, &format!("moonswarm://runs/{run}")).await.unwrap();
    }
    let refused = subscribe(&pipe, &format!("moonswarm://runs/{run}")).await.unwrap_err();
    assert!(refused.contains("unsubscribe one first"), "{refused}");
    subscribe(&pipe, "moonswarm://docs/flows.md").await.unwrap();
}

#[expect(deprecated, reason = "the request of older revisions")]
async fn subscribe(agent: &Agent, uri: &str) -> Result<(), String> {
    let request = SubscribeRequestParams::new(uri);
    agent.peer().subscribe(request).await.map_err(|error| error.to_string())
}

#[expect(deprecated, reason = "the request of older revisions")]
async fn unsubscribe(agent: &Agent, uri: &str) {
    agent.peer().unsubscribe(UnsubscribeRequestParams::new(uri)).await.unwrap();
}

#[tokio::test]
async fn an_older_client_subscribes_and_unsubscribes_over_both_transports() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let token = operator(&daemon).await;
    let agents = [
        Agent::piped(&data, &[("MOONSWARM_TOKEN", token.as_str())], older()).await,
        Agent::speaking(&daemon, &token, older()).await,
    ];
    let uri = |run: &str| format!("moonswarm://runs/{run}");
    for mut agent in agents {
        let offered = json!(agent.peer().peer_info().unwrap().capabilities);
        assert_eq!(offered["resources"], json!({ "subscribe": true, "listChanged": true }));
        assert_eq!(offered["tools"], json!({ "listChanged": true }));
        assert_eq!(offered["prompts"], json!({ "listChanged": true }));
        let (one, two) = (started(&daemon).await, started(&daemon).await);
        for n in 1..=5 {
            // Again is a new beginning, of one subscription.
            subscribe(&agent, &uri(&one)).await.unwrap();
            go(&daemon, &one, n, false).await;
            assert_eq!(agent.hears().await, uri(&one));
            while text_of(&agent, &one).await != json!(format!("at {n}")) {
                agent.hears().await;
            }
            unsubscribe(&agent, &uri(&one)).await;
            while agent.heard_more().is_some() {}
        }
        subscribe(&agent, &uri(&two)).await.unwrap();
        go(&daemon, &one, 9, false).await;
        go(&daemon, &two, 9, false).await;
        assert_eq!(agent.hears().await, uri(&two), "the other one is watched no more");
        let refused = subscribe(&agent, "moonswarm://runs/none").await.unwrap_err();
        assert!(refused.contains("there is no resource"), "{refused}");
    }
}

#[tokio::test]
async fn the_subscriptions_of_sessions_have_a_limit_and_end_with_their_session() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let token = operator(&daemon).await;
    let run = started(&daemon).await;
    let uri = format!("moonswarm://runs/{run}");
    let mut open = Vec::new();
    for _ in 0..16 {
        let agent = Agent::speaking(&daemon, &token, older()).await;
        subscribe(&agent, &uri).await.unwrap();
        open.push(agent);
    }
    let late = Agent::speaking(&daemon, &token, older()).await;
    let refused = subscribe(&late, &uri).await.unwrap_err();
    assert!(refused.contains("too many subscriptions"), "{refused}");
    // One that has none has no place either.
    unsubscribe(&open[0], &uri).await;
    subscribe(&late, &uri).await.unwrap();
    assert!(subscribe(&open[0], &uri).await.is_err());
    open.pop().unwrap().close().await;
    eventually("the place comes back", async || subscribe(&open[0], &uri).await).await;
}

#[tokio::test]
async fn the_stop_of_the_host_ends_subscriptions_with_their_result() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let agent = Agent::http(&daemon, &operator(&daemon).await).await;
    let run = started(&daemon).await;
    let mut heard = agent.listen(of_run(&run)).await;
    assert_eq!(daemon.stop(), Some(0));
    while next(&mut heard).await.is_some() {}
    assert!(matches!(heard.end(), Some(SubscriptionEnd::Graceful(_))), "{:?}", heard.end());

    // The program that is a host of its own.
    let mut agent = Agent::stdio(&data, &[]).await;
    let mut heard = agent.listen(of_run(&run)).await;
    agent.signal(Signal::TERM);
    while next(&mut heard).await.is_some() {}
    assert!(matches!(heard.end(), Some(SubscriptionEnd::Graceful(_))), "{:?}", heard.end());
    assert_eq!(agent.ends().await, Some(0));
}

#[tokio::test]
async fn an_open_subscription_keeps_no_program_alive_and_outlives_the_daemon() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start(&data);
    let run = started(&daemon).await;
    let agent = Agent::stdio(&data, &[]).await;
    let mut heard = agent.listen(of_run(&run)).await;
    let address = daemon.url.trim_start_matches("http://").to_owned();
    daemon.kill();
    let daemon = Daemon::start_at(&data, &address);
    go(&daemon, &run, 1, false).await;
    assert_eq!(next(&mut heard).await, Some(format!("moonswarm://runs/{run}")));
    let closing = tokio::time::timeout(Duration::from_secs(4), agent.close());
    let (said, code) = closing.await.expect("it does not wait for the subscription");
    assert_eq!(code, Some(0), "{said}");
    eventually("the daemon has no stream left", async || {
        let seen = send(daemon.get("/readyz")).await;
        when(seen.0 == 200, seen.1)
    })
    .await;
}
