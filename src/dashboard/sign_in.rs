//! Sign-ins: a random cookie for a browser, bound to a narrow token.
//!
//! A sign-in is stored under the hash of its cookie, and its token is sealed with a key that only
//! the cookie gives: neither the memory of the host nor its database has anything that lets
//! somebody in, but for the tokens of people whom a proxy names. It is stored, and not only in
//! memory, so that a page goes on after the host was restarted. A request needs the store only if
//! the host does not remember the sign-in.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use data_encoding::{BASE64, HEXLOWER};
use hashlink::LruCache;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use crate::{
    clock::Clock,
    door::{Code, Problem},
    engine::{Bearer, Caller, Engine, MintToken, Minted, SignInRecord},
    token::{Quotas, Role, Verb, permits},
};

/// The path at which `moonswarm open` asks for a code, with a bearer.
pub(super) const CODES: &str = "/ui/codes";
/// After this time without a request a sign-in ends, in milliseconds.
const IDLE_MS: u64 = 8 * 3_600 * 1_000;
/// After this time a sign-in ends in any case, in milliseconds.
pub(super) const LONGEST_MS: u64 = 7 * 24 * 3_600 * 1_000;
/// The interval at which the last use is stored, in milliseconds.
const STORED_EVERY_MS: u64 = 10 * 60 * 1_000;
/// The interval at which an open stream looks whether its sign-in has ended, in milliseconds.
const LOOK_MS: u64 = 60_000;
/// The lifetime of a code, in milliseconds.
pub(super) const CODE_MS: u64 = 60_000;
/// The maximum number of codes at a time.
const MOST_CODES: usize = 256;
/// The maximum number of sign-ins in memory; others are read again.
const MOST_REMEMBERED: usize = 4_096;
/// The maximum length of a provider's token that is kept for signing out, in bytes.
const MOST_FOREIGN: usize = 4 << 10;
/// The contexts of the keys that seal a token, and the token of a provider.
const OWN: &str = "moonswarm dashboard token 1";
const FOREIGN: &str = "moonswarm dashboard provider 1";
/// The prefix of a code.
const CODE: &str = "once_";
/// The length of a cookie, in characters.
const COOKIE_CHARS: usize = 64;

/// The verbs of a person at the dashboard, and of the runs that a person starts there: a run has
/// the rights of its starter. Everything else needs the token itself: minting and revoking, posting
/// source, rotating keys, deleting, backups.
const VERBS: &[Verb] = &[
    Verb::HostRead,
    Verb::HostInspect,
    Verb::AuditRead,
    Verb::RunStart,
    Verb::RunRead,
    Verb::RunCancel,
    Verb::RunPause,
    Verb::RunResume,
    Verb::RunFork,
    Verb::RunInspect,
    Verb::RunSignal,
    Verb::RunQuery,
    Verb::BlueprintRead,
    Verb::BlueprintCheck,
    Verb::TriggerPause,
    Verb::TaskList,
    Verb::TaskRead,
    Verb::TaskAnswer,
    Verb::TaskExpire,
    Verb::TaskAdvise,
    Verb::ArtifactRead,
    Verb::StateRead,
    Verb::OperatorRead,
    Verb::SeatAcquire,
    Verb::TokenList,
    Verb::Dispatch,
    Verb::StateWrite,
    Verb::ArtifactWrite,
    Verb::TaskEscalate,
    Verb::WorkerPrompt,
    Verb::WorkerResult,
    Verb::WorkerSubmit,
    Verb::WorkerArtifact,
    Verb::WorkerProgress,
    Verb::WorkerHeartbeat,
    Verb::WorkerToken,
    Verb::WorkerState,
];

/// The roles that a link may have.
pub(super) const ROLES: [Role; 4] = [Role::Observer, Role::Approver, Role::Operator, Role::Admin];

/// The sign-ins, and the codes for new ones.
pub(super) struct SignIns {
    engine: Engine,
    clock: Clock,
    codes: Mutex<Vec<OneTime>>,
    known: Arc<Known>,
    /// The tokens behind the sign-ins of people whom a proxy names, by the ids of their own tokens.
    named: Mutex<LruCache<String, String>>,
}

