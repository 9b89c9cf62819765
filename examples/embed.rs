//! The host inside another program: `cargo run --example embed`.
//!
//! It listens like the daemon does, so that workers and `moonswarm --server URL` reach it.

use std::time::Duration;

use moonswarm::host::{Host, HostConfig};
use serde_json::json;

const BLUEPRINT: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "greet",
  agents = { shout = { operator = "lua", fn = function(name) return string.upper(name) end } },
  flow = function(ctx, input)
    return ctx:map(input.names, function(name) return ctx:run("shout", name) end)
  end }"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let data = tempfile::tempdir()?;
    let host = Host::open(HostConfig::new(data.path())).await?;
    println!("listening on {}", host.url());
    let run = host.run(BLUEPRINT, &json!({ "names": ["ada", "grace"] })).await?;
    println!("{}: {}", run.id, run.output.expect("it completed"));
    host.stop(Duration::from_secs(5)).await;
    Ok(())
}
