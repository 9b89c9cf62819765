//! Links to the lines of a run's source, and to the locals at its steps.

use crate::{dashboard::component::pager, protocol::RunId};

/// The number of lines of a page.
pub(super) const LINES: usize = 400;

/// Returns the path of the page that shows a line: `file:line`.
pub(super) fn path(run: RunId, place: &str) -> String {
    match place.rsplit_once(':').and_then(|(file, line)| Some((file, line.parse().ok()?))) {
        Some((file, line)) => url(run, file, line),
        None => format!("/ui/runs/{run}?tab=source"),
    }
}

/// Returns the path of the page that shows a line of a file.
pub(super) fn url(run: RunId, file: &str, line: u32) -> String {
    let first = first_of(line).to_string();
    let query = [("tab", "source"), ("file", file), ("cursor", first.as_str())];
    format!("{}#L{line}", pager::url(&format!("/ui/runs/{run}"), &query))
}

/// Returns the path of the page that shows the locals at a step.
pub(super) fn locals(run: RunId, step: u32) -> String {
    format!("/ui/runs/{run}?tab=source&at={step}")
}

/// Returns the first line of the page that a line is on.
pub(super) fn first_of(line: u32) -> usize {
    (line as usize).saturating_sub(1) / LINES * LINES + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_on_the_page_that_begins_at_most_so_many_lines_before_it() {
        assert_eq!([1, 400, 401, 0].map(first_of), [1, 1, 401, 1]);
    }
}
