//! Which lines of the blueprints ran in tests, and which nodes of flows that are tables: for a
//! person, and as lcov.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt::Write as _,
    path::{Component, Path, PathBuf},
};

use crate::{
    blueprint::FlowNode,
    lua::{self, Counts},
};

/// Ranges of lines that are named one by one.
const MOST_RANGES: usize = 12;

/// Gathers what the stages of tests count.
#[derive(Debug, Default)]
pub struct Recorder {
    counted: lua::Coverage,
    places: RefCell<BTreeMap<String, PathBuf>>,
}

/// One file, and what of it ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Covered {
    /// The file.
    pub path: PathBuf,
    /// The lines that have code and the nodes of its flow, each with how often it ran.
    pub counts: Counts,
}

impl Recorder {
    /// Returns the counter for stages.
    pub fn counter(&self) -> lua::Coverage {
        self.counted.clone()
    }

    /// Notes where bundles are, by their hash.
    pub fn note(&self, places: &BTreeMap<String, PathBuf>) {
        self.places.borrow_mut().extend(places.clone());
    }

    /// Returns the lines that ran since the last call, by file.
    pub fn take(&self) -> Vec<Covered> {
        let places = self.places.borrow();
        let mut files: BTreeMap<PathBuf, Counts> = BTreeMap::new();
        for (hash, counted) in self.counted.take() {
            let Some(dir) = places.get(&*hash) else { continue };
            for (path, counts) in counted {
                files.entry(plain(&dir.join(path))).or_default().add(counts);
            }
        }
        files.into_iter().map(|(path, counts)| Covered { path, counts }).collect()
    }
}

impl Covered {
    /// Returns the number of its lines that ran, and of all.
    pub fn lines(&self) -> (usize, usize) {
        let lines = &self.counts.lines;
        (lines.values().filter(|hits| **hits > 0).count(), lines.len())
    }

    /// Returns the number of its nodes that ran, and of all.
    pub fn nodes(&self) -> (usize, usize) {
        let nodes = &self.counts.nodes;
        (nodes.iter().filter(|(_, hits)| *hits > 0).count(), nodes.len())
    }

    /// The nodes that never ran.
    pub fn missed_nodes(&self) -> impl Iterator<Item = &FlowNode> {
        self.counts.nodes.iter().filter(|(_, hits)| *hits == 0).map(|(node, _)| node)
    }

    /// The lines that never ran, as ranges.
    pub fn missed(&self) -> Vec<(u32, u32)> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        let mut open = false;
        // Lines without code between two that did not run belong to the range.
        for (line, hits) in &self.counts.lines {
            match ranges.last_mut() {
                Some((_, last)) if open && *hits == 0 => *last = *line,
                _ if *hits == 0 => ranges.push((*line, *line)),
                _ => {}
            }
            open = *hits == 0;
        }
        ranges
    }
}

/// The rows of a table: file, share, lines, what never ran; the last is all together.
pub fn rows(files: &[Covered]) -> Vec<Vec<String>> {
    table(files, Covered::lines, |file| file.missed().iter().map(range).collect())
}

/// The same of the nodes of flows that are tables; none if there is no such flow.
pub fn node_rows(files: &[Covered]) -> Vec<Vec<String>> {
    let named = |file: &Covered| {
        file.missed_nodes().map(|node| format!("{} {}", node.line, node.title)).collect()
    };
    table(files, Covered::nodes, named)
}

/// One row for each file in which there is something to count.
fn table(
    files: &[Covered],
    counts: impl Fn(&Covered) -> (usize, usize),
    missed: impl Fn(&Covered) -> Vec<String>,
) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let (mut ran, mut all) = (0, 0);
    for file in files {
        let (these, of) = counts(file);
        if of == 0 {
            continue;
        }
        ran += these;
        all += of;
        let mut names = missed(file);
        let more = names.len().saturating_sub(MOST_RANGES);
        names.truncate(MOST_RANGES);
        if more > 0 {
            names.push(format!("and {more} more"));
        }
        rows.push(vec![
            file.path.display().to_string(),
            share(these, of),
            format!("{these} of {of}"),
            names.join(", "),
        ]);
    }
    if !rows.is_empty() {
        rows.push(vec!["all".into(), share(ran, all), format!("{ran} of {all}"), String::new()]);
    }
    rows
}

