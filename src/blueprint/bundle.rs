//! A bundle: the files of one blueprint version, and the hash that names them.
//!
//! Owns which paths a bundle may have, its limits, its hash and its stored form. Refuses whatever
//! lies outside of the entry's directory. The CLI reads bundles from disk, the API takes them as
//! JSON, the store keeps them as bytes, and `lua/` resolves modules in them.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::diagnostics::{Finding, Position, code};
use crate::protocol::Json;

mod disk;

pub(super) use disk::{program, programs};

/// The files that a bundle may have.
pub const MAX_FILES: usize = 256;
/// The size of one file, in bytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// The size of all files, in bytes.
pub const MAX_BUNDLE_BYTES: usize = 8 << 20;

const FORMAT: u8 = 1;
/// The name of a flow that came without one.
const INLINE: &str = "inline";
const MAX_PATH_BYTES: usize = 512;

/// The reason why a set of files is not a bundle.
#[derive(Debug, Error)]
pub enum BundleError {
    /// A path that leaves the bundle, or could on some system.
    #[error("cannot add {path:?} to the bundle: {reason}")]
    Path {
        /// The path.
        path: String,
        /// The problem.
        reason: &'static str,
    },
    /// Nothing says which file is the blueprint.
    #[error("no entry among the files: name it with `entry`, or call it main.lua")]
    NoEntry,
    /// The entry is not among the files.
    #[error("the entry {0:?} is not among the files")]
    EntryMissing(String),
    /// More files than [`MAX_FILES`].
    #[error("the bundle has more than {MAX_FILES} files")]
    TooManyFiles,
    /// A file over [`MAX_FILE_BYTES`].
    #[error("{0:?} is larger than 1 MiB")]
    FileTooLarge(String),
    /// All files are over [`MAX_BUNDLE_BYTES`].
    #[error("the bundle is larger than 8 MiB")]
    TooLarge,
    /// A file is not text.
    #[error("{0:?} is not UTF-8 text")]
    NotText(String),
    /// A file cannot be read or written.
    #[error("cannot access {path:?}: {source}")]
    Io {
        /// The path.
        path: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Stored bytes of a format that this version does not know.
    #[error("the bundle has format {0}; this version knows format {FORMAT}")]
    UnknownFormat(u8),
    /// Stored bytes that are damaged.
    #[error("the bundle is damaged")]
    Damaged,
}

impl BundleError {
    /// The same as a finding in a file.
    pub fn finding(&self, file: &str) -> Finding {
        let code = match self {
            Self::EntryMissing(_) => code::MISSING_FILE,
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                code::MISSING_FILE
            }
            _ => code::BUNDLE,
        };
        Finding::error(file, Position::START, code, self.to_string())
    }
}

/// The files of a blueprint: text by path, relative to the entry's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Files", into = "Files")]
pub struct Bundle {
    entry: String,
    files: BTreeMap<String, Arc<str>>,
    hash: Arc<str>,
}

/// The form that the HTTP API and the store use.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Files {
    files: BTreeMap<String, Arc<str>>,
    #[serde(default)]
    entry: Option<String>,
}

impl Bundle {
    /// A bundle of one file.
    ///
    /// # Errors
    /// Fails when the name is no plain path, or the text is too large.
    pub fn from_source(name: &str, text: impl Into<Arc<str>>) -> Result<Self, BundleError> {
        Self::from_files(BTreeMap::from([(name.to_owned(), text.into())]), Some(name))
    }

    /// A bundle of these files. Without `entry` it is the only Lua file at the top, else
    /// `main.lua` or `main.luau`; a JSON file that stands alone is one, too.
    ///
    /// # Errors
    /// Fails when a path is not a plain relative one, a limit is broken, or there is no entry.
    pub fn from_files(
        files: BTreeMap<String, Arc<str>>,
        entry: Option<&str>,
    ) -> Result<Self, BundleError> {
        if files.len() > MAX_FILES {
            return Err(BundleError::TooManyFiles);
        }
        let mut bytes = 0;
        for (path, text) in &files {
            check_path(path)?;
            if text.len() > MAX_FILE_BYTES {
                return Err(BundleError::FileTooLarge(path.clone()));
            }
            bytes += text.len();
        }
        if bytes > MAX_BUNDLE_BYTES {
            return Err(BundleError::TooLarge);
        }
        let entry = match entry {
            Some(entry) if files.contains_key(entry) => entry.to_owned(),
            Some(entry) => return Err(BundleError::EntryMissing(entry.to_owned())),
            None => default_entry(&files).ok_or(BundleError::NoEntry)?,
        };
        let hash = canonical_hash(&entry, &files).into();
        Ok(Self { entry, files, hash })
    }

    /// A bundle of a flow that is a table, and its agents.
    ///
    /// # Errors
    /// Fails when the text is too large.
    pub fn from_flow(flow: &Json, agents: Option<&Json>) -> Result<Self, BundleError> {
        let mut document = serde_json::json!({ "name": INLINE, "flow": flow.to_value() });
        if let Some(agents) = agents {
            document["agents"] = agents.to_value();
        }
        // Written out in lines, so that a finding has a place.
        Self::from_source(&format!("{INLINE}.json"), format!("{document:#}"))
    }

