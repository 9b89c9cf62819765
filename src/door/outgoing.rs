//! Requests that are forwarded. Small bodies are kept, so that they can be sent again.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes, HttpBody as _},
    http::{HeaderMap, request::Parts},
    response::Response,
};
use hyper::upgrade::OnUpgrade;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{Code, length::announced, problem::Problem, unanswered};

/// The maximum size of a body that is kept.
const LONGEST: usize = 1 << 20;
/// The maximum size of all such bodies together.
const ALL: usize = 128 << 20;

/// A request as it is sent to other nodes.
pub(super) struct Outbound {
    /// Its head as it came.
    pub(super) original: Parts,
    /// Its head as it is sent.
    pub(super) head: Parts,
    pub(super) upgrade: Option<OnUpgrade>,
    pub(super) body: Outgoing,
    /// True if it may be sent again after a node has received it.
    pub(super) is_safe: bool,
    /// True once a node may have received it.
    pub(super) was_sent: bool,
}

impl Outbound {
    /// The answer if no node answers it any more.
    pub(super) fn given_up(&self) -> Response {
        unanswered::given_up(&self.head.method, self.was_sent)
    }
}

/// The body of a request.
pub(super) enum Outgoing {
    /// A body that is kept, so that it can be sent again. It takes a part of the space for such bodies.
    Kept { bytes: Bytes, _space: Option<OwnedSemaphorePermit> },
    /// A body that is sent once, as it arrives.
    Streams(Option<Body>),
}

impl Outgoing {
    /// Returns the body; one that is not kept, once.
    pub(super) fn take(&mut self) -> Option<Body> {
        match self {
            Self::Kept { bytes, .. } => Some(Body::from(bytes.clone())),
            Self::Streams(body) => body.take(),
        }
    }

    /// Takes a body back of which nothing was sent.
    pub(super) fn give_back(&mut self, unsent: Body) {
        if let Self::Streams(body) = self {
            *body = Some(unsent);
        }
    }

    /// Returns true if it can be sent again.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept { .. })
    }
}

/// The space for bodies that are kept.
pub(super) struct Kept(Arc<Semaphore>);

impl Default for Kept {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ALL)))
    }
}

impl Kept {
    /// Keeps a body that is small enough, so that it can be sent again.
    ///
    /// # Errors
    /// Returns a problem if the body does not arrive within `time`.
    pub(super) async fn keep(
        &self,
        headers: &HeaderMap,
        body: Body,
        time: Duration,
    ) -> Result<Outgoing, Problem> {
        if body.is_end_stream() {
            return Ok(Outgoing::Kept { bytes: Bytes::new(), _space: None });
        }
        let length = announced(headers).filter(|length| *length <= LONGEST);
        let Some(length) = length.and_then(|it| u32::try_from(it).ok()) else {
            return Ok(Outgoing::Streams(Some(body)));
        };
        let Ok(space) = Arc::clone(&self.0).try_acquire_many_owned(length) else {
            return Ok(Outgoing::Streams(Some(body)));
        };
        match timeout(time, axum::body::to_bytes(body, LONGEST)).await {
            Ok(Ok(bytes)) => Ok(Outgoing::Kept { bytes, _space: Some(space) }),
            Ok(Err(_)) => {
                let detail = "the connection closed before the body was complete";
                Err(Problem::new(Code::BadRequest, detail))
            }
            Err(_) => Err(Problem::new(Code::BodyTimeout, "the body did not arrive in time")),
        }
    }
}
