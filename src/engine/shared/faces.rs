//! The fields of a blueprint version that a list shows. They are small, so that many more of them are kept than
//! compiled programs: a list of a thousand blueprints compiles none.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    blueprint::{ToolFace, Trigger},
    lua::Program,
    protocol::Json,
};

/// The facts of a version that a list shows.
#[derive(Debug)]
pub(crate) struct Face {
    /// The name.
    pub name: String,
    /// The bundle's hash.
    pub hash: String,
    /// One line for a person.
    pub description: Option<String>,
    /// The blueprint as a tool.
    pub tool: Option<ToolFace>,
    /// The JSON Schema of its input.
    pub input: Option<Json>,
    /// The operators of its agents, by agent.
    pub agents: BTreeMap<String, String>,
    /// The triggers that start a run.
    pub on: Vec<Trigger>,
}

impl Face {
    /// Returns the facts of a program.
    pub(crate) fn of(program: &Program) -> Arc<Self> {
        let blueprint = program.blueprint();
        let definition = blueprint.definition();
        let agents = definition.agents.iter().map(|(name, it)| (name.clone(), it.operator.clone()));
        Arc::new(Self {
            name: blueprint.name().to_owned(),
            hash: blueprint.hash().to_owned(),
            description: definition.description.clone(),
            tool: definition.tool.clone(),
            input: definition.input.clone(),
            agents: agents.collect(),
            on: definition.on.clone(),
        })
    }
}
