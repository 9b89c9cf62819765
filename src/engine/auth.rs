//! Who is at the door: tokens, handles, revocations.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock},
};

use super::{
    Bearer, Caller, Engine, EngineError, Holder, IdempotencyKey, MintToken, Minted, QuotaUse,
    TokenView, rfc3339,
};
use crate::{
    fault,
    protocol::{Json, TaskId},
    session::End,
    store::{Check, Store, StoreError, TokenRow, Write},
    token::{Claims, Handle, KeyRing, Quotas, Role, Scopes, TaskClaim, TokenKind, Verb},
};

/// Verified tokens that are remembered.
const REMEMBERED: usize = 4_096;
/// The longest life of a token, in milliseconds.
const LONGEST_MS: u64 = 366 * 24 * 3_600 * 1_000;

/// How long a token for an attempt lives unless it says otherwise, in milliseconds.
pub(super) const ATTEMPT_TOKEN_MS: u64 = 600_000;
/// The longest life of a token for an attempt, in milliseconds.
const LONGEST_ATTEMPT_TOKEN_MS: u64 = 3_600_000;
/// The longest name of whoever holds a token, in characters.
const LONGEST_NAME: usize = 64;
/// Names that mean something else.
const RESERVED: [&str; 4] = ["engine", "handle", "host", "token"];

/// Keys, and what is known of tokens.
pub(super) struct Auth {
    pub(super) keys: KeyRing,
    revoked: RwLock<HashSet<String>>,
    verified: RwLock<HashMap<[u8; 32], Claims>>,
}

impl Auth {
    pub(super) fn open(store: Arc<dyn Store>, keys: KeyRing) -> Result<Self, EngineError> {
        let revoked = store.tokens()?.into_iter().filter(|row| row.revoked_ms.is_some());
        let revoked = revoked.map(|row| row.jti).collect();
        Ok(Self { keys, revoked: RwLock::new(revoked), verified: RwLock::default() })
    }

    /// A signature is checked once; time and revocation are checked at every use.
    fn verify(&self, token: &str, now_s: u64) -> Result<Claims, EngineError> {
        let mark = *blake3::hash(token.as_bytes()).as_bytes();
        let known =
            self.verified.read().unwrap_or_else(PoisonError::into_inner).get(&mark).cloned();
        let claims = match known {
            Some(claims) => {
                claims.check_time(now_s).map_err(denied)?;
                claims
            }
            None => {
                let claims = self.keys.verify(token, &TokenKind::ALL, now_s).map_err(denied)?;
                let mut verified = self.verified.write().unwrap_or_else(PoisonError::into_inner);
                if verified.len() >= REMEMBERED {
                    verified.clear();
                }
                verified.insert(mark, claims.clone());
                claims
            }
        };
        let revoked = self.revoked.read().unwrap_or_else(PoisonError::into_inner);
        let gone = |jti: &String| revoked.contains(jti);
        if gone(&claims.jti) || claims.parent.as_ref().is_some_and(gone) {
            return Err(StoreError::Revoked { jti: claims.jti }.into());
        }
        Ok(claims)
    }
}

pub(super) fn denied(error: impl std::fmt::Display) -> EngineError {
    EngineError::Unauthenticated(error.to_string())
}

impl Engine {
    /// Who holds a bearer: a token, or the handle of an attempt.
    ///
    /// A handle's proof is checked where the attempt's epoch is known, with the first use.
    ///
    /// # Errors
    /// When it is not a bearer of this host, has ended or was revoked.
    pub fn authenticate(&self, bearer: &str) -> Result<Bearer, EngineError> {
        if bearer.starts_with("wh_") {
            let handle = Handle::parse(bearer).map_err(denied)?;
            return Ok(Bearer::Holder(Holder {
                run: handle.run(),
                step: handle.step(),
                attempt: handle.attempt(),
                epoch: None,
                handle: Some(bearer.to_owned()),
                jti: None,
                grant: None,
                session: None,
            }));
        }
        let claims = self.inner.auth.verify(bearer, self.shared().clock.now_ms() / 1_000)?;
        let grant = claims.grant();
        Ok(match &claims.task {
            Some(task) => Bearer::Holder(Holder {
                run: task.id.run(),
                step: task.id.step(),
                attempt: task.attempt,
                epoch: Some(task.epoch),
                handle: None,
                jti: Some(claims.jti.clone()),
                grant: Some(grant),
                session: None,
            }),
            None => Bearer::Caller(Caller {
                session: self.session_of(&claims)?,
                subject: claims.sub,
                grant,
                jti: claims.jti,
                expires_ms: claims.exp.saturating_mul(1_000),
            }),
        })
    }

