//! A failover to a standby.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    GAPS, begin, end_after_outage, go, start,
    support::{
        DEMO, Daemon, Shell, eventually,
        postgres::{Database, Server},
        send, when,
    },
    there,
};

#[tokio::test]
async fn a_failover_to_a_synchronous_standby_loses_nothing() {
    let Some(primary) = there(Server::own()) else { return };
    let (shell, name) = (Shell::new(), primary.create_database());
    let standby = primary.synchronous_standby().unwrap();
    let alone = standby.tcp_url(&name);
    let mut serve = shell.command(&["serve", "--listen", "127.0.0.1:0", "--data", "other"]);
    let refused = serve.env("MOONSWARM_STORE", alone).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("name the primary"), "{told}");

    let daemon = start(&shell.path("data"), &primary.url_with(&standby, &name));
    let waiting = daemon.run_source(DEMO, json!({})).await;
    daemon.waits(&waiting, "signal").await;
    let begun = begin(&daemon, 8).await;
    primary.stop();
    standby.promote();
    end_after_outage(&daemon, &begun).await;
    go(&daemon, &waiting).await;
    assert_eq!(standby.sql(&name, GAPS).trim(), "0");
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test]
async fn only_so_many_requests_wait_for_a_database_that_is_away() {
    /// The number of requests of one token that may wait.
    const MOST: usize = 64;
    let Some(server) = there(Server::own()) else { return };
    let (shell, name) = (Shell::new(), server.create_database());
    let daemon = start(&shell.path("data"), &server.url(&name));
    server.stop();
    eventually("the daemon notices", async || {
        let (status, told) = send(daemon.get("/readyz")).await;
        when(status == 503, told)
    })
    .await;
    let refused = Arc::new(AtomicUsize::new(0));
    let asked = (0..3 * MOST).map(|_| {
        let request = daemon.post("/v1/tokens", &json!({ "role": "observer", "ttl": "1h" }));
        let refused = Arc::clone(&refused);
        tokio::spawn(async move {
            let answer = request.send().await.unwrap();
            let status = answer.status().as_u16();
            if status == 503 {
                assert!(answer.headers().contains_key("retry-after"));
                refused.fetch_add(1, Ordering::SeqCst);
            }
            (status, answer.json::<Value>().await.unwrap())
        })
    });
    let asked: Vec<_> = asked.collect();
    eventually("the others are refused at once", async || {
        let count = refused.load(Ordering::SeqCst);
        when(count >= 2 * MOST, count)
    })
    .await;
    // A read does not wait, and what needs no database is answered.
    let (status, told) = send(daemon.get("/v1/runs")).await;
    assert_eq!((status, &told["code"]), (503, &json!("storage_away")), "{told}");
    assert_eq!(send(daemon.get("/healthz")).await.0, 200);
    server.start();
    let mut begun = 0;
    for answer in asked {
        match answer.await.unwrap() {
            (503, told) => assert_eq!(told["code"], "storage_away", "{told}"),
            (status, minted) => {
                assert!(status < 300, "{minted}\n{}", daemon.log());
                begun += 1;
                let token = minted["token"].as_str().unwrap();
                let (status, told) = send(daemon.with(token, Method::GET, "/v1/whoami")).await;
                assert_eq!(status, 200, "{told}");
            }
        }
    }
    assert_eq!((begun, refused.load(Ordering::SeqCst)), (MOST, 2 * MOST));
}

#[tokio::test]
async fn a_database_of_the_tests_belongs_to_one_directory() {
    if there(Database::fresh()).is_none() {
        return;
    }
    let shell = Shell::new();
    let (one, two) = (Database::of(&shell.path("one")), Database::of(&shell.path("two")));
    assert_ne!(one, two);
    assert_eq!(one, Database::of(&shell.path("one")));
}

/// A run that asks as many workers at once as its input says.
const ASKS: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "asks", agents = { remote = { operator = "queue", queue = "q", timeout = "1h" } },
  flow = function(ctx, input)
    local list, sum = {}, 0
    for n = 1, input do list[n] = n end
    for _, text in ipairs(ctx:map(list, function(n) return ctx:run("remote", n) end)) do
      sum = sum + #text
    end
    return sum
  end,
}
"#;

