//! Cuts of texts, and numbers in them.

/// Returns the largest index of at most `most` bytes at which a text can be cut. The standard
/// library has it from Rust 1.91 on.
pub(crate) fn floor_char_boundary(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Returns a number of things: `1 run`, `0 runs`, `2 runs`. The noun is one whose plural ends in `s`.
pub(crate) fn counted(count: impl std::fmt::Display, noun: &str) -> String {
    let count = count.to_string();
    let ending = if count == "1" { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_thing_is_in_the_singular() {
        let said = [0, 1, 2, 11].map(|count| counted(count, "open run"));
        assert_eq!(said, ["0 open runs", "1 open run", "2 open runs", "11 open runs"]);
    }
}
