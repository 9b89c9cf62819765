//! Runs: wait, show, control, signal, query, delete.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use crate::{
    engine::{
        Caller, CopiedView, Engine, EngineError, Events, IdempotencyKey, Page, Program, RunView,
        SeatView, StepView, WaitFor,
        run::{
            reply::Waiter,
            values::{WORD_RULE, is_word},
        },
        settings::{ROOM_MS, STORAGE_RETRY_MS},
        shared::{
            message::{ControlAsk, Internal, Msg},
            places::{self, PlaceBook, Places, entries_at},
        },
        verbs::step_page::chain_of_page,
        view,
    },
    journal::{Chain, Decision, Entry, Fact, Outcome, Spent, Step},
    lua,
    memory::Level,
    protocol::{Code, Json, RunId},
    session::EVERY,
    store::{
        Header, Health, IdempotencyRow, RunFilter, RunStatus, Store, StoreError, Write,
        read_in_pages,
    },
    token::Verb,
};

/// The number of times that a run is asked at once again, when it does not answer a waiter.
const REFUSED: u32 = 3;

impl Engine {
    /// Returns the program that a run can be started of: one that a request names, or brings along.
    /// Stores nothing.
    pub(crate) async fn program_of(
        &self,
        program: &Program,
    ) -> Result<Arc<lua::Program>, EngineError> {
        if let Program::Named(name) = program {
            self.blueprints().refuse_archived(name.split('@').next().unwrap_or(name))?;
        }
        self.program_to_read(program).await
    }

    /// As [`Engine::program_of`], also of an archived blueprint.
    pub(crate) async fn program_to_read(
        &self,
        program: &Program,
    ) -> Result<Arc<lua::Program>, EngineError> {
        let shared = Arc::clone(&self.inner.shared);
        match program {
            Program::Named(name) => match shared.programs.known(name) {
                Some(program) => Ok(program),
                None => {
                    let name = name.clone();
                    let tasks = shared.tasks.clone();
                    let resolve =
                        tasks.spawn_blocking(move || shared.programs.resolve(&name, None));
                    resolve.await.map_err(|_| EngineError::Stopping)?
                }
            },
            Program::Bundle(bundle) => {
                Ok(Box::pin(self.blueprints().compiled(bundle.clone())).await?.0)
            }
        }
    }

    /// Returns the stored answer of an idempotency key, if the body is the same.
    pub(crate) async fn repeated(
        &self,
        caller: &Caller,
        key: Option<&IdempotencyKey>,
    ) -> Result<Option<String>, EngineError> {
        let Some(key) = key else { return Ok(None) };
        let (subject, route, word) = (caller.subject.clone(), key.route, key.key.clone());
        let oldest =
            self.shared().clock.now_ms().saturating_sub(crate::engine::settings::IDEMPOTENCY_MS);
        match self.read(move |store| store.idempotent(&subject, route, &word)).await? {
            None => Ok(None),
            Some(row) if row.created_ms < oldest => {
                // Only this one: there may be millions, and the host removes the others.
                let IdempotencyRow { principal, route, key, .. } = row;
                let forget = Write::ForgetAnswer { principal, route, key, before_ms: oldest };
                self.write(Vec::new(), vec![forget]).await?;
                Ok(None)
            }
            Some(row) if row.body == key.body => Ok(Some(row.answer)),
            Some(_) => Err(mismatch(key)),
        }
    }

    /// Returns one run, with its input and output.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such run.
    pub async fn run(&self, caller: &Caller, run: RunId) -> Result<RunView, EngineError> {
        caller.may(Verb::RunRead, run)?;
        self.detailed(caller, run).await
    }

    pub(crate) async fn run_view(&self, run: RunId) -> Result<RunView, EngineError> {
        Ok(self.read_run(run).await?.0)
    }

