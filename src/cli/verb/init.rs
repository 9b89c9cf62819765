//! `init`: a blueprint to begin with, its test, and what an editor needs.

use std::{fs, fs::OpenOptions, io::Write, path::Path};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;

use crate::{
    blueprint::{
        gallery::{GALLERY, example},
        is_name, stubs,
    },
    cli::{
        context::Context,
        exit::{Exit, Stop},
        render::fitted,
    },
};

const TEMPLATE: &str = include_str!("init.lua");
const TEST: &str = include_str!("init_test.lua");
const PLACEHOLDER: &str = "@NAME@";

/// Create a blueprint that runs without any key, its test, and stubs for editors
#[derive(Debug, Args)]
pub struct Init {
    /// Name of the blueprint; the files are NAME.lua and NAME_test.lua
    name: Option<String>,
    /// Start from an example of the gallery
    #[arg(long, value_name = "EXAMPLE")]
    from: Option<String>,
    /// List the examples of the gallery
    #[arg(long, conflicts_with_all = ["name", "from"])]
    list: bool,
    /// Write only the stubs for editors
    #[arg(long, conflicts_with_all = ["name", "from", "list"])]
    stubs: bool,
}

impl Init {
    /// Runs the command.
    ///
    /// # Errors
    /// A name that cannot be one, a file that is already there, no such example.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        let here = Path::new(".");
        if self.list {
            return list(cx);
        }
        if self.stubs {
            let stubs = write_stubs(here)?;
            if cx.terminal.json {
                cx.terminal.print_json(&json!({"stubs": stubs}))?;
                return Ok(Exit::Ok);
            }
            for file in stubs {
                cx.terminal.say(&format!("wrote {file}"));
            }
            return Ok(Exit::Ok);
        }
        let name = match (&self.name, &self.from) {
            (Some(name), _) => name.strip_suffix(".lua").unwrap_or(name),
            (None, Some(from)) => from,
            (None, None) => "hello",
        };
        let [file, test] = write(here, name, self.from.as_deref())?;
        let stubs = write_stubs(here)?;
        if cx.terminal.json {
            cx.terminal
                .print_json(&json!({"name": name, "file": file, "test": test, "stubs": stubs}))?;
            return Ok(Exit::Ok);
        }
        cx.terminal.say(&format!("wrote {file} and {test}"));
        if self.from.is_none() {
            cx.terminal.say(&format!("  next: moonswarm run {file} who=moon"));
        } else {
            cx.terminal.say(&format!("  next: moonswarm graph {file}"));
            cx.terminal.say(&format!("        moonswarm run {file} KEY=VALUE"));
        }
        cx.terminal.say(&format!("        moonswarm check {file}"));
        cx.terminal.say(&format!("        moonswarm test {test}"));
        Ok(Exit::Ok)
    }
}

fn list(cx: &Context) -> Result<Exit> {
    if cx.terminal.json {
        let all = GALLERY.iter().map(|it| json!({"name": it.name, "about": it.about}));
        cx.terminal.print_json(&all.collect::<Vec<_>>())?;
        return Ok(Exit::Ok);
    }
    let rows = GALLERY.iter().map(|it| vec![it.name.to_owned(), it.about.to_owned()]);
    cx.terminal.print(&fitted(cx.terminal.width(), &["example", "what it does"], rows))?;
    cx.terminal.say(
        "  next: moonswarm init mine --from migration   # writes the example and its test here",
    );
    cx.terminal
        .say("        moonswarm test mine_test.lua           # runs it, with its agents mocked");
    cx.terminal.say("        moonswarm run mine.lua KEY=VALUE       # runs it, with the operators that it names");
    Ok(Exit::Ok)
}

