//! `worker`: takes tasks from a queue and runs a command for each.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::json;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::cli::{
    client::Client,
    command::{self, Finished},
    connect::Start,
    context::Context,
    exit::{Exit, Stop},
    render::unix_ms,
};
use crate::engine::LeaseView;

/// How long one question for work waits at the daemon.
const POLL: &str = "20s";
const AFTER_TROUBLE: Duration = Duration::from_secs(2);
/// The bounds of the time between two heartbeats.
const BEAT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(20));

/// Take tasks from a queue and run a command for each
#[derive(Debug, Args)]
pub struct Worker {
    /// The queue
    #[arg(long)]
    queue: String,
    /// How many tasks at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    max: u16,
    /// The worker's name, as lists show it
    #[arg(long)]
    name: Option<String>,
    /// The command; it gets the input as JSON on stdin, and what it prints is the result
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Worker {
    /// Does it, until it is told to stop; what it has is then finished first.
    ///
    /// # Errors
    /// No daemon, or a token that may not take tasks of this queue.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Attached, async |at| {
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut terminate = signal(SignalKind::terminate())?;
            cx.terminal.say(&format!("taking tasks of {} (Ctrl-C: finish, twice: stop)", self.queue));
            let now = CancellationToken::new();
            let mut open = FuturesUnordered::new();
            let mut taking = true;
            while taking || !open.is_empty() {
                let free = usize::from(self.max) - open.len();
                tokio::select! {
                    leased = self.take(cx, &at.client, free), if taking && free > 0 => {
                        open.extend(leased?.into_iter().map(|lease| self.work(cx, &at.client, lease, now.clone())));
                    }
                    Some(line) = open.next(), if !open.is_empty() => cx.terminal.say(&line),
                    _ = interrupt.recv() => stop(&mut taking, &now),
                    _ = terminate.recv() => stop(&mut taking, &now),
                }
            }
            Ok(if now.is_cancelled() { Exit::Interrupted } else { Exit::Ok })
        })
        .await
    }

    async fn take(&self, cx: &Context, client: &Client, max: usize) -> Result<Vec<LeaseView>> {
        let mut body = json!({"queue": self.queue, "wait": POLL, "max": max});
        if let Some(name) = &self.name {
            body["worker"] = json!(name);
        }
        loop {
            let error = match client.lease(&body).await {
                Ok(leased) => return Ok(leased),
                Err(error) => error,
            };
            match error.downcast_ref::<Stop>().map(|stop| stop.exit) {
                Some(Exit::Unavailable | Exit::Limit | Exit::TimedOut) | None => {
                    cx.terminal.say(&format!("{error:#}; trying again"));
                    sleep(AFTER_TROUBLE).await;
                }
                Some(_) => return Err(error),
            }
        }
    }

    /// Works on one task, and says how it went.
    async fn work(
        &self,
        cx: &Context,
        daemon: &Client,
        lease: LeaseView,
        now: CancellationToken,
    ) -> String {
        let client = daemon.with_token(&lease.handle);
        let task = lease.task;
        tokio::select! {
            done = self.attempt(&client, &lease) => match done {
                Ok(true) => format!("{task} done"),
                Ok(false) => format!("{task} failed"),
                Err(error) => format!("{task}: {error:#}"),
            },
            why = keep(cx, &client, &lease) => format!("{task} was taken back: {why}"),
            () = now.cancelled() => format!("{task} was given up"),
        }
    }

    /// Runs the command and reports; dropping this kills the command and its children.
    async fn attempt(&self, client: &Client, lease: &LeaseView) -> Result<bool> {
        let prompt = client.prompt().await?;
        let env = [
            ("MOONSWARM_URL", client.url().to_owned()),
            ("MOONSWARM_HANDLE", lease.handle.clone()),
            ("MOONSWARM_TASK", lease.task.to_string()),
            ("MOONSWARM_ATTEMPT", prompt.attempt.to_string()),
        ];
        let body = match command::run(&self.command, &env, prompt.input.as_str()).await {
            Ok(finished) => report(&finished),
            Err(error) => json!({"ok": false, "output": null,
                "error": {"message": format!("{error:#}"), "retryable": true}}),
        };
        match client.report(&body).await {
            Ok(_) => Ok(body["ok"] == true),
            // The command may have reported by itself: then that is the result.
            Err(error) => match error.downcast_ref::<Stop>() {
                Some(stop) if stop.code.as_deref() == Some("already_accepted") => Ok(true),
                Some(_) | None => Err(error),
            },
        }
    }
}

fn stop(taking: &mut bool, now: &CancellationToken) {
    match *taking {
        true => *taking = false,
        false => now.cancel(),
    }
}

/// What the API takes for how a command ended.
fn report(finished: &Finished) -> serde_json::Value {
    match finished.exit_code {
        Some(0) => json!({"ok": true, "output": finished.output()}),
        _ => json!({"ok": false, "output": finished.raw(),
            "error": {"message": finished.summary(), "retryable": false}}),
    }
}

/// Keeps the lease; returns when the daemon wants the task back, with the reason.
async fn keep(cx: &Context, client: &Client, lease: &LeaseView) -> String {
    let mut deadline = Some(lease.deadline.clone());
    loop {
        let left = deadline.as_deref().map(|at| unix_ms(at).saturating_sub(cx.clock.now_ms()));
        let pause = left.map_or(BEAT.1, |left| Duration::from_millis(left / 3));
        sleep(pause.clamp(BEAT.0, BEAT.1)).await;
        match client.heartbeat().await {
            Ok(beat) if beat.cancel => return "it was canceled".to_owned(),
            Ok(beat) => deadline = beat.deadline,
            Err(error) => {
                let exit = error.downcast_ref::<Stop>().map(|stop| stop.exit);
                // Anything else may be a daemon that restarts: the lease outlives that.
                if let Some(Exit::Denied | Exit::Conflict | Exit::NotFound) = exit {
                    return format!("{error:#}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_stop_drains_and_the_second_gives_up() {
        let (mut taking, now) = (true, CancellationToken::new());
        stop(&mut taking, &now);
        assert!(!taking && !now.is_cancelled());
        stop(&mut taking, &now);
        assert!(now.is_cancelled());
    }

    #[test]
    fn a_command_that_fails_is_a_failure_with_its_output() {
        let finished = Finished { exit_code: Some(3), stdout: "a".into(), stderr: "boom\n".into() };
        let body = report(&finished);
        assert_eq!(body["ok"], false);
        assert_eq!(body["output"]["stderr"], "boom\n");
        assert_eq!(body["error"]["message"], "exit code 3: boom");
    }
}
