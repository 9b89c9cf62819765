//! The message history of a model, and the watchers that can reject changes to it.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Content, ContentBlock, OperatorId, lifecycle::CompactionPolicy};

/// Estimated characters per token.
const CHARS_PER_TOKEN: usize = 4;
/// Estimated tokens per image.
const IMAGE_TOKENS: usize = 1_000;
/// Estimated tokens of a message in addition to its content.
const MESSAGE_TOKENS: usize = 4;

/// Metadata of a message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessageMeta {
    /// The treatment of the message in a compaction.
    pub policy: CompactionPolicy,
    /// The origin of the message: `user`, `tool:shell`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The importance, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salience: Option<f64>,
    /// The number of changes.
    pub version: u64,
}

impl MessageMeta {
    /// Creates metadata with a policy.
    pub fn with_policy(policy: CompactionPolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Sets the origin of the message.
    #[must_use]
    pub fn set_source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Sets the importance of the message.
    #[must_use]
    pub fn set_salience(mut self, salience: f64) -> Self {
        self.salience = Some(salience);
        self
    }
}

/// The author of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// The system prompt.
    System,
    /// A person.
    User,
    /// The model.
    Assistant,
    /// A tool that the model called.
    Tool {
        /// The name of the tool.
        name: String,
        /// The provider's id of the call.
        call_id: String,
    },
}

/// A message of the history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The content.
    pub content: Content,
    /// The metadata.
    pub meta: MessageMeta,
}

impl Message {
    /// Creates a message that compaction may remove.
    pub fn new(role: Role, content: Content) -> Self {
        Self { role, content, meta: MessageMeta::default() }
    }

    /// Creates a pinned message, which compaction keeps.
    pub fn pinned(role: Role, content: Content) -> Self {
        Self { role, content, meta: MessageMeta::with_policy(CompactionPolicy::Pinned) }
    }

    /// Returns the estimated number of tokens; a measure of pressure, not of cost.
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

    /// Returns all text, tool results included, with a space between blocks.
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

/// A message of an operator's own type, with its metadata.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextMessage<M> {
    /// The message.
    pub message: M,
    /// The metadata.
    pub meta: MessageMeta,
}

/// The position at which a message is inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Position {
    /// After all others.
    Back,
    /// Before all others.
    Front,
    /// At this index, from 0; the length of the history is the back.
    At(usize),
}

/// The verdict of a watcher on a change.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatcherVerdict {
    /// Accepts the change.
    Allow,
    /// Rejects the change.
    Reject {
        /// The reason.
        reason: String,
    },
}

/// Watches changes of a history, and may reject some. The default methods allow everything.
pub trait ContextWatcher: Send + Sync {
    /// Called before a message is inserted.
    fn on_inject(&self, msg: &dyn fmt::Debug, pos: Position) -> WatcherVerdict {
        let _ = (msg, pos);
        WatcherVerdict::Allow
    }

    /// Called before `count` messages are removed.
    fn on_remove(&self, count: usize) -> WatcherVerdict {
        let _ = count;
        WatcherVerdict::Allow
    }

    /// Called before a history of `message_count` messages is compacted.
    fn on_pre_compact(&self, message_count: usize) -> WatcherVerdict {
        let _ = message_count;
        WatcherVerdict::Allow
    }

    /// Called after a compaction.
    fn on_post_compact(&self, removed: usize, remaining: usize) {
        let _ = (removed, remaining);
    }
}

/// The state of a history, without the content of its messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ContextSnapshot {
    /// The number of messages.
    pub message_count: usize,
    /// The metadata of each message, in order.
    pub message_metas: Vec<MessageMeta>,
    /// True if there is a system prompt.
    pub has_system: bool,
    /// The operator that owns the history.
    pub operator_id: OperatorId,
    /// The estimated number of tokens.
    pub estimated_tokens: usize,
}

/// The reason why a history was not changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ContextError {
    /// A watcher rejected the change.
    #[error("rejected by watcher: {reason}")]
    Rejected {
        /// The reason.
        reason: String,
    },
    /// The index or count is beyond the history.
    #[error("index {index} is out of bounds (len = {len})")]
    OutOfBounds {
        /// The index or count.
        index: usize,
        /// The number of messages.
        len: usize,
    },
}

/// The watchers of a history, in the order in which they were added.
#[derive(Clone, Default)]
struct Watchers(Vec<Arc<dyn ContextWatcher>>);

impl Watchers {
    /// Calls each watcher until the first rejection.
    fn ask(
        &self,
        question: impl Fn(&dyn ContextWatcher) -> WatcherVerdict,
    ) -> Result<(), ContextError> {
        self.0.iter().try_for_each(|watcher| match question(&**watcher) {
            WatcherVerdict::Allow => Ok(()),
            WatcherVerdict::Reject { reason } => Err(ContextError::Rejected { reason }),
        })
    }

    /// Notifies each watcher.
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
    /// Creates an empty history.
    pub fn new(operator_id: OperatorId) -> Self {
        let watchers = Watchers::default();
        Self { operator_id, messages: Vec::new(), system: None, watchers }
    }

    /// Adds a watcher, called after the earlier ones.
    pub fn add_watcher(&mut self, watcher: Arc<dyn ContextWatcher>) {
        self.watchers.0.push(watcher);
    }

