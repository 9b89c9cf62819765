//! A stage: a whole engine on one thread, with a manual clock and a store in memory; its tasks are
//! answered by the owner of the stage. The tests of blueprints run on it.
//!
//! The stage can crash after any commit and restart with the durable data, any number of times.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, EnterGuard, Runtime},
    sync::oneshot,
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock,
    engine::{
        Caller, Engine, EngineError, EngineParts, Recovery, Retention, Settings,
        shard::owner::Shard, shared::mailbox::Mailbox,
    },
    flow::RunLimits,
    journal::Fact,
    lua::{Coverage, Limits, TaskLimits},
    middleware::TaskDone,
    operator::{
        Answered, Backend, Delivery, QueueHub, Registry, Reply, Residence, Task, inquiry_of,
        rehearsed,
    },
    protocol::{Failure, FunctionTool, Json, failure::kind},
    store::{Memory, Partition, Reader as _, Store, TaskFilter, TaskRow},
    tasks::{Driver, Tasks},
    token::{Grant, HandleKey, KeyRing, Role, Scopes, SigningKey},
};

/// The time at which a stage begins: a Monday.
const BEGIN_MS: u64 = 1_767_571_200_000;

/// The maximum number of rounds until the host is idle.
const ROUNDS: usize = 200_000;

/// Real time must not affect a test: a slow machine exceeds no limit of a script.
const SLICE_MS: u64 = 30_000;

/// A task that waits for an answer.
pub struct Job {
    /// The number of its run.
    pub run: u64,
    /// The number of its step.
    pub step: u32,
    /// Its agent.
    pub agent: Arc<str>,
    /// The operator that the agent names.
    pub operator: Arc<str>,
    /// Its input; for a model the request.
    pub input: Json,
    /// True if this is a model call, and not the agent as a whole.
    pub asks_model: bool,
    tell: oneshot::Sender<Result<Json, Failure>>,
    cancel: CancellationToken,
}

impl Job {
    /// Ends the attempt. The engine decides whether it still counts.
    pub fn answer(self, answer: Result<Json, Failure>) {
        // The attempt may have been given up.
        let _ = self.tell.send(answer);
    }
}

/// The tasks that wait for an answer.
type Desk = Arc<Mutex<Vec<Job>>>;

/// The agents that are answered through the desk although their operator could execute the task.
type Mocked = Answered;

/// An operator whose tasks are placed on the desk.
struct Played {
    kind: &'static str,
    desk: Desk,
    mocked: Mocked,
    /// Executes its tasks, unless their agent is mocked.
    real: Option<Arc<dyn Backend>>,
    worker: bool,
    leased: bool,
    tool: bool,
    model: bool,
}

#[async_trait]
impl Backend for Played {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    fn requires_worker_binding(&self) -> bool {
        self.worker
    }

    fn is_leased(&self) -> bool {
        self.leased
    }

    fn requires_tool(&self) -> bool {
        self.tool
    }

    fn is_model(&self) -> bool {
        self.model
    }

    async fn list_tools(&self, task: Arc<Task>) -> Result<Vec<FunctionTool>, Failure> {
        let agent = task.agent_name.split('/').next().unwrap_or_default().to_owned();
        let message = format!(
            "a test asks no server for its tools (operator {}); write run:mock(\"{agent}\", …) for \
             what the agent comes to as a whole",
            task.operator
        );
        Err(Failure::new(kind::REFUSED, message))
    }

    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        let is_mocked = {
            let mocked = self.mocked.lock();
            mocked.contains(&*task.agent_name)
        };
        if let Some(real) = &self.real
            && !is_mocked
        {
            return real.execute(task, input).await;
        }
        let (tell, told) = oneshot::channel();
        let job = Job {
            run: task.id.run(),
            step: task.id.step(),
            agent: Arc::clone(&task.agent_name),
            operator: Arc::clone(&task.operator),
            input,
            asks_model: self.model && !is_mocked,
            tell,
            cancel: task.cancel.clone(),
        };
        self.desk.lock().push(job);
        task.reporter.delivered(Delivery { worker: "test".into() });
        let told = tokio::select! {
            biased;
            () = task.cancel.cancelled() => None,
            told = told => told.ok(),
        };
        match told {
            Some(Ok(output)) => {
                Ok(Reply::Done(TaskDone { output, usage: None, effects: Vec::new() }))
            }
            Some(Err(failure)) => Err(failure),
            None => Err(Failure::new(kind::CANCELED, "the attempt was given up")),
        }
    }
}

