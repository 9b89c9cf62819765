//! The stored form of an entry, with a checksum that detects damage.
//!
//! | version | bytes |
//! |---|---|
//! | 1 | the version; number, time and fact in postcard |
//! | 2 | the version; number, time, fact and additions in postcard; the checksum: the first 8 bytes of BLAKE3 over the run's number (little endian, 8 bytes) and all bytes before |
//! | 4 | as version 2; the checksum: XXH3 (64 bits, little endian) over all bytes before, with the run's number as its seed |
//!
//! This program writes version 4, and every release reads all of them. No version is 3: one flipped bit
//! would make a 1 of it, which has no checksum.

use postcard::ser_flavors::Flavor;
use serde::Deserialize;
use twox_hash::XxHash3_64;

use super::{Entry, Fact};

/// The version of the stored form that this program writes.
pub const VERSION: u8 = 4;
/// The oldest version that this program reads.
pub const OLDEST: u8 = 1;

/// The version whose checksum is a part of a BLAKE3 hash.
const BLAKE: u8 = 2;
/// The length of a checksum in bytes.
const SUM: usize = 8;

/// A failure to decode an entry.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// The entry was written by a newer release.
    #[error("read an entry of version {0}: this program knows versions {OLDEST} to {VERSION}")]
    Version(u8),
    /// The checksum differs: the bytes are damaged, or belong to another run.
    #[error("decode an entry: its bytes are not those that were written (the sum differs)")]
    Sum,
    /// The bytes cannot be parsed.
    #[error("decode an entry: {}", match .0 {
        postcard::Error::SerdeDeCustom => "a value in it is no JSON".to_owned(),
        other => other.to_string(),
    })]
    Malformed(#[from] postcard::Error),
    /// There are bytes after the entry.
    #[error("decode an entry: {0} bytes follow it")]
    TooLong(usize),
    /// There are no bytes.
    #[error("decode an entry: it is empty")]
    Empty,
}

/// The layout of version 1.
#[derive(Deserialize)]
struct First {
    seq: u32,
    at_ms: u64,
    fact: Fact,
}

impl Entry {
    /// Encodes the entry as a journal row of the run `run`.
    pub fn encode(&self, run: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.fact.size_hint() + self.additions.size() + SUM);
        bytes.push(VERSION);
        let body = (self.seq, self.at_ms, &self.fact, &self.additions);
        let mut bytes = postcard::serialize_with_flavor(&body, Bytes(bytes))
            .expect("an entry has no unserialisable part");
        let sum = sum(VERSION, run, &bytes);
        bytes.extend_from_slice(&sum);
        bytes
    }

    /// Decodes a journal row of the run `run`.
    ///
    /// # Errors
    /// Fails when the version is unknown, or the bytes are not those that were written for this
    /// run.
    pub fn decode(run: u64, bytes: &[u8]) -> Result<Self, EntryError> {
        match bytes.first() {
            None => Err(EntryError::Empty),
            Some(1) => {
                let First { seq, at_ms, mut fact } = postcard::from_bytes(&bytes[1..])?;
                if let Fact::RunStarted(started) = &mut fact {
                    // Version 1 stored a row id here. This version refers to the entry before by
                    // its number.
                    let before = u64::from(seq).checked_sub(1);
                    started.continues = started.continues.and(before);
                }
                Ok(Self::new(seq, at_ms, fact))
            }
            Some(&version @ (BLAKE | VERSION)) => {
                let Some((body, found)) = bytes.split_last_chunk::<SUM>() else {
                    return Err(EntryError::Sum);
                };
                if *found != sum(version, run, body) {
                    return Err(EntryError::Sum);
                }
                let body = body.get(1..).ok_or(EntryError::Empty)?;
                let ((seq, at_ms, fact, additions), rest) = postcard::take_from_bytes(body)?;
                match rest.len() {
                    0 => Ok(Self { seq, at_ms, fact, additions }),
                    more => Err(EntryError::TooLong(more)),
                }
            }
            Some(&other) => Err(EntryError::Version(other)),
        }
    }

    /// Reads only the number of an entry. `bytes` may be truncated after the number.
    #[cfg(feature = "host")]
    pub(crate) fn seq_of(bytes: &[u8]) -> Option<u32> {
        match bytes.first()? {
            1 | &BLAKE | &VERSION => {
                postcard::take_from_bytes::<u32>(&bytes[1..]).ok().map(|(seq, _)| seq)
            }
            _ => None,
        }
    }

    /// Returns the journal row that an entry of version 1 continues.
    #[cfg(feature = "host")]
    pub(crate) fn row_before(bytes: &[u8]) -> Option<u64> {
        let (1, rest) = bytes.split_first()? else { return None };
        match postcard::from_bytes::<First>(rest).ok()?.fact {
            Fact::RunStarted(started) => started.continues,
            _ => None,
        }
    }
}

