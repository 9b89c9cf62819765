//! The history that an operator shows its model, and who may watch and refuse changes to it.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Content, ContentBlock, OperatorId, lifecycle::CompactionPolicy};

/// About how many characters a token has.
const CHARS_PER_TOKEN: usize = 4;
/// About how many tokens a picture takes.
const IMAGE_TOKENS: usize = 1_000;
/// What every message takes beside its content.
const MESSAGE_TOKENS: usize = 4;

/// What is known of a message beside its content.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessageMeta {
    /// What becomes of it when room is needed.
    pub policy: CompactionPolicy,
    /// Where it came from: `user`, `tool:shell`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// How important it is, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salience: Option<f64>,
    /// Counts its changes.
    pub version: u64,
}

impl MessageMeta {
    /// Metadata of a policy.
    pub fn with_policy(policy: CompactionPolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// The same, saying where the message came from.
    #[must_use]
    pub fn set_source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same, saying how important the message is.
    #[must_use]
    pub fn set_salience(mut self, salience: f64) -> Self {
        self.salience = Some(salience);
        self
    }
}

/// Who speaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// Whoever set the model up.
    System,
    /// A person.
    User,
    /// The model.
    Assistant,
    /// A tool that the model called.
    Tool {
        /// The tool.
        name: String,
        /// The provider's id of the call.
        call_id: String,
    },
}

/// A message of the history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: Content,
    /// What is known of it.
    pub meta: MessageMeta,
}

impl Message {
    /// A message that goes when room is needed.
    pub fn new(role: Role, content: Content) -> Self {
        Self { role, content, meta: MessageMeta::default() }
    }

    /// A message that stays.
    pub fn pinned(role: Role, content: Content) -> Self {
        Self { role, content, meta: MessageMeta::with_policy(CompactionPolicy::Pinned) }
    }

    /// About how many tokens it takes; for pressure, never for bills.
    pub fn estimated_tokens(&self) -> usize {
        let tokens = |text: &str| text.len() / CHARS_PER_TOKEN;
        let content: usize = match &self.content {
            Content::Text(text) => tokens(text),
            Content::Blocks(blocks) => blocks
                .iter()
                .map(|block| match block {
                    ContentBlock::Text { text } => tokens(text),
                    ContentBlock::Image { .. } => IMAGE_TOKENS,
                    ContentBlock::ToolUse { input, .. } => tokens(&input.to_string()),
                    ContentBlock::ToolResult { content, .. } => tokens(content),
                    ContentBlock::Custom { data, .. } => tokens(&data.to_string()),
                })
                .sum(),
        };
        content + MESSAGE_TOKENS
    }

    /// All its text, tool results included, with a space between blocks.
    pub fn text_content(&self) -> String {
        match &self.content {
            Content::Text(text) => text.clone(),
            Content::Blocks(blocks) => {
                let texts = blocks.iter().filter_map(|block| match block {
                    ContentBlock::Text { text } => Some(text.as_str()),
                    ContentBlock::ToolResult { content, .. } => Some(content.as_str()),
                    ContentBlock::Image { .. }
                    | ContentBlock::ToolUse { .. }
                    | ContentBlock::Custom { .. } => None,
                });
                texts.collect::<Vec<_>>().join(" ")
            }
        }
    }
}

/// A message of an operator's own type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextMessage<M> {
    /// The message.
    pub message: M,
    /// What is known of it.
    pub meta: MessageMeta,
}

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Position {
    /// After all others.
    Back,
    /// Before all others.
    Front,
    /// At this place, from 0; the length itself is the back.
    At(usize),
}

/// What a watcher says of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatcherVerdict {
    /// It may be.
    Allow,
    /// It may not.
    Reject {
        /// Why.
        reason: String,
    },
}

/// Watches changes of a history, and may refuse some. What is not overridden allows everything.
pub trait ContextWatcher: Send + Sync {
    /// A message is about to come in.
    fn on_inject(&self, msg: &dyn fmt::Debug, pos: Position) -> WatcherVerdict {
        let _ = (msg, pos);
        WatcherVerdict::Allow
    }

    /// So many messages are about to go.
    fn on_remove(&self, count: usize) -> WatcherVerdict {
        let _ = count;
        WatcherVerdict::Allow
    }

    /// A history of so many messages is about to be made smaller.
    fn on_pre_compact(&self, message_count: usize) -> WatcherVerdict {
        let _ = message_count;
        WatcherVerdict::Allow
    }

    /// It was made smaller.
    fn on_post_compact(&self, removed: usize, remaining: usize) {
        let _ = (removed, remaining);
    }
}

/// A history as it is now, without what is said in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ContextSnapshot {
    /// How many messages it has.
    pub message_count: usize,
    /// What is known of each, in order.
    pub message_metas: Vec<MessageMeta>,
    /// Whether there is a system prompt.
    pub has_system: bool,
    /// Whose history it is.
    pub operator_id: OperatorId,
    /// About how many tokens it takes.
    pub estimated_tokens: usize,
}

