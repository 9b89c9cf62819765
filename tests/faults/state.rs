//! Shared state whose change was under way when the host was killed.

use serde_json::json;

use crate::support::{Daemon, Shell, send};

const BLUEPRINT: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "shares", agents = {},
  flow = function(ctx)
    local g = ctx:scope("global")
    g:set("place", { name = "harbour" })
    local log = g:append("log", { said = "quiet" })
    g:link("place", "log", "kept", { by = "hand" })
    return { g:get("place"), log, g:traverse("place") }
  end,
}
"#;

#[tokio::test]
async fn a_change_of_shared_state_that_was_under_way_is_made_after_the_restart() {
    let whole = json!([{ "name": "harbour" }, [{ "said": "quiet" }], ["log"]]);
    for change in 1..=3 {
        let shell = Shell::new();
        let at = format!("engine.state_shared#{change}");
        let env = [("MOONSWARM_KILL_AT", at.as_str()), ("MOONSWARM_SHARDS", "1")];
        let daemon = Daemon::launch(&shell.path("data"), &env).unwrap();
        let start = json!({ "source": BLUEPRINT, "input": null });
        // It may die before it answers, or just after.
        let _ = daemon.post("/v1/runs", &start).send().await;
        assert!(daemon.died(), "it is not killed at {at}");
        let daemon = Daemon::launch(&shell.path("data"), &[]).unwrap();
        let runs = send(daemon.get("/v1/runs")).await.1;
        let view = daemon.ended(runs["items"][0]["id"].as_str().unwrap()).await;
        assert_eq!((&view["status"], &view["output"]), (&json!("completed"), &whole), "{view}");
        daemon.stop();
    }
}
