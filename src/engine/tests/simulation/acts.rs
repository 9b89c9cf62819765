//! The acts of clients, workers and people, through the engine's public methods.

use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::json;
use tokio::sync::oneshot;

use super::{
    history::{Ask, Of, Says, Told, What},
    operator::Worked,
    random::Random,
    world::{SAFE, World},
};
use crate::{
    blueprint::Labels,
    engine::{
        Answer, Bearer, Engine, EngineError, Holder, IdempotencyKey, LeaseAsk, Leased, Program,
        Report, StartRun, Verdict, WaitFor,
    },
    protocol::{Effect, Failure, Json, RunId, TaskId},
    store::{Memory, Reader as _, TaskFilter, TaskPhase},
    token::{AttemptId, Handle},
};

/// Runs that a world has.
const RUNS: usize = 5;
/// Runs of a world that lends: only some are lent, and some wait from the beginning.
const LENT_RUNS: usize = 14;
/// Workers that wait for tasks at the same time.
const POLLERS: usize = 2;

/// The effect that comes with a report: it writes the report's own number into its run's state.
fn effect(run: &str, body: u32) -> serde_json::Value {
    json!({ "type": "write_memory", "scope": { "workflow": run }, "key": "effect",
            "value": { "report": body } })
}

fn effects(run: &str, body: u32) -> Vec<serde_json::Value> {
    if body.is_multiple_of(2) { vec![effect(run, body)] } else { Vec::new() }
}

/// The value that a report or an answer brings.
fn output(body: u32) -> serde_json::Value {
    json!({ "v": body, "by": body })
}

fn report(run: &str, body: u32, says: Says) -> Report {
    let verdict = match says {
        Says::Done => Verdict::Done(Json::from(&output(body))),
        Says::Garbage => Verdict::Done(Json::from(&json!({ "by": body }))),
        Says::Failed { retryable } => {
            Verdict::Failed { message: format!("body {body}."), retryable, data: None }
        }
    };
    let text = format!("body {body}.");
    Report {
        verdict,
        usage: None,
        effects: effects(run, body),
        body_hash: blake3::hash(text.as_bytes()).to_string(),
        body: text,
        key: None,
    }
}

fn key(route: &'static str, number: Option<u32>, body: u32) -> Option<IdempotencyKey> {
    number.map(|number| IdempotencyKey {
        route,
        key: format!("key-{number}"),
        body: format!("{body}"),
    })
}

/// A request, as a future over the engine.
pub fn perform(world: &World, ask: &Ask) -> BoxFuture<'static, Result<Told, EngineError>> {
    let engine = world.engine().clone();
    let caller = |token: usize| world.tokens[token].clone();
    let run_id = |run: u64| world.runs[&run];
    match ask.clone() {
        Ask::Start { body, key: number, token, peer } => {
            let caller = caller(token);
            let peer = peer.map(|peer| run_id(peer).to_string());
            let start = StartRun {
                input: Json::from(&json!({ "s": body, "peer": peer })),
                ..StartRun::new(Program::Named(program_of(world, body)))
            };
            Box::pin(async move {
                let key = key("POST /v1/runs", number, body);
                let started = engine.start(&caller, start, key).await?;
                Ok(Told::Started { run: started.run.num(), repeated: started.repeated })
            })
        }
        Ask::Cancel { run, body, token } => {
            let (caller, run) = (caller(token), run_id(run));
            Box::pin(async move {
                engine.cancel(&caller, run, format!("body {body}."), None).await.map(|_| Told::Done)
            })
        }
        Ask::Pause { run, body, token } => {
            let (caller, run) = (caller(token), run_id(run));
            Box::pin(async move {
                engine.pause(&caller, run, format!("body {body}.")).await.map(|_| Told::Done)
            })
        }
        Ask::Resume { run, token } => {
            let (caller, run) = (caller(token), run_id(run));
            Box::pin(async move { engine.resume(&caller, run).await.map(|_| Told::Done) })
        }
        Ask::Signal { run, body, key: number, token } => {
            let (caller, run) = (caller(token), run_id(run));
            Box::pin(async move {
                let payload = Json::from(&json!({ "signal": body }));
                let key = key("POST signal", number, body);
                engine.signal(&caller, run, "go".into(), payload, key).await.map(|()| Told::Done)
            })
        }
        Ask::Answer { run, step, scheduled_ms, body, rejects, token } => {
            let caller = caller(token);
            let answer = if rejects {
                Answer::Reject { reason: format!("body {body}.") }
            } else {
                Answer::Output(Json::from(&output(body)))
            };
            Box::pin(async move {
                let task = TaskId::new(run, step, scheduled_ms);
                engine.tasks().answer(&caller, task, (answer, None), None).await.map(|_| Told::Done)
            })
        }
        Ask::Revoke { token } => {
            let (by, jti) = (caller(SAFE), world.tokens[token].jti.clone());
            Box::pin(async move { engine.tokens().revoke(&by, &jti).await.map(|()| Told::Done) })
        }
        Ask::Lease { queue, worker, max, wait_ms } => {
            let by = caller(SAFE);
            Box::pin(async move {
                let name = format!("worker-{worker}");
                let labels = Labels::default();
                let ask = wanted(queue, &name, &labels, max, wait_ms);
                Ok(leased(&engine.tasks().lease(&by, &ask).await?))
            })
        }
        Ask::Next { .. } => unreachable!("it comes with a report"),
        Ask::Wait { run } => {
            let (caller, run) = (caller(SAFE), run_id(run));
            Box::pin(async move {
                let patience = Duration::from_secs(3_600);
                engine.wait(&caller, run, WaitFor::Ended, patience).await.map(|_| Told::Done)
            })
        }
        Ask::Prompt(of) => {
            let holder = holder(world, &engine, of);
            Box::pin(async move { engine.tasks().prompt(&holder).await.map(|_| Told::Done) })
        }
        Ask::Beat(of) => {
            let holder = holder(world, &engine, of);
            Box::pin(async move {
                engine
                    .tasks()
                    .heartbeat(&holder)
                    .await
                    .map(|beat| Told::Beat { cancel: beat.cancel })
            })
        }
        Ask::Report { of, body, says } => {
            let own = id_of(&world.store, of.run);
            let holder = holder(world, &engine, of);
            Box::pin(async move {
                engine.tasks().report(&holder, report(&own, body, says)).await.map(Told::Accepted)
            })
        }
        Ask::State { of, body } => {
            let holder = holder(world, &engine, of);
            Box::pin(async move {
                let value = Json::from(&json!({ "state": body }));
                engine
                    .tasks()
                    .put_worker_state(&holder, None, "worker".into(), value)
                    .await
                    .map(|()| Told::Done)
            })
        }
        Ask::File { of, body } => {
            let holder = holder(world, &engine, of);
            Box::pin(async move {
                let name = format!("file-{body}");
                engine.tasks().put_artifact(&holder, name, vec![1]).await.map(|_| Told::Done)
            })
        }
    }
}

