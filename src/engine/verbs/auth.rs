//! Authentication: tokens and handles.

use std::collections::BTreeSet;

use crate::{
    engine::{
        Bearer, Caller, Engine, EngineError, Holder, IdempotencyKey, MintToken, Minted, QuotaUse,
        TokenView, rfc3339, shared::verified::denied, verbs::engine::TokenVerbs,
    },
    fault,
    protocol::{Code, Json, TaskId},
    store::{Check, TokenRow, Write},
    token::{
        Claims, Grant, Handle, Quotas, Role, Scopes, TaskClaim, TokenKind, UNNAMED, Verb,
        is_on_purpose, permits,
    },
};

/// The maximum lifetime of a token, in milliseconds.
const LONGEST_MS: u64 = 366 * 24 * 3_600 * 1_000;

/// The default lifetime of a token for an attempt, in milliseconds.
pub(crate) const ATTEMPT_TOKEN_MS: u64 = 600_000;

/// The maximum lifetime of a token for an attempt, in milliseconds.
const LONGEST_ATTEMPT_TOKEN_MS: u64 = 3_600_000;

/// The prefix of the id of a token for an attempt.
const ATTEMPT_JTI: &str = "wt_";

/// The maximum length of such an id: eight characters and a dot for each narrowing.
const LONGEST_ATTEMPT_JTI: usize = ATTEMPT_JTI.len() + 32 + 9 * MOST_NARROWINGS;

/// The number of characters of its id that distinguish the subject of an unnamed token.
const SHORT_JTI: usize = 12;

/// The maximum length of a token's name, in characters.
const LONGEST_NAME: usize = 64;

/// Reserved names.
const RESERVED: [&str; 6] = ["engine", "handle", "host", "session", "starter", "token"];

/// The lifetime of the admin token, in milliseconds.
const ADMIN_TTL_MS: u64 = 365 * 24 * 3_600 * 1_000;

/// The maximum number of times that a token for an attempt is narrowed.
const MOST_NARROWINGS: usize = 8;

