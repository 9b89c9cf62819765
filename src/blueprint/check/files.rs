//! The files of a bundle by themselves: references that lead nowhere, agent files, templates.

use std::collections::BTreeSet;

use super::prompts::{TemplatePlace, bad_template};
use crate::blueprint::{
    agent_md,
    bundle::Bundle,
    diagnostics::{Finding, Position, code},
    locate::{Outline, Target},
    template::{self, Templates},
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
    for (path, text) in bundle.files() {
        if !is_lua(path) {
            for (offset, name) in template::includes(text) {
                if bundle.resolve_file(&name).is_none() {
                    findings.push(missing(path, Position::of_offset(text, offset), &name));
                }
            }
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

fn missing(file: &str, at: Position, name: &str) -> Finding {
    let finding = Finding::error(
        file,
        at,
        code::MISSING_FILE,
        format!("there is no file {name:?} in the bundle"),
    );
    if name.split('/').any(|part| part == "..") || name.starts_with('/') {
        finding.hint("a bundle is what lies beside and below the blueprint; move the file there")
    } else {
        finding.hint("paths are relative: of modules to the file, of other files to the blueprint")
    }
}
