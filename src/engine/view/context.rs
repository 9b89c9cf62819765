//! The view of an agent's context.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::protocol::{ArtifactId, Json};

/// The earlier steps and files of the run that the agent's `context` names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContextView {
    /// The steps that completed before, in their order.
    pub steps: Vec<ContextStep>,
    /// The files of steps that completed before.
    pub artifacts: Vec<ContextArtifact>,
}

/// An earlier step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContextStep {
    /// Its number.
    pub step: u32,
    /// Its name: the agent, signal, blueprint or operation.
    pub name: String,
    /// The branch of the flow that it belongs to.
    pub scope: String,
    /// Its output.
    #[schema(value_type = serde_json::Value)]
    pub output: Json,
    /// The path of the output alone.
    pub href: String,
}

/// An earlier file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContextArtifact {
    /// Its id.
    #[schema(value_type = String)]
    pub id: ArtifactId,
    /// The step that made it.
    pub step: u32,
    /// Its name.
    pub name: String,
    /// Its BLAKE3 hash.
    pub hash: String,
    /// Its size in bytes.
    pub size: u64,
    /// The path of its bytes.
    pub href: String,
}
