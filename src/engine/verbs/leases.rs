//! Leases of the tasks in a queue, by pull workers.

use std::{pin::pin, time::Duration};

use futures::FutureExt as _;

use crate::{
    blueprint::Labels,
    clock::Clock,
    engine::{
        Bearer, Caller, Engine, EngineError, Holder, Leased, PromptView, Report,
        run::reply::{Answering, Asked},
        shared::message::{ControlAsk, RunMsg, WorkerAsk},
        verbs::engine::TaskVerbs,
    },
    operator::{DurableLease, Handed, QueueHub, Received, TaskLease, Ticket, Wanted},
    protocol::Code,
    store::{self, StoreError},
    token::{Need, Verb},
};

/// The maximum number of tasks of one lease.
const LEASES: usize = 100;

/// The maximum size of the prompts that come with a lease, in bytes.
const PROMPTS: usize = 8 << 20;
/// The number of prompts that are fetched before their size says how many more fit.
const FIRST_PROMPTS: usize = 32;

/// The time for which a report, a prompt, or a lease that is still to be stored holds up the leases
/// of the same request, in milliseconds.
const HELD_UP_MS: u64 = 1_000;
/// The time that the last leases of a request have beyond that of its reports, in milliseconds.
const LINGER_MS: u64 = 50;

/// The request of a pull worker.
#[derive(Debug, Clone, Copy)]
pub struct LeaseAsk<'a> {
    /// The queue.
    pub queue: &'a str,
    /// The worker's name, for people.
    pub worker: &'a str,
    /// The labels of the worker: tasks that require others go elsewhere.
    pub labels: &'a Labels,
    /// The maximum number of tasks.
    pub max: usize,
    /// The time to wait for the first task.
    pub wait: Duration,
    /// True if the prompts come with the tasks.
    pub prompts: bool,
}

/// A ticket that was taken from its queue, and the answer of its run. It goes back unless its run
/// has answered for it: the run may be unreadable for a moment, or its caller gone while it is
/// read. One that is leased after all is refused to whoever takes it next.
struct Taken<'a> {
    hub: &'a QueueHub,
    queue: &'a str,
    handed: Handed,
    answer: Answering,
    lease: Option<Result<DurableLease, EngineError>>,
    goes_back: bool,
}

impl<'a> Taken<'a> {
    fn new(hub: &'a QueueHub, queue: &'a str, handed: Handed, answer: Answering) -> Self {
        Self { hub, queue, handed, answer, lease: None, goes_back: true }
    }

    /// Waits for the answer.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    async fn answered(&mut self) {
        if self.lease.is_none() {
            let lease: Result<DurableLease, _> = Engine::answered(&mut self.answer).await;
            self.goes_back = lease.as_ref().is_err_and(may_pass);
            self.lease = Some(lease);
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // The answer may have come without being read.
        self.answer.close();
        if let Ok(answer) = self.answer.try_recv() {
            self.goes_back = answer.is_err_and(|error| may_pass(&error));
        }
        if self.goes_back {
            let (ticket, labels) = &self.handed;
            self.hub.offer(self.queue, *ticket, labels);
        }
    }
}

/// Waits for the leases of tickets that were taken. Once some are there, or if it is not to wait for
/// any, the others have so much time: a lease runs, and its worker has not heard of it. Returns also
/// the first error that may pass.
async fn leases_of(
    mut asked: Vec<Result<Taken<'_>, EngineError>>,
    clock: &Clock,
    patience_ms: u64,
    waits: bool,
) -> (Vec<DurableLease>, Option<EngineError>) {
    loop {
        let all = async {
            // The last answer first, which saves wake-ups: see `replies`.
            for taken in asked.iter_mut().rev().flatten() {
                taken.answered().await;
            }
        };
        let is_late = tokio::select! {
            biased;
            () = all => false,
            () = clock.sleep(patience_ms) => true,
        };
        if is_late {
            for taken in asked.iter_mut().flatten() {
                let _ = taken.answered().now_or_never();
            }
        }
        let mut taken = asked.iter().flatten();
        if !is_late || !waits || taken.any(|taken| matches!(taken.lease, Some(Ok(_)))) {
            break;
        }
    }
    let (mut leased, mut refused) = (Vec::with_capacity(asked.len()), None);
    for taken in asked {
        match taken.map_or_else(|error| Some(Err(error)), |mut taken| taken.lease.take()) {
            Some(Ok(lease)) => leased.push(lease),
            Some(Err(EngineError::Conflict { .. } | EngineError::NotFound { .. })) | None => {}
            Some(Err(error)) => refused = refused.or(Some(error)),
        }
    }
    (leased, refused)
}

