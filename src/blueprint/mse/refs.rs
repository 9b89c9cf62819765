//! References of a foreign document to files: `$file` and `$agent_md`.
//!
//! A file is read only below the directory of the document, whatever links lead to.

use std::{
    io,
    path::{Component, Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::{
    lua::shown,
    report::{ImportError, Report},
};
use crate::blueprint::{agent_md, code, read_text};

/// The longest file, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Files of one document.
const MOST: usize = 500;

/// The directory that references stay in.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    bases: Vec<PathBuf>,
}

impl Directory {
    /// Opens the directory of a document: references are looked for beside the document first.
    ///
    /// # Errors
    /// When the directory cannot be read, or the document is outside of it.
    pub fn open(root: &Path, document: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let parent = document.parent().filter(|it| !it.as_os_str().is_empty());
        let base = parent.unwrap_or(Path::new(".")).canonicalize()?;
        if !base.starts_with(&root) {
            return Err(io::Error::other("the document is outside of the directory"));
        }
        let mut bases = vec![base];
        if bases[0] != root {
            bases.push(root.clone());
        }
        Ok(Self { root, bases })
    }

    /// Finds a file that a reference names.
    fn find(&self, given: &str, at: &str) -> Result<PathBuf, ImportError> {
        let wrong = |what: &str| ImportError::new(at, format!("{}: {what}", shown(given)));
        let path = Path::new(given);
        let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if given.is_empty() || !path.components().all(inside) {
            return Err(wrong("a path is relative, and stays in the directory of the blueprint"));
        }
        for base in &self.bases {
            match base.join(path).canonicalize() {
                Ok(found) if found.starts_with(&self.root) => return Ok(found),
                Ok(_) => return Err(wrong("a link leads out of the directory of the blueprint")),
                Err(_) => {}
            }
        }
        Err(wrong("there is no such file in the directory of the blueprint"))
    }

    fn read(&self, given: &str, at: &str) -> Result<String, ImportError> {
        let path = self.find(given, at)?;
        read_text(&path, MAX_FILE)
            .map_err(|error| ImportError::new(at, format!("read {}: {error}", shown(given))))
    }

    /// Adds the directories of `blueprint_ref_includes`.
    fn include(&mut self, document: &Value) -> Result<(), ImportError> {
        let list = document.get("blueprint_ref_includes").and_then(Value::as_array);
        for (index, entry) in list.map_or(&[][..], Vec::as_slice).iter().enumerate() {
            let at = format!("blueprint_ref_includes[{index}]");
            let given =
                entry.as_str().ok_or_else(|| ImportError::new(&at, "a path is expected"))?;
            let found = self.find(given, &at)?;
            self.bases.push(found);
        }
        Ok(())
    }
}

/// Puts the files that a document refers to into it.
///
/// # Errors
/// A reference that leads out of the directory, or to nothing; an agent file that is refused.
pub fn resolve(
    document: Value,
    mut directory: Directory,
    report: &mut Report,
) -> Result<Value, ImportError> {
    directory.include(&document)?;
    Resolver { directory, report, count: 0 }.value(document, "")
}

struct Resolver<'r> {
    directory: Directory,
    report: &'r mut Report,
    count: usize,
}

impl Resolver<'_> {
    fn value(&mut self, value: Value, at: &str) -> Result<Value, ImportError> {
        match value {
            Value::Object(map) => self.object(map, at),
            Value::Array(items) => {
                let items = items.into_iter().enumerate();
                items.map(|(index, item)| self.value(item, &format!("{at}[{index}]"))).collect()
            }
            Value::String(text) => {
                if text.starts_with("@file:") {
                    self.report.differs(at, format!("{} is text: no file is read", shown(&text)));
                }
                Ok(Value::String(text))
            }
            plain @ (Value::Null | Value::Bool(_) | Value::Number(_)) => Ok(plain),
        }
    }

    fn object(&mut self, mut map: Map<String, Value>, at: &str) -> Result<Value, ImportError> {
        if map.len() == 1
            && let Some(path) = map.get("$file").and_then(Value::as_str)
        {
            self.one_more(at)?;
            return self.directory.read(path, at).map(Value::String);
        }
        if let Some(path) = map.remove("$agent_md") {
            let path = path.as_str().ok_or_else(|| ImportError::new(at, "a path is expected"))?;
            self.one_more(at)?;
            let mut agent = self.agent(path, at)?;
            for (key, value) in map {
                let value = self.value(value, &inner(at, &key))?;
                agent.insert(key, value);
            }
            return Ok(Value::Object(agent));
        }
        let entries = map.into_iter().map(|(key, value)| {
            let value = self.value(value, &inner(at, &key))?;
            Ok((key, value))
        });
        entries.collect::<Result<Map<_, _>, ImportError>>().map(Value::Object)
    }

    fn one_more(&mut self, at: &str) -> Result<(), ImportError> {
        self.count += 1;
        match self.count > MOST {
            true => Err(ImportError::new(at, format!("there are more than {MOST} references"))),
            false => Ok(()),
        }
    }

    /// An agent file, as an agent of the foreign kind.
    fn agent(&mut self, path: &str, at: &str) -> Result<Map<String, Value>, ImportError> {
        let text = self.directory.read(path, at)?;
        let (mut file, findings) = agent_md::read(path, &text);
        for finding in &findings {
            if finding.code != code::UNKNOWN_AGENT_FILE_KEY {
                return Err(ImportError::new(at, finding.to_string()));
            }
            let what = format!("{}: left out: nothing here reads it", finding.message);
            self.report.differs(format!("{at}.$agent_md"), what);
        }
        let mut take = |key: &str| file.fields.remove(key).unwrap_or(Value::Null);
        let name = take("name");
        if !name.is_string() {
            return Err(ImportError::new(at, format!("{} has no `name`", shown(path))));
        }
        let binding = take("worker").get("subagent_type").cloned().unwrap_or(Value::Null);
        let profile = json!({
            "system_prompt": take("system"), "model": take("model"), "effort": take("effort"),
            "tools": take("tools"), "description": take("description"), "worker_binding": binding,
        });
        Ok(Map::from_iter([("name".to_owned(), name), ("profile".to_owned(), profile)]))
    }
}

fn inner(at: &str, key: &str) -> String {
    let key: String = key.chars().filter(|c| !c.is_control()).take(80).collect();
    if at.is_empty() { key } else { format!("{at}.{key}") }
}
