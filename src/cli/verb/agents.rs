//! `agents`: takes agents in that are Markdown files, and writes a blueprint's agents as such files.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::{
    blueprint::{
        Finding, MAX_FILE_BYTES, Operators as _, Position,
        agent_md::{self, AgentFile, KeyReport, Standing},
        code, read_text,
    },
    cli::{
        compile,
        context::Context,
        exit::{Exit, Stop},
    },
};

/// The maximum depth of directories of agents.
const DEEPEST: usize = 4;
/// Files that are looked at.
const MOST_FILES: usize = 1_000;

/// Import agents from Markdown files, or export them
#[derive(Debug, Args)]
pub struct Agents {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Import the agents of a directory, such as .claude/agents
    Import(Import),
    /// Write the agents of a blueprint as Markdown files
    Export {
        /// The blueprint
        file: PathBuf,
        /// Directory to write them to
        #[arg(long, default_value = "agents")]
        into: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Import {
    /// A directory of .md files, or one file
    from: PathBuf,
    /// Directory to write them to; NAME.lua beside it lists them for `require("./NAME")`
    #[arg(long, default_value = "agents")]
    into: PathBuf,
    /// Operator of the imported agents; those with labels have `queue` if it is no queue
    #[arg(long, default_value = "main-ai")]
    operator: String,
    /// Prefix names that several agents share with the name of their directory
    #[arg(long)]
    prefix: bool,
    /// Report how each key is used
    #[arg(short, long)]
    verbose: bool,
    /// Write nothing; report how each key would be used
    #[arg(long)]
    dry_run: bool,
}

impl Candidate {
    fn to_json(&self) -> Value {
        let Self { path, name, file, findings, problem } = self;
        json!({
            "file": path.display().to_string(), "name": name, "keys": file.report,
            "findings": findings, "problem": problem, "text": text_of(file),
        })
    }
}

impl Agents {
    /// Runs the command.
    ///
    /// # Errors
    /// A file that cannot be read or taken in, one that is already there.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        match &self.action {
            Action::Import(import) => import.execute(cx),
            Action::Export { file, into } => export(cx, file, into),
        }
    }
}

/// An agent's file, as it was read.
struct Candidate {
    path: PathBuf,
    name: String,
    file: AgentFile,
    findings: Vec<Finding>,
    /// The problem that prevents the import.
    problem: Option<String>,
}