/// Returns true if a refused lease may succeed later without anybody who offers its task again: the
/// run is there, and can be read in principle.
fn may_pass(error: &EngineError) -> bool {
    !matches!(
        error,
        EngineError::Conflict { .. }
            | EngineError::NotFound { .. }
            | EngineError::Store(StoreError::Damaged { .. } | StoreError::TooLarge { .. })
    )
}

impl TaskVerbs<'_> {
    /// Leases tasks of a queue to a pull worker that matches them, waiting for the first.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, too many workers are waiting, or the token of the
    /// caller is revoked or expires meanwhile: nothing is leased to it then.
    ///
    /// # Cancel safety
    /// A task of a caller that is gone returns to the queue at once, and one whose lease is being
    /// stored when that is done.
    pub async fn lease(
        self,
        caller: &Caller,
        ask: &LeaseAsk<'_>,
    ) -> Result<Vec<Leased>, EngineError> {
        let wanted = self.wanted(caller, ask)?;
        tokio::select! {
            biased;
            leased = self.awaited(caller, wanted, ask) => leased,
            error = caller.token_over(self.engine) => Err(error),
        }
    }

    /// Leases tasks, waiting for the first.
    async fn awaited(
        self,
        caller: &Caller,
        wanted: Wanted<'_>,
        ask: &LeaseAsk<'_>,
    ) -> Result<Vec<Leased>, EngineError> {
        let clock = &self.engine.shared().clock;
        let wait_ms = u64::try_from(ask.wait.as_millis()).unwrap_or(u64::MAX);
        let deadline_ms = clock.steady_ms().saturating_add(wait_ms);
        loop {
            let Received { leased: claimed, offered } = self.take(wanted, deadline_ms).await?;
            let nothing = claimed.is_empty() && offered.is_empty();
            if let Err(error) = caller.check_token(self.engine) {
                for (ticket, labels) in offered {
                    self.engine.shared().hub.offer(wanted.queue, ticket, &labels);
                }
                return Err(error);
            }
            // Each waits for its commit; together they share one.
            let asked = store::wake_once(|| self.ask_runs(wanted, offered));
            let (mut leased, refused) = leases_of(asked, clock, HELD_UP_MS, true).await;
            leased.extend(claimed);
            if let Some(error) = refused.filter(|_| leased.is_empty()) {
                return Err(error);
            }
            if !leased.is_empty() || nothing {
                return self.delivered(caller, leased, ask.prompts).await;
            }
            self.note(wanted);
        }
    }

    /// Handles the reports of many workers as [`report_all`](Self::report_all) does, and leases
    /// tasks as [`lease`](Self::lease) does. What the reports bring about is leased in the commits
    /// that accept them; the wait begins when they are handled. A lease that fails is empty, and so
    /// may one be beside reports that take long.
    ///
    /// # Errors
    /// Fails when the caller may not lease, and handles no report then.
    ///
    /// # Cancel safety
    /// As [`lease`](Self::lease); the reports of a caller that is gone are handled.
    pub async fn report_and_lease(
        self,
        caller: &Caller,
        reports: Vec<(Holder, Report)>,
        ask: &LeaseAsk<'_>,
    ) -> Result<(Vec<Result<bool, EngineError>>, Vec<Leased>), EngineError> {
        let wanted = self.wanted(caller, ask)?;
        let (hub, clock) = (&self.engine.shared().hub, &self.engine.shared().clock);
        let began_ms = clock.steady_ms();
        let (offered, mut poll) = match self.engine.shared().tasks.stopping().is_cancelled() {
            true => (Vec::new(), None),
            false => hub.stand(wanted, began_ms),
        };
        let (sent, mut asked) =
            store::wake_once(|| (self.send_reports(reports), self.ask_runs(wanted, offered)));
        let mut answers = pin!(Self::replies(sent));
        let in_time = tokio::select! {
            biased;
            answers = &mut answers => Some(answers),
            () = clock.sleep(HELD_UP_MS) => None,
        };
        let answers = if let Some(answers) = in_time {
            answers
        } else {
            // Other workers must not wait for tasks that this one holds without knowing it.
            poll = None;
            asked.clear();
            answers.await
        };
        // The leases were on their way together with the reports: they take about as long.
        let now_ms = clock.steady_ms();
        let took_ms = now_ms.saturating_sub(began_ms).min(HELD_UP_MS);
        let late_ms = now_ms + took_ms + LINGER_MS;
        let mut claimed = Vec::new();
        if let Some(poll) = poll {
            let received = poll.gather(clock, took_ms + LINGER_MS).await;
            claimed = received.leased;
            asked.extend(store::wake_once(|| self.ask_runs(wanted, received.offered)));
        }
        let patience_ms = late_ms.saturating_sub(clock.steady_ms()).max(LINGER_MS);
        let (mut leased, _) = leases_of(asked, clock, patience_ms, false).await;
        leased.append(&mut claimed);
        let leased = if leased.is_empty() && !ask.wait.is_zero() {
            self.lease(caller, ask).await.unwrap_or_default()
        } else {
            self.delivered(caller, leased, ask.prompts).await.unwrap_or_default()
        };
        Ok((answers, leased))
    }

    /// Returns what a worker wants of the hub, and notes that it is there.
    fn wanted<'a>(self, caller: &Caller, ask: &LeaseAsk<'a>) -> Result<Wanted<'a>, EngineError> {
        let LeaseAsk { queue, worker, labels, max, .. } = *ask;
        caller.grant.check(Verb::WorkerLease, &[Need::Queue(queue)])?;
        let wanted = Wanted { queue, worker, labels, max: max.clamp(1, LEASES) };
        self.note(wanted);
        Ok(wanted)
    }

    fn note(self, Wanted { queue, worker, labels, .. }: Wanted<'_>) {
        let (hub, now_ms) = (&self.engine.shared().hub, self.engine.shared().clock.now_ms());
        hub.note_worker(queue, now_ms);
        hub.book().note(queue, worker, Some(labels), now_ms);
    }

    /// Takes tasks of a queue, and waits for the first until a time of the steady clock, or until
    /// the host stops.
    async fn take(self, wanted: Wanted<'_>, deadline_ms: u64) -> Result<Received, EngineError> {
        let shared = self.engine.shared();
        let (stopping, clock) = (shared.tasks.stopping(), &shared.clock);
        let left_ms = deadline_ms.saturating_sub(clock.steady_ms());
        if stopping.is_cancelled() {
            return Ok(Received::default());
        }
        if left_ms == 0 {
            let offered = shared.hub.take_now(wanted);
            return Ok(Received { offered, ..Received::default() });
        }
        let until = async {
            tokio::select! {
                biased;
                () = stopping.cancelled() => {}
                () = clock.sleep(left_ms) => {}
            }
        };
        shared.hub.take(wanted, clock, until).await.map_err(|error| EngineError::Busy {
            code: Code::TooManyWorkers,
            message: error.to_string(),
            retry_after_s: 1,
        })
    }

    /// Asks the runs of attempts that were offered for their leases.
    fn ask_runs<'a>(
        self,
        wanted: Wanted<'a>,
        offered: Vec<Handed>,
    ) -> Vec<Result<Taken<'a>, EngineError>>
    where
        Self: 'a,
    {
        let (hub, Wanted { queue, worker, .. }) = (&self.engine.shared().hub, wanted);
        let asked = offered.into_iter().map(|handed| {
            let Ticket { run, step, attempt } = handed.0;
            let ask = ControlAsk::Lease { step, attempt, worker: worker.to_owned() };
            let sent = self.engine.send_to(run, |reply| RunMsg::Control(Asked { ask, reply }));
            let sent = sent.inspect_err(|_| hub.offer(queue, handed.0, &handed.1));
            sent.map(|answer| Taken::new(hub, queue, handed, answer))
        });
        asked.collect()
    }

    /// Delivers leases to their worker, with their prompts if it wants them. They go back if its
    /// token has ended since it asked.
    async fn delivered(
        self,
        caller: &Caller,
        leased: Vec<DurableLease>,
        prompts: bool,
    ) -> Result<Vec<Leased>, EngineError> {
        let mut found = Vec::new();
        if prompts {
            tokio::select! {
                biased;
                of_all = self.prompts_of(&leased) => found = of_all,
                // The worker fetches them.
                () = self.engine.shared().clock.sleep(HELD_UP_MS) => {}
            }
        }
        // A token is refused before its revocation is stored: no later lease passes here.
        caller.check_token(self.engine)?;
        let mut found = found.into_iter();
        let leased = leased.into_iter().map(DurableLease::deliver);
        let leased = leased.map(|TaskLease { task, attempt: _, handle, lease_ms, trace }| Leased {
            task,
            handle,
            lease_ms,
            trace,
            prompt: found.next().flatten(),
        });
        Ok(leased.collect())
    }

    /// Returns the prompts of leased tasks, as far as they fit. An attempt that is over meanwhile has
    /// none: its worker is told so when it fetches it.
    async fn prompts_of(self, leased: &[DurableLease]) -> Vec<Option<Box<PromptView>>> {
        let holders =
            leased.iter().filter_map(|lease| match self.engine.authenticate(lease.handle()) {
                Ok(Bearer::Holder(holder)) => Some((holder, WorkerAsk::Prompt)),
                Ok(Bearer::Caller(_)) | Err(_) => None,
            });
        let asks: Vec<_> = holders.collect();
        if asks.len() < leased.len() {
            return Vec::new();
        }
        let (mut asks, mut found) = (asks.into_iter(), Vec::with_capacity(leased.len()));
        let (mut left, mut next) = (PROMPTS, FIRST_PROMPTS);
        while left > 0 && found.len() < leased.len() {
            let some = asks.by_ref().take(next).collect();
            let prompts: Vec<Result<Box<PromptView>, _>> =
                self.work_all(Verb::WorkerPrompt, some).await;
            found.extend(prompts.into_iter().map(|prompt| {
                let prompt = prompt.ok()?;
                let system = prompt.system.as_ref().map_or(0, String::len);
                let size = prompt.prompt.len() + prompt.input.len() + system;
                let fits = size <= left;
                left = left.saturating_sub(size);
                fits.then_some(prompt)
            }));
            // As many as fit if they are as long as those before them.
            let each = (PROMPTS - left) / found.len();
            next = (left / each.max(1)).max(1);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::sync::oneshot;

    use super::*;
    use crate::{engine::run::reply::Answer, operator::LeaseReturn, protocol::TaskId};

    const TICKET: Ticket = Ticket { run: 1, step: 1, attempt: 1 };

    /// Counts the leases that go back.
    #[derive(Default)]
    struct Returned(AtomicUsize);

    impl LeaseReturn for Returned {
        fn give_back(&self, attempt: Ticket) {
            assert_eq!(attempt, TICKET);
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns true if a ticket goes back to its queue when it is dropped with this answer unread.
    fn goes_back(answer: Option<Result<Answer, EngineError>>) -> bool {
        let (hub, (reply, answering)) = (QueueHub::default(), oneshot::channel());
        let handed = (TICKET, Labels::default());
        let taken = Taken::new(&hub, "q", handed, answering);
        match answer {
            Some(answer) => {
                assert!(reply.send(answer).is_ok());
                drop(taken);
            }
            None => {
                drop(taken);
                assert!(reply.is_closed());
            }
        }
        hub.lines().contains_key("q")
    }

    #[test]
    fn a_ticket_goes_back_unless_its_run_has_answered_for_it_also_if_nobody_reads_the_answer() {
        let (task, handle) = (TaskId::new(1, 1, 0), String::new());
        let lease = TaskLease { task, attempt: 1, handle, lease_ms: 0, trace: None };
        let returned = Arc::new(Returned::default());
        let back = Arc::clone(&returned) as Arc<dyn LeaseReturn>;
        let gone = EngineError::NotFound { what: "run", id: String::new() };
        assert!(!goes_back(Some(Ok(Answer::Lease(DurableLease::new(Box::new(lease), back))))));
        assert_eq!(returned.0.load(Ordering::Relaxed), 1, "its run hears that nobody has it");
        assert!(!goes_back(Some(Err(gone))));
        assert!(goes_back(Some(Err(EngineError::Stopping))));
        assert!(goes_back(None));
    }
}
