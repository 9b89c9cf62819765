//! `run`: starts a run, shows it, prints its output.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    cli::{
        changes::Changes,
        client::Client,
        compile,
        connect::{Connection, Start},
        context::Context,
        exit::{Exit, Stop, judge},
        follow::{End, Follow},
        people,
        render::{elapsed, unix_ms},
        terminal::Questions,
        test_files::directories,
        values::{self, Pair},
    },
    engine::RunView,
    protocol::{RunId, Tags},
    store::RunStatus,
    token::Verb,
};

/// The maximum number of open runs that are named.
const NAMED: usize = 5;

/// Start a run, follow it, and print its output
#[derive(Debug, Args)]
pub struct Run {
    /// A Lua file, a directory with main.lua, or the name of a stored blueprint (name or name@hash)
    what: String,
    /// Parts of the input: key=value, JSON where it parses, a string otherwise
    #[arg(value_name = "KEY=VALUE")]
    pairs: Vec<Pair>,
    /// The input: JSON, @FILE, or - for stdin
    #[arg(short, long, value_name = "JSON")]
    input: Option<String>,
    /// Print the run's id and exit at once (needs a daemon)
    #[arg(long, conflicts_with_all = ["wait", "no_wait"])]
    detach: bool,
    /// Exit with 9 once the run waits only for people (the default without a terminal)
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    /// Wait at most this long, also for people; then exit with 7
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    wait: Option<Duration>,
    /// Directory in which child processes run [default: the current one, if the token may choose]
    #[arg(long, value_name = "DIR")]
    workdir: Option<std::path::PathBuf>,
    /// Session that holds an operator's seat (repeatable)
    #[arg(long = "seat", value_name = "OPERATOR=SESSION")]
    seats: Vec<String>,
    /// Session that gets every task, whatever operators the agents name
    #[arg(long, value_name = "SESSION")]
    delegate: Option<String>,
    /// A tag of the run (repeatable)
    #[arg(long = "tag", value_name = "NAME=VALUE")]
    tags: Vec<String>,
    /// Run again whenever a file of the blueprint changes; a run in progress is canceled
    #[arg(long, conflicts_with = "detach")]
    watch: bool,
}

impl Run {
    /// The file that it runs, unless it is a name.
    pub fn file(&self) -> Option<&Path> {
        compile::is_path(&self.what).then(|| Path::new(&self.what))
    }

