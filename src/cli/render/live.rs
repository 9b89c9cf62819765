//! A run as a tree that redraws itself, for a terminal.

use std::time::Duration;

use console::{Term, truncate_str};
use indicatif::{ProgressBar, ProgressStyle};

use super::{said::Said, tree::Tree};
use crate::engine::{RunView, StepView};

/// The part of the terminal that is redrawn.
pub struct Live {
    bar: ProgressBar,
    term: Term,
}

impl Live {
    /// Begins to draw on stderr.
    pub fn start() -> Self {
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {msg}")
            .expect("the template is a constant that parses");
        bar.set_style(style);
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar, term: Term::stderr() }
    }

    /// Draws the run as it is now, cut to the size of the terminal.
    pub fn draw<'a>(
        &self,
        run: &RunView,
        steps: impl IntoIterator<Item = &'a StepView>,
        said: &Said,
        now_ms: u64,
    ) {
        let (height, width) = self.term.size();
        let tree =
            Tree { now_ms, colors: console::colors_enabled_stderr(), all: false, said: Some(said) };
        let lines = tree.lines(steps);
        let shown = fit(&lines, usize::from(height).saturating_sub(4).max(3));
        let cut = |line: &str| {
            truncate_str(line, usize::from(width).saturating_sub(4).max(20), "…").into_owned()
        };
        let mut text = vec![cut(&tree.header(run))];
        text.extend(shown.iter().map(|line| cut(line)));
        self.bar.set_message(text.join("\n"));
    }

    /// Writes a line that stays, above the tree.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| {
            // A closed stderr leaves nobody to tell.
            let _ = self.term.write_line(line);
        });
    }

    /// Ends the drawing and leaves `lines` in its place.
    pub fn end(self) {
        self.bar.finish_and_clear();
    }
}

/// The last lines that fit, and how many are above them.
fn fit(lines: &[String], height: usize) -> Vec<String> {
    match lines.len().checked_sub(height) {
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
    }
}
