//! Sign-ins: a random cookie for a browser, bound to a narrow token.
//!
//! A sign-in is stored under the hash of its cookie, and its token is sealed with a key that only
//! the cookie gives: neither the memory of the host nor its database has anything that lets somebody
//! in. It is stored, and not only in memory, so that a page goes on after the host was restarted. A
//! request needs the store only if the host does not remember the sign-in.

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
    engine::{Bearer, Caller, Engine, MintToken},
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
    known: Mutex<LruCache<String, Arc<Entry>>>,
}

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
        let known = Mutex::new(LruCache::new(MOST_REMEMBERED));
        Self { engine, clock, codes: Mutex::default(), known }
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
        let (minted, examples) = if secret.starts_with(CODE) {
            let OneTime { by, role, .. } = self.take_code(secret)?;
            let examples =
                permits(role, Verb::BlueprintWrite) && by.grant.has(Verb::BlueprintWrite);
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
            (self.engine.tokens().mint(&by, mint, None).await?, examples)
        } else {
            let caller = match self.engine.authenticate(secret)? {
                Bearer::Caller(caller) if caller.session.is_none() => caller,
                Bearer::Caller(_) | Bearer::Holder(_) => {
                    let detail = "sign in with a token for the API, not one of a session or a task";
                    return Err(Problem::new(Code::ForbiddenVerb, detail));
                }
            };
            let minted = self.engine.tokens().sign_in(&caller, VERBS, LONGEST_MS).await?;
            (minted, caller.grant.has(Verb::BlueprintWrite))
        };
        let cookie = random();
        let now_ms = self.clock.now_ms();
        let entry = Entry {
            sealed: sealed(OWN, &cookie, minted.token.as_bytes()),
            foreign: foreign.map(|token| {
                let kept = if token.len() > MOST_FOREIGN { "" } else { token };
                sealed(FOREIGN, &cookie, kept.as_bytes())
            }),
            examples,
            made_ms: now_ms,
            used_ms: AtomicU64::new(now_ms),
            stored_ms: AtomicU64::new(now_ms),
        };
        let key = key_of(&cookie);
        self.store(&key, &entry).await?;
        self.known.lock().insert(key, Arc::new(entry));
        Ok(cookie)
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
        let entry = match known {
            Some(entry) => entry,
            None => {
                let kept = self.engine.tokens().kept_sign_in(key.clone()).await?;
                let stored = kept.and_then(|text| serde_json::from_str::<Stored>(&text).ok());
                let Some(entry) = stored.and_then(Entry::of) else { return Ok(None) };
                let entry = Arc::new(entry);
                self.known.lock().insert(key.clone(), Arc::clone(&entry));
                entry
            }
        };
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
            let ends_ms = self.known.lock().get(&signed_in.key).map(|entry| entry.ends_ms());
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
        let entry = self.known.lock().remove(&signed_in.key);
        self.engine.tokens().drop_sign_in(signed_in.key.clone()).await?;
        self.engine.tokens().sign_out(caller).await?;
        let foreign = entry.as_ref().and_then(|entry| entry.foreign.as_ref());
        Ok(foreign.and_then(|it| String::from_utf8(sealed(FOREIGN, cookie, it)).ok()))
    }

    async fn store(&self, key: &str, entry: &Entry) -> Result<(), Problem> {
        let stored = Stored {
            sealed: BASE64.encode(&entry.sealed),
            foreign: entry.foreign.as_ref().map(|it| BASE64.encode(it)),
            examples: entry.examples,
            made_ms: entry.made_ms,
            used_ms: entry.used_ms.load(Ordering::Relaxed),
        };
        let text = serde_json::to_string(&stored).expect("a sign-in is plain data");
        Ok(self.engine.tokens().keep_sign_in(key.to_owned(), text, entry.ends_ms()).await?)
    }
}

impl Entry {
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
