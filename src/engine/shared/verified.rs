//! The signing keys of tokens, and a cache of verified tokens.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use hashlink::LruCache;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::{
    clock::Clock,
    engine::{EngineError, KeyFiles, TokenGrant},
    store::{Store, StoreError},
    token::{Claims, KeyRing, LEEWAY_S, TokenError, TokenKind},
};

/// The maximum number of verified tokens that are cached.
pub(crate) const REMEMBERED: usize = 4_096;

/// A verified token, and what follows from its claims.
pub(crate) struct Known {
    pub(crate) claims: Claims,
    pub(crate) grant: TokenGrant,
}

/// The keys, and the known tokens.
pub(crate) struct Auth {
    pub(crate) keys: RwLock<KeyRing>,
    /// The storage of the keys; locked during a change of keys.
    pub(crate) files: tokio::sync::Mutex<Arc<dyn KeyFiles>>,
    pub(crate) revoked: RwLock<HashSet<String>>,
    /// Changes when more tokens are revoked.
    revocations: watch::Sender<()>,
    /// Verified tokens of the current key. Those of a retired key are verified each time, because
    /// its grace period ends.
    pub(crate) verified: Mutex<LruCache<[u8; 32], Arc<Known>>>,
    /// The epochs of the open runs that were created before nonces existed.
    pub(crate) first_epochs: HashMap<u64, u32>,
    /// The last use of tokens, in Unix milliseconds, by id.
    uses: Mutex<LruCache<String, u64>>,
    /// The locks of sign-ins that begin. Each lock serves some of the tokens.
    sign_ins: [Arc<tokio::sync::Mutex<()>>; SIGN_IN_LOCKS],
}

/// The number of sign-ins that may begin at the same time.
const SIGN_IN_LOCKS: usize = 64;

/// The maximum number of tokens whose last use is remembered.
const MOST_USES: usize = 10_000;

impl Auth {
    pub(crate) fn open(
        store: &dyn Store,
        keys: KeyRing,
        files: Arc<dyn KeyFiles>,
    ) -> Result<Self, EngineError> {
        // Also those whose records are gone: a clock that is set back makes their tokens valid again.
        let revoked = store.revoked()?;
        Ok(Self {
            keys: RwLock::new(keys),
            files: tokio::sync::Mutex::new(files),
            revoked: RwLock::new(revoked),
            revocations: watch::Sender::new(()),
            verified: Mutex::new(LruCache::new(REMEMBERED)),
            first_epochs: store.runs_without_nonce()?.into_iter().collect(),
            uses: Mutex::new(LruCache::new(MOST_USES)),
            sign_ins: std::array::from_fn(|_| Arc::default()),
        })
    }

    /// Returns the lock that is held while a sign-in with a token begins.
    pub(crate) fn sign_in_lock(&self, jti: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mark = blake3::hash(jti.as_bytes());
        Arc::clone(&self.sign_ins[usize::from(mark.as_bytes()[0]) % SIGN_IN_LOCKS])
    }

    /// Notes that a token was used.
    pub(crate) fn note_use(&self, jti: &str, now_ms: u64) {
        let mut uses = self.uses.lock();
        match uses.get_mut(jti) {
            Some(at) => *at = now_ms,
            None => drop(uses.insert(jti.to_owned(), now_ms)),
        }
    }

    /// Returns the last use of a token since the start.
    pub(crate) fn last_use(&self, jti: &str) -> Option<u64> {
        self.uses.lock().peek(jti).copied()
    }

    /// Reads the keys.
    pub(crate) fn keys<T>(&self, look: impl FnOnce(&KeyRing) -> T) -> T {
        look(&self.keys.read())
    }

    /// Replaces the keys, and drops the cache of the previous ones.
    pub(crate) fn change_keys(&self, keys: KeyRing) {
        *self.keys.write() = keys;
        self.verified.lock().clear();
    }

    /// Refuses tokens from here on, also to the requests that wait.
    pub(crate) fn refuse(&self, jtis: impl IntoIterator<Item = String>) {
        self.revoked.write().extend(jtis);
        self.revocations.send_replace(());
    }

    /// Checks that a token that was verified is not revoked and has not expired since.
    pub(crate) fn check(&self, jti: &str, expires_ms: u64, now_ms: u64) -> Result<(), EngineError> {
        let (expires_s, now_s) = (expires_ms / 1_000, now_ms / 1_000);
        if expires_s.saturating_add(LEEWAY_S) <= now_s {
            return Err(denied(TokenError::Expired(now_s - expires_s)));
        }
        let revoked = self.revoked.read();
        match lineage(jti).any(|jti| revoked.contains(jti)) {
            true => Err(StoreError::Revoked { jti: jti.to_owned() }.into()),
            false => Ok(()),
        }
    }

    /// Waits for the end of a token that was verified. Returns the error that its use then fails
    /// with.
    pub(crate) async fn over(&self, jti: &str, expires_ms: u64, clock: &Clock) -> EngineError {
        let until_ms = expires_ms.saturating_add(LEEWAY_S * 1_000);
        let mut revocations = self.revocations.subscribe();
        loop {
            if let Err(error) = self.check(jti, expires_ms, clock.now_ms()) {
                return error;
            }
            tokio::select! {
                _ = revocations.changed() => {}
                () = clock.sleep_until(until_ms) => {}
            }
        }
    }

    /// Signs claims with the current key.
    pub(crate) fn sign(&self, claims: &Claims) -> Result<String, EngineError> {
        self.keys(|keys| keys.sign(claims)).map_err(denied)
    }

    /// Verifies a token: the signature once, time and revocation at every use.
    pub(crate) fn verify(&self, token: &str, now_s: u64) -> Result<Arc<Known>, EngineError> {
        let mark = *blake3::hash(token.as_bytes()).as_bytes();
        let known = self.verified.lock().get(&mark).cloned();
        let known = match known {
            Some(known) => {
                known.claims.check_time(now_s).map_err(denied)?;
                known
            }
            None => {
                // Under one lock of the keys: a result of a key must not be cached after its end.
                let keys = self.keys.read();
                let claims = keys.verify(token, &TokenKind::ALL, now_s).map_err(denied)?;
                let known = Arc::new(Known { grant: claims.grant().into(), claims });
                if keys.is_current(token) {
                    self.verified.lock().insert(mark, Arc::clone(&known));
                }
                known
            }
        };
        let claims = &known.claims;
        let revoked = self.revoked.read();
        let is_revoked =
            lineage(&claims.jti).chain(claims.parent.as_deref()).any(|jti| revoked.contains(jti));
        if is_revoked {
            return Err(StoreError::Revoked { jti: claims.jti.clone() }.into());
        }
        Ok(known)
    }
}

/// Returns the id of a token and those of its ancestors. The id of a token for an attempt begins
/// with the id of its parent: such tokens are not stored.
pub(crate) fn lineage(jti: &str) -> impl Iterator<Item = &str> {
    jti.match_indices('.').map(|(at, _)| &jti[..at]).chain(std::iter::once(jti))
}

pub(crate) fn denied(error: impl std::fmt::Display) -> EngineError {
    EngineError::Unauthenticated(error.to_string())
}
