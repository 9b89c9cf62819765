//! Shared by the commands that move a run: its failure as text, and waiting for its progress.

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cli::{
        connect::Connection,
        context::Context,
        follow::{End, Follow},
        render::printable,
    },
    engine::RunView,
    protocol::{Json, RunId, plain::indented},
};

/// Returns the end of a run, for a person; the lines of a message are indented.
pub fn failure(run: &RunView) -> String {
    let mut text = format!("run {}", run.status.as_str());
    if let Some(error) = &run.error {
        text.push_str(&format!(": {}: {}", error.kind, indented(&error.message, "    ")));
        if let Some(agent) = &error.agent {
            text.push_str(&format!(" (agent {agent}"));
            text.push_str(&error.step.map_or(String::new(), |step| format!(", step {step}")));
            text.push(')');
        }
        for frame in frames(error.data.as_ref()) {
            text.push_str(&format!("\n    at {frame}"));
        }
    }
    text
}

/// The calls that were in progress where a script failed.
pub(super) fn frames(data: Option<&Json>) -> Vec<String> {
    let data = data.map(Json::to_value).unwrap_or_default();
    let frames = data.get("traceback").and_then(|it| it.as_array()).cloned().unwrap_or_default();
    let shown = frames.iter().filter_map(|frame| {
        let place = format!("{}:{}", frame["file"].as_str()?, frame["line"].as_u64()?);
        Some(match frame["function"].as_str() {
            Some(name) => format!("{} in {}", printable(&place), printable(name)),
            None => printable(&place),
        })
    });
    shown.take(20).collect()
}

/// If the daemon lives only as long as this verb, stays until the run rests or ends: what was
/// just done to it takes effect now and not at some later `serve`.
///
/// # Errors
/// The errors of watching the run.
pub async fn settle(cx: &Context, at: &Connection, run: RunId) -> Result<()> {
    if !at.is_embedded() {
        return Ok(());
    }
    let follow = Follow {
        client: &at.client,
        terminal: cx.terminal,
        clock: &cx.clock,
        leave_to_people: true,
        ask: false,
        wait: None,
        leaves_tree: false,
    };
    let mut interrupt = signal(SignalKind::interrupt())?;
    match follow.until_end(at.client.run(run).await?, &mut interrupt).await? {
        End::Ended(run) => {
            cx.terminal.say(&format!("{} · moonswarm result {}", failure(&run), run.id));
        }
        End::People(_) => {}
        End::TimedOut(_) | End::Interrupted(_) => {
            cx.terminal.say("the run continues with `moonswarm serve`");
        }
    }
    Ok(())
}
