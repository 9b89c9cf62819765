//! The operator that is a person.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;

use super::{Backend, Builtin, Reply, Residence, Settings, Task};
use crate::protocol::{Failure, Json};

/// Leaves the task in the inbox. The open task's row is the inbox, so there is nothing to send:
/// the answer comes through the API.
#[derive(Debug, Clone, Copy, Default)]
pub struct Human;

#[async_trait]
impl Backend for Human {
    fn kind(&self) -> &'static str {
        "human"
    }

    fn residence(&self) -> Residence {
        Residence::Elsewhere
    }

    async fn execute(&self, _task: Arc<Task>, _input: Json) -> Result<Reply, Failure> {
        Ok(Reply::Parked)
    }
}

/// `kind = "human"` in a file: it has no keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HumanSettings {}

#[async_trait]
impl Settings for HumanSettings {
    fn kind(&self) -> &'static str {
        "human"
    }

    fn build(&self, _builtin: &Builtin) -> Arc<dyn Backend> {
        Arc::new(Human)
    }

    async fn inspect(&self) -> Result<String, String> {
        Ok("people answer by `moonswarm inbox`".to_owned())
    }
}
