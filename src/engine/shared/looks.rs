//! The looks at locals that are in progress: few for the host, fewer for one token.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{engine::EngineError, protocol::Code};

/// Looks in progress at the same time.
const AT_ONCE: usize = 4;
/// Those of one token.
const OF_ONE: usize = 2;
/// The longest wait for a place.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time after which a refused caller may try again, in seconds.
const AGAIN_S: u64 = 1;

/// The places for looks.
#[derive(Debug)]
pub(crate) struct Looks {
    places: Arc<Semaphore>,
    tokens: Mutex<HashMap<String, Weak<Semaphore>>>,
    patience: Duration,
}

/// A place for one look. It goes to the thread that looks: a caller that leaves frees nothing.
#[derive(Debug)]
pub(crate) struct LookPlace {
    _own: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
    _token: Arc<Semaphore>,
}

impl Default for Looks {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        Self { places, tokens: Mutex::default(), patience: PATIENCE }
    }
}

impl Looks {
    /// Takes a place for a token.
    ///
    /// # Errors
    /// Fails when the token has too many looks in progress, or no place gets free in time.
    ///
    /// # Cancel safety
    /// Nothing is taken by a call that is dropped.
    pub(crate) async fn take(&self, token: &str) -> Result<LookPlace, EngineError> {
        let busy = |code, message: &str| EngineError::Busy {
            code,
            message: message.to_owned(),
            retry_after_s: AGAIN_S,
        };
        let token = self.of(token);
        let own = Arc::clone(&token).try_acquire_owned();
        let own =
            own.map_err(|_| busy(Code::Busy, "this token already looks at the locals of runs"))?;
        let place = Arc::clone(&self.places).acquire_owned();
        let place = tokio::time::timeout(self.patience, place)
            .await
            .map_err(|_| busy(Code::Overloaded, "too many requests look at the locals of runs"))?
            .map_err(|_| EngineError::Stopping)?;
        Ok(LookPlace { _own: own, _place: place, _token: token })
    }

    fn of(&self, token: &str) -> Arc<Semaphore> {
        let mut tokens = self.tokens.lock();
        tokens.retain(|_, places| places.strong_count() > 0);
        if let Some(known) = tokens.get(token).and_then(Weak::upgrade) {
            return known;
        }
        let fresh = Arc::new(Semaphore::new(OF_ONE));
        tokens.insert(token.to_owned(), Arc::downgrade(&fresh));
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code<T: std::fmt::Debug>(result: Result<T, EngineError>) -> Code {
        result.unwrap_err().code()
    }

    #[tokio::test]
    async fn a_token_has_few_places_and_the_host_few_more() {
        let looks = Looks { patience: Duration::ZERO, ..Looks::default() };
        let one = (looks.take("a").await.unwrap(), looks.take("a").await.unwrap());
        assert_eq!(code(looks.take("a").await), Code::Busy);
        let two = (looks.take("b").await.unwrap(), looks.take("b").await.unwrap());
        // Who waits in vain for the host has its own place back.
        assert_eq!(code(looks.take("c").await), Code::Overloaded);
        drop(two);
        let three = (looks.take("c").await.unwrap(), looks.take("c").await.unwrap());
        drop((one, three));
        drop(looks.take("a").await.unwrap());
        drop(looks.take("d").await.unwrap());
        assert!(looks.tokens.lock().len() <= 1, "tokens without a look are forgotten");
    }
}
