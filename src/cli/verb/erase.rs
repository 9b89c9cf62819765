//! `erase`: everything of a person, of runs, or that contains a text.

use std::{io::Read as _, path::PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    cli::{
        connect::Start,
        context::Context,
        exit::{Exit, Stop},
        render::{fitted, printable},
        resolve,
        terminal::Questions,
    },
    engine::{CopyView, EraseView, ErasedRun},
    store::{self, ErasureTarget, TracedRun},
};

/// The number of runs that a table shows.
const SHOWN: usize = 20;
/// The places that an erasure looks through.
const PLACES: &str = "runs and their directories, sources, state, links, values of layers, \
                      answers, sessions, tokens and statistics";
/// The maximum number of bytes of a text that is read from stdin, with the end of its line.
const TEXT: u64 = 1_026;

/// Erase everything of a person, of runs, or that contains a text
#[derive(Debug, Args)]
pub struct Erase {
    /// Everything of this subject: runs it started, tokens, sessions, answers, state of its name
    #[arg(long, value_name = "NAME", group = "what")]
    subject: Option<String>,
    /// This run, those that it called, its forks and reruns (repeatable)
    #[arg(long = "run", value_name = "RUN", group = "what")]
    runs: Vec<String>,
    /// Everything that contains this text; `-` reads it from stdin, so that no shell remembers it
    #[arg(long = "match", value_name = "TEXT", group = "what")]
    text: Option<String>,
    /// Also look into the databases in this directory, such as backups
    #[arg(long, value_name = "DIR")]
    backups: Option<PathBuf>,
    /// Do it without a question; without a terminal nothing is done otherwise
    #[arg(long)]
    yes: bool,
}

impl Erase {
    /// Runs the command.
    ///
    /// # Errors
    /// Nothing is named, a run of it is open, or what is found changes between question and act.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let text = self.text()?;
        cx.with(Start::Existing, async |at| {
            let mut ids = Vec::new();
            for run in &self.runs {
                // A run that is gone may be left in copies.
                ids.push(match run.parse() {
                    Ok(id) => id,
                    Err(_) => resolve::run(&at.client, run).await?,
                });
            }
            let mut target = ErasureTarget {
                subject: self.subject.clone(),
                text: text.clone(),
                runs: ids.iter().map(|run: &crate::protocol::RunId| run.num()).collect(),
            };
            let body = match (&self.subject, &text) {
                (Some(subject), _) => json!({ "subject": subject }),
                (_, Some(text)) => json!({ "match": text }),
                _ if ids.is_empty() => {
                    let stop = Stop::usage("nothing is named");
                    return Err(stop.next("give --subject, --run or --match").into());
                }
                _ => json!({ "runs": ids }),
            };
            let planned = at.client.erase(&with(&body, true, None)).await?;
            // A text that nothing has any more may still be in free space of the database.
            let cleans = self.yes && text.is_some();
            let is_over = is_nothing(&planned) && !planned.unfinished && !cleans;
            let view = if is_over || !self.agreed(cx, &planned).await? {
                planned
            } else {
                let mut done = at.client.erase(&with(&body, false, Some(&planned))).await?;
                while done.more {
                    let next = at.client.erase(&with(&body, true, None)).await?;
                    done = sum(done, at.client.erase(&with(&body, false, Some(&next))).await?);
                }
                done
            };
            let elsewhere = self.elsewhere(&mut target, &view)?;
            self.show(cx, &view, &elsewhere)?;
            Ok(Exit::Ok)
        })
        .await
    }

    fn text(&self) -> Result<Option<String>> {
        if self.text.as_deref() != Some("-") {
            return Ok(self.text.clone());
        }
        let mut bytes = Vec::new();
        std::io::stdin()
            .take(TEXT + 1)
            .read_to_end(&mut bytes)
            .context("read the text from stdin")?;
        if bytes.len() as u64 > TEXT {
            return Err(Stop::usage("the text on stdin has more than 1024 bytes").into());
        }
        let text = String::from_utf8(bytes).context("read the text from stdin")?;
        Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
    }

    async fn agreed(&self, cx: &Context, planned: &EraseView) -> Result<bool> {
        if self.yes || !cx.terminal.asks {
            return Ok(self.yes);
        }
        self.show(cx, planned, &[])?;
        let said = Questions::new().ask("erase this for good? [y/N]").await?;
        Ok(said.is_some_and(|said| said.eq_ignore_ascii_case("y")))
    }

    /// Shows what was found; or, where nothing was, what was looked for and where.
    fn show(&self, cx: &Context, view: &EraseView, elsewhere: &[CopyView]) -> Result<()> {
        if is_nothing(view) && !cx.terminal.json {
            cx.terminal.say(&format!("{} is stored: looked through {PLACES}", self.nothing()));
            if view.dry_run && self.text.is_some() {
                let free = "free space of the database may still have it: --yes writes it anew";
                cx.terminal.say(free);
            }
        }
        shown(cx, view, elsewhere)
    }

    /// Names what is not there. A text is not repeated: it may be secret.
    fn nothing(&self) -> String {
        match &self.subject {
            Some(subject) => format!("nothing of the subject {}", printable(subject)),
            None if self.runs.is_empty() => "nothing that contains the text".to_owned(),
            None => format!("nothing of {}", printable(&self.runs.join(", "))),
        }
    }

    /// Looks into the databases of the directory that was named.
    fn elsewhere(&self, target: &mut ErasureTarget, view: &EraseView) -> Result<Vec<CopyView>> {
        let Some(dir) = &self.backups else { return Ok(Vec::new()) };
        let traced = |num, created_ms| TracedRun {
            num,
            created_ms,
            ended: true,
            entries: 0,
            bytes: 0,
            files: 0,
        };
        let runs: Vec<_> =
            view.runs.iter().map(|it| traced(it.run.num(), it.run.created_ms())).collect();
        target.runs.clear();
        let found = store::copies_in(dir, target, &runs)?;
        Ok(found.into_iter().map(CopyView::from).collect())
    }
}