impl Import {
    fn execute(&self, cx: &Context) -> Result<Exit> {
        let mut files = Vec::new();
        markdown(&self.from, 0, &mut files)?;
        files.sort();
        if files.is_empty() {
            let message = format!("{} has no .md files", self.from.display());
            return Err(Stop::new(Exit::NotFound, message).into());
        }
        let mut all = Vec::new();
        for path in files {
            match self.candidate(path)? {
                Ok(candidate) => all.push(candidate),
                Err(path) => {
                    cx.terminal
                        .say(&format!("{}: no agent, it has no frontmatter", path.display()));
                }
            }
        }
        self.tell_apart(&mut all);
        if cx.terminal.json {
            let shown: Vec<_> = all.iter().map(Candidate::to_json).collect();
            cx.terminal.print_json(&shown)?;
        } else if self.verbose || self.dry_run {
            for candidate in &all {
                cx.terminal.print(&report(&candidate.path, &candidate.name, &candidate.file))?;
            }
        } else {
            for candidate in &all {
                if let Some(text) = text_of(&candidate.file) {
                    cx.terminal.print(&format!("{}: text: {text}", candidate.name))?;
                }
            }
        }
        let (good, refused): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|it| it.problem.is_none());
        let good: Vec<_> = good.into_iter().map(|it| (it.name, it.file.fields)).collect();
        if !self.dry_run && !good.is_empty() {
            self.write(cx, &good)?;
        }
        // What was not taken in stands at the end, where it is read.
        if !refused.is_empty() {
            cx.terminal.say(&format!("{} taken in, {} refused:", good.len(), refused.len()));
        }
        for candidate in &refused {
            let problem = candidate.problem.as_deref().unwrap_or_default();
            cx.terminal.say(&format!("  {}: {problem}", candidate.path.display()));
        }
        Ok(if good.is_empty() { Exit::Invalid } else { Exit::Ok })
    }

    /// Reads a file; gives the path back where it is no agent's.
    fn candidate(&self, path: PathBuf) -> Result<Result<Candidate, PathBuf>> {
        let text = match read_text(&path, MAX_FILE_BYTES as u64) {
            Ok(text) => text,
            // The others of a directory are taken in.
            Err(error) if self.from.is_dir() => {
                let name = plain_name(&path.file_stem().unwrap_or_default().to_string_lossy());
                let file =
                    AgentFile { fields: Map::new(), report: Vec::new(), body_at: Position::START };
                let problem = Some(format!("cannot be read: {error}"));
                return Ok(Ok(Candidate { path, name, file, findings: Vec::new(), problem }));
            }
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        if self.from.is_dir() && !text.trim_start_matches('\u{feff}').starts_with("---") {
            return Ok(Err(path));
        }
        let (mut file, mut findings) = agent_md::read(&path.display().to_string(), &text);
        // What a file says that nothing here knows is not taken over, and stops nothing.
        findings.retain(|finding| {
            finding.code != code::UNKNOWN_AGENT_FILE_KEY || {
                let key = finding.message.split('`').nth(1).unwrap_or_default().to_owned();
                let reason = "left out; nothing here knows it";
                file.report.push(KeyReport { key, standing: Standing::Advisory, reason });
                false
            }
        });
        // An agent without a list of tools and one with an empty list are the same here.
        let empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        if file.fields.get("tools").is_some_and(empty) {
            file.fields.remove("tools");
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let given = file.fields.get("name").and_then(Value::as_str).unwrap_or(&stem);
        let name = plain_name(given);
        let problem = match (findings.first(), name.is_empty()) {
            (Some(finding), _) => Some(finding.to_string()),
            (None, true) => Some(format!("{given:?} cannot be an agent's name")),
            (None, false) => None,
        };
        Ok(Ok(Candidate { path, name, file, findings, problem }))
    }

    /// Refuses the second agent of a name, or gives those that share one the names of their
    /// directories as well.
    fn tell_apart(&self, all: &mut [Candidate]) {
        let mut count: BTreeMap<String, usize> = BTreeMap::new();
        for candidate in all.iter() {
            *count.entry(candidate.name.clone()).or_default() += 1;
        }
        if self.prefix {
            for candidate in all.iter_mut().filter(|it| count[&it.name] > 1) {
                candidate.name = prefixed(&self.from, &candidate.path, &candidate.name);
            }
        }
        let mut taken: BTreeMap<String, PathBuf> = BTreeMap::new();
        for candidate in all.iter_mut().filter(|it| it.problem.is_none()) {
            if let Some(other) = taken.get(&candidate.name) {
                let offer = prefixed(&self.from, &candidate.path, &candidate.name);
                let offer = match self.prefix || offer == candidate.name {
                    true => String::new(),
                    false => format!("; --prefix would call it `{offer}`"),
                };
                let (name, other) = (&candidate.name, other.display());
                candidate.problem = Some(format!("{other} is the agent `{name}` already{offer}"));
            } else {
                taken.insert(candidate.name.clone(), candidate.path.clone());
            }
        }
    }

    fn write(&self, cx: &Context, good: &[(String, Map<String, Value>)]) -> Result<()> {
        let list = self.list()?;
        let is_queue = compile::known(&cx.config).kind(&self.operator) == Some("queue");
        // Only a queue has workers with labels.
        let queue = if is_queue { self.operator.as_str() } else { "queue" };
        let mut files = texts(&self.into, good);
        files.push((list.clone(), self.listing(good, queue)));
        write_new(&files)?;
        cx.terminal.say(&format!(
            "wrote {} agent(s) to {} and {}",
            good.len(),
            self.into.display(),
            list.display()
        ));
        let labeled = good.iter().filter(|(_, fields)| fields.contains_key("labels")).count();
        if labeled > 0 && queue != self.operator {
            cx.terminal.say(&format!("  {labeled} with labels: for the operator `{queue}`"));
        }
        cx.terminal.say(&format!(
            "  next: `agents = require(\"./{}\")` in a blueprint beside it",
            self.into.file_name().unwrap_or_default().to_string_lossy()
        ));
        Ok(())
    }

    /// The file of the module that lists them: NAME.lua beside the directory NAME.
    fn list(&self) -> Result<PathBuf> {
        let name = self.into.file_name().and_then(OsStr::to_str);
        // `require` takes a name that ends so for that of the module itself.
        match name.filter(|it| !it.ends_with(".lua") && !it.ends_with(".luau")) {
            Some(name) => Ok(self.into.with_file_name(format!("{name}.lua"))),
            None => {
                let message = format!("--into {} names no directory", self.into.display());
                Err(Stop::usage(message).next("name one, such as `--into agents`").into())
            }
        }
    }

    /// The module that lists them.
    fn listing(&self, agents: &[(String, Map<String, Value>)], queue: &str) -> String {
        let dir = self.into.file_name().unwrap_or_default().to_string_lossy();
        let mut out = String::from("local swarm = require(\"swarm\")\n\nreturn {\n");
        for (name, fields) in agents {
            let tools = fields.get("tools").and_then(Value::as_array);
            let tools = tools.map(|tools| {
                let tools: Vec<_> = tools.iter().filter_map(Value::as_str).map(lua_text).collect();
                format!(", tools = {{ {} }}", tools.join(", "))
            });
            let binding = fields.get("worker").and_then(|it| it["subagent_type"].as_str());
            let operator = match fields.contains_key("labels") {
                true => queue,
                false => self.operator.as_str(),
            };
            let worker = match operator {
                "main-ai" => format!(
                    ", worker = {{ subagent_type = {}{} }}",
                    lua_text(binding.unwrap_or(name)),
                    tools.unwrap_or_default()
                ),
                _ => String::new(),
            };
            out.push_str(&format!(
                "  [{}] = swarm.agent_md({}, {{ operator = {}{worker} }}),\n",
                lua_text(name),
                lua_text(&format!("{dir}/{name}.md")),
                lua_text(operator),
            ));
        }
        out.push_str("}\n");
        out
    }
}

fn export(cx: &Context, file: &Path, into: &Path) -> Result<Exit> {
    let bundle = compile::load(file)?;
    let agents = compile::agents(&bundle, &cx.config).ok_or_else(|| {
        let shown = file.display();
        Stop::new(Exit::Invalid, format!("{shown} has errors"))
            .next(format!("moonswarm check {shown}"))
    })?;
    write_new(&texts(into, &agents))?;
    cx.terminal.say(&format!("wrote {} agent(s) to {}", agents.len(), into.display()));
    Ok(Exit::Ok)
}

/// Returns the notice about the reading of a file's text, if there is one.
fn text_of(file: &AgentFile) -> Option<String> {
    let text = file.fields.get("system").and_then(Value::as_str)?;
    let marks = text.matches("{{").count() + text.matches("{%").count();
    match file.fields.get("template").and_then(Value::as_bool) {
        Some(true) => Some("a template".to_owned()),
        Some(false) | None if marks == 0 => None,
        Some(false) | None => Some(format!(
            "literal: {marks} `{{{{` or `{{%` stay as they are (a blueprint of edition 1 reads a template)"
        )),
    }
}

fn report(path: &Path, name: &str, file: &AgentFile) -> String {
    let mut out = format!("{} ({})", name, path.display());
    for key in &file.report {
        let standing = match key.standing {
            Standing::Enforced => "enforced",
            Standing::Advisory => "advisory",
            Standing::Refused => "refused",
        };
        out.push_str(&format!("\n  {}: {standing}: {}", key.key, key.reason));
    }
    if let Some(text) = text_of(file) {
        out.push_str(&format!("\n  text: {text}"));
    }
    out
}

fn markdown(from: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    if !from.is_dir() {
        files.push(from.to_owned());
        return Ok(());
    }
    let entries = std::fs::read_dir(from)
        .map_err(|error| Stop::new(Exit::NotFound, format!("read {}: {error}", from.display())))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("read {}", from.display()))?;
        let kind = entry.file_type().with_context(|| format!("read {}", from.display()))?;
        let path = entry.path();
        if kind.is_file() && path.extension().is_some_and(|it| it == "md") {
            files.push(path);
        } else if kind.is_dir() && depth < DEEPEST {
            markdown(&path, depth + 1, files)?;
        }
        if files.len() > MOST_FILES {
            let message = format!("{} has more than {MOST_FILES} files", from.display());
            return Err(Stop::usage(message).next("name a smaller directory").into());
        }
    }
    Ok(())
}

