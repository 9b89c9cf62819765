//! Keys that sign tokens, and tokens that were verified.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock},
};

use tokio::sync::Mutex;

use crate::{
    engine::{EngineError, KeyFiles},
    store::{Store, StoreError},
    token::{Claims, KeyRing, TokenKind},
};

/// Verified tokens that are remembered.
pub(crate) const REMEMBERED: usize = 4_096;

/// Keys, and what is known of tokens.
pub(crate) struct Auth {
    pub(crate) keys: RwLock<KeyRing>,
    /// Where the keys are kept; whoever changes them has it to themselves.
    pub(crate) files: Mutex<Arc<dyn KeyFiles>>,
    pub(crate) revoked: RwLock<HashSet<String>>,
    /// Tokens of the key that signs. Those of a retired key are verified each time: its grace ends.
    pub(crate) verified: RwLock<HashMap<[u8; 32], Claims>>,
    /// The epochs of the open runs that were created before there were nonces.
    pub(crate) first_epochs: HashMap<u64, u32>,
    /// When tokens were used last, in Unix milliseconds, by id.
    uses: RwLock<HashMap<String, u64>>,
}

/// Tokens whose last use is remembered.
const MOST_USES: usize = 10_000;

impl Auth {
    pub(crate) fn open(
        store: &dyn Store,
        keys: KeyRing,
        files: Arc<dyn KeyFiles>,
    ) -> Result<Self, EngineError> {
        let revoked = store.tokens()?.into_iter().filter(|row| row.revoked_ms.is_some());
        let revoked = revoked.map(|row| row.jti).collect();
        Ok(Self {
            keys: RwLock::new(keys),
            files: Mutex::new(files),
            revoked: RwLock::new(revoked),
            verified: RwLock::default(),
            first_epochs: store.runs_without_nonce()?.into_iter().collect(),
            uses: RwLock::default(),
        })
    }

    /// Notes that a token was used.
    pub(crate) fn note_use(&self, jti: &str, now_ms: u64) {
        let mut uses = self.uses.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = uses.get_mut(jti) {
            *at = now_ms;
        } else if uses.len() < MOST_USES {
            uses.insert(jti.to_owned(), now_ms);
        }
    }

    /// When a token was used last since the start.
    pub(crate) fn last_use(&self, jti: &str) -> Option<u64> {
        self.uses.read().unwrap_or_else(PoisonError::into_inner).get(jti).copied()
    }

    /// Looks at the keys.
    pub(crate) fn keys<T>(&self, look: impl FnOnce(&KeyRing) -> T) -> T {
        look(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes other keys; nothing that the keys before said is remembered.
    pub(crate) fn change_keys(&self, keys: KeyRing) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        self.verified.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Signs claims with the key of now.
    pub(crate) fn sign(&self, claims: &Claims) -> Result<String, EngineError> {
        self.keys(|keys| keys.sign(claims)).map_err(denied)
    }

    /// A signature is checked once; time and revocation are checked at every use.
    pub(crate) fn verify(&self, token: &str, now_s: u64) -> Result<Claims, EngineError> {
        let mark = *blake3::hash(token.as_bytes()).as_bytes();
        let known =
            self.verified.read().unwrap_or_else(PoisonError::into_inner).get(&mark).cloned();
        let claims = match known {
            Some(claims) => {
                claims.check_time(now_s).map_err(denied)?;
                claims
            }
            None => {
                // Under one look at the keys: what a key says is not remembered after its end.
                let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
                let claims = keys.verify(token, &TokenKind::ALL, now_s).map_err(denied)?;
                if keys.is_current(token) {
                    let mut verified =
                        self.verified.write().unwrap_or_else(PoisonError::into_inner);
                    if verified.len() >= REMEMBERED {
                        verified.clear();
                    }
                    verified.insert(mark, claims.clone());
                }
                claims
            }
        };
        let revoked = self.revoked.read().unwrap_or_else(PoisonError::into_inner);
        let is_revoked =
            lineage(&claims.jti).chain(claims.parent.as_deref()).any(|jti| revoked.contains(jti));
        if is_revoked {
            return Err(StoreError::Revoked { jti: claims.jti }.into());
        }
        Ok(claims)
    }
}

/// The ids of a token and of those that it was narrowed from. The id of a token for an attempt
/// begins with the id of the one before it: such tokens are stored nowhere.
pub(crate) fn lineage(jti: &str) -> impl Iterator<Item = &str> {
    jti.match_indices('.').map(|(at, _)| &jti[..at]).chain(std::iter::once(jti))
}

pub(crate) fn denied(error: impl std::fmt::Display) -> EngineError {
    EngineError::Unauthenticated(error.to_string())
}
