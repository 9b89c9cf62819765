//! The storage of keys.

use crate::token::{HandleKey, KeyRing};

/// Stores the keys of a host.
pub trait KeyFiles: Send + Sync {
    /// Returns 32 bytes of the operating system's randomness.
    fn seed(&self) -> [u8; 32];

    /// Writes every key durably. A host that dies within it has either the old keys or the new
    /// ones; with a grace period, the old ones are then among the keys that verify.
    ///
    /// # Errors
    /// Returns the reason why they cannot be written.
    fn keep(&self, keys: &KeyRing, handles: &HandleKey) -> Result<(), String>;

    /// Writes the admin token durably.
    ///
    /// # Errors
    /// Returns the reason why it cannot be written.
    fn keep_admin(&self, token: &str) -> Result<(), String>;
}

/// Stores keys nowhere: they end with an engine without a directory.
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
