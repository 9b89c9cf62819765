//! The operations of a connected session: it receives frames, acknowledges them, and works on
//! tasks.

use std::{sync::Arc, time::Duration};

use crate::engine::{
    Advice, Caller, EngineError, Holder, IdempotencyKey, Page, PageMemory, SpawnView, TaskView,
    inbox::seats::wrong_seat,
    rfc3339,
    shared::{
        message::{ControlAsk, WorkerAsk},
        speakers::Speaker,
        verified::denied,
    },
    verbs::engine::SessionVerbs,
    verbs::queued::ticket_of,
    verbs::workers::cursor,
    view,
};
use crate::{
    operator::{Prompt, Ticket, joined},
    protocol::{Code, Json, RunId, SessionId, TaskId},
    session::{Hub, Link, LinkEnd},
    store::{Header, TaskRow},
    token::{AttemptId, Grant, Handle, Need, Verb},
};

/// The maximum length of the reason of a decline, in bytes.
const REASON_BYTES: usize = 4_096;
/// The size of a page of a session's tasks in bytes, unless its only task is larger.
const PAGE: usize = 8 << 20;
/// The cost of a task in addition to its prompt and its question, in bytes.
const OVERHEAD: usize = 1_024;
/// The maximum time to wait for the memory of a page.
const PAGE_WAIT: Duration = Duration::from_secs(20);

/// The frames of one poll.
#[derive(Debug)]
pub struct Polled {
    /// The frames as text, the oldest first.
    pub frames: Vec<String>,
    /// The number of the last one: the next poll acknowledges up to it.
    pub last: u64,
}

/// A request for a page of a session's tasks.
#[derive(Debug, Clone, Copy)]
pub struct TasksAsk {
    /// Only this one.
    pub task: Option<TaskId>,
    /// Only those after this run and step.
    pub after: Option<(u64, u32)>,
    /// The maximum number of them.
    pub limit: usize,
}

/// A page of a session's tasks, and its memory, to be held until the page is sent.
#[derive(Debug)]
pub struct SpawnPage {
    /// The page.
    pub page: Page<SpawnView>,
    /// Its share of the memory for readers.
    pub held: PageMemory,
}

/// The connection of a poll, which ends with it.
struct Polling {
    sessions: Arc<Hub>,
    link: Arc<Link>,
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.sessions.end_poll(&self.link);
    }
}