    /// The path of the file that returns the blueprint.
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// The text of the entry.
    pub fn source(&self) -> &Arc<str> {
        &self.files[&self.entry]
    }

    /// The text of a file.
    pub fn file(&self, path: &str) -> Option<&Arc<str>> {
        self.files.get(path)
    }

    /// All files in the order of their paths.
    pub fn files(&self) -> &BTreeMap<String, Arc<str>> {
        &self.files
    }

    /// The hash that names this version, in hex: equal for equal files, whatever they came from.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The file that `require(spec)` in the file `from` means.
    pub fn resolve_module(&self, from: &str, spec: &str) -> Option<&str> {
        module_candidates(from, spec)
            .iter()
            .find_map(|path| self.files.get_key_value(path).map(|(path, _)| path.as_str()))
    }

    /// The file that `swarm.agent_md(spec)`, `swarm.template(spec)` or an include means: its path
    /// from the bundle's top, whichever file names it.
    pub fn resolve_file(&self, spec: &str) -> Option<&str> {
        let path = relative(spec)?;
        self.files.get_key_value(&path).map(|(path, _)| path.as_str())
    }

    /// The form that the store keeps.
    pub fn encode(&self) -> Vec<u8> {
        let stored = (self.entry.as_str(), &self.files);
        postcard::to_extend(&stored, vec![FORMAT]).expect("text always encodes")
    }

    /// Reads the form that the store keeps.
    ///
    /// # Errors
    /// Fails when the format is unknown or the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, BundleError> {
        let (&format, rest) = bytes.split_first().ok_or(BundleError::Damaged)?;
        if format != FORMAT {
            return Err(BundleError::UnknownFormat(format));
        }
        let (entry, files): (String, BTreeMap<String, Arc<str>>) =
            postcard::from_bytes(rest).map_err(|_| BundleError::Damaged)?;
        Self::from_files(files, Some(&entry))
    }
}

impl TryFrom<Files> for Bundle {
    type Error = BundleError;

    fn try_from(form: Files) -> Result<Self, BundleError> {
        Self::from_files(form.files, form.entry.as_deref())
    }
}

impl From<Bundle> for Files {
    fn from(bundle: Bundle) -> Self {
        Self { files: bundle.files, entry: Some(bundle.entry) }
    }
}

fn is_lua(path: &str) -> bool {
    path.ends_with(".lua") || path.ends_with(".luau")
}

fn default_entry(files: &BTreeMap<String, Arc<str>>) -> Option<String> {
    if let [only] = files.keys().collect::<Vec<_>>()[..]
        && only.ends_with(".json")
    {
        return Some(only.clone());
    }
    let mut at_the_top = files.keys().filter(|path| is_lua(path) && !path.contains('/'));
    match (at_the_top.next(), at_the_top.next()) {
        (Some(only), None) => Some(only.clone()),
        _ => ["main.lua", "main.luau"]
            .iter()
            .find(|path| files.contains_key(**path))
            .map(|path| (*path).to_owned()),
    }
}

/// Hashes the format's version, the entry and every file in the order of their paths, each text
/// after its length, so that no two bundles read the same.
fn canonical_hash(entry: &str, files: &BTreeMap<String, Arc<str>>) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut text = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    text("moonswarm bundle");
    text(&FORMAT.to_string());
    text(entry);
    for (path, content) in files {
        text(path);
        text(content);
    }
    hasher.finalize().to_hex().to_string()
}

fn check_path(path: &str) -> Result<(), BundleError> {
    let refuse = |reason| Err(BundleError::Path { path: path.chars().take(200).collect(), reason });
    if path.is_empty() || path.len() > MAX_PATH_BYTES {
        return refuse("a path has 1 to 512 bytes");
    }
    if path.contains('\\') || path.contains(':') || path.chars().any(char::is_control) {
        return refuse("a path has no backslash, colon or control character");
    }
    if path.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        return refuse("a path is relative, without empty, `.` or `..` parts");
    }
    Ok(())
}

/// The path that a file names from the bundle's top; `None` if it leaves the bundle.
pub(super) fn relative(spec: &str) -> Option<String> {
    let path = spec.trim_start_matches("./");
    check_path(path).is_ok().then(|| path.to_owned())
}

/// The files that `require(spec)` in the file `from` may mean, the likeliest first: those that the
/// sandbox looks for (lua/run.luau).
pub(super) fn module_candidates(from: &str, spec: &str) -> Vec<String> {
    if !(spec.starts_with("./") || spec.starts_with("../")) {
        return Vec::new();
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in spec.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return Vec::new();
                }
            }
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    if check_path(&path).is_err() {
        Vec::new()
    } else if is_lua(&path) {
        vec![path]
    } else {
        vec![format!("{path}.luau"), format!("{path}.lua"), format!("{path}/init.luau")]
    }
}

#[cfg(test)]
mod tests;
