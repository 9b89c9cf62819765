//! The start of a world's processes: their operators, their settings, and the host's blueprints, tokens
//! and first helper.

use std::{path::PathBuf, sync::Arc};

use tokio::sync::mpsc;

use super::{Host, LEASE_MS, SAFE, World};
use crate::{
    blueprint::Bundle,
    clock::Clock,
    engine::{
        Caller, Engine, EngineParts, FromHelper, Lend, MintToken, Program, Recovery, Retention,
        Settings, StartRun,
        tests::simulation::{
            blueprint,
            operator::{Portable, Thinker, Worked},
        },
    },
    flow::{Rule, RunLimits},
    lua::Limits,
    operator::{Backend, Composite, Echo, Human, Queue, QueueHub, Registry},
    store::Store,
    tasks::Tasks,
    token::{Grant, HandleKey, KeyRing, Role, Scopes, SigningKey},
};

/// The versions of `main` in a world that lends: one whose runs came home soon is not lent again.
const VERSIONS: usize = 8;
/// The runs that a shard of a host keeps in memory.
const LIVE_RUNS: usize = 2;
/// The same of a host that lends: it lends fewer runs than it has in memory.
const LENDING_LIVE_RUNS: usize = 12;
/// The runs that wait at a host from the beginning, so that others are lent.
const WAITING: usize = 3;

/// What a process has that others have not.
pub(super) struct Process {
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Clock,
    pub(super) handles: HandleKey,
    /// True in a world whose host lends runs.
    pub(super) lends: bool,
    pub(super) gathers: bool,
    pub(super) shards: usize,
    /// The runs that a shard keeps in memory.
    pub(super) live_runs: usize,
    pub(super) worked: Worked,
    pub(super) port: Worked,
    /// The way to the host, for a process that helps it.
    pub(super) helps: Option<mpsc::UnboundedSender<FromHelper>>,
}

impl Host {
    /// Starts a process.
    pub(super) fn assemble(process: Process) -> Self {
        let Process { store, clock, handles, lends, gathers, shards, .. } = process;
        let Process { live_runs, worked, port, helps, .. } = process;
        let (tasks, driver) = Tasks::driven();
        let hub = Arc::new(QueueHub::default());
        let of = |rule, members: &[&str]| {
            Arc::new(Composite::new(rule, members.iter().copied()).expect("it can be"))
        };
        let agree = Rule::Quorum { agree: 2, path: "v".parse().expect("it is a path") };
        let operators: [(&str, Arc<dyn Backend>); 9] = [
            ("safe", of(Rule::Fallback, &["fast", "queue"])),
            ("fast", of(Rule::Race, &["queue", "turns"])),
            ("turns", of(Rule::RoundRobin, &["queue", "echo"])),
            ("agreed", of(agree, &["queue", "queue", "queue"])),
            ("echo", Arc::new(Echo)),
            ("host", Arc::new(worked)),
            ("human", Arc::new(Human)),
            ("model", Arc::new(Thinker)),
            ("queue", Arc::new(Queue::new(Arc::clone(&hub)))),
        ];
        let mut operators = Vec::from(operators);
        if lends {
            operators.push(("port", Arc::new(port)));
            for (_, backend) in &mut operators {
                *backend = Arc::new(Portable(Arc::clone(backend)));
            }
        }
        let registry =
            Registry::new(operators.into_iter().map(|(n, it)| (n.to_owned(), it)).collect());
        let lend = if lends && helps.is_none() { Lend::Even } else { Lend::Off };
        let recovery = if helps.is_none() { Recovery::All } else { Recovery::Asked };
        // Real time decides nothing here: a slow machine breaks no limit.
        let limits = Limits { evaluate_ms: 60_000, ..Limits::default() };
        let run_limits = RunLimits { slice_ms: 60_000, ..RunLimits::default() };
        let (engine, unstarted) = Engine::assemble(EngineParts {
            store,
            clock,
            tasks,
            registry,
            hub,
            sessions: Arc::default(),
            keys: KeyRing::new(SigningKey::from_seed(&[7; 32])),
            handles,
            key_files: Arc::new(crate::engine::Unkept),
            limits,
            settings: Settings {
                lend,
                retention: Retention::FOR_EVER,
                limits: run_limits,
                lease_ms: LEASE_MS,
                park_ms: 86_400_000,
                compensation_ms: 300_000,
                memory: usize::MAX,
                live_runs,
                open_runs: 10_000,
                queued_signals: 100,
                webhooks: Default::default(),
                custom_effects: crate::engine::CustomEffects::Error,
                work: PathBuf::from("work"),
            },
            spawners: Default::default(),
            middleware: crate::engine::Middleware::default(),
            shards,
            recovery,
            helps,
        })
        .expect("a store in memory can be read");
        let mut shards: Vec<_> = unstarted.into_iter().map(|shard| shard.enter()).collect();
        for (shard, _) in &mut shards {
            shard.boot();
        }
        Self { engine, shards, driver, gathers }
    }
}