impl SessionVerbs<'_> {
    /// Connects to the session of a caller; an earlier connection is closed. Everything up to
    /// `seen` counts as acknowledged.
    ///
    /// # Errors
    /// Fails when the caller's token is not for the session, or `seen` was never sent.
    pub async fn connect(
        self,
        caller: &Caller,
        session: &SessionId,
        seen: Option<u64>,
    ) -> Result<Arc<Link>, EngineError> {
        caller.grant.check(Verb::SessionRead, &[])?;
        if caller.session.as_ref() != Some(session) {
            return Err(wrong_seat(format!("connect to session {session}: use its own token")));
        }
        if let Some(seq) = seen {
            self.acknowledge(caller, session, seq).await?;
        }
        let shared = self.engine.shared();
        let link = shared.sessions.connect(session, seen)?;
        let operator = || shared.sessions.operator_of(session);
        let now_ms = shared.clock.now_ms();
        shared.presence.arrives(session.as_str(), operator, now_ms, |fact| shared.post(fact));
        Ok(link)
    }

    /// Handles the end of a connection.
    pub fn disconnect(self, link: &Link) {
        self.engine.shared().sessions.disconnect(link);
    }

    /// Returns the next frame for a connection, as text, and counts it as sent.
    pub fn next_frame(self, link: &Link) -> Option<String> {
        let shared = self.engine.shared();
        let frame = shared.sessions.next(link)?;
        Some(frame.wire(&shared.handles, shared.clock.now_ms()))
    }

    /// Returns up to `most` of the next frames of the caller's session, and waits for the first one
    /// until `patience` is over. Everything up to `seen` counts as acknowledged. A newer poll or
    /// socket ends this one.
    ///
    /// # Errors
    /// Fails when the caller's token is not for the session, `seen` was never sent, or a newer
    /// connection took over.
    ///
    /// # Cancel safety
    /// Cancel safe: frames stay until they are acknowledged.
    pub async fn poll(
        self,
        caller: &Caller,
        session: &SessionId,
        seen: Option<u64>,
        most: usize,
        patience: impl Future<Output = ()>,
    ) -> Result<Polled, EngineError> {
        let link = self.connect(caller, session, seen).await?;
        let shared = self.engine.shared();
        let polling = Polling { sessions: Arc::clone(&shared.sessions), link };
        let link = &polling.link;
        let is_unnumbered = seen.is_none();
        shared.sessions.drop_over(session, is_unnumbered);
        tokio::pin!(patience);
        let mut frames = Vec::new();
        loop {
            if let Some(end) = link.ended() {
                return Err(ended(session, end));
            }
            while frames.len() < most
                && let Some(frame) = shared.sessions.next_polled(link, is_unnumbered)
            {
                frames.push(frame.wire(&shared.handles, shared.clock.now_ms()));
            }
            if !frames.is_empty() {
                break;
            }
            tokio::select! {
                () = link.woken() => {}
                () = &mut patience => break,
            }
        }
        Ok(Polled { frames, last: link.sent() })
    }

    /// Returns the session as a caller, for a call without a socket: for its own token, and for the
    /// token that opened it. The session counts as connected for a while.
    ///
    /// # Errors
    /// Fails when the session is not open, or the caller's token is another one.
    pub async fn speaker(
        self,
        caller: &Caller,
        session: &SessionId,
    ) -> Result<Caller, EngineError> {
        let own = caller.session.as_ref() == Some(session);
        let speaker = if own { caller.clone() } else { self.opened_by(caller, session).await? };
        self.engine.shared().sessions.touch(session);
        Ok(speaker)
    }

    /// Returns a session as a caller, if it was opened with the caller's token.
    async fn opened_by(self, caller: &Caller, session: &SessionId) -> Result<Caller, EngineError> {
        let foreign = || {
            let help = "use its own token, or the one that opened it";
            wrong_seat(format!("work for session {session}: {help}"))
        };
        let looks = self.engine.shared().sessions.looks(session).ok_or_else(foreign)?;
        let shared = self.engine.shared();
        let known = match shared.speakers.get(&looks.row.jti) {
            Some(known) => known,
            None => {
                let claims = self.stored_claims(looks.row.jti).await?;
                let read = Speaker {
                    opener: claims.parent.clone(),
                    caller: Caller {
                        grant: claims.grant().into(),
                        subject: claims.sub,
                        jti: claims.jti,
                        expires_ms: 0,
                        session: Some(session.clone()),
                        trace: None,
                    },
                };
                shared.speakers.keep(&read);
                read
            }
        };
        if known.opener.as_ref() != Some(&caller.jti) {
            return Err(foreign());
        }
        let expires_ms = looks.row.expires_ms;
        if expires_ms <= shared.clock.now_ms() {
            return Err(denied(format!("session {session} has expired; open another")));
        }
        Ok(Caller { expires_ms, ..known.caller })
    }

    /// Acknowledges every frame up to a number: the tasks in them are delivered. Who may read the
    /// frames may acknowledge them, also if the work itself is for others.
    ///
    /// # Errors
    /// Fails when no frame has that number, or the store failed.
    pub async fn acknowledge(
        self,
        caller: &Caller,
        session: &SessionId,
        seq: u64,
    ) -> Result<(), EngineError> {
        let arrived = self.engine.shared().sessions.arrived(session, seq)?;
        let asked = arrived.into_iter().map(|(ticket, epoch)| {
            let holder = holder(caller, session, ticket, epoch);
            async move { self.deadline_of(&holder, Verb::SessionRead).await }
        });
        for accepted in futures::future::join_all(asked).await {
            match accepted {
                // An attempt that is over needs no delivery.
                Ok(_) | Err(EngineError::Conflict { .. } | EngineError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.engine.shared().sessions.acknowledge(session, seq);
        Ok(())
    }

    /// Returns the attempt at a task that the caller's session names, or the newest that its client
    /// was told of.
    ///
    /// # Errors
    /// Fails when the caller is not a session, never had the task, or names an attempt of another
    /// session that came after its own.
    pub async fn holder_of(
        self,
        caller: &Caller,
        task: TaskId,
        named: Option<u32>,
    ) -> Result<Holder, EngineError> {
        let foreign = || EngineError::Conflict {
            code: Code::ForeignTask,
            message: format!("work on {task}: this session does not have it"),
        };
        let session = caller.session.as_ref().ok_or_else(foreign)?;
        let sessions = &self.engine.shared().sessions;
        let placed = |untold| sessions.attempt_of(session, (task.run(), task.step()), untold);
        let newest = match placed(named.is_some()) {
            Some(newest) => newest,
            None => match self.attempt_before(session, task).await? {
                Some(newest) => newest,
                // The client knows of the task from elsewhere.
                None => placed(true).ok_or_else(foreign)?,
            },
        };
        let (Ticket { attempt, .. }, epoch) = newest;
        if named.is_some_and(|named| named > attempt) {
            let message = format!("work on {task}: the attempt is not one of this session");
            return Err(EngineError::Conflict { code: Code::Fenced, message });
        }
        // An earlier one is over, whosever it was.
        let ticket = Ticket { attempt: named.unwrap_or(attempt), ..newest.0 };
        let before = match named {
            Some(_) => None,
            None => self.meant_before(session, task, ticket).await?,
        };
        Ok(Holder { before, ..holder(caller, session, ticket, epoch) })
    }

    /// Returns the attempt that a client may mean that names none while the newest one is not
    /// delivered: the one that its session had before.
    async fn meant_before(
        self,
        session: &SessionId,
        task: TaskId,
        newest: Ticket,
    ) -> Result<Option<u32>, EngineError> {
        let sessions = &self.engine.shared().sessions;
        if newest.attempt <= 1 || !sessions.is_undelivered(session, newest) {
            return Ok(None);
        }
        let former = sessions.former(session, (newest.run, newest.step));
        let before = match former {
            Some(attempt) => Some(attempt),
            None => self.attempt_before(session, task).await?.map(|(ticket, _)| ticket.attempt),
        };
        Ok(before.filter(|attempt| *attempt < newest.attempt))
    }

    /// Returns the last attempt at a task that was delivered to a session, with the epoch of its run.
    /// Attempts that ended before a restart are only in the journal.
    async fn attempt_before(
        self,
        session: &SessionId,
        task: TaskId,
    ) -> Result<Option<(Ticket, u32)>, EngineError> {
        let (run, step) = (task.run(), task.step());
        let Some(header) = self.engine.read(move |store| store.header(run)).await? else {
            return Ok(None);
        };
        let found = self.engine.stored_step(RunId::new(run, header.created_ms), step).await?;
        let found = found.filter(|it| it.scheduled_ms == task.scheduled_ms());
        let attempt = found.and_then(|it| {
            let is_its = |worker: &Option<String>| worker.as_ref() == Some(&session.0);
            let mut earlier = it.earlier.iter().rev().filter(|it| is_its(&it.worker));
            let last = is_its(&it.worker).then_some(it.attempt);
            last.or_else(|| earlier.next().map(|it| it.attempt))
        });
        Ok(attempt.map(|attempt| (Ticket { run, step, attempt }, header.epoch)))
    }

    /// Accepts a task for a session; returns the deadline of the attempt.
    ///
    /// # Errors
    /// Fails when the attempt is over.
    pub async fn accept(self, holder: &Holder) -> Result<Option<String>, EngineError> {
        Ok(self.deadline_of(holder, Verb::WorkerPrompt).await?.map(rfc3339))
    }

    /// Notes that an attempt has arrived, and returns its deadline.
    async fn deadline_of(self, holder: &Holder, verb: Verb) -> Result<Option<u64>, EngineError> {
        self.engine.tasks().work(holder, verb, WorkerAsk::Accept).await
    }

    /// Declines a task: the attempt ends, and another may follow. Returns false if the same decline
    /// had ended the attempt before.
    ///
    /// # Errors
    /// Fails when the attempt is over.
    pub async fn decline(
        self,
        holder: &Holder,
        reason: String,
        key: Option<String>,
    ) -> Result<bool, EngineError> {
        if reason.len() > REASON_BYTES {
            let (size, limit) = (reason.len(), REASON_BYTES);
            return Err(EngineError::TooLarge { what: "the reason", size, limit });
        }
        let reason = format!("the session declined: {reason}");
        let ask = WorkerAsk::Decline { reason, key };
        self.engine.tasks().work(holder, Verb::WorkerResult, ask).await
    }

    /// Escalates a question of an attempt to a senior; the step waits.
    ///
    /// # Errors
    /// Fails when the attempt is over, or already waits for an answer.
    pub async fn escalate(self, holder: &Holder, question: Json) -> Result<(), EngineError> {
        let ask = WorkerAsk::Escalate { question };
        self.engine.tasks().work(holder, Verb::TaskEscalate, ask).await
    }

    /// Answers the question of an attempt. With the attempt or the revision that was shown, an answer
    /// to another question is refused.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the task has no open question, or another one.
    pub async fn advise(
        self,
        caller: &Caller,
        task: TaskId,
        advice: Advice,
        key: Option<IdempotencyKey>,
    ) -> Result<TaskView, EngineError> {
        caller.grant.check(Verb::TaskAdvise, &[Need::Task(task)])?;
        let run = self.engine.tasks().task_view(task).await?.run;
        let (step, by) = (task.step(), caller.clone());
        self.engine
            .once(caller, run, key, |key| ControlAsk::Advise { step, advice, caller: by, key })
            .await?;
        self.engine.tasks().task_view(task).await
    }

    /// Returns a page of the tasks of a caller's session, with everything that it needs to continue
    /// them. Large ones make the page shorter than `limit`.
    ///
    /// # Errors
    /// Fails when the caller is not a session, or other answers hold the memory of its token for long.
    pub async fn session_tasks(
        self,
        caller: &Caller,
        TasksAsk { task, after, limit }: TasksAsk,
    ) -> Result<SpawnPage, EngineError> {
        caller.grant.check(Verb::TaskList, &[])?;
        let Some(session) = &caller.session else {
            return Err(wrong_seat("list a session's tasks: use its own token".into()));
        };
        let mut tickets = self.engine.shared().sessions.held(session);
        tickets.retain(|it| {
            let is_it = task.is_none_or(|task| (it.run, it.step) == (task.run(), task.step()));
            is_it && after.is_none_or(|after| (it.run, it.step) > after)
        });
        let mut held = self.page_memory(caller).await?;
        let (rows, bytes, more) = self
            .engine
            .read(move |store| {
                let (mut rows, mut bytes) = (Vec::<(TaskRow, Header)>::new(), 0);
                for Ticket { run, step, attempt } in tickets {
                    if rows.len() == limit {
                        return Ok((rows, bytes, true));
                    }
                    let row = store.task(run, step)?.filter(|row| row.attempt == attempt);
                    let (Some(row), Some(header)) = (row, store.header(run)?) else { continue };
                    let size = size_of_task(&row);
                    if !rows.is_empty() && bytes + size > PAGE {
                        return Ok((rows, bytes, true));
                    }
                    bytes += size;
                    rows.push((row, header));
                }
                Ok((rows, bytes, false))
            })
            .await?;
        held.shrink(bytes);
        let last = rows.last().map(|(row, _)| (row.run, row.step));
        // Its client knows of no others: a call without a number does not mean those.
        let told = rows.iter().map(|(row, _)| ticket_of(row));
        self.engine.shared().sessions.told(session, told);
        let items = rows.into_iter().map(|(row, header)| self.spawn_view(&row, &header)).collect();
        let page = Page { items, next_cursor: last.filter(|_| more).map(cursor) };
        Ok(SpawnPage { page, held })
    }

    /// Waits for the memory of a page, which the answers and the events of the caller's token share.
    async fn page_memory(self, caller: &Caller) -> Result<PageMemory, EngineError> {
        let room = self.engine.shared().readers.room(&caller.jti);
        let waited = tokio::time::timeout(PAGE_WAIT, room.page(PAGE)).await;
        waited.map_err(|_| EngineError::Busy {
            code: Code::Overloaded,
            message: "list tasks: earlier answers to this token were not read yet".to_owned(),
            retry_after_s: 1,
        })
    }

    fn spawn_view(self, row: &TaskRow, header: &Header) -> SpawnView {
        let TaskRow { run, step, attempt, epoch, .. } = *row;
        let of = AttemptId { run, step, attempt, epoch, nonce: header.nonce };
        let prompt = serde_json::from_str::<Prompt>(&row.prompt).ok();
        let (system, worker) = prompt.map_or((None, None), |it| {
            (joined(it.system.as_deref(), it.addendum.as_deref()), it.worker)
        });
        SpawnView {
            task: view::task(
                row,
                RunId::new(run, header.created_ms),
                true,
                &self.engine.shared().clock,
            ),
            handle: Handle::mint(&self.engine.shared().handles, &of).expose(),
            worker,
            system,
        }
    }
}

fn size_of_task(row: &TaskRow) -> usize {
    row.prompt.len() + row.question.as_ref().map_or(0, String::len) + OVERHEAD
}

/// Returns the reason why a poll has no answer.
fn ended(session: &SessionId, end: &LinkEnd) -> EngineError {
    let reason = end.reason();
    match end {
        LinkEnd::Replaced => EngineError::Conflict {
            code: Code::Replaced,
            message: format!("poll session {session}: {reason}"),
        },
        LinkEnd::Revoked | LinkEnd::Expired => denied(reason.to_owned()),
        LinkEnd::Closed(_)
        | LinkEnd::Slow
        | LinkEnd::Silent
        | LinkEnd::Broken(..)
        | LinkEnd::Stopping => {
            EngineError::NotFound { what: "open session", id: session.to_string() }
        }
    }
}

fn holder(caller: &Caller, session: &SessionId, ticket: Ticket, epoch: u32) -> Holder {
    Holder {
        run: ticket.run,
        step: ticket.step,
        attempt: ticket.attempt,
        epoch,
        nonce: None,
        jti: Some(caller.jti.clone()),
        grant: Some(Grant::clone(&caller.grant)),
        session: Some(session.clone()),
        before: None,
        carrier: None,
    }
}
