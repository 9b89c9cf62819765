//! The operator that is a connected session: an AI, or any program, that starts sub-agents.

use std::sync::Arc;

use async_trait::async_trait;

use serde::Deserialize;

use super::{Backend, Builtin, Reply, Residence, Settings, Task, Ticket};
use crate::{
    protocol::{Failure, Json, failure::kind},
    session::{Hub, Spawn},
};

/// The operator that exists without any configuration.
pub const MAIN_AI: &str = "main-ai";

/// The largest prompts that travel in a frame, in bytes; larger ones are fetched.
const FRAME_BYTES: usize = 256 << 10;

/// How a prompt reaches a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Road {
    /// The session gets a handle, and whoever it starts fetches the prompt and reports over HTTP.
    Thin,
    /// The session gets the prompts in the frame as well.
    Direct,
}

/// Gives each attempt to the session that its run's seats name, or lets it wait for one.
#[derive(Debug, Clone)]
pub struct MainAi {
    hub: Arc<Hub>,
    road: Road,
    needs_binding: bool,
}

impl MainAi {
    /// An operator over the sessions of `hub`. With `needs_binding`, its agents say which kind of
    /// sub-agent they are for.
    pub fn new(hub: Arc<Hub>, road: Road, needs_binding: bool) -> Self {
        Self { hub, road, needs_binding }
    }
}

#[async_trait]
impl Backend for MainAi {
    fn kind(&self) -> &'static str {
        "main_ai"
    }

    fn residence(&self) -> Residence {
        Residence::Elsewhere
    }

    fn requires_worker_binding(&self) -> bool {
        self.needs_binding
    }

    async fn execute(&self, task: Arc<Task>, _input: Json) -> Result<Reply, Failure> {
        let Some(prompt) = &task.prompt else {
            return Err(Failure::new(kind::REFUSED, "a task without a prompt came to a session"));
        };
        let mut params = serde_json::json!({
            "task": task.id,
            "run": task.run,
            "agent": task.agent_name,
            "attempt": task.attempt,
            "worker": prompt.worker,
            "model": task.agent.model,
            "summary": prompt.summary,
            "idempotency_key": prompt.idempotency_key,
            "conversation": task.opts.session,
        });
        let thin = params.to_string().into();
        let system = task.system();
        let size = prompt.prompt.len() + system.as_ref().map_or(0, String::len);
        let full = (size <= FRAME_BYTES).then(|| {
            params["system"] = system.into();
            params["prompt"] = prompt.prompt.clone().into();
            if let Some(schema) = prompt.output_schema.as_ref().filter(|it| it.len() <= FRAME_BYTES)
            {
                params["output_schema"] = schema.to_value();
            }
            params.to_string().into()
        });
        let spawn = Spawn {
            ticket: Ticket { run: task.id.run(), step: task.id.step(), attempt: task.attempt },
            task: task.id,
            epoch: task.epoch,
            nonce: task.nonce,
            operator: Arc::clone(&task.operator),
            seat: task.seat.clone(),
            timeout_ms: task.timeout_ms,
            thin,
            full,
            direct: self.road == Road::Direct,
        };
        self.hub.spawn(spawn, &task.cancel);
        Ok(Reply::Parked)
    }
}

/// `kind = "main_ai"` in a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MainAiSettings {
    /// Whether system prompt and prompt travel in the frame as well.
    #[serde(default)]
    direct: bool,
    /// Whether its agents say which kind of sub-agent they are for.
    #[serde(default = "yes")]
    require_binding: bool,
}

fn yes() -> bool {
    true
}

#[async_trait]
impl Settings for MainAiSettings {
    fn kind(&self) -> &'static str {
        "main_ai"
    }

    fn build(&self, builtin: &Builtin) -> Arc<dyn Backend> {
        let road = if self.direct { Road::Direct } else { Road::Thin };
        Arc::new(MainAi::new(Arc::clone(&builtin.sessions), road, self.require_binding))
    }

    async fn inspect(&self) -> Result<String, String> {
        let prompts = if self.direct { "with each task" } else { "fetched by handle" };
        Ok(format!("waits for a session; prompts are {prompts}"))
    }
}
