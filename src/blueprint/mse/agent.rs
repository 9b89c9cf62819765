//! Agents while they are read, and the writer of one.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    draft::Options,
    lua::{Lines, braces, key, quote},
};
use crate::blueprint::agent_md;

/// Up to here a system prompt stands in the blueprint itself; a longer one has a file.
const INLINE: usize = 120;
/// The edition from which on the text of an agent file is literal.
const LITERAL_FROM: u32 = 2;

/// The agents of a blueprint.
#[derive(Debug, Default)]
pub(crate) struct Agents {
    /// The default operator.
    pub operator: Option<String>,
    /// The table of agents.
    pub text: String,
    /// Files beside the blueprint, by path.
    pub files: Vec<(String, String)>,
    /// Files that programs read.
    pub read: Vec<String>,
    /// True if a schema is used.
    pub schema: bool,
    /// The directory of its files.
    pub dir: String,
}

/// The parts of a blueprint that agents refer to.
pub(crate) struct Around<'v> {
    pub operators: BTreeMap<&'v str, String>,
    pub runners: BTreeMap<&'v str, &'v Value>,
    pub default_runner: Option<&'v str>,
    pub subprocesses: BTreeMap<&'v str, &'v Value>,
    pub default_kind: &'v str,
}

/// One agent, as it is written.
#[derive(Default)]
pub(crate) struct Agent {
    pub name: String,
    pub operator: String,
    pub lines: Vec<String>,
    pub comments: Vec<String>,
    pub system: Option<String>,
    /// The fields of its file beside the system prompt.
    pub about: Map<String, Value>,
    pub seated: bool,
}

/// Writes an agent into the table of agents.
pub(crate) fn write(agent: Agent, lines: &mut Lines, all: &mut Agents, options: &Options) {
    let Agent { name, operator, lines: own, comments, system, mut about, seated } = agent;
    let mut entries = Vec::new();
    if !(seated && all.operator.as_ref() == Some(&operator)) {
        entries.push(format!("operator = {}", quote(&operator)));
    }
    entries.extend(own);
    let long = system.as_ref().filter(|it| it.contains('\n') || it.chars().count() > INLINE);
    let mut call = None;
    if let Some(text) = long {
        let path = format!("{}/{name}.md", all.dir);
        about.insert("name".to_owned(), name.as_str().into());
        about.insert("system".to_owned(), text.as_str().into());
        all.files.push((path.clone(), agent_md::write(&about)));
        if is_template(text) && options.edition >= LITERAL_FROM {
            entries.push("template = true".to_owned());
        }
        call = Some(format!("swarm.agent_md({}, ", quote(&path)));
    } else {
        if let Some(text) = system {
            entries.push(format!("system = {}", quote(&text)));
        }
        for (key, value) in &about {
            entries.push(format!("{key} = {}", quote(value.as_str().unwrap_or_default())));
        }
    }
    for comment in &comments {
        lines.comment(comment);
    }
    let (before, after) = match &call {
        Some(call) => (call.as_str(), ")"),
        None => ("", ""),
    };
    lines.line(format!("{} = {before}{}{after},", key(&name), braces(&entries, 2)));
}

/// Returns true if a text has tags of a template.
pub(crate) fn is_template(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|tag| text.contains(tag))
}
