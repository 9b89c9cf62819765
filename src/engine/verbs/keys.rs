//! Rotation of the keys of tokens and handles, with a grace period for the previous ones.

use std::sync::Arc;

use crate::{
    engine::{Caller, EngineError, verbs::engine::TokenVerbs},
    fault,
    protocol::SessionId,
    session::LinkEnd,
    token::{KeyRing, SigningKey, Verb},
};

/// The maximum grace period of a key, in milliseconds: no token outlives it.
const LONGEST_GRACE_MS: u64 = 366 * 24 * 3_600 * 1_000;

/// The keys to rotate, and the grace period of the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotateKeys {
    /// The signing key of tokens.
    pub signing: bool,
    /// The secret of handles.
    pub handles: bool,
    /// The time for which the previous keys verify, in milliseconds. 0 is for a leaked key: it ends
    /// at once, and so do all keys that are already retired.
    pub grace_ms: u64,
}

/// The result of a rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotated {
    /// The id of the current signing key.
    pub kid: String,
    /// The caller's token, signed by that key. Its expiry does not change.
    pub token: Option<String>,
    /// The time at which the previous keys stop verifying, in Unix milliseconds.
    pub until_ms: u64,
}

impl TokenVerbs<'_> {
    /// Rotates the keys. When this returns they are durable, and the file of the admin token has
    /// one that the new key signed.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, the grace period is too long, or the keys cannot be
    /// written.
    pub async fn rotate_keys(
        self,
        caller: &Caller,
        ask: RotateKeys,
    ) -> Result<Rotated, EngineError> {
        caller.grant.check(Verb::KeyRotate, &[])?;
        if ask.grace_ms > LONGEST_GRACE_MS || !(ask.signing || ask.handles) {
            return Err(EngineError::BadRequest(format!(
                "rotate keys: name the signing key, the handle secret or both, and a grace of at \
                 most {} days",
                LONGEST_GRACE_MS / 86_400_000
            )));
        }
        let (engine, caller) = (self.engine.clone(), caller.clone());
        // The rotation must complete even if the caller is gone.
        let changing = self
            .engine
            .shared()
            .tasks
            .spawn(async move { engine.tokens().change_keys(&caller, ask).await });
        changing.await.map_err(|_| EngineError::Stopping)?
    }

    async fn change_keys(self, caller: &Caller, ask: RotateKeys) -> Result<Rotated, EngineError> {
        let auth = &self.engine.inner.auth;
        let files = auth.files.lock().await;
        let now_ms = self.engine.shared().clock.now_ms();
        let (now_s, grace_s) = (now_ms / 1_000, ask.grace_ms.div_ceil(1_000));
        let before = &self.engine.shared().handles;
        let mut keys = auth.keys(KeyRing::clone);
        let mut handles = before.clone();
        if ask.signing {
            keys.rotate(SigningKey::from_seed(&files.seed()), now_s, grace_s);
        }
        if ask.handles {
            handles = before.rotated(files.seed(), now_s, grace_s);
        }
        // Fails before any change if the caller's token was revoked in the meantime.
        let owner = self.owner_claims(Some(caller), now_ms).await?;
        let own = self.engine.read({
            let jti = caller.jti.clone();
            move |store| store.token(&jti)
        });
        let own = own.await?.and_then(|row| serde_json::from_str(&row.claims).ok());
        fault::point("engine.key_rotate");
        let (kept, new_keys, new_handles) = (Arc::clone(&files), keys.clone(), handles.clone());
        self.kept(move || kept.keep(&new_keys, &new_handles)).await?;
        auth.change_keys(keys);
        before.become_like(&handles);
        fault::point("engine.key_rotated");
        if ask.signing {
            let (kept, token) = (Arc::clone(&files), auth.sign(&owner)?);
            self.kept(move || kept.keep_admin(&token)).await?;
        }
        if ask.signing && ask.grace_ms == 0 {
            // Whoever has the leaked key may have opened any of them.
            for looks in self.engine.shared().sessions.all() {
                self.engine
                    .sessions()
                    .end_session(&SessionId::from(looks.row.id.as_str()), LinkEnd::Revoked)
                    .await?;
            }
        }
        tracing::warn!(
            by = caller.subject,
            signing = ask.signing,
            handles = ask.handles,
            grace_ms = ask.grace_ms,
            "changed the keys"
        );
        Ok(Rotated {
            kid: auth.keys(|keys| keys.current().kid().to_owned()),
            token: own.map(|claims| auth.sign(&claims)).transpose()?,
            until_ms: (now_s + grace_s) * 1_000,
        })
    }

    async fn kept(
        self,
        keep: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<(), EngineError> {
        let kept = self.engine.shared().tasks.spawn_blocking(keep).await;
        kept.map_err(|_| EngineError::Stopping)?.map_err(EngineError::Keys)
    }
}
