//! The operator that is a person.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;

use super::{Backend, Builtin, Inquiry, Prompt, Reply, Residence, Settings, Task};
use crate::{
    flow::Asking,
    protocol::{Failure, Json},
    store::TaskRow,
};

/// The kind of operators that are people.
pub const HUMAN: &str = "human";
/// Leaves the task in the inbox, which is the table of open tasks: there is nothing to send, and
/// the answer comes through the API.
#[derive(Debug, Clone, Copy, Default)]
pub struct Human;

/// Returns true if the answer to a form is a rejection: `false`, or an object whose `approved` is
/// false.
pub fn says_no(output: &Json) -> bool {
    let value = output.to_value();
    value == false || value.get("approved").is_some_and(|approved| *approved == false)
}

/// Returns the inquiry of an open task, if it is a task for people.
pub fn inquiry_of(row: &TaskRow) -> Option<Inquiry> {
    if row.kind != HUMAN {
        return None;
    }
    let prompt: Prompt = serde_json::from_str(&row.prompt).ok()?;
    let asked = prompt.inquiry.clone();
    // A row of an older release asks anyone, for one answer.
    Some(asked.unwrap_or_else(|| Inquiry::new(&prompt, &Asking::default(), row.opened_ms)))
}

#[async_trait]
impl Backend for Human {
    fn kind(&self) -> &'static str {
        HUMAN
    }

    fn residence(&self) -> Residence {
        Residence::Elsewhere
    }

    fn asks_people(&self) -> bool {
        true
    }

    async fn execute(&self, _task: Arc<Task>, _input: Json) -> Result<Reply, Failure> {
        Ok(Reply::Parked)
    }
}

/// The settings of `kind = "human"`, which has none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HumanSettings {}

#[async_trait]
impl Settings for HumanSettings {
    fn kind(&self) -> &'static str {
        HUMAN
    }

    fn build(&self, _builtin: &Builtin) -> Arc<dyn Backend> {
        Arc::new(Human)
    }

    async fn inspect(&self, _builtin: &Builtin) -> Result<String, String> {
        Ok("people answer by `moonswarm inbox`".to_owned())
    }
}
