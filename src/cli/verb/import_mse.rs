//! `import-mse`: writes blueprints of mlua-swarm as blueprints in Lua, with a report.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value, json};

use super::agents::write_new;
use crate::{
    blueprint::{
        Edition,
        mse::{self, Directory, Imported, Note, Options, Report},
        read_text,
    },
    cli::{
        compile,
        context::Context,
        exit::{Exit, Stop},
    },
};

/// The largest document, in bytes.
const LARGEST: u64 = 4 << 20;
/// Documents that one call imports.
const MOST_FILES: usize = 500;

/// Write blueprints of mlua-swarm (its JSON) as blueprints in Lua, with a report
#[derive(Debug, Args)]
pub struct ImportMse {
    /// A Blueprint JSON, or a directory with some
    from: PathBuf,
    /// The directory for the blueprints
    #[arg(long, default_value = ".")]
    into: PathBuf,
    /// Write the commands of programs as code, not as comments
    #[arg(long)]
    trust: bool,
    /// The operator of agents that called a model in the process of mlua-swarm (`agent_block`)
    #[arg(long, value_name = "OPERATOR")]
    model: Option<String>,
    /// Only report
    #[arg(long)]
    dry_run: bool,
}

impl ImportMse {
    /// Runs the command.
    ///
    /// # Errors
    /// A file that cannot be read or imported, one that is already there.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        let mut good: Vec<(PathBuf, Imported)> = Vec::new();
        let (mut failed, mut shown) = (0, Vec::new());
        for path in self.documents(cx)? {
            let imported = match self.import(cx, &path)? {
                Ok(Some(imported)) => imported,
                Ok(None) => continue,
                Err(problem) => {
                    failed += 1;
                    cx.terminal.say(&format!("{}: {problem}", path.display()));
                    shown.push(json!({ "file": path.display().to_string(), "problem": problem }));
                    continue;
                }
            };
            if good.iter().any(|(_, other)| other.name == imported.name) {
                failed += 1;
                let problem = format!("there is another blueprint `{}`", imported.name);
                cx.terminal.say(&format!("{}: {problem}", path.display()));
                shown.push(json!({ "file": path.display().to_string(), "problem": problem }));
                continue;
            }
            if !cx.terminal.json {
                cx.terminal.print(&told(&path, &imported))?;
            }
            shown.push(json!({
                "file": path.display().to_string(), "name": imported.name, "report": imported.report,
            }));
            good.push((path, imported));
        }
        if cx.terminal.json {
            cx.terminal.print_json(&shown)?;
        }
        if failed > 0 {
            cx.terminal.say(&format!("{failed} file(s) cannot be imported; nothing was written"));
            return Ok(Exit::Invalid);
        }
        if good.is_empty() {
            let message = format!("{} has no Blueprint JSON of mlua-swarm", self.from.display());
            return Err(Stop::new(Exit::NotFound, message).into());
        }
        if !self.dry_run {
            self.write(cx, &good)?;
        }
        Ok(Exit::Ok)
    }

    /// The JSON files that are named.
    fn documents(&self, cx: &Context) -> Result<Vec<PathBuf>> {
        if !self.from.is_dir() {
            if is_dsl(&self.from) {
                return Err(not_built(&self.from).into());
            }
            return Ok(vec![self.from.clone()]);
        }
        let mut found = Vec::new();
        let entries = std::fs::read_dir(&self.from);
        for entry in entries.with_context(|| format!("read {}", self.from.display()))? {
            let path = entry.with_context(|| format!("read {}", self.from.display()))?.path();
            if is_dsl(&path) {
                cx.terminal.say(&not_built(&path).message);
            } else if path.extension().is_some_and(|it| it == "json") {
                found.push(path);
            }
            if found.len() > MOST_FILES {
                let message =
                    format!("{} has more than {MOST_FILES} JSON files", self.from.display());
                return Err(Stop::usage(message).next("name a smaller directory").into());
            }
        }
        found.sort();
        Ok(found)
    }

    /// Imports a document; none, if another JSON file was found in a directory.
    fn import(&self, cx: &Context, path: &Path) -> Result<Result<Option<Imported>, String>> {
        let text = match read_text(path, LARGEST) {
            Ok(text) => text,
            Err(error) if self.from.is_dir() => return Ok(Err(format!("read it: {error}"))),
            Err(error) => {
                let message = format!("read {}: {error}", path.display());
                return Err(Stop::new(Exit::NotFound, message).into());
            }
        };
        let document: Value = match serde_json::from_str(&text) {
            Ok(document) => document,
            Err(error) => return Ok(Err(format!("it is not JSON: {error}"))),
        };
        if self.from.is_dir() && !(document.get("id").is_some() && document.get("flow").is_some()) {
            cx.terminal.say(&format!("{}: no blueprint of mlua-swarm", path.display()));
            return Ok(Ok(None));
        }
        let root = match self.from.is_dir() {
            true => self.from.as_path(),
            false => {
                path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
            }
        };
        let directory = Directory::open(root, path)
            .with_context(|| format!("open the directory of {}", path.display()))?;
        let options = Options {
            trust: self.trust,
            model: self.model.clone(),
            operators: operators(cx),
            edition: Edition::LATEST.number(),
        };
        let mut report = Report::default();
        let imported = mse::resolve(document, directory, &mut report)
            .and_then(|document| mse::import(&document, &options));
        Ok(match imported {
            Ok(mut imported) => {
                imported.report.differs.splice(0..0, report.differs);
                Ok(Some(imported))
            }
            Err(error) => Err(format!("failed to {error}")),
        })
    }

    fn write(&self, cx: &Context, all: &[(PathBuf, Imported)]) -> Result<()> {
        let mut files = Vec::new();
        for (_, imported) in all {
            let own = imported.files.iter();
            files.extend(own.map(|(path, text)| (self.into.join(path), text.clone())));
            files.push((self.file(imported), imported.lua.clone()));
        }
        write_new(&files)?;
        for (_, imported) in all {
            let (file, open) = (self.file(imported), imported.report.decide.len());
            match open {
                0 => cx.terminal.say(&format!("wrote {}", file.display())),
                _ => cx.terminal.say(&format!("wrote {}: {open} to decide", file.display())),
            }
        }
        if let [(_, one)] = all {
            cx.terminal.say(&format!("  next: moonswarm check {}", self.file(one).display()));
        } else {
            cx.terminal.say(&format!("  next: moonswarm check {}", self.into.display()));
        }
        Ok(())
    }

    fn file(&self, imported: &Imported) -> PathBuf {
        let file = format!("{}.lua", imported.name);
        if self.into == Path::new(".") { PathBuf::from(file) } else { self.into.join(file) }
    }
}

/// The operators that the configuration declares, and those that always exist.
fn operators(cx: &Context) -> BTreeSet<String> {
    let known = compile::known(&cx.config);
    known.names().map(|(name, _)| name.to_owned()).collect()
}

/// Returns true if a file is a blueprint in the Lua of mlua-swarm.
fn is_dsl(path: &Path) -> bool {
    path.to_string_lossy().ends_with(".bp.lua")
}

fn not_built(path: &Path) -> Stop {
    let message = format!("{} is a program that builds a blueprint", path.display());
    Stop::new(Exit::Invalid, message)
        .next(format!("mse bp build {} -o blueprint.json", path.display()))
}

/// Prints the result of an import.
fn told(path: &Path, imported: &Imported) -> String {
    let mut out = format!("{} ({})", imported.name, path.display());
    let Report { same, differs, decide } = &imported.report;
    for (word, notes) in [("same", same), ("differs", differs), ("decide", decide)] {
        for Note { at, what } in notes {
            out.push_str(&format!("\n  {word}: {at}: {what}"));
        }
    }
    out
}
