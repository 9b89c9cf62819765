//! A walk over a table flow in progress: the node that is looked at, the names that are set there,
//! and how a finding is made.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::blueprint::{
    check::{checker::Checker, handled},
    definition::Agent,
    diagnostics::{Finding, code},
    locate::pointer,
};

/// Looks at nodes one after the other, in the order in which they run.
pub(super) struct Walk<'c, 'a, 'd> {
    pub checker: &'c mut Checker<'a>,
    pub agents: &'d BTreeMap<String, Agent>,
    pub scope: Scope,
    /// Branches that go on a chain of comparisons.
    pub chained: BTreeSet<String>,
}

/// A node, and where it stands.
pub(super) struct Node<'t> {
    pub map: &'t Map<String, Value>,
    pub kind: &'t str,
    pub at: String,
    pub what: String,
}

impl Node<'_> {
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }
}

/// The names that are set where an expression stands, each with its schema if that is known.
#[derive(Clone)]
pub(super) struct Scope {
    pub names: BTreeMap<String, Option<Value>>,
    /// The schema of the input, which has no other keys than it says.
    pub input: Option<Value>,
}

impl Scope {
    pub(super) fn of_run(input: Option<&Value>) -> Self {
        let names =
            BTreeMap::from([("input".to_owned(), input.cloned()), ("run".to_owned(), None)]);
        Self { names, input: input.cloned() }
    }

    pub(super) fn set(&mut self, name: &str, schema: Option<Value>) {
        self.names.insert(name.to_owned(), schema);
    }

    /// Returns the names that were set after `before`.
    pub(super) fn since(&self, before: &Self) -> Vec<(String, Option<Value>)> {
        let new = self.names.iter().filter(|(name, _)| !before.names.contains_key(*name));
        new.map(|(name, schema)| (name.clone(), schema.clone())).collect()
    }

    /// The schema of a plain path such as `plan.steps`.
    pub(super) fn schema(&self, path: &str) -> Option<Value> {
        let mut parts = path.split('.');
        let mut schema = self.names.get(parts.next()?)?.clone()?;
        for part in parts {
            schema = schema.get("properties")?.get(part)?.clone();
        }
        Some(schema)
    }
}

impl Walk<'_, '_, '_> {
    /// Branches that compare one value, and nothing else, handle all values that its schema lists.
    pub(super) fn every_branch(&mut self, node: &Node<'_>) {
        let compared = |node: &serde_json::Map<String, Value>| {
            let (path, text) = handled::comparison(node.get("if")?.as_str()?)?;
            Some((path.to_owned(), text))
        };
        let Some((path, text)) = compared(node.map) else { return };
        if self.chained.remove(&node.at) {
            return;
        }
        let (mut handled, mut last, mut at) = (vec![text], node.map, node.at.clone());
        while let Some(otherwise) = last.get("else") {
            let next = otherwise.as_object().filter(|it| it.get("kind") == Some(&"branch".into()));
            let Some((next, text)) = next.and_then(|next| {
                let (of, text) = compared(next)?;
                (of == path).then_some((next, text))
            }) else {
                return;
            };
            at = pointer(&at, "else");
            self.chained.insert(at.clone());
            handled.push(text);
            last = next;
        }
        let Some(schema) = self.scope.schema(&path).filter(|_| handled.len() > 1) else { return };
        let left = handled::left(&schema, &handled);
        if !left.is_empty() {
            let message = format!("no branch for `{path}` handles {}", left.join(", "));
            self.warn(&pointer(&at, "if"), code::UNHANDLED_VALUE, message);
        }
    }

    pub(super) fn missing(&mut self, node: &Node<'_>, key: &str) {
        let message = format!("`{key}` is missing in {}", node.what);
        self.find(&node.at, code::MISSING_KEY, message, Some(format!("add `{key}`")));
    }

    pub(super) fn find(
        &mut self,
        at: &str,
        code: &'static str,
        message: String,
        hint: Option<String>,
    ) {
        let mut finding = self.checker.at_value(at, code, message);
        finding.hint = hint;
        self.checker.findings.push(finding);
    }

    pub(super) fn warn(&mut self, at: &str, code: &'static str, message: String) {
        let finding: Finding = self.checker.at_value(at, code, message).warning();
        self.checker.findings.push(finding);
    }
}
