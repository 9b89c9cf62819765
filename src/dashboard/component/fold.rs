//! Steps folded by their scopes: the branches of a call are one row, and within the call each branch is.

use std::collections::HashMap;

use crate::engine::StepView;

/// A row of a timeline.
#[derive(Debug)]
pub(in crate::dashboard) enum Row<'a> {
    /// A step.
    Step(&'a StepView),
    /// Steps of one scope.
    Folded(Fold<'a>),
}

impl Row<'_> {
    /// Returns the number of the first step.
    pub(in crate::dashboard) fn first(&self) -> u32 {
        match self {
            Self::Step(step) => step.seq,
            Self::Folded(fold) => fold.steps.first().map_or(0, |step| step.seq),
        }
    }
}

/// Steps of one scope.
#[derive(Debug)]
pub(in crate::dashboard) struct Fold<'a> {
    /// The scope: `3` for all branches of a call, `3.1` for one of them.
    pub key: &'a str,
    /// The steps, at least one.
    pub steps: Vec<&'a StepView>,
}

impl Fold<'_> {
    /// Returns the number of steps in a state.
    pub(in crate::dashboard) fn count(&self, state: &str) -> usize {
        self.steps.iter().filter(|it| it.state == state).count()
    }

    /// Returns the number of steps that have not ended.
    pub(in crate::dashboard) fn open(&self) -> usize {
        self.steps.iter().filter(|it| it.ended_at.is_none()).count()
    }

    /// Returns the state of all of them together.
    pub(in crate::dashboard) fn state(&self) -> &'static str {
        match (self.open(), self.count("failed"), self.count("completed")) {
            (0, 0, 0) => "canceled",
            (0, 0, _) => "completed",
            (0, _, _) => "failed",
            _ => "processing",
        }
    }

    /// Returns the words for the branch, or for all branches of its call.
    pub(in crate::dashboard) fn label(&self) -> String {
        let words = self.steps.first().and_then(|it| it.branch.as_deref());
        let words: Vec<_> = words.unwrap_or("branches").split(WITHIN).collect();
        let own = words[..self.key.split('/').count().min(words.len())].join(WITHIN);
        let is_branch = self.key.rsplit('/').next().is_some_and(|last| last.contains('.'));
        match own.rsplit_once(", ").filter(|_| !is_branch) {
            Some((call, _)) => call.to_owned(),
            None => own,
        }
    }
}

/// The separator between the words for a branch and for one within it.
const WITHIN: &str = " › ";

/// Folds the steps at and below `base`; the others are left out.
pub(in crate::dashboard) fn folded<'a>(steps: &'a [StepView], base: &str) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for step in steps {
        let key = match below(&step.scope, base) {
            Below::No => continue,
            Below::Itself => {
                rows.push(Row::Step(step));
                continue;
            }
            Below::Within(key) => key,
        };
        match places.get(key).map(|at| &mut rows[*at]) {
            Some(Row::Folded(fold)) => fold.steps.push(step),
            Some(Row::Step(_)) | None => {
                places.insert(key, rows.len());
                rows.push(Row::Folded(Fold { key, steps: vec![step] }));
            }
        }
    }
    // One step alone says more than its fold.
    for row in &mut rows {
        if let Row::Folded(Fold { steps, .. }) = row
            && let [step] = steps[..]
        {
            *row = Row::Step(step);
        }
    }
    rows
}

/// The place of a scope from the point of view of another one.
enum Below<'s> {
    No,
    Itself,
    Within(&'s str),
}

fn below<'s>(scope: &'s str, base: &str) -> Below<'s> {
    let Some(rest) = scope.strip_prefix(base) else { return Below::No };
    let upto = |from: usize, ends: &[char]| {
        let end = scope[from..].find(ends).map_or(scope.len(), |at| from + at);
        Below::Within(&scope[..end])
    };
    match rest.chars().next() {
        None => Below::Itself,
        // The base is a call, and this one of its branches.
        Some('.') => upto(base.len() + 1, &['/']),
        Some('/') => upto(base.len() + 1, &['.', '/']),
        Some(_) if base.is_empty() => upto(0, &['.', '/']),
        Some(_) => Below::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(seq: u32, scope: &str) -> StepView {
        serde_json::from_value(serde_json::json!({
            "id": "x", "seq": seq, "scope": scope, "index": 0, "prev": null, "kind": "task",
            "name": "a", "summary": null, "state": "completed", "attempts": 1, "task": null,
            "scheduled_at": "", "started_at": null, "ended_at": "", "duration_ms": 1, "usage": null,
            "error": null, "branch": "map, item 2",
        }))
        .unwrap()
    }

    #[test]
    fn branches_are_folded_by_call_and_then_each_for_itself() {
        let scopes = ["", "1.0", "1.1", "1.0", "1.1/0.0", "12.0"];
        let steps: Vec<_> = (1..).zip(scopes).map(|(seq, scope)| step(seq, scope)).collect();
        let shown = |base: &str| {
            let word = |row: &Row<'_>| match row {
                Row::Step(step) => step.seq.to_string(),
                Row::Folded(fold) => format!("{}x{}", fold.key, fold.steps.len()),
            };
            folded(&steps, base).iter().map(word).collect::<Vec<_>>()
        };
        assert_eq!(shown(""), ["1", "1x4", "6"]);
        assert_eq!(shown("1"), ["1.0x2", "1.1x2"]);
        assert_eq!(shown("1.1"), ["3", "5"]);
        assert!(shown("9").is_empty());
    }

    #[test]
    fn a_fold_has_the_words_of_its_call() {
        let one = step(1, "3.1");
        let of = |key| Fold { key, steps: vec![&one] }.label();
        assert_eq!((of("3"), of("3.1")), ("map".to_owned(), "map, item 2".to_owned()));
    }
}
