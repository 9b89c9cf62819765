//! The host's Ed25519 keys: their file form, the public key set, signing and verification.
//!
//! The seed and the file's bytes come from the caller. EdDSA is the only accepted algorithm. The
//! header's `kid` selects the key; its `jwk`, `jku` and `x5u` are ignored.

use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Header, Validation,
    errors::ErrorKind,
    jwk::{Jwk, JwkSet, KeyAlgorithm, PublicKeyUse, ThumbprintHash},
};
use zeroize::Zeroizing;

use super::{Claims, ISSUER, TokenError, TokenKind, ed25519};

/// The bytes before the seed in the PKCS #8 form of an Ed25519 key (RFC 8410).
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// An unusable key file, or a failure to sign.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file is not an Ed25519 private key in PKCS #8 PEM.
    #[error("read the signing key: expected an Ed25519 private key in PKCS #8 PEM")]
    Malformed(#[source] jsonwebtoken::errors::Error),
    /// The claims could not be signed.
    #[error("sign a token")]
    Sign(#[source] jsonwebtoken::errors::Error),
}

impl KeyError {
    /// Returns a stable code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "key_malformed",
            Self::Sign(_) => "key_unusable",
        }
    }
}

/// A key pair. Only [`SigningKey::to_pem`] exposes its private half.
#[derive(Clone)]
pub struct SigningKey {
    private: EncodingKey,
    public: DecodingKey,
    jwk: Jwk,
    kid: String,
}

impl SigningKey {
    /// Creates the key pair of a seed: 32 bytes of randomness from the operating system.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let mut der = Zeroizing::new([0; 48]);
        der[..16].copy_from_slice(&PKCS8_PREFIX);
        der[16..].copy_from_slice(seed);
        Self::new(EncodingKey::from_ed_der(&*der)).expect("every 32 bytes are an Ed25519 seed")
    }

    /// Parses the file form.
    ///
    /// # Errors
    /// Fails when it is not an Ed25519 private key in PKCS #8 PEM.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        EncodingKey::from_ed_pem(pem).and_then(Self::new).map_err(KeyError::Malformed)
    }

    /// Returns the file form with the private key: PKCS #8 PEM.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let body = Zeroizing::new(data_encoding::BASE64.encode(self.private.as_bytes()));
        Zeroizing::new(format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            *body
        ))
    }

    /// Returns the key's id: the RFC 7638 thumbprint of its public half.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    fn new(private: EncodingKey) -> jsonwebtoken::errors::Result<Self> {
        ed25519::install();
        let mut jwk = Jwk::from_encoding_key(&private, Algorithm::EdDSA)?;
        let kid = jwk.thumbprint(ThumbprintHash::SHA256)?;
        jwk.common.key_id = Some(kid.clone());
        jwk.common.public_key_use = Some(PublicKeyUse::Signature);
        jwk.common.key_algorithm = Some(KeyAlgorithm::EdDSA);
        let public = DecodingKey::from_jwk(&jwk)?;
        Ok(Self { private, public, jwk, kid })
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey").field("kid", &self.kid).finish_non_exhaustive()
    }
}

/// The host's keys: the current one signs, retired ones verify until their grace period ends.
#[derive(Debug, Clone)]
pub struct KeyRing {
    current: SigningKey,
    retired: Vec<(SigningKey, u64)>,
    rules: [Validation; TokenKind::ALL.len()],
}

impl KeyRing {
    /// Creates a ring of one key.
    pub fn new(current: SigningKey) -> Self {
        Self { current, retired: Vec::new(), rules: TokenKind::ALL.map(rule) }
    }

    /// Adds a retired key, which verifies until `until_s` (Unix seconds) and no longer signs.
    #[must_use]
    pub fn with_retired(mut self, key: SigningKey, until_s: u64) -> Self {
        self.retired.push((key, until_s));
        self
    }

    /// Makes `next` the key that signs. The previous key verifies for another `grace_s` seconds. If
    /// `grace_s` is 0, no earlier key verifies any more.
    pub fn rotate(&mut self, next: SigningKey, now_s: u64, grace_s: u64) {
        let before = std::mem::replace(&mut self.current, next);
        self.retired.push((before, now_s.saturating_add(grace_s)));
        self.retired.retain(|(_, until_s)| grace_s > 0 && *until_s > now_s);
    }

    /// Returns true if the header of a token names the current key. Does not verify the signature.
    pub fn is_current(&self, token: &str) -> bool {
        jsonwebtoken::decode_header(token)
            .is_ok_and(|header| header.kid.as_deref() == Some(self.current.kid.as_str()))
    }

