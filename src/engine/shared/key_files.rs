//! Where the keys are kept.

use crate::token::{HandleKey, KeyRing};

/// Where a host keeps its keys.
pub trait KeyFiles: Send + Sync {
    /// 32 bytes of the operating system's randomness.
    fn seed(&self) -> [u8; 32];

    /// Writes every key durably. A host that dies within it has the keys of before or those after,
    /// and the keys of before among those that verify, where they have a grace.
    ///
    /// # Errors
    /// Why they cannot be written.
    fn keep(&self, keys: &KeyRing, handles: &HandleKey) -> Result<(), String>;

    /// Writes the token of the directory's owner durably.
    ///
    /// # Errors
    /// Why it cannot be written.
    fn keep_admin(&self, token: &str) -> Result<(), String>;
}

/// Keys that are kept nowhere: an engine without a directory ends with them.
#[derive(Debug)]
pub struct Unkept;

impl KeyFiles for Unkept {
    fn seed(&self) -> [u8; 32] {
        *blake3::hash(uuid::Uuid::new_v4().as_bytes()).as_bytes()
    }

    fn keep(&self, _: &KeyRing, _: &HandleKey) -> Result<(), String> {
        Ok(())
    }

    fn keep_admin(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
}
