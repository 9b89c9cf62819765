//! Requests that change something, while the database is away: how many wait, and how long.
//!
//! A request that was begun before waits with the others, and reads do not wait at all. A commit that
//! was already queued is made when the database is back, whoever still waits for it: commits of a run
//! keep their order.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use axum::http::Method;

use super::{
    Code,
    places::{Place, Places},
    problem::Problem,
};
use crate::engine::{Bearer, Engine};

/// The maximum number of requests that wait; a bearer may have a quarter of them.
const REQUESTS: usize = 256;
/// The maximum number of bytes of their bodies.
const BYTES: usize = 16 << 20;
/// The maximum time that one waits.
const PATIENCE: Duration = Duration::from_secs(60);
/// The seconds after which a refused client may ask again.
const LATER: u64 = 5;

/// The places of those that wait.
#[derive(Debug)]
pub(super) struct Away(Arc<Places>);

impl Away {
    /// Creates the places.
    pub(super) fn new() -> Self {
        Self(Places::new(REQUESTS, BYTES))
    }

    /// Lets a request of a bearer wait, if the database is away and the request changes something.
    ///
    /// # Errors
    /// Returns [`Code::StorageAway`] if too many wait, or too many of this bearer.
    pub(super) fn enter(
        &self,
        is_away: bool,
        method: &Method,
        bearer: &Bearer,
        bytes: usize,
    ) -> Result<Option<Arc<Place>>, Problem> {
        if !is_away || method.is_safe() {
            return Ok(None);
        }
        let place = self.0.take(bearer).and_then(|place| place.grow(bytes).map(|()| place));
        place.map(Some).map_err(|_| {
            let detail = "the database cannot be reached, and as many requests wait for it as may; \
                          nothing was changed: ask again";
            Problem::new(Code::StorageAway, detail).retry_after(LATER)
        })
    }
}

/// Awaits the answer of a request, at most a minute of it while the database is away.
///
/// # Errors
/// Returns [`Code::StorageAway`] after that.
pub(super) async fn bounded<T>(
    engine: &Engine,
    method: &Method,
    answer: impl Future<Output = T>,
) -> Result<T, Problem> {
    let mut answer = pin!(answer);
    if method.is_safe() {
        return Ok(answer.await);
    }
    loop {
        match tokio::time::timeout(PATIENCE, answer.as_mut()).await {
            Ok(answer) => return Ok(answer),
            Err(_) if engine.is_storage_away() => {
                let detail = "the database cannot be reached; the request may still take effect when \
                              it is back: look at the state, or repeat it with the same \
                              Idempotency-Key";
                return Err(Problem::new(Code::StorageAway, detail).retry_after(LATER));
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Holder;

    fn bearer(run: u64) -> Bearer {
        Bearer::Holder(Holder::of_first(run, 1))
    }

    #[test]
    fn only_so_many_requests_of_one_and_of_all_wait_for_a_database_that_is_away() {
        let away = Away::new();
        let enter = |run, bytes| away.enter(true, &Method::POST, &bearer(run), bytes);
        let mut held = Vec::new();
        for _ in 0..REQUESTS / 4 {
            held.push(enter(1, 0).unwrap().unwrap());
        }
        let refused = enter(1, 0).unwrap_err();
        assert_eq!(refused.code(), Code::StorageAway);
        assert!(away.enter(false, &Method::POST, &bearer(1), 0).unwrap().is_none());
        assert!(away.enter(true, &Method::GET, &bearer(1), 0).unwrap().is_none());
        held.push(enter(2, BYTES / 2).unwrap().unwrap());
        assert!(enter(2, BYTES / 2).is_err());
        held.clear();
        assert!(enter(1, 0).unwrap().is_some());
    }
}
