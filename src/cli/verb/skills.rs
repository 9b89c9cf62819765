//! `skills`: what a coding agent should know of moonswarm, written where it looks for it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};

use crate::cli::{
    context::Context,
    exit::{Exit, Stop},
    files,
    mcp_clients::Reach,
    skill,
};

/// Write a skill for coding agents, and a section for AGENTS.md
///
/// The skill says what moonswarm is for, what the functions of a flow do, which mistakes are common,
/// and how an agent works on tasks.
#[derive(Debug, Args)]
pub struct Skills {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write the skill, and the section of AGENTS.md
    Install(InstallTarget),
    /// Take both back
    Uninstall(InstallTarget),
    /// Print the skill
    Print,
}

#[derive(Debug, Args)]
struct InstallTarget {
    /// For whom: this directory, or the user
    #[arg(long, value_enum, default_value = "project")]
    scope: Reach,
    /// Write without asking
    #[arg(long)]
    yes: bool,
}

impl Skills {
    /// Runs the command.
    ///
    /// # Errors
    /// A file that cannot be read or written, or no skill to take back.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        match &self.action {
            Action::Print => {
                cx.terminal.print(&skill::skill())?;
                Ok(Exit::Ok)
            }
            Action::Install(place) => {
                let changes = place.installed()?;
                place.apply(cx, changes)
            }
            Action::Uninstall(place) => {
                let changes = place.uninstalled()?;
                if changes.is_empty() {
                    return Err(Stop::new(Exit::NotFound, "no skill is installed here").into());
                }
                place.apply(cx, changes)
            }
        }
    }
}

/// A file, and its new text; none removes it.
type Change = (PathBuf, Option<String>);

impl InstallTarget {
    /// The file of the skill, and the file of instructions, if this reach has one.
    fn files(&self) -> Result<(PathBuf, Option<PathBuf>)> {
        const SKILL: &str = ".claude/skills/moonswarm/SKILL.md";
        Ok(match self.scope {
            Reach::Project => (PathBuf::from(SKILL), Some(PathBuf::from("AGENTS.md"))),
            Reach::User => (files::home()?.join(SKILL), None),
        })
    }

    fn installed(&self) -> Result<Vec<Change>> {
        let (file, instructions) = self.files()?;
        let mut changes = vec![(file, Some(skill::skill()))];
        if let Some(file) = instructions {
            let text = files::read_if_there(&file)?.unwrap_or_default();
            changes.push((file, Some(skill::with_section(&text))));
        }
        Ok(changes)
    }

    fn uninstalled(&self) -> Result<Vec<Change>> {
        let (file, instructions) = self.files()?;
        let mut changes = Vec::new();
        if file.exists() {
            changes.push((file, None));
        }
        if let Some(file) = instructions
            && let Some(text) = files::read_if_there(&file)?
            && let Some(without) = skill::without_section(&text)
        {
            changes.push((file, Some(without).filter(|text| !text.is_empty())));
        }
        Ok(changes)
    }

    fn apply(&self, cx: &Context, changes: Vec<Change>) -> Result<Exit> {
        let shown: Vec<_> = changes
            .iter()
            .map(|(file, text)| match text {
                Some(text) => format!("write {} ({} bytes)", file.display(), text.len()),
                None => format!("remove {}", file.display()),
            })
            .collect();
        if !files::may(cx, self.yes, &shown.join("\n"))? {
            return Ok(Exit::Ok);
        }
        for (file, text) in changes {
            match text {
                Some(text) => {
                    files::put(&file, &text)?;
                    cx.terminal.say(&format!("wrote {}", file.display()));
                }
                None => {
                    remove(&file)?;
                    cx.terminal.say(&format!("removed {}", file.display()));
                }
            }
        }
        Ok(Exit::Ok)
    }
}

/// Removes a file, and the directory of the skill, if nothing else is in it.
fn remove(file: &Path) -> Result<()> {
    fs::remove_file(file).with_context(|| format!("remove {}", file.display()))?;
    if let Some(dir) = file.parent().filter(|dir| dir.ends_with("skills/moonswarm")) {
        // It stays where somebody put more into it.
        let _ = fs::remove_dir(dir);
    }
    Ok(())
}
