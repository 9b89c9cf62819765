//! The commands that pages show: the program takes each of them, and the API has the route of each.

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::json;

use crate::{
    person::{DEMO, Person, daemon, mint},
    support::{Daemon, send, skip},
    things,
};

/// The commands of a page, as a person copies them.
fn commands(page: &str) -> Vec<String> {
    let lines = page.split("<div class=\"same\"><pre tabindex=\"0\">").skip(1);
    let plain = |line: &str| {
        let line = line.split("</pre>").next().unwrap();
        line.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
    };
    lines.map(plain).collect()
}

/// The same line with words in place of what a person fills in: `'<json>'`, `<file>`.
fn filled(line: &str) -> String {
    let words = line.replace("<json>", "{}").replace("KEY=VALUE", "key=1");
    words.chars().filter(|c| !"<>".contains(*c)).collect()
}

/// Runs a line in a shell that knows this program.
fn shell(dir: &Path, line: &str, token: &str, url: &str) -> std::process::Output {
    Command::new("sh")
        .args(["-c", line])
        .current_dir(dir)
        .env("PATH", format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default()))
        .env("MOONSWARM_URL", url)
        .env("MOONSWARM_TOKEN", token)
        .env_remove("MOONSWARM_DATA")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The pages with a name that looks like a flag: of a signal, a key, a prefix, and words that are
/// sought.
async fn named(daemon: &Daemon, flag: &str) -> Vec<String> {
    let source = format!(
        r#"return require("swarm").blueprint {{ name = "odd", flow = function(ctx) return ctx:wait("{flag}") end }}"#
    );
    let run = daemon.run_source(&source, json!(null)).await;
    daemon.waits(&run, "signal").await;
    let name = flag.replace('=', "%3D").replace(':', "%3A").replace('/', "%2F");
    let put = daemon.put(&format!("/v1/state/custom:notes/{name}"), &json!({ "value": 1 }));
    assert_eq!(send(put).await.0, 200);
    vec![
        format!("/ui/runs/{run}?tab=steps"),
        format!("/ui/runs?q={name}&agent={name}&waiting_on={name}&started_by={name}"),
        format!("/ui/runs/{run}?tab=children&blueprint={name}"),
        format!("/ui/inbox?q={name}"),
        format!("/ui/state?prefix={name}"),
        format!("/ui/state?scope=custom:notes&prefix={name}"),
        format!("/ui/state?scope=custom:notes&q={name}"),
        format!("/ui/state/value?scope=custom:notes&key={name}"),
    ]
}

/// Everything that an admin sees of a host with a few things on it. `flag` is a name that looks like a
/// flag of the program.
async fn shown(daemon: &Daemon, flag: &str) -> BTreeSet<String> {
    things::furnish(daemon).await;
    let desk = Person::of_role(daemon, "operator").await;
    let run = desk.starts("moon").await;
    daemon.waits(&run, "task").await;
    let ended = daemon.run_source(r#"return require("swarm").blueprint { name = "short", flow = function() return 1 end }"#, json!(null)).await;
    daemon.ended(&ended).await;
    let (_, tasks) = send(daemon.get("/v1/tasks")).await;
    let task = tasks["items"][0]["id"].as_str().unwrap();
    let mut paths: Vec<String> = [
        "/ui",
        "/ui/runs",
        "/ui/runs?status=failed,waiting&tag=a%3Db+c&kind=timeout&q=disk&since=1h&agent=x&waiting_on=go&started_by=ann&min_cost=0.5",
        "/ui/inbox",
        "/ui/inbox?show=mine&q=ship+it",
        "/ui/inbox?show=answered",
        "/ui/inbox?show=answered-mine",
        "/ui/blueprints",
        "/ui/blueprints?archived=1",
        "/ui/blueprints/demo",
        "/ui/blueprints/nightly?tab=versions",
        "/ui/operators",
        "/ui/triggers",
        "/ui/usage",
        "/ui/state",
        "/ui/state?scope=custom:notes",
        "/ui/state?scope=custom:notes&q=moon",
        "/ui/state/value?scope=custom:notes&key=top",
        "/ui/tokens",
        "/ui/system",
    ]
    .map(str::to_owned)
    .into();
    for run in [&run, &ended] {
        paths.push(format!("/ui/runs/{run}/fork?step=1"));
        for tab in
            ["steps", "source", "graph", "data", "events", "artifacts", "state", "children", "log"]
        {
            paths.push(format!("/ui/runs/{run}?tab={tab}"));
        }
    }
    paths.push(format!("/ui/runs/{run}?tab=source&at=2"));
    paths.push(format!("/ui/runs/{run}/steps/1"));
    paths.push(format!("/ui/runs/{run}/fork?step=2"));
    paths.push(format!("/ui/inbox/{task}"));
    let admin = Person::with(daemon, &daemon.token).await;
    paths.extend(named(daemon, flag).await);
    let mut all = BTreeSet::new();
    for path in paths {
        all.extend(commands(&admin.get(&path).await.page()));
    }
    for (act, which) in [("cancel", "filter"), ("pause", "ids"), ("rerun", "filter")] {
        let fields = [("which", which), ("act", act), ("id", &run), ("blueprint", "demo")];
        all.extend(commands(&admin.post("/ui/runs/bulk", &fields).await.page()));
    }
    all
}

#[tokio::test]
async fn the_program_and_the_api_take_every_command_that_a_page_shows() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    // A name of others that would make the program send its token elsewhere, as a flag.
    let elsewhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let flag = format!("--server=http://{}", elsewhere.local_addr().unwrap());
    let all = shown(&daemon, &flag).await;
    for named in ["moonswarm signal ", "moonswarm state get ", "moonswarm state delete "] {
        let named = |line: &&String| line.starts_with(named) && line.contains(&flag);
        assert!(all.iter().any(|line| named(&line)), "{all:#?}");
    }
    let (own, curl): (Vec<_>, Vec<_>) = all.iter().partition(|it| !it.starts_with("curl "));
    assert!(own.len() > 30 && curl.len() > 30, "{all:#?}");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_moonswarm"), dir.path().join("moonswarm"))
        .unwrap();
    // What works on files finds one.
    std::fs::write(dir.path().join("main.lua"), DEMO).unwrap();
    let mut wrong = Vec::new();
    for line in own {
        // Nobody listens there: what the program takes and sends ends with 69.
        let done = shell(dir.path(), &filled(line), "x", "http://127.0.0.1:9");
        if !matches!(done.status.code(), Some(0 | 69)) {
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            wrong.push(format!("{line}: {:?} {said}", done.status));
        }
    }
    assert!(elsewhere.accept().is_err(), "no line leads elsewhere: {wrong:#?}");
    if Command::new("curl").arg("--version").output().is_err() {
        skip("the curl lines of pages", "curl is not installed");
    } else {
        let senior = mint(&daemon, "senior", &json!({})).await;
        for line in curl {
            let line = filled(line);
            let (token, right) = match line.starts_with("curl -X GET") {
                true => (&daemon.token, "200"),
                // What has no right to it finds a route that it is refused at.
                false => (&senior, "403"),
            };
            let asked = format!("{line} -s -o /dev/null -w '%{{http_code}}'");
            let done = shell(dir.path(), &asked, token, "");
            if done.stdout != right.as_bytes() {
                wrong.push(format!("{line}: {}", String::from_utf8_lossy(&done.stdout)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
