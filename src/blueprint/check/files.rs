//! The files of a bundle by themselves: references that lead nowhere, agent files, templates.

use std::collections::BTreeSet;

use super::prompts::{TemplatePlace, bad_template, missing, missing_includes};
use crate::blueprint::{
    agent_md,
    bundle::{self, Bundle},
    diagnostics::{Finding, Position},
    locate::{Outline, Target},
    template::Templates,
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
            programs.extend(bundle::programs(text).filter_map(|name| bundle.resolve_file(&name)));
        }
        if !is_lua(path) {
            continue;
        }
        for reference in Outline::of(text).references {
            let found = match reference.target {
                Target::Module => bundle.resolve_module(path, &reference.name),
                Target::AgentFile | Target::Template => bundle.resolve_file(&reference.name),
            };
            match (found, reference.target) {
                (None, Target::Module | Target::AgentFile | Target::Template) => {
                    findings.push(missing(path, reference.at, &reference.name));
                }
                (Some(found), Target::AgentFile) => {
                    agent_files.insert(found);
                }
                (Some(found), Target::Template) => {
                    template_files.insert(found);
                }
                (Some(_), Target::Module) => {}
            }
        }
    }
    // A program is no template; the text of an agent file is looked at where an agent has it.
    let is_other = |path: &str| agent_files.contains(path) || programs.contains(path);
    for (path, text) in bundle.files().iter().filter(|(path, _)| !is_lua(path)) {
        if is_other(path.as_str()) && !template_files.contains(path.as_str()) {
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