    /// Returns the view of a run, and the number of steps of its current history.
    pub(crate) async fn read_run(&self, run: RunId) -> Result<(RunView, u32), EngineError> {
        let header = self.header(run).await?;
        let mut view = self.show(&header).await?;
        let book = Arc::clone(&self.inner.places);
        let read = {
            let header = header.clone();
            self.read(move |store| RunRows::read(store, &book, &header)).await
        };
        let RunRows { entries, steps, attempts, spent } = match read {
            // The header is shown, and its error says why the rest cannot be.
            Err(EngineError::Store(StoreError::Damaged { .. }))
                if header.status == RunStatus::Paused =>
            {
                return Ok((view, 0));
            }
            rows => rows?,
        };
        view.attempts = Some(attempts);
        if let Some(spent) = spent {
            view.usage = crate::engine::view::spent::view(&spent);
        }
        for entry in entries {
            match entry.fact {
                Fact::RunStarted(started) => {
                    view.input = Some(started.input);
                    view.trigger = Some(started.trigger).filter(|trigger| !trigger.is_null());
                    view.delegate = started.delegate;
                }
                Fact::Decided(Decision::Seat { operator, session, .. }) if operator == EVERY => {
                    view.delegate = Some(session);
                }
                Fact::Decided(Decision::Seat { operator, session, epoch, .. }) => {
                    view.seats.insert(operator, SeatView { session, epoch });
                }
                Fact::RunEnded(Outcome::Completed(output)) => view.output = Some(output),
                Fact::Decided(Decision::Copied { from, step, .. }) => {
                    view.copied_from = Some(CopiedView { run: from, step });
                }
                _ => {}
            }
        }
        Ok((view, steps))
    }

    pub(crate) async fn show(&self, header: &Header) -> Result<RunView, EngineError> {
        let mut view = view::run(header);
        if let Some((parent, _)) = header.parent
            && let Some(parent) = self.read(move |store| store.header(parent)).await?
        {
            view.parent = Some(RunId::new(parent.num, parent.created_ms));
        }
        Ok(view)
    }

    /// Returns the header of a run whose whole id matches.
    pub(crate) async fn header(&self, run: RunId) -> Result<Header, EngineError> {
        let header = self.read(move |store| store.header(run.num())).await?;
        header
            .filter(|header| header.created_ms == run.created_ms())
            .ok_or_else(|| EngineError::NotFound { what: "run", id: run.to_string() })
    }

    /// Waits at most `wait` until a run has ended, or only people are left to wait for; then
    /// returns its view.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such run.
    ///
    /// # Cancel safety
    /// May be dropped at any time; the run continues.
    pub async fn wait(
        &self,
        caller: &Caller,
        run: RunId,
        until: WaitFor,
        wait: Duration,
    ) -> Result<RunView, EngineError> {
        caller.may(Verb::RunRead, run)?;
        awaited(self, run, until, wait).await?;
        self.detailed(caller, run).await
    }

    pub(crate) async fn wait_for(
        &self,
        run: RunId,
        until: WaitFor,
        wait: Duration,
    ) -> Result<RunView, EngineError> {
        match awaited(self, run, until, wait).await? {
            Some(view) => Ok(view),
            None => self.run_view(run).await,
        }
    }

    /// Returns the steps of a run's history with a number over `after`.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such run.
    pub async fn steps(
        &self,
        caller: &Caller,
        run: RunId,
        after: u32,
        limit: usize,
    ) -> Result<Page<StepView>, EngineError> {
        caller.may(Verb::RunRead, run)?;
        self.header(run).await?;
        let chain = self.read(move |store| chain_of_page(store, run, after, limit)).await?;
        let mut steps = chain.steps().iter().filter(|step| step.scheduled.step > after);
        let items: Vec<_> = steps.by_ref().take(limit).map(|s| view::step(run, s, false)).collect();
        let more = steps.next().is_some();
        let next_cursor = items.last().filter(|_| more).map(|last| last.seq.to_string());
        Ok(Page { items, next_cursor })
    }