/// Why a history was not changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ContextError {
    /// A watcher refused.
    #[error("rejected by watcher: {reason}")]
    Rejected {
        /// Why.
        reason: String,
    },
    /// There is no such place.
    #[error("index {index} is out of bounds (len = {len})")]
    OutOfBounds {
        /// The place.
        index: usize,
        /// How many messages there are.
        len: usize,
    },
}

/// Those who watch a history, in the order in which they came.
#[derive(Clone, Default)]
struct Watchers(Vec<Arc<dyn ContextWatcher>>);

impl Watchers {
    /// Asks each; the first refusal stands.
    fn ask(
        &self,
        question: impl Fn(&dyn ContextWatcher) -> WatcherVerdict,
    ) -> Result<(), ContextError> {
        self.0.iter().try_for_each(|watcher| match question(&**watcher) {
            WatcherVerdict::Allow => Ok(()),
            WatcherVerdict::Reject { reason } => Err(ContextError::Rejected { reason }),
        })
    }

    /// Tells each, whatever it says.
    fn tell(&self, news: impl Fn(&dyn ContextWatcher)) {
        self.0.iter().for_each(|watcher| news(&**watcher));
    }
}

fn put<T>(list: &mut Vec<T>, item: T, at: Position) -> Result<(), ContextError> {
    let index = match at {
        Position::Back => list.len(),
        Position::Front => 0,
        Position::At(index) => index,
    };
    if index > list.len() {
        return Err(ContextError::OutOfBounds { index, len: list.len() });
    }
    list.insert(index, item);
    Ok(())
}

/// A history of messages of an operator's own type.
pub struct OperatorContext<M: Clone + fmt::Debug> {
    operator_id: OperatorId,
    messages: Vec<ContextMessage<M>>,
    system: Option<String>,
    watchers: Watchers,
}

impl<M: Clone + fmt::Debug> OperatorContext<M> {
    /// An empty history.
    pub fn new(operator_id: OperatorId) -> Self {
        let watchers = Watchers::default();
        Self { operator_id, messages: Vec::new(), system: None, watchers }
    }

    /// Adds a watcher, asked after those before it.
    pub fn add_watcher(&mut self, watcher: Arc<dyn ContextWatcher>) {
        self.watchers.0.push(watcher);
    }

    /// The messages, in order.
    pub fn messages(&self) -> &[ContextMessage<M>] {
        &self.messages
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The system prompt.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Whose history it is.
    pub fn operator_id(&self) -> &OperatorId {
        &self.operator_id
    }

    /// The history as it is now.
    pub fn snapshot(&self) -> ContextSnapshot {
        let system = self.system.as_ref().map_or(0, String::len);
        let shown = self.messages.iter().map(|it| format!("{:?}", it.message).len());
        ContextSnapshot {
            message_count: self.messages.len(),
            message_metas: self.messages.iter().map(|it| it.meta.clone()).collect(),
            has_system: self.system.is_some(),
            operator_id: self.operator_id.clone(),
            estimated_tokens: (system + shown.sum::<usize>()) / CHARS_PER_TOKEN,
        }
    }

    /// Sets the system prompt.
    pub fn set_system(&mut self, system: impl Into<String>) {
        self.system = Some(system.into());
    }

    /// Takes the system prompt away.
    pub fn clear_system(&mut self) {
        self.system = None;
    }

    /// Puts a message in.
    ///
    /// # Errors
    /// A watcher's refusal, or a place that is not there.
    pub fn inject(&mut self, msg: ContextMessage<M>, pos: Position) -> Result<(), ContextError> {
        self.watchers.ask(|watcher| watcher.on_inject(&msg, pos))?;
        put(&mut self.messages, msg, pos)
    }

    fn may_remove(&self, count: usize) -> Result<(), ContextError> {
        let len = self.messages.len();
        if count > len {
            return Err(ContextError::OutOfBounds { index: count, len });
        }
        if count == 0 {
            return Ok(());
        }
        self.watchers.ask(|watcher| watcher.on_remove(count))
    }

    /// Takes the last messages away and returns them.
    ///
    /// # Errors
    /// A watcher's refusal, or more than there are.
    pub fn truncate_back(&mut self, count: usize) -> Result<Vec<ContextMessage<M>>, ContextError> {
        self.may_remove(count)?;
        Ok(self.messages.split_off(self.messages.len() - count))
    }

    /// Takes the first messages away and returns them.
    ///
    /// # Errors
    /// A watcher's refusal, or more than there are.
    pub fn truncate_front(&mut self, count: usize) -> Result<Vec<ContextMessage<M>>, ContextError> {
        self.may_remove(count)?;
        Ok(self.messages.drain(..count).collect())
    }

    /// Takes the messages away that `pred` picks and returns them; the others keep their order.
    ///
    /// # Errors
    /// A watcher's refusal.
    pub fn remove_where(
        &mut self,
        pred: impl Fn(&ContextMessage<M>) -> bool,
    ) -> Result<Vec<ContextMessage<M>>, ContextError> {
        self.may_remove(self.messages.iter().filter(|it| pred(it)).count())?;
        Ok(self.messages.extract_if(.., |it| pred(it)).collect())
    }

    /// Changes every message and counts each change.
    pub fn transform(&mut self, mut f: impl FnMut(&mut ContextMessage<M>)) {
        for message in &mut self.messages {
            f(message);
            message.meta.version += 1;
        }
    }

    /// The messages that `pred` picks.
    pub fn extract(&self, pred: impl Fn(&ContextMessage<M>) -> bool) -> Vec<&ContextMessage<M>> {
        self.messages.iter().filter(|it| pred(it)).collect()
    }

    /// The messages, to be changed past every watcher.
    pub fn messages_mut(&mut self) -> &mut Vec<ContextMessage<M>> {
        &mut self.messages
    }

    /// Replaces the messages and returns the earlier ones.
    ///
    /// # Errors
    /// A watcher's refusal.
    pub fn replace_messages(
        &mut self,
        new: Vec<ContextMessage<M>>,
    ) -> Result<Vec<ContextMessage<M>>, ContextError> {
        let (before, after) = (self.messages.len(), new.len());
        self.watchers.ask(|watcher| watcher.on_pre_compact(before))?;
        let old = std::mem::replace(&mut self.messages, new);
        self.watchers.tell(|it| it.on_post_compact(before.saturating_sub(after), after));
        Ok(old)
    }
}

/// A history of [`Message`]s.
pub struct Context {
    operator_id: OperatorId,
    messages: Vec<Message>,
    watchers: Watchers,
}

impl Context {
    /// An empty history.
    pub fn new(operator_id: OperatorId) -> Self {
        Self { operator_id, messages: Vec::new(), watchers: Watchers::default() }
    }

