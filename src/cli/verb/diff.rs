//! `diff`: compares two runs step by step.

use anyhow::Result;
use clap::Args;

use crate::{
    cli::{
        connect::Start,
        context::Context,
        exit::{Exit, Stop},
        render::{fitted, printable},
        resolve,
    },
    engine::{RunDiff, StepDiff},
};

/// Compare two runs step by step
#[derive(Debug, Args)]
pub struct Diff {
    /// The first run: an id, a unique prefix of one, or `last`
    run: String,
    /// The second run [default: the one that the first was forked from]
    other: Option<String>,
    /// Also list steps that are the same
    #[arg(long)]
    all: bool,
}

impl Diff {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run, or no second one.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let run = resolve::run(&at.client, &self.run).await?;
            let (a, b) = match &self.other {
                Some(other) => (run, resolve::run(&at.client, other).await?),
                None => {
                    let from = at.client.run(run).await?.copied_from;
                    let origin = from.and_then(|from| from.run.parse().ok()).ok_or_else(|| {
                        Stop::usage(format!("{run} is not a fork of another run"))
                            .next("`moonswarm diff RUN OTHER` compares any two runs")
                    })?;
                    (origin, run)
                }
            };
            let diff = at.client.diff(a, b).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&diff)?;
            } else {
                self.show(cx, &diff)?;
            }
            Ok(Exit::Ok)
        })
        .await
    }

    fn show(&self, cx: &Context, diff: &RunDiff) -> Result<()> {
        let word = |same: bool| if same { "the same" } else { "another" };
        let (version, input) = (word(diff.same_version), word(diff.same_input));
        let mut lines = vec![format!("a {}", diff.a), format!("b {}", diff.b)];
        lines.push(format!("{version} version, {input} input"));
        lines.extend(diff.forked_at.map(|step| format!("forked at step {step}")));
        let shown = diff.items.iter().filter(|step| self.all || !step.is_same());
        let rows: Vec<_> = shown.map(row).collect();
        if !rows.is_empty() {
            let head = ["a", "b", "step", "differs in"];
            lines.push(fitted(cx.terminal.width(), &head, rows));
        }
        cx.terminal.print(&lines.join("\n"))?;
        match diff.differing {
            0 => cx.terminal.say("no step differs"),
            1 => cx.terminal.say("1 step differs"),
            more => cx.terminal.say(&format!("{more} steps differ")),
        }
        Ok(())
    }
}

fn row(step: &StepDiff) -> Vec<String> {
    let number = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let name = printable(&format!("{} {}", step.kind, step.name));
    vec![number(step.a), number(step.b), name, step.difference.clone()]
}
