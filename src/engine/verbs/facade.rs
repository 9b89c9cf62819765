//! The engine as the other rooms see it, with its start and stop.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::{
    clock::Clock,
    engine::{
        Caller, EngineError, KeyFiles, Settings,
        run::{
            readers::Readers,
            reply::{Answer, Answering, Asked, Reply, ReplyTo},
        },
        settings::TASKS_READ,
        shard::owner::Shard,
        shared::{
            accounts::Accounts,
            announcements::Announcements,
            capacity::Capacity,
            changing::Changing,
            deliveries,
            host_log::{HostFact, HostLog},
            lanes::Lanes,
            ledger::AuditLog,
            lending::Lending,
            lent::FromHelper,
            mailbox::Mailbox,
            message::{ControlAsk, Msg, RunMsg},
            presence::Presence,
            programs::Programs,
            proven::Proven,
            server_spans::ServerSpans,
            shards::{Parts, Shared},
            speakers::Speakers,
            stacks::{Middleware, StackBook},
            trigger_board::TriggerBoard,
            verified::Auth,
            watch_board::WatchBoard,
        },
        verbs::{
            engine::{Engine, Inner},
            lending::way_home,
        },
    },
    fault,
    lua::{Limits, Vms, Watchdog},
    memory::Memory,
    metrics::{Counts, ShardGauges},
    middleware::Means,
    operator::{QueueHub, Registry, Ticket},
    protocol::{RunId, Sampling},
    session::{self, FrameWriter},
    spawner::Spawners,
    store::{
        Batch, Durability, DurableState, Health, StateLimits, Store, StoreError, TaskFilter,
        TaskPhase, Write,
    },
    tasks::Tasks,
    token::{HandleKey, KeyRing, Need, Verb},
};

/// The parts of an engine.
pub struct EngineParts {
    /// The durable store.
    pub store: Arc<dyn Store>,
    /// The clock.
    pub clock: Clock,
    /// Runs work outside of the shards.
    pub tasks: Tasks,
    /// The operators.
    pub registry: Registry,
    /// The queues of pull workers.
    pub hub: Arc<QueueHub>,
    /// The connected sessions.
    pub sessions: Arc<session::Hub>,
    /// The keys that sign tokens.
    pub keys: KeyRing,
    /// The key of handles.
    pub handles: HandleKey,
    /// The files of both keys.
    pub key_files: Arc<dyn KeyFiles>,
    /// The limits of scripts.
    pub limits: Limits,
    /// The settings.
    pub settings: Settings,
    /// The middleware layers.
    pub middleware: Middleware,
    /// The spawner of workers, if it is not the operators themselves.
    pub spawners: Spawners,
    /// The number of shards.
    pub shards: usize,
    /// The treatment of the runs in the store.
    pub recovery: Recovery,
    /// The link to the node that drives, for an engine that has no runs but those that it is lent.
    pub helps: Option<mpsc::UnboundedSender<FromHelper>>,
}

/// A shard before its thread has started.
pub(crate) struct Unstarted {
    index: u64,
    shared: Arc<Shared>,
    limits: Limits,
    watchdog: Arc<Watchdog>,
    recovers: bool,
    messages: Mailbox,
}

impl Unstarted {
    /// Returns the shard, on the thread that is to run it, and its mailbox.
    pub(crate) fn enter(self) -> (Shard, Mailbox) {
        let vms = Vms::new(self.limits, &self.watchdog).within(&self.shared.memory);
        (Shard::new(self.index, self.shared, vms, self.recovers), self.messages)
    }
}

/// The treatment of the runs in the store at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// They continue by themselves.
    All,
    /// They wait for [`take_up_with_care`](crate::engine::SafeModeVerbs::take_up_with_care).
    Careful,
    /// They wait until a request concerns one of them.
    Asked,
}

