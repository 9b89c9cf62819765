//! Values as they were: a file each, beside the tests.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::blueprint::read_text;

/// The largest snapshot, in bytes.
const LARGEST: u64 = 64 << 20;

/// The handling of a snapshot that is missing or differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Snapshots {
    /// One that is not there is written; one that differs is an error.
    WriteNew,
    /// Both are written.
    Update,
    /// Both are an error.
    Compare,
}

/// Compares a value with its snapshot; gives what there is to say.
///
/// # Errors
/// The difference, or the reason why there is no comparison.
pub(super) fn compare(
    test_file: &Path,
    name: &str,
    value: &Value,
    snapshots: Snapshots,
) -> Result<Option<String>, String> {
    let path = place(test_file, name)?;
    let text = format!("{value:#}\n");
    let was = match read_text(&path, LARGEST) {
        Ok(was) => Some(was),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(format!("read {}: {error}", path.display())),
    };
    match (was, snapshots) {
        (Some(was), _) if was == text => Ok(None),
        (None, Snapshots::Compare) => Err(format!("there is no snapshot {}", path.display())),
        (Some(was), Snapshots::WriteNew | Snapshots::Compare) => Err(format!(
            "it is not as in {}:\n{}\nif that is right: moonswarm test --update",
            path.display(),
            difference(&was, &text)
        )),
        (None, Snapshots::WriteNew) | (_, Snapshots::Update) => {
            let write = |path: &Path| {
                std::fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
                std::fs::write(path, &text)
            };
            write(&path).map_err(|error| format!("write {}: {error}", path.display()))?;
            Ok(Some(format!("wrote {}", path.display())))
        }
    }
}

fn place(test_file: &Path, name: &str) -> Result<PathBuf, String> {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ' | '.');
    if name.starts_with('.') || !name.chars().all(plain) {
        return Err(format!("{name:?} is not a name for a snapshot: letters, digits, `-` and `_`"));
    }
    let stem = test_file.file_stem().unwrap_or_default();
    let dir = test_file.parent().unwrap_or(Path::new(""));
    Ok(dir.join("snapshots").join(stem).join(format!("{name}.json")))
}

/// The lines that differ, between those that both have at their beginning and end.
fn difference(was: &str, is: &str) -> String {
    let (was, is): (Vec<_>, Vec<_>) = (was.lines().collect(), is.lines().collect());
    let head = was.iter().zip(&is).take_while(|(a, b)| a == b).count();
    let tail = was[head..].iter().rev().zip(is[head..].iter().rev()).take_while(|(a, b)| a == b);
    let tail = tail.count();
    let gone = was[head..was.len() - tail].iter().map(|line| format!("  - {line}"));
    let come = is[head..is.len() - tail].iter().map(|line| format!("  + {line}"));
    gone.chain(come).take(40).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_new_value_is_written_and_another_one_is_shown_with_its_difference() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a_test.lua");
        let check = |value, snapshots| compare(&file, "x", &value, snapshots);
        assert!(check(json!([1, 2]), Snapshots::Compare).unwrap_err().contains("there is no"));
        assert!(check(json!([1, 2]), Snapshots::WriteNew).unwrap().unwrap().contains("wrote"));
        assert_eq!(check(json!([1, 2]), Snapshots::Compare), Ok(None));
        let differs = check(json!([1, 3]), Snapshots::WriteNew).unwrap_err();
        assert!(differs.contains("  -   2\n  +   3"), "{differs}");
        assert!(check(json!([1, 3]), Snapshots::Update).unwrap().is_some());
        assert_eq!(check(json!([1, 3]), Snapshots::WriteNew), Ok(None));
        assert!(compare(&file, "../x", &Value::Null, Snapshots::Update).is_err());
    }
}
