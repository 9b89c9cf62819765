//! `check`: from what the chunk returned to a definition, with everything that is wrong on the way.
//!
//! Every finding is reported, not only the first, at the place in the source where the entry is
//! written. The CLI, the API and the loader of blueprints call it with the tree that `lua/`
//! evaluated; before that, [`check_files`] says what can be said without evaluating anything.

use std::{cell::OnceCell, collections::BTreeMap};

use serde_json::Value;

use super::{
    allowances,
    bundle::Bundle,
    definition::{Agent, Definition},
    diagnostics::{Finding, code, hint_for},
    edition::Edition,
    library,
    locate::{Outline, pointer},
    template::Templates,
};

mod agent;
mod around;
mod calls;
mod checker;
mod face;
mod files;
mod habits;
mod handled;
mod nodes;
mod prompts;
mod tools;
mod value;

pub use checker::Operators;
pub use files::check_files;
pub(crate) use tools::text_arguments;

use checker::Checker;
use value::{Table, is_function};

/// The result of a check.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// The definition; there is none if any finding is an error.
    pub definition: Option<Definition>,
    /// Everything that was found, in the order of the places.
    pub findings: Vec<Finding>,
}

/// Layers of middleware that a blueprint may name.
const LAYERS: usize = 100;

/// Findings that are reported at most: more than anyone reads.
const MAX_FINDINGS: usize = 1_000;

const LATER_KEYS: [&str; 2] = ["budget", "environment"];

/// Checks the tree of values that a bundle's chunk returned.
pub fn check(tree: &Value, bundle: &Bundle, operators: &dyn Operators) -> Checked {
    let mut found = check_files(bundle);
    files::leave_out_literal(&mut found, tree, bundle);
    let mut checker = Checker {
        bundle,
        edition: Edition::of(bundle.entry(), bundle.source()),
        outline: outline_of(bundle),
        operators,
        templates: Templates::new(bundle),
        bodies: OnceCell::new(),
        findings: found,
    };
    let definition = checker.blueprint(tree);
    let mut findings = checker.findings;
    findings.sort();
    findings.dedup();
    let definition = definition.filter(|_| !findings.iter().any(Finding::is_error));
    allowances::apply(&mut findings, bundle);
    bound(&mut findings);
    Checked { definition, findings }
}

/// Leaves out what is too much, errors last: without one, the blueprint would seem to be good.
fn bound(findings: &mut Vec<Finding>) {
    if findings.len() > MAX_FINDINGS {
        findings.sort_by_key(|finding| finding.severity);
        findings.truncate(MAX_FINDINGS);
        findings.sort();
        findings.last_mut().into_iter().for_each(Finding::and_more);
    }
}

/// Returns the outline of the entry of a bundle.
fn outline_of(bundle: &Bundle) -> Outline {
    match bundle.entry().ends_with(".json") {
        true => Outline::of_json(bundle.source()),
        false => Outline::of(bundle.source()),
    }
}

