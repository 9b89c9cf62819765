//! The pages of the documentation, by section.

/// The pages, each with its name below docs/: those that an agent needs most come first.
const PAGES: &[(&str, &str)] = &[
    ("blueprints.md", include_str!("../../docs/blueprints.md")),
    ("flows.md", include_str!("../../docs/flows.md")),
    ("lua", include_str!("../../lua/manual.md")),
    ("concepts.md", include_str!("../../docs/concepts.md")),
    ("operators.md", include_str!("../../docs/operators.md")),
    ("inbox.md", include_str!("../../docs/inbox.md")),
    ("testing.md", include_str!("../../docs/testing.md")),
    ("errors.md", include_str!("../../docs/errors.md")),
    ("session-protocol.md", include_str!("../../docs/session-protocol.md")),
    ("worker-protocol.md", include_str!("../../docs/worker-protocol.md")),
    ("mcp.md", include_str!("../../docs/mcp.md")),
    ("coding-agents.md", include_str!("../../docs/coding-agents.md")),
    ("cookbook.md", include_str!("../../docs/cookbook.md")),
    ("state.md", include_str!("../../docs/state.md")),
    ("quickstart.md", include_str!("../../docs/quickstart.md")),
    ("runs.md", include_str!("../../docs/runs.md")),
    ("protocol.md", include_str!("../../docs/protocol.md")),
    ("events.md", include_str!("../../docs/events.md")),
    ("environments.md", include_str!("../../docs/environments.md")),
    ("middleware.md", include_str!("../../docs/middleware.md")),
    ("response-loop.md", include_str!("../../docs/response-loop.md")),
    ("responses-api.md", include_str!("../../docs/responses-api.md")),
    ("findings.md", include_str!("../../docs/findings.md")),
    ("dashboard.md", include_str!("../../docs/dashboard.md")),
    ("export.md", include_str!("../../docs/export.md")),
    ("from-mlua-swarm.md", include_str!("../../docs/from-mlua-swarm.md")),
    ("install.md", include_str!("../../docs/install.md")),
    ("operations.md", include_str!("../../docs/operations.md")),
    ("deploy.md", include_str!("../../docs/deploy.md")),
    ("cluster.md", include_str!("../../docs/cluster.md")),
    ("telemetry.md", include_str!("../../docs/telemetry.md")),
    ("reliability.md", include_str!("../../docs/reliability.md")),
    ("security.md", include_str!("../../docs/security.md")),
    ("performance.md", include_str!("../../docs/performance.md")),
    ("dependencies.md", include_str!("../../docs/dependencies.md")),
];
/// The maximum number of words of a query.
const WORDS: usize = 16;

/// A section of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section {
    /// The page.
    pub(super) page: &'static str,
    /// Its heading.
    pub(super) heading: &'static str,
    /// Its text, with the heading.
    pub(super) text: &'static str,
}

impl Section {
    /// Returns the page and the heading.
    pub(super) fn title(&self) -> String {
        format!("docs/{}: {}", self.page, self.heading)
    }
}

/// Returns the pages: the name and the text of each.
pub(super) fn pages() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGES.iter().copied()
}

/// Returns the first heading of a page.
pub(super) fn heading(text: &str) -> &str {
    let line = text.lines().find(|line| line.starts_with('#')).unwrap_or_default();
    line.trim_start_matches('#').trim()
}

/// Returns the sections that have the words of a query, the best first.
pub(super) fn search(query: &str, most: usize) -> Vec<Section> {
    let query = query.to_lowercase();
    let words: Vec<&str> = query
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| word.len() > 1)
        .take(WORDS)
        .collect();
    let mut found: Vec<(usize, Section)> = PAGES
        .iter()
        .flat_map(|(page, text)| sections(page, text))
        .map(|section| (score(&section, &words), section))
        .filter(|(score, _)| *score > 0)
        .collect();
    // Stable: sections of equal score stay in the order of the pages.
    found.sort_by(|(a, _), (b, _)| b.cmp(a));
    found.into_iter().take(most).map(|(_, section)| section).collect()
}

/// Scores a section: a word counts once, more in the heading, and a little for each repetition.
fn score(section: &Section, words: &[&str]) -> usize {
    let (heading, text) = (section.heading.to_lowercase(), section.text.to_lowercase());
    words
        .iter()
        .map(|word| match text.matches(word).count() {
            0 => 0,
            many => 20 + many.min(5) + if heading.contains(word) { 30 } else { 0 },
        })
        .sum()
}

/// Splits a page at its headings. A line of a code block is no heading.
fn sections(page: &'static str, text: &'static str) -> Vec<Section> {
    let mut starts = Vec::new();
    let (mut at, mut code) = (0, false);
    for line in text.split_inclusive('\n') {
        if line.starts_with("```") {
            code = !code;
        } else if line.starts_with('#') && !code {
            starts.push((at, line.trim_start_matches('#').trim()));
        }
        at += line.len();
    }
    let ends = starts.iter().skip(1).map(|(at, _)| *at).chain([text.len()]);
    let whole = starts.iter().zip(ends);
    whole
        .map(|((start, heading), end)| Section { page, heading, text: text[*start..end].trim() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_code_leads_to_its_section() {
        for code in ["self_approval", "already_accepted"] {
            let found = search(code, 3);
            assert_eq!((found[0].page, found[0].heading), ("errors.md", code));
        }
    }

    #[test]
    fn every_page_of_the_documentation_is_here() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
        let files = std::fs::read_dir(docs).unwrap().map(|file| file.unwrap().file_name());
        let files = files.map(|name| name.into_string().unwrap());
        let missing: Vec<String> = files
            .filter(|name| name.ends_with(".md"))
            .filter(|name| !PAGES.iter().any(|(page, _)| page == name))
            .collect();
        assert!(missing.is_empty(), "{missing:?} are not in PAGES");
    }

    #[test]
    fn words_are_found_in_any_order_and_no_words_find_nothing() {
        let found = search("socket without a session", 4);
        assert!(found.iter().any(|it| it.heading == "Without a socket"), "{found:?}");
        assert!(search("", 4).is_empty());
        assert!(search("xyzzyplugh", 4).is_empty());
    }

    #[test]
    fn every_page_has_sections_and_code_is_not_cut() {
        for (page, text) in PAGES {
            let all = sections(page, text);
            assert!(!all.is_empty(), "{page}");
            let marks: usize = all.iter().map(|it| it.text.matches("\n```").count()).sum();
            assert_eq!(marks, text.matches("\n```").count(), "{page}");
        }
    }
}