/// A name as agents have it: what others write as `Code Reviewer` is `code-reviewer`. Empty where
/// nothing of it can stay.
fn plain_name(given: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if given.starts_with(|c: char| c.is_ascii_alphanumeric()) && given.chars().all(plain) {
        return given.chars().take(64).collect();
    }
    let words = given.split(|c: char| !plain(c)).filter(|word| !word.is_empty());
    let name = words.collect::<Vec<_>>().join("-").to_ascii_lowercase();
    name.trim_start_matches(['-', '_', '.']).chars().take(64).collect()
}

/// A name after the directory that the file is in; one that is called `agents` says nothing.
fn prefixed(from: &Path, path: &Path, name: &str) -> String {
    let within = path.strip_prefix(from).unwrap_or(path);
    let dirs = within.parent().into_iter().flat_map(Path::components).rev();
    let dirs = dirs.map(|dir| plain_name(&dir.as_os_str().to_string_lossy()));
    match dirs.into_iter().find(|dir| !dir.is_empty() && dir != "agents") {
        Some(dir) => format!("{dir}-{name}").chars().take(64).collect(),
        None => name.to_owned(),
    }
}

/// The files of agents, each with its text.
fn texts(into: &Path, agents: &[(String, Map<String, Value>)]) -> Vec<(PathBuf, String)> {
    let file = |(name, fields): &(String, Map<String, Value>)| {
        let mut fields = fields.clone();
        fields.insert("name".to_owned(), name.as_str().into());
        (into.join(format!("{name}.md")), agent_md::write(&fields))
    };
    agents.iter().map(file).collect()
}