    /// Returns one step, with its request and its result.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such step.
    pub async fn step(
        &self,
        caller: &Caller,
        run: RunId,
        seq: u32,
    ) -> Result<StepView, EngineError> {
        caller.may(Verb::RunRead, run)?;
        self.header(run).await?;
        let step = self.stored_step(run, seq).await?;
        step.map(|step| view::step(run, &step, true))
            .ok_or_else(|| EngineError::NotFound { what: "step", id: format!("{run}/{seq}") })
    }

    /// Returns a step of the current history. Reads the entries about it and no others, once the
    /// places of the run's entries are known.
    pub(super) async fn stored_step(
        &self,
        run: RunId,
        seq: u32,
    ) -> Result<Option<Step>, EngineError> {
        let book = Arc::clone(&self.inner.places);
        let own = self.read(move |store| {
            let own = book.look(store, run.num(), |places| places.of_steps(&[seq].into()))?;
            entries_at(store, run.num(), &own)
        });
        Ok(one_step(run, seq, &own.await?)?)
    }

    /// Returns all steps of the current history. Holds the whole history: for one caller at a time.
    pub(super) async fn chain(&self, run: RunId) -> Result<Chain, EngineError> {
        self.header(run).await?;
        let entries = self.read(move |store| store.entries(run.num(), 0)).await?;
        let mut chain = Chain::full();
        for entry in &entries {
            chain.apply(entry).map_err(|error| damaged(run, error))?;
        }
        Ok(chain)
    }

    /// Returns the events of a run with a number over `after`, and then live events.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such run.
    pub async fn events(
        &self,
        caller: &Caller,
        run: RunId,
        after: u32,
    ) -> Result<Events, EngineError> {
        caller.may(Verb::RunRead, run)?;
        self.header(run).await?;
        Ok(Events::new(Arc::clone(&self.inner.shared), run, after, &caller.jti))
    }

    /// Cancels a run: its open attempts are closed and its compensations run.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run, or it has ended.
    pub async fn cancel(
        &self,
        caller: &Caller,
        run: RunId,
        reason: String,
        key: Option<IdempotencyKey>,
    ) -> Result<RunView, EngineError> {
        caller.may(Verb::RunCancel, run)?;
        self.header(run).await?;
        if self.repeated(caller, key.as_ref()).await?.is_some() {
            return self.run_view(run).await;
        }
        let (by, jti, kept) = (caller.subject.clone(), Some(caller.jti.clone()), key.clone());
        let cancel = ControlAsk::Cancel { by, jti, reason, key };
        match (self.ask::<Box<RunView>>(run.num(), cancel).await, kept) {
            (Err(EngineError::Store(StoreError::KeyUsed { .. })), Some(key)) => {
                self.repeated(caller, Some(&key)).await?;
                self.run_view(run).await
            }
            (answer, _) => answer.map(|view| *view),
        }
    }

    /// Pauses a run: nothing is dispatched, results are still accepted.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run, or it has ended.
    pub async fn pause(
        &self,
        caller: &Caller,
        run: RunId,
        reason: String,
    ) -> Result<RunView, EngineError> {
        caller.may(Verb::RunPause, run)?;
        self.header(run).await?;
        let (by, jti) = (caller.subject.clone(), Some(caller.jti.clone()));
        let ask = ControlAsk::Pause { by, jti, reason };
        self.ask(run.num(), ask).await.map(|view: Box<RunView>| *view)
    }

    /// Resumes a paused run.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run, or it has ended.
    pub async fn resume(&self, caller: &Caller, run: RunId) -> Result<RunView, EngineError> {
        caller.may(Verb::RunResume, run)?;
        self.header(run).await?;
        let (by, jti) = (caller.subject.clone(), Some(caller.jti.clone()));
        let ask = ControlAsk::Resume { by, jti };
        self.ask(run.num(), ask).await.map(|view: Box<RunView>| *view)
    }

