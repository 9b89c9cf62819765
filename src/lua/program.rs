//! A checked blueprint with its source, ready to run.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Files, Host, Limits, LuaError, Source, evaluate};
use crate::blueprint::{
    Blueprint, Bundle, Finding, Operators, agent_md, check, check_files,
    expression::{self, Reading},
    flow_nodes, recommend,
};

/// One version of a blueprint that can be run.
#[derive(Debug)]
pub struct Program {
    blueprint: Blueprint,
    source: Arc<Source>,
    /// The line of each node, if the flow is a table.
    node_lines: OnceLock<HashMap<String, u32>>,
    begins_slowly: AtomicBool,
}

impl Program {
    /// Evaluates and checks a bundle; answers with the warnings too.
    ///
    /// # Errors
    /// Every finding, if one of them is an error.
    pub fn compile(
        bundle: Bundle,
        operators: &dyn Operators,
        limits: &Limits,
    ) -> Result<(Self, Vec<Finding>), Vec<Finding>> {
        let source =
            Source::new(bundle.hash(), bundle.clone(), HOST).counted(limits.coverage.clone());
        let tree = match evaluate(&source, limits) {
            Ok(tree) => tree,
            Err(errors) => {
                let mut findings = check_files(&bundle);
                findings.extend(errors.iter().map(|error| finding(error, &bundle)));
                findings.sort();
                return Err(findings);
            }
        };
        let checked = check(&tree, &bundle, operators);
        let Some(definition) = checked.definition else { return Err(checked.findings) };
        match Blueprint::compile(bundle.clone(), definition) {
            Ok(blueprint) => {
                let source = Arc::new(source);
                let (node_lines, begins_slowly) = (OnceLock::new(), AtomicBool::new(true));
                Ok((Self { blueprint, source, node_lines, begins_slowly }, checked.findings))
            }
            Err(error) => Err(vec![Finding::script(bundle.entry(), 1, None, error.to_string())]),
        }
    }

    /// Returns the compiled declarations.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Returns the recommendations to its author.
    pub fn notes(&self) -> Vec<Finding> {
        recommend(self.blueprint.bundle(), self.blueprint.definition())
    }

    /// Returns `file:line` of a node of a flow that is a table, by its JSON pointer.
    pub fn line_of(&self, node: &str) -> Option<String> {
        let lines = self.node_lines.get_or_init(|| {
            let (bundle, flow) = (self.blueprint.bundle(), &self.blueprint.definition().flow);
            let flow = flow.as_ref().map(|flow| flow.to_value()).unwrap_or_default();
            let nodes = flow_nodes(&flow, bundle.entry(), bundle.source());
            nodes.into_iter().map(|node| (node.at, node.line)).collect()
        });
        Some(format!("{}:{}", self.blueprint.bundle().entry(), lines.get(node)?))
    }

    /// Returns true if the first turn of a run may be long, as far as is known: that of the last run
    /// was, or there was none.
    pub(crate) fn begins_slowly(&self) -> bool {
        self.begins_slowly.load(Ordering::Relaxed)
    }

    /// Notes whether the first turn of a run was long.
    pub(crate) fn note_begin(&self, is_slow: bool) {
        // All threads read it, and it seldom changes.
        if self.begins_slowly() != is_slow {
            self.begins_slowly.store(is_slow, Ordering::Relaxed);
        }
    }

    /// Its source, as the sandbox takes it.
    pub fn source(&self) -> &Arc<Source> {
        &self.source
    }
}

impl Files for Bundle {
    fn text(&self, path: &str) -> Option<&str> {
        self.file(path).map(|text| &**text)
    }

    fn entry(&self) -> &str {
        Bundle::entry(self)
    }
}

/// The functions of the blueprint room for the author library.
pub(super) const HOST: Host = Host {
    agent_md: |text, path| {
        agent_md::parse(path, text)
            .map(|file| serde_json::Value::Object(file.fields))
            .map_err(|finding| finding.to_string())
    },
    names: |text, reading| {
        let names = expression::names(text, reading_of(reading)).map_err(|error| error.message)?;
        let roots = names.iter().map(|name| name.split('.').next().unwrap_or(name).to_owned());
        Ok(roots.collect::<std::collections::BTreeSet<_>>().into_iter().collect())
    },
    evaluate: |text, reading, slots| {
        let slots = serde_json::from_str(slots).map_err(|error| error.to_string())?;
        let value = expression::evaluate(text, reading_of(reading), &slots);
        value.map(|value| value.to_string()).map_err(|error| error.message)
    },
};

/// The readings, as lua/nodes.luau numbers them.
fn reading_of(number: u32) -> Reading {
    match number {
        2 => Reading::Expression,
        3 => Reading::Condition,
        _ => Reading::Slots,
    }
}

fn finding(error: &LuaError, bundle: &Bundle) -> Finding {
    let line = error.line.unwrap_or(1);
    if error.code == "MS-L0001" {
        let finding = Finding::syntax(&error.file, line, error.column, &error.message);
        let text = bundle.file(&error.file).map_or("", |text| text);
        let wrong = text.lines().nth(line.saturating_sub(1) as usize).unwrap_or_default();
        match foreign(wrong, error.column.unwrap_or(1)) {
            Some(hint) => finding.hint(hint),
            None => finding,
        }
    } else {
        Finding::script(&error.file, line, error.column, &error.message)
    }
}

/// Returns a hint about syntax of another Lua, or of another language, next to a column.
fn foreign(line: &str, column: u32) -> Option<&'static str> {
    const GOTO: &str =
        "this is Luau, which has no `goto`: leave a round with `continue`, a loop with `break`";
    const ATTRIBUTE: &str = "this is Luau, whose locals have no attributes: write `local name = …`";
    const BITS: &str =
        "this is Luau, which has no operators for bits: `bit32.band(a, b)`, `bit32.lshift(a, n)`";
    let hints = [
        ("goto ", GOTO),
        ("<const>", ATTRIBUTE),
        ("<close>", ATTRIBUTE),
        ("!=", "`~=` is not equal"),
        ("&&", "write `and`, `or`, `not`"),
        ("||", "write `and`, `or`, `not`"),
        ("++", "write `count += 1`"),
        (" & ", BITS),
        (" | ", BITS),
        (" ~ ", BITS),
        ("<<", BITS),
        (">>", BITS),
    ];
    let code = line.split("--").next().unwrap_or(line);
    let column = column.saturating_sub(1) as usize;
    let at = |text: &'static str| code.match_indices(text).map(|(at, _)| at.abs_diff(column)).min();
    let found = hints.iter().filter_map(|(text, hint)| Some((at(text)?, *hint)));
    found.min_by_key(|(distance, _)| *distance).map(|(_, hint)| hint)
}
