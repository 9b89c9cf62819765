//! Bodies of requests: read within a limit of size and of time, and counted while they come.

use axum::{
    body::{Body, Bytes},
    http::request::Parts,
};
use futures::StreamExt;

use super::{Arrival, Code, Door, Entered, Problem, length::announced};

impl Door {
    /// Reads a body of at most `limit` bytes. Each chunk is counted before it is kept: against the
    /// place of the request, or against the share of its client if it has none.
    ///
    /// # Errors
    /// Fails when it is too large, too slow, cut off, or more than its caller may have in memory.
    pub(crate) async fn body(
        &self,
        parts: &Parts,
        body: Body,
        limit: usize,
    ) -> Result<Bytes, Problem> {
        if announced(&parts.headers).is_some_and(|bytes| bytes > limit) {
            return Err(too_large(limit));
        }
        let place = parts.extensions.get::<Entered>().and_then(|it| it.place.as_deref());
        let client = parts.extensions.get::<Arrival>().and_then(|it| it.client);
        let mut share = match place {
            Some(_) => None,
            None => self.strangers.take(client, 0),
        };
        let grow = |more| {
            if let Some(place) = place {
                return place.grow(more);
            }
            if share.as_mut().is_some_and(|share| share.grow(more)) {
                return Ok(());
            }
            let detail = "too much is being sent without a token; send it again";
            Err(Problem::new(Code::Overloaded, detail).retry_after(1))
        };
        let read = tokio::time::timeout(self.limits.body_time, collect(body, limit, grow)).await;
        read.map_err(|_| {
            Problem::new(Code::BodyTimeout, "the body was not complete within the time limit")
        })?
    }
}

fn too_large(limit: usize) -> Problem {
    Problem::new(Code::TooLarge, format!("the body may have at most {limit} bytes"))
}

async fn collect(
    body: Body,
    limit: usize,
    mut grow: impl FnMut(usize) -> Result<(), Problem>,
) -> Result<Bytes, Problem> {
    let lost =
        |_| Problem::new(Code::BadRequest, "the connection closed before the body was complete");
    let mut chunks = body.into_data_stream();
    let Some(first) = chunks.next().await else { return Ok(Bytes::new()) };
    let first = first.map_err(lost)?;
    if first.len() > limit {
        return Err(too_large(limit));
    }
    grow(first.len())?;
    // Usually there is only one chunk, which needs no copy.
    let Some(second) = chunks.next().await else { return Ok(first) };
    let mut all = Vec::from(first);
    let mut chunk = second.map_err(lost)?;
    loop {
        if all.len() + chunk.len() > limit {
            return Err(too_large(limit));
        }
        grow(chunk.len())?;
        all.extend_from_slice(&chunk);
        match chunks.next().await {
            Some(next) => chunk = next.map_err(lost)?,
            None => return Ok(all.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_over_its_limit_is_refused_whatever_its_chunks() {
        let chunked = |sizes: &'static [usize]| {
            let chunks = sizes.iter().map(|size| Ok::<_, std::io::Error>(vec![b'x'; *size]));
            Body::from_stream(futures::stream::iter(chunks))
        };
        for (sizes, fits) in
            [(&[][..], true), (&[10], true), (&[11], false), (&[4, 6], true), (&[4, 4, 3], false)]
        {
            let read = collect(chunked(sizes), 10, |_| Ok(())).await;
            let read = read.map_err(|problem| problem.code().as_str());
            let expected = if fits { Ok(sizes.iter().sum()) } else { Err("too_large") };
            assert_eq!(read.map(|bytes| bytes.len()), expected, "{sizes:?}");
        }
    }
}
