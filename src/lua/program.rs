//! A checked blueprint with its source, ready to run.

use std::sync::Arc;

use super::{Files, Host, Limits, LuaError, Source, evaluate};
use crate::blueprint::{Blueprint, Bundle, Finding, Operators, agent_md, check, check_files};

/// One version of a blueprint that can be run.
#[derive(Debug)]
pub struct Program {
    blueprint: Blueprint,
    source: Arc<Source>,
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
        let source = Source::new(bundle.hash(), bundle.clone(), HOST);
        let tree = match evaluate(&source, limits) {
            Ok(tree) => tree,
            Err(errors) => {
                let mut findings = check_files(&bundle);
                findings.extend(errors.iter().map(finding));
                findings.sort();
                return Err(findings);
            }
        };
        let checked = check(&tree, &bundle, operators);
        let Some(definition) = checked.definition else { return Err(checked.findings) };
        match Blueprint::compile(bundle.clone(), definition) {
            Ok(blueprint) => Ok((Self { blueprint, source: Arc::new(source) }, checked.findings)),
            Err(error) => Err(vec![Finding::script(bundle.entry(), 1, None, error.to_string())]),
        }
    }

    /// What it declares, compiled.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
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

/// What the author library needs of the blueprint room.
const HOST: Host = Host {
    agent_md: |text, path| {
        agent_md::parse(path, text)
            .map(|file| serde_json::Value::Object(file.fields))
            .map_err(|finding| finding.to_string())
    },
};

fn finding(error: &LuaError) -> Finding {
    let line = error.line.unwrap_or(1);
    if error.code == "MS-L0001" {
        Finding::syntax(&error.file, line, error.column, &error.message)
    } else {
        Finding::script(&error.file, line, error.column, &error.message)
    }
}
