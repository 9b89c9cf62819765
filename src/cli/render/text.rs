//! Text of others, made safe for a terminal.

use console::truncate_str;

use crate::protocol::plain::one_line;

/// Characters of a text that is shown in a line.
pub(super) const LONGEST: usize = 160;

/// Text that came from a worker or a flow: one line, nothing that steers a terminal.
pub fn printable(text: &str) -> String {
    let mut shown = one_line(text.get(..LONGEST * 4).unwrap_or(text));
    if let Some((end, _)) = shown.char_indices().nth(LONGEST) {
        shown.truncate(end);
        shown.push('…');
    }
    shown
}

/// A painted line that takes at most so many columns.
pub fn cut(line: &str, width: usize) -> String {
    truncate_str(line, width.max(1), "…").into_owned()
}
