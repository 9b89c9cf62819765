//! The receivers of a run's replies.

use tokio::sync::oneshot;

use crate::{
    blueprint::ContextNames,
    engine::{EngineError, PromptView, RunView},
    operator::DurableLease,
    protocol::{ArtifactId, Json},
    store::Changed,
};

/// The sender of a reply. A dropped receiver cancels nothing.
pub(crate) type ReplyTo<T> = oneshot::Sender<Result<T, EngineError>>;

/// The receiver of the reply to a request.
pub(crate) type Answering = oneshot::Receiver<Result<Answer, EngineError>>;

/// A request with the sender of its reply.
pub(crate) struct Asked<T> {
    pub(crate) ask: T,
    pub(crate) reply: ReplyTo<Answer>,
}

impl<T> Asked<T> {
    /// Replies with an error.
    pub(crate) fn refuse(self, error: EngineError) {
        // The caller may be gone.
        let _ = self.reply.send(Err(error));
    }
}

/// The answer to a request.
pub(crate) enum Answer {
    /// The request was carried out.
    Done,
    /// The run as of the time when the reply is sent.
    Run,
    /// A view of the run.
    View(Box<RunView>),
    /// The return value of a query function.
    Json(Json),
    /// A value of state, if there is one.
    Value(Option<Json>),
    /// The results of changes of state.
    Changed(Vec<Changed>),
    /// The epoch of a seat.
    Epoch(u32),
    /// A leased task.
    Lease(DurableLease),
    /// The prompt of a task.
    Prompt(Box<PromptView>),
    /// True if a result was accepted now, false if it had been before.
    Accepted(bool),
    /// A file: its id, hash and size.
    File((ArtifactId, String, u64)),
    /// The deadline of an attempt, and whether its worker must stop.
    Alive((Option<u64>, bool)),
    /// The names of what a worker may open.
    Context(Box<ContextNames>),
    /// The run's nonce.
    Nonce(u64),
    /// The deadline of an attempt.
    Deadline(Option<u64>),
}

/// An answer with the time of its reply.
pub(crate) enum Answered {
    /// Sent at once: the request was refused, or changed nothing.
    Now(Result<Answer, EngineError>),
    /// Sent once the changes are durable.
    Durable(Result<Answer, EngineError>),
}

/// A success waits for its commit; an error does not.
impl From<Result<Answer, EngineError>> for Answered {
    fn from(answer: Result<Answer, EngineError>) -> Self {
        match answer {
            Ok(_) => Self::Durable(answer),
            Err(_) => Self::Now(answer),
        }
    }
}

/// The content of one kind of answer.
pub(crate) trait Reply: Sized {
    /// Returns the content of an answer, or `None` if the answer is of another kind.
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
    Box<ContextNames>: Context,
    Json: Json,
    Option<Json>: Value,
    Vec<Changed>: Changed,
    u32: Epoch,
    DurableLease: Lease,
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

/// A caller that waits for a run.
pub(crate) struct Waiter {
    pub(crate) until: WaitFor,
    pub(crate) reply: oneshot::Sender<RunView>,
}

/// The condition to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// The run has ended.
    Ended,
    /// The run has ended, or only people are left to wait for.
    EndedOrPeople,
}
