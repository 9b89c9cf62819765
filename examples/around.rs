//! Middleware of the protocol around state and around execution: `cargo run --example around`.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use moonswarm::{
    Host, HostConfig, Middleware, OperatorInput, OperatorOutput, Scope,
    middleware::{ExecStack, ProtocolExec, ProtocolStore, Stacks, StoreStack},
    protocol::{
        EnvError, EnvironmentSpec, StateError,
        middleware::{ExecMiddleware, ExecNext, StoreMiddleware, StoreWriteNext},
        state::StoreOptions,
    },
};
use serde_json::{Value, json};

/// Writes down beside every value whose it is.
struct Signs;

#[async_trait]
impl StoreMiddleware for Signs {
    async fn write(
        &self,
        scope: &Scope,
        key: &str,
        value: Value,
        options: Option<&StoreOptions>,
        next: &dyn StoreWriteNext,
    ) -> Result<(), StateError> {
        next.write(scope, key, json!({ "by": "us", "value": value }), options).await
    }
}

/// Lets one program through, and functions of Lua where their input is short.
struct Careful;

#[async_trait]
impl ExecMiddleware for Careful {
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
        next: &dyn ExecNext,
    ) -> Result<OperatorOutput, EnvError> {
        let text = input.message.as_text().unwrap_or_default();
        let allowed = match input.metadata["moonswarm"]["kind"].as_str() {
            Some("process") => text.starts_with(r#"["echo","#),
            _ => text.len() < 10,
        };
        if !allowed {
            return Err(EnvError::IsolationViolation("that is not done here".to_owned()));
        }
        next.run(input, spec).await
    }
}

const BLUEPRINT: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "around",
  agents = {
    says = { operator = "process", command = { "echo", "\"{{ directive }}\"" } },
    lists = { operator = "process", command = { "ls" } },
    long = { operator = "lua", fn = function(input) return #input end },
  },
  flow = function(ctx)
    ctx.state:set("k", 1)
    local done = { ctx.state:get("k").by, ctx:run("says", "hi"), ctx:run("long", "short") }
    for _, agent in ipairs { "lists", "long" } do
      local ok, err = pcall(ctx.run, ctx, agent, "much too long")
      table.insert(done, if ok then "done" else err.kind)
    end
    return done
  end }"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let data = tempfile::tempdir()?;
    let mut code = Stacks::default();
    code.store =
        StoreStack::builder().transform(ProtocolStore::new("signs", Arc::new(Signs))).build();
    // Around programs, unless it names other kinds.
    let careful = ProtocolExec::new("careful", Arc::new(Careful)).around(["process", "lua"]);
    code.exec = ExecStack::builder().guard(careful).build();
    let middleware = Middleware { code, layers: Vec::new() };
    let host = Host::open(HostConfig { middleware, ..HostConfig::new(data.path()) }).await?;
    let run = host.run(BLUEPRINT, &Value::Null).await?;
    println!("{}", run.output.expect("it completed"));
    host.stop(Duration::from_secs(5)).await;
    Ok(())
}
