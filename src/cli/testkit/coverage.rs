//! Which lines of the blueprints ran in tests: for a person, and as lcov.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt::Write as _,
    path::{Component, Path, PathBuf},
};

use crate::lua::{self, Lines};

/// Ranges of lines that are named one by one.
const MOST_RANGES: usize = 12;

/// Gathers what the stages of tests count.
#[derive(Debug, Default)]
pub struct Recorder {
    counted: lua::Coverage,
    places: RefCell<BTreeMap<String, PathBuf>>,
}

/// One file, and which of its lines ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Covered {
    /// The file.
    pub path: PathBuf,
    /// The lines that have code, each with how often it ran.
    pub lines: Lines,
}

impl Recorder {
    /// What stages count with.
    pub fn counter(&self) -> lua::Coverage {
        self.counted.clone()
    }

    /// Notes where bundles are, by their hash.
    pub fn note(&self, places: &BTreeMap<String, PathBuf>) {
        self.places.borrow_mut().extend(places.clone());
    }

    /// What ran since the last look, by file.
    pub fn take(&self) -> Vec<Covered> {
        let places = self.places.borrow();
        let mut files: BTreeMap<PathBuf, Lines> = BTreeMap::new();
        for (hash, counted) in self.counted.take() {
            let Some(dir) = places.get(&*hash) else { continue };
            for (path, lines) in counted {
                let whole = files.entry(plain(&dir.join(path))).or_default();
                for (line, hits) in lines {
                    *whole.entry(line).or_default() += hits;
                }
            }
        }
        files.into_iter().map(|(path, lines)| Covered { path, lines }).collect()
    }
}

impl Covered {
    /// How many of its lines ran, and how many there are.
    pub fn counts(&self) -> (usize, usize) {
        (self.lines.values().filter(|hits| **hits > 0).count(), self.lines.len())
    }

    /// The lines that never ran, as ranges.
    pub fn missed(&self) -> Vec<(u32, u32)> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        let mut open = false;
        // Lines without code between two that did not run belong to the range.
        for (line, hits) in &self.lines {
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
    let mut rows = Vec::new();
    let (mut ran, mut all) = (0, 0);
    for file in files {
        let (these, of) = file.counts();
        ran += these;
        all += of;
        let missed = file.missed();
        let mut names: Vec<_> = missed.iter().take(MOST_RANGES).map(range).collect();
        if missed.len() > MOST_RANGES {
            names.push(format!("and {} more", missed.len() - MOST_RANGES));
        }
        rows.push(vec![
            file.path.display().to_string(),
            share(these, of),
            format!("{these} of {of}"),
            names.join(", "),
        ]);
    }
    rows.push(vec!["all".into(), share(ran, all), format!("{ran} of {all}"), String::new()]);
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

/// As lcov's trace files.
pub fn lcov(files: &[Covered]) -> String {
    let mut text = String::new();
    for file in files {
        let (ran, all) = file.counts();
        let _ = writeln!(text, "TN:\nSF:{}", file.path.display());
        for (line, hits) in &file.lines {
            let _ = writeln!(text, "DA:{line},{hits}");
        }
        let _ = writeln!(text, "LF:{all}\nLH:{ran}\nend_of_record");
    }
    text
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
        Covered { path: PathBuf::from("a.lua"), lines: lines.iter().copied().collect() }
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