    /// Sends a run a signal; it is durable when this returns.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run, it has ended, or its queue is
    /// full.
    pub async fn signal(
        &self,
        caller: &Caller,
        run: RunId,
        name: String,
        payload: Json,
        key: Option<IdempotencyKey>,
    ) -> Result<(), EngineError> {
        caller.may(Verb::RunSignal, run)?;
        self.header(run).await?;
        check_name("a signal", &name)?;
        let limit = self.shared().settings.limits.value;
        if payload.len() > limit {
            return Err(EngineError::TooLarge { what: "the payload", size: payload.len(), limit });
        }
        let by = caller.clone();
        self.once(caller, run, key, |key| ControlAsk::Signal { name, payload, caller: by, key })
            .await
    }

    /// Sends a request that takes effect once per idempotency key.
    pub(crate) async fn once(
        &self,
        caller: &Caller,
        run: RunId,
        key: Option<IdempotencyKey>,
        ask: impl FnOnce(Option<IdempotencyKey>) -> ControlAsk,
    ) -> Result<(), EngineError> {
        if self.repeated(caller, key.as_ref()).await?.is_some() {
            return Ok(());
        }
        let kept = key.clone();
        match self.ask(run.num(), ask(key)).await {
            Err(EngineError::Store(StoreError::KeyUsed { .. })) => {
                self.repeated(caller, kept.as_ref()).await.map(drop)
            }
            answer => answer,
        }
    }

    /// Calls one of a run's query functions, also after the run's end; changes nothing.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run or query, or its function
    /// fails.
    pub async fn query(
        &self,
        caller: &Caller,
        run: RunId,
        name: String,
        argument: Json,
    ) -> Result<Json, EngineError> {
        caller.may(Verb::RunQuery, run)?;
        self.header(run).await?;
        check_name("a query", &name)?;
        self.ask(run.num(), ControlAsk::Query { name, argument }).await
    }

    /// Deletes an ended run with everything that belongs to it.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run, or it has not ended.
    pub async fn delete_run(&self, caller: &Caller, run: RunId) -> Result<(), EngineError> {
        caller.may(Verb::RunDelete, run)?;
        let header = self.header(run).await?;
        if !header.status.is_ended() {
            return Err(EngineError::Conflict {
                code: Code::NotEnded,
                message: format!("delete run {run}: it has not ended; cancel it first"),
            });
        }
        let num = run.num();
        let found = self.read(move |store| store.retired(num.saturating_sub(1), 1)).await?;
        if found.first().is_none_or(|found| found.num != num) {
            return Err(EngineError::Conflict {
                code: Code::InUse,
                message: format!(
                    "delete run {run}: a run that called it or that it called is open, or a signal \
                     or a change that it sent has not arrived"
                ),
            });
        }
        let live = crate::store::Check::TokenLive(caller.jti.clone());
        self.upkeep().delete_runs(vec![live], vec![run]).await
    }

    /// Returns the runs that have not ended, at most `limit`.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub async fn unfinished(&self, limit: usize) -> Result<Vec<RunId>, EngineError> {
        let status = RunStatus::ALL.into_iter().filter(|status| !status.is_ended()).collect();
        let filter = RunFilter { status, limit, ..RunFilter::default() };
        let headers = self.read(move |store| store.headers(&filter)).await?;
        Ok(headers.iter().map(|header| RunId::new(header.num, header.created_ms)).collect())
    }
}

