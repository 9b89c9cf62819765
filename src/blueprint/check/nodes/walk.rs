//! A walk over a table flow in progress: the node that is looked at, the names that are set there,
//! and how a finding is made.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

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
    /// The schemas of agents' outputs, which all their steps share.
    pub outputs: BTreeMap<&'d str, Rc<Value>>,
    /// Branches that go on a chain of comparisons.
    pub chained: BTreeSet<String>,
    /// The errors that were found.
    pub errors: usize,
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

/// A schema that is known.
pub(super) type Known = Option<Rc<Value>>;

/// The names that are set where an expression stands, each with its schema if that is known.
pub(super) struct Scope {
    pub names: BTreeMap<String, Known>,
    /// True if the schema of the input is known: it has no other keys than that says.
    pub has_input: bool,
    /// The names that were set, each with its schema from before.
    undo: Vec<(String, Option<Known>)>,
}

impl Scope {
    pub(super) fn of_run(input: Option<&Value>) -> Self {
        let schema = input.map(|input| Rc::new(input.clone()));
        let names = BTreeMap::from([("input".to_owned(), schema), ("run".to_owned(), None)]);
        Self { names, has_input: input.is_some(), undo: Vec::new() }
    }

    pub(super) fn set(&mut self, name: &str, schema: Known) {
        let before = self.names.insert(name.to_owned(), schema);
        self.undo.push((name.to_owned(), before));
    }

    /// Returns the point to which [`Scope::leave`] goes back.
    pub(super) fn enter(&self) -> usize {
        self.undo.len()
    }

    /// Goes back to where it was before, and returns the names that were set for the first time.
    pub(super) fn leave(&mut self, entered: usize) -> BTreeMap<String, Known> {
        let (mut new, mut last) = (BTreeMap::new(), BTreeMap::<String, Known>::new());
        for (name, before) in self.undo.drain(entered..).rev() {
            let is_new = before.is_none();
            let now = match before {
                Some(before) => self.names.insert(name.clone(), before),
                None => self.names.remove(&name),
            };
            let schema = last.remove(&name).unwrap_or_else(|| now.flatten());
            match is_new {
                true => new.insert(name, schema),
                false => last.insert(name, schema),
            };
        }
        new
    }

    /// The schema of a plain path such as `plan.steps`.
    pub(super) fn schema(&self, path: &str) -> Option<&Value> {
        let mut parts = path.split('.');
        let schema = self.names.get(parts.next()?)?.as_deref()?;
        parts.try_fold(schema, |schema, part| schema.get("properties")?.get(part))
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
            at = self.below(&at, "else");
            self.chained.insert(at.clone());
            handled.push(text);
            last = next;
        }
        let Some(schema) = self.scope.schema(&path).filter(|_| handled.len() > 1) else { return };
        let left = handled::left(schema, &handled);
        if !left.is_empty() {
            let message = format!("no branch for `{path}` handles {}", left.join(", "));
            self.warn(&self.below(&at, "if"), code::UNHANDLED_VALUE, message);
        }
    }

    /// Returns the pointer of a key as it is written: what Lua keeps for itself has a `_` behind it.
    pub(super) fn below(&self, at: &str, key: &str) -> String {
        let outline = &self.checker.outline;
        let (plain, lua) = (pointer(at, key), pointer(at, &format!("{key}_")));
        if outline.spot(&plain).is_none() && outline.spot(&lua).is_some() { lua } else { plain }
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
        self.errors += 1;
    }

    pub(super) fn warn(&mut self, at: &str, code: &'static str, message: String) {
        let finding: Finding = self.checker.at_value(at, code, message).warning();
        self.checker.findings.push(finding);
    }
}
