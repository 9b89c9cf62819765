//! A run that kills its host whenever it is taken up, beside others that do not.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{Daemon, eventually, send};

/// A run with a child process of this command.
pub fn with_child(command: &str) -> String {
    format!(
        r#"
local swarm = require("swarm")
return swarm.blueprint {{
  name = "child",
  agents = {{ child = {{ operator = "process", timeout = "20m",
    command = {{ "sh", "-c", [==[{command}]==] }} }} }},
  flow = function(ctx) return ctx:run("child", {{}}) end,
}}
"#
    )
}

/// Writes a configuration in which children see the lock of their host, by which the culprit finds it.
pub fn configuration(dir: &Path) -> PathBuf {
    let path = dir.join("moonswarm.toml");
    fs::write(&path, "hide_data = false\n").unwrap();
    path
}

/// The culprit and its neighbours.
pub struct Culprit {
    run: String,
    innocents: Vec<String>,
    gate: PathBuf,
}

impl Culprit {
    /// Starts them on a host, which lives on until [`Culprit::aim_at`]. `gate` is a file of its own.
    pub async fn begin(host: &Daemon, gate: PathBuf) -> Self {
        let at = gate.display();
        let kills = format!("[ -e {at} ] && kill -9 \"$(cat \"$(cat {at})\")\"; exec sleep 600");
        let run = host.run_source(&with_child(&kills), json!({})).await;
        let mut innocents = Vec::new();
        for _ in 0..2 {
            innocents.push(host.run_source(&with_child("exec sleep 600"), json!({})).await);
        }
        for run in innocents.iter().chain([&run]) {
            host.waits(run, "task").await;
        }
        Self { run, innocents, gate }
    }

    /// Lets it kill the host of the directory `data` when that takes it up.
    pub fn aim_at(&self, data: &Path) {
        fs::write(&self.gate, data.join("lock").to_str().unwrap()).unwrap();
    }

    /// Starts hosts, one after another as `start` says by the number of deaths so far, until one has found it.
    /// Returns that host and the number of deaths.
    pub async fn is_found(
        &self,
        mut start: impl FnMut(usize) -> Option<Daemon>,
    ) -> (Daemon, usize) {
        let mut deaths = 0;
        loop {
            // It may die before it has said where it listens.
            if let Some(host) = start(deaths) {
                if self.is_paused(&host).await {
                    return (host, deaths);
                }
                assert!(host.died(), "it was killed");
            }
            deaths += 1;
            assert!(deaths < 15, "the culprit is never found");
        }
    }

    /// Returns true once a host that is ready has paused it, and false once the host is gone.
    async fn is_paused(&self, host: &Daemon) -> bool {
        eventually("the culprit's pause, or the host's end", async || {
            let answer = host.get("/readyz").send().await;
            let is_ready = answer.is_ok_and(|answer| answer.status().as_u16() == 200);
            // Which may be its last word.
            let Ok(view) = host.get(&format!("/v1/runs/{}", self.run)).send().await else {
                return Ok(false);
            };
            let Ok(view) = view.json::<Value>().await else { return Ok(false) };
            let is_paused = is_ready && view["status"] == "paused";
            if is_paused { Ok(true) } else { Err(format!("{view}\n{}", host.log())) }
        })
        .await
    }

    /// Checks that it is quarantined, that its neighbours go on, and returns its id.
    pub async fn is_alone(&self, host: &Daemon) -> &str {
        let (_, paused) = send(host.get("/v1/runs?status=paused")).await;
        let paused = paused["items"].as_array().unwrap();
        assert_eq!(paused.len(), 1, "{paused:?}");
        assert_eq!(paused[0]["waiting_on"][0]["kind"], "quarantine", "{paused:?}");
        for run in &self.innocents {
            host.waits(run, "task").await;
        }
        &self.run
    }
}
