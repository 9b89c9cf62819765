//! Tasks, as people and workers take and complete them.

use crate::engine::{
    Answer, ArtifactView, Caller, Engine, EngineError, HeartbeatView, Holder, IdempotencyKey,
    Minted, Page, PromptView, Report, TaskView, rfc3339,
    run::reply::{Answering, Asked, Reply},
    settings::TASKS_READ,
    shared::message::{ControlAsk, PersonAnswer, RunMsg, WorkerAsk},
    turn::files::OUTSIDE,
    verbs::engine::{TaskVerbs, TokenVerbs},
    view,
};
use crate::{
    operator::kind_of,
    protocol::{ArtifactId, Json, RunId, TaskId},
    store::{self, TaskFilter, TaskRow},
    token::{Need, ScopeKind, Verb},
};

/// A request that was sent to a run, unless it could not be.
pub(super) type Sent = Result<Answering, EngineError>;

/// An open task, and the subject that started its run.
pub(crate) type FoundTask = (TaskView, String);

/// Some open tasks, as lists show them.
pub(crate) struct TasksRead {
    /// Those that fit, by run and step; `None` if the run is gone.
    pub(crate) found: Vec<((u64, u32), Option<FoundTask>)>,
    /// The number of rows.
    pub(crate) rows: usize,
    /// The last row.
    pub(crate) last: Option<(u64, u32)>,
    /// True if there can be rows after it.
    pub(crate) more: bool,
}

/// Returns the cursor of a page that ends with a task.
pub(crate) fn cursor((run, step): (u64, u32)) -> String {
    format!("{run}-{step}")
}