/// Returns true if an id has the form of a token for an attempt.
pub(super) fn is_of_attempt(jti: &str) -> bool {
    let mut parts = jti.strip_prefix(ATTEMPT_JTI).unwrap_or_default().split('.');
    let hex = |part: &str, len| {
        part.len() == len && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    jti.len() <= LONGEST_ATTEMPT_JTI
        && parts.next().is_some_and(|root| hex(root, 32))
        && parts.all(|part| hex(part, 8))
}

/// Returns true if an id has the form of a token that was minted.
pub(super) fn is_minted(jti: &str) -> bool {
    uuid::Uuid::try_parse(jti)
        .is_ok_and(|id| id.get_version_num() == 4 && id.simple().to_string() == jti)
}

impl Engine {
    /// Authenticates a bearer: a token, or the handle of an attempt.
    ///
    /// Reads nothing from the store: handles and tokens are verified with the keys alone. The run
    /// checks whether the attempt is still open, on first use.
    ///
    /// # Errors
    /// Fails when the bearer was not issued by this host, has expired or was revoked.
    pub fn authenticate(&self, bearer: &str) -> Result<Bearer, EngineError> {
        if bearer.starts_with("wh_") {
            let now_s = self.shared().clock.now_ms() / 1_000;
            let epochs = &self.inner.auth.first_epochs;
            let of = Handle::parse(bearer)
                .and_then(|handle| {
                    handle.verify(&self.shared().handles, now_s, |run| epochs.get(&run).copied())
                })
                .map_err(denied)?;
            return Ok(Bearer::Holder(Holder {
                run: of.run,
                step: of.step,
                attempt: of.attempt,
                epoch: of.epoch,
                nonce: Some(of.nonce),
                jti: None,
                grant: None,
                session: None,
                before: None,
                carrier: None,
            }));
        }
        let now_ms = self.shared().clock.now_ms();
        let known = self.inner.auth.verify(bearer, now_ms / 1_000)?;
        let claims = &known.claims;
        Ok(match &claims.task {
            Some(task) => Bearer::Holder(Holder {
                run: task.id.run(),
                step: task.id.step(),
                attempt: task.attempt,
                epoch: task.epoch,
                nonce: Some(task.nonce),
                jti: Some(claims.jti.clone()),
                grant: Some(claims.grant()),
                session: None,
                before: None,
                carrier: None,
            }),
            None => Bearer::Caller({
                self.inner.auth.note_use(&claims.jti, now_ms);
                Caller {
                    session: self.sessions().session_of(claims)?,
                    subject: claims.sub.clone(),
                    grant: known.grant.clone(),
                    jti: claims.jti.clone(),
                    expires_ms: claims.exp.saturating_mul(1_000),
                    trace: None,
                }
            }),
        })
    }
}

impl Caller {
    /// Checks that the token has not ended since its request began.
    ///
    /// # Errors
    /// Fails when it was revoked, or has expired.
    pub(crate) fn check_token(&self, engine: &Engine) -> Result<(), EngineError> {
        let now_ms = engine.shared().clock.now_ms();
        engine.inner.auth.check(&self.jti, self.expires_ms, now_ms)
    }

    /// Waits for the end of the token. Returns the error that its use then fails with.
    pub(crate) async fn token_over(&self, engine: &Engine) -> EngineError {
        engine.inner.auth.over(&self.jti, self.expires_ms, &engine.shared().clock).await
    }

    /// Waits until the token is revoked. Returns the error that its use then fails with. Its expiry
    /// does not count: it may have been renewed since.
    pub(crate) async fn token_revoked(&self, engine: &Engine) -> EngineError {
        engine.inner.auth.over(&self.jti, u64::MAX, &engine.shared().clock).await
    }
}

impl Bearer {
    /// Checks that the token has not ended since its request began. The credential of an attempt
    /// ends if its token is revoked; whether the attempt is over is a matter of its run.
    ///
    /// # Errors
    /// Fails when it was revoked, or has expired.
    pub(crate) fn check_token(&self, engine: &Engine) -> Result<(), EngineError> {
        match self {
            Self::Caller(caller) => caller.check_token(engine),
            Self::Holder(Holder { jti: Some(jti), .. }) => {
                engine.inner.auth.check(jti, u64::MAX, engine.shared().clock.now_ms())
            }
            Self::Holder(Holder { jti: None, .. }) => Ok(()),
        }
    }

    /// Waits for the end of the token. Returns the error that its use then fails with.
    pub(crate) async fn token_over(&self, engine: &Engine) -> EngineError {
        match self {
            Self::Caller(caller) => caller.token_over(engine).await,
            Self::Holder(Holder { jti: Some(jti), .. }) => {
                engine.inner.auth.over(jti, u64::MAX, &engine.shared().clock).await
            }
            Self::Holder(Holder { jti: None, .. }) => std::future::pending().await,
        }
    }
}

impl TokenVerbs<'_> {
    /// Returns the public keys, as a JWK set.
    pub fn jwks(self) -> Json {
        let now_s = self.engine.shared().clock.now_ms() / 1_000;
        let set = self.engine.inner.auth.keys(|keys| keys.jwks(now_s));
        Json::encode(&set).expect("a key set is plain data")
    }

    /// Mints a token that is no wider than the caller's own.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or asks for more than it has.
    pub async fn mint(
        self,
        caller: &Caller,
        mint: MintToken,
        key: Option<IdempotencyKey>,
    ) -> Result<Minted, EngineError> {
        caller.grant.check(Verb::TokenMint, &[])?;
        if let Some(jti) = self.engine.repeated(caller, key.as_ref()).await? {
            return self.signed_again(caller, jti).await;
        }
        let now_ms = self.engine.shared().clock.now_ms();
        if mint.ttl_ms == 0 || mint.ttl_ms > LONGEST_MS {
            return Err(EngineError::BadRequest(format!(
                "mint a token: its ttl is between 1 s and {} days",
                LONGEST_MS / 86_400_000
            )));
        }
        if mint.role == Role::Queue
            && !mint.scopes.iter().flatten().any(|scope| scope.starts_with("queue:"))
        {
            return Err(EngineError::BadRequest(
                "mint a token: a token of the role queue names its queues: `queue:builds`, or \
                 `queue:*` for all of them"
                    .into(),
            ));
        }
        let expires_ms = (now_ms + mint.ttl_ms).min(caller.expires_ms);
        let scopes = match &mint.scopes {
            None => caller.grant.scopes.clone(),
            Some(scopes) => self.scopes_of(scopes)?,
        };
        let mut grant = Grant::new(mint.role, scopes);
        if let Some(verbs) = &mint.verbs {
            let verbs =
                verbs.iter().map(|word| word.parse::<Verb>()).collect::<Result<Vec<_>, _>>();
            let verbs = verbs.map_err(|error| EngineError::BadRequest(error.to_string()))?;
            refuse_foreign(mint.role, &verbs)?;
            grant = grant.only(verbs);
        }
        let grant = with_more(grant, &mint.extra_verbs)?;
        let parent = self.claims_of(caller);
        let mut claims = mint_claims("", grant, now_ms, expires_ms).child_of(&parent);
        claims.sub = subject(caller, &mint, &claims.jti)?;
        claims.quotas = self.quotas_of(caller, mint.quotas)?;
        claims.check_narrower(&parent).map_err(|widening| EngineError::Conflict {
            code: widening.code(),
            message: widening.to_string(),
        })?;
        self.store_token(caller, claims, now_ms, expires_ms, key).await
    }

    /// Returns the token of a repeated request: its claims are stored, and signing them again gives
    /// the token.
    async fn signed_again(self, caller: &Caller, jti: String) -> Result<Minted, EngineError> {
        let wanted = jti.clone();
        let row = self.engine.read(move |store| store.token(&wanted)).await?;
        let row = row.ok_or(EngineError::NotFound { what: "token", id: jti })?;
        let claims: Claims =
            serde_json::from_str(&row.claims).expect("stored claims were written by this program");
        self.check_repeatable(caller, &claims)?;
        let token = self.engine.inner.auth.sign(&claims)?;
        Ok(Minted { token, jti: row.jti, expires_ms: row.expires_ms })
    }

    /// Returns the quotas of a token to be minted.
    fn quotas_of(self, caller: &Caller, asked: Quotas) -> Result<Option<Quotas>, EngineError> {
        if let Some(fault) = asked.fault() {
            return Err(EngineError::BadRequest(format!("mint a token: {fault}")));
        }
        if asked.is_open() {
            return Ok(None);
        }
        self.engine.shared().accounts.check_line(&caller.jti)?;
        Ok(Some(asked))
    }

    /// Refuses to repeat a response with a token for a caller that could not have requested it:
    /// another token of the same subject may have less.
    pub(crate) fn check_repeatable(
        self,
        caller: &Caller,
        claims: &Claims,
    ) -> Result<(), EngineError> {
        if !self.engine.shared().accounts.covers(&caller.jti, &claims.jti) {
            let message = "repeat the request: its answer carries a token that does not count against \
                           your quotas; use an Idempotency-Key of your own";
            return Err(EngineError::Conflict {
                code: Code::RepeatWidens,
                message: message.into(),
            });
        }
        claims.check_repeatable(&self.claims_of(caller)).map_err(|widening| EngineError::Conflict {
            code: Code::RepeatWidens,
            message: format!(
                "repeat the request: its answer carries a token that is wider than yours in {}; \
                 use an Idempotency-Key of your own",
                widening.axis.as_str()
            ),
        })
    }

    pub(crate) fn claims_of(self, caller: &Caller) -> Claims {
        let grant = Grant::clone(&caller.grant);
        let mut claims = mint_claims(&caller.subject, grant, 0, caller.expires_ms);
        claims.quotas = self.engine.shared().accounts.bounds(&caller.jti);
        claims.jti.clone_from(&caller.jti);
        claims
    }

    /// Signs and stores a token that was made from the caller's.
    pub(super) async fn store_token(
        self,
        caller: &Caller,
        claims: Claims,
        now_ms: u64,
        expires_ms: u64,
        key: Option<IdempotencyKey>,
    ) -> Result<Minted, EngineError> {
        let token = self.engine.inner.auth.sign(&claims)?;
        let row = token_row(&claims, now_ms, expires_ms);
        let mut checks = vec![Check::TokenLive(caller.jti.clone())];
        let mut writes = vec![Write::PutToken(row)];
        let kept = key.map(|key| key.keep(&caller.subject, claims.jti.clone(), now_ms));
        let (check, write) = kept.unzip();
        checks.extend(check);
        writes.extend(write);
        fault::point("engine.token_mint");
        self.engine.shared().accounts.add(&claims, now_ms);
        self.engine.write(checks, writes).await?;
        Ok(Minted { token, jti: claims.jti, expires_ms })
    }

    /// Returns the issued tokens, newest first, without their secrets.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn list(self, caller: &Caller) -> Result<Vec<TokenView>, EngineError> {
        caller.grant.check(Verb::TokenList, &[])?;
        let rows = self.engine.read(|store| store.tokens()).await?;
        let used = |row: &TokenRow| self.engine.shared().accounts.used(&row.jti);
        let last = |row: &TokenRow| self.engine.inner.auth.last_use(&row.jti);
        Ok(rows.iter().map(|row| view_token(row, used(row), last(row))).collect())
    }

    /// Returns the caller's own token, which needs no verb.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub async fn own(self, caller: &Caller) -> Result<TokenView, EngineError> {
        let jti = caller.jti.clone();
        let row = self.engine.read(move |store| store.token(&jti)).await?;
        let missing = || EngineError::NotFound { what: "token", id: caller.jti.clone() };
        let row = row.ok_or_else(missing)?;
        let used = self.engine.shared().accounts.used(&row.jti);
        Ok(view_token(&row, used, self.engine.inner.auth.last_use(&row.jti)))
    }

    /// Mints the admin token of the data directory.
    ///
    /// # Errors
    /// Fails when it cannot be stored.
    pub async fn mint_admin(self) -> Result<Minted, EngineError> {
        let now_ms = self.engine.shared().clock.now_ms();
        let claims = self.owner_claims(None, now_ms).await?;
        let token = self.engine.inner.auth.sign(&claims)?;
        Ok(Minted { token, jti: claims.jti, expires_ms: claims.exp.saturating_mul(1_000) })
    }

    /// Stores and returns the claims of a new admin token; fails if the token of the caller `by` was
    /// revoked.
    pub(crate) async fn owner_claims(
        self,
        by: Option<&Caller>,
        now_ms: u64,
    ) -> Result<Claims, EngineError> {
        let grant = Grant::everything();
        let claims = mint_claims("admin", grant, now_ms, now_ms + ADMIN_TTL_MS);
        let row = token_row(&claims, now_ms, now_ms + ADMIN_TTL_MS);
        let checks = by.map(|by| Check::TokenLive(by.jti.clone())).into_iter().collect();
        fault::point("engine.token_mint");
        self.engine.write(checks, vec![Write::PutToken(row)]).await?;
        Ok(claims)
    }

    /// Reads scopes as they are written.
    ///
    /// # Errors
    /// Fails on a text that is not a scope.
    pub(crate) fn scopes_of(self, scopes: &[String]) -> Result<Scopes, EngineError> {
        let scopes = scopes.iter().map(|text| {
            let name = text.strip_prefix("operator:");
            match name.map(|name| (name, self.engine.shared().registry.name_of(name))) {
                Some((name, known)) if name != known => format!("operator:{known}").parse(),
                _ => text.parse(),
            }
        });
        let scopes = scopes.collect::<Result<_, crate::token::ScopeError>>();
        scopes.map(Scopes).map_err(|error| EngineError::BadRequest(error.to_string()))
    }

    /// Returns true if a token is valid, and will be after the retired keys have expired.
    pub fn is_lasting(self, token: &str) -> bool {
        self.engine.authenticate(token).is_ok()
            && self.engine.inner.auth.keys(|keys| keys.is_current(token))
    }

    /// Renews the token that a worker used; it keeps its id, so that revoking the id ends the
    /// renewed token as well.
    pub(crate) fn renew(self, holder: &Holder) -> Option<String> {
        let nonce = holder.nonce?;
        let jti = holder.jti.clone()?;
        Some(self.attempt_token(holder, nonce, jti, None, ATTEMPT_TOKEN_MS).ok()?.token)
    }

    /// Returns the id of a token that is derived from a holder's bearer.
    pub(crate) fn attempt_jti(holder: &Holder) -> Result<String, EngineError> {
        let fresh = uuid::Uuid::new_v4().simple().to_string();
        let jti = match &holder.jti {
            Some(parent) => format!("{parent}.{}", &fresh[..8]),
            None => format!("{ATTEMPT_JTI}{fresh}"),
        };
        if jti.len() > LONGEST_ATTEMPT_JTI {
            return Err(EngineError::BadRequest(format!(
                "make a token for a task: it was narrowed {MOST_NARROWINGS} times already"
            )));
        }
        Ok(jti)
    }

    /// Signs a token for an attempt that is no wider than its holder's bearer.
    pub(crate) fn attempt_token(
        self,
        holder: &Holder,
        nonce: u64,
        jti: String,
        verbs: Option<&[String]>,
        ttl_ms: u64,
    ) -> Result<Minted, EngineError> {
        if !(1_000..=LONGEST_ATTEMPT_TOKEN_MS).contains(&ttl_ms) {
            let message =
                "make a token for a task: its ttl is between 1 s and 1 h; a heartbeat renews it";
            return Err(EngineError::BadRequest(message.into()));
        }
        let now_ms = self.engine.shared().clock.now_ms();
        let task = TaskClaim {
            id: TaskId::new(holder.run, holder.step, now_ms),
            attempt: holder.attempt,
            epoch: holder.epoch,
            nonce,
        };
        let mut claims =
            Claims::for_attempt(task, "worker", jti.clone(), now_ms / 1_000, ttl_ms / 1_000);
        claims.parent = holder.jti.clone().filter(|parent| *parent != jti);
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
        let token = self.engine.inner.auth.sign(&claims)?;
        Ok(Minted { token, jti, expires_ms: claims.exp.saturating_mul(1_000) })
    }
}

