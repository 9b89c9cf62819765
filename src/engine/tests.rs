//! The engine over a real database, real scripts and a clock that is moved by hand.

mod accounts;
mod attempts;
mod authority;
mod basics;
mod boundary;
mod budgets;
mod clocks;
mod composites;
mod copies;
mod deltas;
mod dispatches;
mod erasing;
mod fairness;
mod forks;
mod histories;
mod inbox;
mod leases;
mod locals;
mod loops;
mod moves;
mod neighbours;
mod outage;
mod recovery;
mod retention;
mod sessions;
mod simulation;
mod state;
mod tokens;
mod waits;
mod workers;

use std::{path::PathBuf, sync::Arc, time::Duration};

use super::*;
use crate::{
    blueprint::{Bundle, Labels},
    clock::Clock,
    flow::RunLimits,
    journal::{Entry, Fact},
    lua::Limits,
    operator::{Builtin, Coded, Declared, QueueHub, lua_calls},
    protocol::{Json, RunId},
    store::{Reader as _, RunFilter, RunStatus, Sqlite, TaskFilter},
    tasks::Tasks,
    token::{Grant, HandleKey, KeyRing, Role, Scopes, SigningKey, Verb},
};

/// The longest time that a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine with its data directory.
struct Bench {
    dir: Arc<tempfile::TempDir>,
    clock: Clock,
    engine: Engine,
    store: Arc<Sqlite>,
    tasks: Tasks,
}