impl Engine {
    /// Starts the shards and takes up the runs in the store.
    ///
    /// # Errors
    /// Fails when the store cannot be read or a thread cannot be started.
    pub fn start_up(parts: EngineParts) -> Result<Self, EngineError> {
        let recovery = parts.recovery;
        let (engine, shards) = Self::assemble(parts)?;
        let mut threads = Vec::new();
        for unstarted in shards {
            let thread = std::thread::Builder::new()
                .name(format!("shard-{}", unstarted.index))
                .spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_time()
                        .build()
                        .expect("a runtime with timers needs nothing that can be missing");
                    let (shard, messages) = unstarted.enter();
                    runtime.block_on(shard.serve(messages));
                })
                .map_err(|source| EngineError::Thread { what: "a shard", source })?;
            threads.push(thread);
        }
        keep_looking(&engine.inner.shared);
        *engine.inner.threads.lock() = threads;
        if recovery == Recovery::All {
            let shared = Arc::clone(&engine.inner.shared);
            // Not awaited: a run whose program is not ready yet compiles it itself.
            engine.inner.shared.tasks.spawn_blocking(move || {
                if let Err(error) = shared.programs.compile_ahead(shared.tasks.stopping()) {
                    tracing::debug!(%error, "some programs of waiting runs are left to compile");
                }
            });
            let shared = Arc::clone(&engine.inner.shared);
            engine.inner.shared.tasks.spawn_blocking(move || {
                if let Err(error) = shared.programs.read_faces_ahead(shared.tasks.stopping()) {
                    tracing::debug!(%error, "some facts about blueprints are left to read");
                }
            });
        }
        Ok(engine)
    }

    /// Returns an engine and its shards, which are not running yet: messages to them are queued.
    pub(crate) fn assemble(parts: EngineParts) -> Result<(Self, Vec<Unstarted>), EngineError> {
        let EngineParts {
            store,
            clock,
            tasks,
            registry,
            hub,
            sessions,
            keys,
            handles,
            key_files,
            limits,
            settings,
            middleware,
            spawners,
            shards,
            recovery,
            helps,
        } = parts;
        let (memory, lend) = (settings.memory, settings.lend);
        let ledger = AuditLog::new(Arc::clone(&store), clock.clone(), tasks.clone());
        let audit = ledger.clone();
        let means = Means::of(Arc::new(ledger), clock.clone());
        let means = Means { tasks: Some(tasks.clone()), ..means };
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..shards.max(1)).map(|_| Mailbox::new()).unzip();
        let threads = senders.len();
        let gauges = senders.iter().map(|_| ShardGauges::default()).collect();
        let limits_of_state =
            StateLimits { value: settings.limits.value, ..StateLimits::default() };
        let state =
            DurableState::new(Arc::clone(&store), clock.clone(), tasks.clone(), limits_of_state)
                .with_foreign(Arc::clone(registry.stores()));
        let lanes = Lanes::open(registry.stores(), &store.foreign_changes(None, None, usize::MAX)?);
        let accounts = Accounts::open(&*store, clock.now_ms())?;
        let announcements = Announcements::new(settings.webhooks.clone());
        let host_log = HostLog::open(&*store, clock.now_ms())?;
        let shared = Arc::new(Shared::new(Parts {
            state,
            lanes,
            programs: Programs::new(Arc::clone(&store), registry.clone(), limits.clone())?,
            spawner: spawners.over(registry.clone(), tasks.clone()),
            store,
            booted_ms: clock.steady_ms(),
            clock,
            tasks,
            registry,
            stacks: StackBook::new(middleware, means),
            hub,
            sessions,
            capacity: Capacity::default(),
            changing: Changing::default(),
            conversations: Arc::default(),
            handles,
            settings,
            shards: senders,
            url: OnceLock::new(),
            facts: OnceLock::new(),
            open_runs: AtomicU64::new(0),
            watches: WatchBoard::default(),
            triggers: TriggerBoard::default(),
            taking_up: crate::engine::shared::taking_up::TakingUp::default(),
            memory: Memory::new(memory),
            room_asked_ms: AtomicU64::new(0),
            readers: Readers::default(),
            in_flight: Arc::default(),
            host_log,
            presence: Presence::default(),
            speakers: Speakers::default(),
            announcements,
            audit,
            accounts,
            counts: Counts::default(),
            traced: OnceLock::new(),
            server_spans: ServerSpans::default(),
            lending: Lending::new(lend, threads),
            gauges,
            helps: helps.map(way_home),
        }));
        let watchdog = Watchdog::start()
            .map(Arc::new)
            .map_err(|source| EngineError::Thread { what: "the watchdog", source })?;
        let auth = Auth::open(&*shared.store, keys, key_files)?;
        let recovers = recovery == Recovery::All;
        if recovery != Recovery::Asked {
            // A host that takes up a single run leaves the sessions to their own host.
            shared.sessions.load(shared.store.sessions()?, shared.store.frames()?);
            take_up(&shared, recovers)?;
            fault::point("engine.taken_up");
        }
        let unstarted = (0u64..).zip(receivers).map(|(index, messages)| Unstarted {
            index,
            shared: Arc::clone(&shared),
            limits: limits.clone(),
            watchdog: Arc::clone(&watchdog),
            recovers,
            messages,
        });
        let unstarted = unstarted.collect();
        let inner = Inner {
            shared,
            auth,
            booted: AtomicBool::new(true),
            heavy: Semaphore::new(1),
            looks: crate::engine::shared::looks::Looks::default(),
            places: Arc::default(),
            watchdog,
            threads: parking_lot::Mutex::default(),
        };
        let engine = Self { inner: Arc::new(Proven::new(inner)) };
        let shared = &engine.inner.shared;
        if shared.helps.is_none() {
            // Also where runs wait: what is committed is on its way.
            deliveries::start(shared);
            let (sessions, store) = (Arc::clone(&shared.sessions), Arc::clone(&shared.store));
            FrameWriter::start(sessions, store, shared.tasks.clone());
            engine.sessions().keep_sessions();
            engine.upkeep().watch_outages();
            engine.announce();
        }
        Ok((engine, unstarted))
    }

    /// Returns the lead of the wall clock over the steady one, which leases and timeouts use.
    pub fn clock_offset_ms(&self) -> i64 {
        self.shared().clock.offset_ms()
    }

    /// Sets the URL of the host for workers.
    pub fn set_url(&self, url: &str) {
        // Called once by the host, before it listens.
        let _ = self.inner.shared.url.set(Arc::from(url));
    }

    /// Returns the URL of this host; empty before it listens.
    pub fn url(&self) -> &str {
        self.inner.shared.url.get().map_or("", |url| url)
    }

    /// Stops the shards. Work that is not durable yet is dropped, and is repeated after the next
    /// start.
    pub async fn stop(&self) {
        self.inner.booted.store(false, Ordering::Release);
        for shard in &self.inner.shared.shards {
            let (done, stopped) = oneshot::channel();
            shard.send(Msg::Stop(done));
            // A shard that is already gone has stopped too.
            let _ = tokio::time::timeout(Duration::from_secs(5), stopped).await;
        }
        let threads = std::mem::take(&mut *self.inner.threads.lock());
        let join = self.inner.shared.tasks.spawn_blocking(move || {
            for thread in threads {
                // A shard that panicked has logged that.
                let _ = thread.join();
            }
        });
        let _ = join.await;
    }

    /// Returns true between the end of the boot and the begin of the shutdown.
    pub(crate) fn is_booted(&self) -> bool {
        self.inner.booted.load(Ordering::Acquire)
    }

    /// Returns true if the database cannot be reached at the moment.
    pub(crate) fn is_storage_away(&self) -> bool {
        let health = self.inner.shared.store.health();
        matches!(health, Health::Waiting(StoreError::Away { .. }))
    }

    /// Returns true if a failover of the database may lose what was acknowledged.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.inner.shared.store.upkeep().durability() == Some(Durability::Asynchronous)
    }

    /// Returns whether the host accepts work.
    ///
    /// # Errors
    /// Returns the reason why not.
    pub fn ready(&self) -> Result<(), String> {
        if !self.is_booted() {
            return Err("the host is stopping".into());
        }
        match self.inner.shared.store.health() {
            Health::Well => Ok(()),
            Health::Waiting(error) => Err(format!("failed to {error}; it is tried again")),
            Health::Lost(error) => Err(format!("failed to {error}; nothing is written any more")),
        }
    }

    /// The operators of the host.
    pub fn registry(&self) -> &Registry {
        &self.inner.shared.registry
    }

    /// Returns every operator: its name and kind.
    pub fn operators(&self) -> Vec<(String, String)> {
        let names = self.inner.shared.registry.names();
        names.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
    }

    /// Returns the rule of a composite and the names of its members.
    pub fn composite(&self, operator: &str) -> Option<(&'static str, Vec<String>)> {
        let composite = self.inner.shared.registry.get(operator)?.composite()?;
        let members = composite.members().iter().map(ToString::to_string);
        Some((composite.rule().as_str(), members.collect()))
    }

    /// Returns the number of runs of this process that have not ended.
    pub fn open_runs(&self) -> u64 {
        self.inner.shared.open_runs.load(Ordering::Relaxed)
    }

    /// Declares which traces are exported: from now on workers get the spans of their steps. Later
    /// calls are ignored.
    pub fn set_traced(&self, sampling: Sampling) {
        let _ = self.inner.shared.traced.set(sampling);
    }

    /// Returns the counters of the host.
    pub fn counts(&self) -> &Counts {
        &self.inner.shared.counts
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    /// Sends a request to a run and waits for the reply.
    pub(crate) async fn ask<T: Reply>(&self, run: u64, ask: ControlAsk) -> Result<T, EngineError> {
        self.answer_to(run, |reply| RunMsg::Control(Asked { ask, reply })).await
    }

    /// Sends a message with a reply channel to a run and waits for the reply.
    pub(crate) async fn answer_to<T: Reply>(
        &self,
        run: u64,
        message: impl FnOnce(ReplyTo<Answer>) -> RunMsg,
    ) -> Result<T, EngineError> {
        Self::answered(&mut self.send_to(run, message)?).await
    }

    /// Sends a message with a reply channel to a run.
    pub(crate) fn send_to(
        &self,
        run: u64,
        message: impl FnOnce(ReplyTo<Answer>) -> RunMsg,
    ) -> Result<Answering, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.shared().offer(run, Msg::Run(run, message(reply)))?;
        Ok(answer)
    }

    /// Waits for the reply of a run.
    pub(crate) async fn answered<T: Reply>(answer: &mut Answering) -> Result<T, EngineError> {
        let answer = answer.await.map_err(|_| EngineError::Stopping)??;
        Ok(T::take(answer).expect("a request is answered with what it asks for"))
    }

    /// Reads from the store on a blocking thread.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Store) -> Result<T, crate::store::StoreError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let store = Arc::clone(&self.shared().store);
        let result = self.shared().tasks.spawn_blocking(move || read(&*store)).await;
        Ok(result.map_err(|_| EngineError::Stopping)??)
    }

    /// Writes data that belongs to no run, and waits until it is durable.
    pub(crate) async fn write(
        &self,
        checks: Vec<crate::store::Check>,
        writes: Vec<Write>,
    ) -> Result<(), EngineError> {
        self.write_then(checks, writes, |_| {}).await
    }

    /// As [`Engine::write`]; `then` runs once the outcome of the write is known (true: it is
    /// durable), even if the caller is gone by then.
    pub(crate) async fn write_then(
        &self,
        checks: Vec<crate::store::Check>,
        writes: Vec<Write>,
        then: impl FnOnce(bool) + Send + 'static,
    ) -> Result<(), EngineError> {
        self.write_logged(checks, writes, Vec::new(), then).await
    }

    /// As [`Engine::write_then`], with events of the host that are durable with the writes.
    pub(crate) async fn write_logged(
        &self,
        checks: Vec<crate::store::Check>,
        writes: Vec<Write>,
        facts: Vec<HostFact>,
        then: impl FnOnce(bool) + Send + 'static,
    ) -> Result<(), EngineError> {
        let (ack, acked) = oneshot::channel();
        let batch = Batch {
            checks,
            run: None,
            writes,
            ack: Box::new(move |result| {
                then(result.is_ok());
                // The caller may be gone; the write remains.
                let _ = ack.send(result);
            }),
        };
        let shared = self.shared();
        shared.store.room().await;
        shared.host_log.submit(&*shared.store, &shared.in_flight, batch, facts);
        acked.await.map_err(|_| EngineError::Stopping)??;
        Ok(())
    }
}

