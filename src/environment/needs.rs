//! The needs of a spec, limited to what a machine can provide.

use std::time::Duration;

use super::declaration::Paths;
use crate::protocol::CredentialRef;

/// The needs of a spec. All of them can be provided.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Needs {
    /// True if there is a boundary at all.
    pub(super) confined: bool,
    pub(super) paths: Paths,
    /// True if the network is closed.
    pub(super) closed: bool,
    /// Thousandths of a core.
    pub(super) cpu: Option<u64>,
    pub(super) memory: Option<u64>,
    pub(super) disk: Option<u64>,
    pub(super) pids: Option<u32>,
    pub(super) wall: Option<Duration>,
    pub(super) credentials: Vec<CredentialRef>,
}
