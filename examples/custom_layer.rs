//! A layer of middleware that is code: `cargo run --example custom_layer`.

use async_trait::async_trait;
use moonswarm::{
    engine::Middleware,
    host::{Host, HostConfig},
    middleware::{Dispatch, DispatchLayer, DispatchStack, Dispatched, Next, Stacks},
    protocol::{Failure, failure::kind},
};

/// Lets nothing through on whose behalf nobody can be asked.
struct OnlyFor(&'static str);

#[async_trait]
impl DispatchLayer for OnlyFor {
    fn name(&self) -> &str {
        "only-for"
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        if &*dispatch.agent != self.0 {
            let message = format!("{} is not {}", dispatch.agent, self.0);
            return Err(Failure::new(kind::REFUSED, message));
        }
        next.run(dispatch).await
    }
}

const BLUEPRINT: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "picky",
  agents = { greet = { operator = "echo" }, curse = { operator = "echo" } },
  flow = function(ctx)
    local ok, err = pcall(ctx.run, ctx, "curse", "!")
    return { ctx:run("greet", "hello"), tostring(err) }
  end }"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let data = tempfile::tempdir()?;
    let mut code = Stacks::default();
    code.dispatch = DispatchStack::builder().guard(OnlyFor("greet")).build();
    let middleware = Middleware { code, layers: Vec::new() };
    let host = Host::open(HostConfig { middleware, ..HostConfig::new(data.path()) }).await?;
    let run = host.run(BLUEPRINT, &serde_json::Value::Null).await?;
    println!("{}", run.output.expect("it completed"));
    host.stop(std::time::Duration::from_secs(5)).await;
    Ok(())
}