fn wanted<'a>(
    queue: &'a str,
    worker: &'a str,
    labels: &'a Labels,
    max: usize,
    wait_ms: u64,
) -> LeaseAsk<'a> {
    LeaseAsk { queue, worker, labels, max, wait: Duration::from_millis(wait_ms), prompts: true }
}

fn leased(leased: &[Leased]) -> Told {
    let attempts = leased.iter().map(|leased| {
        let handle = Handle::parse(&leased.handle).expect("it was just made");
        (handle.run(), handle.step(), handle.attempt())
    });
    Told::Leased(attempts.collect())
}

/// The reporter: the bearer of a handle, or of a token.
fn holder(world: &World, engine: &Engine, of: Of) -> Holder {
    let Of { run, step, attempt, .. } = of;
    let nonce = world.store.header(run).ok().flatten().map_or(0, |header| header.nonce);
    let of_attempt = AttemptId { run, step, attempt, epoch: 1, nonce };
    let handle = Handle::mint(&world.handles, &of_attempt).expose();
    let Ok(Bearer::Holder(mut holder)) = engine.authenticate(&handle) else {
        unreachable!("a handle is a holder's");
    };
    if let Some(token) = of.token {
        holder.jti = Some(world.tokens[token].jti.clone());
    }
    holder
}

/// The program of a run, by the body of its start.
fn program_of(world: &World, body: u32) -> String {
    let body = usize::try_from(body).expect("it is small");
    world.programs[body % world.programs.len()].clone()
}

/// The id of a stored run.
fn id_of(store: &Memory, run: u64) -> String {
    let header = store.header(run).expect("it can be read");
    header.map_or_else(String::new, |it| RunId::new(run, it.created_ms).to_string())
}

fn some_says(random: &mut Random) -> Says {
    match random.below(8) {
        0..5 => Says::Done,
        5 => Says::Garbage,
        _ => Says::Failed { retryable: random.once_in(2) },
    }
}

impl World {
    fn some_token(&mut self) -> usize {
        self.random.below(self.tokens.len())
    }

    fn some_run(&mut self) -> Option<u64> {
        let runs: Vec<u64> = self.runs.keys().copied().collect();
        self.random.pick(&runs).copied()
    }

    fn some_key(&mut self) -> Option<u32> {
        self.random.once_in(2).then(|| self.next_body())
    }

