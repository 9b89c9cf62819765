//! The texts for a command line, and the conversation that it continues.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    journal::Usage,
    operator::Task,
    protocol::{Effect, Failure, Json, OperatorId, Scope, WorkflowId, failure::kind},
};

/// The prefix of the keys under which conversations are kept.
const KEY: &str = "agent_cli/";
/// The maximum length of the id of a conversation, in bytes.
const ID: usize = 256;

/// Returns the system prompt for an argument, if the program has one, and the text on stdin.
pub(super) fn texts(task: &Task, input: &Json, has_flag: bool) -> (Option<String>, String) {
    let prompt = task.prompt.as_deref();
    let mut text = match prompt.map(|it| it.prompt.as_str()).filter(|text| !text.is_empty()) {
        Some(text) => text.to_owned(),
        None => match input.to_value() {
            serde_json::Value::String(text) => text,
            _ => input.as_str().to_owned(),
        },
    };
    if let Some(schema) = &task.agent.output {
        text.push_str("\n\nAnswer with JSON alone that fits this JSON Schema:\n");
        text.push_str(schema.as_str());
    }
    match (task.system(), has_flag) {
        (Some(system), false) => (None, format!("{system}\n\n{text}")),
        // One that begins with a list is no flag.
        (Some(system), true) if system.starts_with('-') => (Some(format!("\n{system}")), text),
        (system, _) => (system, text),
    }
}

/// The place where the conversation of a session is kept: that of the operator in its run, because
/// the programs keep theirs by directory.
fn place(task: &Task) -> Option<(Scope, String)> {
    let session = task.opts.session_of()?;
    let scope = Scope::Operator {
        workflow: WorkflowId::new(task.run.to_string()),
        operator: OperatorId::new(&**task.executor()),
    };
    Some((scope, format!("{KEY}{session}")))
}

/// A conversation that a program keeps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Conversation {
    /// The id of the conversation.
    pub(super) id: String,
    /// The usage of all of it so far, from a program that reports nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) used: Option<Usage>,
}

/// Returns true for an id that may become an argument: it comes from a state that flows may write, or
/// from a program, and `--x` would be a flag.
pub(super) fn is_id(id: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    id.len() <= ID && id.starts_with(|c: char| c.is_ascii_alphanumeric()) && id.bytes().all(is_part)
}

/// Returns the conversation that a task continues.
pub(super) async fn conversation(task: &Task) -> Result<Option<Conversation>, Failure> {
    let Some((scope, key)) = place(task) else { return Ok(None) };
    let read = task.state.read(&scope, &key).await.map_err(|error| {
        Failure::new(kind::PROCESS, format!("failed to read {key:?}: {error}")).retryable()
    })?;
    let kept = read.and_then(|kept| match kept {
        Value::String(id) => Some(Conversation { id, used: None }),
        kept => serde_json::from_value(kept).ok(),
    });
    Ok(kept.filter(|kept| is_id(&kept.id)))
}

/// Returns the effect that keeps a conversation, with the result that it led to.
pub(super) fn kept(task: &Task, conversation: &Conversation) -> Option<Effect> {
    let (scope, key) = place(task)?;
    let value = match &conversation.used {
        None => json!(conversation.id),
        Some(_) => json!(conversation),
    };
    Some(Effect::WriteMemory {
        scope,
        key,
        value,
        tier: None,
        lifetime: None,
        content_kind: None,
        salience: None,
        ttl: None,
    })
}
