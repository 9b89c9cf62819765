//! The lines of a document.

use std::sync::Arc;

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

use crate::{
    blueprint::Bundle,
    journal::Entry,
    protocol::{Json, MemoryLink, OperatorId, RunId, Scope, StoreOptions, WorkflowId},
    store::{ArtifactRow, StateRow},
};

/// The last millisecond of the year 9999, the latest time that the API can represent.
pub(crate) const LAST_MS: u64 = 253_402_300_799_999;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DocumentLine {
    /// The header; the first line.
    Run(Head),
    /// The blueprint of the run.
    Blueprint(Source),
    /// An entry of its histories, oldest first.
    Entry(Box<Entry>),
    /// A value of its state, or of the state of an operator within it.
    State(Value),
    /// A link between two keys of such a state; not in version 1.
    Link(LinkLine),
    /// A file, with its bytes.
    Artifact(File),
    /// A result that was refused.
    Evidence(EvidenceLine),
    /// The seal; the last line.
    End(Seal),
}

/// The header of a document.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Head {
    /// [`FORMAT`].
    pub(crate) format: String,
    /// [`VERSION`].
    pub(crate) version: u32,
    /// The run's id.
    pub(crate) run: String,
    /// RFC 3339, UTC.
    pub(crate) exported_at: String,
    /// The release that wrote it.
    pub(crate) program: String,
}

/// A blueprint version.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Source {
    /// The name that it gives itself.
    pub(crate) name: String,
    /// The bundle's hash, in hex.
    pub(crate) hash: String,
    /// Its files.
    pub(crate) bundle: Bundle,
}

/// A value of state.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Value {
    /// The operator within the run whose state has it; absent for the run's own state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) operator: Option<String>,
    /// The key.
    pub(crate) key: String,
    /// The value.
    pub(crate) value: Json,
    /// The time at which it expires, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_ms: Option<u64>,
    /// The hints of its write.
    #[serde(default, skip_serializing_if = "is_plain")]
    pub(crate) hints: StoreOptions,
}

pub(crate) fn is_plain(hints: &StoreOptions) -> bool {
    *hints == StoreOptions::default()
}

impl From<StateRow> for Value {
    fn from(row: StateRow) -> Self {
        let StateRow { scope, key, value, expires_ms, hints, .. } = row;
        let expires_ms = expires_ms.map(|ms| ms.min(LAST_MS));
        let (operator, value) = (operator_of(&scope), Json::from_trusted(value));
        Self { operator, key, value, expires_ms, hints }
    }
}

/// A link of state.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LinkLine {
    /// The operator within the run whose state has it; absent for the run's own state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) operator: Option<String>,
    /// The source key.
    pub(crate) from_key: String,
    /// The target key.
    pub(crate) to_key: String,
    /// The relation.
    pub(crate) relation: String,
    /// Additional data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<serde_json::Value>,
}

impl LinkLine {
    /// Returns the line of a link of a scope.
    pub(crate) fn new(scope: &str, link: MemoryLink) -> Self {
        let MemoryLink { from_key, to_key, relation, metadata } = link;
        Self { operator: operator_of(scope), from_key, to_key, relation, metadata }
    }

    /// Returns the scope of the link in the run `run`, and the link.
    pub(crate) fn open(self, run: RunId) -> (String, MemoryLink) {
        let Self { operator, from_key, to_key, relation, metadata } = self;
        (scope_of(run, operator), MemoryLink { from_key, to_key, relation, metadata })
    }
}

/// Returns the operator within a run whose scope it is.
fn operator_of(scope: &str) -> Option<String> {
    match scope.parse() {
        Ok(Scope::Operator { operator, .. }) => Some(operator.0),
        _ => None,
    }
}

/// Returns the scope of a run, or of an operator within it.
pub(crate) fn scope_of(run: RunId, operator: Option<String>) -> String {
    let workflow = WorkflowId::new(run.to_string());
    let scope = match operator.map(OperatorId) {
        None => Scope::Workflow(workflow),
        Some(operator) => Scope::Operator { workflow, operator },
    };
    scope.to_string()
}

/// A file of the run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// Its number within the run.
    pub(crate) n: u32,
    /// Its name.
    pub(crate) name: String,
    /// BLAKE3 of its bytes, in hex.
    pub(crate) hash: String,
    /// The creation time, in Unix milliseconds.
    pub(crate) created_ms: u64,
    /// The step that created it.
    pub(crate) step: u32,
    /// The attempt that created it.
    pub(crate) attempt: u32,
    /// True if that attempt was accepted.
    pub(crate) published: bool,
    /// Its bytes, in base64.
    pub(crate) data: String,
}

/// A refused result.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EvidenceLine {
    /// The step.
    pub(crate) step: u32,
    /// The attempt.
    pub(crate) attempt: u32,
    /// The time, in Unix milliseconds.
    pub(crate) at_ms: u64,
    /// The code of the refusal.
    pub(crate) code: String,
    /// The result.
    pub(crate) body: String,
}

/// The seal, which shows that a document is complete.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Seal {
    /// The number of lines before this one.
    pub(crate) lines: u64,
    /// BLAKE3 of the bytes of those lines, in hex.
    pub(crate) hash: String,
}

impl File {
    /// Returns a file with its bytes.
    pub(crate) fn new(row: &ArtifactRow, data: &[u8]) -> Self {
        Self {
            n: row.n,
            name: row.name.clone(),
            hash: row.hash.clone(),
            created_ms: row.created_ms,
            step: row.step,
            attempt: row.attempt,
            published: row.published,
            data: BASE64.encode(data),
        }
    }

    /// Returns the row and the bytes, for the run `run`.
    ///
    /// # Errors
    /// Fails when the bytes do not match the hash.
    pub(crate) fn open(self, run: u64) -> Result<(ArtifactRow, Arc<[u8]>), String> {
        let data = BASE64
            .decode(self.data.as_bytes())
            .map_err(|error| format!("the bytes of file {:?}: {error}", self.name))?;
        if blake3::hash(&data).to_hex().as_str() != self.hash {
            return Err(format!("the bytes of file {:?} are not the ones of its hash", self.name));
        }
        let row = ArtifactRow {
            run,
            n: self.n,
            name: self.name,
            hash: self.hash,
            size: data.len() as u64,
            created_ms: self.created_ms,
            step: self.step,
            attempt: self.attempt,
            published: self.published,
        };
        Ok((row, data.into()))
    }
}
