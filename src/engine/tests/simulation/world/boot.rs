//! The start of a world's host: its operators, its settings, its blueprints and its tokens.

use std::{path::PathBuf, sync::Arc};

use super::{Host, LEASE_MS, World};
use crate::{
    blueprint::Bundle,
    engine::{
        Caller, Engine, EngineParts, MintToken, Recovery, Retention, Settings,
        tests::simulation::{
            blueprint,
            operator::{Thinker, Worked},
        },
    },
    flow::{Rule, RunLimits},
    lua::Limits,
    operator::{Backend, Composite, Echo, Human, Queue, QueueHub, Registry},
    tasks::Tasks,
    token::{Grant, KeyRing, Role, Scopes, SigningKey},
};

impl World {
    /// Starts a host over what is durable.
    pub(super) fn boot(&mut self) {
        let (tasks, driver) = Tasks::driven();
        let hub = Arc::new(QueueHub::default());
        self.worked = Worked::default();
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
            ("host", Arc::new(self.worked.clone())),
            ("human", Arc::new(Human)),
            ("model", Arc::new(Thinker)),
            ("queue", Arc::new(Queue::new(Arc::clone(&hub)))),
        ];
        let registry =
            Registry::new(operators.into_iter().map(|(n, it)| (n.to_owned(), it)).collect());
        // Real time decides nothing here: a slow machine breaks no limit.
        let limits = Limits { evaluate_ms: 60_000, ..Limits::default() };
        let run_limits = RunLimits { slice_ms: 60_000, ..RunLimits::default() };
        let (engine, unstarted) = Engine::assemble(EngineParts {
            store: Arc::clone(&self.store) as Arc<dyn crate::store::Store>,
            clock: self.clock.clone(),
            tasks,
            registry,
            hub,
            sessions: Arc::default(),
            keys: KeyRing::new(SigningKey::from_seed(&[7; 32])),
            handles: self.handles.clone(),
            key_files: Arc::new(crate::engine::Unkept),
            limits,
            settings: Settings {
                retention: Retention::FOR_EVER,
                limits: run_limits,
                lease_ms: LEASE_MS,
                park_ms: 86_400_000,
                compensation_ms: 300_000,
                memory: usize::MAX,
                live_runs: 2,
                open_runs: 10_000,
                queued_signals: 100,
                webhooks: Default::default(),
                custom_effects: crate::engine::CustomEffects::Error,
                work: PathBuf::from("work"),
            },
            spawners: Default::default(),
            middleware: crate::engine::Middleware::default(),
            shards: self.shards,
            recovery: Recovery::All,
        })
        .expect("a store in memory can be read");
        let mut shards: Vec<_> = unstarted.into_iter().map(|shard| shard.enter()).collect();
        for (shard, _) in &mut shards {
            shard.boot();
        }
        self.host = Some(Host { engine, shards, driver });
    }

    /// Stores the blueprints and makes the tokens, before anything goes wrong.
    pub(super) fn furnish(&mut self) {
        let owner = Caller {
            subject: "owner".into(),
            grant: Grant::new(Role::Admin, Scopes::all()),
            jti: "owner".into(),
            expires_ms: u64::MAX,
            session: None,
            trace: None,
        };
        let main = self.flow.source();
        let calls = main.contains("ctx:call").then(|| ("child", blueprint::CHILD.to_owned()));
        for (name, source) in calls.into_iter().chain([("main", main)]) {
            let bundle = Bundle::from_source("it.lua", source).unwrap();
            let (engine, owner) = (self.engine().clone(), owner.clone());
            let put = async move {
                engine.blueprints().put_blueprint(&owner, name.to_owned(), bundle, None).await
            };
            self.finish(put).unwrap();
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
}
