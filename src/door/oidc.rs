//! People whom an OpenID Connect provider has identified: its tokens, its keys.
//!
//! The keys are read from the provider, kept, and read again when they are old or a token names one
//! that is not known. Only the configured provider is asked, under the rules for outgoing requests.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use reqwest::{Client, Url};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value};

use super::{
    Code,
    person::{MOST_GROUPS, Person},
    problem::Problem,
};
use crate::{
    clock::Clock,
    environment::{BodyError, BodyLimit, Egress, read_body, with_causes},
    token::{Expected, ForeignError, ForeignKeys, claimed_issuer},
};

/// The age at which keys are read again, in milliseconds.
const FRESH_MS: u64 = 3_600_000;
/// The age up to which keys are used while the provider does not answer, in milliseconds.
const STALE_MS: u64 = 24 * 3_600_000;
/// The minimum time between two reads, in milliseconds: a forged token causes none.
const PAUSE_MS: u64 = 30_000;
/// The time limit of a request to the provider.
const PATIENCE: Duration = Duration::from_secs(10);
/// The maximum size of an answer of the provider, in bytes.
const ANSWER: usize = 256 << 10;

/// A provider whose tokens name people.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Oidc {
    /// The issuer, as its tokens have it.
    #[serde(deserialize_with = "issuer")]
    issuer: String,
    /// The audience of tokens for this host.
    audience: String,
    /// The claim with the name of a person.
    #[serde(default = "subject")]
    name: String,
    /// The claim with the groups.
    groups: Option<String>,
    /// Hosts that may be asked although their address is not public, or they speak plain HTTP.
    #[serde(default)]
    allow_hosts: Vec<String>,
}

fn subject() -> String {
    "sub".to_owned()
}

fn issuer<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    match Url::parse(&text) {
        Ok(url) if ["http", "https"].contains(&url.scheme()) => Ok(text),
        _ => Err(D::Error::custom(format!("{text:?} is no http or https address"))),
    }
}

impl Oidc {
    /// Returns the issuer.
    pub(super) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Returns the person of a token's claims.
    fn person(&self, claims: &Map<String, Value>) -> Result<Person, String> {
        let name = claims.get(&self.name).and_then(Value::as_str).map(str::trim);
        let name = name.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| format!("it has no claim `{}` with a name", self.name))?;
        if self.name == "email" && claims.get("email_verified") == Some(&Value::Bool(false)) {
            return Err("its provider has not verified the address".to_owned());
        }
        let groups = self.groups.as_ref().and_then(|claim| claims.get(claim));
        let groups = match groups {
            Some(Value::String(one)) => vec![one.clone()],
            Some(Value::Array(all)) => all
                .iter()
                .filter_map(|group| group.as_str().map(str::to_owned))
                .take(MOST_GROUPS)
                .collect(),
            _ => Vec::new(),
        };
        Ok(Person { name: name.to_owned(), groups })
    }
}

/// The provider, and the keys that it has published.
#[derive(Debug)]
pub(super) struct Provider {
    oidc: Oidc,
    clock: Clock,
    held: Mutex<Held>,
    /// Held while the keys are read: one reader, and the others wait for it.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Held {
    keys: Option<(Arc<ForeignKeys>, u64)>,
    tried_ms: Option<u64>,
}

impl Provider {
    pub(super) fn new(oidc: Oidc, clock: Clock) -> Self {
        Self { oidc, clock, held: Mutex::default(), reading: tokio::sync::Mutex::default() }
    }

    /// Returns true if a bearer says that it is of this provider.
    pub(super) fn is_of(&self, bearer: &str) -> bool {
        claimed_issuer(bearer).is_some_and(|issuer| issuer == self.oidc.issuer)
    }

    /// Returns the person of a token, and the end of the token in milliseconds.
    ///
    /// # Errors
    /// Fails when the token is not good, and when the provider's keys cannot be read.
    pub(super) async fn person(&self, token: &str) -> Result<(Person, u64), Problem> {
        let now_ms = self.clock.now_ms();
        let keys = self.keys(now_ms, FRESH_MS).await?;
        let mut verified = self.verify(token, &keys);
        if verified == Err(ForeignError::UnknownKey) {
            // The provider may have begun to sign with another key.
            let keys = self.keys(now_ms, PAUSE_MS).await?;
            verified = self.verify(token, &keys);
        }
        let refused = |why: String| {
            let detail = format!("this token of {} is refused: {why}", self.oidc.issuer);
            Problem::unauthenticated(Code::Unauthenticated, detail)
        };
        let claims = verified.map_err(|error| refused(error.to_string()))?;
        let until_s = claims.get("exp").and_then(Value::as_f64).unwrap_or_default() as u64;
        let person = self.oidc.person(&claims).map_err(refused)?;
        Ok((person, until_s.saturating_mul(1_000)))
    }

