//! Clients of others against a daemon: the official SDKs for TypeScript and Python, and the MCP
//! Inspector, over HTTP and over the pipes of `moonswarm mcp`. `scripts/test.sh` installs them below
//! `target/clients/`; a client that is not there is named, and not run.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};

use crate::support::{Daemon, Shell, program, repository, send, skip};

const GREET: &str = r#"local swarm = require("swarm") local s = swarm.schema
    return swarm.blueprint { name = "greet", description = "Greets whom it asks.", mcp = true,
    agents = { name = { operator = "human", by = "starter", prompt = "Who are you?",
        output = s.object { name = s.string } } },
    flow = function(ctx) return "hello, " .. ctx:run("name").name end }"#;
const SLOW: &str = r#"return require("swarm").blueprint { name = "slow",
    description = "Waits for a signal.", mcp = true,
    flow = function(ctx) ctx:status("halfway") ctx:wait("go") return "done" end }"#;

/// A daemon with two blueprints that are tools, and what a client of others needs.
struct Host {
    daemon: Daemon,
    shell: Shell,
}

impl Host {
    async fn new() -> Self {
        let shell = Shell::new();
        let daemon = Daemon::start(&shell.path("data"));
        for (name, source) in [("greet", GREET), ("slow", SLOW)] {
            let put = daemon.put(&format!("/v1/blueprints/{name}"), &json!({"source": source}));
            assert_eq!(send(put).await.0, 200);
        }
        Self { daemon, shell }
    }

    fn url(&self) -> String {
        format!("{}/mcp", self.daemon.url)
    }

    async fn run(&self, mut command: Command) -> Output {
        command
            .env("MCP_URL", self.url())
            .env("MCP_TOKEN", &self.daemon.token)
            .env("MCP_PROGRAM", program().get_program())
            .env("MCP_DATA", self.shell.path("data"))
            .env("HOME", self.shell.path("home"));
        for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env_remove(proxy).env_remove(proxy.to_lowercase());
        }
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    async fn passes(&self, command: Command) {
        let output = self.run(command).await;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    }
}

pub fn clients() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository("target"), PathBuf::from);
    target.join("clients")
}

/// Node and the packages beside it, if all of these are there.
fn node(what: &str, packages: &[&str]) -> Option<(Command, PathBuf)> {
    let there = clients().join("mcp");
    let node = there.join("node/bin/node");
    let modules = there.join("node_modules");
    let mut needed = packages.iter().map(|package| modules.join(package));
    match needed.find(|package| !package.exists()).or((!node.exists()).then(|| node.clone())) {
        Some(missing) => {
            skip(what, &format!("{} is not there", missing.display()));
            None
        }
        None => Some((Command::new(node), modules)),
    }
}

#[tokio::test]
async fn the_official_python_sdk_is_served_over_both_transports() {
    let python = clients().join("py/bin/python");
    let has_sdk = |python: &Path| {
        let asked =
            Command::new(python).args(["-c", "import httpx2; from mcp import Client"]).output();
        asked.is_ok_and(|asked| asked.status.success())
    };
    if !has_sdk(&python) {
        skip("the official Python SDK of MCP", &format!("{} has none", python.display()));
        return;
    }
    let host = Host::new().await;
    let mut command = Command::new(&python);
    command.arg(repository("tests/mcp/clients/client.py"));
    host.passes(command).await;
}

#[tokio::test]
async fn the_official_typescript_sdks_are_served_over_both_transports() {
    let what = "the official TypeScript SDKs of MCP";
    let packages = ["@modelcontextprotocol/sdk", "@modelcontextprotocol/client"];
    let Some((mut command, modules)) = node(what, &packages) else { return };
    let host = Host::new().await;
    // Packages are looked for beside a script.
    let script = std::fs::read(repository("tests/mcp/clients/client.mjs")).unwrap();
    let script = host.shell.write("client.mjs", script);
    std::os::unix::fs::symlink(modules.canonicalize().unwrap(), host.shell.path("node_modules"))
        .unwrap();
    command.arg(script);
    host.passes(command).await;
}

#[tokio::test]
async fn the_inspector_lists_and_calls_over_both_transports() {
    let inspector = "@modelcontextprotocol/inspector/package.json";
    let Some((node, modules)) = node("the MCP Inspector", &[inspector]) else { return };
    let host = Host::new().await;
    let bearer = format!("Authorization: Bearer {}", host.daemon.token);
    let data = host.shell.path("data");
    let over_http = ["--transport", "http", "--header", &bearer];
    let token = format!("MOONSWARM_TOKEN={}", host.daemon.token);
    let over_pipes = ["-e", &token];
    for is_http in [true, false] {
        let ask = async |words: &[&str]| -> (Option<i32>, Value) {
            let mut command = Command::new(node.get_program());
            command.arg(modules.join(".bin/mcp-inspector")).arg("--cli");
            match is_http {
                true => command.arg(host.url()).args(over_http),
                false => command
                    .args(over_pipes)
                    .arg(program().get_program())
                    .args(["mcp", "--data"])
                    .arg(&data),
            };
            let output = host
                .run({
                    command.args(words);
                    command
                })
                .await;
            let said = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
                panic!("{words:?}: {}", String::from_utf8_lossy(&output.stderr))
            });
            (output.status.code(), said)
        };
        let (code, listed) = ask(&["--method", "tools/list", "--strict"]).await;
        let names: Vec<_> =
            listed["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
        assert_eq!(code, Some(0), "no schema has an error");
        assert!(names.contains(&&json!("start_run")) && names.contains(&&json!("greet")));
        let (code, runs) = ask(&["--method", "tools/call", "--tool-name", "list_runs"]).await;
        assert_eq!((code, &runs["structuredContent"]["items"]), (Some(0), &json!([])), "{runs}");
        let unknown = "run=run_aaaaaaaaaaaaaaaaaaaaaaaaaa";
        let call = ["--method", "tools/call", "--tool-name", "get_run", "--tool-arg", unknown];
        let (code, refused) = ask(&call).await;
        assert_eq!((code, &refused["isError"]), (Some(5), &json!(true)), "{refused}");
        let (_, read) =
            ask(&["--method", "resources/read", "--uri", "moonswarm://docs/mcp.md"]).await;
        assert_eq!(read["contents"][0]["mimeType"], "text/markdown", "{read}");
        let prompt = ["--method", "prompts/get", "--prompt-name", "debug-run"];
        let (_, prompt) = ask(&[&prompt[..], &["--prompt-args", "run=run_x"]].concat()).await;
        let text = prompt["messages"][0]["content"]["text"].as_str().unwrap();
        assert!(text.contains("run_x"), "{text}");
    }
}