/// The sign-ins in memory; `None` stands for one that ended because another began.
type Known = Mutex<LruCache<String, Option<Arc<Entry>>>>;

/// A code that was not used yet.
struct OneTime {
    hash: [u8; 32],
    by: Caller,
    role: Role,
    until_ms: u64,
}

/// A sign-in.
struct Entry {
    sealed: Vec<u8>,
    /// The token of the provider with which the person signed in; empty if it is too long.
    foreign: Option<Vec<u8>>,
    /// True if the token that signed in may store source: so may the sign-in, of the program's examples.
    examples: bool,
    made_ms: u64,
    used_ms: AtomicU64,
    stored_ms: AtomicU64,
}

/// The stored form of a sign-in.
#[derive(Serialize, Deserialize)]
struct Stored {
    sealed: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    foreign: Option<String>,
    #[serde(default)]
    examples: bool,
    made_ms: u64,
    used_ms: u64,
}

/// Who asks with the cookie of a sign-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// A person, who uses the sign-in.
    Person,
    /// An open page by itself, which is no use of it.
    Page,
}

/// A sign-in that a cookie stands for.
#[derive(Debug, Clone)]
pub(super) struct SignedIn {
    /// The token, for the door.
    pub token: String,
    /// The form token: forms without it are refused.
    pub form: String,
    /// True if the person may store examples of the gallery with it.
    pub examples: bool,
    /// The key under which the sign-in is stored.
    key: String,
}

impl SignedIn {
    /// Returns true if a form carried this sign-in's token.
    pub(super) fn is_own(&self, form: &str) -> bool {
        self.form.as_bytes().ct_eq(form.as_bytes()).into()
    }
}

impl SignIns {
    /// Creates the sign-ins of a host.
    pub(super) fn new(engine: Engine, clock: Clock) -> Self {
        let known = Arc::new(Mutex::new(LruCache::new(MOST_REMEMBERED)));
        let named = Mutex::new(LruCache::new(MOST_REMEMBERED));
        Self { engine, clock, codes: Mutex::default(), known, named }
    }

    /// Makes a code that signs in once, within a minute, with a token that `by` mints then.
    ///
    /// # Errors
    /// Fails when too many codes are open, or `by` may not mint such a token.
    pub(super) fn code(&self, by: &Caller, role: Role) -> Result<String, Problem> {
        by.grant.check(Verb::TokenMint, &[]).map_err(crate::engine::EngineError::Refused)?;
        if !ROLES.contains(&role) || !by.grant.role.holds(role) {
            let detail = format!("a link of the role {role} cannot be made with this token");
            return Err(Problem::new(Code::TokenWidens, detail));
        }
        let code = format!("{CODE}{}", random());
        let now_ms = self.clock.now_ms();
        let hash = *blake3::hash(code.as_bytes()).as_bytes();
        let mut codes = self.codes.lock();
        codes.retain(|code| code.until_ms > now_ms);
        if codes.len() >= MOST_CODES {
            let detail = "too many links are open; each is good for a minute";
            return Err(Problem::new(Code::Busy, detail).retry_after(CODE_MS / 1_000));
        }
        codes.push(OneTime { hash, by: by.clone(), role, until_ms: now_ms + CODE_MS });
        Ok(code)
    }

    /// Signs in with a code or a token, and returns the value of the cookie.
    ///
    /// # Errors
    /// Fails when the code was used or is too old, or the token is not one for the API.
    pub(super) async fn open(&self, secret: &str) -> Result<String, Problem> {
        self.open_with(secret, None).await
    }

