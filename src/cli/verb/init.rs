//! `init`: a blueprint to begin with.

use std::{fs::OpenOptions, io::Write, path::Path};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;

use crate::cli::{
    context::Context,
    exit::{Exit, Stop},
};

const TEMPLATE: &str = include_str!("init.lua");
const PLACEHOLDER: &str = "@NAME@";

/// Make a blueprint that runs without any key
#[derive(Debug, Args)]
pub struct Init {
    /// Its name; the file is NAME.lua
    #[arg(default_value = "hello")]
    name: String,
}

impl Init {
    /// Does it.
    ///
    /// # Errors
    /// A name that cannot be one, a file that is already there.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        let name = self.name.strip_suffix(".lua").unwrap_or(&self.name);
        let file = write(Path::new("."), name)?;
        if cx.terminal.json {
            cx.terminal.print_json(&json!({"name": name, "file": file}))?;
            return Ok(Exit::Ok);
        }
        cx.terminal.say(&format!("wrote {file}"));
        cx.terminal.say(&format!("  next: moonswarm run {file} who=moon"));
        cx.terminal.say(&format!("        moonswarm check {file}"));
        Ok(Exit::Ok)
    }
}

fn write(dir: &Path, name: &str) -> Result<String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if name.is_empty() || name.starts_with('-') || !name.chars().all(fits) {
        return Err(Stop::usage(format!("{name:?} cannot be a blueprint's name"))
            .next("use lower-case letters, digits, - and _")
            .into());
    }
    let file = format!("{name}.lua");
    let opened = OpenOptions::new().write(true).create_new(true).open(dir.join(&file));
    match opened {
        Ok(mut to) => {
            let text = TEMPLATE.replace(PLACEHOLDER, name);
            to.write_all(text.as_bytes()).with_context(|| format!("write {file}"))?;
            Ok(file)
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let stop = Stop::new(Exit::Conflict, format!("{file} is already there"));
            Err(stop.next("moonswarm init OTHER-NAME").into())
        }
        Err(error) => Err(error).with_context(|| format!("write {file}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(write(dir.path(), "first").unwrap(), "first.lua");
        let text = std::fs::read_to_string(dir.path().join("first.lua")).unwrap();
        assert!(text.contains("name = \"first\"") && !text.contains(PLACEHOLDER));
        assert!(write(dir.path(), "first").unwrap_err().to_string().contains("already there"));
    }

    #[test]
    fn a_name_that_would_leave_the_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["", "../x", "a/b", "-x", "Ü"] {
            assert!(write(dir.path(), name).is_err(), "{name}");
        }
    }
}
