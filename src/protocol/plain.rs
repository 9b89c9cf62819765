//! Removes terminal control from untrusted text.
//!
//! Covers escapes, the control characters of both sets, and the characters that change the
//! direction of text. Unfiltered, a message, a name or a log line could move the cursor, fill the
//! clipboard or forge lines of this program.

/// Returns true if a character controls a terminal or changes the direction of text.
pub fn steers(c: char) -> bool {
    let turns = |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns(c)
}

/// Returns the text on one line.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if steers(c) { ' ' } else { c }).collect()
}

/// Returns the text with its line breaks.
pub fn lines(text: &str) -> String {
    columns(&text.replace("\r\n", "\n"))
}

/// Returns the text with its line breaks; each character keeps its position.
pub fn columns(text: &str) -> String {
    text.chars().map(|c| if steers(c) && !matches!(c, '\n' | '\t') { ' ' } else { c }).collect()
}

/// Returns a message in which every line after the first begins with `margin`, so that none looks
/// like a line from another source.
pub fn indented(text: &str, margin: &str) -> String {
    lines(text.trim_end()).replace('\n', &format!("\n{margin}"))
}

/// Filters lines of this program: untrusted text already went through [`one_line`], and only color
/// codes are kept.
pub fn painted(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for (n, piece) in text.split("\u{1b}[").enumerate() {
        let codes = piece.find(|c: char| !c.is_ascii_digit() && c != ';');
        match codes.filter(|end| n > 0 && piece[*end..].starts_with('m')) {
            Some(end) => {
                shown.push_str("\u{1b}[");
                shown.push_str(&piece[..=end]);
                shown.push_str(&lines(&piece[end + 1..]));
            }
            None if n > 0 => shown.push_str(&format!(" [{}", lines(piece))),
            None => shown.push_str(&lines(piece)),
        }
    }
    shown
}

/// Returns the same JSON with every control character as `\u…`; they can only occur in its strings.
pub fn json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match steers(c) && !matches!(c, '\n' | '\r' | '\t') {
            true => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVIL: &str = "a\u{1b}]0;t\u{7}\u{9b}2J\u{202e}b\u{61c}\r\nFAKE: c\u{2028}d\te\u{7f}";

    #[test]
    fn nothing_that_steers_is_left() {
        for shown in [one_line(EVIL), lines(EVIL), indented(EVIL, "    "), painted(EVIL)] {
            let left: Vec<_> =
                shown.chars().filter(|c| steers(*c) && !matches!(c, '\n' | '\t')).collect();
            assert!(left.is_empty(), "{shown:?}");
        }
        assert!(!one_line(EVIL).contains('\n'));
        assert!(indented(EVIL, "    ").contains("\n    FAKE: c"));
    }

    #[test]
    fn of_painted_text_only_the_colors_stay() {
        let green = "\u{1b}[32m✓\u{1b}[0m done";
        assert_eq!(painted(green), green);
        assert_eq!(painted("\u{1b}[2Jx\u{1b}[1;31my\u{1b}c\u{1b}["), " [2Jx\u{1b}[1;31my c [");
    }

    #[test]
    fn json_means_what_it_meant() {
        let value = serde_json::json!({ "k\u{202e}": EVIL });
        let text = json(&serde_json::to_string_pretty(&value).unwrap());
        assert!(!text.contains(|c| steers(c) && c != '\n'), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