impl Bench {
    fn new() -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        Self::open(dir, Clock::manual(1_700_000_000_000))
    }

    fn open(dir: Arc<tempfile::TempDir>, clock: Clock) -> Self {
        Self::open_with(dir, clock, 2, RunLimits::default(), Recovery::All)
    }

    fn open_with(
        dir: Arc<tempfile::TempDir>,
        clock: Clock,
        shards: usize,
        limits: RunLimits,
        recovery: Recovery,
    ) -> Self {
        let parts = (shards, limits, recovery, Retention::FOR_EVER);
        Self::assemble(dir, clock, parts, (&Coded::default(), Middleware::default()))
    }

    /// One with further operators, that are code.
    fn open_coded(dir: Arc<tempfile::TempDir>, clock: Clock, code: &Coded) -> Self {
        let parts = (2, RunLimits::default(), Recovery::All, Retention::FOR_EVER);
        Self::assemble(dir, clock, parts, (code, Middleware::default()))
    }

    /// One with layers and further operators, that are code.
    fn open_layered(code: &Coded, middleware: Middleware) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let parts = (2, RunLimits::default(), Recovery::All, Retention::FOR_EVER);
        Self::assemble(dir, Clock::manual(1_700_000_000_000), parts, (code, middleware))
    }

    fn open_keeping(dir: Arc<tempfile::TempDir>, clock: Clock, retention: Retention) -> Self {
        let parts = (2, RunLimits::default(), Recovery::All, retention);
        Self::assemble(dir, clock, parts, (&Coded::default(), Middleware::default()))
    }

    fn assemble(
        dir: Arc<tempfile::TempDir>,
        clock: Clock,
        parts: (usize, RunLimits, Recovery, Retention),
        code: (&Coded, Middleware),
    ) -> Self {
        let store = Sqlite::open(dir.path(), &crate::store::Options::default()).unwrap();
        let shared = Arc::clone(&store) as Arc<dyn crate::store::Store>;
        let (engine, tasks) = Self::over(shared, &dir, clock.clone(), parts, code);
        Self { dir, clock, engine, store, tasks }
    }

    /// An engine over a store of any kind.
    fn over(
        store: Arc<dyn crate::store::Store>,
        dir: &tempfile::TempDir,
        clock: Clock,
        (shards, limits, recovery, retention): (usize, RunLimits, Recovery, Retention),
        (code, middleware): (&Coded, Middleware),
    ) -> (Engine, Tasks) {
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let hub = Arc::new(QueueHub::default());
        let sessions = Arc::new(crate::session::Hub::new(clock.clone()));
        let bundles = dir.path().join("bundles");
        let registry = Builtin {
            lua: lua_calls(tasks.clone(), crate::lua::TaskLimits::default()),
            bundle_dir: Arc::new(move |blueprint| {
                let dir = bundles.join(blueprint.hash());
                blueprint.bundle().write_to(&dir).map_err(std::io::Error::other)?;
                Ok(dir)
            }),
            queues: Arc::clone(&hub),
            environments: Arc::new(crate::environment::Environments::new(
                crate::environment::Config::default(),
                dir.path(),
                clock.clone(),
            )),
            clock: clock.clone(),
            stopping: tasks.stopping().clone(),
            sessions: Arc::clone(&sessions),
        }
        .registry(&operators())
        .with(code);
        let engine = Engine::start_up(EngineParts {
            store,
            clock,
            tasks: tasks.clone(),
            registry,
            hub,
            sessions,
            keys: KeyRing::new(SigningKey::from_seed(&[7; 32])),
            handles: HandleKey::new([9; 32], 1),
            key_files: Arc::new(crate::engine::Unkept),
            limits: Limits::default(),
            settings: Settings {
                lend: crate::engine::Lend::Off,
                limits,
                lease_ms: 30_000,
                park_ms: 86_400_000,
                compensation_ms: 300_000,
                memory: usize::MAX,
                live_runs: 8,
                open_runs: 10_000,
                queued_signals: 100,
                retention,
                webhooks: Default::default(),
                custom_effects: CustomEffects::Error,
                work: PathBuf::from(dir.path()).join("work"),
            },
            spawners: Default::default(),
            middleware,
            shards,
            recovery,
            helps: None,
        })
        .unwrap();
        (engine, tasks)
    }

    /// Stops everything and opens the same directory again.
    async fn restart(self) -> Self {
        self.restart_after(Duration::ZERO, Recovery::All).await
    }

    /// The same, with nobody there for a while.
    async fn restart_after(self, away: Duration, recovery: Recovery) -> Self {
        let (dir, clock) = (Arc::clone(&self.dir), self.clock.clone());
        self.close().await;
        clock.advance(away);
        Self::open_with(dir, clock, 2, RunLimits::default(), recovery)
    }

    async fn close(self) {
        self.engine.stop().await;
        assert!(self.tasks.stop(PATIENCE).await, "everything spawned ends");
        self.store.close().unwrap();
    }

    fn admin(&self) -> Caller {
        Caller {
            subject: "admin".into(),
            grant: Grant::new(Role::Admin, Scopes::all()).into(),
            jti: "test".into(),
            expires_ms: u64::MAX,
            session: None,
            trace: None,
        }
    }

    /// Starts the blueprint whose agents and flow are `body`.
    async fn start(&self, body: &str, input: &str) -> RunId {
        self.try_start(body, input).await.unwrap()
    }

    async fn try_start(&self, body: &str, input: &str) -> Result<RunId, EngineError> {
        let source = format!(
            "local swarm = require(\"swarm\")\nlocal s = swarm.schema\nreturn swarm.blueprint {{ name = \"it\", {body} }}"
        );
        let start = StartRun {
            input: Json::parse(input).unwrap(),
            workdir: Some(self.dir.path().display().to_string()),
            ..StartRun::new(Program::Bundle(Bundle::from_source("it.lua", source).unwrap()))
        };
        Ok(self.engine.start(&self.admin(), start, None).await?.run)
    }

    /// Waits for the end of a run.
    async fn ended(&self, run: RunId) -> RunView {
        let view = self.engine.wait(&self.admin(), run, WaitFor::Ended, PATIENCE).await.unwrap();
        assert!(view.status.is_ended(), "{view:#?}");
        view
    }

    /// Runs to the end and gives the output as text.
    async fn output(&self, body: &str, input: &str) -> String {
        let run = self.start(body, input).await;
        let view = self.ended(run).await;
        assert_eq!(view.status, RunStatus::Completed, "{:?}", view.error);
        view.output.unwrap().as_str().to_owned()
    }

    /// Runs to the failure and gives its kind and message.
    async fn failure(&self, body: &str, input: &str) -> (String, String) {
        let run = self.start(body, input).await;
        let view = self.ended(run).await;
        let error = view.error.unwrap_or_else(|| panic!("it did not fail: {:?}", view.output));
        (error.kind, error.message)
    }

    fn entries(&self, run: RunId) -> Vec<Entry> {
        self.store.entries(run.num(), 0).unwrap()
    }

    /// Returns how often something of a kind happened to a run.
    fn count(&self, run: RunId, is: impl Fn(&Fact) -> bool) -> usize {
        self.entries(run).iter().filter(|entry| is(&entry.fact)).count()
    }

    /// Waits until a run is so.
    async fn until(&self, run: RunId, what: &str, is: impl Fn(&RunView) -> bool) -> RunView {
        let mut events = self.engine.events(&self.admin(), run, 0).await.unwrap();
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                let view = self.engine.run(&self.admin(), run).await.unwrap();
                if is(&view) {
                    return view;
                }
                events.next().await.unwrap();
            }
        });
        found.await.unwrap_or_else(|_| panic!("{what} did not come"))
    }

    /// Waits until a run waits for something of a kind.
    async fn waiting(&self, run: RunId, kind: &str) -> RunView {
        self.until(run, kind, |view| view.waiting_on.iter().any(|it| it.kind == kind)).await
    }

    async fn signal(&self, run: RunId, name: &str, payload: &str) -> Result<(), EngineError> {
        let payload = Json::parse(payload).unwrap();
        self.engine.signal(&self.admin(), run, name.into(), payload, None).await
    }

    /// Leases at most one task of a queue.
    async fn leases(&self, queue: &str, wait: Duration) -> Vec<Leased> {
        let labels = Labels::default();
        let ask = LeaseAsk { queue, worker: "test", labels: &labels, max: 1, wait, prompts: false };
        self.engine.tasks().lease(&self.admin(), &ask).await.unwrap()
    }

    /// Leases the next task of a queue.
    async fn lease(&self, queue: &str) -> Leased {
        // The wait itself goes by the clock of the bench.
        let leased = tokio::time::timeout(PATIENCE, self.leases(queue, PATIENCE)).await;
        leased.expect("an answer").into_iter().next().expect("a task")
    }

    fn holder(&self, handle: &str) -> Holder {
        match self.engine.authenticate(handle).unwrap() {
            Bearer::Holder(holder) => holder,
            Bearer::Caller(_) => panic!("a handle is no token"),
        }
    }

    async fn report(&self, handle: &str, output: &str) -> Result<bool, EngineError> {
        self.engine.tasks().report(&self.holder(handle), report(output)).await
    }
}

