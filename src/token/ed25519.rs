//! Ed25519 for the token library: the only algorithm for tokens of this host.
//!
//! Uses `ring`, which TLS already brings. A second cryptography library would only slow down a
//! clean build.

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey,
    crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils},
    errors::{Error, ErrorKind, Result},
    jwk::{EllipticCurve, ThumbprintHash},
};
use ring::{
    digest,
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
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
            check(algorithm, key.family())?;
            Ok(Box::new(Public(key.clone())))
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
