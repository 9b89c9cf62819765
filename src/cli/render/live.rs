//! A run as a tree that redraws itself, for a terminal.
//!
//! The cursor rests at the beginning of the line below the tree, so that what somebody types, `^C` as
//! well, goes there and is erased with it.

use std::fmt::Write as _;

use console::{Term, measure_text_width};

use super::{
    said::LiveText,
    text,
    tree::{Row, Tree},
};
use crate::{
    engine::{RunView, StepView},
    protocol::plain::{self, painted},
};

/// One picture of the spinner lasts this long, in milliseconds.
pub const FRAME_MS: u64 = 100;
/// The maximum number of lines of the tree that stay when a run has ended.
const LEFT: usize = 20;
const FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// The part of the terminal that is redrawn.
pub struct Live {
    term: Term,
    shown: Vec<String>,
}

impl Live {
    /// Begins to draw on stderr.
    pub fn start() -> Self {
        Self { term: Term::stderr(), shown: Vec::new() }
    }

    /// Draws the run as it is now, cut to the size of the terminal.
    pub fn draw<'a>(
        &mut self,
        run: &RunView,
        steps: impl IntoIterator<Item = &'a StepView>,
        said: &LiveText,
        now_ms: u64,
    ) {
        let (height, width) = self.term.size();
        let tree = self.tree(Some(said), now_ms);
        let frame = now_ms / FRAME_MS % FRAMES.len() as u64;
        let spinner = FRAMES.iter().zip(0..).find(|(_, at)| *at == frame).map_or(' ', |it| *it.0);
        let mut lines = vec![format!("{spinner} {}", tree.header(run))];
        lines.extend(fit(&tree.lines(steps), usize::from(height).saturating_sub(4)));
        let lines = lines.iter().map(|line| cut(&painted(line), usize::from(width))).collect();
        self.put(None, lines);
    }

    /// Puts the steps of a run that ended in the place of the drawing, where they stay: folded if
    /// there are many, those that failed in any case.
    pub fn leave<'a>(mut self, steps: impl IntoIterator<Item = &'a StepView>, now_ms: u64) {
        let lines = fold(self.tree(None, now_ms).rows(steps), LEFT);
        let width = usize::from(self.term.size().1);
        self.put(None, lines.iter().map(|line| cut(&painted(line), width)).collect());
    }

    fn tree<'s>(&self, said: Option<&'s LiveText>, now_ms: u64) -> Tree<'s> {
        let width = usize::from(self.term.size().1).saturating_sub(1);
        let colors = console::colors_enabled_stderr();
        Tree { now_ms, colors, all: false, said, width: Some(width) }
    }

    /// Writes a line that stays, above the tree.
    pub fn say(&mut self, line: &str) {
        let lines = self.shown.clone();
        self.put(Some(&plain::lines(line)), lines);
    }

    /// Takes the drawing away.
    pub fn end(mut self) {
        self.put(None, Vec::new());
    }

    /// Puts `lines` in the place of what is shown, in one piece, so that nothing flickers.
    fn put(&mut self, above: Option<&str>, lines: Vec<String>) {
        let mut text = erase(&self.shown, usize::from(self.term.size().1));
        for line in above.into_iter().chain(lines.iter().map(String::as_str)) {
            text.push_str(line);
            text.push('\n');
        }
        self.shown = lines;
        // A closed stderr leaves nobody to tell.
        let _ = self.term.write_str(&text);
    }
}

/// Returns the sequence that erases `lines` from a terminal of this width, with everything below
/// them. They were cut
/// to it; if it has become narrower since, the terminal shows them in more rows.
fn erase(lines: &[String], width: usize) -> String {
    let rows = |line: &String| measure_text_width(line).div_ceil(width.max(1)).max(1);
    let mut text = String::new();
    match lines.iter().map(rows).sum::<usize>() {
        0 => {}
        up => {
            let _ = write!(text, "\r\x1b[{up}A\x1b[J");
        }
    }
    text
}

/// A line that stays on one row.
fn cut(line: &str, width: usize) -> String {
    text::cut(line, width.saturating_sub(1))
}

/// At most so many rows: what failed, then the last of the others, in their order.
fn fold(rows: Vec<Row>, most: usize) -> Vec<String> {
    if rows.len() <= most {
        return rows.into_iter().map(|row| row.text).collect();
    }
    let room = most.saturating_sub(1);
    let failed = rows.iter().filter(|row| row.is_failed).count().min(room);
    let others = rows.iter().filter(|row| !row.is_failed).count();
    let mut skipped = others - (room - failed).min(others);
    let (mut left, mut shown) = (failed, Vec::new());
    for row in &rows {
        let is_shown = if row.is_failed { left > 0 } else { skipped == 0 };
        let count = if row.is_failed { &mut left } else { &mut skipped };
        *count = count.saturating_sub(1);
        if is_shown {
            shown.push(row.text.clone());
        }
    }
    let hidden = rows.len() - shown.len();
    shown.insert(0, format!("  … {hidden} more lines: moonswarm show last"));
    shown
}

/// The last lines that fit, and how many are above them.
fn fit(lines: &[String], height: usize) -> Vec<String> {
    match lines.len().checked_sub(height.max(1)) {
        None | Some(0) => lines.to_vec(),
        Some(over) => {
            let above = over + 1;
            let mut shown = vec![format!("  … {above} more above")];
            shown.extend_from_slice(&lines[above..]);
            shown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted() {
        let lines: Vec<String> = (0..5).map(|n| n.to_string()).collect();
        assert_eq!(fit(&lines, 5), lines);
        assert_eq!(fit(&lines, 3), ["  … 3 more above", "3", "4"]);
        assert_eq!(fit(&lines, 0), ["  … 5 more above"]);
    }

    #[test]
    fn what_failed_stays_when_a_long_tree_is_folded() {
        let row = |n: usize| Row { text: n.to_string(), is_failed: n == 1 };
        let rows: Vec<_> = (0..30).map(row).collect();
        let folded = fold(rows.clone(), 5);
        assert_eq!(folded, ["  … 26 more lines: moonswarm show last", "1", "27", "28", "29"]);
        assert_eq!(fold(rows, 30).len(), 30);
        let failed: Vec<_> = (0..9).map(|_| row(1)).collect();
        assert_eq!(fold(failed, 4), ["  … 6 more lines: moonswarm show last", "1", "1", "1"]);
    }

    #[test]
    fn a_line_stays_on_one_row_of_any_terminal() {
        let long = "● \u{1b}[32mnap\u{1b}[0m 日本語テキスト and more";
        for width in [0, 1, 2, 8, 15, 40, 80] {
            let line = cut(long, width);
            assert!(measure_text_width(&line) < width.max(2), "{width}: {line:?}");
            assert!(!line.contains("\u{1b}[32m") || line.contains("\u{1b}[0m"), "{line:?}");
        }
        assert_eq!(cut("short", 40), "short");
    }

    #[test]
    fn as_many_rows_are_erased_as_the_terminal_shows() {
        let lines = ["x".repeat(79), "\u{1b}[2m○\u{1b}[0m timer".to_owned(), String::new()];
        assert_eq!(erase(&lines, 80), "\r\u{1b}[3A\u{1b}[J");
        assert_eq!(erase(&lines, 40), "\r\u{1b}[4A\u{1b}[J", "the terminal is narrower now");
        assert_eq!(erase(&[], 80), "");
    }
}
