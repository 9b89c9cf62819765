//! `bulk`: one act on many runs.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::{
    cli::{
        connect::Start,
        context::Context,
        exit::{Exit, Stop},
        render::fitted,
        resolve,
        run_filters::RunFilters,
        terminal::Questions,
    },
    engine::{BulkItem, BulkView},
    protocol::text::counted,
};

/// An act on many runs.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Act {
    Cancel,
    Pause,
    Resume,
    Delete,
    Rerun,
}

/// Cancel, pause, resume, delete or rerun many runs
#[derive(Debug, Args)]
pub struct Bulk {
    /// The act
    #[arg(value_enum)]
    act: Act,
    /// The runs: ids or unique prefixes of them; otherwise the filters select them
    runs: Vec<String>,
    #[command(flatten)]
    filters: RunFilters,
    /// The reason of a cancel or a pause
    #[arg(long)]
    reason: Option<String>,
    /// Do it without a question; without a terminal nothing is done otherwise
    #[arg(long)]
    yes: bool,
}

impl Bulk {
    /// Runs the command.
    ///
    /// # Errors
    /// No runs are named, or they change between the question and the act.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let mut ids = Vec::new();
            for run in &self.runs {
                ids.push(resolve::run(&at.client, run).await?.to_string());
            }
            let mut body = self.body(ids, self.filters.parameters(&at.client).await?)?;
            body["dry_run"] = true.into();
            let planned = at.client.bulk(&body).await?;
            if planned.eligible == 0 || !self.agreed(cx, &planned).await? {
                return shown(cx, &planned);
            }
            body["dry_run"] = false.into();
            body["digest"] = planned.digest.into();
            let done = at.client.bulk(&body).await?;
            shown(cx, &done)
        })
        .await
    }

    fn body(&self, ids: Vec<String>, filters: Vec<(&str, String)>) -> Result<Value> {
        let act = self.act.to_possible_value().map(|it| it.get_name().to_owned());
        let mut body = json!({ "action": act });
        let mut filter = json!({});
        for (name, value) in filters {
            match (name, filter[name].as_array_mut()) {
                ("status" | "tag", Some(all)) => all.push(value.into()),
                ("status" | "tag", None) => filter[name] = json!([value]),
                _ => filter[name] = value.into(),
            }
        }
        let is_filtered = filter.as_object().is_some_and(|filter| !filter.is_empty());
        match (ids.is_empty(), is_filtered) {
            (false, false) => body["ids"] = json!(ids),
            (true, true) => body["filter"] = filter,
            (true, false) => {
                let stop = Stop::usage("no runs are selected");
                return Err(stop.next("name runs, or give a filter such as --status").into());
            }
            (false, true) => return Err(Stop::usage("name runs or give filters, not both").into()),
        }
        if let Some(reason) = &self.reason {
            body["reason"] = json!(reason);
        }
        Ok(body)
    }

    async fn agreed(&self, cx: &Context, planned: &BulkView) -> Result<bool> {
        if self.yes || !cx.terminal.asks {
            return Ok(self.yes);
        }
        let act = serde_json::to_value(planned.action)?;
        let act = act.as_str().unwrap_or_default();
        let question = format!("{act} {}? [y/N]", counted(planned.eligible, "run"));
        let said = Questions::new().ask(&question).await?;
        Ok(said.is_some_and(|said| said.eq_ignore_ascii_case("y")))
    }
}

fn shown(cx: &Context, view: &BulkView) -> Result<Exit> {
    if cx.terminal.json {
        cx.terminal.print_json(view)?;
    } else if view.items.is_empty() {
        cx.terminal.say("no runs");
    } else {
        let head = ["run", "blueprint", "was", "result"];
        let rows: Vec<_> = view.items.iter().map(row).collect();
        cx.terminal.print(&fitted(cx.terminal.width(), &head, rows))?;
        if view.dry_run {
            cx.terminal
                .say(&format!("{} eligible; nothing was done: --yes does it", view.eligible));
        }
        if view.more {
            cx.terminal.say("there may be more runs that fit");
        }
    }
    let missed = |item: &BulkItem| !matches!(item.result.as_str(), "done" | "unchanged");
    Ok(match !view.dry_run && view.items.iter().any(missed) {
        true => Exit::Conflict,
        false => Exit::Ok,
    })
}

fn row(item: &BulkItem) -> Vec<String> {
    let started = item.started.map(|run| format!(" {run}")).unwrap_or_default();
    vec![
        item.run.to_string(),
        item.blueprint.clone().unwrap_or_default(),
        item.status.map_or("", |status| status.as_str()).to_owned(),
        format!("{}{started}", item.result),
    ]
}