impl World {
    /// Starts a host over what is durable.
    pub(super) fn boot(&mut self) {
        (self.worked, self.port) = (Worked::default(), Worked::default());
        self.host = Some(Host::assemble(Process {
            store: Arc::clone(&self.store) as Arc<dyn Store>,
            clock: self.clock.clone(),
            handles: self.handles.clone(),
            lends: self.lends,
            gathers: self.gathers,
            shards: self.shards,
            live_runs: if self.lends { LENDING_LIVE_RUNS } else { LIVE_RUNS },
            worked: self.worked.clone(),
            port: self.port.clone(),
            helps: None,
        }));
    }

    /// Stores the blueprints and makes the tokens, before anything goes wrong.
    pub(super) fn furnish(&mut self) {
        let owner = Caller {
            subject: "owner".into(),
            grant: Grant::new(Role::Admin, Scopes::all()).into(),
            jti: "owner".into(),
            expires_ms: u64::MAX,
            session: None,
            trace: None,
        };
        let main = self.flow.source();
        let calls = main.contains("ctx:call").then(|| ("child", blueprint::CHILD.to_owned()));
        let waits = self.lends.then(|| ("waits", blueprint::WAITS.to_owned()));
        let versions = if self.lends { VERSIONS } else { 1 };
        let version = |n| match n {
            0 => main.clone(),
            n => format!("{main}\n-- version {n}"),
        };
        let mains = (0..versions).map(|n| ("main", version(n)));
        for (name, source) in calls.into_iter().chain(waits).chain(mains) {
            let bundle = Bundle::from_source("it.lua", source).unwrap();
            let (engine, owner) = (self.engine().clone(), owner.clone());
            let put = async move {
                engine.blueprints().put_blueprint(&owner, name.to_owned(), bundle, None).await
            };
            let (view, _) = self.finish(put).unwrap();
            match name {
                "child" => {}
                "main" if self.lends => self.programs.push(format!("main@{}", view.hash)),
                name => self.programs.push(name.to_owned()),
            }
        }
        for n in 0..3 {
            let (engine, by) = (self.engine().clone(), owner.clone());
            let ttl_ms = 300 * 86_400_000;
            let mint = MintToken {
                role: Role::Admin,
                verbs: None,
                extra_verbs: Vec::new(),
                scopes: None,
                ttl_ms,
                name: None,
                quotas: Default::default(),
            };
            let minted =
                self.finish(async move { engine.tokens().mint(&by, mint, None).await }).unwrap();
            let subject = format!("client-{n}");
            self.tokens.push(Caller { subject, jti: minted.jti, ..owner.clone() });
        }
    }

    /// Lets a node help from the beginning. Some runs wait here all the while: a host lends fewer than
    /// it has itself.
    pub(super) fn welcome(&mut self) {
        self.join();
        // None of those is lent to a helper without room.
        self.helpers.carry(0, FromHelper::Load { waiting: 0, tight: true });
        self.settle();
        for _ in 0..WAITING {
            let (engine, caller) = (self.engine().clone(), self.tokens[SAFE].clone());
            let start = StartRun::new(Program::Named("waits".to_owned()));
            self.finish(async move { engine.start(&caller, start, None).await }).unwrap();
        }
        self.helpers.carry(0, FromHelper::Load { waiting: 0, tight: false });
        self.settle();
    }
}