/// Operators over queues, alone and put together.
fn operators() -> Declared {
    let text = r#"
        a = { kind = "queue", queue = "a" }
        b = { kind = "queue", queue = "b" }
        c = { kind = "queue", queue = "c" }
        either = { kind = "composite", rule = "fallback", members = ["a", "b"] }
        fastest = { kind = "composite", rule = "race", members = ["a", "b", "c"] }
        agreed = { kind = "composite", rule = "quorum", agree = 2, path = "v", members = ["a", "b", "c"] }
        turns = { kind = "composite", rule = "round_robin", members = ["a", "b"] }
        nested = { kind = "composite", rule = "race", members = ["either", "c"] }
        here = { kind = "composite", rule = "fallback", members = ["lua", "echo"] }
        scripted = { kind = "llm", api = "script" }
        guided = { kind = "main_ai", direct = true, require_binding = false }
    "#;
    let section = toml::de::DeTable::parse(text).unwrap();
    let place = section.span();
    Declared::read(toml::Spanned::new(place, toml::de::DeValue::Table(section.into_inner())))
        .unwrap()
}

/// A report of a value.
fn report(output: &str) -> Report {
    Report {
        verdict: Verdict::Done(Json::parse(output).unwrap()),
        usage: None,
        effects: Vec::new(),
        body_hash: blake3::hash(output.as_bytes()).to_string(),
        body: output.to_owned(),
        key: None,
    }
}