/// Refuses to narrow a token to a verb that its role never has: it could do nothing with it.
fn refuse_foreign(role: Role, verbs: &[Verb]) -> Result<(), EngineError> {
    let has = |verb: Verb| permits(role, verb) || is_on_purpose(role, verb);
    let Some(foreign) = verbs.iter().find(|verb| !has(**verb)) else { return Ok(()) };
    let own: Vec<_> = Verb::ALL.iter().filter(|verb| has(**verb)).map(|it| it.as_str()).collect();
    Err(EngineError::BadRequest(format!(
        "mint a token: the role {role} never has the verb {foreign}; it has {}",
        own.join(", ")
    )))
}

/// Returns a grant with additional verbs.
pub(crate) fn with_more(grant: Grant, words: &[String]) -> Result<Grant, EngineError> {
    let verbs = words.iter().map(|word| word.parse::<Verb>()).collect::<Result<Vec<_>, _>>();
    let verbs = verbs.map_err(|error| EngineError::BadRequest(error.to_string()))?;
    let role = grant.role;
    grant.and(&verbs).ok_or_else(|| {
        let words = words.join(", ");
        EngineError::BadRequest(format!(
            "add the verbs {words}: the role {role} never has all of them"
        ))
    })
}

/// Returns the subject of a token: the caller's, followed by the name or role of the token. An
/// admin with every right issues plain names: those are people, who are distinguished where several
/// must answer. A token without a name has a subject of its own, so that no two share an
/// Idempotency-Key.
fn subject(caller: &Caller, mint: &MintToken, jti: &str) -> Result<String, EngineError> {
    let Some(name) = &mint.name else {
        let own = &jti[..SHORT_JTI];
        return Ok(format!("{}/{}{UNNAMED}{own}", caller.subject, mint.role));
    };
    if !is_persons_name(name) {
        return Err(EngineError::BadRequest(format!(
            "mint a token: a name has 1 to {LONGEST_NAME} letters, digits or any of `._-@+`, and is \
             no role's"
        )));
    }
    match caller.grant.covers(&Grant::everything()) {
        true => Ok(name.clone()),
        false => Ok(format!("{}/{name}", caller.subject)),
    }
}

