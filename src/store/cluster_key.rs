//! The key of a cluster: it seals what the nodes share through the database, so that a copy of the
//! database alone can sign nothing, and a row that somebody else has written is no node.

use std::{fmt, str::FromStr};

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand::{SecureRandom as _, SystemRandom},
};
use zeroize::Zeroizing;

/// The beginning of the text of a key.
const PREFIX: &str = "moonswarm-cluster-";
/// The purpose for which the sealing key is derived.
const SEALS: &str = "moonswarm cluster key, version 1: seals what is in the database";

/// A key that all nodes of a cluster have.
#[derive(Clone)]
pub struct ClusterKey(Zeroizing<[u8; 32]>);

/// A text that is no key of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "read the cluster key: it is not one; `moonswarm cluster key --out FILE` makes one, which all nodes \
     share"
)]
pub struct NotAClusterKey;

impl fmt::Debug for ClusterKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ClusterKey(…)")
    }
}

impl FromStr for ClusterKey {
    type Err = NotAClusterKey;

    fn from_str(text: &str) -> Result<Self, NotAClusterKey> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(NotAClusterKey)?;
        let bytes = data_encoding::HEXLOWER.decode(digits.as_bytes()).map(Zeroizing::new);
        let bytes = bytes.map_err(|_| NotAClusterKey)?;
        Ok(Self(Zeroizing::new(bytes.as_slice().try_into().map_err(|_| NotAClusterKey)?)))
    }
}

impl ClusterKey {
    /// Returns a new key; `None` if the system has no randomness.
    pub fn generate() -> Option<Self> {
        let mut bytes = Zeroizing::new([0; 32]);
        SystemRandom::new().fill(bytes.as_mut_slice()).ok()?;
        Some(Self(bytes))
    }

    /// Returns the text of the key, which [`FromStr`] reads.
    pub fn to_text(&self) -> Zeroizing<String> {
        let digits = Zeroizing::new(data_encoding::HEXLOWER.encode(self.0.as_slice()));
        Zeroizing::new(format!("{PREFIX}{}", *digits))
    }

    fn cipher(&self) -> LessSafeKey {
        let derived = Zeroizing::new(blake3::derive_key(SEALS, self.0.as_slice()));
        let key = UnboundKey::new(&AES_256_GCM, derived.as_slice());
        LessSafeKey::new(key.expect("the key has the length of the algorithm"))
    }

    /// Seals `plain` with AES-256-GCM. Only [`ClusterKey::open`] with the same key and the same `name`
    /// returns it; `None` if the system has no randomness.
    pub fn seal(&self, name: &str, plain: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let mut body = plain.to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        self.cipher().seal_in_place_append_tag(unique, Aad::from(name), &mut body).ok()?;
        Some([&nonce[..], &body].concat())
    }

    /// Returns what was sealed; `None` if it was sealed with another key or name, or was changed.
    pub fn open(&self, name: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (nonce, body) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut body = Zeroizing::new(body.to_vec());
        let length = self.cipher().open_in_place(nonce, Aad::from(name), &mut body).ok()?.len();
        body.truncate(length);
        Some(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_and_name_open_what_was_sealed() {
        let key = ClusterKey::generate().unwrap();
        let same: ClusterKey = key.to_text().parse().unwrap();
        let mut sealed = key.seal("ring", b"secret").unwrap();
        assert_eq!(same.open("ring", &sealed).unwrap().as_slice(), b"secret");
        assert!(same.open("admin", &sealed).is_none());
        assert!(ClusterKey::generate().unwrap().open("ring", &sealed).is_none());
        assert_ne!(sealed, key.seal("ring", b"secret").unwrap(), "each seal has its own nonce");
        *sealed.last_mut().unwrap() ^= 1;
        assert!(same.open("ring", &sealed).is_none());
        assert!(same.open("ring", b"short").is_none());
    }

    #[test]
    fn what_is_no_key_is_refused_and_a_key_is_not_shown() {
        for text in ["", "moonswarm-cluster-", "moonswarm-cluster-00", "0123"] {
            assert!(text.parse::<ClusterKey>().is_err(), "{text}");
        }
        let key = ClusterKey::generate().unwrap();
        assert!(format!("\n{}\n", *key.to_text()).parse::<ClusterKey>().is_ok());
        assert!(!key.to_text().contains(&format!("{key:?}")));
    }
}
