//! Erasing while the host is killed.

use std::fs;

use serde_json::json;

use crate::support::{Daemon, Shell, needs_sqlite, send};

const BLUEPRINT: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "keeps", agents = {},
  flow = function(ctx, input)
    ctx:scope("global"):set("k" .. input.n, input.name)
    ctx:artifact("a.txt", input.name)
    return input.name
  end,
}
"#;
const NAME: &str = "zachariasquux4711";

fn is_on_disk(data: &std::path::Path) -> bool {
    fs::read_dir(data).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        path.is_file() && memchr::memmem::find(&fs::read(path).unwrap(), NAME.as_bytes()).is_some()
    })
}

#[tokio::test]
async fn an_erasure_that_was_killed_anywhere_is_completed_by_its_repetition() {
    if needs_sqlite("an erasure by a command without a daemon") {
        return;
    }
    for at in [
        "engine.erase_marked#1",
        "engine.erase_runs#1",
        "engine.runs_deleted#1",
        "engine.erase_rows#1",
        "engine.erase_files#1",
        "store.rewritten#1",
        "engine.erase_rewritten#1",
    ] {
        let shell = Shell::new();
        let data = shell.path("data");
        let daemon = Daemon::launch(&data, &[("MOONSWARM_KILL_AT", at)]).unwrap();
        for n in 0..40 {
            let run = daemon.run_source(BLUEPRINT, json!({ "name": NAME, "n": n })).await;
            daemon.ended(&run).await;
        }
        let mut body = json!({ "match": NAME, "dry_run": true });
        let (_, planned) = send(daemon.post("/v1/erase", &body)).await;
        assert_eq!(planned["runs"].as_array().map(Vec::len), Some(40), "{planned}");
        body["dry_run"] = json!(false);
        body["digest"] = planned["digest"].clone();
        // It dies before it answers.
        let _ = daemon.post("/v1/erase", &body).send().await;
        assert!(daemon.died(), "it is not killed at {at}");

        let again = ["erase", "--match", NAME, "--yes", "--json", "--data", "data"];
        let done = shell.run(&again).ok().json();
        assert_eq!(done["dry_run"], false, "{at}: {done}");
        assert!(!is_on_disk(&data), "{at}: {done}");
        let whole = shell.run(&again).ok().json();
        let left = (&whole["runs"], &whole["rows"], &whole["unfinished"]);
        assert_eq!(left, (&json!([]), &json!({}), &json!(false)), "{at}: {whole}");
    }
}
