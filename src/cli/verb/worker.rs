//! `worker`: takes tasks from a queue and runs a command for each.

use std::{pin::pin, time::Duration};

use anyhow::Result;
use clap::Args;
use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::{Value, json};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use crate::cli::{
    client::Client,
    command::{self, Finished, KEPT},
    connect::Start,
    context::Context,
    exit::{Exit, Stop},
};
use crate::{blueprint::Labels, engine::LeaseView, environment::Environments};

mod patience;
mod post;

use patience::{PAUSE, may_pass, patiently, pause_after};
use post::Post;

/// The time for which one request for work waits at the daemon, in seconds.
const POLL: u64 = 20;
/// The time limit of its answer: a daemon or a proxy may accept the request and never answer.
const ANSWER: Duration = Duration::from_secs(POLL + 40);

/// Work on tasks of a queue by running a command for each
#[derive(Debug, Args)]
pub struct Worker {
    /// The queue
    #[arg(long)]
    queue: String,
    /// A label of this worker; tasks that require other labels go to other workers (repeatable)
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Maximum number of tasks at a time
    #[arg(
        long,
        alias = "max",
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=100)
    )]
    max_in_flight: u16,
    /// Name of this worker in lists
    #[arg(long)]
    name: Option<String>,
    /// The command; it reads the input as JSON from stdin and prints the result
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Worker {
    /// Does it, until it is told to stop; what it has is then finished first.
    ///
    /// # Errors
    /// Labels that cannot be, no daemon, or a token that may not take tasks of this queue.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let labels = Labels::new(self.labels.iter().cloned().collect())
            .map_err(|error| Stop::usage(format!("failed to {error}")))?;
        cx.with(Start::Attached, async |at| self.work_off(cx, &at.client, &labels).await).await
    }

    async fn work_off(&self, cx: &Context, client: &Client, labels: &Labels) -> Result<Exit> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let say = |line: &str| cx.terminal.say(line);
        say(&format!("taking tasks of {}{labels} (Ctrl-C: finish, twice: stop)", self.queue));
        let now = CancellationToken::new();
        // The command is not to find the keys of a daemon on the same machine.
        let (config, data) = (cx.config.environments.clone(), &cx.config.data);
        let environments = Environments::new(config, data, cx.clock.clone());
        let most = usize::from(self.max_in_flight);
        let (begin, mut leased) = mpsc::channel(most);
        let post = Post::new(cx, client, self.lease(labels), begin.clone());
        let mut delivery = pin!(post.deliver());
        let mut open = FuturesUnordered::new();
        // At most one, kept while tasks end beside it: a question that is dropped may have been
        // answered.
        let mut question = FuturesUnordered::new();
        let (mut taking, mut refused) = (true, None);
        while (taking && refused.is_none()) || !open.is_empty() || !leased.is_empty() {
            // For a moment more than `most` are open: a task that is answered, and the next one.
            let free = most.saturating_sub(open.len() + leased.len());
            if taking && refused.is_none() && free > 0 && question.is_empty() {
                question.push(self.take(cx, client, labels, free, &begin));
            }
            let stopped = tokio::select! {
                Some(taken) = question.next() => {
                    if let Err(error) = taken {
                        // The token may have ended. Tasks in work have their handles; whoever
                        // drains the worker now finishes them as well.
                        post.stop_leasing();
                        let left = open.len() + leased.len();
                        if left > 0 {
                            say(&format!("draining, {left} to finish: {error:#}"));
                        }
                        refused = Some(error);
                    }
                    false
                }
                Some(lease) = leased.recv() => {
                    say(&format!("{} begun", lease.task));
                    open.push(self.work(cx, &post, client, &environments, lease, now.clone()));
                    false
                }
                Some(line) = open.next() => {
                    say(&line);
                    false
                }
                () = &mut delivery => false,
                _ = interrupt.recv() => true,
                _ = terminate.recv() => true,
            };
            if stopped {
                stop(&mut taking, &now);
                question.clear();
                post.stop_leasing();
                say(&match open.len() + leased.len() {
                    n if now.is_cancelled() => format!("stopping; {n} task(s) given up"),
                    n => format!(
                        "draining: asking for no more tasks, {n} to finish; once more stops at once"
                    ),
                });
            }
        }
        match refused {
            _ if now.is_cancelled() => Ok(Exit::Interrupted),
            Some(error) => Err(error),
            None => Ok(Exit::Ok),
        }
    }

    /// Returns the body of a lease, without the number of tasks and the time to wait.
    fn lease(&self, labels: &Labels) -> Value {
        let mut body = json!({"queue": self.queue, "labels": labels, "prompts": true});
        if let Some(name) = &self.name {
            body["worker"] = json!(name);
        }
        body
    }

    /// Asks for tasks until there are some, which then begin; whatever may go away by itself is
    /// waited for.
    async fn take(
        &self,
        cx: &Context,
        client: &Client,
        labels: &Labels,
        max: usize,
        begin: &mpsc::Sender<LeaseView>,
    ) -> Result<()> {
        let mut body = self.lease(labels);
        body["wait"] = json!(format!("{POLL}s"));
        body["max"] = json!(max);
        let mut pause = PAUSE.0;
        loop {
            let error = match client.lease(&body, ANSWER).await {
                Ok(leased) if leased.is_empty() => {
                    pause = PAUSE.0;
                    continue;
                }
                Ok(leased) => {
                    for lease in leased {
                        begin.send(lease).await?;
                    }
                    return Ok(());
                }
                Err(error) => error,
            };
            if !may_pass(&error) {
                return Err(error);
            }
            pause = pause_after(cx, &format!("{error:#}"), pause, &error).await;
        }
    }

    /// Works on one task, and says how it went.
    async fn work(
        &self,
        cx: &Context,
        post: &Post<'_>,
        daemon: &Client,
        environments: &Environments,
        lease: LeaseView,
        now: CancellationToken,
    ) -> String {
        let client = daemon.with_token(&lease.handle);
        let task = lease.task;
        tokio::select! {
            biased;
            () = now.cancelled() => format!("{task} was given up"),
            ended = self.attempt(cx, post, &client, environments, &lease) => match ended {
                Ok(how) => format!("{task} {how}"),
                Err(error) => format!("{task}: {error:#}"),
            },
        }
    }

    /// Runs the command and reports, and says how it went.
    async fn attempt(
        &self,
        cx: &Context,
        post: &Post<'_>,
        client: &Client,
        environments: &Environments,
        lease: &LeaseView,
    ) -> Result<String> {
        let mut kept = post.keep(lease);
        let body = tokio::select! {
            body = self.run_command(cx, client, environments, lease) => body?,
            why = kept.lost() => return Ok(format!("was taken back: {why}")),
        };
        // The work is done: a daemon that restarts meanwhile is waited for as long as it takes. The
        // slot is taken until the answer, also if the lease is lost: the next task may come with it.
        let how = if body["ok"] == true { "done" } else { "failed" };
        let Err(error) = post.report(&lease.handle, &body).await else {
            return Ok(how.to_owned());
        };
        match error.downcast_ref::<Stop>() {
            // The command may have reported by itself: then that is the result.
            Some(stop) if stop.code.as_deref() == Some("already_accepted") => Ok("done".to_owned()),
            Some(_) | None => Err(error),
        }
    }

    /// Runs the command, and returns its result; dropping this kills the command and its children.
    async fn run_command(
        &self,
        cx: &Context,
        client: &Client,
        environments: &Environments,
        lease: &LeaseView,
    ) -> Result<Value> {
        let prompt = match &lease.prompt {
            Some(prompt) => prompt.clone(),
            None => Box::new(patiently(cx, "the prompt", async || client.prompt().await).await?),
        };
        let trace = lease.traceparent.clone().map(|trace| ("TRACEPARENT", trace));
        let env: Vec<_> = [
            ("MOONSWARM_URL", client.url().to_owned()),
            ("MOONSWARM_HANDLE", lease.handle.clone()),
            ("MOONSWARM_TASK", lease.task.to_string()),
            ("MOONSWARM_ATTEMPT", prompt.attempt.to_string()),
        ]
        .into_iter()
        .chain(trace)
        .collect();
        let input = prompt.input.as_str();
        Ok(match command::run(environments, &self.command, &env, input).await {
            Ok(finished) => report(&finished),
            Err(error) => json!({"ok": false, "output": null,
                "error": {"message": format!("{error:#}"), "retryable": true}}),
        })
    }
}

