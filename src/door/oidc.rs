//! People whom an OpenID Connect provider has identified: its tokens, its keys.
//!
//! A token comes as the bearer of a request, or a browser brings a code, which is exchanged for one.
//! The keys are read from the provider, kept, and read again when they are old or a token names one
//! that is not known. Only the configured provider is asked, under the rules for outgoing requests.

mod login;

use std::{net::IpAddr, sync::Arc, time::Duration};

use hashlink::LruCache;
use parking_lot::Mutex;
use reqwest::{Client, RequestBuilder, Url};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value};

use self::login::Login;
pub(super) use self::login::secret;
pub(crate) use self::login::{ATTEMPT_MS, Attempt, CALLBACK};
use super::{
    Code,
    percent::percent_encoded,
    person::{MOST_GROUPS, Person},
    problem::Problem,
    shares::Shares,
};
use crate::{
    clock::Clock,
    environment::{BodyError, BodyLimit, Egress, Text, read_body, with_causes},
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
/// The maximum number of codes that are exchanged at the same time, and of those of one client, which
/// may be anybody.
const EXCHANGES: usize = 64;
const EXCHANGES_EACH: usize = 8;
/// The maximum number of attempts that are remembered as used.
const USED: usize = 4_096;
/// The time limit for reading the provider's configuration at a sign-out, which has happened then.
const FAREWELL: Duration = Duration::from_secs(2);
/// The maximum length of a code, in bytes.
const MOST_CODE: usize = 4 << 10;

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
    /// The client with which browsers sign in.
    login: Option<Login>,
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
        // Some providers send a text where a truth value belongs.
        let is_denied = |value: &Value| *value != Value::Bool(true) && *value != "true";
        if self.name == "email" && claims.get("email_verified").is_some_and(is_denied) {
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
        let name = claims.get(&self.name).and_then(Value::as_str).unwrap_or_default();
        Person::new(name, groups)
            .ok_or_else(|| format!("it has no claim `{}` with a name", self.name))
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
    /// The attempts to sign in that were used.
    used: Mutex<LruCache<[u8; 32], ()>>,
    exchanges: Shares,
}

/// The keys and addresses that a provider has published.
#[derive(Debug)]
struct Published {
    keys: ForeignKeys,
    authorization: Option<Url>,
    token: Option<Url>,
    end_session: Option<Url>,
    /// True if the secret of a client is sent in the body, and not as `Basic` credentials.
    secret_in_body: bool,
}

#[derive(Debug, Default)]
struct Held {
    keys: Option<(Arc<Published>, u64)>,
    tried_ms: Option<u64>,
}

impl Provider {
    pub(super) fn new(oidc: Oidc, clock: Clock) -> Self {
        Self {
            oidc,
            clock,
            held: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            used: Mutex::new(LruCache::new(USED)),
            exchanges: Shares::new(EXCHANGES, EXCHANGES_EACH),
        }
    }

    /// Returns true if a bearer says that it is of this provider.
    pub(super) fn is_of(&self, bearer: &str) -> bool {
        claimed_issuer(bearer).is_some_and(|issuer| issuer == self.oidc.issuer)
    }

    /// Returns the person of a token, and the time until which it is taken, in milliseconds.
    ///
    /// # Errors
    /// Fails when the token is not good, and when the provider's keys cannot be read.
    pub(super) async fn person(&self, token: &str) -> Result<(Person, u64), Problem> {
        let claims = self.claims(token, &self.oidc.audience).await?;
        let until_s = claims.get("exp").and_then(Value::as_f64).unwrap_or_default() as u64;
        let person = self.oidc.person(&claims).map_err(|why| self.refused(&why))?;
        let until_s = until_s.saturating_add(ForeignKeys::LEEWAY_S);
        Ok((person, until_s.saturating_mul(1_000)))
    }

    /// Returns the claims of a token for an audience.
    async fn claims(&self, token: &str, audience: &str) -> Result<Map<String, Value>, Problem> {
        let now_ms = self.clock.now_ms();
        let expected = Expected { issuer: &self.oidc.issuer, audience, now_s: now_ms / 1_000 };
        let published = self.keys(now_ms, FRESH_MS).await?;
        let mut verified = published.keys.verify(token, expected);
        if verified == Err(ForeignError::UnknownKey) {
            // The provider may have begun to sign with another key.
            let published = self.keys(now_ms, PAUSE_MS).await?;
            verified = published.keys.verify(token, expected);
        }
        verified.map_err(|error| self.refused(&error.to_string()))
    }

    fn refused(&self, why: &str) -> Problem {
        let detail = format!("this token of {} is refused: {why}", self.oidc.issuer);
        Problem::unauthenticated(Code::Unauthenticated, detail)
    }

    /// Returns the origin of the dashboard, if browsers sign in with this provider.
    pub(super) fn login_at(&self) -> Option<&str> {
        self.oidc.login.as_ref().map(Login::origin)
    }

    fn login(&self) -> Result<&Login, Problem> {
        let none = || Problem::new(Code::NoRoute, "browsers do not sign in with a provider here");
        self.oidc.login.as_ref().ok_or_else(none)
    }

    fn unable(&self, why: &str) -> Problem {
        tracing::warn!(issuer = self.oidc.issuer, why, "a browser cannot sign in");
        let detail = "the provider cannot sign anybody in; the log of the daemon says why";
        Problem::new(Code::NotReady, detail)
    }

    /// Returns the address at which the provider asks a person to sign in.
    ///
    /// # Errors
    /// Fails when browsers do not sign in with it, or its configuration cannot be read.
    pub(super) async fn begin(&self, attempt: &Attempt) -> Result<String, Problem> {
        let login = self.login()?;
        let published = self.keys(self.clock.now_ms(), FRESH_MS).await?;
        let url = published.authorization.clone();
        let mut url = url.ok_or_else(|| self.unable("it has no `authorization_endpoint`"))?;
        if !self.is_trusted(&url) {
            return Err(self.unable("its `authorization_endpoint` is plain HTTP"));
        }
        let mut scopes = login.scopes.clone();
        if !scopes.iter().any(|scope| scope == "openid") {
            scopes.insert(0, "openid".to_owned());
        }
        url.query_pairs_mut().extend_pairs([
            ("response_type", "code"),
            ("client_id", &login.client_id),
            ("redirect_uri", &login.redirect_uri()),
            ("scope", &scopes.join(" ")),
            ("state", &attempt.state()),
            ("nonce", &attempt.nonce()),
            ("code_challenge", &attempt.challenge()),
            ("code_challenge_method", "S256"),
        ]);
        Ok(url.into())
    }

    /// Returns true if browsers may be sent to an address of the provider.
    fn is_trusted(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        url.scheme() == "https"
            || url.scheme() == "http" && self.oidc.allow_hosts.iter().any(|it| it == host)
    }

    /// Returns the address at which a browser signs out of the provider, for the token with which it
    /// signed in (OpenID Connect RP-Initiated Logout 1.0); `None` if the provider has none.
    pub(super) async fn farewell(&self, id_token: &str) -> Option<String> {
        let login = self.oidc.login.as_ref().filter(|login| login.sign_out)?;
        let now_ms = self.clock.now_ms();
        let published = match self.known(now_ms, STALE_MS) {
            Some(known) => known,
            None => tokio::time::timeout(FAREWELL, self.keys(now_ms, FRESH_MS)).await.ok()?.ok()?,
        };
        let mut url = published.end_session.clone().filter(|url| self.is_trusted(url))?;
        if !id_token.is_empty() {
            url.query_pairs_mut().append_pair("id_token_hint", id_token);
        }
        url.query_pairs_mut().extend_pairs([
            ("client_id", &login.client_id),
            ("post_logout_redirect_uri", &login.signed_out_uri()),
        ]);
        Some(url.into())
    }

    /// Returns the person of a code that came back to the browser of an attempt. An attempt is good
    /// for one code. `issuer` is the issuer that the answer names, if it names one, and `client` the
    /// address of the browser. The token that names the person comes with it.
    ///
    /// # Errors
    /// Fails when the attempt was used, the provider does not take the code, or its token is not one
    /// for this client and this attempt.
    pub(super) async fn finish(
        &self,
        attempt: &Attempt,
        (code, issuer): (&str, Option<&str>),
        client: Option<IpAddr>,
    ) -> Result<(Person, String), Problem> {
        let login = self.login()?;
        let wrong =
            |why: &str| Problem::new(Code::Unauthenticated, format!("{why}; sign in again"));
        if issuer.is_some_and(|issuer| issuer != self.oidc.issuer) {
            return Err(wrong("the answer is of another provider"));
        }
        if self.used.lock().insert(attempt.key(), ()).is_some() {
            return Err(wrong("this answer of the provider was used"));
        }
        if code.is_empty() || code.len() > MOST_CODE {
            return Err(wrong("the provider sent no code"));
        }
        let Some(_place) = self.exchanges.take(client, 1) else {
            let detail = "too many people sign in at this moment";
            return Err(Problem::new(Code::Busy, detail).retry_after(5));
        };
        let token = self.exchange(login, attempt, code).await.map_err(|why| {
            tracing::warn!(issuer = self.oidc.issuer, why, "a code of the provider is not taken");
            wrong("the provider did not confirm the sign-in")
        })?;
        let claims = self.claims(&token, &login.client_id).await?;
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if !text("nonce").is_some_and(|nonce| attempt.has_nonce(nonce)) {
            return Err(self.refused("it was not made for this sign-in"));
        }
        let several = claims.get("aud").and_then(Value::as_array).is_some_and(|it| it.len() > 1);
        let party = text("azp");
        if party.is_some_and(|it| it != login.client_id) || (several && party.is_none()) {
            return Err(self.refused("it was made for another client"));
        }
        let person = self.oidc.person(&claims).map_err(|why| self.refused(&why))?;
        Ok((person, token))
    }

    /// Exchanges a code for the token that names the person.
    async fn exchange(
        &self,
        login: &Login,
        attempt: &Attempt,
        code: &str,
    ) -> Result<String, String> {
        #[derive(Deserialize)]
        struct Given {
            id_token: String,
        }
        let published = self.keys(self.clock.now_ms(), FRESH_MS).await;
        let published = published.map_err(|problem| problem.body().detail().to_owned())?;
        let url = published.token.clone().ok_or("it has no `token_endpoint`")?;
        let egress = self.egress();
        egress.check(&url).map_err(|error| format!("failed to {error}"))?;
        let client = egress.client().map_err(|error| error.to_string())?;
        let mut form = vec![
            ("grant_type", "authorization_code".to_owned()),
            ("code", code.to_owned()),
            ("redirect_uri", login.redirect_uri()),
            ("code_verifier", attempt.verifier()),
        ];
        let mut request = client.post(url);
        let secret = login.client_secret.as_ref().map(Text::resolve).transpose();
        match secret.map_err(|error| format!("failed to {error}"))? {
            Some(secret) if !published.secret_in_body => {
                // RFC 6749, 2.3.1: both are encoded as in a form.
                let (id, secret) =
                    (percent_encoded(&login.client_id), percent_encoded(secret.expose()));
                request = request.basic_auth(id, Some(secret));
            }
            secret => {
                form.push(("client_id", login.client_id.clone()));
                form.extend(secret.map(|it| ("client_secret", it.expose().to_owned())));
            }
        }
        let form: Vec<String> =
            form.iter().map(|(name, value)| format!("{name}={}", percent_encoded(value))).collect();
        let request = request
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .body(form.join("&"));
        let answer = answer(request).await?;
        let given: Given = serde_json::from_slice(&answer)
            .map_err(|_| "its answer has no `id_token`".to_owned())?;
        Ok(given.id_token)
    }

    fn egress(&self) -> Egress {
        Egress { allow_private: false, allow_hosts: self.oidc.allow_hosts.clone() }
    }

    fn known(&self, now_ms: u64, age_ms: u64) -> Option<Arc<Published>> {
        let held = self.held.lock();
        let known = held.keys.as_ref().filter(|(_, at_ms)| now_ms < at_ms + age_ms);
        known.map(|(keys, _)| Arc::clone(keys))
    }

    /// Returns the keys, read again if they are older than `age_ms`.
    async fn keys(&self, now_ms: u64, age_ms: u64) -> Result<Arc<Published>, Problem> {
        if let Some(known) = self.known(now_ms, age_ms) {
            return Ok(known);
        }
        let reading = self.reading.try_lock();
        if reading.is_err()
            && age_ms == FRESH_MS
            && let Some(known) = self.known(now_ms, STALE_MS)
        {
            // Somebody else reads them: what is known will do for whoever misses no key.
            return Ok(known);
        }
        let _reading = match reading {
            Ok(reading) => reading,
            Err(_) => self.reading.lock().await,
        };
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

    async fn read(&self) -> Result<Published, String> {
        #[derive(Deserialize)]
        struct Discovered {
            issuer: String,
            jwks_uri: String,
            authorization_endpoint: Option<String>,
            token_endpoint: Option<String>,
            end_session_endpoint: Option<String>,
            #[serde(default)]
            token_endpoint_auth_methods_supported: Vec<String>,
        }
        let egress = self.egress();
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
        let methods = found.token_endpoint_auth_methods_supported;
        let url = |text: String| Url::parse(&text).ok();
        let offers = |name: &str| methods.iter().any(|method| method == name);
        Ok(Published {
            keys: ForeignKeys::parse(&keys).map_err(|error| error.to_string())?,
            authorization: found.authorization_endpoint.and_then(url),
            token: found.token_endpoint.and_then(url),
            end_session: found.end_session_endpoint.and_then(url),
            // `Basic` is what a provider offers that says nothing.
            secret_in_body: offers("client_secret_post") && !offers("client_secret_basic"),
        })
    }
}

async fn fetch(client: &Client, egress: &Egress, url: &str) -> Result<Vec<u8>, String> {
    let url = Url::parse(url).map_err(|error| format!("{url:?} is no address: {error}"))?;
    egress.check(&url).map_err(|error| format!("failed to {error}"))?;
    answer(client.get(url)).await
}

/// Sends a request to the provider, and reads its answer.
async fn answer(request: RequestBuilder) -> Result<Vec<u8>, String> {
    let asked = async {
        let answer = request.send().await.map_err(|error| with_causes(&error))?;
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

#[cfg(test)]
mod tests;