/// Writes a blueprint and its test; gives their files.
fn write(dir: &Path, name: &str, from: Option<&str>) -> Result<[String; 2]> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if !is_name(name) || !name.chars().all(fits) {
        return Err(Stop::usage(format!("{name:?} cannot be a blueprint's name"))
            .next("use at most 64 lower-case letters, digits, - and _, a letter or digit first")
            .into());
    }
    let (source, test) = match from {
        None => (TEMPLATE.replace(PLACEHOLDER, name), TEST.replace(PLACEHOLDER, name)),
        Some(from) => {
            let it = example(from).ok_or_else(|| {
                Stop::new(Exit::NotFound, format!("the gallery has no {from}"))
                    .next("moonswarm init --list")
            })?;
            let named = |text: &str, quoted: &str, by: &str| text.replace(quoted, by);
            (
                named(it.source, &format!("name = \"{from}\""), &format!("name = \"{name}\"")),
                named(it.test, &format!("\"{from}.lua\""), &format!("\"{name}.lua\"")),
            )
        }
    };
    let files = [format!("{name}.lua"), format!("{name}_test.lua")];
    if let Some(there) = files.iter().find(|file| dir.join(file).exists()) {
        let stop = Stop::new(Exit::Conflict, format!("{there} is already there"));
        return Err(stop.next("moonswarm init OTHER-NAME").into());
    }
    for (file, text) in files.iter().zip([source, test]) {
        let mut to = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(dir.join(file))
            .with_context(|| format!("write {file}"))?;
        to.write_all(text.as_bytes()).with_context(|| format!("write {file}"))?;
    }
    Ok(files)
}

/// Writes what editors are told of the library; settings that are there stay as they are.
fn write_stubs(dir: &Path) -> Result<Vec<String>> {
    let mut written = Vec::new();
    let files = [
        (".luals/swarm.lua", stubs::luacats()),
        (".luals/swarm/test.lua", stubs::luacats_test()),
        (".luals/luau.lua", stubs::luacats_luau().to_owned()),
        (".luals/moonswarm.d.luau", stubs::luau()),
        (".luarc.json", stubs::luarc()),
    ];
    for (file, text) in files {
        let path = dir.join(file);
        if file == ".luarc.json" && path.exists() {
            continue;
        }
        fs::create_dir_all(path.parent().unwrap_or(dir))
            .with_context(|| format!("write {file}"))?;
        fs::write(&path, text).with_context(|| format!("write {file}"))?;
        written.push(file.to_owned());
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Clock,
        testkit::{self, Options, Snapshots},
    };

    #[test]
    fn a_file_that_is_there_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(write(dir.path(), "first", None).unwrap(), ["first.lua", "first_test.lua"]);
        let text = fs::read_to_string(dir.path().join("first.lua")).unwrap();
        assert!(text.contains("name = \"first\"") && !text.contains(PLACEHOLDER));
        let again = write(dir.path(), "first", None).unwrap_err();
        assert!(again.to_string().contains("already there"));
    }

    #[test]
    fn a_name_that_would_leave_the_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let long = "a".repeat(65);
        for name in ["", "../x", "a/b", "-x", "_x", "Ü", &long] {
            assert!(write(dir.path(), name, None).is_err(), "{name}");
        }
        assert!(write(dir.path(), &long[1..], None).is_ok());
    }

    #[test]
    fn what_is_made_passes_its_test() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "mine", None).unwrap();
        write(dir.path(), "trip", Some("saga")).unwrap();
        assert!(write(dir.path(), "x", Some("none")).is_err());
        let known = crate::host::builtin_operators();
        let options =
            Options { filter: None, crash: true, snapshots: Snapshots::Compare, coverage: None };
        for name in ["mine_test.lua", "trip_test.lua"] {
            let report = testkit::run(&dir.path().join(name), &known, &options, &Clock::manual(0));
            assert!(report.broken.is_none(), "{report:?}");
            for test in &report.tests {
                assert_eq!(test.problem(), None, "{}", test.name);
            }
        }
    }

    #[test]
    fn stubs_are_written_and_settings_stay() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(write_stubs(dir.path()).unwrap().len(), 5);
        fs::write(dir.path().join(".luarc.json"), "{}").unwrap();
        assert_eq!(write_stubs(dir.path()).unwrap().len(), 4);
        assert_eq!(fs::read_to_string(dir.path().join(".luarc.json")).unwrap(), "{}");
    }
}