/// Returns true if a token may have this name: it is a person's, and no word of the host in any case.
pub(super) fn is_persons_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-@+".contains(c);
    let fits = (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(plain);
    let folded = name.to_ascii_lowercase();
    fits && folded.parse::<Role>().is_err() && !RESERVED.contains(&folded.as_str())
}

pub(crate) fn mint_claims(
    subject: &str,
    grant: crate::token::Grant,
    now_ms: u64,
    expires_ms: u64,
) -> Claims {
    let jti = uuid::Uuid::new_v4().simple().to_string();
    let ttl_s = (expires_ms / 1_000).saturating_sub(now_ms / 1_000);
    Claims::new(TokenKind::Api, subject, jti, grant, now_ms / 1_000, ttl_s)
}

/// Returns the stored form of a token: its claims, without the signature.
pub(crate) fn token_row(claims: &Claims, created_ms: u64, expires_ms: u64) -> TokenRow {
    TokenRow {
        jti: claims.jti.clone(),
        role: claims.role.to_string(),
        claims: serde_json::to_string(claims).expect("claims are plain data"),
        parent: claims.parent.clone(),
        created_ms,
        expires_ms,
        revoked_ms: None,
    }
}

/// Returns the row of a revoked token for an attempt, of which only the id is known.
pub(super) fn attempt_row(jti: &str, now_ms: u64) -> TokenRow {
    let grant = crate::token::Grant::new(Role::Worker, Scopes(Vec::new()));
    let ttl_s = LONGEST_ATTEMPT_TOKEN_MS / 1_000;
    let claims = Claims::new(TokenKind::Task, "worker", jti, grant, now_ms / 1_000, ttl_s);
    token_row(&claims, now_ms, now_ms + LONGEST_ATTEMPT_TOKEN_MS)
}

fn view_token(row: &TokenRow, used: Option<QuotaUse>, last_ms: Option<u64>) -> TokenView {
    let claims: Option<Claims> = serde_json::from_str(&row.claims).ok();
    let words = |claims: &Claims| {
        claims.verbs.as_ref().map(|v| v.iter().map(ToString::to_string).collect())
    };
    TokenView {
        jti: row.jti.clone(),
        subject: claims.as_ref().map(|claims| claims.sub.clone()).unwrap_or_default(),
        last_used_at: last_ms.map(rfc3339),
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