/// The limits of a stage.
pub struct StageLimits {
    /// CPU time of a script between two awaits, and of its evaluation, in milliseconds.
    pub slice_ms: u64,
    /// Memory of everything that the engine holds, in bytes.
    pub memory: usize,
    /// Memory of one run's script, in bytes.
    pub script: usize,
    /// Size of the entries of one history, in bytes.
    pub history: u64,
    /// The limits of a call of an agent's function.
    pub calls: TaskLimits,
    /// Returns true if the stage has to end, for the bytes that its runs have written so far.
    pub is_over: Option<Box<dyn Fn(u64) -> bool>>,
}

impl Default for StageLimits {
    fn default() -> Self {
        let RunLimits { memory: script, history, .. } = RunLimits::default();
        Self {
            slice_ms: SLICE_MS,
            memory: usize::MAX,
            script,
            history,
            calls: TaskLimits::default(),
            is_over: None,
        }
    }
}

/// Everything that is lost in a crash.
struct Live {
    engine: Engine,
    shards: Vec<(Shard, Mailbox)>,
    driver: Driver,
}

/// An engine that is driven by hand.
pub struct Stage {
    // Declared before the guard, so that what it holds is dropped while the guard exists.
    live: Option<Live>,
    known: Registry,
    clock: Clock,
    store: Arc<Memory>,
    desk: Desk,
    mocked: Mocked,
    owner: Caller,
    crash_after: Option<u64>,
    crashes: u32,
    coverage: Option<Coverage>,
    limits: StageLimits,
    _time: EnterGuard<'static>,
}

impl Stage {
    /// Creates a stage whose agents may name the operators of `known`; none of those is called
    /// except `echo`, `lua` and `human`.
    ///
    /// # Errors
    /// Fails when the engine cannot be assembled.
    pub fn set(known: &Registry) -> Result<Self, EngineError> {
        Self::within(known, None, StageLimits::default())
    }

    /// As [`Stage::set`], with coverage of the lines of blueprints, and within limits.
    ///
    /// # Errors
    /// Fails when the engine cannot be assembled.
    pub fn within(
        known: &Registry,
        coverage: Option<Coverage>,
        limits: StageLimits,
    ) -> Result<Self, EngineError> {
        let mut stage = Self {
            live: None,
            known: known.clone(),
            clock: Clock::manual(BEGIN_MS),
            store: Arc::new(Memory::held()),
            desk: Desk::default(),
            mocked: Mocked::default(),
            owner: owner(),
            crash_after: None,
            crashes: 0,
            coverage,
            limits,
            _time: stand_still(),
        };
        stage.boot()?;
        Ok(stage)
    }