fn range((first, last): &(u32, u32)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// A share in percent; what has no lines is covered. All of it is said only of all of it.
fn share(ran: usize, all: usize) -> String {
    let tenths = (ran * 1_000).checked_div(all).unwrap_or(1_000);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// As lcov's trace files. Nodes are its functions; where a file is data, their lines are its lines.
pub fn lcov(files: &[Covered]) -> String {
    let mut text = String::new();
    for file in files {
        let _ = writeln!(text, "TN:\nSF:{}", file.path.display());
        for (node, _) in &file.counts.nodes {
            let _ = writeln!(text, "FN:{},{}", node.line, name(node));
        }
        for (node, hits) in &file.counts.nodes {
            let _ = writeln!(text, "FNDA:{hits},{}", name(node));
        }
        let (ran, all) = file.nodes();
        if all > 0 {
            let _ = writeln!(text, "FNF:{all}\nFNH:{ran}");
        }
        let mut lines = file.counts.lines.clone();
        if lines.is_empty() {
            for (node, hits) in &file.counts.nodes {
                let line = lines.entry(node.line).or_default();
                *line = (*line).max(*hits);
            }
        }
        for (line, hits) in &lines {
            let _ = writeln!(text, "DA:{line},{hits}");
        }
        let ran = lines.values().filter(|hits| **hits > 0).count();
        let _ = writeln!(text, "LF:{}\nLH:{ran}\nend_of_record", lines.len());
    }
    text
}

/// Returns the name of a node in a trace file, unique within a file.
fn name(node: &FlowNode) -> String {
    let title: String = node.title.chars().filter(|c| !c.is_control() && *c != ',').collect();
    format!("{title} ({})", node.at)
}

/// A path without `.` and without what `..` takes back.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if plain.file_name().is_some() => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(lines: &[(u32, u64)]) -> Covered {
        let lines = lines.iter().copied().collect();
        Covered { path: PathBuf::from("a.lua"), counts: Counts { lines, nodes: Vec::new() } }
    }

    fn node(line: u32, at: &str, title: &str, hits: u64) -> (FlowNode, u64) {
        (FlowNode { at: at.into(), title: title.into(), line }, hits)
    }

    #[test]
    fn nodes_that_never_ran_are_named_with_their_line() {
        let nodes = vec![
            node(1, "/flow", "seq", 2),
            node(2, "/flow/children/0", "run a, b", 2),
            node(2, "/flow/children/1", "fail x", 0),
        ];
        let data = Covered {
            path: PathBuf::from("b.flow.json"),
            counts: Counts { nodes, ..Counts::default() },
        };
        assert!(rows(std::slice::from_ref(&data)).is_empty(), "it has no code");
        assert!(node_rows(&[file(&[(1, 1)])]).is_empty(), "it has no nodes");
        let rows = node_rows(std::slice::from_ref(&data));
        assert_eq!(rows[0], ["b.flow.json", "66.6 %", "2 of 3", "2 fail x"]);
        assert_eq!(
            lcov(&[data]),
            "TN:\nSF:b.flow.json\nFN:1,seq (/flow)\nFN:2,run a b (/flow/children/0)\n\
             FN:2,fail x (/flow/children/1)\nFNDA:2,seq (/flow)\nFNDA:2,run a b (/flow/children/0)\n\
             FNDA:0,fail x (/flow/children/1)\nFNF:3\nFNH:2\nDA:1,2\nDA:2,2\nLF:2\nLH:2\nend_of_record\n"
        );
    }

    #[test]
    fn what_never_ran_is_named_as_ranges_over_lines_without_code() {
        let file = file(&[(1, 1), (2, 0), (4, 0), (5, 3), (9, 0)]);
        assert_eq!(file.missed(), [(2, 4), (9, 9)]);
        let rows = rows(&[file]);
        assert_eq!(rows[0], ["a.lua", "40.0 %", "2 of 5", "2-4, 9"]);
        assert_eq!(rows[1], ["all", "40.0 %", "2 of 5", ""]);
    }

    #[test]
    fn a_trace_file_has_each_line_and_the_sums() {
        let text = lcov(&[file(&[(1, 2), (3, 0)])]);
        assert_eq!(text, "TN:\nSF:a.lua\nDA:1,2\nDA:3,0\nLF:2\nLH:1\nend_of_record\n");
        assert_eq!(share(0, 0), "100.0 %");
        assert_eq!(share(1_999, 2_000), "99.9 %");
        assert_eq!(plain(Path::new("./b/../a/./x.lua")), Path::new("a/x.lua"));
    }
}
