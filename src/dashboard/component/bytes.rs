//! Sizes.

/// Returns a number of bytes in its largest unit, with a decimal where that says more.
pub(in crate::dashboard) fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..1_024 => return format!("{bytes} B"),
        1_024..1_048_576 => (1 << 10, "KiB"),
        1_048_576..1_073_741_824 => (1 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    let (whole, tenths) = (bytes / unit, bytes % unit * 10 / unit);
    match tenths {
        1.. if whole < 10 => format!("{whole}.{tenths} {name}"),
        _ => format!("{whole} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_its_largest_unit() {
        let sizes = [0, 1_023, 1_024, 1_448, 10_239, 20 << 20, 8 << 30, u64::MAX].map(size);
        let expected =
            ["0 B", "1023 B", "1 KiB", "1.4 KiB", "9.9 KiB", "20 MiB", "8 GiB", "17179869183 GiB"];
        assert_eq!(sizes, expected);
    }
}
