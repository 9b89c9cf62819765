//! Signing in with a browser: the settings of the client, and the secrets of one attempt.
//!
//! An attempt lives in a cookie of the browser and nowhere else. Its state, its nonce and its code
//! verifier follow from the cookie, each by a one-way function of its own, so that an answer of the
//! provider counts only in the browser that asked, and nothing needs to be stored or cleaned up.

use std::fmt;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use reqwest::Url;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Deserializer, de::Error as _};
use subtle::ConstantTimeEq as _;

use crate::environment::Text;

/// The path to which the provider sends the browser back.
pub(crate) const CALLBACK: &str = "/ui/login/oidc/callback";
/// The lifetime of an attempt, in milliseconds.
pub(crate) const ATTEMPT_MS: u64 = 10 * 60 * 1_000;
/// The maximum length of the page to go to, in bytes.
const MOST_NEXT: usize = 1_024;
/// The number of characters of the random part of an attempt.
const RANDOM: usize = 64;

/// The settings for signing in with a browser.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::door) struct Login {
    /// The client's id, which is the audience of its tokens.
    pub(super) client_id: String,
    /// The client's secret; none for a public client.
    #[serde(default, deserialize_with = "secret")]
    pub(super) client_secret: Option<Text>,
    /// The origin of the dashboard, as browsers know it.
    #[serde(deserialize_with = "origin")]
    url: String,
    /// The scopes that are asked for; `openid` is always one.
    #[serde(default = "scopes")]
    pub(super) scopes: Vec<String>,
    /// True if signing out here signs out of the provider as well.
    #[serde(default = "yes")]
    pub(super) sign_out: bool,
}

fn yes() -> bool {
    true
}

fn scopes() -> Vec<String> {
    ["openid", "email", "profile"].map(str::to_owned).into()
}

/// Reads a reference to a secret. The secret itself does not stand in the configuration.
pub(in crate::door) fn secret<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Text>, D::Error> {
    match Text::deserialize(from)? {
        Text::Plain(_) => Err(D::Error::custom(
            "a secret does not stand in the file: give `{ env = \"NAME\" }` or `{ file = \"PATH\" }`",
        )),
        reference => Ok(Some(reference)),
    }
}

/// Reads an origin. Plain HTTP is for this machine alone.
fn origin<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    let url = Url::parse(&text).ok().filter(|url| {
        let is_local = ["localhost", "127.0.0.1", "[::1]"].contains(&url.host_str().unwrap_or(""));
        let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let is_anonymous = url.username().is_empty() && url.password().is_none();
        is_bare && is_anonymous && (url.scheme() == "https" || url.scheme() == "http" && is_local)
    });
    url.map(|url| url.origin().ascii_serialization()).ok_or_else(|| {
        let wrong = "is no address of a dashboard: expected `https://swarm.example.com`";
        D::Error::custom(format!("{text:?} {wrong}"))
    })
}

impl Login {
    /// Returns the origin of the dashboard, as browsers know it.
    pub(in crate::door) fn origin(&self) -> &str {
        &self.url
    }

    /// Returns the address to which the provider sends the browser back. No request changes it.
    pub(super) fn redirect_uri(&self) -> String {
        format!("{}{CALLBACK}", self.url)
    }

    /// Returns the address to which the provider sends the browser after a sign-out.
    pub(super) fn signed_out_uri(&self) -> String {
        format!("{}/ui/login", self.url)
    }
}

/// One attempt to sign in.
pub(crate) struct Attempt {
    /// The value of the cookie: `TIME.RANDOM.NEXT`.
    cookie: String,
    next: String,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Attempt(…)")
    }
}

impl Attempt {
    /// Begins an attempt that ends on a page.
    pub(crate) fn new(now_ms: u64, next: &str) -> Self {
        let half = || uuid::Uuid::new_v4().simple().to_string();
        let next = if next.len() > MOST_NEXT { "/ui" } else { next };
        let page = BASE64URL_NOPAD.encode(next.as_bytes());
        let cookie = format!("{now_ms:x}.{}{}.{page}", half(), half());
        Self { cookie, next: next.to_owned() }
    }

