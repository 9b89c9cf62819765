//! `formats`: which stored forms this program reads and writes, for `doctor --upgrade` of another.

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{
    cli::{context::Context, exit::Exit},
    journal, store,
};

/// Print which stored forms this program knows; what `doctor --upgrade` asks another program
#[derive(Debug, Args)]
pub struct Formats {}

/// The formats that a program supports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SupportedFormats {
    /// Its version.
    pub program: String,
    /// Formats of the database.
    pub database: Range,
    /// Versions of an entry.
    pub entry: Range,
    /// The database of the data directory, if there is one that it can read.
    pub found: Option<Found>,
}

/// The newest is the one that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Range {
    /// The oldest that is read.
    pub oldest: u32,
    /// The newest.
    pub newest: u32,
}

/// A database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Found {
    /// Its format.
    pub format: u32,
    /// Its size in bytes.
    pub size: u64,
    /// The room that opening it takes beside it, in bytes.
    pub needs: u64,
    /// The room that there is, in bytes.
    pub free: u64,
}

impl SupportedFormats {
    fn of(cx: &Context) -> Self {
        let newest = store::known_format();
        let found = store::survey(&cx.config.data).ok().map(|it| Found {
            format: it.format,
            size: it.size,
            needs: if it.format == newest { 0 } else { it.needs },
            free: it.free,
        });
        Self {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            database: Range { oldest: 1, newest },
            entry: Range { oldest: journal::OLDEST.into(), newest: journal::VERSION.into() },
            found,
        }
    }
}

impl Formats {
    /// Runs the command.
    ///
    /// # Errors
    /// A closed stdout.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        let known = SupportedFormats::of(cx);
        if cx.terminal.json {
            cx.terminal.print_json(&known)?;
        } else {
            let SupportedFormats { database, entry, .. } = &known;
            cx.terminal.print(&format!(
                "database: format {}, reads from {} on\nentries: version {}, reads from {} on",
                database.newest, database.oldest, entry.newest, entry.oldest
            ))?;
        }
        Ok(Exit::Ok)
    }
}
