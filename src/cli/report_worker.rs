//! The worker of `blueprints/repo-report.lua` for machines without Python.
//!
//! Does what `blueprints/survey.py` and `blueprints/worker.py` do, over the same HTTP protocol,
//! with the same results. Started by that blueprint; not meant for people.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::exit::Exit;
use crate::{blueprint::read_regular, environment::http_client};

/// A file with more bytes is not taken for code.
const LARGEST: usize = 16 * 1024 * 1024;
/// The number of bytes in which a NUL marks a file as binary.
const SNIFFED: usize = 8_000;
/// The to-dos of one batch that are reported.
const TODOS: usize = 200;
/// The length of a to-do's text, in characters.
const TODO_LEN: usize = 120;
/// The files that churned most.
const CHURNED: usize = 15;
/// Directories that are nobody's code.
const OURS: [&[u8]; 2] = [b".git", b".moonswarm"];

/// The request of the blueprint.
#[derive(Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
enum Assignment {
    List { root: String },
    Churn { root: String },
    Count { root: String, files: Vec<String> },
}

/// Fetches the prompt of the attempt whose handle is in the environment, works and reports.
///
/// # Errors
/// No handle in the environment, or a host that cannot be reached or refuses the report.
pub async fn execute() -> anyhow::Result<Exit> {
    let url = std::env::var("MOONSWARM_URL").context("MOONSWARM_URL is not set")?;
    let handle = std::env::var("MOONSWARM_HANDLE").context("MOONSWARM_HANDLE is not set")?;
    let client = http_client().no_proxy().tls_certs_only([]).build()?;
    let prompt: Value = client
        .get(format!("{url}/v1/worker/prompt"))
        .bearer_auth(&handle)
        .send()
        .await?
        .error_for_status()?
        .json()
        .await?;
    let report = match perform(&prompt["input"]) {
        Ok(output) => json!({ "output": output }),
        Err(error) => json!({ "ok": false, "error": { "message": format!("{error:#}") } }),
    };
    client
        .post(format!("{url}/v1/worker/result"))
        .bearer_auth(&handle)
        .json(&report)
        .send()
        .await?
        .error_for_status()?;
    Ok(Exit::Ok)
}

/// Does one piece of work.
fn perform(input: &Value) -> anyhow::Result<Value> {
    match Assignment::deserialize(input).context("read the input")? {
        Assignment::List { root } => list(directory(&root)?),
        Assignment::Churn { root } => Ok(churn(directory(&root)?)),
        Assignment::Count { root, files } => Ok(count(Path::new(&root), &files)),
    }
}

fn directory(root: &str) -> anyhow::Result<&Path> {
    let path = Path::new(root);
    if !path.is_dir() {
        bail!("there is no such directory: {root}");
    }
    Ok(path)
}

fn list(root: &Path) -> anyhow::Result<Value> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let mut paths: BTreeSet<Vec<u8>> = git(root, &arguments)
        .unwrap_or_default()
        .split(|byte| *byte == 0)
        .filter(|path| !path.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    let by_git = !paths.is_empty();
    if !by_git {
        walk(root, &mut Vec::new(), &mut paths).context("walk the directory")?;
    }
    let (mut files, mut links) = (Vec::new(), 0);
    for path in paths {
        if path.split(|byte| *byte == b'/').any(|part| OURS.contains(&part)) {
            continue;
        }
        match root.join(OsStr::from_bytes(&path)).symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() => links += 1,
            Ok(metadata) if metadata.is_file() => files.push(text_of(&path)),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(json!({ "files": files, "links": links, "git": by_git }))
}

/// Collects what is below `root/inside` and is no directory; directories that cannot be read are
/// left out, as are links' targets.
fn walk(root: &Path, inside: &mut Vec<u8>, paths: &mut BTreeSet<Vec<u8>>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(OsStr::from_bytes(inside)))? {
        let entry = entry?;
        let name = entry.file_name();
        let length = inside.len();
        if length > 0 {
            inside.push(b'/');
        }
        inside.extend_from_slice(name.as_bytes());
        if !entry.file_type()?.is_dir() {
            paths.insert(inside.clone());
        } else if !OURS.contains(&name.as_bytes()) {
            let _ = walk(root, inside, paths);
        }
        inside.truncate(length);
    }
    Ok(())
}