/// Waits as [`Engine::wait`] does; returns the view if the run's shard has sent it, and `None`
/// if it is to be read.
async fn awaited(
    engine: &Engine,
    run: RunId,
    until: WaitFor,
    wait: Duration,
) -> Result<Option<RunView>, EngineError> {
    let deadline = tokio::time::Instant::now() + wait;
    let mut refused = 0;
    loop {
        if engine.header(run).await?.status.is_ended() {
            return Ok(None);
        }
        let (reply, answer) = oneshot::channel();
        let wait = Internal::Wait(Waiter { until, reply });
        let asked = tokio::time::Instant::now();
        engine.shared().offer(run.num(), Msg::Run(run.num(), wait.into()))?;
        match tokio::time::timeout_at(deadline, answer).await {
            Ok(Ok(view)) => return Ok(Some(view)),
            Err(_) => return Ok(None),
            // The run was reloaded, has ended in the meantime, or cannot be loaded at the
            // moment.
            Ok(Err(_)) => {
                let health = engine.shared().store.health();
                if !engine.is_booted() || matches!(health, Health::Lost(_)) {
                    return Err(EngineError::Stopping);
                }
                let full = engine.shared().memory.level() == Level::Full;
                let pause_ms = if full || matches!(health, Health::Waiting(_)) {
                    ROOM_MS
                } else if refused >= REFUSED {
                    // What cannot be read is not read all the time.
                    STORAGE_RETRY_MS
                } else {
                    0
                };
                refused += 1;
                if pause_ms > 0 {
                    let soon = asked + Duration::from_millis(pause_ms);
                    tokio::time::sleep_until(deadline.min(soon)).await;
                }
            }
        }
    }
}

pub(crate) fn mismatch(key: &IdempotencyKey) -> EngineError {
    EngineError::Conflict {
        code: Code::IdempotencyMismatch,
        message: format!("use Idempotency-Key {:?}: another body came with it before", key.key),
    }
}

fn check_name(what: &'static str, name: &str) -> Result<(), EngineError> {
    if is_word(name) {
        return Ok(());
    }
    Err(EngineError::BadRequest(format!("name {what}: {WORD_RULE}")))
}

/// A history of at most this many entries is read as a whole.
const SHORT: u32 = 256;

/// The rows that the view of a run is made of.
pub(super) struct RunRows {
    pub(super) entries: Vec<Entry>,
    /// The number of steps of the current history.
    steps: u32,
    /// The number of their attempts.
    attempts: u32,
    /// The usage, if the header of the run does not have it.
    spent: Option<Spent>,
}

impl RunRows {
    /// Reads the rows of a run: of a short one all, of a long one only those that are shown.
    pub(super) fn read(
        store: &dyn Store,
        book: &PlaceBook,
        header: &Header,
    ) -> Result<Self, StoreError> {
        let run = header.num;
        if header.seq <= SHORT {
            let entries = store.entries(run, 0)?;
            let mut chain = Chain::lean();
            let is_whole = entries.iter().try_for_each(|entry| chain.apply(entry)).is_ok();
            let spent = is_whole.then(|| chain.spent().clone());
            let attempts = places::attempts(&entries);
            return Ok(Self { entries, steps: chain.counts().0, attempts, spent });
        }
        let shown = |it: &Places| (it.of_run(), it.steps(), it.attempts(), it.has_spent());
        let (seqs, steps, attempts, spends) = book.look(store, run, shown)?;
        let is_kept = header.used.is_some();
        let spent = if spends && !is_kept { spent_in(store, run)? } else { None };
        Ok(Self { entries: entries_at(store, run, &seqs)?, steps, attempts, spent })
    }
}

/// Returns the usage in a history: runs that ended before headers kept it have it nowhere else.
fn spent_in(store: &dyn Store, run: u64) -> Result<Option<Spent>, StoreError> {
    let (mut chain, mut is_whole) = (Chain::lean(), true);
    read_in_pages(store, run, 0, |entry| is_whole = is_whole && chain.apply(entry).is_ok())?;
    Ok(is_whole.then(|| chain.spent().clone()))
}

/// Folds the entries about a step; `None` without any.
pub(super) fn one_step(run: RunId, seq: u32, own: &[Entry]) -> Result<Option<Step>, StoreError> {
    let chain = Chain::ending(own, seq.saturating_sub(1)).map_err(|error| damaged(run, error))?;
    Ok(chain.and_then(|chain| chain.step(seq).cloned()))
}

pub(super) fn damaged(run: RunId, error: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged { what: format!("run {run}"), reason: error.to_string() }
}
