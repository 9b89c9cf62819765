//! The cryptography of the token library: Ed25519, the only algorithm for tokens of this host, and
//! the verification of tokens that another issuer signed with RSA or an elliptic curve.
//!
//! Uses `ring`, which TLS already brings. A second cryptography library would only slow down a
//! clean build.

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind,
    crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils},
    errors::{Error, ErrorKind, Result},
    jwk::{EllipticCurve, ThumbprintHash},
};
use ring::{
    digest,
    signature::{
        self as methods, ED25519, Ed25519KeyPair, KeyPair, RsaParameters, RsaPublicKeyComponents,
        UnparsedPublicKey, VerificationAlgorithm,
    },
};
use signature::{Error as Unsigned, Signer, Verifier};

/// Installs the provider in the token library. Calls after the first have no effect.
pub(super) fn install() {
    static PROVIDER: CryptoProvider = CryptoProvider {
        signer_factory: |algorithm, key| {
            check(algorithm, key.family())?;
            Ok(Box::new(Pair(pair(key.as_bytes())?)))
        },
        verifier_factory: |algorithm, key| {
            if *algorithm == Algorithm::EdDSA {
                check(algorithm, key.family())?;
                return Ok(Box::new(Public(key.clone())));
            }
            let method = Method::of(*algorithm, key.family()).ok_or_else(unsupported)?;
            Ok(Box::new(Foreign { algorithm: *algorithm, method, key: key.clone() }))
        },
        key_utils: KeyUtils {
            ed_pub_components_from_private_key: |der, curve| match curve {
                EllipticCurve::Ed25519 => Ok(pair(der)?.public_key().as_ref().to_vec()),
                _ => Err(ErrorKind::InvalidEddsaKey.into()),
            },
            compute_digest: |bytes, hash| {
                let hash = match hash {
                    ThumbprintHash::SHA256 => &digest::SHA256,
                    ThumbprintHash::SHA384 => &digest::SHA384,
                    ThumbprintHash::SHA512 => &digest::SHA512,
                    _ => return Err(unsupported()),
                };
                Ok(digest::digest(hash, bytes).as_ref().to_vec())
            },
            rsa_pub_components_from_private_key: |_| Err(unsupported()),
            rsa_pub_components_from_public_key: |_| Err(unsupported()),
            ec_pub_components_from_private_key: |_, _| Err(unsupported()),
        },
    };
    // Fails if a program that embeds the host has installed its own provider, which then serves as
    // well.
    let _kept = PROVIDER.install_default();
}

fn unsupported() -> Error {
    ErrorKind::InvalidAlgorithm.into()
}

fn check(algorithm: &Algorithm, family: AlgorithmFamily) -> Result<()> {
    if *algorithm == Algorithm::EdDSA && family == AlgorithmFamily::Ed {
        Ok(())
    } else {
        Err(unsupported())
    }
}

/// Returns the key pair from the PKCS #8 form of a bare seed.
fn pair(der: &[u8]) -> Result<Ed25519KeyPair> {
    Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| ErrorKind::InvalidEddsaKey.into())
}

struct Pair(Ed25519KeyPair);

impl Signer<Vec<u8>> for Pair {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, Unsigned> {
        Ok(self.0.sign(message).as_ref().to_vec())
    }
}

impl JwtSigner for Pair {
    fn algorithm(&self) -> Algorithm {
        Algorithm::EdDSA
    }
}

struct Public(DecodingKey);

impl Verifier<Vec<u8>> for Public {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> std::result::Result<(), Unsigned> {
        let key = self.0.try_get_as_bytes().map_err(Unsigned::from_source)?;
        UnparsedPublicKey::new(&ED25519, key).verify(message, signed).map_err(|_| Unsigned::new())
    }
}

impl JwtVerifier for Public {
    fn algorithm(&self) -> Algorithm {
        Algorithm::EdDSA
    }
}

/// The way in which a foreign signature is verified.
enum Method {
    Rsa(&'static RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

impl Method {
    /// Returns it for an algorithm, if the key is of its family. A shared secret is no public key.
    fn of(algorithm: Algorithm, family: AlgorithmFamily) -> Option<Self> {
        Some(match (algorithm, family) {
            (Algorithm::RS256, AlgorithmFamily::Rsa) => {
                Self::Rsa(&methods::RSA_PKCS1_2048_8192_SHA256)
            }
            (Algorithm::RS384, AlgorithmFamily::Rsa) => {
                Self::Rsa(&methods::RSA_PKCS1_2048_8192_SHA384)
            }
            (Algorithm::RS512, AlgorithmFamily::Rsa) => {
                Self::Rsa(&methods::RSA_PKCS1_2048_8192_SHA512)
            }
            (Algorithm::PS256, AlgorithmFamily::Rsa) => {
                Self::Rsa(&methods::RSA_PSS_2048_8192_SHA256)
            }
            (Algorithm::ES256, AlgorithmFamily::Ec) => {
                Self::Curve(&methods::ECDSA_P256_SHA256_FIXED)
            }
            (Algorithm::ES384, AlgorithmFamily::Ec) => {
                Self::Curve(&methods::ECDSA_P384_SHA384_FIXED)
            }
            _ => return None,
        })
    }
}

/// A public key of another issuer.
struct Foreign {
    algorithm: Algorithm,
    method: Method,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for Foreign {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> std::result::Result<(), Unsigned> {
        let verified = match (&self.method, self.key.kind()) {
            (Method::Rsa(method), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                // Some issuers write a number with zeros before it.
                let zeros = n.iter().take_while(|byte| **byte == 0).count();
                RsaPublicKeyComponents { n: &n[zeros..], e: &e[..] }.verify(method, message, signed)
            }
            (Method::Curve(method), DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(*method, point).verify(message, signed)
            }
            _ => return Err(Unsigned::new()),
        };
        verified.map_err(|_| Unsigned::new())
    }
}

impl JwtVerifier for Foreign {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