    /// Somebody does something.
    pub fn act(&mut self) {
        if self.lends && self.random.once_in(3) {
            // Where runs are lent, there are more of them, and they come further.
            return if self.random.once_in(2) { self.start() } else { self.work_in_host() };
        }
        match self.random.below(40) {
            0..5 => self.start(),
            5..9 => self.signal(),
            9..11 => {
                if let Some(run) = self.some_run() {
                    let (body, token) = (self.next_body(), self.some_token());
                    self.ask(Ask::Cancel { run, body, token });
                }
            }
            11 => {
                if let Some(run) = self.some_run() {
                    let (body, token) = (self.next_body(), self.some_token());
                    self.ask(Ask::Pause { run, body, token });
                }
            }
            12..14 => {
                if let Some(run) = self.some_run() {
                    let token = self.some_token();
                    self.ask(Ask::Resume { run, token });
                }
            }
            14 => {
                // One of the tokens is revoked at some time; the first never is.
                if self.random.once_in(3) && self.revoked + 1 < self.tokens.len() {
                    self.revoked += 1;
                    self.ask(Ask::Revoke { token: self.revoked });
                }
            }
            15 => {
                if let Some(run) = self.some_run() {
                    self.ask(Ask::Wait { run });
                }
            }
            16..18 => self.answer(),
            18..23 => {
                let worker = self.next_body();
                let queue = self.some_queue();
                let max = 1 + self.random.below(3);
                let waits = self.pollers() < POLLERS && self.random.once_in(2);
                let wait_ms = if waits { 1 + self.random.below(5_000) as u64 } else { 0 };
                self.ask(Ask::Lease { queue, worker, max, wait_ms });
            }
            23..34 => self.work(),
            34..38 => self.work_in_host(),
            _ => self.repeat(),
        }
    }

    fn start(&mut self) {
        let most = if self.lends { LENT_RUNS } else { RUNS };
        if self.runs.len() >= most {
            return;
        }
        let body = self.next_body();
        let (key, token, peer) = (self.some_key(), self.some_token(), self.some_run());
        self.ask(Ask::Start { body, key, token, peer });
    }

    fn signal(&mut self) {
        if let Some(run) = self.some_run() {
            let body = self.next_body();
            let (key, token) = (self.some_key(), self.some_token());
            self.ask(Ask::Signal { run, body, key, token });
        }
    }

    fn answer(&mut self) {
        let filter = TaskFilter { kind: Some("human".into()), limit: 100, ..TaskFilter::default() };
        let rows = self.store.tasks(&filter).unwrap();
        if let Some(row) = self.random.pick(&rows).cloned() {
            let (run, step, scheduled_ms) = (row.run, row.step, row.scheduled_ms);
            let (body, token, rejects) =
                (self.next_body(), self.some_token(), self.random.once_in(4));
            self.ask(Ask::Answer { run, step, scheduled_ms, body, rejects, token });
        }
    }

    /// A worker with a handle does something with it; often it is too late.
    fn work(&mut self) {
        let Some(mut of) = self.random.pick(&self.held).copied() else { return };
        if self.random.once_in(3) {
            of.token = Some(self.some_token());
        }
        match self.random.below(12) {
            0 => self.ask(Ask::Prompt(of)),
            1..3 => self.ask(Ask::Beat(of)),
            3 => {
                let body = self.next_body();
                self.ask(Ask::State { of, body });
            }
            4 => {
                let body = self.next_body();
                self.ask(Ask::File { of, body });
            }
            5..8 => {
                let (says, queue) = (some_says(&mut self.random), self.some_queue());
                let max = 1 + self.random.below(3);
                let wait_ms = if self.random.once_in(3) { 1 + self.random.below(5_000) } else { 0 };
                self.report_and_lease(of, says, (queue, max, wait_ms as u64));
            }
            _ => {
                let (body, says) = (self.next_body(), some_says(&mut self.random));
                self.ask(Ask::Report { of, body, says });
            }
        }
    }