    fn boot(&mut self) -> Result<(), EngineError> {
        let (tasks, driver) = Tasks::driven();
        let hub = Arc::new(QueueHub::default());
        self.desk = Desk::default();
        let operators = self.known.names().map(|(name, of)| {
            let real = match rehearsed(of, &tasks, &self.limits.calls) {
                Some(people) if people.asks_people() => return (name.to_owned(), people),
                real => real,
            };
            let known = self.known.get(name);
            let played = Played {
                kind: of,
                desk: Arc::clone(&self.desk),
                mocked: Arc::clone(&self.mocked),
                real,
                worker: known.is_some_and(|it| it.requires_worker_binding()),
                leased: crate::blueprint::Operators::is_leased(&self.known, name),
                tool: known.is_some_and(|it| it.requires_tool()),
                model: crate::blueprint::Operators::is_model(&self.known, name),
            };
            (name.to_owned(), Arc::new(played) as Arc<dyn Backend>)
        });
        let operators: BTreeMap<_, _> = operators.collect();
        let StageLimits { slice_ms, memory, script, history, .. } = self.limits;
        let run_limits = RunLimits { slice_ms, memory: script, history, ..RunLimits::default() };
        let limits = Limits {
            evaluate_ms: slice_ms,
            vm_memory: Limits::default().vm_memory.min(memory),
            coverage: self.coverage.clone(),
            ..Limits::default()
        };
        let (engine, unstarted) = Engine::assemble(EngineParts {
            store: Arc::clone(&self.store) as Arc<dyn Store>,
            clock: self.clock.clone(),
            tasks,
            // A mock answers for an agent as a whole, even if its operator is a model.
            registry: Registry::new(operators).answered_for(Arc::clone(&self.mocked)),
            hub,
            sessions: Arc::default(),
            keys: KeyRing::new(SigningKey::from_seed(&[1; 32])),
            handles: HandleKey::new([2; 32], 1),
            key_files: Arc::new(crate::engine::Unkept),
            limits,
            spawners: Default::default(),
            middleware: crate::engine::Middleware::default(),
            settings: Settings {
                lend: crate::engine::Lend::Off,
                retention: Retention::FOR_EVER,
                limits: run_limits,
                lease_ms: 30_000,
                park_ms: 24 * 3_600 * 1_000,
                compensation_ms: 300_000,
                memory,
                live_runs: 512,
                open_runs: 100_000,
                queued_signals: 1_000,
                webhooks: Default::default(),
                custom_effects: crate::engine::CustomEffects::Warn,
                work: PathBuf::from("work"),
            },
            shards: 1,
            recovery: Recovery::All,
            helps: None,
        })?;
        let mut shards: Vec<_> = unstarted.into_iter().map(|shard| shard.enter()).collect();
        for (shard, _) in &mut shards {
            shard.boot();
        }
        self.live = Some(Live { engine, shards, driver });
        Ok(())
    }

    fn live(&self) -> &Live {
        self.live.as_ref().expect("an engine is up between two crashes")
    }

    /// Makes the host crash right after this commit, once.
    pub fn crash_after(&mut self, commit: u64) {
        self.crash_after = Some(commit);
    }

    /// Returns the number of crashes.
    pub fn crashes(&self) -> u32 {
        self.crashes
    }

    /// Returns the commits that wrote to a journal, in order.
    pub fn journal_writes(&self) -> Vec<u64> {
        let commits = self.store.commits(0);
        commits.iter().filter(|it| !it.rows.is_empty()).map(|it| it.position).collect()
    }

    /// Returns the time, in Unix milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Calls the engine until it answers: after a crash the call is repeated on the next host.
    ///
    /// # Errors
    /// Returns the error of the engine.
    pub fn ask<T, F>(&mut self, ask: impl Fn(Engine, Caller) -> F) -> Result<T, EngineError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, EngineError>> + Send + 'static,
    {
        loop {
            let crashes = self.crashes;
            let future = ask(self.live().engine.clone(), self.owner.clone());
            let (piece, mut answer) = self.live().driver.add(future);
            for _ in 0..ROUNDS {
                if let Ok(answer) = answer.try_recv() {
                    return answer;
                }
                if self.crashes != crashes {
                    break;
                }
                if !self.go_on()? {
                    self.live().driver.give_up(piece);
                    return Err(EngineError::Stopping);
                }
            }
            if self.crashes == crashes {
                return Err(EngineError::Stopping);
            }
        }
    }

    /// Handles everything that can be handled without moving the clock.
    ///
    /// # Errors
    /// Fails when the host does not restart after a crash.
    pub fn settle(&mut self) -> Result<(), EngineError> {
        for _ in 0..ROUNDS {
            if !self.go_on()? {
                break;
            }
        }
        Ok(())
    }