/// Collects an encoded entry. Copies a text as a whole, which postcard's own collector does byte by
/// byte.
struct Bytes(Vec<u8>);

impl Flavor for Bytes {
    type Output = Vec<u8>;

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(data);
        Ok(())
    }

    fn try_push(&mut self, data: u8) -> postcard::Result<()> {
        self.0.push(data);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

/// Returns the checksum of an entry of a version with checksums.
fn sum(version: u8, run: u64, bytes: &[u8]) -> [u8; SUM] {
    if version != BLAKE {
        return XxHash3_64::oneshot_with_seed(run, bytes).to_le_bytes();
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(&run.to_le_bytes());
    hasher.update(bytes);
    let hash = hasher.finalize();
    *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        journal::{Decision, Outcome, RunStarted},
        protocol::Json,
    };

    fn started(continues: Option<u64>) -> Fact {
        Fact::RunStarted(Box::new(RunStarted {
            blueprint: "b".into(),
            hash: "00".into(),
            input: Json::from_trusted(r#"{"text":"a letter that could be another"}"#),
            trigger: Json::null(),
            seed: u64::MAX,
            parent: Some((1, 2)),
            depth: 1,
            workdir: None,
            principal: "admin".into(),
            delegate: None,
            grant: Json::null(),
            generation: 1,
            first_step: 9,
            queued: vec![("go".into(), Json::from_trusted("1"))],
            continues,
        }))
    }

    fn entries() -> Vec<Entry> {
        let output = Outcome::Completed(Json::from_trusted(r#""half a moon""#));
        let pause = Decision::Pause { by: "ann".into(), reason: "why not".into() };
        let facts = [started(Some(6)), Fact::RunEnded(output), Fact::Decided(pause)];
        let mut entries: Vec<_> =
            (7..).zip(facts).map(|(seq, fact)| Entry::new(seq, 1_800_000_000_000, fact)).collect();
        entries[1].additions.put("line", Json::from_trusted("12"));
        entries[2].additions.put("from another release", Json::from_trusted("[{}]"));
        entries
    }

    #[test]
    fn an_entry_is_read_back_with_what_was_added_to_it() {
        for entry in entries() {
            let bytes = entry.encode(3);
            assert_eq!(Entry::decode(3, &bytes).unwrap(), entry);
            assert_eq!(Entry::seq_of(&bytes[..6]), Some(entry.seq));
            assert_eq!(Entry::decode(3, &bytes).unwrap().encode(3), bytes);
            let json = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<Entry>(&json).unwrap(), entry);
            assert_eq!(json.contains("additions"), !entry.additions.is_empty());
        }
    }

    #[test]
    fn an_entry_of_version_1_is_read_for_ever() {
        let fact = Fact::SecretAccessed { step: 2, attempt: 3, event: Json::from_trusted("{}") };
        // The version; number and time; the index of the variant; step, attempt, a text of two
        // bytes.
        let bytes = [1, 1, 1, 11, 2, 3, 2, b'{', b'}'];
        assert_eq!(Entry::decode(9, &bytes).unwrap(), Entry::new(1, 1, fact));
        assert_eq!(Entry::seq_of(&bytes), Some(1));
        assert_eq!(Entry::row_before(&bytes), None);

        let mut bytes = vec![1];
        bytes = postcard::to_extend(&(7_u32, 5_u64, started(Some(900))), bytes).unwrap();
        assert_eq!(Entry::row_before(&bytes), Some(900));
        let read = Entry::decode(9, &bytes).unwrap();
        assert_eq!(read.fact, started(Some(6)), "a row's number is no part of an entry any more");
        assert!(matches!(Entry::decode(9, &[3, 1, 1]), Err(EntryError::Version(3))));
        assert!(matches!(Entry::decode(9, &[]), Err(EntryError::Empty)));
        assert!(matches!(Entry::decode(9, &[2, 1, 1]), Err(EntryError::Sum)));
    }

    #[test]
    fn an_entry_of_version_2_is_read_for_ever() {
        for entry in entries() {
            let current = entry.encode(3);
            let mut bytes = current[..current.len() - SUM].to_vec();
            bytes[0] = BLAKE;
            bytes.extend(sum(BLAKE, 3, &bytes));
            assert_eq!(Entry::decode(3, &bytes).unwrap(), entry);
            assert_eq!(Entry::seq_of(&bytes[..6]), Some(entry.seq));
            assert!(matches!(Entry::decode(4, &bytes), Err(EntryError::Sum)), "of another run");
            bytes[0] = VERSION;
            assert!(matches!(Entry::decode(3, &bytes), Err(EntryError::Sum)));
        }
        let fact = Fact::SecretAccessed { step: 2, attempt: 3, event: Json::from_trusted("{}") };
        let entry = Entry::new(1, 1, fact);
        let golden = [2, 1, 1, 11, 2, 3, 2, 123, 125, 0, 72, 110, 109, 180, 159, 58, 101, 75];
        assert_eq!(Entry::decode(9, &golden).unwrap(), entry);
    }

    #[test]
    fn the_bytes_of_an_entry_never_change() {
        let fact = Fact::SecretAccessed { step: 2, attempt: 3, event: Json::from_trusted("{}") };
        let golden = [4, 1, 1, 11, 2, 3, 2, 123, 125, 0, 131, 57, 210, 224, 137, 62, 109, 250];
        assert_eq!(Entry::new(1, 1, fact).encode(9), golden);
    }

    #[test]
    fn every_single_bit_that_flips_is_noticed() {
        for entry in entries() {
            let bytes = entry.encode(3);
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(Entry::decode(3, &flipped).is_err(), "bit {bit} of {entry:?}");
            }
            assert!(matches!(Entry::decode(4, &bytes), Err(EntryError::Sum)), "of another run");
        }
    }

    #[test]
    fn bytes_behind_an_entry_are_no_part_of_it() {
        let bytes = entries()[0].encode(3);
        let mut body = bytes[..bytes.len() - SUM].to_vec();
        body.extend([0, 0]);
        let sum = sum(VERSION, 3, &body);
        body.extend(sum);
        assert!(matches!(Entry::decode(3, &body), Err(EntryError::TooLong(2))));
    }

    proptest! {
        #[test]
        fn whatever_is_changed_cut_or_added_is_noticed(
            run: u64, which in 0..3_usize, at: prop::sample::Index, xor in 1..=255_u8, how in 0..3,
        ) {
            let bytes = entries()[which].encode(run);
            let at = at.index(bytes.len());
            let mut changed = bytes.clone();
            match how {
                0 => changed[at] ^= xor,
                1 => changed.truncate(at),
                _ => changed.insert(at, xor),
            }
            // A change of the version byte can produce a valid entry of version 1, which has no
            // checksum.
            prop_assume!(changed.first() != Some(&1));
            prop_assert!(changed == bytes || Entry::decode(run, &changed).is_err());
        }
    }
}
