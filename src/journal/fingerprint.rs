//! The fingerprint that a scheduled step must match when its run is replayed.

use crate::protocol::{Json, StepKind};

/// The maximum size of a request in bytes that is copied to be hashed at once: that is cheaper than
/// a few bytes at a time.
const COPIED: usize = 1 << 10;

/// Hashes a step's kind, name and request to 64 bits.
///
/// Equal inputs have equal fingerprints on every machine and in every release of this format.
pub fn fingerprint(kind: StepKind, name: &str, request: &Json) -> u64 {
    let (code, length) = ([kind.code()], (name.len() as u64).to_le_bytes());
    let parts = [&code[..], &length[..], name.as_bytes(), request.as_str().as_bytes()];
    let hash = if parts[3].len() <= COPIED {
        blake3::hash(&parts.concat())
    } else {
        blake3::Hasher::new().update(&parts[..3].concat()).update(parts[3]).finalize()
    };
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_counts_and_the_value_never_changes() {
        let request = Json::parse(r#"{"a":1}"#).unwrap();
        let it = fingerprint(StepKind::Task, "coder", &request);
        assert_eq!(it, 3526587496634726019, "golden");
        assert_ne!(it, fingerprint(StepKind::Child, "coder", &request));
        assert_ne!(it, fingerprint(StepKind::Task, "code", &request));
        assert_ne!(it, fingerprint(StepKind::Task, "coder", &Json::null()));
    }

    #[test]
    fn a_request_of_any_size_is_hashed_as_if_copied() {
        for size in [COPIED - 2, COPIED - 1, 3 * COPIED] {
            let request = Json::parse(format!("\"{}\"", "x".repeat(size))).unwrap();
            let head = [StepKind::Task.code(), 1, 0, 0, 0, 0, 0, 0, 0, b'a'];
            let hash = blake3::hash(&[&head[..], request.as_str().as_bytes()].concat());
            let expected = u64::from_le_bytes(*hash.as_bytes().first_chunk().unwrap());
            assert_eq!(fingerprint(StepKind::Task, "a", &request), expected, "{size}");
        }
    }
}
