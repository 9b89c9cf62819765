//! Circles of files within a room, as `use` lines and paths show them.
//!
//! A room is a file of `src/`, with all that lies in the directory of its name. A name that a file
//! passes on from the files below it counts as a use of the file that defines it; what it only
//! passes on is no use of its own.

use std::collections::{BTreeMap, BTreeSet};

/// The path of a module below its room, without the room.
type Module = Vec<String>;

/// The files of one room.
pub struct Room {
    name: String,
    files: BTreeMap<Module, File>,
}

struct File {
    code: String,
    /// Where the names that it passes on come from.
    passes_on: BTreeMap<String, Vec<String>>,
}

impl Room {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), files: BTreeMap::new() }
    }

    /// Adds a file by its path below `src/`.
    pub fn add(&mut self, path: &str, text: &str) {
        let module: Module =
            path.trim_end_matches(".rs").split('/').skip(1).map(str::to_owned).collect();
        let code = code_of(text);
        let mut passes_on = BTreeMap::new();
        for (_, path) in uses(&code).into_iter().filter(|(is_public, _)| *is_public) {
            if let Some(last) = path.last() {
                passes_on.insert(last.clone(), path.clone());
            }
        }
        self.files.insert(module, File { code, passes_on });
    }

    /// Which file uses which, as `a::b` and `c`.
    pub fn edges(&self) -> Vec<(String, String)> {
        let edges = self.files.iter().flat_map(|(module, file)| {
            let used = self.used_by(module, file).into_iter();
            used.map(|used| (module.join("::"), used.join("::")))
        });
        edges.collect()
    }

    /// The circles, largest first, each as its files in order.
    pub fn circles(&self) -> Vec<Vec<String>> {
        let edges: BTreeMap<&Module, BTreeSet<&Module>> =
            self.files.iter().map(|(module, file)| (module, self.used_by(module, file))).collect();
        let mut reached = BTreeMap::new();
        for module in self.files.keys() {
            let mut seen = BTreeSet::new();
            let mut next: Vec<&Module> = edges[module].iter().copied().collect();
            while let Some(one) = next.pop() {
                if seen.insert(one) {
                    next.extend(edges[one].iter().copied());
                }
            }
            reached.insert(module, seen);
        }
        let mut circles = BTreeSet::new();
        for (module, seen) in &reached {
            let circle: Vec<String> = seen
                .iter()
                .filter(|other| reached[**other].contains(*module))
                .map(|other| format!("{}::{}", self.name, other.join("::")))
                .collect();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        let mut circles: Vec<_> = circles.into_iter().collect();
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    fn used_by(&self, module: &Module, file: &File) -> BTreeSet<&Module> {
        let uses = uses(&file.code).into_iter();
        let is_parent = self.files.keys().any(|it| it.starts_with(module) && it != module);
        let is_used = |path: &[String]| path.last().is_some_and(|it| is_used(&file.code, it));
        // What a parent only passes on is no use of its own; nor is what a room exports.
        let is_export = |path: &[String]| module.is_empty() || is_parent && !is_used(path);
        let uses = uses.filter(|(is_public, path)| !(*is_public && is_export(path)));
        let paths = uses.map(|(_, path)| path).chain(inline(&file.code));
        paths
            .filter_map(|path| self.defined_in(module, &path, 0))
            .filter(|used| *used != module)
            .collect()
    }

    /// The file that defines what a path names, if it is one of the room.
    fn defined_in(&self, from: &Module, path: &[String], depth: usize) -> Option<&Module> {
        let mut at = from.clone();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" if rest.get(1) == Some(&self.name) => {
                at.clear();
                rest = &rest[2..];
            }
            "crate" => return None,
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|it| it == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            child => {
                let mut below = at.clone();
                below.push(child.to_owned());
                self.files.get(&below)?;
            }
        }
        while let Some((name, more)) = rest.split_first() {
            at.push(name.clone());
            if !self.files.contains_key(&at) {
                at.pop();
                break;
            }
            rest = more;
        }
        let (module, file) = self.files.get_key_value(&at)?;
        let passed_on = rest.first().and_then(|name| file.passes_on.get(name));
        match passed_on {
            Some(path) if depth < 8 => self.defined_in(&at, path, depth + 1).or(Some(module)),
            _ => Some(module),
        }
    }
}

/// The code of a file, without comments and without the tests at its end.
fn code_of(text: &str) -> String {
    let lines = text.lines().take_while(|line| *line != "#[cfg(test)]");
    lines.map(|line| format!("{}\n", line.split("//").next().unwrap_or_default())).collect()
}

/// Whether a name stands in the code more often than in the `use` line that passes it on.
fn is_used(code: &str, name: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let is_word = |at: usize| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        !before.ends_with(part) && !after.starts_with(part)
    };
    name != "*" && code.match_indices(name).filter(|(at, _)| is_word(*at)).count() > 1
}

/// Every path of the `use` lines, and whether it is passed on.
fn uses(code: &str) -> Vec<(bool, Vec<String>)> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some((line, after)) = next_use(rest) {
        let (text, more) = after.split_once(';').unwrap_or((after, ""));
        for path in expand(text) {
            found.push((line.trim_start().starts_with("pub"), path));
        }
        rest = more;
    }
    found
}

/// What stands before the next `use` in its line, and what comes after it.
fn next_use(code: &str) -> Option<(&str, &str)> {
    code.match_indices("use ").find_map(|(at, word)| {
        let line = &code[code[..at].rfind('\n').map_or(0, |end| end + 1)..at];
        let is_use = line.trim().is_empty() || line.trim_start().starts_with("pub");
        (is_use && !line.contains("fn ")).then(|| (line, &code[at + word.len()..]))
    })
}

/// The paths of a `use` tree.
fn expand(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    let Some((before, group)) = tree.split_once('{') else {
        let tree = tree.split(" as ").next().unwrap_or_default();
        let path: Vec<String> = tree.split("::").map(|it| it.trim().to_owned()).collect();
        return if tree.is_empty() { Vec::new() } else { vec![path] };
    };
    let group = group.rsplit_once('}').map_or(group, |(inner, _)| inner);
    let (mut depth, mut parts, mut part) = (0, Vec::new(), String::new());
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 {
            parts.push(std::mem::take(&mut part));
        } else {
            part.push(c);
        }
    }
    parts.push(part);
    parts.iter().flat_map(|part| expand(part)).map(|part| prefixed(before, part)).collect()
}

fn prefixed(before: &str, part: Vec<String>) -> Vec<String> {
    let before = before.split("::").map(|it| it.trim().to_owned()).filter(|it| !it.is_empty());
    before.chain(part.into_iter().filter(|name| name != "self")).collect()
}

/// Every path in the code that begins with `super::` or `crate::`, outside of `use` lines.
fn inline(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["super::", "crate::"] {
        for (at, _) in code.match_indices(start) {
            if code[..at].ends_with("::") {
                continue;
            }
            let path = code[at..].chars().take_while(|c| c.is_alphanumeric() || "_:".contains(*c));
            let path: String = path.collect();
            if path.ends_with("::") {
                // The beginning of a group, which is a `use` line.
                continue;
            }
            found.push(path.split("::").filter(|it| !it.is_empty()).map(str::to_owned).collect());
        }
    }
    found
}