fn with(body: &Value, dry_run: bool, planned: Option<&EraseView>) -> Value {
    let mut body = body.clone();
    body["dry_run"] = dry_run.into();
    if let Some(planned) = planned {
        body["digest"] = planned.digest.clone().into();
    }
    body
}

/// Returns the sum of two acts.
fn sum(mut all: EraseView, next: EraseView) -> EraseView {
    all.runs.extend(next.runs);
    for (place, rows) in next.rows {
        *all.rows.entry(place).or_default() += rows;
    }
    let (entries, files) = (all.entries + next.entries, all.files + next.files);
    let (runs, rows, bytes) = (all.runs, all.rows, all.bytes + next.bytes);
    EraseView { runs, rows, entries, files, bytes, ..next }
}

/// Returns true if nothing was found.
fn is_nothing(view: &EraseView) -> bool {
    view.runs.is_empty() && view.rows.is_empty()
}

fn shown(cx: &Context, view: &EraseView, elsewhere: &[CopyView]) -> Result<()> {
    if cx.terminal.json {
        let mut json = serde_json::to_value(view)?;
        json["backups"] = serde_json::to_value(elsewhere)?;
        cx.terminal.print_json(&json)?;
        return Ok(());
    }
    let went = if view.dry_run { "would go" } else { "went" };
    if !view.runs.is_empty() {
        let rows = view.runs.iter().take(SHOWN);
        let because = |it: &ErasedRun| match (&it.descent, &it.of) {
            (Some(descent), Some(of)) if descent == "called" => format!("called by {of}"),
            (Some(descent), Some(of)) => format!("{descent} of {of}"),
            (Some(descent), None) => descent.clone(),
            (None, _) => String::new(),
        };
        let rows = rows.map(|it| vec![it.run.to_string(), it.result.clone(), because(it)]);
        let rows = rows.collect::<Vec<_>>();
        cx.terminal.print(&fitted(cx.terminal.width(), &["run", "result", "because"], rows))?;
    }
    let EraseView { runs, entries, files, bytes, .. } = view;
    if !is_nothing(view) {
        cx.terminal.say(&format!(
            "{} run(s) {went}: {entries} entries, {files} files, about {bytes} bytes",
            runs.len()
        ));
    }
    for (place, count) in &view.rows {
        cx.terminal.say(&format!("{count} of {place} {went}"));
    }
    for it in &view.stays {
        cx.terminal.say(&format!("{} of {} stay: {}", it.rows, it.place, it.reason));
    }
    if !view.named_in.is_empty() {
        let runs: Vec<_> = view.named_in.iter().take(SHOWN).map(ToString::to_string).collect();
        let all = view.named_in.len();
        cx.terminal.say(&format!("{all} other run(s) name the subject: {}", runs.join(" ")));
        cx.terminal.say("  `moonswarm erase --run` erases one of them");
    }
    for copy in view.copies.iter().chain(elsewhere) {
        let held = match &copy.problem {
            Some(problem) => problem.clone(),
            None => format!("holds {} of these runs and {} rows with it", copy.runs, copy.rows),
        };
        cx.terminal.say(&format!("copy {}, {} bytes: {held}", copy.file, copy.bytes));
    }
    if view.rewritten {
        cx.terminal.say("the database was written anew: its free space has nothing of it");
    }
    if view.dry_run && view.unfinished {
        cx.terminal.say("an erasure was interrupted: --yes completes it");
    }
    if view.dry_run && !is_nothing(view) {
        cx.terminal.say("nothing was done: --yes does it");
    } else if !view.dry_run {
        cx.terminal.say("backups that are kept elsewhere still have it: delete them, or restore");
        cx.terminal.say("  each, erase again there, and back up anew");
    }
    Ok(())
}