    /// Signs in as `open`, and keeps the token of a provider until the sign-out.
    ///
    /// # Errors
    /// Fails as `open`.
    pub(super) async fn open_with(
        &self,
        secret: &str,
        foreign: Option<&str>,
    ) -> Result<String, Problem> {
        if secret.starts_with(CODE) {
            return self.open_code(secret).await;
        }
        let caller = self.caller_of(secret)?;
        let examples = caller.grant.has(Verb::BlueprintWrite);
        let (cookie, now_ms) = (random(), self.clock.now_ms());
        let (sealing, foreign) = (cookie.clone(), foreign.map(str::to_owned));
        let record = move |minted: &Minted| {
            let entry = Entry::new(&sealing, &minted.token, foreign.as_deref(), examples, now_ms);
            SignInRecord {
                key: key_of(&sealing),
                value: entry.to_text(),
                expires_ms: entry.ends_ms(),
            }
        };
        let known = Arc::clone(&self.known);
        let over = move |key| drop(known.lock().insert(key, None));
        self.engine.tokens().sign_in(&caller, VERBS, LONGEST_MS, record, over).await?;
        Ok(cookie)
    }

    async fn open_code(&self, code: &str) -> Result<String, Problem> {
        let OneTime { by, role, .. } = self.take_code(code)?;
        let examples = permits(role, Verb::BlueprintWrite) && by.grant.has(Verb::BlueprintWrite);
        let may = |verb: &&Verb| permits(role, **verb) && by.grant.has(**verb);
        let verbs = VERBS.iter().filter(may).map(|verb| verb.as_str().to_owned()).collect();
        let mint = MintToken {
            role,
            verbs: Some(verbs),
            extra_verbs: Vec::new(),
            scopes: None,
            ttl_ms: LONGEST_MS,
            name: None,
            quotas: Quotas::default(),
        };
        let minted = self.engine.tokens().mint(&by, mint, None).await?;
        let cookie = random();
        let entry = Entry::new(&cookie, &minted.token, None, examples, self.clock.now_ms());
        self.store(&key_of(&cookie), &entry).await?;
        Ok(cookie)
    }

    /// Signs in a person whom a proxy names with each request, with the person's token. The sign-in
    /// is in memory only until its cookie comes back, and those of a token share the one behind
    /// them: a client that keeps no cookies leaves nothing.
    ///
    /// # Errors
    /// Fails as `open`.
    pub(super) async fn open_named(&self, token: &str) -> Result<String, Problem> {
        let caller = self.caller_of(token)?;
        let shared = self.named.lock().get(&caller.jti).cloned();
        let shared = match shared.filter(|it| self.engine.authenticate(it).is_ok()) {
            Some(shared) => shared,
            None => {
                let tokens = self.engine.tokens();
                let minted = tokens.sign_in_token(&caller, VERBS, LONGEST_MS).await?;
                self.named.lock().insert(caller.jti.clone(), minted.token.clone());
                minted.token
            }
        };
        let cookie = random();
        let examples = caller.grant.has(Verb::BlueprintWrite);
        let entry = Entry::new(&cookie, &shared, None, examples, self.clock.now_ms());
        entry.stored_ms.store(0, Ordering::Relaxed);
        self.known.lock().insert(key_of(&cookie), Some(Arc::new(entry)));
        Ok(cookie)
    }

    /// Returns the caller of a token that may sign in.
    fn caller_of(&self, token: &str) -> Result<Caller, Problem> {
        match self.engine.authenticate(token)? {
            Bearer::Caller(caller) if caller.session.is_none() => Ok(caller),
            Bearer::Caller(_) | Bearer::Holder(_) => {
                let detail = "sign in with a token for the API, not one of a session or a task";
                Err(Problem::new(Code::ForbiddenVerb, detail))
            }
        }
    }

    /// Returns true if a sign-in is of the person whom a token is of, with the same role and scopes.
    pub(super) fn is_of(&self, signed_in: &SignedIn, token: &str) -> bool {
        let of = |token: &str| match self.engine.authenticate(token) {
            Ok(Bearer::Caller(it)) => Some((it.subject, it.grant.role, it.grant.scopes.clone())),
            _ => None,
        };
        of(token).is_some_and(|person| of(&signed_in.token) == Some(person))
    }

