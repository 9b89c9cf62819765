//! Answers of the API for which the engine has no type.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::BlueprintView;

/// A page of a list.
#[derive(Debug, Clone, Deserialize)]
pub struct List<T> {
    /// The items.
    pub items: Vec<T>,
    /// The cursor of the next page; absent at the end.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// The names, and what keeps files from having one.
#[derive(Debug, Clone, Deserialize)]
pub struct Blueprints {
    /// The names, each with the version that it stands for.
    pub items: Vec<BlueprintView>,
    /// Files of the watched directory that are not served.
    #[serde(default)]
    pub problems: Vec<FileProblem>,
}

/// A file of the watched directory that is not served.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FileProblem {
    /// The file, relative to that directory.
    pub file: String,
    /// The blueprint's name.
    pub name: String,
    /// The problem, in one line.
    pub message: String,
    /// The errors, in the order of their places.
    #[serde(default)]
    pub findings: Vec<Value>,
}

/// A code that signs in to the dashboard once.
#[derive(Debug, Clone, Deserialize)]
pub struct SignInCode {
    /// The code.
    pub code: String,
    /// The role of the sign-in.
    pub role: String,
    /// The host name for a link to a loopback address.
    pub host: String,
    /// The address of the daemon for others, if it speaks TLS: one that its certificate has.
    pub url: Option<String>,
    /// RFC 3339, UTC.
    pub expires_at: String,
}

/// A made token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MintedToken {
    /// The token itself, shown once.
    pub token: String,
    /// Its id.
    pub jti: String,
    /// RFC 3339, UTC.
    pub expires_at: String,
}

/// An operator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OperatorEntry {
    /// Its name.
    pub name: String,
    /// The kind of the operator.
    pub kind: String,
    /// Open sessions; absent for operators that have none.
    #[serde(default)]
    pub sessions: Option<usize>,
    /// The number of connected sessions.
    #[serde(default)]
    pub connected: usize,
    /// The strategy of a composite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The operators that a composite stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<String>>,
}

/// An opened session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OpenedSession {
    /// Its id.
    pub session: String,
    /// Its token, shown once.
    pub token: String,
    /// The path to connect to.
    pub ws: String,
    /// RFC 3339, UTC.
    pub expires_at: String,
}
