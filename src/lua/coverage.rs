//! Which lines of a blueprint's files ran: Luau counts them, where it is told to.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use mlua::Function;

/// The lines of one file that could run, each with how often it did.
pub type Lines = BTreeMap<u32, u64>;

/// The lines of files by their paths, by the key of their source.
type Counted = BTreeMap<Arc<str>, BTreeMap<String, Lines>>;

/// Where VMs that are done leave what they counted. Clones are one.
#[derive(Clone, Default)]
pub struct Coverage(Arc<Mutex<Counted>>);

impl Coverage {
    /// Takes what was counted: by the key of a source, the lines of its files.
    pub fn take(&self) -> BTreeMap<Arc<str>, BTreeMap<String, Lines>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds what one VM counted of a file.
    pub(super) fn add(&self, key: &str, path: &str, chunk: &Function) {
        let mut counted = Lines::new();
        chunk.coverage(|info| {
            for (line, hits) in (0..).zip(info.hits) {
                // A negative number is a line without code.
                if let Ok(hits) = u64::try_from(hits) {
                    // A function that begins in a line of another has a count of its own for it.
                    let line = counted.entry(line).or_default();
                    *line = hits.max(*line);
                }
            }
        });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = all.entry(key.into()).or_default().entry(path.to_owned()).or_default();
        for (line, hits) in counted {
            *lines.entry(line).or_default() += hits;
        }
    }
}

impl PartialEq for Coverage {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Coverage {}

impl fmt::Debug for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Coverage")
    }
}
