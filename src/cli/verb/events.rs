//! `events`: follows what happens on the host.

use anyhow::Result;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cli::{connect::Start, context::Context, exit::Exit, render::printable},
    engine::HostEventView,
};

/// Follow the events of the host: runs, tasks, sessions, workers, blueprints
#[derive(Debug, Args)]
pub struct Events {
    /// Types with commas between them, each whole or by its first word: `run,task.opened`
    #[arg(long)]
    types: Option<String>,
    /// Only runs of this blueprint
    #[arg(long)]
    blueprint: Option<String>,
    /// The beginning: the cursor of an event, a time, an age (`1h`), or `first`; now by default
    #[arg(long)]
    since: Option<String>,
    /// Stop after this many events
    #[arg(long)]
    limit: Option<usize>,
}

impl Events {
    /// Runs the command.
    ///
    /// # Errors
    /// A type that does not exist, or a cursor of another host.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let mut query = Vec::new();
            for (name, value) in
                [("types", &self.types), ("blueprint", &self.blueprint), ("since", &self.since)]
            {
                query.extend(value.clone().map(|value| (name, value)));
            }
            let mut events = at.client.host_events(&query).await?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut left = self.limit.unwrap_or(usize::MAX);
            while left > 0 {
                let event = tokio::select! {
                    event = events.next() => match event? {
                        Some(event) => event,
                        None => break,
                    },
                    _ = interrupt.recv() => break,
                };
                match cx.terminal.json {
                    // One object a line, for a program that reads along.
                    true => cx.terminal.print_json_line(&event)?,
                    false => cx.terminal.print(&line(&event))?,
                }
                left -= 1;
            }
            Ok(Exit::Ok)
        })
        .await
    }
}

/// Returns an event on one line.
fn line(event: &HostEventView) -> String {
    let data = event.data.to_value();
    let word = |name: &str| data.get(name).and_then(|it| it.as_str()).map(printable);
    let mut words = vec![event.at.clone()];
    words.extend(event.run.map(|run| run.to_string()));
    words.extend(event.blueprint.as_deref().map(printable));
    words.push(printable(&event.kind));
    words.extend(
        ["agent", "on", "name", "status", "session", "worker", "operator", "queue", "by"]
            .into_iter()
            .filter_map(word),
    );
    words.extend(data["error"]["message"].as_str().map(printable));
    words.join("  ")
}
