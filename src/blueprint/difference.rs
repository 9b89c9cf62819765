//! The difference of two versions of a blueprint: of its declarations, and of its files as text.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use similar::{ChangeTag, TextDiff};
use utoipa::ToSchema;

use super::{Agent, Bundle, Definition};

/// The maximum size of the text of all files together, in bytes.
const TEXT: usize = 512 << 10;
/// The time after which the difference of a file is made coarser.
const PATIENCE: Duration = Duration::from_millis(500);

/// The change of a part from one version to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Only the second version has it.
    Added,
    /// Only the first version has it.
    Removed,
    /// Both have it, and it differs.
    Changed,
}

/// A file that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileChange {
    /// Its path in the bundle.
    pub path: String,
    /// The change.
    pub change: Change,
    /// The number of added lines.
    pub added: usize,
    /// The number of removed lines.
    pub removed: usize,
    /// The difference in the unified format; empty if there is no more room for it.
    pub unified: String,
}

/// An agent that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentChange {
    /// Its name.
    pub name: String,
    /// The change.
    pub change: Change,
    /// The parts of a changed one that differ: `operator`, `prompt`, `retry`, …
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
}

/// Returns the names of the fields that differ. A new field cannot be forgotten.
macro_rules! differing {
    ($a:expr, $b:expr, $type:ident { $($field:ident),+ $(,)? }) => {{
        let (a, b) = ($a, $b);
        let $type { $($field: _),+ } = a;
        let parts = [$((stringify!($field), a.$field != b.$field)),+];
        parts.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()).collect()
    }};
}

/// Returns the files that differ, by path.
pub fn changed_files(a: &Bundle, b: &Bundle) -> Vec<FileChange> {
    let paths: BTreeSet<&String> = a.files().keys().chain(b.files().keys()).collect();
    let mut room = TEXT;
    let mut found = Vec::new();
    for path in paths {
        let (before, after) = (a.file(path), b.file(path));
        let change = match (before, after) {
            (Some(before), Some(after)) if before == after => continue,
            (Some(_), Some(_)) => Change::Changed,
            (Some(_), None) => Change::Removed,
            (None, _) => Change::Added,
        };
        let text = |it: Option<&Arc<str>>| it.cloned().unwrap_or_else(|| Arc::from(""));
        let (before, after) = (text(before), text(after));
        let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(&*before, &*after);
        let count = |tag| diff.iter_all_changes().filter(|it| it.tag() == tag).count();
        let (added, removed) = (count(ChangeTag::Insert), count(ChangeTag::Delete));
        let (from, to) = (format!("a/{path}"), format!("b/{path}"));
        let unified = diff.unified_diff().context_radius(3).header(&from, &to).to_string();
        let unified = if unified.len() <= room { unified } else { String::new() };
        room -= unified.len();
        found.push(FileChange { path: path.clone(), change, added, removed, unified });
    }
    found
}

/// Returns the agents that differ, by name.
pub fn changed_agents(a: &Definition, b: &Definition) -> Vec<AgentChange> {
    let names: BTreeSet<&String> = a.agents.keys().chain(b.agents.keys()).collect();
    let mut found = Vec::new();
    for name in names {
        let (change, parts) = match (a.agents.get(name), b.agents.get(name)) {
            (Some(before), Some(after)) if before == after => continue,
            (Some(before), Some(after)) => (Change::Changed, agent_parts(before, after)),
            (Some(_), None) => (Change::Removed, Vec::new()),
            (None, _) => (Change::Added, Vec::new()),
        };
        found.push(AgentChange { name: name.clone(), change, parts });
    }
    found
}

/// Returns the parts of the declarations that differ, but for the agents: `input`, `flow` of a table,
/// `on`, `budget`, …
pub fn changed_parts(a: &Definition, b: &Definition) -> Vec<String> {
    let parts: Vec<String> = differing!(
        a,
        b,
        Definition {
            name,
            edition,
            description,
            tool,
            input,
            output,
            agents,
            flow,
            on,
            middleware,
            max_steps,
            max_depth,
            wall_ms,
            max_width,
            max_open_tasks,
            budget,
        }
    );
    parts.into_iter().filter(|part| part != "agents").collect()
}

fn agent_parts(a: &Agent, b: &Agent) -> Vec<String> {
    differing!(
        a,
        b,
        Agent {
            operator,
            context,
            audit,
            system,
            literal,
            prompt,
            description,
            input,
            output,
            worker,
            command,
            check,
            cwd,
            env,
            environment,
            queue,
            labels,
            tool,
            asking,
            has_fn,
            retry,
            timeout_ms,
            park_ms,
            lease,
            max_concurrency,
            tools,
            budget,
            model,
            effort,
            file_turns,
            model_loop,
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_declarations_are_compared() {
        let bundle = |files: &[(&str, &str)]| {
            let files = files.iter().map(|(path, text)| ((*path).to_owned(), Arc::from(*text)));
            Bundle::from_files(files.collect(), Some("main.lua")).unwrap()
        };
        let a = bundle(&[("main.lua", "one\ntwo\nthree\n"), ("gone.md", "x\n"), ("same.md", "s")]);
        let b = bundle(&[("main.lua", "one\n2\nthree\n"), ("new.md", "y\n"), ("same.md", "s")]);
        let files = changed_files(&a, &b);
        let shown: Vec<_> =
            files.iter().map(|it| (&*it.path, it.change, it.added, it.removed)).collect();
        assert_eq!(
            shown,
            [
                ("gone.md", Change::Removed, 0, 1),
                ("main.lua", Change::Changed, 1, 1),
                ("new.md", Change::Added, 1, 0),
            ]
        );
        assert_eq!(
            files[1].unified,
            "--- a/main.lua\n+++ b/main.lua\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
        );
        let agent = |operator: &str| Agent { operator: operator.to_owned(), ..Agent::default() };
        let with = |agents: &[(&str, &str)], max_steps| Definition {
            agents: agents.iter().map(|(name, it)| ((*name).to_owned(), agent(it))).collect(),
            max_steps,
            ..Definition::default()
        };
        let (a, b) = (with(&[("x", "echo"), ("y", "echo")], None), with(&[("x", "lua")], Some(3)));
        let agents = changed_agents(&a, &b);
        assert_eq!((&*agents[0].name, agents[0].change), ("x", Change::Changed));
        assert_eq!(agents[0].parts, ["operator"]);
        assert_eq!((&*agents[1].name, agents[1].change), ("y", Change::Removed));
        assert_eq!(changed_parts(&a, &b), ["max_steps"]);
    }
}
