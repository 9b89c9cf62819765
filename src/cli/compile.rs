//! Blueprints on disk: what a run sends of them, and what `check` finds in them.
//!
//! The only file of this room that knows how a blueprint is read and compiled.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;
use serde_json::{Map, Value};

use super::exit::{Exit, Stop};
use crate::{
    blueprint::{self, Bundle, Finding, Position, code},
    config::{Config, Layer},
    host,
    lua::{Limits, Program},
    operator::Registry,
    protocol::Json,
};

/// The maximum number of configuration files that are searched for the declaration of an operator.
const MOST_CONFIGS: usize = 50;

/// A finding, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The file, relative to the bundle.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1, in characters.
    pub column: u32,
    /// The stable code.
    pub code: String,
    /// True if the blueprint can run all the same.
    pub severity: Severity,
    /// The problem.
    pub message: String,
    /// The repair.
    pub hint: Option<String>,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The blueprint cannot run.
    Error,
    /// The blueprint can run, but probably not as intended.
    Warning,
    /// The blueprint can run as intended; the note explains something.
    Note,
}

impl Severity {
    /// The word that JSON uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// The result of compiling a bundle.
#[derive(Debug, Clone, Default)]
pub struct Compiled {
    /// Everything that was found, in the order of places.
    pub findings: Vec<Found>,
    /// The recommendations, if the blueprint compiles.
    pub notes: Vec<Found>,
    /// The JSON Schema of the input, if the blueprint compiles and has one.
    pub input: Option<Json>,
}

/// Returns true if a word of the command line names a file rather than a stored blueprint.
pub fn is_path(word: &str) -> bool {
    let path = Path::new(word);
    word.contains(std::path::MAIN_SEPARATOR)
        || matches!(word, "." | "..")
        || path.extension().is_some_and(|ext| ext == "lua" || ext == "luau" || ext == "json")
        || path.is_file()
        || host::main_file(path).is_some()
}

/// Reads a blueprint with the files beside it; a directory is the blueprint of its main file.
///
/// # Errors
/// A file that cannot be read, or is no part of a bundle.
pub fn load(path: &Path) -> Result<Bundle, Stop> {
    let main = main_of(path)?;
    Bundle::load(&main).map_err(|error| {
        let (shown, message) = (main.display().to_string(), error.to_string());
        let is_named = message.contains(&format!("{shown:?}"));
        Stop::new(Exit::Invalid, if is_named { message } else { format!("{shown}: {message}") })
    })
}

/// Reads a blueprint for a check. Files that are no bundle are a finding, and no error.
///
/// # Errors
/// A blueprint that is not there.
pub fn read(path: &Path) -> Result<Result<Bundle, Found>, Stop> {
    let main = main_of(path)?;
    Ok(Bundle::load(&main).map_err(|error| {
        let file = main.file_name().unwrap_or_default().to_string_lossy();
        found(error.finding(&file))
    }))
}

/// Returns the finding for a file that [`host::left_out_of`] lists.
pub fn left_out(path: &Path) -> Found {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let message = "the file is left out: it is a link out of the directory, or no regular file";
    let finding = Finding::error(file, Position::START, code::BUNDLE, message).warning();
    found(finding.hint("copy the file into the directory, or check it where it is"))
}

/// The main file of a blueprint.
fn main_of(path: &Path) -> Result<PathBuf, Stop> {
    if !path.exists() {
        return Err(Stop::new(Exit::NotFound, format!("there is no {}", path.display()))
            .next("`moonswarm init` makes a blueprint to begin with"));
    }
    match path.is_dir() {
        true => host::main_file(path).ok_or_else(|| no_main(path)),
        false => Ok(path.to_owned()),
    }
}

/// A directory was named, and what to run of it is not clear.
fn no_main(dir: &Path) -> Stop {
    let stop = Stop::new(Exit::NotFound, format!("there is no main.lua in {}", dir.display()));
    match host::blueprints_in(dir).first() {
        Some(file) => stop.next(format!("name a file, such as {}", file.display())),
        None => stop.next("`moonswarm init` makes a blueprint to begin with"),
    }
}

/// A bundle as the API takes it.
pub fn program(bundle: &Bundle) -> Value {
    serde_json::to_value(bundle).expect("a bundle is plain text")
}

/// The text of a file of the bundle.
pub fn text<'a>(bundle: &'a Bundle, file: &str) -> Option<&'a str> {
    bundle.file(file).map(|text| &**text)
}

