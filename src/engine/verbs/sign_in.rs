//! Signing in to the dashboard: the narrow token behind a sign-in, its end, and what is stored of it.
//!
//! A token has a bounded number of sign-ins. One more takes the place of the oldest one, and its
//! token with it: the oldest one ends, and no record is added.

use serde::{Deserialize, Serialize};

use crate::{
    engine::{
        Caller, EngineError, Minted, TokenVerbs,
        verbs::auth::{mint_claims, token_row},
    },
    fault,
    store::{Check, Write},
    token::{Claims, Grant, Verb},
};

/// The place of stored sign-ins among the values that are kept with an expiry. No layer of
/// middleware has a name with a space.
const KEPT: &str = "dashboard sign-in";
/// The maximum number of sign-ins of a token.
const MOST: usize = 20;

/// What is stored of a new sign-in.
pub(crate) struct SignInRecord {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// The end, in Unix milliseconds.
    pub expires_ms: u64,
}

/// A sign-in of a token, as its list has it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Listed {
    /// The id of the token behind it.
    jti: String,
    /// The key under which it is stored.
    key: String,
}

impl TokenVerbs<'_> {
    /// Mints the token of a sign-in: for the caller's own subject and scopes, with those of `verbs`
    /// that the caller has. A person who signs in twice stays one person.
    ///
    /// # Errors
    /// Fails when the caller has none of the verbs, or its token was revoked.
    pub async fn sign_in_token(
        self,
        caller: &Caller,
        verbs: &[Verb],
        ttl_ms: u64,
    ) -> Result<Minted, EngineError> {
        let now_ms = self.engine.shared().clock.now_ms();
        let (claims, expires_ms) = self.sign_in_claims(caller, verbs, now_ms, ttl_ms)?;
        self.store_token(caller, claims, now_ms, expires_ms, None).await
    }

    /// Begins a sign-in with such a token, and stores what `record` makes of it. `over` is told the
    /// key of each sign-in that ends for it, before that is stored.
    ///
    /// # Errors
    /// Fails when the caller has none of the verbs, or its token was revoked.
    pub(crate) async fn sign_in(
        self,
        caller: &Caller,
        verbs: &[Verb],
        ttl_ms: u64,
        record: impl FnOnce(&Minted) -> SignInRecord + Send + 'static,
        over: impl Fn(String) + Send + 'static,
    ) -> Result<(), EngineError> {
        let now_ms = self.engine.shared().clock.now_ms();
        let (claims, expires_ms) = self.sign_in_claims(caller, verbs, now_ms, ttl_ms)?;
        let (engine, parent) = (self.engine.clone(), caller.jti.clone());
        // The caller may be gone in the meantime: the next one must find what this one stored.
        let beginning = self.engine.shared().tasks.spawn(async move {
            let lock = engine.inner.auth.sign_in_lock(&parent);
            let _one_after_the_other = lock.lock().await;
            let times = (now_ms, expires_ms);
            engine.tokens().take_place(parent, claims, times, record, over).await
        });
        beginning.await.map_err(|_| EngineError::Stopping)?
    }

    /// Stores a sign-in in the list of its parent, in the place of the oldest one if there are too
    /// many.
    async fn take_place(
        self,
        parent: String,
        mut claims: Claims,
        (now_ms, expires_ms): (u64, u64),
        record: impl FnOnce(&Minted) -> SignInRecord,
        over: impl Fn(String),
    ) -> Result<(), EngineError> {
        let list = format!("of {parent}");
        let key = list.clone();
        let kept = self.engine.read(move |store| store.kept(KEPT, &key)).await?;
        let listed = kept.and_then(|(value, _)| serde_json::from_str(&value).ok());
        let listed: Vec<Listed> = listed.unwrap_or_default();
        let (mut listed, mut ended): (Vec<_>, Vec<_>) = {
            let revoked = self.engine.inner.auth.revoked.read();
            listed.into_iter().partition(|it| !revoked.contains(&it.jti))
        };
        if listed.len() >= MOST {
            // Whoever revokes it from here on ends the new sign-in.
            let oldest = listed.remove(0);
            claims.jti.clone_from(&oldest.jti);
            ended.push(oldest);
        }
        let token = self.engine.inner.auth.sign(&claims)?;
        let minted = Minted { token, jti: claims.jti.clone(), expires_ms };
        let SignInRecord { key, value, expires_ms: until_ms } = record(&minted);
        listed.push(Listed { jti: minted.jti, key: key.clone() });
        let put = |key, value, until_ms| Write::PutKept {
            layer: KEPT.to_owned(),
            key,
            value,
            expires_ms: Some(until_ms),
        };
        let text = serde_json::to_string(&listed).expect("a list is plain data");
        let mut writes = vec![
            Write::PutToken(token_row(&claims, now_ms, expires_ms)),
            put(key, value, until_ms),
            put(list, text, expires_ms),
        ];
        for Listed { key, .. } in ended {
            writes.push(Write::RemoveKept { layer: KEPT.to_owned(), key: key.clone() });
            over(key);
        }
        fault::point("engine.token_mint");
        self.engine.shared().accounts.add(&claims, now_ms);
        self.engine.write(vec![Check::TokenLive(parent)], writes).await
    }

    /// Returns the claims of a sign-in's token, and their end in Unix milliseconds.
    fn sign_in_claims(
        self,
        caller: &Caller,
        verbs: &[Verb],
        now_ms: u64,
        ttl_ms: u64,
    ) -> Result<(Claims, u64), EngineError> {
        let own: Vec<Verb> = verbs.iter().copied().filter(|verb| caller.grant.has(*verb)).collect();
        if own.is_empty() {
            caller.grant.check(Verb::RunRead, &[])?;
        }
        let grant = Grant::new(caller.grant.role, caller.grant.scopes.clone()).only(own);
        let expires_ms = now_ms.saturating_add(ttl_ms).min(caller.expires_ms);
        let claims = mint_claims(&caller.subject, grant, now_ms, expires_ms)
            .child_of(&self.claims_of(caller));
        Ok((claims, expires_ms))
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
