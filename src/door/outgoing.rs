//! Requests that are forwarded. Small bodies are kept, so that they can be sent again.

use std::{
    future::poll_fn,
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{HeaderMap, request::Parts},
    response::Response,
};
use hyper::{
    body::{Frame, SizeHint},
    upgrade::OnUpgrade,
};
use tokio::time::timeout;

use super::{
    Code,
    length::{announced, longer},
    problem::Problem,
    shares::{Share, Shares},
    unanswered,
};

/// The maximum size of a body that is kept for a request that may be sent again after a node has received it.
const LONGEST: usize = 1 << 20;
/// The maximum size of any other body that is kept: it is sent again when nothing was done.
const SMALL: usize = 64 << 10;
/// The maximum size of all such bodies together, and of those of one client.
const ALL: usize = 128 << 20;
const EACH: usize = ALL / 8;

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
    Kept { bytes: Bytes, _space: Option<Share> },
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
pub(super) struct Kept(Shares);

impl Default for Kept {
    fn default() -> Self {
        Self(Shares::new(ALL, EACH))
    }
}

impl Kept {
    /// Keeps a body that is small enough, so that it can be sent again. `is_safe` is true if that is so after
    /// a node has received it. The space is taken as the bytes arrive: what does not fit is sent once.
    ///
    /// # Errors
    /// Returns a problem if the body does not arrive within `time`.
    pub(super) async fn keep(
        &self,
        headers: &HeaderMap,
        body: Body,
        (client, is_safe): (Option<IpAddr>, bool),
        time: Duration,
    ) -> Result<Outgoing, Problem> {
        if body.is_end_stream() {
            return Ok(Outgoing::Kept { bytes: Bytes::new(), _space: None });
        }
        let most = if is_safe { LONGEST } else { SMALL };
        if announced(headers).is_none_or(|length| length > most) {
            return Ok(Outgoing::Streams(Some(body)));
        }
        let Some(space) = self.0.take(client, 0) else {
            return Ok(Outgoing::Streams(Some(body)));
        };
        match timeout(time, gather(body, most, space)).await {
            Ok(kept) => kept,
            Err(_) => Err(Problem::new(Code::BodyTimeout, "the body did not arrive in time")),
        }
    }
}

async fn gather(mut body: Body, most: usize, mut space: Share) -> Result<Outgoing, Problem> {
    let mut came = Bytes::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|_| {
            Problem::new(Code::BadRequest, "the connection closed before the body was complete")
        })?;
        let Ok(chunk) = frame.into_data() else { continue };
        let fits = came.len() + chunk.len() <= most && space.grow(chunk.len());
        // Usually there is only one chunk, which needs no copy.
        came = if came.is_empty() {
            chunk
        } else {
            let mut both = Vec::from(came);
            both.extend_from_slice(&chunk);
            both.into()
        };
        if !fits {
            let begun = Begun { came: Some(came), rest: body, space: Some(space) };
            return Ok(Outgoing::Streams(Some(Body::new(begun))));
        }
    }
    Ok(Outgoing::Kept { bytes: came, _space: Some(space) })
}

/// A body of which a part is in memory.
struct Begun {
    came: Option<Bytes>,
    rest: Body,
    /// The space of that part.
    space: Option<Share>,
}

impl HttpBody for Begun {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(came) = self.came.take() {
            self.space = None;
            return Poll::Ready(Some(Ok(Frame::data(came))));
        }
        Pin::new(&mut self.rest).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.came.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        longer(&self.rest.size_hint(), self.came.as_ref().map_or(0, Bytes::len))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use axum::http::HeaderValue;
    use futures::{StreamExt as _, channel::mpsc, poll};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn of_length(length: usize) -> HeaderMap {
        [(axum::http::header::CONTENT_LENGTH, HeaderValue::from(length))].into_iter().collect()
    }

    fn at(last: u8) -> Option<IpAddr> {
        Some([192, 0, 2, last].into())
    }

    /// A body that arrives when the test sends it.
    fn arriving() -> (mpsc::UnboundedSender<io::Result<Bytes>>, Body) {
        let (sender, chunks) = mpsc::unbounded();
        (sender, Body::from_stream(chunks))
    }

    #[tokio::test]
    async fn who_only_announces_bodies_takes_no_space() {
        let kept = Kept(Shares::new(100, 100));
        let (_sender, silent) = arriving();
        let headers = of_length(100);
        let mut waits = Box::pin(kept.keep(&headers, silent, (at(1), true), LONG));
        assert!(poll!(&mut waits).is_pending());
        let body = Body::from("x".repeat(100));
        let other = kept.keep(&headers, body, (at(2), true), LONG).await.unwrap();
        assert!(other.is_kept(), "the announced body has no bytes yet");
    }

    #[tokio::test]
    async fn a_body_without_space_is_sent_whole_and_once() {
        let kept = Kept(Shares::new(100, 6));
        let (sender, body) = arriving();
        let headers = of_length(9);
        for chunk in ["one", "two", "six"] {
            sender.unbounded_send(Ok(Bytes::from(chunk))).unwrap();
        }
        drop(sender);
        let mut outgoing = kept.keep(&headers, body, (at(1), true), LONG).await.unwrap();
        assert!(!outgoing.is_kept());
        assert!(kept.0.take(at(1), 1).is_none(), "what came is in memory");
        assert!(kept.0.take(at(2), 6).is_some(), "another client has its own share");
        let sent = axum::body::to_bytes(outgoing.take().unwrap(), 100).await.unwrap();
        assert_eq!(sent, "onetwosix");
        assert!(outgoing.take().is_none());
        assert!(kept.0.take(at(1), 6).is_some(), "what was sent is no longer in memory");
    }

    #[tokio::test]
    async fn a_large_body_is_kept_only_for_a_request_that_may_be_sent_twice() {
        let kept = Kept::default();
        let keep = async |length, is_safe| {
            let body = Body::from_stream(
                futures::stream::iter([0; 2])
                    .map(move |_| Ok::<_, io::Error>(Bytes::from(vec![0; length / 2]))),
            );
            kept.keep(&of_length(length), body, (None, is_safe), LONG).await.unwrap().is_kept()
        };
        assert!(keep(SMALL, false).await && keep(LONGEST, true).await);
        assert!(!keep(SMALL + 2, false).await && !keep(LONGEST + 2, true).await);
    }
}
