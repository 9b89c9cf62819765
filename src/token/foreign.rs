//! Tokens of another issuer: its public keys, and the checks of a token that it signed.

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, Validation,
    errors::ErrorKind,
    jwk::{Jwk, PublicKeyUse},
};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The maximum number of keys of an issuer.
const MOST_KEYS: usize = 64;
/// The tolerated difference of the clocks, in seconds.
const LEEWAY_S: u64 = 60;

/// The public keys of an issuer.
#[derive(Default)]
pub struct ForeignKeys(Vec<ForeignKey>);

struct ForeignKey {
    kid: Option<String>,
    /// The algorithm that the key is for, if its issuer says so.
    algorithm: Option<String>,
    key: DecodingKey,
}

impl std::fmt::Debug for ForeignKeys {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "ForeignKeys({})", self.0.len())
    }
}

/// The requirements of a foreign token.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The issuer.
    pub issuer: &'a str,
    /// The audience.
    pub audience: &'a str,
    /// The time, in Unix seconds.
    pub now_s: u64,
}

/// The reason why a foreign token is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForeignError {
    /// No known key has signed it; its issuer may have a new one.
    #[error("its issuer has no key of this id")]
    UnknownKey,
    /// Something else is wrong.
    #[error("{0}")]
    Refused(String),
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

impl ForeignKeys {
    /// The time for which a token is taken after its end, in seconds.
    pub const LEEWAY_S: u64 = LEEWAY_S;

    /// Reads a JSON Web Key Set. Keys that do not verify signatures are left out.
    ///
    /// # Errors
    /// Fails when it is none, or has no key that can be used.
    pub fn parse(text: &[u8]) -> Result<Self, ForeignError> {
        let refused = |why: &str| ForeignError::Refused(format!("its issuer's key set {why}"));
        let set: KeySet = serde_json::from_slice(text).map_err(|_| refused("is none"))?;
        let keys = set.keys.into_iter().take(MOST_KEYS).filter_map(|key| {
            let jwk: Jwk = serde_json::from_value(key.clone()).ok()?;
            let is_for_signatures =
                matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature));
            let public = DecodingKey::from_jwk(&jwk).ok()?;
            let fits = is_for_signatures && public.family() != AlgorithmFamily::Hmac;
            fits.then_some(ForeignKey {
                kid: jwk.common.key_id,
                algorithm: key.get("alg").and_then(Value::as_str).map(str::to_owned),
                key: public,
            })
        });
        let keys: Vec<_> = keys.collect();
        if keys.is_empty() { Err(refused("has no key for signatures")) } else { Ok(Self(keys)) }
    }

    /// Returns the claims of a token, if one of these keys has signed it for this audience, and it
    /// is valid now.
    ///
    /// # Errors
    /// Returns the first check that failed.
    pub fn verify(
        &self,
        token: &str,
        expected: Expected<'_>,
    ) -> Result<Map<String, Value>, ForeignError> {
        super::ed25519::install();
        let wrong = |why: &str| ForeignError::Refused(why.to_owned());
        let header = jsonwebtoken::decode_header(token).map_err(|_| wrong("it is no JWT"))?;
        if header.crit.is_some() {
            return Err(wrong("its header has critical extensions"));
        }
        let named = format!("{:?}", header.alg);
        let key = self.0.iter().find(|key| {
            let is_it = key.kid.is_some() && key.kid == header.kid
                || header.kid.is_none() && self.0.len() == 1;
            is_it && key.algorithm.as_ref().is_none_or(|algorithm| *algorithm == named)
        });
        let key = key.ok_or(ForeignError::UnknownKey)?;
        let claims = jsonwebtoken::decode::<Map<String, Value>>(
            token,
            &key.key,
            &rules(header.alg, expected),
        );
        let claims = claims.map_err(|error| wrong(why(error.kind())))?.claims;
        let time = |name: &str| claims.get(name).and_then(Value::as_f64).map(|at| at as u64);
        let expires = time("exp").ok_or_else(|| wrong("it does not expire"))?;
        if expires.saturating_add(LEEWAY_S) <= expected.now_s {
            return Err(wrong("it has expired"));
        }
        if time("nbf").is_some_and(|from| from > expected.now_s.saturating_add(LEEWAY_S)) {
            return Err(wrong("it is not valid yet"));
        }
        Ok(claims)
    }
}

/// Returns the issuer that a token names, without a check of it.
pub fn claimed_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Issued {
        iss: String,
    }
    let claims = token.split('.').nth(1)?;
    let claims = data_encoding::BASE64URL_NOPAD.decode(claims.as_bytes()).ok()?;
    serde_json::from_slice::<Issued>(&claims).ok().map(|it| it.iss)
}

/// Returns the checks of the library. Times are checked against the caller's clock instead.
fn rules(algorithm: Algorithm, expected: Expected<'_>) -> Validation {
    let mut rules = Validation::new(algorithm);
    rules.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    rules.set_issuer(&[expected.issuer]);
    rules.set_audience(&[expected.audience]);
    rules.validate_exp = false;
    rules.validate_nbf = false;
    rules
}

fn why(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidSignature => "its signature is wrong",
        ErrorKind::InvalidIssuer => "it is of another issuer",
        ErrorKind::InvalidAudience => "it is for another audience",
        ErrorKind::MissingRequiredClaim(_) => "it lacks one of `exp`, `iss`, `aud` and `sub`",
        ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => {
            "its algorithm is none of RS256, RS384, RS512, PS256, ES256, ES384 and EdDSA"
        }
        _ => "it is malformed",
    }
}

#[cfg(test)]
mod tests;
