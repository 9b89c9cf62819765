//! Sizes.

/// Returns a number of bytes in its largest unit.
pub(in crate::dashboard) fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        10_485_760..10_737_418_240 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_its_largest_unit() {
        let sizes = [0, 10_239, 10_240, 20 << 20, 30 << 30].map(size);
        assert_eq!(sizes, ["0 B", "10239 B", "10 KiB", "20 MiB", "30 GiB"]);
    }
}
