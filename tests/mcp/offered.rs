//! Blueprints as prompts and as resources, and what a client is told during a call.

use serde_json::{Value, json};

use crate::{
    client::{Agent, mint, operator},
    support::{Daemon, Shell, send},
};

const NOTES: &str = r##"local swarm = require("swarm") local s = swarm.schema
    return swarm.blueprint { name = "notes", description = "The notes of a day.",
    mcp = { uri = "notes://{day}/{number}", mime_type = "text/markdown" },
    input = s.object { day = s.string, number = s.integer },
    flow = function(ctx, input) return "# " .. input.day .. " " .. (input.number + 1) end }"##;
const ASK: &str = r#"local swarm = require("swarm") local s = swarm.schema
    return swarm.blueprint { name = "ask", description = "Asks for a review.",
    mcp = { prompt = true }, input = s.object { what = s.string { description = "What." } },
    flow = function(ctx, input)
        if input.what == "nothing" then error("there is nothing to review") end
        return "Review " .. input.what .. "."
    end }"#;

async fn host(shell: &Shell) -> Daemon {
    let daemon = Daemon::start(&shell.path("data"));
    for (name, source) in [("notes", NOTES), ("ask", ASK)] {
        let put = daemon.put(&format!("/v1/blueprints/{name}"), &json!({ "source": source }));
        let (status, view) = send(put).await;
        assert_eq!(status, 200, "{view}");
    }
    daemon
}

#[tokio::test]
async fn a_blueprint_is_a_resource_and_its_address_is_input() {
    let shell = Shell::new();
    let daemon = host(&shell).await;
    let agent = Agent::http(&daemon, &operator(&daemon).await).await;
    let read = agent.read("notes://today/7").await.unwrap();
    assert_eq!(read["text"], "# today 8");
    assert_eq!(
        (&read["uri"], &read["mimeType"]),
        (&json!("notes://today/7"), &json!("text/markdown"))
    );
    let refused = agent.read("notes://today/many").await.unwrap_err();
    assert!(refused.contains("number"), "{refused}");
    assert!(agent.read("notes://today").await.unwrap_err().contains("no resource"));
    assert!(!agent.tools().await.iter().any(|tool| tool.name == "notes"), "it is no tool");
    let narrow = json!({ "role": "operator", "scopes": ["blueprint:none"], "ttl": "1h" });
    let stranger = Agent::http(&daemon, &mint(&daemon, narrow).await).await;
    assert!(stranger.read("notes://today/7").await.is_err(), "of another scope");
}

#[tokio::test]
async fn a_blueprint_is_a_prompt_and_its_failure_is_an_error() {
    let shell = Shell::new();
    let daemon = host(&shell).await;
    let agent = Agent::http(&daemon, &operator(&daemon).await).await;
    let said = agent.prompt("ask", json!({ "what": "this" })).await.unwrap();
    assert_eq!(said, "Review this.");
    let refused = agent.prompt("ask", json!({ "what": "nothing" })).await.unwrap_err();
    assert!(refused.contains("nothing to review"), "{refused}");
    assert!(agent.prompt("ask", json!({})).await.unwrap_err().contains("what"));
}

#[tokio::test]
async fn a_client_is_told_every_status_and_the_lines_of_its_level() {
    let shell = Shell::new();
    let daemon = host(&shell).await;
    let source = r#"return require("swarm").blueprint { name = "loud", description = "Tells.",
        mcp = true, flow = function(ctx)
            for n = 1, 3 do ctx:status("part " .. n) ctx:log("info", "at " .. n) end
            ctx:log("warn", "late", { by = 2 })
            return "done" end }"#;
    assert_eq!(send(daemon.put("/v1/blueprints/loud", &json!({ "source": source }))).await.0, 200);
    let version = "2026-07-28";
    let ask = |level: Option<&str>| {
        let mut meta = json!({
            "progressToken": "p",
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        if let Some(level) = level {
            meta["io.modelcontextprotocol/logLevel"] = level.into();
        }
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "loud", "arguments": {}, "_meta": meta } });
        daemon
            .with(&daemon.token, reqwest::Method::POST, "/mcp")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", version)
            .header("mcp-method", "tools/call")
            .header("mcp-name", "loud")
            .json(&body)
    };
    let told = async |level| -> Vec<Value> {
        let answer = ask(level).send().await.unwrap().text().await.unwrap();
        let data = answer.lines().filter_map(|line| line.strip_prefix("data:"));
        data.filter_map(|data| serde_json::from_str(data.trim()).ok()).collect()
    };
    let of = |all: &[Value], method: &str| -> Vec<Value> {
        all.iter().filter(|it| it["method"] == method).map(|it| it["params"].clone()).collect()
    };
    let all = told(Some("warning")).await;
    let progress = of(&all, "notifications/progress");
    let texts: Vec<&Value> = progress.iter().map(|it| &it["message"]).collect();
    assert_eq!(texts, ["part 1", "part 2", "part 3"], "{all:?}");
    let logs = of(&all, "notifications/message");
    assert_eq!(logs.len(), 1, "{logs:?}");
    assert_eq!(
        (&logs[0]["level"], &logs[0]["data"]["message"]),
        (&json!("warning"), &json!("late"))
    );
    assert_eq!(all.last().unwrap()["result"]["structuredContent"]["output"], "done");
    assert_eq!(of(&told(Some("debug")).await, "notifications/message").len(), 4);
    assert_eq!(of(&told(None).await, "notifications/message").len(), 0, "it asked for none");
}
