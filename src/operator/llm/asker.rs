//! On whose behalf a model is asked: an attempt of a task, or a program that has none.

use std::sync::Arc;

use crate::{
    operator::{Delivery, Reporter, Task},
    protocol::{Json, ModelDelta, SecretAccessEvent},
};

/// The origin of a question to a model.
pub(super) struct Asker<'a> {
    pub(super) operator: &'a str,
    pub(super) agent: &'a str,
    /// From 1.
    pub(super) attempt: u32,
    /// The seed of the ids of items, if a provider gives none.
    pub(super) seed: String,
    /// The model of the agent.
    pub(super) own: Option<&'a str>,
    /// The model once the layers have had their say.
    pub(super) configured: Option<&'a str>,
    /// The addendum of layers to the system prompt.
    pub(super) addendum: Option<&'a str>,
    /// The task, for a script that is the agent's function.
    pub(super) task: Option<&'a Arc<Task>>,
    pub(super) reporter: &'a dyn Reporter,
}

impl<'a> Asker<'a> {
    /// An attempt of a task.
    pub(super) fn of(task: &'a Arc<Task>) -> Self {
        Self {
            operator: &task.operator,
            agent: &task.agent_name,
            attempt: task.attempt,
            seed: format!("{}.{}", task.id, task.attempt),
            own: task.agent.model.as_deref(),
            configured: task.config.get().and_then(|config| config.model.as_deref()),
            addendum: task.config.get().and_then(|config| config.system_addendum.as_deref()),
            task: Some(task),
            reporter: &*task.reporter,
        }
    }

    /// A program that has no task.
    pub(super) fn outside(request: &Json, reporter: &'a dyn Reporter) -> Self {
        Self {
            operator: "model",
            agent: "model",
            attempt: 1,
            seed: blake3::hash(request.as_str().as_bytes()).to_hex()[..16].to_owned(),
            own: None,
            configured: None,
            addendum: None,
            task: None,
            reporter,
        }
    }
}

/// Reports the pieces of an answer to a function; all else is for the log.
pub(super) struct Hears<'a>(pub(super) &'a (dyn Fn(ModelDelta) + Send + Sync));

impl Reporter for Hears<'_> {
    fn delivered(&self, _: Delivery) {}

    fn begins(&self) {}

    fn progress(&self, _: Json) {}

    fn delta(&self, delta: ModelDelta) {
        (self.0)(delta);
    }

    fn secret_accessed(&self, event: SecretAccessEvent) {
        tracing::info!(?event, "a secret was asked for");
    }
}