    /// Returns the key that signs.
    pub fn current(&self) -> &SigningKey {
        &self.current
    }

    /// Returns the keys that only verify, each with the end of its grace period in Unix seconds.
    pub fn retired(&self) -> impl Iterator<Item = (&SigningKey, u64)> {
        self.retired.iter().map(|(key, until_s)| (key, *until_s))
    }

    /// Returns the public halves of the keys that verify at `now_s`, as a JSON Web Key Set.
    pub fn jwks(&self, now_s: u64) -> JwkSet {
        let graced = self.retired.iter().filter(|(_, until_s)| *until_s > now_s);
        let keys = std::iter::once(&self.current).chain(graced.map(|(key, _)| key));
        JwkSet { keys: keys.map(|key| key.jwk.clone()).collect() }
    }

    /// Signs claims as a token of their kind.
    ///
    /// # Errors
    /// Fails when the audience of the claims belongs to no kind, or the key cannot sign.
    pub fn sign(&self, claims: &Claims) -> Result<String, KeyError> {
        let kind =
            claims.kind().ok_or_else(|| KeyError::Sign(ErrorKind::InvalidAudience.into()))?;
        let mut header = Header::new(Algorithm::EdDSA);
        header.typ = Some(kind.typ().to_owned());
        header.kid = Some(self.current.kid.clone());
        jsonwebtoken::encode(&header, claims, &self.current.private).map_err(KeyError::Sign)
    }

    /// Returns the claims of a token, if it is of an `accepted` kind, was signed by this host and
    /// is valid at `now_s` (Unix seconds). Does not check revocation, which is the store's.
    ///
    /// # Errors
    /// Returns the first check that failed.
    pub fn verify(
        &self,
        token: &str,
        accepted: &[TokenKind],
        now_s: u64,
    ) -> Result<Claims, TokenError> {
        let header = jsonwebtoken::decode_header(token).map_err(|error| refusal(&error))?;
        let typ = header.typ.unwrap_or_default();
        let kind = accepted.iter().copied().find(|kind| kind.typ() == typ);
        let kind = kind.ok_or_else(|| wrong_kind(&typ))?;
        if header.crit.is_some() {
            return Err(TokenError::Malformed("its header has critical extensions".into()));
        }
        let key = self.verifier(header.kid.as_deref(), now_s).ok_or(TokenError::UnknownKey)?;
        let claims = jsonwebtoken::decode::<Claims>(token, &key.public, &self.rules[kind as usize])
            .map_err(|error| refusal(&error))?
            .claims;
        if claims.task.is_some() != (kind == TokenKind::Task) {
            return Err(TokenError::Malformed("only a task token names an attempt".into()));
        }
        claims.check_time(now_s)?;
        Ok(claims)
    }

    fn verifier(&self, kid: Option<&str>, now_s: u64) -> Option<&SigningKey> {
        let kid = kid?;
        if self.current.kid == kid {
            return Some(&self.current);
        }
        let graced = |(key, until_s): &&(SigningKey, u64)| key.kid == kid && *until_s > now_s;
        self.retired.iter().find(graced).map(|(key, _)| key)
    }
}

/// Returns the checks of the library. Times are checked against the caller's clock instead.
fn rule(kind: TokenKind) -> Validation {
    let mut rule = Validation::new(Algorithm::EdDSA);
    rule.set_required_spec_claims(&["exp", "nbf", "iss", "aud", "sub"]);
    rule.set_issuer(&[ISSUER]);
    rule.set_audience(&[kind.audience()]);
    rule.validate_exp = false;
    rule.validate_nbf = false;
    rule
}

fn wrong_kind(found: &str) -> TokenError {
    TokenError::WrongKind { found: found.chars().take(64).collect() }
}

const NOT_ONE: &str = "moonswarm did not make it; `moonswarm token mint` makes tokens, and the \
    admin's is in admin.token of the data directory";

fn refusal(error: &jsonwebtoken::errors::Error) -> TokenError {
    match error.kind() {
        ErrorKind::InvalidSignature => TokenError::Signature,
        ErrorKind::InvalidAudience => wrong_kind("foreign"),
        ErrorKind::InvalidToken
        | ErrorKind::Base64(_)
        | ErrorKind::Json(_)
        | ErrorKind::Utf8(_)
        | ErrorKind::InvalidAlgorithmName => TokenError::Malformed(NOT_ONE.into()),
        _ => TokenError::Malformed(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
