//! A blueprint's source as the sandbox sees it.

use std::{fmt, sync::Arc};

use super::Coverage;
use crate::blueprint::Edition;

/// The files of a bundle. Paths are relative, with `/`, and without `./`.
pub trait Files: Send + Sync {
    /// The text of the file at `path`, if the bundle has it.
    fn text(&self, path: &str) -> Option<&str>;

    /// The path of the file that returns the blueprint.
    fn entry(&self) -> &str;
}

/// Functions of earlier rooms that the author library uses.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    /// Reads an agent file: its text and its path give the agent as a JSON object, or what is wrong.
    pub agent_md: fn(text: &str, path: &str) -> Result<serde_json::Value, String>,
    /// The names that a string of a table flow looks up.
    pub names: fn(text: &str, reading: u32) -> Result<Vec<String>, String>,
    /// Evaluates such a string with slots, which are a JSON object. The result is JSON.
    pub evaluate: fn(text: &str, reading: u32, slots: &str) -> Result<String, String>,
}

/// The longest file that is compiled, in bytes.
const LONGEST: usize = 2 << 20;

/// One version of a blueprint: its files, and the key that VMs are shared by.
#[derive(Clone)]
pub struct Source {
    key: Arc<str>,
    files: Arc<dyn Files>,
    host: Host,
    coverage: Option<Coverage>,
    edition: Edition,
    named: bool,
}

impl Source {
    /// Names `files` by `key`; different files never share a key. The main file says its edition.
    pub fn new(key: impl Into<Arc<str>>, files: impl Files + 'static, host: Host) -> Self {
        let entry = files.entry();
        let edition = files.text(entry).map(|text| Edition::of(entry, text)).unwrap_or_default();
        Self {
            key: key.into(),
            files: Arc::new(files),
            host,
            coverage: None,
            edition,
            named: false,
        }
    }

    /// The same, read as written in another edition.
    #[must_use]
    pub fn of_edition(self, edition: Edition) -> Self {
        Self { edition, ..self }
    }

    /// The edition that it is written in.
    pub fn edition(&self) -> Edition {
        self.edition
    }

    /// Lets the lines that run be counted.
    #[must_use]
    pub fn counted(self, coverage: Option<Coverage>) -> Self {
        Self { coverage, ..self }
    }

    /// Keeps the names of variables when it is compiled, so that the calls of a flow can be looked at.
    #[must_use]
    pub fn with_names(self) -> Self {
        Self { named: true, ..self }
    }

    pub(crate) fn has_names(&self) -> bool {
        self.named
    }

    pub(crate) fn coverage(&self) -> Option<&Coverage> {
        self.coverage.as_ref()
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn entry(&self) -> &str {
        self.files.entry()
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.text(path)
    }

    /// The text of a file that is to be compiled.
    pub(crate) fn code(&self, path: &str) -> Option<Result<&str, String>> {
        let text = self.files.text(path)?;
        Some(if text.len() > LONGEST {
            Err(format!("{path}:1: a file of {} bytes is too long to compile", text.len()))
        } else {
            Ok(text)
        })
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn agent_md(&self, path: &str) -> Result<serde_json::Value, String> {
        let text = self.text(path).ok_or_else(|| "the bundle has no such file".to_owned())?;
        (self.host.agent_md)(text, path)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("key", &self.key).finish_non_exhaustive()
    }
}