    /// The public keys, as a JWK set.
    pub fn jwks(&self) -> Json {
        let set = self.inner.auth.keys.jwks(self.shared().clock.now_ms() / 1_000);
        Json::encode(&set).expect("a key set is plain data")
    }

    /// Makes a token that is no wider than the caller's own.
    ///
    /// # Errors
    /// When the caller may not, or asks for more than it has.
    pub async fn mint(
        &self,
        caller: &Caller,
        mint: MintToken,
        key: Option<IdempotencyKey>,
    ) -> Result<Minted, EngineError> {
        caller.grant.check(Verb::TokenMint, &[])?;
        if let Some(key) = &key
            && let Some(jti) = self.repeated(caller, key).await?
        {
            return self.signed_again(jti).await;
        }
        let now_ms = self.shared().clock.now_ms();
        if mint.ttl_ms == 0 || mint.ttl_ms > LONGEST_MS {
            return Err(EngineError::BadRequest(format!(
                "mint a token: its ttl is between 1 s and {} days",
                LONGEST_MS / 86_400_000
            )));
        }
        let expires_ms = (now_ms + mint.ttl_ms).min(caller.expires_ms);
        let scopes = match &mint.scopes {
            None => caller.grant.scopes.clone(),
            Some(scopes) => {
                Scopes(scopes.iter().map(|text| text.parse()).collect::<Result<_, _>>().map_err(
                    |error: crate::token::ScopeError| EngineError::BadRequest(error.to_string()),
                )?)
            }
        };
        let mut grant = crate::token::Grant::new(mint.role, scopes);
        if let Some(verbs) = &mint.verbs {
            let verbs =
                verbs.iter().map(|word| word.parse::<Verb>()).collect::<Result<Vec<_>, _>>();
            grant = grant.only(verbs.map_err(|error| EngineError::BadRequest(error.to_string()))?);
        }
        let parent = self.claims_of(caller);
        let subject = subject(caller, &mint)?;
        let mut claims = mint_claims(&subject, grant, now_ms, expires_ms).child_of(&parent);
        claims.quotas = self.quotas_of(caller, mint.quotas)?;
        claims.check_narrower(&parent).map_err(|widening| EngineError::Conflict {
            code: widening.code(),
            message: widening.to_string(),
        })?;
        self.store_token(caller, claims, now_ms, expires_ms, key).await
    }

    /// The token of a repeated request: what it says is stored, and signing that gives the token.
    async fn signed_again(&self, jti: String) -> Result<Minted, EngineError> {
        let wanted = jti.clone();
        let row = self.read(move |store| store.token(&wanted)).await?;
        let row = row.ok_or(EngineError::NotFound { what: "token", id: jti })?;
        let claims: Claims =
            serde_json::from_str(&row.claims).expect("stored claims were written by this program");
        let token = self.inner.auth.keys.sign(&claims).map_err(denied)?;
        Ok(Minted { token, jti: row.jti, expires_ms: row.expires_ms })
    }

    /// The quotas of a token that is to be made.
    fn quotas_of(&self, caller: &Caller, asked: Quotas) -> Result<Option<Quotas>, EngineError> {
        if let Some(fault) = asked.fault() {
            return Err(EngineError::BadRequest(format!("mint a token: {fault}")));
        }
        if asked.is_open() {
            return Ok(None);
        }
        self.shared().accounts.check_line(&caller.jti)?;
        Ok(Some(asked))
    }

