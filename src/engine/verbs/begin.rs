//! The start of a run.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use crate::{
    engine::{
        Caller, Engine, EngineError, IdempotencyKey, Made, Program, RunView, StartRun, Started,
        WaitFor,
        run::{readers::Subscriber, reply::Waiter},
        shared::message::{Msg, NewRun},
        verbs::runs,
    },
    journal::RunStarted,
    lua,
    memory::Level,
    protocol::{Code, RunId},
    respond,
    store::StoreError,
    token::{Refusal, Verb},
};

/// Longer than any wait; callers have timeouts of their own.
pub(crate) const FOREVER: Duration = Duration::from_secs(24 * 3_600);

/// A started run, and the receiver of what it waits for.
pub(crate) type Begun = (Started, oneshot::Receiver<RunView>);

/// The permission check of the caller that starts a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permit {
    /// Check the caller's permissions.
    Ask,
    /// Another verb covers the start, or the host itself starts it.
    Given,
}

/// The state of the store that a start relies on. It is looked up before the start holds the guard
/// against deletions, and checked under it if something was deleted since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Basis {
    /// The count of deletions before anything was looked up.
    erasures: u64,
    /// The run that is started once more, or forked.
    rerun: Option<RunId>,
}

impl Basis {
    /// Begins to look something up.
    pub(crate) fn of(engine: &Engine, rerun: Option<RunId>) -> Self {
        Self { erasures: engine.shared().programs.erasures(), rerun }
    }

    /// Refuses what was deleted since it was looked up, for a caller that lets nobody delete more.
    pub(crate) async fn check(
        self,
        engine: &Engine,
        named: Option<&Program>,
        program: &lua::Program,
    ) -> Result<(), EngineError> {
        if let Some(run) = self.rerun {
            engine.header(run).await?;
        }
        match named {
            Some(Program::Named(name)) => engine.blueprints().refuse_unstored(name, program).await,
            Some(Program::Bundle(_)) | None => Ok(()),
        }
    }
}

/// The watchers of a run that starts.
#[derive(Default)]
pub(crate) struct Watch {
    /// A waiter for a condition of the run.
    pub(crate) waiter: Option<Waiter>,
    /// A subscriber to every event.
    pub(crate) subscriber: Option<Subscriber>,
    /// True if the run is deleted once its watchers have received its end.
    pub(crate) lets_go: bool,
}

impl Engine {
    /// Starts a run; it is durable when this returns.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, the blueprint is unknown or invalid, or the input
    /// does not match its schema.
    pub async fn start(
        &self,
        caller: &Caller,
        start: StartRun,
        key: Option<IdempotencyKey>,
    ) -> Result<Started, EngineError> {
        self.begin(caller, start, key, None, Permit::Ask).await
    }

