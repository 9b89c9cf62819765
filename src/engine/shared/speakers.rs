//! The tokens of open sessions as callers, for calls that come with the token that opened a session.
//!
//! The claims of a token never change but for their expiry, which is read from the session. So they
//! are read from the store once, and not for each call of a session without a socket.

use hashlink::LruCache;
use parking_lot::Mutex;

use crate::engine::shared::request::Caller;

/// The maximum number of sessions that are remembered.
const MOST: usize = 4_096;

/// A session as a caller, and the id of the token that opened it.
#[derive(Debug, Clone)]
pub(crate) struct Speaker {
    pub(crate) opener: Option<String>,
    pub(crate) caller: Caller,
}

/// The sessions that were read, by the ids of their tokens.
#[derive(Debug)]
pub(crate) struct Speakers(Mutex<LruCache<String, Speaker>>);

impl Default for Speakers {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MOST)))
    }
}

impl Speakers {
    /// Returns the session of a token, if it is remembered.
    pub(crate) fn get(&self, jti: &str) -> Option<Speaker> {
        self.0.lock().get(jti).cloned()
    }

    /// Remembers the session of a token.
    pub(crate) fn keep(&self, speaker: &Speaker) {
        self.0.lock().insert(speaker.caller.jti.clone(), speaker.clone());
    }
}