    pub(super) fn claims_of(&self, caller: &Caller) -> Claims {
        let mut claims = mint_claims(&caller.subject, caller.grant.clone(), 0, caller.expires_ms);
        claims.quotas = self.shared().accounts.bounds(&caller.jti);
        claims.jti.clone_from(&caller.jti);
        claims
    }

    async fn store_token(
        &self,
        caller: &Caller,
        claims: Claims,
        now_ms: u64,
        expires_ms: u64,
        key: Option<IdempotencyKey>,
    ) -> Result<Minted, EngineError> {
        let token = self.inner.auth.keys.sign(&claims).map_err(denied)?;
        let row = TokenRow {
            jti: claims.jti.clone(),
            role: claims.role.to_string(),
            claims: serde_json::to_string(&claims).expect("claims are plain data"),
            parent: claims.parent.clone(),
            created_ms: now_ms,
            expires_ms,
            revoked_ms: None,
        };
        let mut checks = vec![Check::TokenLive(caller.jti.clone())];
        let mut writes = vec![Write::PutToken(row)];
        if let Some(key) = key {
            let (check, write) = key.keep(&caller.subject, claims.jti.clone(), now_ms);
            checks.push(check);
            writes.push(write);
        }
        fault::point("engine.token_mint");
        self.shared().accounts.add(&claims, now_ms);
        self.write(checks, writes).await?;
        Ok(Minted { token, jti: claims.jti, expires_ms })
    }

    /// The tokens that were given out, newest first, without their secrets.
    ///
    /// # Errors
    /// When the caller may not see them.
    pub async fn tokens(&self, caller: &Caller) -> Result<Vec<TokenView>, EngineError> {
        caller.grant.check(Verb::TokenList, &[])?;
        let rows = self.read(|store| store.tokens()).await?;
        let used = |row: &TokenRow| self.shared().accounts.used(&row.jti);
        Ok(rows.iter().map(|row| view_token(row, used(row))).collect())
    }

    /// Revokes a token and what was made from it; nothing that comes with it later is accepted.
    ///
    /// # Errors
    /// When the caller may not, or there is no such token.
    pub async fn revoke(&self, caller: &Caller, jti: &str) -> Result<(), EngineError> {
        caller.grant.check(Verb::TokenRevoke, &[])?;
        let wanted = jti.to_owned();
        let found = self.read(move |store| store.tokens()).await?;
        if !found.iter().any(|row| row.jti == wanted) {
            return Err(EngineError::NotFound { what: "token", id: wanted });
        }
        let mut doomed = vec![wanted];
        let mut at = 0;
        while at < doomed.len() {
            let parent = doomed[at].clone();
            let children = found.iter().filter(|row| row.parent.as_deref() == Some(&parent));
            doomed.extend(children.map(|row| row.jti.clone()));
            at += 1;
        }
        {
            // Refused from here on; durable before the answer.
            let auth = &self.inner.auth;
            let mut revoked = auth.revoked.write().unwrap_or_else(PoisonError::into_inner);
            revoked.extend(doomed.iter().cloned());
        }
        fault::point("engine.token_revoke");
        let at_ms = self.shared().clock.now_ms();
        let sessions = self.shared().sessions.opened_with(&doomed);
        let writes = doomed.into_iter().map(|jti| Write::RevokeToken { jti, at_ms }).collect();
        self.write(Vec::new(), writes).await?;
        for session in sessions {
            self.end_session(&session, End::Revoked).await?;
        }
        Ok(())
    }