    fn some_queue(&mut self) -> &'static str {
        if self.random.once_in(3) { "one" } else { "q" }
    }

    /// A worker reports, and leases the next tasks in the same request.
    pub fn report_and_lease(
        &mut self,
        of: Of,
        says: Says,
        (queue, max, wait_ms): (&'static str, usize, u64),
    ) {
        let (body, worker) = (self.next_body(), self.next_body());
        let (engine, by) = (self.engine().clone(), self.tokens[SAFE].clone());
        let (holder, own) = (holder(self, &engine, of), id_of(&self.store, of.run));
        let (tell_first, first) = oneshot::channel();
        let (tell_second, second) = oneshot::channel();
        let piece = self.begin(async move {
            let (name, labels) = (format!("worker-{worker}"), Labels::default());
            let ask = wanted(queue, &name, &labels, max, wait_ms);
            let reports = vec![(holder, report(&own, body, says))];
            let (mut answers, tasks) =
                engine.tasks().report_and_lease(&by, reports, &ask).await.expect("it may lease");
            let answer = answers.pop().expect("there is one").map(Told::Accepted);
            // Whoever asked may be gone.
            drop(tell_first.send(answer));
            drop(tell_second.send(Ok(leased(&tasks))));
        });
        self.expect(Ask::Report { of, body, says }, piece, first);
        self.expect(Ask::Next { queue, worker, max, wait_ms }, piece, second);
    }

    fn work_in_host(&mut self) {
        let desks = self.desks().into_iter();
        let jobs = desks.flat_map(|desk| (0..desk.len()).map(move |place| (desk.clone(), place)));
        let jobs: Vec<(Worked, usize)> = jobs.collect();
        if jobs.is_empty() {
            return;
        }
        let (desk, place) = jobs[self.random.below(jobs.len())].clone();
        match self.random.below(6) {
            // It reports through the worker API, and goes on as if it had not.
            0 => {
                let (run, step, attempt) = desk.attempt(place);
                let body = self.next_body();
                let of = Of { run, step, attempt, token: None };
                self.ask(Ask::Report { of, body, says: Says::Done });
            }
            // Never.
            1 if self.random.once_in(3) => drop(desk.take(place)),
            _ => {
                let says = some_says(&mut self.random);
                self.end_job(&desk, place, says);
            }
        }
    }

    /// A worker in a process ends its attempt.
    pub fn end_job(&mut self, desk: &Worked, place: usize, says: Says) {
        let body = self.next_body();
        let job = desk.take(place);
        let (run, step, attempt) = (job.run, job.step, job.attempt);
        self.note(What::Worked { run, step, attempt, body, says });
        let decode = |value| serde_json::from_value::<Effect>(value).expect("it is an effect");
        let own = id_of(&self.store, run);
        let effects = effects(&own, body).into_iter().map(decode).collect();
        let result = match says {
            Says::Done => Ok((Json::from(&output(body)), effects)),
            Says::Garbage => Ok((Json::from(&json!({ "by": body })), effects)),
            Says::Failed { retryable } => {
                let mut failure = Failure::new("worker", format!("body {body}."));
                failure.retryable = retryable;
                Err(failure)
            }
        };
        // Whoever waited may have given it up.
        drop(job.tell.send(result));
    }

    /// Somebody asks once more for what was asked before.
    fn repeat(&mut self) {
        let of_reports = self.random.once_in(2);
        let before = if of_reports { &self.reports } else { &self.keyed };
        if let Some(ask) = self.random.pick(before).cloned() {
            self.ask(ask);
        }
    }

    /// In the calm everybody does what they are there for; says whether there was anything to do.
    pub fn help(&mut self) -> bool {
        let before = self.events.len();
        for header in self.unfinished() {
            let said = header.waiting_on.unwrap_or_default();
            let waits: Vec<serde_json::Value> = serde_json::from_str(&said).unwrap_or_default();
            if waits.iter().any(|it| it["kind"] == "resume") {
                self.ask(Ask::Resume { run: header.num, token: SAFE });
            }
            if waits.iter().any(|it| it["kind"] == "signal" && it["until"].is_null()) {
                let body = self.next_body();
                self.ask(Ask::Signal { run: header.num, body, key: None, token: SAFE });
            }
        }
        for desk in self.desks() {
            while desk.len() > 0 {
                self.end_job(&desk, 0, Says::Done);
            }
        }
        let mut pending = false;
        for row in self.store.tasks(&TaskFilter { limit: 1_000, ..TaskFilter::default() }).unwrap()
        {
            let (run, step, attempt) = (row.run, row.step, row.attempt);
            match (row.kind.as_str(), row.phase) {
                ("human", _) => {
                    let (body, scheduled_ms) = (self.next_body(), row.scheduled_ms);
                    let (rejects, token) = (false, SAFE);
                    self.ask(Ask::Answer { run, step, scheduled_ms, body, rejects, token });
                }
                ("queue", TaskPhase::Delivered) => {
                    let body = self.next_body();
                    let of = Of { run, step, attempt, token: None };
                    self.ask(Ask::Report { of, body, says: Says::Done });
                }
                ("queue", TaskPhase::Pending) => {
                    pending = true;
                    let queue = row.queue.clone().unwrap_or_default();
                    self.wanted.push((run, step, attempt, queue));
                }
                _ => {}
            }
        }
        if pending {
            for queue in ["q", "one"] {
                let worker = self.next_body();
                self.ask(Ask::Lease { queue, worker, max: 8, wait_ms: 0 });
            }
        }
        self.events.len() > before
    }
}