    /// Runs the command.
    ///
    /// # Errors
    /// The errors of starting and watching the run; a run that fails is no error here.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let base = self.input.as_deref().map(values::document).transpose()?;
        if self.watch {
            return self.again_and_again(cx, base).await;
        }
        let start = if self.detach { Start::Attached } else { Start::Fresh };
        cx.with(start, async |at| {
            let body = self.request(cx, at, base).await?;
            if self.detach {
                let made = at.client.start(&body).await.map_err(|error| self.offer(error))?;
                match cx.terminal.json {
                    true => cx.terminal.print_json(&made)?,
                    false => cx.terminal.print(&made.id().to_string())?,
                }
                return Ok(Exit::Ok);
            }
            let begun = at.client.start_watched(&body).await;
            let run = begun.map_err(|error| self.offer(error))?;
            let id = run.id;
            let exit = self.watch(cx, at, run, &mut signal(SignalKind::interrupt())?).await?;
            leave(cx, at, id).await?;
            Ok(exit)
        })
        .await
    }

    /// Starts a run for every version of the file that compiles, until Ctrl-C.
    async fn again_and_again(&self, cx: &Context, base: Option<Value>) -> Result<Exit> {
        if !compile::is_path(&self.what) {
            let stop = Stop::usage(format!("--watch needs a file, and {} is a name", self.what));
            return Err(stop.into());
        }
        let mut changes = Changes::watch(&directories(&[self.what.clone().into()]))?;
        cx.with(Start::Fresh, async |at| {
            let mut last = None;
            // One for all waits: a Ctrl-C between two of them is not lost.
            let mut interrupt = signal(SignalKind::interrupt())?;
            loop {
                if let Some(found) = self.broken(cx)? {
                    cx.terminal.say(&found);
                    cx.terminal.say("  the last good version stays; waiting for a change");
                } else {
                    let begun = match self.request(cx, at, base.clone()).await {
                        Ok(body) => at.client.start_watched(&body).await,
                        Err(error) => Err(error),
                    };
                    match begun {
                        // Such as an input that the new version does not take.
                        Err(error) => cx.terminal.say(&format!("{error:#}")),
                        Ok(run) => {
                            let id = run.id;
                            tokio::select! {
                                exit = self.watch(cx, at, run, &mut interrupt) => match exit? {
                                    Exit::Interrupted => return Ok(Exit::Interrupted),
                                    exit => last = Some(exit),
                                },
                                changed = changes.next() => {
                                    match cancel_old(&at.client, id).await? {
                                        None => cx.terminal.say("changed: the run was canceled"),
                                        Some(ended) => {
                                            cx.terminal.say("changed: the run has ended");
                                            last = Some(finish(cx, &ended)?);
                                        }
                                    }
                                    if !changed { return Ok(last.unwrap_or(Exit::Ok)) }
                                    continue;
                                }
                            }
                        }
                    }
                    cx.terminal.say("waiting for a change; Ctrl-C ends it");
                }
                tokio::select! {
                    changed = changes.next() => if !changed { return Ok(last.unwrap_or(Exit::Ok)) },
                    _ = interrupt.recv() => return Ok(last.unwrap_or(Exit::Ok)),
                }
            }
        })
        .await
    }

    /// Returns the problem that prevents running the file, if there is one.
    fn broken(&self, cx: &Context) -> Result<Option<String>> {
        let bundle = match compile::load(Path::new(&self.what)) {
            Ok(bundle) => bundle,
            Err(stop) => return Ok(Some(stop.to_string())),
        };
        let found = compile::compile(&bundle, &cx.config).findings;
        let errors = found.iter().filter(|it| it.severity == compile::Severity::Error);
        let lines: Vec<_> = errors
            .map(|it| format!("{}:{}:{}: {}: {}", it.file, it.line, it.column, it.code, it.message))
            .collect();
        Ok((!lines.is_empty()).then(|| lines.join("\n")))
    }

    async fn request(&self, cx: &Context, at: &Connection, base: Option<Value>) -> Result<Value> {
        let (mut body, schema) = if compile::is_path(&self.what) {
            let bundle = compile::load(Path::new(&self.what))?;
            // Only pairs need the schema; the daemon reports what is wrong with the blueprint.
            let schema = match self.pairs.is_empty() {
                true => None,
                false => compile::compile(&bundle, &cx.config).input,
            };
            (compile::program(&bundle), schema)
        } else {
            let schema = match self.pairs.is_empty() {
                true => None,
                false => {
                    let found = at.client.blueprint(&self.what).await;
                    found.map_err(|error| self.offer(error))?.input
                }
            };
            (json!({"blueprint": self.what}), schema)
        };
        let schema = schema.map(|schema| schema.to_value());
        body["input"] = values::input(base, &self.pairs, schema.as_ref())?;
        body["trigger"] = json!({"kind": "cli"});
        for seat in &self.seats {
            let (operator, session) = seat.split_once('=').ok_or_else(|| {
                Stop::usage(format!("--seat {seat}: it is OPERATOR=SESSION"))
                    .next("`moonswarm sessions` lists them")
            })?;
            body["seats"][operator] = Value::from(session);
        }
        let tags = Tags::parse(self.tags.iter().map(String::as_str));
        let tags = tags.map_err(|error| Stop::usage(format!("failed to {error}")))?;
        if !tags.is_empty() {
            body["tags"] = json!(tags);
        }
        if let Some(session) = &self.delegate {
            body["delegate"] = Value::from(session.as_str());
        }
        if let Some(dir) = self.workdir(at)? {
            body["workdir"] = Value::from(dir);
        }
        Ok(body)
    }

    /// Adds the command that runs a file of that name, if no blueprint has the name.
    fn offer(&self, error: anyhow::Error) -> anyhow::Error {
        let Some(stop) = error.downcast_ref::<Stop>().filter(|it| it.exit == Exit::NotFound) else {
            return error;
        };
        let files = ["lua", "luau", "flow.json"].map(|it| format!("{}.{it}", self.what));
        match files.iter().find(|file| Path::new(file).is_file()) {
            Some(file) if !compile::is_path(&self.what) => {
                let next = format!("`moonswarm run {file}` runs the file that is here");
                stop.clone().next(next).into()
            }
            Some(_) | None => error,
        }
    }

    /// A directory of this machine means nothing to a daemon on another one.
    fn workdir(&self, at: &Connection) -> Result<Option<String>> {
        let dir = match &self.workdir {
            Some(dir) => dir.canonicalize().map_err(|error| {
                Stop::usage(format!("find the directory {}: {error}", dir.display()))
            })?,
            // What runs without the right to choose works in a directory of its own.
            None if at.client.is_local() && at.client.may(Verb::RunWorkdir) => {
                std::env::current_dir().context("find the current directory")?
            }
            None => return Ok(None),
        };
        let dir = dir.into_os_string().into_string();
        dir.map(Some).map_err(|dir| Stop::usage(format!("{} is not UTF-8", dir.display())).into())
    }

    async fn watch(
        &self,
        cx: &Context,
        at: &Connection,
        run: RunView,
        interrupt: &mut Signal,
    ) -> Result<Exit> {
        let follow = Follow {
            client: &at.client,
            terminal: cx.terminal,
            clock: &cx.clock,
            // Whoever watches a file changes it, or ends the run, when the wait is over for them.
            leave_to_people: self.no_wait
                || (self.wait.is_none() && !self.watch && !cx.terminal.live),
            ask: at.is_embedded() && cx.terminal.asks,
            wait: self.wait,
            leaves_tree: true,
        };
        match follow.until_end(run, interrupt).await? {
            End::Ended(run) => finish(cx, &run),
            End::People(run) => {
                if cx.terminal.json {
                    cx.terminal.print_json(&run)?;
                }
                let wanted = people::wanted(&run);
                cx.terminal.say(&format!("run {} waits for {wanted}", run.id));
                if at.is_embedded() {
                    cx.terminal
                        .say("  it continues once it has that, here or under `moonswarm serve`");
                }
                Ok(Exit::Waiting)
            }
            End::TimedOut(run) => {
                if cx.terminal.json {
                    cx.terminal.print_json(&run)?;
                }
                cx.terminal.say(&format!("run {} has not ended yet", run.id));
                come_back(cx, at, &run);
                Ok(Exit::TimedOut)
            }
            End::Interrupted(run) => interrupted(cx, at, &run, interrupt).await,
        }
    }
}

