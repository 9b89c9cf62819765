//! The subject of a file watch: a pattern of paths below one directory.

use std::fmt;

use globset::{GlobBuilder, GlobMatcher};

/// The default time for which files must be unchanged before they count.
const SETTLE_MS: u64 = 1_000;
/// The longest pattern.
const LONGEST: usize = 200;

/// A pattern of files, and when a change of them counts.
#[derive(Clone)]
pub struct FileWatch {
    pattern: String,
    root: Option<String>,
    settle_ms: u64,
    open: u32,
    matcher: GlobMatcher,
}

/// The reason why a watch cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadWatch {
    /// The pattern.
    #[error("read the pattern {pattern:?}: {reason}")]
    Pattern {
        /// As it was written.
        pattern: String,
        /// The problem.
        reason: String,
    },
}

impl FileWatch {
    /// Reads a watch. The pattern is relative, `*` and `?` stay within a part of a path, `**` stands
    /// for any parts.
    ///
    /// # Errors
    /// A pattern that does not parse or leads out of its directory.
    pub fn parse(pattern: &str, root: Option<&str>) -> Result<Self, BadWatch> {
        let bad = |reason: &str| BadWatch::Pattern {
            pattern: pattern.chars().take(80).collect(),
            reason: reason.to_owned(),
        };
        let trimmed = pattern.strip_prefix("./").unwrap_or(pattern);
        if trimmed.is_empty() {
            return Err(bad("it is empty"));
        } else if trimmed.len() > LONGEST {
            return Err(bad("it is too long"));
        } else if trimmed.starts_with('/') || trimmed.contains('\\') {
            return Err(bad("it must be relative, with `/` between its parts"));
        } else if trimmed.split('/').any(|part| part == "..") {
            return Err(bad("it leads out of its directory"));
        } else if trimmed.split('/').any(|part| part.is_empty() || part == ".") {
            return Err(bad("a part of it is empty"));
        }
        let glob = GlobBuilder::new(trimmed).literal_separator(true).empty_alternates(true).build();
        let matcher = glob.map_err(|error| bad(&error.kind().to_string()))?.compile_matcher();
        Ok(Self {
            pattern: trimmed.to_owned(),
            root: root.map(str::to_owned),
            settle_ms: SETTLE_MS,
            open: 1,
            matcher,
        })
    }

    /// Sets the time for which files must be unchanged, in milliseconds, and the maximum number of open runs.
    #[must_use]
    pub fn with(self, settle_ms: Option<u64>, open: Option<u32>) -> Self {
        Self {
            settle_ms: settle_ms.unwrap_or(self.settle_ms),
            open: open.unwrap_or(self.open),
            ..self
        }
    }

    /// The pattern, without `./` before it.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// The configured directory that it is below, by name; the blueprint's own if there is none.
    pub fn root(&self) -> Option<&str> {
        self.root.as_deref()
    }

    /// Returns the time for which files must be unchanged before a change counts, in milliseconds.
    pub fn settle_ms(&self) -> u64 {
        self.settle_ms
    }

    /// Returns the maximum number of its open runs.
    pub fn max_open(&self) -> u32 {
        self.open
    }

    /// Returns the key that distinguishes it from the other watches of its blueprint.
    pub fn id(&self) -> String {
        format!("{}:{}", self.root.as_deref().unwrap_or_default(), self.pattern)
    }

    /// Returns true if a path below its directory is meant. What begins with a dot is only if the
    /// pattern spells the dot.
    pub fn matches(&self, path: &str) -> bool {
        let hidden = path.split('/').any(|part| part.starts_with('.'));
        let dotted = self.pattern.split('/').any(|part| part.starts_with('.'));
        (!hidden || dotted) && self.matcher.is_match(path)
    }

    /// The part of the pattern that is a plain path: nothing outside of it can match.
    pub fn base(&self) -> &str {
        let plain = |part: &str| !part.contains(['*', '?', '[', ']', '{', '}']);
        let mut end = 0;
        let mut parts = self.pattern.split('/').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() || !plain(part) {
                break;
            }
            end += part.len() + 1;
        }
        self.pattern[..end].trim_end_matches('/')
    }

    /// Returns the maximum number of parts of a matching path; none if there is no bound.
    pub fn depth(&self) -> Option<usize> {
        let bounded = !self.pattern.contains("**") && !self.pattern.contains('{');
        bounded.then(|| self.pattern.split('/').count())
    }
}

impl PartialEq for FileWatch {
    fn eq(&self, other: &Self) -> bool {
        (&self.pattern, &self.root, self.settle_ms, self.open)
            == (&other.pattern, &other.root, other.settle_ms, other.open)
    }
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileWatch").field(&self.pattern).field(&self.root).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(pattern: &str) -> FileWatch {
        FileWatch::parse(pattern, None).unwrap()
    }

    #[test]
    fn a_pattern_means_paths_below_its_directory() {
        let inbox = watch("./inbox/*.json");
        assert!(inbox.matches("inbox/a.json"));
        for path in ["inbox/b/a.json", "a.json", "inbox/a.txt", "inbox/.a.json", "x/inbox/a.json"] {
            assert!(!inbox.matches(path), "{path}");
        }
        assert_eq!((inbox.base(), inbox.depth()), ("inbox", Some(2)));
        let deep = watch("src/**/*.{rs,lua}");
        assert!(deep.matches("src/a.rs") && deep.matches("src/a/b/c.lua"));
        assert!(!deep.matches("src/.git/c.lua"));
        assert_eq!((deep.base(), deep.depth()), ("src", None));
        assert!(watch(".config/*").matches(".config/x"));
        assert_eq!((watch("todo.md").base(), watch("todo.md").depth()), ("", Some(1)));
    }

    #[test]
    fn what_leads_out_or_does_not_parse_is_refused() {
        let long = "x".repeat(201);
        for bad in ["", "/etc/*", "../x", "a/../../b", "a//b", "[", "{a", "a\\b", "a/./b", &long] {
            let read = FileWatch::parse(bad, None);
            assert!(matches!(read, Err(BadWatch::Pattern { .. })), "{bad}: {read:?}");
        }
    }
}
