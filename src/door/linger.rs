//! A body whose remainder is discarded: a client that sends its whole request before it reads the
//! answer gets the answer of a refusal, and no broken connection.
//!
//! A server that closes a connection while bytes of the client are unread resets it, and the client
//! loses what was answered. So whatever a handler leaves of a body is read and thrown away beside
//! the answer, within limits of size and time.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{Request, header},
};
use futures::StreamExt;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::timeout;

use crate::tasks::Tasks;

/// The maximum number of bytes that are discarded of one body.
const MOST_BYTES: u64 = 32 << 20;

/// The maximum time for which a body is discarded.
const MOST_TIME: Duration = Duration::from_secs(5);

/// A body whose remainder is discarded when it is dropped.
struct Lingering {
    /// Absent once it is dropped.
    body: Option<Incoming>,
    tasks: Arc<Tasks>,
    /// True once the body has ended, or its client is gone.
    ended: bool,
    /// True while the client waits to be asked for the body.
    unasked: bool,
}

/// Lets the rest of a body be discarded that its reader leaves.
pub(super) fn lingering(request: Request<Incoming>, tasks: &Arc<Tasks>) -> Request<Body> {
    let unasked = request.headers().contains_key(header::EXPECT);
    request.map(|body| {
        if body.is_end_stream() {
            return Body::new(body);
        }
        Body::new(Lingering { body: Some(body), tasks: Arc::clone(tasks), ended: false, unasked })
    })
}

impl HttpBody for Lingering {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.unasked = false;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        self.ended |= matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let Some(left) = self.body.take() else { return };
        if self.ended
            || self.unasked
            || left.is_end_stream()
            || left.size_hint().lower() > MOST_BYTES
        {
            return;
        }
        let stopping = self.tasks.stopping().clone();
        self.tasks.spawn(async move {
            tokio::select! {
                _ = timeout(MOST_TIME, discard(Body::new(left))) => {}
                () = stopping.cancelled() => {}
            }
        });
    }
}

async fn discard(body: Body) {
    let mut left = MOST_BYTES;
    let mut chunks = body.into_data_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        let Some(rest) = left.checked_sub(chunk.len() as u64) else { return };
        left = rest;
    }
}