    /// Starts a run; returns as much of it as the caller may read.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub async fn start_seen(
        &self,
        caller: &Caller,
        start: StartRun,
        key: Option<IdempotencyKey>,
    ) -> Result<Made, EngineError> {
        let Started { run, .. } = self.start(caller, start, key).await?;
        self.seen(caller, run).await
    }

    /// Returns as much of a new run as its creator may read.
    pub(crate) async fn seen(&self, caller: &Caller, run: RunId) -> Result<Made, EngineError> {
        match caller.may(Verb::RunRead, run) {
            Ok(()) => Ok(Made::Seen(Box::new(Box::pin(self.run_view(run)).await?))),
            Err(_) => Ok(Made::Hidden { id: run }),
        }
    }

    /// Starts a run, waits for it until `patience` is over, and returns its view. A caller that may
    /// not read the run does not wait.
    ///
    /// The view of a run that ends in its first transitions comes from memory, with the commit that
    /// ends it; nothing is read back.
    ///
    /// # Errors
    /// As [`Engine::start`].
    ///
    /// # Cancel safety
    /// May be dropped at any time; a run that was started continues.
    pub async fn start_and_wait(
        &self,
        caller: &Caller,
        start: StartRun,
        key: Option<IdempotencyKey>,
        until: WaitFor,
        patience: impl Future<Output = ()>,
    ) -> Result<Made, EngineError> {
        let begun = self.begin_waiting(caller, start, key, until, Permit::Ask).await?;
        let id = begun.0.run;
        if caller.may(Verb::RunRead, id).is_err() {
            return Ok(Made::Hidden { id });
        }
        Ok(Made::Seen(Box::new(self.await_begun(begun, until, patience).await?)))
    }

    pub(crate) async fn begin_waiting(
        &self,
        caller: &Caller,
        start: StartRun,
        key: Option<IdempotencyKey>,
        until: WaitFor,
        permit: Permit,
    ) -> Result<Begun, EngineError> {
        let (reply, ended) = oneshot::channel();
        let waiter = Waiter { until, reply };
        let started = self.begin(caller, start, key, Some(waiter), permit).await?;
        Ok((started, ended))
    }

    pub(crate) async fn await_begun(
        &self,
        (started, ended): Begun,
        until: WaitFor,
        patience: impl Future<Output = ()>,
    ) -> Result<RunView, EngineError> {
        let mut patience = pin!(patience);
        if !started.repeated {
            tokio::select! {
                // An end that came with the commit of the start is there now, also without patience.
                biased;
                ended = ended => if let Ok(view) = ended { return Ok(view) },
                () = &mut patience => return Box::pin(self.run_view(started.run)).await,
            }
        }
        // Another request started it, or it was reloaded: wait for its end again.
        tokio::select! {
            view = Box::pin(self.wait_for(started.run, until, FOREVER)) => view,
            () = patience => Box::pin(self.run_view(started.run)).await,
        }
    }

    /// Starts a run. A bundle in the request is stored last: once the caller has permission and the
    /// run can start.
    pub(crate) async fn begin(
        &self,
        caller: &Caller,
        start: StartRun,
        key: Option<IdempotencyKey>,
        waiter: Option<Waiter>,
        permit: Permit,
    ) -> Result<Started, EngineError> {
        self.begin_of(Basis::of(self, None), caller, start, key, waiter, permit).await
    }

    /// As [`Engine::begin`], of what was looked up before.
    pub(crate) async fn begin_of(
        &self,
        basis: Basis,
        caller: &Caller,
        start: StartRun,
        key: Option<IdempotencyKey>,
        waiter: Option<Waiter>,
        permit: Permit,
    ) -> Result<Started, EngineError> {
        if let Some(key) = &key
            && let Some(run) = Box::pin(self.repeated(caller, Some(key))).await?
        {
            let run = run.parse().map_err(|_| runs::mismatch(key))?;
            return Ok(Started { run, repeated: true });
        }
        self.check_room()?;
        if permit == Permit::Ask {
            may_bring(caller, &start)?;
        }
        let program = self.program_of(&start.program).await;
        let program = program.map_err(|error| match &start.program {
            Program::Named(name) => {
                self.blueprints().why_unnamed(caller, Verb::RunStart, name, error)
            }
            Program::Bundle(_) => error,
        })?;
        if permit == Permit::Ask && matches!(start.program, Program::Named(_)) {
            self.blueprints().reach(caller, Verb::RunStart, &program).await?;
        }
        self.sessions().check_seats(caller, &start)?;
        if start.trigger.to_value()["kind"] == respond::TRIGGER {
            return Err(EngineError::BadRequest(format!(
                "start a run: triggers of the kind {:?} are the host's own",
                respond::TRIGGER
            )));
        }
        let input = crate::engine::shared::programs::accept_input(&program, &start.input)?;
        self.begin_accepted(
            caller,
            StartRun { input, ..start },
            (program, basis),
            key,
            Watch { waiter, ..Watch::default() },
        )
        .await
    }

    /// Refuses a new run when there is no memory left or too many runs are open.
    pub(crate) fn check_room(&self) -> Result<(), EngineError> {
        if self.shared().memory.level() == Level::Full {
            self.shared().make_room();
            return Err(self.shared().no_room("start a run"));
        }
        let open = self.open_runs();
        if open < self.shared().settings.open_runs {
            return Ok(());
        }
        Err(EngineError::Busy {
            code: Code::TooManyRuns,
            message: format!("{open} runs are already open"),
            retry_after_s: 5,
        })
    }

    fn check_sizes(&self, start: &StartRun) -> Result<(), EngineError> {
        let limit = self.shared().settings.limits.value;
        for (what, size) in [("the input", start.input.len()), ("the trigger", start.trigger.len())]
        {
            if size > limit {
                return Err(EngineError::TooLarge { what, size, limit });
            }
        }
        Ok(())
    }

    /// Starts a run with a validated input.
    pub(crate) async fn begin_accepted(
        &self,
        caller: &Caller,
        start: StartRun,
        (program, basis): (Arc<lua::Program>, Basis),
        key: Option<IdempotencyKey>,
        watch: Watch,
    ) -> Result<Started, EngineError> {
        let shared = self.shared();
        self.check_sizes(&start)?;
        // Until the commit, nobody deletes the version.
        let stored = Arc::clone(&shared.programs.starts).read_owned().await;
        if shared.programs.erasures() != basis.erasures {
            Box::pin(basis.check(self, Some(&start.program), &program)).await?;
        }
        if matches!(start.program, Program::Bundle(_)) {
            Box::pin(self.blueprints().keep_posted(&program)).await?;
        }
        let publisher = self.blueprints().publisher_of(program.blueprint().hash()).await?;
        let id = RunId::new(shared.store.next_run(), shared.clock.now_ms());
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        let charged = shared
            .accounts
            .admit(&caller.jti, id.num(), shared.clock.now_ms())
            .map_err(|exceeded| EngineError::Quota(Box::new(exceeded)))?;
        let place = self.lending().place_of(&start, &program, &watch, charged);
        let started = RunStarted {
            blueprint: program.blueprint().name().to_owned(),
            hash: program.blueprint().hash().to_owned(),
            input: start.input,
            trigger: start.trigger,
            seed,
            parent: None,
            depth: 0,
            workdir: start.workdir,
            principal: caller.subject.clone(),
            delegate: start.delegate.map(|session| session.0),
            grant: caller.grant.json(),
            generation: 0,
            first_step: 1,
            queued: Vec::new(),
            continues: None,
        };
        let (reply, answer) = oneshot::channel();
        let new = NewRun {
            place,
            id,
            program,
            started,
            grant: caller.grant.shared(),
            jti: Some(caller.jti.clone()),
            key: key.clone().map(|key| (caller.subject.clone(), key)),
            reply: Some(reply),
            waiter: watch.waiter,
            unstored: watch.lets_go,
            subscriber: watch.subscriber,
            seats: (start.seats.into_iter())
                .map(|(operator, session)| (shared.registry.name_of(&operator).to_owned(), session))
                .collect(),
            charged,
            joined: Vec::new(),
            tags: start.tags,
            trace: caller.trace,
            publisher,
            stored: Some(stored),
        };
        if let Err(refused) = shared.offer(id.num(), Msg::Start(Box::new(new))) {
            shared.accounts.never(id.num());
            return Err(refused);
        }
        match answer.await.map_err(|_| EngineError::Stopping)? {
            Ok(()) => Ok(Started { run: id, repeated: false }),
            Err(EngineError::Store(StoreError::KeyUsed { .. })) if key.is_some() => {
                let key = key.expect("the guard looked");
                let run = Box::pin(self.repeated(caller, Some(&key))).await?;
                let run = run.ok_or_else(|| runs::mismatch(&key))?;
                let run = run.parse().map_err(|_| runs::mismatch(&key))?;
                Ok(Started { run, repeated: true })
            }
            Err(error) => Err(error),
        }
    }
}

/// Checks permission for what a start brings along: source code, and a working directory.
fn may_bring(caller: &Caller, start: &StartRun) -> Result<(), Refusal> {
    caller.grant.check(Verb::RunStart, &[])?;
    if matches!(start.program, Program::Bundle(_)) {
        caller.grant.check(Verb::RunSource, &[])?;
    }
    if start.workdir.is_some() {
        caller.grant.check(Verb::RunWorkdir, &[])?;
    }
    Ok(())
}
