//! Large answers: counted against their bearer until its client has taken them.
//!
//! An answer is in memory until its client has read it, and a client may read slowly. So the
//! answers of a bearer that were not taken yet have a limit, as those of its account and of all
//! have. It is apart from that of the bodies of requests: a slow reader keeps nobody from sending.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::Method,
    response::Response,
};
use hyper::body::{Frame, SizeHint};

use super::{
    length::longer,
    places::{Place, Places},
    problem::Problem,
};

/// The maximum size of an answer that is not counted.
const SMALL: u64 = 64 << 10;
/// The maximum size of the pieces in which a connection gets a counted answer.
const PIECE: usize = 64 << 10;

/// A counted answer.
struct Counted {
    body: Body,
    /// The part of the last frame that the connection has not taken.
    rest: Bytes,
    _place: Place,
}

/// Counts a large answer until it was taken. Streams, whose size is not known, are not counted:
/// they hold little at a time. Neither are answers to HEAD, which have no body in the end.
///
/// # Errors
/// Fails when the answers of the bearer, of its account or of all that were not taken are too
/// large. A request that may have changed something is answered in any case.
pub(super) fn counted(
    answers: &Arc<Places>,
    bearer: Option<&Place>,
    method: &Method,
    response: Response,
) -> Result<Response, Problem> {
    let size = response.body().size_hint().exact().unwrap_or_default();
    let is_large = size > SMALL && method != Method::HEAD;
    let Some(bearer) = bearer.filter(|_| is_large) else { return Ok(response) };
    let place = bearer.among(answers);
    if let Err(problem) = place.grow(usize::try_from(size).unwrap_or(usize::MAX))
        && method.is_safe()
    {
        let detail = "earlier answers were not read yet: read them, or close their connections";
        return Err(Problem::new(problem.code(), detail).retry_after(1));
    }
    Ok(response.map(|body| Body::new(Counted { body, rest: Bytes::new(), _place: place })))
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, rest, .. } = self.get_mut();
        if rest.is_empty() {
            match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => *rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return other,
            }
        }
        // A copy: a piece that the connection still has must not keep the whole frame in memory.
        let piece = rest.split_to(rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(&piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        longer(&self.body.size_hint(), self.rest.len())
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;
    use crate::engine::{Bearer, Holder};

    const LARGE: usize = 200 << 10;

    #[tokio::test]
    async fn a_large_answer_is_counted_until_its_client_has_taken_it() {
        let answers = Places::new(16, 4 * LARGE);
        let bearer = Places::new(16, 0).take(&Bearer::Holder(Holder::of_first(1, 1))).unwrap();
        let answer = |method: &Method, size: usize| {
            let response = Response::new(Body::from(vec![b'x'; size]));
            counted(&answers, Some(&*bearer), method, response)
        };
        let first = answer(&Method::GET, LARGE).unwrap();
        assert_eq!(first.body().size_hint().exact(), Some(LARGE as u64));
        assert_eq!(answer(&Method::GET, LARGE).unwrap_err().code(), "busy");
        assert!(answer(&Method::POST, LARGE).is_ok(), "what was done is answered");
        assert!(answer(&Method::HEAD, LARGE).is_ok(), "it is not sent");
        assert!(answer(&Method::GET, 1_000).is_ok(), "a small one is not counted");
        let (mut pieces, mut taken) = (first.into_body().into_data_stream(), 0);
        while let Some(piece) = pieces.next().await {
            let size = piece.unwrap().len();
            assert!((1..=PIECE).contains(&size), "{size}");
            taken += size;
            assert!(taken == LARGE || answer(&Method::GET, LARGE).is_err());
        }
        assert_eq!(taken, LARGE);
        drop(pieces);
        assert!(answer(&Method::GET, LARGE).is_ok());
    }
}