    /// Makes the token of the data directory's owner, who may do everything.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub async fn mint_admin(&self, ttl_ms: u64) -> Result<Minted, EngineError> {
        let now_ms = self.shared().clock.now_ms();
        let grant = crate::token::Grant::new(Role::Admin, Scopes::all());
        let claims = mint_claims("admin", grant.clone(), now_ms, now_ms + ttl_ms);
        let owner = Caller {
            subject: "host".into(),
            grant,
            jti: String::new(),
            expires_ms: now_ms + ttl_ms,
            session: None,
        };
        self.store_token(&owner, claims, now_ms, now_ms + ttl_ms, None).await
    }

    /// A fresh token for a worker that came with one.
    pub(super) fn renew(&self, holder: &Holder) -> Option<String> {
        let epoch = holder.epoch.filter(|_| holder.jti.is_some())?;
        Some(self.attempt_token(holder, epoch, None, ATTEMPT_TOKEN_MS).ok()?.token)
    }

    /// Signs a token for an attempt that is no wider than what its holder came with.
    pub(super) fn attempt_token(
        &self,
        holder: &Holder,
        epoch: u32,
        verbs: Option<&[String]>,
        ttl_ms: u64,
    ) -> Result<Minted, EngineError> {
        if !(1_000..=LONGEST_ATTEMPT_TOKEN_MS).contains(&ttl_ms) {
            let message =
                "make a token for a task: its ttl is between 1 s and 1 h; a heartbeat renews it";
            return Err(EngineError::BadRequest(message.into()));
        }
        let now_ms = self.shared().clock.now_ms();
        let task = TaskClaim {
            id: TaskId::new(holder.run, holder.step, now_ms),
            attempt: holder.attempt,
            epoch,
        };
        let jti = uuid::Uuid::new_v4().simple().to_string();
        let mut claims =
            Claims::for_attempt(task, "worker", jti.clone(), now_ms / 1_000, ttl_ms / 1_000);
        claims.parent.clone_from(&holder.jti);
        if let Some(grant) = &holder.grant {
            claims.verbs.clone_from(&grant.verbs);
        }
        if let Some(verbs) = verbs {
            let mut only = BTreeSet::new();
            for word in verbs {
                let verb: Verb = word.parse().map_err(|error: crate::token::UnknownVerb| {
                    EngineError::BadRequest(error.to_string())
                })?;
                claims.grant().check(verb, &[])?;
                only.insert(verb);
            }
            claims.verbs = Some(only);
        }
        let token = self.inner.auth.keys.sign(&claims).map_err(denied)?;
        Ok(Minted { token, jti, expires_ms: claims.exp.saturating_mul(1_000) })
    }
}

/// Whose a made token is: whoever asks for it, and below them its name or role. An admin gives out
/// names of their own: those are people, who are told apart where several must answer.
fn subject(caller: &Caller, mint: &MintToken) -> Result<String, EngineError> {
    let Some(name) = &mint.name else {
        return Ok(format!("{}/{}", caller.subject, mint.role));
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-@+".contains(c);
    let fits = (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(plain);
    if !fits || name.parse::<Role>().is_ok() || RESERVED.contains(&name.as_str()) {
        return Err(EngineError::BadRequest(format!(
            "mint a token: a name has 1 to {LONGEST_NAME} letters, digits or any of `._-@+`, and is \
             no role's"
        )));
    }
    match caller.grant.role {
        Role::Admin => Ok(name.clone()),
        _ => Ok(format!("{}/{name}", caller.subject)),
    }
}

pub(super) fn mint_claims(
    subject: &str,
    grant: crate::token::Grant,
    now_ms: u64,
    expires_ms: u64,
) -> Claims {
    let jti = uuid::Uuid::new_v4().simple().to_string();
    let ttl_s = (expires_ms / 1_000).saturating_sub(now_ms / 1_000);
    Claims::new(TokenKind::Api, subject, jti, grant, now_ms / 1_000, ttl_s)
}

fn view_token(row: &TokenRow, used: Option<QuotaUse>) -> TokenView {
    let claims: Option<Claims> = serde_json::from_str(&row.claims).ok();
    let words = |claims: &Claims| {
        claims.verbs.as_ref().map(|v| v.iter().map(ToString::to_string).collect())
    };
    TokenView {
        jti: row.jti.clone(),
        role: row.role.clone(),
        verbs: claims.as_ref().and_then(words),
        quotas: claims.as_ref().and_then(|claims| claims.quotas),
        used,
        scopes: claims
            .map(|claims| claims.scopes.0.iter().map(ToString::to_string).collect())
            .unwrap_or_default(),
        parent: row.parent.clone(),
        created_at: rfc3339(row.created_ms),
        expires_at: rfc3339(row.expires_ms),
        revoked_at: row.revoked_ms.map(rfc3339),
    }
}