    /// Does one thing; returns false when there is nothing to do.
    fn go_on(&mut self) -> Result<bool, EngineError> {
        if self.limits.is_over.as_ref().is_some_and(|is_over| is_over(self.store.written())) {
            return Err(EngineError::Stopping);
        }
        let live = self.live.as_mut().expect("an engine is up between two crashes");
        for (shard, messages) in &mut live.shards {
            if let Some(message) = messages.take() {
                shard.handle(message);
                return Ok(true);
            }
            if shard.is_ready() || shard.is_due() {
                shard.turn();
                return Ok(true);
            }
        }
        if let Some(piece) = live.driver.ready().first() {
            live.driver.poll(*piece);
            return Ok(true);
        }
        if self.store.acknowledge() {
            return Ok(true);
        }
        if self.store.waiting() > 0 {
            self.store.commit(1);
            if self.crash_after == Some(self.store.position()) {
                self.crash_after = None;
                self.crash()?;
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn crash(&mut self) -> Result<(), EngineError> {
        self.crashes += 1;
        if let Some(live) = self.live.take() {
            live.driver.give_up_all();
            drop(live.shards);
        }
        self.store = Arc::new(self.store.crash());
        self.boot()
    }

    /// Returns the next time at which something is due.
    pub fn next_due(&self) -> Option<u64> {
        let now = self.now_ms();
        let stored = self
            .store
            .due(&Partition::all().collect::<Vec<_>>(), u64::MAX >> 1, 10_000)
            .unwrap_or_default();
        let alarms = self.live().shards.iter().flat_map(|(shard, _)| shard.alarms_ms());
        let all = stored.into_iter().map(|(_, at)| at).chain(alarms);
        all.filter(|at| *at > now).min()
    }

    /// Moves the clock to `at_ms`, without handling what becomes due on the way.
    pub fn pass_to(&mut self, at_ms: u64) {
        self.clock.advance(Duration::from_millis(at_ms.saturating_sub(self.now_ms())));
    }

    /// Makes the tasks of an agent wait for an answer, whatever its operator could do.
    pub fn mock(&mut self, agent: &str) {
        self.mocked.lock().insert(agent.to_owned());
    }

    /// Returns the open tasks of people, oldest first.
    pub fn asked_people(&self) -> Vec<TaskRow> {
        let filter = TaskFilter { limit: 10_000, ..TaskFilter::default() };
        let rows = self.store.tasks(&filter).unwrap_or_default();
        rows.into_iter().filter(|row| inquiry_of(row).is_some()).collect()
    }

    /// Takes the tasks that wait for an answer.
    pub fn jobs(&mut self) -> Vec<Job> {
        let jobs = std::mem::take(&mut *self.desk.lock());
        jobs.into_iter().filter(|job| !job.cancel.is_cancelled()).collect()
    }

    /// Returns the number of attempts of a step that were answered with a failure that counts.
    pub fn failed_attempts(&self, run: u64, step: u32) -> usize {
        let entries = self.store.entries(run, 0).unwrap_or_default();
        let closed = entries.iter().filter(|entry| match &entry.fact {
            Fact::AttemptClosed(closed) => closed.step == step && closed.counts,
            _ => false,
        });
        closed.count()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(live) = self.live.take() {
            live.driver.give_up_all();
        }
    }
}

/// Returns a caller with every permission.
fn owner() -> Caller {
    Caller {
        subject: "test".into(),
        grant: Grant::new(Role::Admin, Scopes::all()).into(),
        jti: "test".into(),
        expires_ms: u64::MAX,
        session: None,
        trace: None,
    }
}

/// Enters a runtime whose timers nobody drives: timeouts of the engine's own waits never fire.
fn stand_still() -> EnterGuard<'static> {
    static TIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = TIME.get_or_init(|| {
        Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime with timers needs nothing that can be missing")
    });
    runtime.enter()
}

#[cfg(test)]
mod tests;
