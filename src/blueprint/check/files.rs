//! The files of a bundle by themselves: references that lead nowhere, agent files, templates.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::prompts::{TemplatePlace, bad_template, missing, missing_includes};
use crate::blueprint::{
    agent_md,
    bundle::{self, Bundle},
    diagnostics::{Finding, Position, code},
    locate::{Outline, Target, json_strings},
    template::{Templates, includes},
    tokens::tokens,
};

pub(super) fn is_lua(path: &str) -> bool {
    path.ends_with(".lua") || path.ends_with(".luau")
}

/// Everything that is wrong with a bundle and can be seen without evaluating it, in the order of
/// the places. `check` reports the same again; this is for a source that does not evaluate.
pub fn check_files(bundle: &Bundle) -> Vec<Finding> {
    let templates = Templates::new(bundle);
    let mut findings = Vec::new();
    let mut agent_files = BTreeSet::new();
    let mut template_files = BTreeSet::new();
    let mut programs = BTreeSet::new();
    for (path, text) in bundle.files() {
        if is_lua(path) || path == bundle.entry() {
            let names = bundle::programs(path, text);
            programs.extend(names.iter().filter_map(|name| bundle.resolve_file(name)));
        }
        if !is_lua(path) {
            continue;
        }
        for reference in Outline::of(text).references {
            let found = match reference.target {
                Target::Module => bundle.resolve_module(path, &reference.name),
                _ => bundle.resolve_file(&reference.name),
            };
            match (found, reference.target) {
                (None, Target::Module | Target::AgentFile | Target::Template) => {
                    findings.push(missing(path, reference.at, &reference.name));
                }
                // These had no finding before, and stored versions stay good.
                (None, Target::EscapedTemplate) => {
                    findings.push(missing(path, reference.at, &reference.name).warning());
                }
                (Some(found), Target::AgentFile) => {
                    agent_files.insert(found);
                }
                (Some(found), Target::Template) => {
                    template_files.insert(found);
                }
                (Some(_), Target::Module | Target::EscapedTemplate)
                | (_, Target::OptionalTemplate) => {}
            }
        }
    }
    // A program is no template; the text of an agent file is looked at where an agent has it.
    let is_other = |path: &str| agent_files.contains(path) || programs.contains(path);
    for (path, text) in bundle.files().iter().filter(|(path, _)| !is_lua(path)) {
        if is_other(path.as_str()) && !template_files.contains(path.as_str()) {
            continue;
        }
        if path == bundle.entry() && path.ends_with(".json") {
            // Its strings may be templates, as those of a Lua file, and with the same severity.
            let plain: BTreeSet<String> = includes(text).into_iter().map(|it| it.name).collect();
            for (at, string) in json_strings(text) {
                for include in includes(&string).iter().filter(|it| !it.may_miss) {
                    if bundle.resolve_file(&include.name).is_none() {
                        let found = missing(path, at, &include.name);
                        let is_plain = plain.contains(&include.name);
                        findings.push(if is_plain { found } else { found.warning() });
                    }
                }
            }
            continue;
        }
        missing_includes(bundle, path, text, |at| Position::of_offset(text, at), &mut findings);
    }
    for path in agent_files {
        if let Some(text) = bundle.file(path) {
            findings.extend(agent_md::read(path, text).1);
        }
    }
    for path in template_files {
        if let Some(text) = bundle.file(path)
            && let Err(error) = templates.undeclared(text)
        {
            let place =
                TemplatePlace { file: path.to_owned(), start: Position::START, exact: true };
            findings.push(bad_template(&place, text, "the template", &error));
        }
    }
    findings.sort();
    findings.dedup();
    findings
}

/// Removes what is said of includes in texts that are no templates: the literal `system` of agents.
pub(super) fn leave_out_literal(findings: &mut Vec<Finding>, tree: &Value, bundle: &Bundle) {
    let agents = tree.get("agents").and_then(Value::as_object).into_iter().flat_map(Map::values);
    let literal = agents.filter(|agent| agent.get("template") == Some(&Value::Bool(false)));
    let texts: BTreeSet<&str> = literal
        .filter_map(|agent| agent.get("system")?.as_str())
        .filter(|text| text.contains("{%"))
        .collect();
    if texts.is_empty() {
        return;
    }
    let mut places = BTreeSet::new();
    for (path, text) in bundle.files() {
        let strings: Vec<(Position, String)> = match is_lua(path) {
            true => tokens(text).iter().filter_map(|it| Some((it.at, it.text()?))).collect(),
            false if path == bundle.entry() => json_strings(text),
            false => continue,
        };
        let literal = strings.iter().filter(|(_, string)| texts.contains(string.as_str()));
        places.extend(literal.map(|(at, _)| (path.as_str(), at.line, at.column)));
    }
    findings.retain(|it| {
        it.code != code::MISSING_FILE || !places.contains(&(it.file.as_str(), it.line, it.column))
    });
}
