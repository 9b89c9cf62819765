//! Which lines of a blueprint's files ran: Luau counts them, where it is told to. Of a flow that is a
//! table the nodes are counted, which all stand in lines that run when it is read.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use mlua::Function;

use crate::blueprint::{FlowNode, lines_without_statements};

/// The lines of one file that could run, each with how often it did.
pub type Lines = BTreeMap<u32, u64>;

/// What was counted of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Its lines; none if it is data.
    pub lines: Lines,
    /// The nodes of the flow in it, if that is a table, each with how often it ran.
    pub nodes: Vec<(FlowNode, u64)>,
}

impl Counts {
    /// Adds what was counted of the same file elsewhere.
    pub fn add(&mut self, other: Self) {
        for (line, hits) in other.lines {
            *self.lines.entry(line).or_default() += hits;
        }
        for (node, hits) in other.nodes {
            match self.nodes.iter_mut().find(|(known, _)| known.at == node.at) {
                Some((_, sum)) => *sum += hits,
                None => self.nodes.push((node, hits)),
            }
        }
    }
}

/// The counts of files by their paths, by the key of their source.
type Counted = BTreeMap<Arc<str>, BTreeMap<String, Counts>>;

/// Where VMs that are done leave what they counted. Clones are one.
#[derive(Clone, Default)]
pub struct Coverage(Arc<Mutex<Counted>>);

impl Coverage {
    /// Takes what was counted: by the key of a source, the counts of its files.
    pub fn take(&self) -> BTreeMap<Arc<str>, BTreeMap<String, Counts>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds what one VM counted of a file with this text.
    pub(super) fn add(&self, key: &str, path: &str, text: &str, chunk: &Function) {
        let mut counted = Lines::new();
        // Luau takes the second word of an instruction for a counter if its number is that of one
        // (the index of a constant, say), and shows a line that has no statement as never run.
        let without = lines_without_statements(text);
        chunk.coverage(|info| {
            for (line, hits) in (0..).zip(info.hits) {
                // A negative number is a line without code.
                if let Ok(hits) = u64::try_from(hits)
                    && !without.contains(&line)
                {
                    // A function that begins in a line of another has a count of its own for it.
                    let line = counted.entry(line).or_default();
                    *line = hits.max(*line);
                }
            }
        });
        self.put(key, path, Counts { lines: counted, nodes: Vec::new() });
    }

    /// Adds what one VM counted of a flow that is a table.
    pub(super) fn add_nodes(&self, key: &str, path: &str, nodes: Vec<(FlowNode, u64)>) {
        self.put(key, path, Counts { lines: Lines::new(), nodes });
    }

    fn put(&self, key: &str, path: &str, counts: Counts) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(key.into()).or_default().entry(path.to_owned()).or_default().add(counts);
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
