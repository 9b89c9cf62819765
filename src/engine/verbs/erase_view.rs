//! A request to erase, and its answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{protocol::RunId, store::TracesInCopy};

/// The target of an erasure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Erased {
    /// Everything of a subject: the runs that it started, its tokens, sessions, answers.
    Subject(String),
    /// Runs, and those that they called, their forks and repetitions.
    Runs(Vec<RunId>),
    /// Everything that contains this text.
    Match(String),
}

/// A request to erase.
#[derive(Debug, Clone)]
pub struct Erase {
    /// The target.
    pub what: Erased,
    /// The digest of the dry run; absent for a dry run.
    pub digest: Option<String>,
}

/// The result of an erasure: the rows that it found or removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EraseView {
    /// True if nothing was changed.
    pub dry_run: bool,
    /// The digest of what was found. The act repeats it.
    pub digest: String,
    /// The runs, at most 2,000.
    pub runs: Vec<ErasedRun>,
    /// The number of entries of the runs.
    pub entries: u64,
    /// The number of files of the runs.
    pub files: u64,
    /// About how many bytes the runs take.
    pub bytes: u64,
    /// The numbers of rows outside of the runs: `state`, `links`, `kept`, `answers`, `sessions`,
    /// `tokens`, `sums`, `blueprints` (sources that came with runs), and `directories` without a run.
    pub rows: BTreeMap<String, u64>,
    /// Places that also hold the subject, the text or the runs, and that stay.
    pub stays: Vec<Stays>,
    /// Other runs that name the subject, such as those in which it answered a task; at most 100.
    #[schema(value_type = Vec<String>)]
    pub named_in: Vec<RunId>,
    /// Other databases in the data directory, and what each of them holds.
    pub copies: Vec<CopyView>,
    /// True if there is more: repeat the request.
    pub more: bool,
    /// True if an act was interrupted, and is completed by the next one.
    pub unfinished: bool,
    /// True if the database was written anew, so that its free space and its log have nothing of it.
    #[serde(default)]
    pub rewritten: bool,
}

/// A run that goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErasedRun {
    /// The run.
    #[schema(value_type = String)]
    pub run: RunId,
    /// `eligible` in a dry run, `not_ended` and `in_use` for a run that prevents the act, `done`,
    /// `files_left` for a run that is gone without its whole directory.
    pub result: String,
    /// `called`, `fork` or `rerun` for a run that goes because it has the data of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descent: Option<String>,
    /// That other run, if it is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub of: Option<RunId>,
}

/// A place whose rows stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stays {
    /// `audit`, `blueprints`, `host`, `nodes` or `work`.
    pub place: String,
    /// The number of rows; of directories and files in `work`, of machines in `nodes`.
    pub rows: u64,
    /// The reason, and what can be done.
    pub reason: String,
}

/// A copy of the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CopyView {
    /// The name of the file in the data directory.
    pub file: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of the erased runs that it has.
    pub runs: u64,
    /// The number of its rows with the subject or the text.
    pub rows: u64,
    /// The reason why it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl From<TracesInCopy> for CopyView {
    fn from(it: TracesInCopy) -> Self {
        let TracesInCopy { file, bytes, runs, rows, problem } = it;
        Self { file, bytes, runs, rows, problem }
    }
}
