//! Cuts of texts.

/// Returns the largest index of at most `most` bytes at which a text can be cut. The standard
/// library has it from Rust 1.91 on.
pub(crate) fn floor_char_boundary(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
