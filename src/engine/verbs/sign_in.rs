//! Signing in to the dashboard: the narrow token behind a sign-in, its end, and what is stored of it.

use crate::{
    engine::{Caller, EngineError, Minted, TokenVerbs, verbs::auth::mint_claims},
    store::Write,
    token::{Grant, Verb},
};

/// The place of stored sign-ins among the values that are kept with an expiry. No layer of
/// middleware has a name with a space.
const KEPT: &str = "dashboard sign-in";

impl TokenVerbs<'_> {
    /// Mints the token of a sign-in: for the caller's own subject and scopes, with those of `verbs`
    /// that the caller has. A person who signs in twice stays one person.
    ///
    /// # Errors
    /// Fails when the caller has none of the verbs, or its token was revoked.
    pub async fn sign_in(
        self,
        caller: &Caller,
        verbs: &[Verb],
        ttl_ms: u64,
    ) -> Result<Minted, EngineError> {
        let own: Vec<Verb> = verbs.iter().copied().filter(|verb| caller.grant.has(*verb)).collect();
        if own.is_empty() {
            caller.grant.check(Verb::RunRead, &[])?;
        }
        let grant = Grant::new(caller.grant.role, caller.grant.scopes.clone()).only(own);
        let now_ms = self.engine.shared().clock.now_ms();
        let expires_ms = now_ms.saturating_add(ttl_ms).min(caller.expires_ms);
        let claims = mint_claims(&caller.subject, grant, now_ms, expires_ms)
            .child_of(&self.claims_of(caller));
        self.store_token(caller, claims, now_ms, expires_ms, None).await
    }

    /// Revokes the caller's own token, which needs no verb.
    ///
    /// # Errors
    /// Fails when it cannot be stored.
    pub async fn sign_out(self, caller: &Caller) -> Result<(), EngineError> {
        self.revoke(&self.engine.dispatches().owner(), &caller.jti).await
    }

    /// Stores a sign-in until it expires.
    ///
    /// # Errors
    /// Fails when it cannot be stored.
    pub async fn keep_sign_in(
        self,
        key: String,
        value: String,
        expires_ms: u64,
    ) -> Result<(), EngineError> {
        let (layer, expires_ms) = (KEPT.to_owned(), Some(expires_ms));
        self.engine.write(Vec::new(), vec![Write::PutKept { layer, key, value, expires_ms }]).await
    }

    /// Returns a stored sign-in.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub async fn kept_sign_in(self, key: String) -> Result<Option<String>, EngineError> {
        let kept = self.engine.read(move |store| store.kept(KEPT, &key)).await?;
        Ok(kept.map(|(value, _)| value))
    }

    /// Removes a stored sign-in.
    ///
    /// # Errors
    /// Fails when it cannot be stored.
    pub async fn drop_sign_in(self, key: String) -> Result<(), EngineError> {
        let layer = KEPT.to_owned();
        self.engine.write(Vec::new(), vec![Write::RemoveKept { layer, key }]).await
    }
}