impl Caller {
    /// Checks the caller's permission for a run.
    ///
    /// # Errors
    /// Returns the refusal of the gate.
    pub(crate) fn may(&self, verb: Verb, run: RunId) -> Result<(), EngineError> {
        Ok(self.grant.check(verb, &[Need::Run(run)])?)
    }
}

/// Loads what must be known before the first run is loaded: waiting tasks of queues, tasks of
/// sessions, undelivered signals.
fn take_up(shared: &Shared, recovers: bool) -> Result<(), EngineError> {
    let mut filter = TaskFilter { limit: TASKS_READ, ..TaskFilter::default() };
    loop {
        let rows = shared.store.tasks(&filter)?;
        let Some(last) = rows.last() else { break };
        filter.after = Some((last.run, last.step));
        for row in &rows {
            let elsewhere = shared
                .registry
                .get(&row.operator)
                .is_some_and(|it| it.residence() == crate::operator::Residence::Elsewhere);
            if !elsewhere {
                continue;
            }
            if let Some(header) = shared.store.header(row.run)? {
                let agent = (Arc::from(header.blueprint.as_str()), Arc::from(row.agent.as_str()));
                shared.capacity.occupy_unread(&agent, row.run, row.step);
            }
            if let Some(queue) = &row.queue
                && row.phase == TaskPhase::Pending
            {
                let ticket = Ticket { run: row.run, step: row.step, attempt: row.attempt };
                shared.hub.offer(queue, ticket, &crate::engine::view::labels(row));
            }
            if shared.registry.get(&row.operator).is_some_and(|it| it.holds_session()) {
                crate::engine::verbs::queued::take_up(shared, row);
            }
        }
    }
    crate::engine::verbs::queued::reconcile(shared)?;
    if recovers {
        crate::engine::inbox::signals::carry(shared, shared.store.outbox()?);
    }
    Ok(())
}

/// Looks at the clocks continuously, so that a pause of the process, or a step of the wall clock,
/// is noticed before it ends anything.
fn keep_looking(shared: &Arc<Shared>) {
    if !shared.clock.wants_looks() {
        return;
    }
    let (clock, stopping) = (shared.clock.clone(), shared.tasks.stopping().clone());
    shared.tasks.spawn(async move {
        loop {
            clock.look();
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(crate::clock::LOOK) => {}
            }
        }
    });
}
