//! The host's Ed25519 keys: their file form, the key set that others read, signing, verifying.
//!
//! The seed and the file's bytes come from the caller. Tokens are EdDSA and nothing else; the
//! header's `kid` picks the key, and its `jwk`, `jku` and `x5u` are never looked at.

use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Header, Validation,
    errors::ErrorKind,
    jwk::{Jwk, JwkSet, KeyAlgorithm, PublicKeyUse, ThumbprintHash},
};
use zeroize::Zeroizing;

use super::{Claims, ISSUER, TokenError, TokenKind, ed25519};

/// What stands before the seed in the PKCS #8 form of an Ed25519 key (RFC 8410).
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// A file that holds no usable key, or a key that does not sign.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Not an Ed25519 private key in PKCS #8 PEM.
    #[error("read the signing key: expected an Ed25519 private key in PKCS #8 PEM")]
    Malformed(#[source] jsonwebtoken::errors::Error),
    /// The claims could not be signed.
    #[error("sign a token")]
    Sign(#[source] jsonwebtoken::errors::Error),
}

impl KeyError {
    /// A word that never changes.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "key_malformed",
            Self::Sign(_) => "key_unusable",
        }
    }
}

/// One key pair; its private half is printed nowhere but in [`SigningKey::to_pem`].
#[derive(Clone)]
pub struct SigningKey {
    private: EncodingKey,
    public: DecodingKey,
    jwk: Jwk,
    kid: String,
}

impl SigningKey {
    /// The key pair of a seed: 32 bytes of the operating system's randomness.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let mut der = Zeroizing::new([0; 48]);
        der[..16].copy_from_slice(&PKCS8_PREFIX);
        der[16..].copy_from_slice(seed);
        Self::new(EncodingKey::from_ed_der(&*der)).expect("every 32 bytes are an Ed25519 seed")
    }

    /// Reads the file form.
    ///
    /// # Errors
    /// When it is not an Ed25519 private key in PKCS #8 PEM.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        EncodingKey::from_ed_pem(pem).and_then(Self::new).map_err(KeyError::Malformed)
    }

    /// The file form: PKCS #8 PEM, private.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let body = Zeroizing::new(data_encoding::BASE64.encode(self.private.as_bytes()));
        Zeroizing::new(format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            *body
        ))
    }

    /// The key's id: the RFC 7638 thumbprint of its public half.
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

/// The host's keys: one signs, and those before it verify until their grace is over.
#[derive(Debug, Clone)]
pub struct KeyRing {
    current: SigningKey,
    retired: Vec<(SigningKey, u64)>,
    rules: [Validation; TokenKind::ALL.len()],
}

impl KeyRing {
    /// A ring of one key.
    pub fn new(current: SigningKey) -> Self {
        Self { current, retired: Vec::new(), rules: TokenKind::ALL.map(rule) }
    }

    /// The same, with a key that verifies until `until_s` (Unix seconds) and signs no more.
    #[must_use]
    pub fn with_retired(mut self, key: SigningKey, until_s: u64) -> Self {
        self.retired.push((key, until_s));
        self
    }

    /// Signs with `next` from now on. The key before it verifies for another `grace_s` seconds;
    /// with none, it and all before it verify no more.
    pub fn rotate(&mut self, next: SigningKey, now_s: u64, grace_s: u64) {
        let before = std::mem::replace(&mut self.current, next);
        self.retired.push((before, now_s.saturating_add(grace_s)));
        self.retired.retain(|(_, until_s)| grace_s > 0 && *until_s > now_s);
    }

    /// Whether a token names the key that signs, as one that the key has signed does.
    pub fn is_current(&self, token: &str) -> bool {
        jsonwebtoken::decode_header(token)
            .is_ok_and(|header| header.kid.as_deref() == Some(self.current.kid.as_str()))
    }

    /// The key that signs.
    pub fn current(&self) -> &SigningKey {
        &self.current
    }

    /// The keys that only verify, each with the end of its grace in Unix seconds.
    pub fn retired(&self) -> impl Iterator<Item = (&SigningKey, u64)> {
        self.retired.iter().map(|(key, until_s)| (key, *until_s))
    }

    /// The public halves of the keys that verify at `now_s`, as a JSON Web Key Set.
    pub fn jwks(&self, now_s: u64) -> JwkSet {
        let graced = self.retired.iter().filter(|(_, until_s)| *until_s > now_s);
        let keys = std::iter::once(&self.current).chain(graced.map(|(key, _)| key));
        JwkSet { keys: keys.map(|key| key.jwk.clone()).collect() }
    }

    /// Signs claims as a token of their kind.
    ///
    /// # Errors
    /// When the claims' audience is no kind's, or the key does not sign.
    pub fn sign(&self, claims: &Claims) -> Result<String, KeyError> {
        let kind =
            claims.kind().ok_or_else(|| KeyError::Sign(ErrorKind::InvalidAudience.into()))?;
        let mut header = Header::new(Algorithm::EdDSA);
        header.typ = Some(kind.typ().to_owned());
        header.kid = Some(self.current.kid.clone());
        jsonwebtoken::encode(&header, claims, &self.current.private).map_err(KeyError::Sign)
    }

    /// What a token says, if it is one of the `accepted` kinds, was signed here and is good at
    /// `now_s` (Unix seconds). Whether it was revoked is for the store to say.
    ///
    /// # Errors
    /// The first of these that does not hold.
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

/// What the library checks; the times are checked against the caller's clock instead of its own.
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

fn refusal(error: &jsonwebtoken::errors::Error) -> TokenError {
    match error.kind() {
        ErrorKind::InvalidSignature => TokenError::Signature,
        ErrorKind::InvalidAudience => wrong_kind("foreign"),
        _ => TokenError::Malformed(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