/// Cancels a run whose source changed; returns the run if it ended by itself meanwhile.
async fn cancel_old(client: &Client, run: RunId) -> Result<Option<RunView>> {
    let reason = json!({"reason": "its source changed"});
    match client.steer(run, "cancel", &reason).await {
        Ok(_) => Ok(None),
        Err(error) if judge(&error).0 == Exit::Conflict => client.run(run).await.map(Some),
        Err(error) => Err(error),
    }
}

/// Prints how a run ended: the output to stdout, a failure to stderr.
fn finish(cx: &Context, run: &RunView) -> Result<Exit> {
    if cx.terminal.json {
        cx.terminal.print_json(run)?;
    } else if let Some(output) = run.output.as_ref().filter(|output| !output.is_null()) {
        cx.terminal.print_value(&output.to_value())?;
    }
    if run.status != RunStatus::Completed {
        cx.terminal.say(&super::failure(run));
        cx.terminal.say(&format!("  next: moonswarm show {}", run.id));
    } else if cx.terminal.live {
        let ended = run.ended_at.as_deref().map_or(0, unix_ms);
        let took = elapsed(ended.saturating_sub(unix_ms(&run.created_at)));
        let steps = run.steps_done;
        cx.terminal.say(&format!(
            "completed in {took}, {steps} step{}: moonswarm show {}",
            if steps == 1 { "" } else { "s" },
            run.id
        ));
    }
    Ok(Exit::of_run(run))
}