/// Compiles without a daemon and without running anything.
pub fn compile(bundle: &Bundle, config: &Config) -> Compiled {
    let operators = known(config);
    match Program::compile(bundle.clone(), &operators, &Limits::default()) {
        Ok((program, warnings)) => Compiled {
            findings: warnings.into_iter().map(found).collect(),
            notes: program.notes().into_iter().map(found).collect(),
            input: program.blueprint().definition().input.clone(),
        },
        Err(findings) => {
            let findings = findings.into_iter().map(found).collect();
            Compiled { findings, ..Compiled::default() }
        }
    }
}

/// Adds to each finding about an operator that is not declared the file that declares it, if there is
/// one beside the blueprint or here under another name than the one that is read.
pub fn name_declarations(findings: &mut [Found], path: &Path) {
    let missing = findings.iter_mut().filter(|it| it.code == code::UNKNOWN_OPERATOR);
    for finding in missing {
        let Some(name) = finding.message.split('`').nth(1) else { continue };
        let Some(file) = declaring(name, path) else { continue };
        let shown = file.display();
        finding.hint = Some(format!("{shown} declares `{name}`: --config {shown}"));
    }
}

/// A configuration file that declares an operator.
fn declaring(operator: &str, path: &Path) -> Option<PathBuf> {
    let beside = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dirs = beside.into_iter().chain([Path::new(".")]);
    let entries = dirs.flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    let mut files: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|it| it == "toml") && path.is_file())
        .take(MOST_CONFIGS)
        .collect();
    files.sort();
    files.into_iter().find(|file| {
        let layer = Layer::read(Some(file)).unwrap_or_default();
        layer.operators.is_some_and(|known| known.iter().any(|(name, _)| name == operator))
    })
}

/// The operators that a configuration knows; none of them is called.
pub fn known(config: &Config) -> Registry {
    crate::host::known_operators(&config.operators, config.environments.clone())
}

/// The graph of its flow, if it compiles.
pub fn graph(bundle: &Bundle, config: &Config) -> Option<blueprint::graph::GraphPart> {
    let operators = known(config);
    let compiled = Program::compile(bundle.clone(), &operators, &Limits::default());
    compiled.ok().map(|(program, _)| blueprint::graph::of(program.blueprint()))
}

/// Its agents as far as an agent file can say, by name, if it compiles.
pub fn agents(bundle: &Bundle, config: &Config) -> Option<Vec<(String, Map<String, Value>)>> {
    let operators = known(config);
    let compiled = Program::compile(bundle.clone(), &operators, &Limits::default());
    let (program, _) = compiled.ok()?;
    let agents = program.blueprint().definition().agents.iter().map(|(name, agent)| {
        let mut fields = Map::new();
        let text = |text: &Option<String>| text.as_deref().map(Value::from);
        // Without a binding, an agent file's sub-agent has the name of the agent.
        let worker = agent.worker.as_ref();
        let bound = worker.filter(|it| it.subagent_type != *name);
        let granted = worker.map_or(&[][..], |it| &it.tools);
        let tools = if agent.tools.is_empty() { granted } else { &agent.tools };
        let tools = (!tools.is_empty()).then(|| Value::from(tools.to_vec()));
        let turns = agent.model_loop.as_ref().and_then(|it| it.max_turns).or(agent.file_turns);
        // The text of a file is a template only where it says so.
        let marked = agent.system.as_ref().is_some_and(|it| it.contains("{{") || it.contains("{%"));
        let template = (marked && !agent.literal).then(|| Value::from(true));
        let labels = (!agent.labels.is_empty()).then(|| serde_json::json!(agent.labels));
        for (key, value) in [
            ("description", text(&agent.description)),
            ("tool", text(&agent.tool)),
            ("tools", tools),
            ("labels", labels),
            ("model", text(&agent.model)),
            ("effort", text(&agent.effort)),
            ("worker", bound.map(|it| serde_json::json!(it))),
            ("maxTurns", turns.map(Value::from)),
            ("template", template),
            ("system", text(&agent.system)),
        ] {
            fields.extend(value.map(|value| (key.to_owned(), value)));
        }
        (name.clone(), fields)
    });
    Some(agents.collect())
}

fn found(finding: Finding) -> Found {
    let Finding { file, line, column, code, severity, message, hint } = finding;
    let severity = match severity {
        blueprint::Severity::Error => Severity::Error,
        blueprint::Severity::Warning => Severity::Warning,
        blueprint::Severity::Note => Severity::Note,
    };
    Found { file, line, column, code: code.to_owned(), severity, message, hint }
}
