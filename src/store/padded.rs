//! A small file that is overwritten in place: a value as JSON with its checksum, padded to one size. So it
//! can be written on a full disk, and a write that was cut off is noticed.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    StoreError,
    lock::{file, open_private},
};

/// The size of a file in bytes.
pub const BYTES: usize = 1_024;

/// A padded file.
pub struct PaddedFile {
    file: File,
    durable: bool,
}

impl PaddedFile {
    /// Opens the file at `path`, and makes one that is not there. Returns its value, unless it is empty,
    /// truncated or damaged. Writes are synced if `durable`.
    ///
    /// # Errors
    /// Fails on errors of the file system.
    pub fn open<T: DeserializeOwned>(
        path: &Path,
        durable: bool,
    ) -> Result<(Self, Option<T>), StoreError> {
        let mut it = open_private(path)?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut it)
            .take(BYTES as u64)
            .read_to_end(&mut bytes)
            .map_err(file("read", path))?;
        let value = decode(&bytes);
        if value.is_none() && !bytes.is_empty() {
            tracing::warn!(path = %path.display(), "this file cannot be read and counts as empty");
        }
        Ok((Self { file: it, durable }, value))
    }

    /// Overwrites the value.
    pub fn write(&self, value: &impl Serialize) -> io::Result<()> {
        self.file.write_all_at(&encode(value), 0)?;
        if self.durable { self.file.sync_data() } else { Ok(()) }
    }
}

/// Encodes a value as JSON and its checksum, one per line, padded with blanks.
fn encode(value: &impl Serialize) -> Vec<u8> {
    let text = serde_json::to_string(value).expect("it is plain data");
    let mut bytes = format!("{text}\n{}\n", sum(&text)).into_bytes();
    bytes.resize(BYTES.max(bytes.len()), b' ');
    bytes
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let mut lines = std::str::from_utf8(bytes).ok()?.lines();
    let text = lines.next()?;
    (lines.next()? == sum(text)).then(|| serde_json::from_str(text).ok()).flatten()
}

fn sum(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_was_cut_off_or_changed_is_none() {
        let mut bytes = encode(&[7, 8, 9]);
        assert_eq!(decode(&bytes), Some([7, 8, 9]));
        assert_eq!(decode::<[u8; 3]>(&bytes[..10]), None);
        bytes[1] ^= 1;
        assert_eq!(decode::<[u8; 3]>(&bytes), None);
    }
}
