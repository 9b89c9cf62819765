//! Finds values of an agent's output that no branch handles: in a chain of comparisons of one field
//! without an `else`, in a Lua source and in a flow of nodes.
//!
//! A single comparison is a condition, and says nothing of the other values. A chain that compares
//! anything else as well is left alone.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{checker::Checker, files::is_lua};
use crate::blueprint::{
    allowances::Allowances,
    definition::Agent,
    diagnostics::{Finding, code},
    expression,
    tokens::{Kind, Token, tokens},
};

/// Findings in one file.
const MOST: usize = 50;

/// Returns the values that a schema lists and `handled` lacks.
pub(super) fn left(schema: &Value, handled: &[String]) -> Vec<String> {
    let values = schema.get("enum").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let is_left =
        |value: &&Value| value.as_str().is_some_and(|it| !handled.iter().any(|h| h == it));
    values.iter().filter(is_left).map(Value::to_string).collect()
}

/// Returns the path and the text that a condition of a node compares, if it is that alone.
pub(super) fn comparison(condition: &str) -> Option<(&str, String)> {
    let (path, text) = condition.trim().split_once("==")?;
    let text = text.trim();
    let quoted = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    let text = quoted('"').or_else(|| quoted('\''))?;
    let plain = !text.contains(['"', '\'', '\\']);
    Some((expression::path(path)?, text.to_owned())).filter(|_| plain)
}

impl Checker<'_> {
    /// Looks at every Lua file.
    pub(super) fn handled(&mut self, agents: &BTreeMap<String, Agent>) {
        let bundle = self.bundle;
        let outputs = agents.iter().filter_map(|(name, agent)| {
            Some((name.as_str(), agent.output.as_ref().map(crate::protocol::Json::to_value)?))
        });
        let outputs: BTreeMap<&str, Value> = outputs.collect();
        for (path, text) in bundle.files().iter().filter(|(path, _)| is_lua(path)) {
            let tokens = tokens(text);
            let source = Source { tokens: &tokens };
            let results = source.results();
            let chains = (0..tokens.len()).filter_map(|at| Some((at, source.chain(at)?)));
            let allowances = Allowances::of(text);
            let found = chains.filter_map(|(at, chain)| {
                let output = outputs.get(results.get(chain.name)?.as_str())?;
                let mut fields = chain.fields.iter();
                let field = fields
                    .try_fold(output, |schema, field| schema.get("properties")?.get(field))?;
                let left = left(field, &chain.handled);
                let of = format!("{}.{}", chain.name, chain.fields.join("."));
                let message = format!("no branch for `{of}` handles {}", left.join(", "));
                let code = code::UNHANDLED_VALUE;
                let finding = Finding::error(path, tokens[at].at, code, message);
                let finding = finding.hint("add an `elseif`, or an `else`").warning();
                (!left.is_empty() && !allowances.allow(&finding)).then_some(finding)
            });
            let mut found: Vec<_> = found.take(MOST + 1).collect();
            if found.len() > MOST {
                found.truncate(MOST);
                found.last_mut().into_iter().for_each(Finding::and_more);
            }
            self.findings.append(&mut found);
        }
    }
}

/// A chain of `if` and `elseif` that compares one field.
struct Chain<'s> {
    name: &'s str,
    fields: Vec<&'s str>,
    handled: Vec<String>,
}

/// The tokens of one Lua file.
struct Source<'t, 's> {
    tokens: &'t [Token<'s>],
}

