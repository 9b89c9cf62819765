//! The directories that may be watched.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The directories that may be watched.
#[derive(Default)]
pub(crate) struct WatchBoard {
    pub(crate) directories: Mutex<Directories>,
    pub(crate) moved: Arc<Notify>,
}

#[derive(Default)]
pub(crate) struct Directories {
    /// The hash and directory of a blueprint that was read from a directory, by name.
    pub(crate) homes: HashMap<String, (String, PathBuf)>,
    /// The configured directories.
    pub(crate) roots: BTreeMap<String, PathBuf>,
    /// The problem of a watch, by its id.
    pub(crate) problems: HashMap<String, String>,
    /// True if this host scans files at all.
    pub(crate) watches: bool,
}
