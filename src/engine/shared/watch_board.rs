//! Which directories may be watched.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use tokio::sync::Notify;

/// Which directories may be watched.
#[derive(Default)]
pub(crate) struct WatchBoard {
    pub(crate) directories: Mutex<Directories>,
    pub(crate) moved: Arc<Notify>,
}

#[derive(Default)]
pub(crate) struct Directories {
    /// Where a version of a blueprint was read from, by its name.
    pub(crate) homes: HashMap<String, (String, PathBuf)>,
    /// The configured ones.
    pub(crate) roots: BTreeMap<String, PathBuf>,
    /// What the host found wrong with a watch, by its id.
    pub(crate) problems: HashMap<String, String>,
    /// Whether this host looks at files at all.
    pub(crate) watches: bool,
}
