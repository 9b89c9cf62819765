//! The preparations of a child process before its start.

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use crate::environment::{Holds, Provisioned, Scrubber, Secret};

/// Variables; a later one overrides an earlier one.
pub(super) type Variables = Vec<(String, OsString)>;

/// The preparation of a child.
pub(super) struct Prepared {
    pub(super) bundle: PathBuf,
    pub(super) workdir: PathBuf,
    pub(super) variables: Variables,
    pub(super) known: Vec<(String, Secret)>,
    pub(super) scrubber: Arc<Scrubber>,
    pub(super) provisioned: Option<Provisioned>,
    pub(super) _holds: Option<Holds>,
}
