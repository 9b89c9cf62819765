//! The earlier steps and files of the run that an agent's worker may open besides its prompt, by
//! name.

use serde::{Deserialize, Serialize};

/// The earlier steps and files of a run that an agent names; none by default. A name may contain one
/// `*`, which stands for anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextNames {
    /// The names of steps.
    pub steps: Vec<String>,
    /// The names of files.
    pub artifacts: Vec<String>,
}

impl ContextNames {
    /// Returns true if nothing is named.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.artifacts.is_empty()
    }

    /// Returns true if it names a step.
    pub fn has_step(&self, name: &str) -> bool {
        self.steps.iter().any(|it| fits(it, name))
    }

    /// Returns true if it names a file.
    pub fn has_artifact(&self, name: &str) -> bool {
        self.artifacts.iter().any(|it| fits(it, name))
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((begin, end)) => {
            name.len() >= begin.len() + end.len() && name.starts_with(begin) && name.ends_with(end)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_is_there() {
        let names = ContextNames {
            steps: vec!["plan".to_owned(), "review_*".to_owned()],
            artifacts: vec!["*.md".to_owned()],
        };
        assert!(names.has_step("plan") && names.has_step("review_"));
        assert!(!names.has_step("planner") && !names.has_step("preview_a") && !names.has_step(""));
        assert!(names.has_artifact("a.md") && !names.has_artifact("a.mdx"));
        assert!(!fits("ab*ba", "aba"), "the ends do not overlap");
        assert!(ContextNames::default().is_empty() && !ContextNames::default().has_step("*"));
    }
}