    /// Returns the messages, in order.
    pub fn messages(&self) -> &[ContextMessage<M>] {
        &self.messages
    }

    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns true if there are no messages.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns the system prompt.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Returns the operator that owns the history.
    pub fn operator_id(&self) -> &OperatorId {
        &self.operator_id
    }

    /// Returns the current state of the history.
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

    /// Removes the system prompt.
    pub fn clear_system(&mut self) {
        self.system = None;
    }

    /// Inserts a message.
    ///
    /// # Errors
    /// Fails when a watcher rejects the message, or `pos` is out of bounds.
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

    /// Removes the last `count` messages and returns them.
    ///
    /// # Errors
    /// Fails when a watcher rejects the removal, or there are fewer than `count` messages.
    pub fn truncate_back(&mut self, count: usize) -> Result<Vec<ContextMessage<M>>, ContextError> {
        self.may_remove(count)?;
        Ok(self.messages.split_off(self.messages.len() - count))
    }

    /// Removes the first `count` messages and returns them.
    ///
    /// # Errors
    /// Fails when a watcher rejects the removal, or there are fewer than `count` messages.
    pub fn truncate_front(&mut self, count: usize) -> Result<Vec<ContextMessage<M>>, ContextError> {
        self.may_remove(count)?;
        Ok(self.messages.drain(..count).collect())
    }

    /// Removes the messages that match `pred` and returns them; the others keep their order.
    ///
    /// # Errors
    /// Fails when a watcher rejects the removal.
    pub fn remove_where(
        &mut self,
        pred: impl Fn(&ContextMessage<M>) -> bool,
    ) -> Result<Vec<ContextMessage<M>>, ContextError> {
        self.may_remove(self.messages.iter().filter(|it| pred(it)).count())?;
        Ok(self.messages.extract_if(.., |it| pred(it)).collect())
    }

    /// Applies `f` to every message, and increments the version of each.
    pub fn transform(&mut self, mut f: impl FnMut(&mut ContextMessage<M>)) {
        for message in &mut self.messages {
            f(message);
            message.meta.version += 1;
        }
    }

    /// Returns the messages that match `pred`.
    pub fn extract(&self, pred: impl Fn(&ContextMessage<M>) -> bool) -> Vec<&ContextMessage<M>> {
        self.messages.iter().filter(|it| pred(it)).collect()
    }

    /// Returns the messages for changes that no watcher sees.
    pub fn messages_mut(&mut self) -> &mut Vec<ContextMessage<M>> {
        &mut self.messages
    }

    /// Replaces the messages and returns the earlier ones.
    ///
    /// # Errors
    /// Fails when a watcher rejects the change.
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
    /// Creates an empty history.
    pub fn new(operator_id: OperatorId) -> Self {
        Self { operator_id, messages: Vec::new(), watchers: Watchers::default() }
    }

    /// Adds a watcher, called after the earlier ones.
    pub fn add_watcher(&mut self, watcher: Arc<dyn ContextWatcher>) {
        self.watchers.0.push(watcher);
    }

    /// Returns the messages, in order.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns true if there are no messages.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns the operator that owns the history.
    pub fn operator_id(&self) -> &OperatorId {
        &self.operator_id
    }

    /// Returns the estimated number of tokens of all messages.
    pub fn estimated_tokens(&self) -> usize {
        self.messages.iter().map(Message::estimated_tokens).sum()
    }

    /// Appends a message.
    ///
    /// # Errors
    /// Fails when a watcher rejects the message.
    pub fn push(&mut self, msg: Message) -> Result<(), ContextError> {
        self.insert(msg, Position::Back)
    }

    /// Inserts a message.
    ///
    /// # Errors
    /// Fails when a watcher rejects the message, or `pos` is out of bounds.
    pub fn insert(&mut self, msg: Message, pos: Position) -> Result<(), ContextError> {
        self.watchers.ask(|watcher| watcher.on_inject(&msg, pos))?;
        put(&mut self.messages, msg, pos)
    }

    /// Keeps the last `keep` messages, whatever their policy, and returns the others.
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

    /// Replaces the messages with those that `f` returns, and returns the earlier ones.
    pub fn compact_with(&mut self, f: impl FnOnce(&[Message]) -> Vec<Message>) -> Vec<Message> {
        self.compact(|messages| {
            let kept = f(messages);
            std::mem::replace(messages, kept)
        })
    }

    /// Applies `change` between the two notifications of the watchers.
    fn compact(&mut self, change: impl FnOnce(&mut Vec<Message>) -> Vec<Message>) -> Vec<Message> {
        let before = self.messages.len();
        // Compaction cannot fail, so the verdict is ignored. A caller that needs a veto must check
        // before.
        self.watchers.tell(|watcher| drop(watcher.on_pre_compact(before)));
        let gone = change(&mut self.messages);
        let after = self.messages.len();
        self.watchers.tell(|it| it.on_post_compact(before.saturating_sub(after), after));
        gone
    }

    /// Returns the messages for changes that no watcher sees.
    pub fn messages_mut(&mut self) -> &mut Vec<Message> {
        &mut self.messages
    }

    /// Returns the current state of the history.
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
