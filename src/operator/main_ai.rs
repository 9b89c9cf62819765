//! The operator that is a connected session: an AI, or any program, that starts sub-agents.

use std::sync::Arc;

use async_trait::async_trait;

use serde::Deserialize;

use super::{Backend, Builtin, Reply, Residence, Settings, ShownSettings, Task, Ticket};
use crate::{
    protocol::{Failure, Json, failure::kind},
    session::{Hub, Spawn},
};

/// The built-in operator of this kind.
pub const MAIN_AI: &str = "main-ai";
/// The kind; it is read as the name as well, and the name as the kind.
pub(super) const KIND: &str = "main_ai";

/// Returns the kind that is meant: `main-ai`, the name, is read as `main_ai`.
pub fn kind_of(written: &str) -> &str {
    if written == MAIN_AI { KIND } else { written }
}

/// The maximum size of prompts in a frame, in bytes; larger ones are fetched.
const FRAME_BYTES: usize = 256 << 10;

/// The way in which a prompt reaches a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptTransport {
    /// The frame has a handle; the sub-agent fetches the prompt and reports over HTTP.
    Thin,
    /// The frame has the prompts as well.
    Direct,
}

/// Delivers each attempt to the session that holds the seat, or waits for one.
#[derive(Debug, Clone)]
pub struct MainAi {
    hub: Arc<Hub>,
    road: PromptTransport,
    needs_binding: bool,
}

impl MainAi {
    /// Creates an operator over the sessions of `hub`. With `needs_binding`, its agents must
    /// declare the kind of sub-agent.
    pub fn new(hub: Arc<Hub>, road: PromptTransport, needs_binding: bool) -> Self {
        Self { hub, road, needs_binding }
    }
}

#[async_trait]
impl Backend for MainAi {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn residence(&self) -> Residence {
        Residence::Elsewhere
    }

    fn requires_worker_binding(&self) -> bool {
        self.needs_binding
    }

    fn holds_session(&self) -> bool {
        true
    }

    async fn execute(&self, task: Arc<Task>, _input: Json) -> Result<Reply, Failure> {
        let Some(prompt) = &*task.prompt else {
            return Err(Failure::new(kind::REFUSED, "a task without a prompt came to a session"));
        };
        let mut params = serde_json::json!({
            "task": task.id,
            "run": task.run,
            "agent": task.agent_name,
            "attempt": task.attempt,
            "worker": prompt.worker,
            "model": task.agent.model,
            "effort": task.agent.effort,
            "summary": prompt.summary,
            "idempotency_key": prompt.idempotency_key,
            "conversation": task.opts.session_of(),
        });
        if let Some(trace) = task.trace {
            params["traceparent"] = trace.to_string().into();
        }
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
            direct: self.road == PromptTransport::Direct,
        };
        self.hub.spawn(spawn, &task.cancel);
        Ok(Reply::Parked)
    }
}

/// The settings of `kind = "main_ai"`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MainAiSettings {
    /// True if the frame contains the system prompt and the prompt.
    #[serde(default)]
    direct: bool,
    /// True if its agents must declare the kind of sub-agent.
    #[serde(default = "yes")]
    require_binding: bool,
}

fn yes() -> bool {
    true
}

#[async_trait]
impl Settings for MainAiSettings {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn build(&self, builtin: &Builtin) -> Arc<dyn Backend> {
        let road = if self.direct { PromptTransport::Direct } else { PromptTransport::Thin };
        Arc::new(MainAi::new(Arc::clone(&builtin.sessions), road, self.require_binding))
    }

    fn shown(&self) -> ShownSettings {
        ShownSettings::default()
            .with("direct", self.direct)
            .with("require_binding", self.require_binding)
    }

    async fn inspect(&self, _builtin: &Builtin) -> Result<String, String> {
        let prompts = if self.direct { "with each task" } else { "fetched by handle" };
        Ok(format!("waits for a session; prompts are {prompts}"))
    }
}