impl TaskVerbs<'_> {
    /// Returns open tasks, oldest first.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn list(
        self,
        caller: &Caller,
        filter: TaskFilter,
    ) -> Result<Page<TaskView>, EngineError> {
        let filter = self.listed(caller, filter)?;
        let (mut after, mut more) = (filter.after, true);
        let (mut seen, mut items) = (0, Vec::new());
        while more && seen < filter.limit {
            let limit = filter.limit - seen;
            let read =
                self.read_some(TaskFilter { after, limit, ..filter.clone() }, |_| true).await?;
            (more, after, seen) = (read.more, read.last.or(after), seen + read.rows);
            items.extend(read.found.into_iter().filter_map(|(_, found)| Some(found?.0)));
        }
        Ok(Page { items, next_cursor: after.filter(|_| more).map(cursor) })
    }

    /// Returns the filter with the names that rows have, if the caller may list tasks.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub(crate) fn listed(
        self,
        caller: &Caller,
        mut filter: TaskFilter,
    ) -> Result<TaskFilter, EngineError> {
        caller.grant.check(Verb::TaskList, &[Need::Every(ScopeKind::Task)])?;
        let registry = &self.engine.shared().registry;
        filter.operator = filter.operator.map(|name| registry.name_of(&name).to_owned());
        filter.kind = filter.kind.map(|kind| kind_of(&kind).to_owned());
        Ok(filter)
    }

    /// Reads the first open tasks of a filter, [`TASKS_READ`] at most, of which those that fit are
    /// found. The rows, each of which can have an input of several megabytes, are dropped at once.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub(crate) async fn read_some(
        self,
        mut filter: TaskFilter,
        fits: impl Fn(&TaskRow) -> bool + Send + 'static,
    ) -> Result<TasksRead, EngineError> {
        filter.limit = filter.limit.min(TASKS_READ);
        let clock = self.engine.shared().clock.clone();
        let read = self.engine.read(move |store| {
            let rows = store.tasks(&filter)?;
            let key = |row: &TaskRow| (row.run, row.step);
            let (seen, last) = (rows.len(), rows.last().map(key));
            let mut found = Vec::new();
            for row in rows.into_iter().filter(|row| fits(row)) {
                let shown = store.header(row.run)?.map(|header| {
                    let run = RunId::new(row.run, header.created_ms);
                    (view::task(&row, run, false, &clock), header.principal)
                });
                found.push((key(&row), shown));
            }
            Ok(TasksRead { found, rows: seen, last, more: seen == filter.limit })
        });
        read.await
    }

    /// Returns one task, with its prompt while it is open.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such task.
    pub async fn get(self, caller: &Caller, task: TaskId) -> Result<TaskView, EngineError> {
        caller.grant.check(Verb::TaskRead, &[Need::Task(task)])?;
        self.task_view(task).await
    }

    pub(crate) async fn task_view(self, task: TaskId) -> Result<TaskView, EngineError> {
        let missing = || EngineError::NotFound { what: "task", id: task.to_string() };
        let (num, step) = (task.run(), task.step());
        let header = self.engine.read(move |store| store.header(num)).await?.ok_or_else(missing)?;
        let run = RunId::new(num, header.created_ms);
        let row = self.engine.read(move |store| store.task(num, step)).await?;
        if let Some(row) = row.filter(|row| row.scheduled_ms == task.scheduled_ms()) {
            return Ok(view::task(&row, run, true, &self.engine.shared().clock));
        }
        let found = self.engine.stored_step(run, step).await?;
        let found = found.filter(|it| it.scheduled_ms == task.scheduled_ms());
        let found = found.ok_or_else(missing)?;
        let shown = view::step(run, &found, true);
        Ok(TaskView {
            id: task,
            run,
            step,
            attempt: found.attempt,
            agent: found.scheduled.name,
            operator: String::new(),
            kind: String::new(),
            queue: None,
            state: shown.state,
            summary: shown.summary,
            worker: found.worker,
            scheduled_at: shown.scheduled_at,
            deadline: None,
            prompt: None,
            input: shown.request,
            output_schema: None,
            revision: None,
            form: None,
            by: Vec::new(),
            required: None,
            answers: Vec::new(),
            reminders: None,
            expires_at: None,
            question: None,
            question_data: None,
            command: None,
        })
    }

    /// Answers a task that waits for a person; this is durable when this returns. With a revision,
    /// an answer to an older revision is refused.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such task, it has ended, or the answer
    /// violates its schema.
    pub async fn answer(
        self,
        caller: &Caller,
        task: TaskId,
        (answer, revision): (Answer, Option<String>),
        key: Option<IdempotencyKey>,
    ) -> Result<TaskView, EngineError> {
        caller.grant.check(Verb::TaskAnswer, &[Need::Task(task)])?;
        self.keep_answer(caller, task, (answer, revision), key, false).await
    }

    /// Answers a task by which a run asks the client that started it; this is durable when this
    /// returns.
    ///
    /// # Errors
    /// As [`answer`](Self::answer). Fails also when the task does not ask the starter, or the caller
    /// is not the one.
    pub async fn reply(
        self,
        caller: &Caller,
        task: TaskId,
        answer: (Answer, Option<String>),
        key: Option<IdempotencyKey>,
    ) -> Result<TaskView, EngineError> {
        caller.grant.check(Verb::RunStart, &[])?;
        self.keep_answer(caller, task, answer, key, true).await
    }

    async fn keep_answer(
        self,
        caller: &Caller,
        task: TaskId,
        (answer, revision): (Answer, Option<String>),
        key: Option<IdempotencyKey>,
        as_starter: bool,
    ) -> Result<TaskView, EngineError> {
        let found = self.task_view(task).await?;
        let step = task.step();
        let by = caller.clone();
        let said = |key| PersonAnswer { answer, revision, as_starter, caller: by, key };
        self.engine
            .once(caller, found.run, key, |key| ControlAsk::Answer { step, said: said(key) })
            .await?;
        self.task_view(task).await
    }

    /// Expires a task for people, as if its time had run out.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such task, or it is not an open one for
    /// people.
    pub async fn expire(
        self,
        caller: &Caller,
        task: TaskId,
        key: Option<IdempotencyKey>,
    ) -> Result<TaskView, EngineError> {
        caller.grant.check(Verb::TaskExpire, &[Need::Task(task)])?;
        let found = self.task_view(task).await?;
        let (step, by) = (task.step(), caller.clone());
        self.engine
            .once(caller, found.run, key, |key| ControlAsk::Expire { step, caller: by, key })
            .await?;
        self.task_view(task).await
    }

    /// Returns the prompt of a worker.
    ///
    /// # Errors
    /// Fails when the bearer is not the one of the open attempt.
    pub async fn prompt(self, holder: &Holder) -> Result<PromptView, EngineError> {
        let prompt: Box<PromptView> =
            self.work(holder, Verb::WorkerPrompt, WorkerAsk::Prompt).await?;
        Ok(*prompt)
    }

    /// Handles a worker's report; returns true if it is accepted now, false if the same one was
    /// accepted before.
    ///
    /// # Errors
    /// Fails when the bearer is not the one of the open attempt, or the result is not acceptable.
    pub async fn report(self, holder: &Holder, report: Report) -> Result<bool, EngineError> {
        let report = Box::new(report);
        self.work(holder, Verb::WorkerResult, WorkerAsk::Report(report)).await
    }

    /// Handles the reports of many workers, each as [`report`](Self::report) does, in their order.
    pub async fn report_all(
        self,
        reports: Vec<(Holder, Report)>,
    ) -> Vec<Result<bool, EngineError>> {
        Self::replies(store::wake_once(|| self.send_reports(reports))).await
    }

    /// Sends the reports of many workers; [`replies`](Self::replies) are to be waited for.
    pub(super) fn send_reports(self, reports: Vec<(Holder, Report)>) -> Vec<Sent> {
        let asks = reports.into_iter();
        let asks = asks.map(|(holder, report)| (holder, WorkerAsk::Report(Box::new(report))));
        self.send_all(Verb::WorkerResult, asks)
    }

    /// Stores a file of a worker; it is published with the accepted result.
    ///
    /// # Errors
    /// Fails when the bearer is not the one of the open attempt, or the name or size is not
    /// acceptable.
    pub async fn put_artifact(
        self,
        holder: &Holder,
        name: String,
        data: Vec<u8>,
    ) -> Result<ArtifactView, EngineError> {
        let shown = name.clone();
        let (id, hash, size) = self
            .work::<(ArtifactId, String, u64)>(
                holder,
                Verb::WorkerArtifact,
                WorkerAsk::Artifact { name, data },
            )
            .await?;
        let num = holder.run;
        let header = self.engine.read(move |store| store.header(num)).await?;
        let created_ms = header.map_or(0, |header| header.created_ms);
        Ok(ArtifactView {
            id,
            run: RunId::new(num, created_ms),
            step: holder.step,
            name: shown,
            hash,
            size,
            created_at: rfc3339(self.engine.shared().clock.now_ms()),
        })
    }

    /// Passes on the progress of a worker; lossy.
    ///
    /// # Errors
    /// Fails when the bearer is not the one of the open attempt.
    pub async fn progress(self, holder: &Holder, data: Json) -> Result<(), EngineError> {
        self.work(holder, Verb::WorkerProgress, WorkerAsk::Progress { data }).await
    }

    /// Handles the heartbeat of a worker: extends its lease.
    ///
    /// # Errors
    /// Fails when the bearer is not valid.
    pub async fn heartbeat(self, holder: &Holder) -> Result<HeartbeatView, EngineError> {
        let kept = self.work(holder, Verb::WorkerHeartbeat, WorkerAsk::Heartbeat).await?;
        Ok(self.kept(holder, kept))
    }

    /// Handles the heartbeats of many workers, each as [`heartbeat`](Self::heartbeat) does.
    pub async fn heartbeat_all(
        self,
        holders: Vec<Holder>,
    ) -> Vec<Result<HeartbeatView, EngineError>> {
        let asks = holders.iter().map(|holder| (holder.clone(), WorkerAsk::Heartbeat)).collect();
        let kept = self.work_all(Verb::WorkerHeartbeat, asks).await;
        let kept = holders.iter().zip(kept);
        kept.map(|(holder, kept)| Ok(self.kept(holder, kept?))).collect()
    }

    fn kept(self, holder: &Holder, (deadline, cancel): (Option<u64>, bool)) -> HeartbeatView {
        let token = if cancel { None } else { self.engine.tokens().renew(holder) };
        HeartbeatView { deadline: deadline.map(rfc3339), cancel, token }
    }

    /// Mints a token for an attempt, in place of its handle: it expires by itself, and can be
    /// narrower.
    ///
    /// # Errors
    /// Fails when the bearer is not the one of the open attempt, or asks for more than it has.
    pub async fn worker_token(
        self,
        holder: &Holder,
        verbs: Option<&[String]>,
        ttl_ms: u64,
    ) -> Result<Minted, EngineError> {
        let nonce: u64 = self.work(holder, Verb::WorkerToken, WorkerAsk::Nonce).await?;
        self.engine.tokens().attempt_token(
            holder,
            nonce,
            TokenVerbs::attempt_jti(holder)?,
            verbs,
            ttl_ms,
        )
    }

    /// Returns a value of the run's state, or of another scope that the worker may see.
    ///
    /// # Errors
    /// Fails when the bearer is not the one of the open attempt.
    pub async fn worker_state(
        self,
        holder: &Holder,
        scope: Option<String>,
        key: String,
    ) -> Result<Option<Json>, EngineError> {
        let ask = WorkerAsk::GetState { scope, key };
        self.work(holder, Verb::WorkerState, ask).await
    }

    /// Writes a value of the run's state, or of another scope that the worker may see; it is
    /// durable when this returns.
    ///
    /// # Errors
    /// Fails when the bearer is not the one of the open attempt, or key or value is too large.
    pub async fn put_worker_state(
        self,
        holder: &Holder,
        scope: Option<String>,
        key: String,
        value: Json,
    ) -> Result<(), EngineError> {
        let ask = WorkerAsk::PutState { scope, key, value };
        self.work(holder, Verb::WorkerState, ask).await
    }

    pub(crate) async fn work<T: Reply>(
        self,
        holder: &Holder,
        verb: Verb,
        ask: WorkerAsk,
    ) -> Result<T, EngineError> {
        holder.check(verb)?;
        let holder = holder.clone();
        self.engine
            .answer_to(holder.run, |reply| RunMsg::Worker(holder, Asked { ask, reply }))
            .await
    }

    /// Sends the requests of many attempts, in their order, before it waits for the first reply: what
    /// follows from them can share a commit.
    pub(super) async fn work_all<T: Reply>(
        self,
        verb: Verb,
        asks: Vec<(Holder, WorkerAsk)>,
    ) -> Vec<Result<T, EngineError>> {
        Self::replies(store::wake_once(|| self.send_all(verb, asks.into_iter()))).await
    }

    fn send_all(self, verb: Verb, asks: impl Iterator<Item = (Holder, WorkerAsk)>) -> Vec<Sent> {
        let sent = asks.map(|(holder, ask)| {
            holder.check(verb)?;
            let run = holder.run;
            self.engine.send_to(run, |reply| RunMsg::Worker(holder, Asked { ask, reply }))
        });
        sent.collect()
    }

    /// Waits for the replies to requests that were sent, in their order.
    ///
    /// A shard answers mostly in the order of the requests: a caller that waits for the last reply
    /// first is woken a few times, not once for each.
    pub(super) async fn replies<T: Reply>(sent: Vec<Sent>) -> Vec<Result<T, EngineError>> {
        let mut replies = Vec::with_capacity(sent.len());
        for reply in sent.into_iter().rev() {
            replies.push(match reply {
                Ok(mut reply) => Engine::answered(&mut reply).await,
                Err(error) => Err(error),
            });
        }
        replies.reverse();
        replies
    }

    /// Stores a file with a run, outside of any task; it is published and durable when this returns.
    /// The same file again is the same artifact.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run, it has ended, or the file or
    /// its name is too large.
    pub async fn put_run_artifact(
        self,
        caller: &Caller,
        run: RunId,
        name: String,
        data: Vec<u8>,
    ) -> Result<ArtifactView, EngineError> {
        caller.may(Verb::ArtifactWrite, run)?;
        self.engine.header(run).await?;
        let jti = Some(caller.jti.clone());
        let ask = ControlAsk::PutArtifact { name: name.clone(), data, jti };
        let (id, hash, size): (ArtifactId, String, u64) = self.engine.ask(run.num(), ask).await?;
        let (step, created_at) = (OUTSIDE, rfc3339(self.engine.shared().clock.now_ms()));
        Ok(ArtifactView { id, run, step, name, hash, size, created_at })
    }

    /// Returns the published files of a run.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such run.
    pub async fn artifacts(
        self,
        caller: &Caller,
        run: RunId,
    ) -> Result<Vec<ArtifactView>, EngineError> {
        caller.may(Verb::ArtifactRead, run)?;
        self.engine.header(run).await?;
        let rows = self.engine.read(move |store| store.artifacts(run.num())).await?;
        Ok(rows.iter().filter(|row| row.published).map(|row| view::artifact(row, run)).collect())
    }

    /// Returns a file with its bytes.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such file.
    pub async fn artifact(
        self,
        caller: &Caller,
        id: ArtifactId,
    ) -> Result<(ArtifactView, Vec<u8>), EngineError> {
        let missing = || EngineError::NotFound { what: "artifact", id: id.to_string() };
        let num = id.run();
        let header = self.engine.read(move |store| store.header(num)).await?.ok_or_else(missing)?;
        let run = RunId::new(num, header.created_ms);
        caller.may(Verb::ArtifactRead, run)?;
        let rows = self.engine.read(move |store| store.artifacts(num)).await?;
        let row = rows.into_iter().find(|row| row.n == id.number() && row.published);
        let row = row.ok_or_else(missing)?;
        let hash = row.hash.clone();
        let data = self.engine.read(move |store| store.blob(&hash)).await?.ok_or_else(missing)?;
        Ok((view::artifact(&row, run), data))
    }
}
