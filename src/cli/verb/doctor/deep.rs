//! `doctor --deep`: everything that is stored, read once: by its owner, or else right here.

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use reqwest::Response;
use serde::Deserialize;

use super::{DoctorVerdict, Line, answering};
use crate::{
    cli::{
        client::Client,
        connect::{Connection, Owner, Start},
        context::Context,
        terminal::Terminal,
    },
    protocol::text::counted,
    store::{self, Checked},
};

const WHAT: &str = "storage";
/// The most lines of damage that are shown.
const SHOWN: usize = 1_000;

/// Returns the findings of the check, as lines of the doctor.
pub(super) async fn check(cx: &Context) -> Vec<Line> {
    let mut found = Found::new(cx.terminal);
    let checked = match owner(cx).await {
        Ok(Some(client)) => online(&client, &mut found).await,
        Ok(None) if cx.config.store.is_some() => {
            let says = "nothing was read: only a daemon has the PostgreSQL database";
            let line = Line::new(DoctorVerdict::Fail, WHAT, says);
            return vec![line.next("start one with `moonswarm serve`; --server names another")];
        }
        Ok(None) if !cx.config.data.join("moonswarm.db").exists() => {
            return vec![Line::new(DoctorVerdict::Ok, WHAT, "nothing is stored yet")];
        }
        Ok(None) => {
            // Nothing else is done meanwhile.
            let mut take = |line| {
                found.take(line);
                true
            };
            store::check_directory(&cx.config.data, &mut take).map_err(Into::into)
        }
        Err(error) => Err(error),
    };
    found.lines(checked)
}

/// The daemon that has what is to be checked, if one answers.
async fn owner(cx: &Context) -> Result<Option<Client>> {
    if cx.target.server.is_some() {
        let at = Connection::open(&cx.target, &cx.config, Start::Existing, cx.terminal).await?;
        return Ok(Some(at.client));
    }
    match Owner::read(&cx.config.data) {
        Some(owner) => Ok(answering(&owner, &cx.config.data).await),
        None => Ok(None),
    }
}

/// A line of a daemon's answer.
#[derive(Deserialize)]
#[serde(untagged)]
enum Told {
    Line(Checked),
    Failed { problem: Problem },
}

#[derive(Deserialize)]
struct Problem {
    code: String,
    detail: String,
}

async fn online(client: &Client, found: &mut Found) -> Result<()> {
    let answer: Response = client.check_store().await?;
    let (mut bytes, mut line) = (answer.bytes_stream(), Vec::new());
    while let Some(chunk) = bytes.next().await {
        for byte in chunk.context("read the daemon's answer")? {
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            match serde_json::from_slice(&std::mem::take(&mut line))
                .context("understand the daemon's answer; is it of another version?")?
            {
                Told::Line(told) => found.take(told),
                Told::Failed { problem: Problem { code, detail } } => {
                    anyhow::bail!("{detail} [{code}]");
                }
            }
        }
    }
    Ok(())
}

/// The findings so far. The progress is on stderr.
struct Found {
    terminal: Terminal,
    lines: Vec<Line>,
    more: u64,
    tenth: Option<(String, u64)>,
    done: Option<Line>,
}

impl Found {
    fn new(terminal: Terminal) -> Self {
        Self { terminal, lines: Vec::new(), more: 0, tenth: None, done: None }
    }

    fn take(&mut self, line: Checked) {
        match line {
            Checked::Progress { part, done, of } => {
                let tenth = Some((part, (10 * done).checked_div(of).unwrap_or(10)));
                if self.tenth != tenth
                    && let Some((part, tenth)) = &tenth
                {
                    self.terminal.say(&format!("checking {part}: {}%", 10 * tenth));
                }
                self.tenth = tenth;
            }
            Checked::Damaged { .. } | Checked::Orphan { .. } if self.lines.len() >= SHOWN => {
                self.more += 1;
            }
            Checked::Damaged { what, reason, next } => self.lines.push(
                Line::new(DoctorVerdict::Fail, WHAT, format!("{what} is damaged: {reason}"))
                    .next(next),
            ),
            Checked::Orphan { what } => {
                let says = format!("{what}; it takes room and does no harm");
                self.lines.push(Line::new(DoctorVerdict::Warn, WHAT, says));
            }
            Checked::Done { runs, entries, state, blobs, damaged } => {
                let verdict = if damaged == 0 { DoctorVerdict::Ok } else { DoctorVerdict::Fail };
                let says = format!(
                    "read {} with {}, {} of state and {}; damaged: {damaged}",
                    counted(runs, "run"),
                    counted(entries, "event"),
                    counted(state, "value"),
                    counted(blobs, "file"),
                );
                self.done = Some(Line::new(verdict, WHAT, says));
            }
        }
    }

    fn lines(mut self, checked: Result<()>) -> Vec<Line> {
        if self.more > 0 {
            let says = format!("and {} more lines like these", self.more);
            self.lines.push(Line::new(DoctorVerdict::Fail, WHAT, says));
        }
        match (checked, self.done) {
            (Ok(()), Some(done)) => self.lines.push(done),
            (Ok(()), None) => {
                let says = "the check broke off before its end";
                self.lines.push(Line::new(DoctorVerdict::Fail, WHAT, says).next("try it again"));
            }
            (Err(error), _) => {
                self.lines.push(Line::new(DoctorVerdict::Fail, WHAT, format!("{error:#}")));
            }
        }
        self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_breaks_off_is_no_check() {
        let mut found = Found::new(Terminal::quiet());
        found.take(Checked::Progress { part: "runs".into(), done: 0, of: 0 });
        let lines = found.lines(Ok(()));
        assert_eq!(lines.last().unwrap().verdict, DoctorVerdict::Fail);
    }

    #[test]
    fn damage_fails_and_what_nothing_refers_to_warns() {
        let mut found = Found::new(Terminal::quiet());
        for n in 0..=SHOWN {
            let (what, reason, next) = (format!("blob {n}"), "flipped".into(), "restore".into());
            found.take(Checked::Damaged { what, reason, next });
        }
        found.take(Checked::Orphan { what: "a blob".into() });
        let done = Checked::Done { runs: 1, entries: 2, state: 3, blobs: 4, damaged: 1_001 };
        found.take(done);
        let lines = found.lines(Ok(()));
        assert_eq!(lines.len(), SHOWN + 2);
        assert!(lines[SHOWN].says.contains("2 more"), "{lines:?}");
        assert!(lines.iter().all(|line| line.verdict == DoctorVerdict::Fail));
    }
}
