//! Texts of workers, models and people: always text, with what steers a reader made visible.

use maud::{Markup, html};

use crate::protocol::plain::steers;

/// The maximum length of a text on a page that does not ask for all of it, in bytes.
pub(in crate::dashboard) const SHOWN: usize = 8_000;

/// Returns a text on one line, cut to `most` characters.
pub(in crate::dashboard) fn short(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for (n, c) in text.chars().enumerate() {
        if n == most {
            shown.push('…');
            break;
        }
        match c {
            c if c.is_whitespace() => shown.push(' '),
            c if steers(c) => shown.push_str(&symbol(c)),
            c => shown.push(c),
        }
    }
    shown
}

/// Returns a name or a line in its own direction.
pub(in crate::dashboard) fn line(text: &str, most: usize) -> Markup {
    html! { bdi { (short(text, most)) } }
}

/// Returns a text with its lines. Controls of terminals and of direction are shown as symbols.
pub(in crate::dashboard) fn block(text: &str, whole: bool) -> Markup {
    let (shown, rest) = cut(text, if whole { usize::MAX } else { SHOWN });
    html! {
        div.text dir="auto" tabindex="0" { (marked(shown)) }
        @if rest > 0 { p.dim.small { "… and " (rest) " more bytes" } }
    }
}

/// Returns the text with its controls marked.
pub(in crate::dashboard) fn marked(text: &str) -> Markup {
    let controls = |c: char| steers(c) && !matches!(c, '\n' | '\t');
    html! {
        @for piece in text.split_inclusive(controls) {
            @match piece.char_indices().next_back().filter(|(_, last)| controls(*last)) {
                Some((at, last)) => { (piece[..at]) span.ctl { (symbol(last)) } }
                None => { (piece) }
            }
        }
    }
}

/// Returns the beginning of a text, and how many bytes follow.
pub(in crate::dashboard) fn cut(text: &str, most: usize) -> (&str, usize) {
    if text.len() <= most {
        return (text, 0);
    }
    let at = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    (&text[..at], text.len() - at)
}

/// Returns a control character as a terminal shows it (`^[`), or as its number.
fn symbol(c: char) -> String {
    match u32::from(c) {
        code @ (0..=0x1f | 0x7f) => {
            char::from_u32(code ^ 0x40).map(|c| format!("^{c}")).unwrap_or_default()
        }
        code => format!("⟨U+{code:04X}⟩"),
    }
}

/// Returns a button that copies a text, for a page with its script.
pub(in crate::dashboard) fn copy(text: &str) -> Markup {
    html! { button.small type="button" data-copy=(text) { "copy" } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_stays_a_text_and_controls_are_seen() {
        let shown = block("<script>\u{1b}[31m\u{202e}x\ny", false).into_string();
        assert!(shown.contains("&lt;script&gt;"), "{shown}");
        assert!(shown.contains("<span class=\"ctl\">^[</span>[31m"), "{shown}");
        assert!(shown.contains("⟨U+202E⟩") && shown.contains("x\ny"), "{shown}");
        assert_eq!(short("a\u{7}b\nc\u{202e}", 9), "a^Gb c⟨U+202E⟩");
        assert_eq!(short("abcdef", 3), "abc…");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(cut("ééé", 3), ("é", 4));
        assert_eq!(cut("abc", 3), ("abc", 0));
    }
}