    fn take_code(&self, code: &str) -> Result<OneTime, Problem> {
        let hash = blake3::hash(code.as_bytes());
        let now_ms = self.clock.now_ms();
        let mut codes = self.codes.lock();
        codes.retain(|code| code.until_ms > now_ms);
        let at = codes.iter().position(|code| hash == code.hash);
        at.map(|at| codes.swap_remove(at)).ok_or_else(|| {
            let detail =
                "this link was used, or is older than a minute; `moonswarm open` makes another";
            Problem::new(Code::Unauthenticated, detail)
        })
    }

    /// Returns the sign-in of a cookie, if it is one that has not ended.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub(super) async fn find(&self, cookie: &str, by: By) -> Result<Option<SignedIn>, Problem> {
        let is_hex = cookie.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if cookie.len() != COOKIE_CHARS || !is_hex {
            return Ok(None);
        }
        let key = key_of(cookie);
        let known = self.known.lock().get(&key).cloned();
        let known = match known {
            Some(known) => known,
            None => {
                let kept = self.engine.tokens().kept_sign_in(key.clone()).await?;
                let stored = kept.and_then(|text| serde_json::from_str::<Stored>(&text).ok());
                let Some(entry) = stored.and_then(Entry::of) else { return Ok(None) };
                let mut known = self.known.lock();
                // It may have been read by another request meanwhile, or have ended.
                match known.get(&key) {
                    Some(known) => known.clone(),
                    None => {
                        let entry = Arc::new(entry);
                        known.insert(key.clone(), Some(Arc::clone(&entry)));
                        Some(entry)
                    }
                }
            }
        };
        let Some(entry) = known else { return Ok(None) };
        let now_ms = self.clock.now_ms();
        if entry.ends_ms() <= now_ms {
            self.known.lock().remove(&key);
            self.engine.tokens().drop_sign_in(key).await?;
            return Ok(None);
        }
        if by == By::Person {
            entry.used_ms.store(now_ms, Ordering::Relaxed);
        }
        let stored_ms = entry.stored_ms.load(Ordering::Relaxed);
        if by == By::Person && now_ms.saturating_sub(stored_ms) > STORED_EVERY_MS {
            entry.stored_ms.store(now_ms, Ordering::Relaxed);
            self.store(&key, &entry).await?;
            let has_ended = self.known.lock().get(&key).is_some_and(Option::is_none);
            if has_ended {
                // The sign-in has ended meanwhile, and this has stored it again.
                self.engine.tokens().drop_sign_in(key).await?;
                return Ok(None);
            }
        }
        let token = String::from_utf8(sealed(OWN, cookie, &entry.sealed)).ok();
        let form = blake3::derive_key("moonswarm dashboard form 1", cookie.as_bytes());
        let form = HEXLOWER.encode(&form[..16]);
        let examples = entry.examples;
        Ok(token.map(|token| SignedIn { token, form, examples, key }))
    }

    /// Waits until a sign-in has ended. One that is no longer remembered counts as that: its page asks
    /// again.
    pub(super) async fn ended(self: Arc<Self>, signed_in: SignedIn) {
        loop {
            let known = self.known.lock().get(&signed_in.key).cloned().flatten();
            let ends_ms = known.map(|entry| entry.ends_ms());
            let left_ms = ends_ms.unwrap_or(0).saturating_sub(self.clock.now_ms());
            if left_ms == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(left_ms.min(LOOK_MS))).await;
        }
    }

    /// Ends a sign-in: its token is revoked, and its cookie stands for nothing. Returns the token of
    /// the provider with which the person signed in.
    ///
    /// # Errors
    /// Fails when it cannot be stored.
    pub(super) async fn end(
        &self,
        signed_in: &SignedIn,
        caller: &Caller,
        cookie: &str,
    ) -> Result<Option<String>, Problem> {
        let entry = self.known.lock().remove(&signed_in.key).flatten();
        self.engine.tokens().drop_sign_in(signed_in.key.clone()).await?;
        self.engine.tokens().sign_out(caller).await?;
        let foreign = entry.as_ref().and_then(|entry| entry.foreign.as_ref());
        Ok(foreign.and_then(|it| String::from_utf8(sealed(FOREIGN, cookie, it)).ok()))
    }

    async fn store(&self, key: &str, entry: &Entry) -> Result<(), Problem> {
        let (key, text) = (key.to_owned(), entry.to_text());
        Ok(self.engine.tokens().keep_sign_in(key, text, entry.ends_ms()).await?)
    }
}

