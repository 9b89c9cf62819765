//! Documents that are imported: names, sizes and times.

use serde_json::{Value, json};

use crate::support::{Daemon, Shell, send};

const KEEPER: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "keeper",
  agents = { e = { operator = "echo" } },
  flow = function(ctx)
    ctx.state:set("k", 1)
    ctx:artifact("a.txt", "hello")
    return ctx:run("e", 1)
  end,
}
"#;

/// What is refused, the line that is changed, and how.
type Attack = (&'static str, &'static str, fn(&mut Value));

/// A document with one line changed, sealed as its writer would seal it.
fn changed(document: &str, member: &str, change: impl Fn(&mut Value)) -> String {
    let mut lines: Vec<String> = document.lines().map(str::to_owned).collect();
    lines.pop();
    let of_member = |line: &&mut String| line.starts_with(&format!("{{\"{member}\":"));
    let line = lines.iter_mut().find(of_member).unwrap_or_else(|| panic!("no line of {member}"));
    let mut json: Value = serde_json::from_str(line).unwrap();
    change(&mut json[member]);
    *line = json.to_string();
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let hash = blake3::hash(body.as_bytes()).to_hex().to_string();
    format!("{body}{}\n", json!({"end": {"lines": lines.len(), "hash": hash}}))
}

#[tokio::test]
async fn a_document_brings_nothing_that_a_run_of_this_host_could_not_have() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let run = daemon.run_source(KEEPER, Value::Null).await;
    daemon.ended(&run).await;
    let document = daemon.get(&format!("/v1/runs/{run}/export")).send().await.unwrap();
    let document = document.text().await.unwrap();
    let import = async |document: String| {
        let request = daemon.with(&daemon.token, reqwest::Method::POST, "/v1/runs/import");
        send(request.body(document)).await
    };
    let attacks: [Attack; 9] = [
        ("a blueprint's name", "blueprint", |it| it["name"] = json!("../x")),
        ("an artifact's name", "artifact", |it| it["name"] = json!("../../evil")),
        ("an artifact's name", "artifact", |it| it["name"] = json!("\u{1b}]0;pwn\u{7}")),
        ("the time of file", "artifact", |it| it["created_ms"] = json!(u64::MAX)),
        ("a key of state", "state", |it| it["key"] = json!("")),
        ("a key of state", "state", |it| it["key"] = json!("k".repeat(100_000))),
        ("4194304 are allowed", "state", |it| it["value"] = json!("v".repeat(4 << 20))),
        ("after the year 9999", "state", |it| it["expires_ms"] = json!(u64::MAX)),
        ("the time of an entry", "entry", |it| it["at_ms"] = json!(u64::MAX)),
    ];
    for (what, member, attack) in attacks {
        let (status, problem) = import(changed(&document, member, attack)).await;
        assert_eq!((status, problem["code"].as_str()), (400, Some("bad_request")), "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(what) && detail.contains("line "), "{detail}");
    }
    let (_, runs) = send(daemon.get("/v1/runs")).await;
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "nothing was taken in: {runs}");
    // The same document, with a change that is none, is a run.
    let (status, view) = import(changed(&document, "entry", |_| {})).await;
    assert_eq!(status, 201, "{view}");
    assert_eq!(view["output"], 1);
}

#[test]
fn a_file_without_an_end_is_not_read_to_it() {
    let shell = Shell::new();
    let imported = shell.run(&["import", "/dev/zero"]).exits(1);
    imported.says(&["read /dev/zero", "128 MiB"]);
}
