//! `replay`: whether a run's history still follows from a source.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::fork::source;
use crate::{
    cli::{client::Client, connect::Start, context::Context, exit::Exit, resolve},
    engine::{AskedView, Divergence, ReplayView},
    protocol::RunId,
};

/// Replay a run's history without effects, and show where it diverges
#[derive(Debug, Args)]
pub struct Replay {
    /// The run: an id, a unique prefix of one, or `last`
    #[arg(required_unless_present = "open")]
    run: Option<String>,
    /// Replay against this blueprint: a file, or the name of a stored one
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Replay every open run
    #[arg(long, conflicts_with_all = ["run", "against"])]
    open: bool,
}

/// The result for one of all open runs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Replayed {
    /// The run.
    pub run: RunId,
    /// The result of its replay.
    pub replay: Option<ReplayView>,
    /// The reason why it could not be replayed.
    pub error: Option<String>,
}

impl Replay {
    /// Does it. A divergence ends the program with 6.
    ///
    /// # Errors
    /// No such run, a blueprint with errors.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let Some(run) = self.run.as_ref().filter(|_| !self.open) else {
            let mut cx = cx.clone();
            // This may be a copy of a directory, whose own host posts to them.
            cx.config.webhooks.clear();
            return cx.with(Start::Existing, async |at| open(&cx, &at.client).await).await;
        };
        let (body, _) = source(self.against.as_ref())?;
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, run).await?;
            let replay = at.client.replay(id, &body).await?;
            match cx.terminal.json {
                true => cx.terminal.print_json(&replay)?,
                false => cx.terminal.print(&shown(&replay))?,
            }
            Ok(if replay.divergence.is_some() { Exit::Conflict } else { Exit::Ok })
        })
        .await
    }
}

/// Replays every open run that has a flow.
async fn open(cx: &Context, client: &Client) -> Result<Exit> {
    let statuses = "queued,running,waiting,paused,compensating".to_owned();
    let mut query = vec![("status", statuses), ("limit", "500".to_owned())];
    let mut all = Vec::new();
    loop {
        let page = client.runs(&query).await?;
        // A response that a store of one's own drives has no flow that could be replayed.
        for run in page.items.iter().filter(|run| !run.hash.is_empty()) {
            let (replay, error) = match client.replay(run.id, &json!({})).await {
                Ok(replay) => (Some(replay), None),
                Err(error) => (None, Some(format!("{error:#}"))),
            };
            all.push(Replayed { run: run.id, replay, error });
        }
        query.truncate(2);
        match page.next_cursor {
            Some(cursor) => query.push(("cursor", cursor)),
            None => break,
        }
    }
    if cx.terminal.json {
        cx.terminal.print_json(&all)?;
    } else {
        for Replayed { run, replay, error } in &all {
            let says = replay.as_ref().map(shown).or_else(|| error.clone()).unwrap_or_default();
            cx.terminal.print(&format!("{run}: {says}"))?;
        }
    }
    let diverges = |it: &Replayed| it.replay.as_ref().is_some_and(|it| it.divergence.is_some());
    Ok(if all.iter().any(diverges) {
        Exit::Conflict
    } else if all.iter().any(|it| it.error.is_some()) {
        Exit::Failed
    } else {
        Exit::Ok
    })
}

fn shown(replay: &ReplayView) -> String {
    let Some(it) = &replay.divergence else {
        return format!("{} entries replayed, no divergence", replay.entries);
    };
    let Divergence { message, step, at, recorded, asked } = it;
    let mut lines = vec![format!("{} and the history differ", replay.blueprint)];
    lines.extend(step.map(|step| format!("at step {step}")));
    lines.extend(at.as_ref().map(|at| format!("in the flow at {at}")));
    match (recorded, asked) {
        (None, None) => lines.push(message.clone()),
        (recorded, asked) => {
            let side = |side: &Option<AskedView>, none: &str| match side {
                Some(it) => format!("{} {:?} with {}", it.kind, it.name, it.request),
                None => none.to_owned(),
            };
            lines.push(format!("- {}", side(recorded, "the history has nothing more")));
            lines.push(format!("+ {}", side(asked, "the flow does not ask for it")));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::fixture, protocol::Json};

    #[test]
    fn a_divergence_is_shown_with_both_sides() {
        let asked = |name: &str| AskedView {
            kind: "task".into(),
            name: name.into(),
            request: Json::from_trusted("1"),
        };
        let mut replay = ReplayView {
            run: fixture::run_id(),
            blueprint: "it@ab".into(),
            entries: 7,
            divergence: None,
        };
        assert_eq!(shown(&replay), "7 entries replayed, no divergence");
        replay.divergence = Some(Divergence {
            message: String::new(),
            step: Some(2),
            at: Some("1".into()),
            recorded: Some(asked("plan")),
            asked: Some(asked("draft")),
        });
        let text = shown(&replay);
        assert!(text.contains("at step 2\n"), "{text}");
        assert!(text.ends_with("- task \"plan\" with 1\n+ task \"draft\" with 1"), "{text}");
    }
}