    fn verify(&self, token: &str, keys: &ForeignKeys) -> Result<Map<String, Value>, ForeignError> {
        let Oidc { issuer, audience, .. } = &self.oidc;
        let now_s = self.clock.now_ms() / 1_000;
        keys.verify(token, Expected { issuer, audience, now_s })
    }

    fn known(&self, now_ms: u64, age_ms: u64) -> Option<Arc<ForeignKeys>> {
        let held = self.held.lock();
        let known = held.keys.as_ref().filter(|(_, at_ms)| now_ms < at_ms + age_ms);
        known.map(|(keys, _)| Arc::clone(keys))
    }

    /// Returns the keys, read again if they are older than `age_ms`.
    async fn keys(&self, now_ms: u64, age_ms: u64) -> Result<Arc<ForeignKeys>, Problem> {
        if let Some(known) = self.known(now_ms, age_ms) {
            return Ok(known);
        }
        let _reading = self.reading.lock().await;
        if let Some(known) = self.known(now_ms, age_ms) {
            return Ok(known);
        }
        let tried_ms = self.held.lock().tried_ms;
        let read = match tried_ms.is_some_and(|at_ms| now_ms < at_ms + PAUSE_MS) {
            true => Err("it was asked a moment ago".to_owned()),
            false => {
                self.held.lock().tried_ms = Some(now_ms);
                self.read().await
            }
        };
        match read {
            Ok(keys) => {
                let keys = Arc::new(keys);
                self.held.lock().keys = Some((Arc::clone(&keys), now_ms));
                Ok(keys)
            }
            Err(why) => self.known(now_ms, STALE_MS).ok_or_else(|| {
                tracing::warn!(
                    issuer = self.oidc.issuer,
                    why,
                    "the provider's keys cannot be read"
                );
                let detail = "the keys of the provider of this token cannot be read";
                Problem::new(Code::NotReady, detail).retry_after(PAUSE_MS / 1_000)
            }),
        }
    }

    async fn read(&self) -> Result<ForeignKeys, String> {
        #[derive(Deserialize)]
        struct Discovered {
            issuer: String,
            jwks_uri: String,
        }
        let egress = Egress { allow_private: false, allow_hosts: self.oidc.allow_hosts.clone() };
        let client = egress.client().map_err(|error| error.to_string())?;
        let base = self.oidc.issuer.trim_end_matches('/');
        let found = format!("{base}/.well-known/openid-configuration");
        let found = fetch(&client, &egress, &found).await?;
        let found: Discovered = serde_json::from_slice(&found)
            .map_err(|error| format!("its configuration is none: {error}"))?;
        if found.issuer != self.oidc.issuer {
            return Err(format!("its configuration is of the issuer {:?}", found.issuer));
        }
        let keys = fetch(&client, &egress, &found.jwks_uri).await?;
        ForeignKeys::parse(&keys).map_err(|error| error.to_string())
    }
}

async fn fetch(client: &Client, egress: &Egress, url: &str) -> Result<Vec<u8>, String> {
    let url = Url::parse(url).map_err(|error| format!("{url:?} is no address: {error}"))?;
    egress.check(&url).map_err(|error| format!("failed to {error}"))?;
    let asked = async {
        let answer = client.get(url).send().await.map_err(|error| with_causes(&error))?;
        if !answer.status().is_success() {
            return Err(format!("it answered {}", answer.status()));
        }
        let mut body = Vec::new();
        let limit = BodyLimit { bytes: ANSWER, silence: None };
        let read = read_body(answer, limit, &mut body).await;
        read.map(|()| body).map_err(|error| match error {
            BodyError::TooLarge => format!("its answer is larger than {} KiB", ANSWER >> 10),
            other => with_causes(&other),
        })
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("it did not answer within {} s", PATIENCE.as_secs())),
    }
}
