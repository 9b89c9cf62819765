//! `doctor --upgrade BINARY`: what another release would make of this data directory, without
//! touching it.

use std::{path::Path, process::Output};

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use tokio::process::Command;

use super::{DoctorVerdict, Line};
use crate::{
    cli::{
        context::Context,
        verb::{
            formats::{Found, SupportedFormats},
            replay::Replayed,
        },
    },
    store,
};

const WHAT: &str = "upgrade";

/// Reports what would change, the disk space it needs, and the open runs that would diverge.
pub(super) async fn check(cx: &Context, binary: &Path) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Err(error) = look(cx, binary, &mut lines).await {
        lines.push(Line::new(DoctorVerdict::Fail, WHAT, format!("{error:#}")));
    }
    lines
}

async fn look(cx: &Context, binary: &Path, lines: &mut Vec<Line>) -> Result<()> {
    let data = &cx.config.data;
    let name = binary.display();
    let asked = ask(cx, binary, data, &["formats"]).await?;
    let known: SupportedFormats = read(&asked).with_context(|| {
        format!("ask {name} for its formats; is it a moonswarm that knows `formats`?")
    })?;
    if cx.config.store.is_some() {
        let says = format!(
            "{name} is moonswarm {}; nothing was checked, since the runs are in PostgreSQL",
            known.program
        );
        let line = Line::new(DoctorVerdict::Fail, WHAT, says);
        lines.push(line.next("see `Upgrade` in docs/cluster.md; it can be undone until its end"));
        return Ok(());
    }
    if !data.join("moonswarm.db").is_file() {
        let says = format!("{name} is moonswarm {}; nothing is stored here yet", known.program);
        lines.push(Line::new(DoctorVerdict::Ok, WHAT, says));
        return Ok(());
    }
    let here = store::survey(data)?;
    lines.push(change(&known, here.format, &name.to_string()));
    if known.database.newest < here.format {
        return Ok(());
    }
    let needs = known.found.map_or(here.needs, |Found { needs, .. }| needs);
    // The copy that is looked at is migrated itself; both are gone again afterwards.
    let looks = here.size.saturating_add(needs);
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let says = format!(
        "the database has {} MiB; opening it takes {} MiB more, this check {} MiB; {} MiB are free",
        mib(here.size),
        mib(needs),
        mib(looks),
        here.free >> 20,
    );
    lines.push(match here.free {
        free if free < needs => Line::new(DoctorVerdict::Fail, WHAT, says).next("free disk space"),
        free if free < looks => Line::new(DoctorVerdict::Warn, WHAT, says)
            .next("free disk space, and let it replay the open runs"),
        _ => Line::new(DoctorVerdict::Ok, WHAT, says),
    });
    if here.free >= looks {
        replays(cx, binary, lines).await?;
    }
    Ok(())
}

/// Returns the changes of the first start.
fn change(known: &SupportedFormats, format: u32, name: &str) -> Line {
    let SupportedFormats { program, database, entry, .. } = known;
    let is = format!("{name} is moonswarm {program}");
    match database.newest {
        newest if newest < format => {
            let says = format!(
                "{is} and knows formats up to {newest}; this database has format {format}: it \
                 refuses to open it"
            );
            Line::new(DoctorVerdict::Fail, WHAT, says).next("use a newer release")
        }
        newest if newest == format => Line::new(
            DoctorVerdict::Ok,
            WHAT,
            format!("{is}; the database keeps its format {format}"),
        ),
        newest => {
            let says = format!(
                "{is}; its first start brings the database from format {format} to {newest}, and \
                 keeps a copy from before as backup-format-{format}.db; it writes entries of \
                 version {} and reads them from {} on",
                entry.newest, entry.oldest
            );
            Line::new(DoctorVerdict::Ok, WHAT, says)
                .next("going back means that copy: this release does not open the new format")
        }
    }
}

/// Replays the open runs of a copy with the other program.
async fn replays(cx: &Context, binary: &Path, lines: &mut Vec<Line>) -> Result<()> {
    let data = &cx.config.data;
    // Copies of earlier looks that were killed take room.
    store::clear_trials(data);
    let copy = store::TrialCopy::make(data)?;
    let answer = ask(cx, binary, copy.data(), &["replay", "--open"]).await?;
    let all: Vec<Replayed> = read(&answer).context("replay the open runs with it")?;
    let count = all.len();
    let (mut same, found) = (0, lines.len());
    for Replayed { run, replay, error } in all {
        let why = match (replay.and_then(|it| it.divergence), error) {
            (None, None) => {
                same += 1;
                continue;
            }
            (Some(divergence), _) => format!("would go another way: {}", divergence.message),
            (None, Some(error)) => format!("cannot be replayed: {error}"),
        };
        let line = Line::new(DoctorVerdict::Fail, WHAT, format!("run {run} {why}"));
        lines.push(line.next(format!("let it end before, or see `moonswarm replay {run}`")));
    }
    let verdict = if lines.len() == found { DoctorVerdict::Ok } else { DoctorVerdict::Fail };
    let says = format!("{same} of {count} open runs go on as they were");
    lines.push(Line::new(verdict, WHAT, says));
    Ok(())
}

/// Asks the other program, about this directory and no daemon.
async fn ask(cx: &Context, binary: &Path, data: &Path, verb: &[&str]) -> Result<Output> {
    let mut command = Command::new(binary);
    if let Some(config) = cx.beside.named() {
        command.arg("--config").arg(config);
    }
    command
        .arg("--data")
        .arg(data)
        .arg("--json")
        .args(verb)
        .env_remove("MOONSWARM_URL")
        .env_remove("MOONSWARM_TOKEN")
        .env_remove("MOONSWARM_TOKEN_FILE")
        .env_remove("MOONSWARM_DATA")
        // The spans of a copy are those of its original.
        .env("OTEL_SDK_DISABLED", "true")
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("start {}", binary.display()))
}

/// Reads its output, regardless of its exit code.
fn read<T: DeserializeOwned>(output: &Output) -> Result<T> {
    match serde_json::from_slice(&output.stdout) {
        Ok(it) => Ok(it),
        Err(_) => bail!("it said: {}", String::from_utf8_lossy(&output.stderr).trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::verb::formats::Range;

    #[test]
    fn an_older_program_fails_and_a_newer_one_says_from_where_to_where() {
        let known = |newest| SupportedFormats {
            program: "9.9.9".into(),
            database: Range { oldest: 1, newest },
            entry: Range { oldest: 1, newest: 2 },
            found: None,
        };
        let line = |newest| change(&known(newest), 8, "new");
        assert_eq!(line(7).verdict, DoctorVerdict::Fail);
        assert!(line(8).says.contains("keeps its format 8"), "{}", line(8).says);
        let says = line(9).says;
        assert!(
            says.contains("from format 8 to 9") && says.contains("backup-format-8.db"),
            "{says}"
        );
    }
}
