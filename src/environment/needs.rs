//! What has to be done for a spec, as far as a machine can give it.

use std::time::Duration;

use super::declaration::Paths;
use crate::protocol::CredentialRef;

/// What is done for a spec. Everything in it can be given.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Needs {
    /// Whether a boundary is drawn at all.
    pub(super) confined: bool,
    pub(super) paths: Paths,
    /// Whether the network is closed.
    pub(super) closed: bool,
    /// Thousandths of a core.
    pub(super) cpu: Option<u64>,
    pub(super) memory: Option<u64>,
    pub(super) disk: Option<u64>,
    pub(super) pids: Option<u32>,
    pub(super) wall: Option<Duration>,
    pub(super) credentials: Vec<CredentialRef>,
}