fn churn(root: &Path) -> Value {
    let log = git(
        root,
        &["log", "--since=90.days", "--numstat", "-z", "--no-renames", "--relative", "--format="],
    );
    let mut files: BTreeMap<&[u8], [u64; 3]> = BTreeMap::new();
    for entry in log.as_deref().unwrap_or_default().split(|byte| *byte == 0) {
        let mut fields = entry.trim_ascii_start().splitn(3, |byte| *byte == b'\t');
        let (Some(added), Some(deleted), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let number =
            |digits: &[u8]| str::from_utf8(digits).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
        let row = files.entry(path).or_default();
        *row = [row[0] + 1, row[1] + number(added), row[2] + number(deleted)];
    }
    let mut files: Vec<_> = files.into_iter().map(|(path, row)| (text_of(path), row)).collect();
    files.sort_by(|(a, x), (b, y)| (y[1] + y[2]).cmp(&(x[1] + x[2])).then_with(|| a.cmp(b)));
    let top: Vec<_> = files
        .into_iter()
        .take(CHURNED)
        .map(|(path, [commits, added, deleted])| json!([path, commits, added, deleted]))
        .collect();
    json!({ "git": log.is_some(), "files": top })
}

/// Returns the output of git in a directory; none if git is missing or fails.
fn git(root: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let ran =
        Command::new("git").args(arguments).current_dir(root).stdin(Stdio::null()).output().ok()?;
    ran.status.success().then_some(ran.stdout)
}

fn count(root: &Path, names: &[String]) -> Value {
    let (mut files, mut todos, mut found, mut skipped) = (Vec::new(), Vec::new(), 0_usize, 0);
    for name in names {
        let path = root.join(OsStr::from_bytes(&bytes_of(name)));
        let Ok(data) = read(&path) else {
            skipped += 1;
            continue;
        };
        if data.len() > LARGEST || data[..data.len().min(SNIFFED)].contains(&0) {
            files.push(json!([name, -1]));
            continue;
        }
        let mut lines = 0;
        for line in data.split_inclusive(|byte| *byte == b'\n') {
            lines += 1;
            let Some(todo) = todo(line.strip_suffix(b"\n").unwrap_or(line)) else { continue };
            found += 1;
            if todos.len() < TODOS {
                todos.push(json!([name, lines, todo]));
            }
        }
        files.push(json!([name, lines]));
    }
    json!({ "files": files, "todos": todos, "todos_found": found, "skipped": skipped })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    match read_regular(path, LARGEST as u64) {
        // Too large for code, as one byte more than that is.
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(vec![0; LARGEST + 1]),
        read => read,
    }
}

/// The mark of a line's comment, with what follows it.
fn todo(line: &[u8]) -> Option<String> {
    let opens = |byte: &u8| b"#/*-;!%".contains(byte);
    let marked = |start: usize| {
        let rest = &line[start..];
        let blank = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let rest = &rest[blank..];
        [b"TODO".as_slice(), b"FIXME"].into_iter().find_map(|word| {
            let next = rest.strip_prefix(word)?.first();
            let ends = next.is_none_or(|next| !next.is_ascii_alphanumeric() && *next != b'_');
            ends.then_some(rest)
        })
    };
    let text = line
        .iter()
        .enumerate()
        .filter(|(_, byte)| opens(byte))
        .find_map(|(index, _)| marked(index + 1))?;
    let text = String::from_utf8_lossy(text);
    Some(text.trim_matches([' ', '\t', '\r']).chars().take(TODO_LEN).collect())
}

/// A path as text: `%XX` for bytes that are not UTF-8, control characters and `%`.
fn text_of(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\0'..='\x1f' | '\x7f' | '%' => {
                    text.push_str(&format!("%{:02X}", u32::from(character)));
                }
                other => text.push(other),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// The path that [`text_of`] wrote.
fn bytes_of(text: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(text).collect()
}

#[cfg(test)]
#[path = "report_worker/tests.rs"]
mod tests;
