//! The fingerprint that a scheduled step must match when its run is replayed.

use crate::protocol::{Json, StepKind};

/// Hashes a step's kind, name and request to 64 bits.
///
/// Equal inputs have equal fingerprints on every machine and in every release of this format.
pub fn fingerprint(kind: StepKind, name: &str, request: &Json) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind.code()]);
    hasher.update(&(name.len() as u64).to_le_bytes());
    hasher.update(name.as_bytes());
    hasher.update(request.as_str().as_bytes());
    let bytes: [u8; 8] = hasher.finalize().as_bytes()[..8].try_into().expect("8 of 32 bytes");
    u64::from_le_bytes(bytes)
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
}
