//! The keys of rows whose names may be too long for an index: an index of PostgreSQL takes at most
//! 2,704 bytes of a row, and a key of state may have 64 KiB.

/// Returns the key of the row with these names: a hash over them and their lengths.
pub fn of(names: &[&str]) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    for name in names {
        hash.update(&(name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn names_are_told_apart_by_where_they_end() {
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["ab"]), of(&["ab", ""]));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
    }
}