impl<'s> Source<'_, 's> {
    fn name(&self, at: usize) -> Option<&'s str> {
        match self.tokens.get(at)?.kind {
            Kind::Name(name) => Some(name),
            _ => None,
        }
    }

    fn symbol(&self, at: usize, symbol: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.is_symbol(symbol))
    }

    fn is_field(&self, at: usize) -> bool {
        at > 0 && (self.symbol(at - 1, ".") || self.symbol(at - 1, ":"))
    }

    /// The local names that are the result of one agent alone.
    fn results(&self) -> BTreeMap<&'s str, String> {
        let mut found: BTreeMap<&'s str, String> = BTreeMap::new();
        let mut other: BTreeSet<&str> = BTreeSet::new();
        let mut declared_to = 0;
        for at in 0..self.tokens.len() {
            let Some(name) = self.name(at) else { continue };
            if name == "function" || name == "for" {
                // What it declares hides a name, or is another.
                let ends = |at: usize| self.symbol(at, ")") || self.name(at) == Some("do");
                declared_to = declared_to.max(at + 1);
                while declared_to < self.tokens.len() && !ends(declared_to) {
                    other.extend(self.name(declared_to));
                    declared_to += 1;
                }
                continue;
            }
            if self.is_field(at) || !(self.symbol(at + 1, "=") || self.symbol(at + 1, ",")) {
                continue;
            }
            let is_local = at > 0 && self.name(at - 1) == Some("local");
            let runs = self.symbol(at + 1, "=")
                && self.name(at + 2) == Some("ctx")
                && self.symbol(at + 3, ":")
                && self.name(at + 4) == Some("run")
                && self.symbol(at + 5, "(");
            let agent = self.tokens.get(at + 6).and_then(Token::text).filter(|_| is_local && runs);
            match agent {
                Some(agent) if !found.contains_key(name) => drop(found.insert(name, agent)),
                Some(_) => drop(other.insert(name)),
                // An argument is followed by a comma too.
                None if self.symbol(at + 1, "=") || is_local => drop(other.insert(name)),
                None => {}
            }
        }
        found.retain(|name, _| !other.contains(name));
        found
    }

    /// The comparison after an `if` or `elseif`: its name, its fields, its text, and what follows
    /// its `then`.
    fn compared(&self, at: usize) -> Option<(&'s str, Vec<&'s str>, String, usize)> {
        let name = self.name(at)?;
        let (mut at, mut fields) = (at + 1, Vec::new());
        while self.symbol(at, ".") {
            fields.push(self.name(at + 1)?);
            at += 2;
        }
        let text = self.tokens.get(at + 1)?.text().filter(|_| self.symbol(at, "=="))?;
        (self.name(at + 2) == Some("then") && !fields.is_empty()).then_some((
            name,
            fields,
            text,
            at + 3,
        ))
    }

    /// The chain that begins with the `if` at a token, if it has several parts and no `else`.
    fn chain(&self, at: usize) -> Option<Chain<'s>> {
        if self.name(at) != Some("if") || self.is_field(at) || self.is_expression(at) {
            return None;
        }
        let (name, fields, text, mut at) = self.compared(at + 1)?;
        let mut handled = vec![text];
        let mut depth = 0_usize;
        while at < self.tokens.len() {
            match self.name(at).filter(|_| !self.is_field(at)) {
                Some("if") if self.is_expression(at) => return None,
                Some("if" | "function" | "do" | "repeat") => depth += 1,
                Some("else") if depth == 0 => return None,
                Some("elseif") if depth == 0 => {
                    let (of, within, text, after) = self.compared(at + 1)?;
                    if of != name || within != fields {
                        return None;
                    }
                    handled.push(text);
                    at = after;
                    continue;
                }
                Some("end") if depth == 0 => {
                    return (handled.len() > 1).then_some(Chain { name, fields, handled });
                }
                Some("end" | "until") => depth = depth.checked_sub(1)?,
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// Returns true if an `if` is a part of an expression, which always has an `else`.
    fn is_expression(&self, at: usize) -> bool {
        let Some(before) = at.checked_sub(1) else { return false };
        match &self.tokens[before].kind {
            Kind::Symbol(symbol) => !matches!(*symbol, ")" | "}" | "]" | ";"),
            Kind::Name(name) => matches!(*name, "return" | "and" | "or" | "not"),
            Kind::Text { .. } | Kind::Number(_) => false,
            Kind::Interpolation { opens, .. } => *opens,
        }
    }
}
