//! A check in progress: what is looked at, what may be asked about the host, and the findings.

use std::{cell::OnceCell, collections::HashMap};

use serde_json::Value;

use crate::{
    blueprint::{
        bundle::Bundle,
        diagnostics::{Finding, Position},
        edition::Edition,
        locate::Outline,
        template::Templates,
    },
    flow::ValuePath,
    protocol::ToolMetadata,
};

/// The questions of the checker about operators.
pub trait Operators {
    /// The kind of a configured operator, such as `process` or `main_ai`; `None` if there is none
    /// of this name.
    fn kind(&self, name: &str) -> Option<&str>;

    /// Returns true if an agent of this operator must say what kind of worker it needs.
    fn requires_worker_binding(&self, name: &str) -> bool;

    /// Returns true if an agent of this operator must name a tool.
    fn requires_tool(&self, _name: &str) -> bool {
        false
    }

    /// Returns the parts of an agent's environment that this host cannot give, each with its reason
    /// and what
    /// would help.
    fn refuses_environment(&self, _environment: &Value) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Looks at a layer of middleware: `{kind, …}`.
    ///
    /// # Errors
    /// Returns the problem, as a sentence.
    fn check_layer(&self, _layer: &Value) -> Result<(), String> {
        Ok(())
    }

    /// The kinds that an operator comes down to: its own, or those of a composite's members.
    fn kinds(&self, name: &str) -> Vec<&str> {
        self.kind(name).into_iter().collect()
    }

    /// Returns true if it is a model, so that its agents are loops of calls of it and of tools.
    fn is_model(&self, _name: &str) -> bool {
        false
    }

    /// Returns true if its workers are programs outside the host, which may fall silent.
    fn is_leased(&self, _name: &str) -> bool {
        true
    }

    /// Returns the tool that an operator declares itself to be, if it does.
    fn tool(&self, _name: &str) -> Option<&ToolMetadata> {
        None
    }

    /// Returns the paths that quorums of this operator compare in the results of their members.
    fn compared(&self, _name: &str) -> Vec<ValuePath> {
        Vec::new()
    }

    /// The lines of moonswarm.toml that declare an operator of a kind, if there is such a kind.
    fn declaration(&self, _kind: &str) -> Option<&'static str> {
        None
    }

    /// All names, for hints.
    fn names(&self) -> Vec<String>;
}

/// A bundle that is being checked.
pub(super) struct Checker<'a> {
    pub bundle: &'a Bundle,
    pub edition: Edition,
    pub outline: Outline,
    pub operators: &'a dyn Operators,
    pub templates: Templates,
    /// The texts of agent files, each with its file and the place at which it begins.
    pub bodies: OnceCell<HashMap<String, (String, Position)>>,
    pub findings: Vec<Finding>,
}

impl Checker<'_> {
    pub(super) fn at_key(
        &self,
        pointer: &str,
        code: &'static str,
        message: impl Into<String>,
    ) -> Finding {
        Finding::error(self.bundle.entry(), self.outline.key(pointer), code, message)
    }

    pub(super) fn at_value(
        &self,
        pointer: &str,
        code: &'static str,
        message: impl Into<String>,
    ) -> Finding {
        Finding::error(self.bundle.entry(), self.outline.value(pointer), code, message)
    }
}