impl Checker<'_> {
    fn blueprint(&mut self, tree: &Value) -> Option<Definition> {
        let Some(table) = Table::new(tree, "", "the blueprint") else {
            let finding = Finding::error(
                self.bundle.entry(),
                self.outline.start(),
                code::NOT_A_BLUEPRINT,
                format!("the file returns {} and not a blueprint", value::describe(tree)),
            );
            self.findings.push(finding.hint("end it with `return swarm.blueprint { … }`"));
            return None;
        };
        self.known_keys(&table, &library::keys("Blueprint"), &LATER_KEYS);
        self.edition(&table);
        let name = self.required_text(&table, "name");
        if let Some(name) = &name {
            self.name(name, &table.pointer("name"));
        }
        let flow = self.flow(&table);
        let input = self.schema(&table, "input", true);
        let agents = self.agents(&table, input.as_ref());
        self.tools_together(&agents);
        self.auditors(&agents);
        if let Some(flow) = flow {
            self.nodes(flow, input.as_ref(), &agents);
        }
        self.habits();
        self.handled(&agents);
        self.calls();
        // A model can be asked for its answer without a flow.
        let asked = |agent: &Agent| self.operators.is_model(&agent.operator);
        let flowing = agents.iter().filter(|(_, agent)| !asked(agent));
        let mut names: Vec<&str> = flowing.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        self.unused_agents(&names, flow, tree);
        let on = self.triggers(&table, input.as_ref());
        let named = name.clone().unwrap_or_default();
        let definition = Definition {
            name: named.clone(),
            edition: self.edition,
            tool: self.face(&table, &named),
            description: self.text(&table, "description"),
            input: input.map(Into::into),
            output: self.schema(&table, "output", false).map(Into::into),
            agents,
            flow: flow.map(Into::into),
            on,
            middleware: self.middleware(&table),
            ..self.limits(&table)
        };
        Some(definition)
    }

    /// The edition, which was read from the source before it was evaluated.
    fn edition(&mut self, table: &Table<'_>) {
        let Some(value) = table.get("edition") else { return };
        let known = value.as_u64().and_then(|it| u32::try_from(it).ok()).map(Edition::of_number);
        let (message, hint) = match known {
            Some(Some(edition)) if edition == self.edition => return,
            Some(Some(edition)) => (
                format!("`edition` is {} only once the file is evaluated", edition.number()),
                "write the number itself, in the table that `swarm.blueprint` is called with, in the main file",
            ),
            _ => (
                format!("{} is no edition of this release", shown(value)),
                "write `edition = 2`, the latest",
            ),
        };
        let finding = self.at_value(&table.pointer("edition"), code::BAD_EDITION, message);
        self.findings.push(finding.hint(hint));
    }

    /// The flow, if it is a table of nodes.
    fn flow<'t>(&mut self, table: &Table<'t>) -> Option<&'t Value> {
        match table.get("flow") {
            None => self.missing(table, "flow", "flow = function(ctx, input) … end"),
            Some(value) if is_function(value) => {}
            Some(value @ Value::Object(_)) => return Some(value),
            Some(value) => self.wrong_type(table, "flow", "a function or a node", value),
        }
        None
    }

    /// The layers of middleware that are data.
    fn middleware(&mut self, table: &Table<'_>) -> Vec<Value> {
        let layers = match table.get("middleware") {
            None => return Vec::new(),
            Some(Value::Array(layers)) => layers,
            Some(Value::Object(map)) if map.is_empty() => return Vec::new(),
            Some(other) => {
                self.wrong_type(table, "middleware", "a list of layers", other);
                return Vec::new();
            }
        };
        if layers.len() > LAYERS {
            let message = format!("a blueprint has at most {LAYERS} layers of middleware");
            let finding = self.at_key(&table.pointer("middleware"), code::OUT_OF_RANGE, message);
            self.findings.push(finding);
        }
        for (index, layer) in layers.iter().enumerate() {
            let at = pointer(&table.pointer("middleware"), &index.to_string());
            // A function is around the task in the flow itself.
            if is_function(layer) {
                continue;
            }
            if let Err(message) = self.operators.check_layer(layer) {
                let message = format!("layer {} of `middleware`: {message}", index + 1);
                let finding = self.at_value(&at, code::BAD_LAYER, message);
                self.findings.push(finding);
            }
        }
        layers.iter().filter(|layer| !is_function(layer)).cloned().collect()
    }

    fn limits(&mut self, table: &Table<'_>) -> Definition {
        let mut limits = Definition::default();
        if let Some(table) = self.table(table, "limits", "`limits`") {
            self.known_keys(&table, &library::keys("Limits"), &[]);
            limits.max_steps = self.integer(&table, "steps", 1..=1_000_000);
            limits.max_depth = self.integer(&table, "depth", 0..=64);
            limits.wall_ms = self.duration(&table, "wall");
            limits.max_width = self.integer(&table, "width", 1..=20_000);
            limits.max_open_tasks = self.integer(&table, "open_tasks", 1..=20_000);
            limits.budget = self.amounts(&table);
        }
        limits
    }

    fn agents(&mut self, table: &Table<'_>, run_input: Option<&Value>) -> BTreeMap<String, Agent> {
        let operator = self.text(table, "operator");
        if let Some(name) = operator.as_deref().filter(|it| self.operators.kind(it).is_none()) {
            self.unknown_operator(&table.pointer("operator"), name, "the blueprint");
        }
        let Some(table) = self.table(table, "agents", "`agents`") else {
            if table.get("agents").is_none() {
                self.uses(&[]);
            }
            return BTreeMap::new();
        };
        let mut names: Vec<&str> = table.entries().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        self.uses(&names);
        let mut agents = BTreeMap::new();
        for (name, _) in table.entries() {
            self.name(name, &table.pointer(name));
            if let Some(agent) = self.table(&table, name, &format!("agent `{name}`")) {
                agents.insert(name.clone(), self.agent(&agent, run_input, operator.as_deref()));
            }
        }
        agents
    }

    /// Agents that some Lua file runs by a literal name must be among the declared ones, which are
    /// sorted.
    fn uses(&mut self, declared: &[&str]) {
        let most = self.findings.len() + MAX_FINDINGS;
        for (path, text) in self.bundle.files().iter().filter(|(path, _)| files::is_lua(path)) {
            for used in Outline::of(text).uses {
                if declared.binary_search(&used.agent.as_str()).is_ok() {
                    continue;
                }
                let message =
                    format!("the flow runs the agent `{}`, which is not declared", used.agent);
                let mut finding = Finding::error(path, used.at, code::UNKNOWN_AGENT, message);
                finding.hint = hint_for(&used.agent, declared).or_else(|| {
                    Some(format!("declare it: agents = {{ {} = {{ operator = … }} }}", used.agent))
                });
                self.findings.push(finding);
                if self.findings.len() >= most {
                    return;
                }
            }
        }
    }

    /// Names are parts of paths, references (`name@hash`) and environment variables.
    fn name(&mut self, name: &str, pointer: &str) {
        if !is_name(name) {
            let shown: String = name.chars().take(64).collect();
            let finding = self
                .at_key(pointer, code::BAD_NAME, format!("{shown:?} is not a name"))
                .hint("a name has at most 64 letters, digits, `-`, `_` and `.`, and begins with a letter or digit");
            self.findings.push(finding);
        }
    }
}