impl Entry {
    /// Returns a new sign-in, with the token behind it and that of a provider.
    fn new(cookie: &str, token: &str, foreign: Option<&str>, examples: bool, now_ms: u64) -> Self {
        Self {
            sealed: sealed(OWN, cookie, token.as_bytes()),
            foreign: foreign.map(|token| {
                let kept = if token.len() > MOST_FOREIGN { "" } else { token };
                sealed(FOREIGN, cookie, kept.as_bytes())
            }),
            examples,
            made_ms: now_ms,
            used_ms: AtomicU64::new(now_ms),
            stored_ms: AtomicU64::new(now_ms),
        }
    }

    /// Returns the stored form.
    fn to_text(&self) -> String {
        let stored = Stored {
            sealed: BASE64.encode(&self.sealed),
            foreign: self.foreign.as_ref().map(|it| BASE64.encode(it)),
            examples: self.examples,
            made_ms: self.made_ms,
            used_ms: self.used_ms.load(Ordering::Relaxed),
        };
        serde_json::to_string(&stored).expect("a sign-in is plain data")
    }

    fn of(stored: Stored) -> Option<Self> {
        Some(Self {
            sealed: BASE64.decode(stored.sealed.as_bytes()).ok()?,
            foreign: stored.foreign.and_then(|it| BASE64.decode(it.as_bytes()).ok()),
            examples: stored.examples,
            made_ms: stored.made_ms,
            used_ms: AtomicU64::new(stored.used_ms),
            stored_ms: AtomicU64::new(stored.used_ms),
        })
    }

    fn ends_ms(&self) -> u64 {
        let idle = self.used_ms.load(Ordering::Relaxed).saturating_add(IDLE_MS);
        idle.min(self.made_ms.saturating_add(LONGEST_MS))
    }
}

/// Returns 64 hexadecimal characters that nobody can guess.
pub(super) fn random() -> String {
    let half = || uuid::Uuid::new_v4().simple().to_string();
    half() + &half()
}

/// Returns the key under which the sign-in of a cookie is stored.
fn key_of(cookie: &str) -> String {
    blake3::hash(cookie.as_bytes()).to_hex().to_string()
}

/// Seals or opens a token with the key of a cookie for a context. A cookie seals one token only in
/// each, and a token that was changed does not verify.
fn sealed(context: &str, cookie: &str, token: &[u8]) -> Vec<u8> {
    let mut stream = vec![0; token.len()];
    let mut hasher = blake3::Hasher::new_derive_key(context);
    hasher.update(cookie.as_bytes());
    hasher.finalize_xof().fill(&mut stream);
    stream.iter().zip(token).map(|(key, byte)| key ^ byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_opened_by_its_own_cookie_only() {
        let (one, other) = (random(), random());
        let closed = sealed(OWN, &one, b"header.claims.signature");
        assert_eq!(sealed(OWN, &one, &closed), b"header.claims.signature");
        assert_ne!(sealed(OWN, &other, &closed), b"header.claims.signature");
        assert_ne!(sealed(FOREIGN, &one, b"header.claims.signature"), closed);
        assert_eq!((one.len(), key_of(&one).len()), (COOKIE_CHARS, 64));
    }

    #[test]
    fn a_sign_in_ends_after_eight_idle_hours_and_after_seven_days() {
        let entry = |made_ms, used_ms| Entry {
            sealed: Vec::new(),
            foreign: None,
            examples: false,
            made_ms,
            used_ms: AtomicU64::new(used_ms),
            stored_ms: AtomicU64::new(used_ms),
        };
        assert_eq!(entry(0, 1_000).ends_ms(), 1_000 + IDLE_MS);
        assert_eq!(entry(0, LONGEST_MS - 5).ends_ms(), LONGEST_MS);
    }
}