fn come_back(cx: &Context, at: &Connection, run: &RunView) {
    let id = run.id;
    match at.is_embedded() {
        true => cx.terminal.say("  `moonswarm serve` continues it"),
        false => cx
            .terminal
            .say(&format!("  it continues: moonswarm show {id} · logs {id} -f · cancel {id}")),
    }
}

/// The first Ctrl-C: leaves a daemon to its work; here, cancels, after asking if there is anybody.
/// The second leaves.
async fn interrupted(
    cx: &Context,
    at: &Connection,
    run: &RunView,
    interrupt: &mut Signal,
) -> Result<Exit> {
    if !at.is_embedded() {
        cx.terminal.say(&format!("detached from run {}", run.id));
        come_back(cx, at, run);
        return Ok(Exit::Interrupted);
    }
    let canceled = tokio::select! {
        canceled = cancel_or_leave(cx, at, run) => canceled?,
        _ = interrupt.recv() => None,
    };
    let Some(canceled) = canceled else {
        come_back(cx, at, run);
        return Ok(Exit::Interrupted);
    };
    let follow = Follow {
        client: &at.client,
        terminal: cx.terminal,
        clock: &cx.clock,
        leave_to_people: false,
        ask: false,
        wait: None,
        leaves_tree: false,
    };
    match follow.until_end(canceled, interrupt).await? {
        End::Ended(run) => cx.terminal.say(&super::failure(&run)),
        End::Interrupted(run) | End::People(run) | End::TimedOut(run) => come_back(cx, at, &run),
    }
    Ok(Exit::Interrupted)
}

/// Cancels the run, unless somebody at the terminal says no.
async fn cancel_or_leave(cx: &Context, at: &Connection, run: &RunView) -> Result<Option<RunView>> {
    if cx.terminal.asks {
        let question = "cancel the run? [y] cancel · [n] leave it for `moonswarm serve`:";
        let said = Questions::new().ask(question).await?;
        if said.is_some_and(|said| said.eq_ignore_ascii_case("n")) {
            return Ok(None);
        }
    }
    at.client.steer(run.id, "cancel", &json!({"reason": "Ctrl-C"})).await.map(Some)
}

/// Says what else is open in the data directory, and stays for what others started here.
async fn leave(cx: &Context, at: &Connection, run: RunId) -> Result<()> {
    let Some(host) = at.host() else { return Ok(()) };
    let open = host.left_open();
    if !open.is_empty() {
        cx.terminal.say(&format!(
            "{} older run(s) are open in {}:",
            open.len(),
            cx.config.data.display()
        ));
        for id in open.iter().take(NAMED) {
            cx.terminal.say(&format!("  {id}"));
        }
        cx.terminal.say("  `moonswarm serve` continues them");
    }
    at.serve_others(run, cx.terminal).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fixture;

    #[tokio::test]
    async fn a_run_that_ended_as_its_file_changed_does_not_end_the_watch() {
        let ended = json!({"code": "run_closed", "detail": "the run has ended"}).to_string();
        let run = json!(fixture::run(RunStatus::Completed)).to_string();
        let answers = vec![(409, ended), (200, run), (403, "{}".to_owned())];
        let server = fixture::serve(answers).await;
        let client = Client::new(&server.url, "t").unwrap();
        let run = cancel_old(&client, fixture::run_id()).await.unwrap().expect("it is shown");
        assert_eq!(run.status, RunStatus::Completed);
        assert!(cancel_old(&client, fixture::run_id()).await.is_err());
    }
}
