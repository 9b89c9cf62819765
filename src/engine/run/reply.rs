//! The receivers of a run's replies.

use tokio::sync::oneshot;

use crate::{
    engine::{EngineError, PromptView, RunView},
    protocol::{ArtifactId, Json},
    store::Changed,
};

/// The sender of a reply. A dropped receiver cancels nothing.
pub(crate) type ReplyTo<T> = oneshot::Sender<Result<T, EngineError>>;

/// A request, and where its answer goes.
pub(crate) struct Asked<T> {
    pub(crate) ask: T,
    pub(crate) reply: ReplyTo<Answer>,
}

impl<T> Asked<T> {
    /// Answers with a refusal.
    pub(crate) fn refuse(self, error: EngineError) {
        // Who asked may be gone.
        let _ = self.reply.send(Err(error));
    }
}

/// What a request is answered with.
pub(crate) enum Answer {
    /// It was done.
    Done,
    /// The run, as it is when the answer leaves.
    Run,
    /// The same, looked at.
    View(Box<RunView>),
    /// What a query function returned.
    Json(Json),
    /// A value of state, if there is one.
    Value(Option<Json>),
    /// What came of changes of state.
    Changed(Vec<Changed>),
    /// The epoch of a seat.
    Epoch(u32),
    /// A leased task.
    Lease(Lease),
    /// What a worker is to do.
    Prompt(Box<PromptView>),
    /// Whether a result was accepted now, and not before.
    Accepted(bool),
    /// A file: its id, hash and size.
    File((ArtifactId, String, u64)),
    /// The time of an attempt's end, and whether its worker is to stop.
    Alive((Option<u64>, bool)),
    /// The run's nonce.
    Nonce(u64),
    /// The time of an attempt's end.
    Deadline(Option<u64>),
}

/// When a request is answered.
pub(crate) enum Answered {
    /// At once: it was refused, or changed nothing.
    Now(Result<Answer, EngineError>),
    /// Once what came of it is durable.
    Durable(Result<Answer, EngineError>),
}

/// What is done waits for its commit; a refusal does not.
impl From<Result<Answer, EngineError>> for Answered {
    fn from(answer: Result<Answer, EngineError>) -> Self {
        match answer {
            Ok(_) => Self::Durable(answer),
            Err(_) => Self::Now(answer),
        }
    }
}

/// What one kind of request is answered with.
pub(crate) trait Reply: Sized {
    /// Takes it out of an answer; nothing where that is of another kind.
    fn take(answer: Answer) -> Option<Self>;
}

macro_rules! replies {
    ($($of:ty: $kind:ident),* $(,)?) => {$(
        impl Reply for $of {
            fn take(answer: Answer) -> Option<Self> {
                match answer {
                    Answer::$kind(it) => Some(it),
                    _ => None,
                }
            }
        }
    )*};
}

replies! {
    Box<RunView>: View,
    Json: Json,
    Option<Json>: Value,
    Vec<Changed>: Changed,
    u32: Epoch,
    Lease: Lease,
    Box<PromptView>: Prompt,
    bool: Accepted,
    (ArtifactId, String, u64): File,
    (Option<u64>, bool): Alive,
    u64: Nonce,
    Option<u64>: Deadline,
}

impl Reply for () {
    fn take(answer: Answer) -> Option<Self> {
        matches!(answer, Answer::Done).then_some(())
    }
}

/// Somebody who waits for a run.
pub(crate) struct Waiter {
    pub(crate) until: WaitFor,
    pub(crate) reply: oneshot::Sender<RunView>,
}

/// A task that was leased.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) handle: String,
    pub(crate) scheduled_ms: u64,
    pub(crate) lease_ms: u64,
}

/// The condition to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// The run has ended.
    Ended,
    /// The run has ended, or only people are left to wait for.
    EndedOrPeople,
}
