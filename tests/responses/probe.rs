//! llmprobe, a conformance suite of others, against a daemon whose model obeys: every MUST of chat
//! completions, responses and messages. `scripts/test.sh` installs it below `target/clients/`.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::{
    clients::clients,
    plain::put,
    support::{Daemon, Shell, repository, skip},
};

const PROBE: &str = r#"return require("swarm").blueprint { name = "probe",
  description = "An agent that a probe asks.",
  agents = { model = { operator = "model", system = "You answer." } },
  flow = function(ctx, input) return ctx:run("model", input) end }"#;

/// The server of the model; it ends with the test.
struct Model(Child);

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn every_must_of_llmprobe_is_kept() {
    let node = clients().join("mcp/node/bin/node");
    let probe = clients().join("mcp/node_modules/llmprobe/bin/dist/llmprobe.mjs");
    if let Some(missing) = [&node, &probe].into_iter().find(|file| !file.exists()) {
        skip("llmprobe", &format!("{} is not there", missing.display()));
        return;
    }
    let mut model = Command::new(&node);
    model.arg(repository("tests/responses/probe/model.mjs")).stdout(Stdio::piped());
    let mut model = Model(model.spawn().unwrap());
    let mut address = String::new();
    BufReader::new(model.0.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let shell = Shell::new();
    let config = format!(
        "[operators.model]\nkind = \"llm\"\napi = \"chat\"\nmodel = \"probe\"\n\
         base_url = {:?}\nallow_hosts = [\"127.0.0.1\"]\n",
        address.trim()
    );
    let config = shell.write("moonswarm.toml", config);
    let flags = ["--config".as_ref(), config.as_os_str()];
    let daemon = Daemon::start_with(&shell.path("data"), &flags);
    put(&daemon, "probe", PROBE).await;
    let report = shell.path("report.json");
    let mut command = Command::new(&node);
    command
        .arg(&probe)
        .arg(format!("{}/v1", daemon.url))
        .args(["-k", &daemon.token, "-m", "probe/model", "--no-bench", "--no-save", "--no-color"])
        .arg("--save")
        .arg(&report)
        .env("HOME", shell.path("home"));
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env_remove(proxy).env_remove(proxy.to_lowercase());
    }
    // It ends with 1 where the model is no good, so its report counts.
    let ran = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let report = std::fs::read(&report)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&ran.stderr)));
    let report: Value = serde_json::from_slice(&report).unwrap();
    let kept = |surface: &str| {
        let mut all = report["conformance"]["bySurface"].as_array().unwrap().iter();
        let sum = all.find(|sum| sum["surface"] == surface).unwrap();
        (sum["passed"].as_u64().unwrap(), sum["total"].as_u64().unwrap())
    };
    for (surface, least) in [("chat", 65), ("responses", 65), ("messages", 63)] {
        let (passed, total) = kept(surface);
        let failed: Vec<&Value> = report["conformance"]["results"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|it| it["surface"] == surface && it["outcome"] == "fail")
            .collect();
        assert_eq!(passed, total, "{surface}: {failed:#?}");
        assert!(total >= least, "{surface}: {total} of at least {least} were tried");
    }
    assert_eq!(report["conformance"]["inconclusive"], serde_json::json!([]));
}