    /// Reads the attempt of a cookie; `None` if it is none, or too old.
    pub(crate) fn read(cookie: &str, now_ms: u64) -> Option<Self> {
        let mut parts = cookie.splitn(3, '.');
        let (made, random, page) = (parts.next()?, parts.next()?, parts.next()?);
        let made_ms = u64::from_str_radix(made, 16).ok()?;
        let is_fresh = made_ms <= now_ms && now_ms - made_ms < ATTEMPT_MS;
        let fits = random.len() == RANDOM && page.len() <= MOST_NEXT * 2;
        let next = BASE64URL_NOPAD.decode(page.as_bytes()).ok()?;
        let next = String::from_utf8(next).ok()?;
        (is_fresh && fits).then(|| Self { cookie: cookie.to_owned(), next })
    }

    /// Returns the value of the cookie.
    pub(crate) fn cookie(&self) -> &str {
        &self.cookie
    }

    /// Returns the page to go to, as the cookie has it: the caller checks it again.
    pub(crate) fn next(&self) -> &str {
        &self.next
    }

    /// Returns true if a state that came with an answer is that of this attempt.
    pub(crate) fn is_of(&self, state: &str) -> bool {
        self.state().as_bytes().ct_eq(state.as_bytes()).into()
    }

    /// Returns true if the nonce of a token is that of this attempt.
    pub(super) fn has_nonce(&self, nonce: &str) -> bool {
        self.nonce().as_bytes().ct_eq(nonce.as_bytes()).into()
    }

    /// Returns what identifies the attempt without giving it away.
    pub(super) fn key(&self) -> [u8; 32] {
        blake3::derive_key("moonswarm oidc key 1", self.cookie.as_bytes())
    }

    pub(super) fn state(&self) -> String {
        self.part("moonswarm oidc state 1")
    }

    pub(super) fn nonce(&self) -> String {
        self.part("moonswarm oidc nonce 1")
    }

    /// Returns the code verifier of PKCE.
    pub(super) fn verifier(&self) -> String {
        self.part("moonswarm oidc verifier 1")
    }

    /// Returns the code challenge, by the method `S256`.
    pub(super) fn challenge(&self) -> String {
        BASE64URL_NOPAD.encode(digest(&SHA256, self.verifier().as_bytes()).as_ref())
    }

    fn part(&self, context: &str) -> String {
        HEXLOWER.encode(&blake3::derive_key(context, self.cookie.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_read_from_its_cookie_for_ten_minutes() {
        let attempt = Attempt::new(1_000, "/ui/runs?status=failed");
        let read = Attempt::read(attempt.cookie(), 2_000).unwrap();
        assert_eq!(read.next(), "/ui/runs?status=failed");
        assert!(read.is_of(&attempt.state()) && read.has_nonce(&attempt.nonce()));
        assert_eq!(read.verifier(), attempt.verifier());
        assert!((43..=128).contains(&read.verifier().len()), "RFC 7636, 4.1");
        let all = [read.state(), read.nonce(), read.verifier()];
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
        let other = Attempt::new(1_000, "/ui/runs?status=failed");
        assert!(!other.is_of(&attempt.state()) && other.key() != attempt.key());
        assert!(Attempt::read(attempt.cookie(), 1_000 + ATTEMPT_MS).is_none(), "too old");
        assert!(Attempt::read(attempt.cookie(), 999).is_none(), "of another clock");
        for wrong in ["", "..", "1.x.y", &attempt.cookie().replace('.', "-")] {
            assert!(Attempt::read(wrong, 2_000).is_none(), "{wrong}");
        }
        assert_eq!(Attempt::new(1, &"x".repeat(2_000)).next(), "/ui");
    }

    #[test]
    fn a_secret_is_a_reference_and_plain_http_is_for_this_machine() {
        let read = |text: &str| toml::from_str::<Login>(text).map_err(|error| error.to_string());
        let with = |url: &str| read(&format!("client_id = \"swarm\"\nurl = {url:?}"));
        let login = with("https://Swarm.example.com/").unwrap();
        assert_eq!(login.redirect_uri(), "https://swarm.example.com/ui/login/oidc/callback");
        assert!(with("http://127.0.0.1:7700").is_ok() && with("http://localhost").is_ok());
        for wrong in
            ["http://swarm.example.com", "https://x.y/z", "https://x.y/?a", "https://u@x.y"]
        {
            assert!(with(wrong).is_err(), "{wrong}");
        }
        let plain = "client_id = \"s\"\nurl = \"https://x.y\"\nclient_secret = \"hush\"";
        assert!(read(plain).unwrap_err().contains("env"));
        let reference = plain.replace("\"hush\"", "{ env = \"OIDC_SECRET\" }");
        assert!(read(&reference).unwrap().client_secret.is_some());
    }
}
