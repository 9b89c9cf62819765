//! Finds the part of a text that a JSON string has as it is.

/// Returns the number of bytes at the start of a text that a JSON string has as they are: up to the
/// first quote, backslash or control character.
pub(super) fn plain(text: &[u8]) -> usize {
    let (words, rest) = text.as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let special = special(u64::from_le_bytes(*word));
        if special != 0 {
            return number * 8 + special.trailing_zeros() as usize / 8;
        }
    }
    let special = |byte: &u8| matches!(byte, 0..=0x1f | b'"' | b'\\');
    words.len() * 8 + rest.iter().position(special).unwrap_or(rest.len())
}

/// Returns a word with the highest bit of the first special byte, and with none before it.
///
/// Subtracting borrows from the next byte only where a byte is below what is subtracted, so only
/// bytes after a special one are judged wrongly.
fn special(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word;
    let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    (below(word, b' ') | is(b'"') | is(b'\\')) & (ONES << 7)
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn every_byte_at_every_place_is_judged_as_one_by_one() {
        for byte in 0..=u8::MAX {
            for place in 0..20 {
                let mut text = [b'a'; 20];
                text[place] = byte;
                let is_special = byte < b' ' || byte == b'"' || byte == b'\\';
                let expected = if is_special { place } else { text.len() };
                assert_eq!(plain(&text), expected, "{byte} at {place}");
                // What comes after the first one changes nothing.
                text[place..].fill(byte);
                assert_eq!(plain(&text), expected, "{byte} from {place}");
                text[19] = b'"';
                assert_eq!(plain(&text), expected.min(19), "{byte} before a quote");
            }
        }
        assert_eq!(plain(b""), 0);
    }
}
