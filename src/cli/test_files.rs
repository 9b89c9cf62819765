//! Finds the files of tests.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cli::exit::{Exit, Stop};

const DEEPEST: usize = 16;

/// The files of tests at these paths: a file by itself, a directory with all below it.
///
/// # Errors
/// A path that is not there or cannot be read.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            walk(path, 0, &mut found)?;
        } else if path.is_file() {
            found.push(path.clone());
        } else {
            let message = format!("there is no {}", path.display());
            let stop = Stop::new(Exit::NotFound, message);
            return Err(stop.next("name a file that ends in _test.lua, or a directory").into());
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// The directories whose changes concern these paths.
pub fn directories(paths: &[PathBuf]) -> Vec<PathBuf> {
    let dirs = paths.iter().map(|path| match path.is_dir() {
        true => path.clone(),
        false => match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        },
    });
    dirs.collect()
}

fn walk(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    if depth > DEEPEST {
        return Ok(());
    }
    let entries = std::fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("read {}", dir.display()))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') || matches!(&*name, "node_modules" | "target") {
            continue;
        }
        let kind = entry.file_type().with_context(|| format!("read {}", dir.display()))?;
        if kind.is_dir() {
            walk(&entry.path(), depth + 1, found)?;
        } else if kind.is_file() && is_test(&name) {
            found.push(entry.path());
        }
    }
    Ok(())
}

fn is_test(name: &str) -> bool {
    let stem = name.strip_suffix(".lua").or_else(|| name.strip_suffix(".luau"));
    stem.is_some_and(|stem| stem.ends_with("_test") || stem.ends_with(".test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_by_their_name() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a_test.lua", "b.test.luau", "c.lua", "in/d_test.lua", ".x/e_test.lua"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let found = files(&[dir.path().to_owned()]).unwrap();
        let names: Vec<_> = found.iter().map(|it| it.strip_prefix(dir.path()).unwrap()).collect();
        assert_eq!(names, ["a_test.lua", "b.test.luau", "in/d_test.lua"].map(Path::new));
        assert!(files(&[dir.path().join("none")]).is_err());
    }
}