    /// Adds a watcher, asked after those before it.
    pub fn add_watcher(&mut self, watcher: Arc<dyn ContextWatcher>) {
        self.watchers.0.push(watcher);
    }

    /// The messages, in order.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whose history it is.
    pub fn operator_id(&self) -> &OperatorId {
        &self.operator_id
    }

    /// About how many tokens all of it takes.
    pub fn estimated_tokens(&self) -> usize {
        self.messages.iter().map(Message::estimated_tokens).sum()
    }

    /// Adds a message at the back.
    ///
    /// # Errors
    /// A watcher's refusal.
    pub fn push(&mut self, msg: Message) -> Result<(), ContextError> {
        self.insert(msg, Position::Back)
    }

    /// Puts a message in.
    ///
    /// # Errors
    /// A watcher's refusal, or a place that is not there.
    pub fn insert(&mut self, msg: Message, pos: Position) -> Result<(), ContextError> {
        self.watchers.ask(|watcher| watcher.on_inject(&msg, pos))?;
        put(&mut self.messages, msg, pos)
    }

    /// Keeps the last messages, whatever their policy, and returns the others.
    pub fn compact_truncate(&mut self, keep: usize) -> Vec<Message> {
        if keep >= self.messages.len() {
            return Vec::new();
        }
        let first_kept = self.messages.len() - keep;
        self.compact(|messages| messages.drain(..first_kept).collect())
    }

    /// Keeps the pinned messages and returns the others.
    pub fn compact_by_policy(&mut self) -> Vec<Message> {
        let goes = |message: &mut Message| message.meta.policy != CompactionPolicy::Pinned;
        self.compact(|messages| messages.extract_if(.., goes).collect())
    }

    /// Replaces the messages by those that `f` makes of them, and returns the earlier ones.
    pub fn compact_with(&mut self, f: impl FnOnce(&[Message]) -> Vec<Message>) -> Vec<Message> {
        self.compact(|messages| {
            let kept = f(messages);
            std::mem::replace(messages, kept)
        })
    }

    /// Makes the history smaller between the two calls that watchers get.
    fn compact(&mut self, change: impl FnOnce(&mut Vec<Message>) -> Vec<Message>) -> Vec<Message> {
        let before = self.messages.len();
        // These have no way to say no: whoever must be able to, guards the call.
        self.watchers.tell(|watcher| drop(watcher.on_pre_compact(before)));
        let gone = change(&mut self.messages);
        let after = self.messages.len();
        self.watchers.tell(|it| it.on_post_compact(before.saturating_sub(after), after));
        gone
    }

    /// The messages, to be changed past every watcher.
    pub fn messages_mut(&mut self) -> &mut Vec<Message> {
        &mut self.messages
    }

    /// The history as it is now.
    pub fn snapshot(&self) -> ContextSnapshot {
        ContextSnapshot {
            message_count: self.messages.len(),
            message_metas: self.messages.iter().map(|it| it.meta.clone()).collect(),
            has_system: self.messages.iter().any(|it| it.role == Role::System),
            operator_id: self.operator_id.clone(),
            estimated_tokens: self.estimated_tokens(),
        }
    }
}

#[cfg(test)]
mod tests;