/// A value as a message has it.
fn shown(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}

/// Returns the recommendations for a blueprint that can run as it is.
pub fn recommend(bundle: &Bundle, definition: &Definition) -> Vec<Finding> {
    let mut notes = Vec::new();
    let outline = outline_of(bundle);
    if definition.edition < Edition::LATEST {
        let message =
            format!("the blueprint is written in edition {}", definition.edition.number());
        let latest = Edition::LATEST.number();
        let finding = Finding::error(bundle.entry(), outline.start(), code::OLD_EDITION, message);
        notes.push(finding.note().hint(format!(
            "add `edition = {latest}`, and read what it changes: docs/blueprints.md, \"Editions\""
        )));
    }
    notes.extend(calls::without_result(bundle, &outline));
    for (name, agent) in definition.agents.iter().filter(|(_, agent)| agent.literal) {
        let Some(system) = &agent.system else { continue };
        let marks = system.matches("{{").count() + system.matches("{%").count();
        if marks > 0 {
            let message = format!(
                "the `system` of agent `{name}` is literal text: {marks} `{{{{` or `{{%` in it stay as they are"
            );
            let at = outline.value(&pointer(&pointer("", "agents"), name));
            let finding = Finding::error(bundle.entry(), at, code::LITERAL_BODY, message);
            notes.push(finding.note().hint("`template = true` makes it a template"));
        }
    }
    allowances::apply(&mut notes, bundle);
    notes
}

/// Returns true if a blueprint or an agent may have this name.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(plain)
}

#[cfg(test)]
mod tests;