/// Starts a run, and leases its tasks.
async fn asking(daemon: &Daemon, tasks: usize) -> (String, Vec<String>) {
    let run = daemon.run_source(ASKS, json!(tasks)).await;
    let mut handles = Vec::new();
    while handles.len() < tasks {
        let ask = json!({ "queue": "q", "wait": "30s", "max": (tasks - handles.len()).min(16) });
        let (status, leased) = send(daemon.post("/v1/worker/lease", &ask)).await;
        assert_eq!(status, 200, "{leased}");
        let leased = leased.as_array().unwrap();
        handles.extend(leased.iter().map(|it| it["handle"].as_str().unwrap().to_owned()));
    }
    (run, handles)
}

#[tokio::test]
async fn all_tokens_together_and_their_bodies_have_limits_while_the_database_is_away() {
    /// The number of requests that may wait.
    const MOST: usize = 256;
    /// The size of a body: five of them are less than may wait together, and six are more.
    const LARGE: usize = 3 << 20;
    let Some(server) = there(Server::own()) else { return };
    let (shell, name) = (Shell::new(), server.create_database());
    let url = server.url(&name);
    // Workers keep their tasks for longer than the database is away.
    let env = [("MOONSWARM_STORE", &*url), ("MOONSWARM_LEASE", "30m")];
    let daemon = Daemon::launch(&shell.path("data"), &env).unwrap();
    let (mut runs, mut large, mut small) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..6 {
        let (run, handles) = asking(&daemon, 1).await;
        runs.push((run, LARGE));
        large.extend(handles);
    }
    for _ in 0..5 {
        let (run, handles) = asking(&daemon, 64).await;
        runs.push((run, 64));
        small.extend(handles);
    }
    server.stop();
    eventually("the daemon notices", async || {
        let (status, told) = send(daemon.get("/readyz")).await;
        when(status == 503, told)
    })
    .await;
    let refused = Arc::new(AtomicUsize::new(0));
    let result = |handle: &str, size: usize| {
        let request = daemon.with(handle, Method::POST, "/v1/worker/result");
        request.json(&json!({ "output": "x".repeat(size) }))
    };
    let tell = |handle: &str, size: usize| {
        let (refused, request) = (Arc::clone(&refused), result(handle, size));
        tokio::spawn(async move {
            let (status, answer) = send(request).await;
            refused.fetch_add(usize::from(status == 503), Ordering::SeqCst);
            (status, answer)
        })
    };
    let are_refused = async |count: usize| {
        eventually("the others are refused at once", async || {
            let now = refused.load(Ordering::SeqCst);
            when(now == count, now)
        })
        .await;
    };
    // Bodies first: one of six does not fit beside the others. Then as many requests as may wait.
    let mut told: Vec<_> = large.iter().map(|handle| tell(handle, LARGE)).collect();
    are_refused(1).await;
    told.extend(small.iter().map(|handle| tell(handle, 1)));
    are_refused(1 + small.len() - (MOST - 5)).await;
    // After a minute they are refused too, whoever waits.
    let mut late = 0;
    for it in told {
        let (status, told) = it.await.unwrap();
        assert_eq!((status, &told["code"]), (503, &json!("storage_away")), "{told}");
        late += usize::from(told["detail"].as_str().unwrap().contains("may still take effect"));
    }
    assert_eq!(late, MOST);
    // What was accepted before takes effect now; what was refused is sent again.
    server.start();
    for (handle, size) in large.iter().map(|it| (it, LARGE)).chain(small.iter().map(|it| (it, 1))) {
        eventually("the database is back", async || {
            let (status, told) = send(result(handle, size)).await;
            when(status < 500, told)
        })
        .await;
    }
    for (run, sum) in runs {
        let view = daemon.ended(&run).await;
        assert_eq!(view["output"], json!(sum), "{view}");
    }
}