/// Writes the files that are not there yet.
///
/// # Errors
/// Fails before anything is written when a file is there with another text, or is named twice.
pub(super) fn write_new(files: &[(PathBuf, String)]) -> Result<()> {
    let mut texts = BTreeMap::new();
    for (path, text) in files {
        is_new(path, text)?;
        if texts.insert(path, text).is_some_and(|other| other != text) {
            let message = format!("two texts are for the one file {}", path.display());
            return Err(Stop::new(Exit::Conflict, message).into());
        }
    }
    for (path, text) in files {
        if !is_new(path, text)? {
            continue;
        }
        let dir = path.parent().unwrap_or(Path::new(""));
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Returns true if a file is not there yet, and false if it is there with this text.
fn is_new(path: &Path, text: &str) -> Result<bool> {
    if std::fs::read_to_string(path).is_ok_and(|was| was == text) {
        return Ok(false);
    }
    if path.exists() {
        let message = format!("{} is already there, and differs", path.display());
        return Err(Stop::new(Exit::Conflict, message)
            .next("name another directory with --into")
            .into());
    }
    Ok(true)
}

/// A text as Lua writes it.
fn lua_text(text: &str) -> String {
    format!("{:?}", text.replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Layer};

    #[test]
    fn what_is_imported_is_a_module_that_a_blueprint_requires() {
        let dir = tempfile::tempdir().unwrap();
        let import = Import {
            from: dir.path().join("x"),
            into: dir.path().join("agents"),
            operator: "main-ai".into(),
            prefix: false,
            verbose: false,
            dry_run: false,
        };
        let text = "---\nname: reviewer\ndescription: Use when: ready\ntools: Read, Agent(x)\n---\nYou review.";
        let fields = agent_md::parse("r.md", text).unwrap().fields;
        let agents = vec![("reviewer".to_owned(), fields.clone())];
        let mut files = texts(&import.into, &agents);
        files.push((import.list().unwrap(), import.listing(&agents, "queue")));
        write_new(&files).unwrap();
        let source = "local swarm = require(\"swarm\")\nreturn swarm.blueprint { name = \"t\", agents = require(\"./agents\"),\n \
                      flow = function(ctx) return ctx:run(\"reviewer\") end }";
        let path = dir.path().join("t.lua");
        std::fs::write(&path, source).unwrap();
        let bundle = compile::load(&path).unwrap();
        let found = compile::compile(&bundle, &Config::from(Layer::default())).findings;
        assert_eq!(found, []);
        let back = compile::agents(&bundle, &Config::from(Layer::default())).unwrap();
        assert_eq!(back[0].1["tools"], json!(["Read", "Agent(x)"]));
        assert_eq!(back[0].1["system"], "You review.");
        assert_eq!(back[0].1["description"], fields["description"]);
        let other = (dir.path().join("agents.lua"), "other".to_owned());
        assert!(write_new(&[(dir.path().join("b.md"), String::new()), other]).is_err());
        let twice = ["one", "two"].map(|text| (dir.path().join("b.md"), text.to_owned()));
        assert!(write_new(&twice).is_err());
        assert!(!dir.path().join("b.md").exists(), "nothing is written");
    }
}