/// Reads `NAME=VALUE`.
fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a label is NAME=VALUE, as in gpu=true")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn stop(taking: &mut bool, now: &CancellationToken) {
    match *taking {
        true => *taking = false,
        false => now.cancel(),
    }
}

/// Returns the report for the end of a command.
fn report(finished: &Finished) -> Value {
    match finished.exit_code {
        Some(0) if finished.is_cut => {
            let message = format!("it printed more than {} MiB; send a file", KEPT >> 20);
            json!({"ok": false, "error": {"message": message, "retryable": false}})
        }
        Some(0) => json!({"ok": true, "output": finished.output()}),
        _ => json!({"ok": false, "output": finished.raw(),
            "error": {"message": finished.summary(), "retryable": false}}),
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
        let (stdout, stderr) = ("a".to_owned(), "boom\n".to_owned());
        let finished = Finished { exit_code: Some(3), stdout, stderr, is_cut: false };
        let body = report(&finished);
        assert_eq!(body["ok"], false);
        assert_eq!(body["output"]["stderr"], "boom\n");
        assert_eq!(body["error"]["message"], "exit code 3: boom");
    }

    #[test]
    fn an_output_that_was_cut_is_no_result() {
        let (stdout, stderr) = ("[1, 2".to_owned(), String::new());
        let finished = Finished { exit_code: Some(0), stdout, stderr, is_cut: true };
        let body = report(&finished);
        assert_eq!(body["ok"], false);
        assert_eq!(body["error"]["message"], "it printed more than 4 MiB; send a file");
        assert_eq!(body.get("output"), None);
    }
}
