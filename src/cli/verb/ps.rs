//! `ps`: lists runs.

use anyhow::Result;
use clap::Args;

use crate::{
    cli::{
        client::{Client, List},
        connect::Start,
        context::Context,
        exit::Exit,
        render::{age, fitted, printable},
        run_filters::RunFilters,
    },
    engine::RunView,
};

/// Characters of an id that are shown at least: the millisecond of its start is in them.
const SHORTEST: usize = 14;

/// Pages that are read for one list.
const PAGES: usize = 40;

/// List runs, newest first
#[derive(Debug, Args)]
pub struct Ps {
    #[command(flatten)]
    filters: RunFilters,
    /// Maximum number of results
    #[arg(short = 'n', long, default_value_t = 20)]
    limit: usize,
}

impl Ps {
    /// Runs the command.
    ///
    /// # Errors
    /// A status that does not exist, or a daemon that refuses.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let query = self.filters.parameters(&at.client).await?;
            let page = self.page(&at.client, &query).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&page.items)?;
                return Ok(Exit::Ok);
            }
            if page.items.is_empty() {
                cx.terminal.say("no runs");
                return Ok(Exit::Ok);
            }
            let now = cx.clock.now_ms();
            let head = ["run", "blueprint", "status", "steps", "age", "says"];
            let width = cx.terminal.width();
            let mut rows: Vec<_> = page.items.iter().map(|run| row(run, now)).collect();
            if width.is_some() {
                for (row, id) in rows.iter_mut().zip(short_ids(&page.items)) {
                    row[0] = id;
                }
            }
            cx.terminal.print(&fitted(width, &head, rows))?;
            match page.next_cursor {
                Some(_) if page.items.len() < self.limit => {
                    cx.terminal
                        .say("there may be more: narrow the search, for example with --until");
                }
                Some(_) => cx.terminal.say("there are more: -n NUMBER"),
                None => {}
            }
            Ok(Exit::Ok)
        })
        .await
    }

    /// Returns the first runs that fit. A filter without an index may take several pages.
    async fn page(
        &self,
        client: &Client,
        query: &[(&'static str, String)],
    ) -> Result<List<RunView>> {
        let mut found: List<RunView> = List { items: Vec::new(), next_cursor: None };
        for _ in 0..PAGES {
            let left = self.limit.saturating_sub(found.items.len());
            let mut query = query.to_vec();
            query.push((
                "limit",
                if found.items.is_empty() { self.limit } else { left }.to_string(),
            ));
            query.extend(found.next_cursor.take().map(|cursor| ("cursor", cursor)));
            let page = client.runs(&query).await?;
            found.items.extend(page.items);
            found.next_cursor = page.next_cursor;
            if found.next_cursor.is_none() || found.items.len() >= self.limit {
                break;
            }
        }
        Ok(found)
    }
}

/// The beginning of each id that no other of the list has, and that is long enough for later runs.
fn short_ids(runs: &[RunView]) -> Vec<String> {
    let ids: Vec<String> = runs.iter().map(|run| run.id.to_string()).collect();
    let shared = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let short = ids.iter().enumerate().map(|(at, id)| {
        let others = ids.iter().enumerate().filter(|(other, _)| *other != at);
        let same = others.map(|(_, other)| shared(id, other)).max().unwrap_or(0);
        id.chars().take(SHORTEST.max(same + 1)).collect()
    });
    short.collect()
}

fn row(run: &RunView, now_ms: u64) -> Vec<String> {
    vec![
        run.id.to_string(),
        run.blueprint.clone(),
        run.status.as_str().to_owned(),
        format!("{}/{}", run.steps_done, run.steps),
        age(&run.created_at, now_ms),
        says(run),
    ]
}

/// Returns the most important fact of a run: its failure, its wait, or its status text.
fn says(run: &RunView) -> String {
    let waits: Vec<_> = run.waiting_on.iter().map(ToString::to_string).collect();
    let text = match (&run.error, waits.as_slice(), &run.status_text) {
        (Some(error), _, _) => format!("{}: {}", error.kind, error.message),
        (None, [], text) => text.clone().unwrap_or_default(),
        (None, [one], _) => format!("waits for {one}"),
        (None, [first, rest @ ..], _) => format!("waits for {first} and {} more", rest.len()),
    };
    printable(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::fixture,
        engine::{Subject, WaitingOn},
        store::RunStatus,
    };

    #[test]
    fn a_row_says_what_a_run_waits_for() {
        let on = WaitingOn {
            kind: "task".into(),
            subject: Subject {
                name: Some("ship".into()),
                operator: Some("human".into()),
                ..Subject::default()
            },
            since: String::new(),
            until: None,
        };
        let mut run = fixture::run(RunStatus::Waiting);
        run.status_text = Some("reviewed".into());
        assert_eq!(says(&run), "reviewed");
        run.waiting_on = vec![on.clone(), on];
        assert_eq!(says(&run), "waits for ship (human) and 1 more");
    }

    #[test]
    fn short_ids_stay_apart() {
        let run = |num, ms| RunView {
            id: crate::protocol::RunId::new(num, ms),
            ..fixture::run(RunStatus::Running)
        };
        let runs =
            [run(3, 1_767_225_600_000), run(2, 1_767_225_600_000), run(1, 1_700_000_000_000)];
        let ids = short_ids(&runs);
        assert_ne!(ids[0], ids[1]);
        assert_eq!(ids[2].len(), SHORTEST);
        for (id, run) in ids.iter().zip(&runs) {
            assert!(run.id.to_string().starts_with(id), "{id}");
        }
    }
}
