//! Answers of other nodes on their way to clients.
//!
//! A short answer is read at once: however slowly its client takes it, it keeps no connection to the node and
//! no place of other requests. A long one is passed on as it arrives, and given up when its client takes
//! nothing of it for a while.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{HeaderMap, StatusCode, header},
    response::Response,
};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    client::conn::http1::SendRequest,
};
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{length::longer, links::Links, shares::Share};
use crate::{clock::Clock, tasks::Tasks};

/// The maximum size of an answer that is read at once.
pub(super) const SHORT: usize = 64 << 10;
/// The maximum size of the pieces in which a client gets a long answer: it must take one within the limit.
const PIECE: usize = 16 << 10;

/// The kinds of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An answer of this many bytes, at most [`SHORT`].
    Short(usize),
    /// An answer that is long, or of unknown length.
    Long,
    /// A stream of events, which ends only when its client or its server wants it.
    Endless,
    /// A connection that goes on with another protocol.
    Socket,
}

impl Kind {
    /// Returns the kind of an answer.
    pub(super) fn of(answer: &Response<Incoming>) -> Self {
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Self::Socket;
        }
        if is_of_events(answer.headers()) {
            return Self::Endless;
        }
        let length = answer.body().size_hint().exact().and_then(|it| usize::try_from(it).ok());
        length.filter(|it| *it <= SHORT).map_or(Self::Long, Self::Short)
    }
}

fn is_of_events(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// A body in memory, with the space that it takes.
pub(super) struct Short {
    bytes: Option<Bytes>,
    _space: Share,
}

impl Short {
    /// Reads all of a body, whose space was taken before.
    ///
    /// # Errors
    /// Fails when the connection breaks.
    pub(super) async fn read(body: Incoming, space: Share) -> io::Result<Self> {
        let read = axum::body::to_bytes(Body::new(body), SHORT).await.map_err(io::Error::other)?;
        Ok(Self { bytes: Some(read).filter(|it| !it.is_empty()), _space: space })
    }
}

impl HttpBody for Short {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |it| it.len() as u64))
    }
}

/// A body that is passed on as it arrives.
pub(super) struct Passing {
    flow: Arc<Mutex<Flow>>,
    clock: Clock,
    _watched: DropGuard,
}

/// The connection, place and limits that a long answer needs while it is passed on.
pub(super) struct Passage {
    /// The connection to the node, and its number.
    pub(super) back: (i64, SendRequest<Body>),
    pub(super) links: Links,
    pub(super) place: Option<Share>,
    /// The time for which its client may take nothing.
    pub(super) patience: Duration,
    pub(super) clock: Clock,
}

struct Flow {
    /// Nothing once it was given up.
    content: Option<Content>,
    /// The time since which it is the client that is waited for.
    offered_ms: Option<u64>,
    /// True if nothing more is expected of the node.
    is_gone: bool,
    waker: Option<Waker>,
}

struct Content {
    body: Incoming,
    /// The part of the last piece that the client has not taken.
    rest: Bytes,
    ended: bool,
    back: Option<(i64, SendRequest<Body>)>,
    links: Links,
    _place: Option<Share>,
}

impl Passing {
    /// Passes a body on. When `gone` completes, nothing more is expected of the node.
    pub(super) fn new(
        body: Incoming,
        passage: Passage,
        gone: impl Future<Output = ()> + Send + 'static,
        tasks: &Tasks,
    ) -> Self {
        let Passage { back, links, place, patience, clock } = passage;
        let content = Content {
            body,
            rest: Bytes::new(),
            ended: false,
            back: Some(back),
            links,
            _place: place,
        };
        let flow = Arc::new(Mutex::new(Flow {
            content: Some(content),
            offered_ms: Some(clock.steady_ms()),
            is_gone: false,
            waker: None,
        }));
        let over = CancellationToken::new();
        let (watched, weak, by, ended) =
            (over.clone().drop_guard(), Arc::downgrade(&flow), clock.clone(), over);
        tasks.spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = watch(&weak, gone, patience, &by) => {}
            }
        });
        Self { flow, clock, _watched: watched }
    }
}

/// Notes that the node is gone, and gives the answer up when its client takes nothing for too long.
async fn watch(
    flow: &Weak<Mutex<Flow>>,
    gone: impl Future<Output = ()>,
    patience: Duration,
    clock: &Clock,
) {
    let left = async {
        gone.await;
        if let Some(flow) = flow.upgrade() {
            let mut flow = flow.lock();
            flow.is_gone = true;
            flow.wake();
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = left => {}
        () = untaken(flow, patience, clock) => {}
    }
    if let Some(flow) = flow.upgrade() {
        let mut flow = flow.lock();
        flow.content = None;
        flow.wake();
    }
}

/// Waits until the client of an answer has taken nothing for too long.
async fn untaken(flow: &Weak<Mutex<Flow>>, patience: Duration, clock: &Clock) {
    let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
    loop {
        let Some(offered_ms) = flow.upgrade().map(|it| it.lock().offered_ms) else { return };
        let now_ms = clock.steady_ms();
        let until_ms = offered_ms.unwrap_or(now_ms).saturating_add(patience_ms);
        if until_ms <= now_ms {
            return;
        }
        clock.sleep_until_either(u64::MAX, until_ms).await;
    }
}

impl Flow {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl HttpBody for Passing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let failed = |why| Poll::Ready(Some(Err(axum::Error::new(io::Error::other(why)))));
        let mut flow = self.flow.lock();
        let is_gone = flow.is_gone;
        let Some(content) = &mut flow.content else {
            return failed("the client has taken nothing of the answer for too long");
        };
        let polled = content.poll(cx);
        if polled.is_pending() && is_gone {
            // What a node that was ended still says does not count.
            return failed("the node that answered has ended");
        }
        flow.offered_ms = polled.is_ready().then(|| self.clock.steady_ms());
        flow.waker = Some(cx.waker().clone());
        polled.map_err(axum::Error::new)
    }

    fn is_end_stream(&self) -> bool {
        let flow = self.flow.lock();
        flow.content.as_ref().is_some_and(|it| it.rest.is_empty() && it.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let flow = self.flow.lock();
        let Some(content) = &flow.content else { return SizeHint::new() };
        longer(&content.body.size_hint(), content.rest.len())
    }
}

impl Content {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.rest.is_empty() {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => {
                    self.ended |= matches!(other, Poll::Ready(None));
                    return other;
                }
            }
        }
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        let is_whole = self.ended || self.body.is_end_stream();
        if let Some((node, sender)) = self.back.take().filter(|_| is_whole) {
            self.links.keep(node, sender);
        }
    }
}
