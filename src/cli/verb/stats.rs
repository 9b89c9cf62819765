//! `stats`: sums up what ended.

use anyhow::Result;
use clap::Args;

use crate::{
    cli::{
        connect::Start,
        context::Context,
        exit::Exit,
        render::{fitted, printable},
    },
    engine::StatsItem,
};

/// Sum up the runs, tasks and model calls that ended
#[derive(Debug, Args)]
pub struct Stats {
    /// The grouping: status, blueprint, agent, model, hour, day, or run for the most expensive runs
    #[arg(long, default_value = "blueprint")]
    by: String,
    /// The beginning: a time, or an age (`24h`, `7d`); 30 days ago by default
    #[arg(long)]
    since: Option<String>,
    /// Only runs of this blueprint
    #[arg(long)]
    blueprint: Option<String>,
    /// The maximum number of groups
    #[arg(long)]
    limit: Option<usize>,
}

impl Stats {
    /// Runs the command.
    ///
    /// # Errors
    /// A grouping that does not exist, or hours that are not kept any more.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let mut query = vec![("by", self.by.clone())];
            query.extend(self.since.clone().map(|since| ("since", since)));
            query.extend(self.blueprint.clone().map(|name| ("blueprint", name)));
            query.extend(self.limit.map(|limit| ("limit", limit.to_string())));
            let stats = at.client.stats(&query).await?;
            if cx.terminal.json {
                cx.terminal.print_json(&stats)?;
                return Ok(Exit::Ok);
            }
            let total = StatsItem { key: "total".to_owned(), ..stats.total };
            let rows = stats.items.iter().chain([&total]).map(row);
            let head = [&*self.by, "count", "failed", "canceled", "p50", "p95", "tokens", "usd"];
            cx.terminal.print(&fitted(cx.terminal.width(), &head, rows))?;
            if stats.left_off > 0 {
                cx.terminal.say(&format!("{} more groups: raise --limit", stats.left_off));
            }
            Ok(Exit::Ok)
        })
        .await
    }
}

fn row(it: &StatsItem) -> Vec<String> {
    let took = |ms: Option<u64>| ms.map_or_else(|| "-".to_owned(), seconds);
    vec![
        printable(&it.key),
        it.count.to_string(),
        it.failed.to_string(),
        it.canceled.to_string(),
        took(it.p50_ms),
        took(it.p95_ms),
        it.tokens.to_string(),
        it.usd.to_string(),
    ]
}

/// Returns a duration in its unit.
fn seconds(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..120_000 => format!("{}.{}s", ms / 1_000, ms % 1_000 / 100),
        120_000..7_200_000 => format!("{}m", ms / 60_000),
        _ => format!("{}h", ms / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_shown_in_its_unit() {
        let shown = [999, 1_250, 180_000, 7_200_000].map(seconds);
        assert_eq!(shown, ["999ms", "1.2s", "3m", "2h"]);
    }
}
