//! Leases of the tasks in a queue, by pull workers.

use std::time::Duration;

use crate::{
    blueprint::Labels,
    engine::{
        Bearer, Caller, Engine, EngineError, Leased, PromptView,
        run::reply::{Answering, Asked, Lease},
        shared::message::{ControlAsk, RunMsg, WorkerAsk},
        verbs::engine::TaskVerbs,
    },
    operator::{ClaimedLease, Handed, QueueHub, Received, Ticket, Wanted},
    protocol::{Code, TaskId},
    store::{self, StoreError},
    token::{Need, Verb},
};

/// The maximum number of tasks of one lease.
const LEASES: usize = 100;

/// The maximum size of the prompts that come with a lease, in bytes.
const PROMPTS: usize = 8 << 20;

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
/// read. One that was leased after all is refused to whoever takes it next.
struct Taken<'a> {
    hub: &'a QueueHub,
    queue: &'a str,
    handed: Handed,
    answer: Answering,
    goes_back: bool,
}

impl Taken<'_> {
    /// Waits for the answer.
    async fn leased(mut self) -> Result<Leased, EngineError> {
        let lease: Result<Lease, _> = Engine::answered(&mut self.answer).await;
        self.goes_back = lease.as_ref().is_err_and(may_pass);
        let (lease, Ticket { run, step, .. }) = (lease?, self.handed.0);
        Ok(Leased {
            task: TaskId::new(run, step, lease.scheduled_ms),
            handle: lease.handle,
            lease_ms: lease.lease_ms,
            trace: lease.trace,
            prompt: None,
        })
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

/// Returns a task that was leased with the commit that scheduled it.
fn leased_by_claim(claimed: ClaimedLease) -> Leased {
    let ClaimedLease { task, handle, lease_ms, trace } = claimed;
    Leased { task, handle, lease_ms, trace, prompt: None }
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
    /// Fails when the caller lacks permission, or too many workers are waiting.
    ///
    /// # Cancel safety
    /// A task that was leased for a caller that is gone returns to the queue when its lease ends, and
    /// one that was not, at once.
    pub async fn lease(
        self,
        caller: &Caller,
        ask: &LeaseAsk<'_>,
    ) -> Result<Vec<Leased>, EngineError> {
        let LeaseAsk { queue, worker, labels, max, wait, prompts } = *ask;
        caller.grant.check(Verb::WorkerLease, &[Need::Queue(queue)])?;
        let (hub, clock) = (&self.engine.shared().hub, &self.engine.shared().clock);
        let wanted = Wanted { queue, worker, labels, max: max.clamp(1, LEASES) };
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let deadline_ms = clock.steady_ms().saturating_add(wait_ms);
        let mut leased = Vec::new();
        loop {
            let now_ms = clock.now_ms();
            hub.note_worker(queue, now_ms);
            hub.book().note(queue, worker, Some(labels), now_ms);
            let tickets = match self.take(wanted, deadline_ms).await? {
                Received::Offered(tickets) => tickets,
                Received::Leased(claimed) => {
                    leased.extend(claimed.into_iter().map(leased_by_claim));
                    Vec::new()
                }
            };
            let nothing = tickets.is_empty();
            // Each waits for its commit; together they share one.
            let asked = tickets.into_iter().map(|handed| {
                let Ticket { run, step, attempt } = handed.0;
                let ask = ControlAsk::Lease { step, attempt, worker: worker.to_owned() };
                let sent = self.engine.send_to(run, |reply| RunMsg::Control(Asked { ask, reply }));
                let sent = sent.inspect_err(|_| hub.offer(queue, handed.0, &handed.1));
                sent.map(|answer| Taken { hub, queue, handed, answer, goes_back: true })
            });
            let asked: Vec<Result<Taken<'_>, EngineError>> = store::wake_once(|| asked.collect());
            let mut refused = None;
            // The last answer first, which saves wake-ups: see `work_all`.
            for taken in asked.into_iter().rev() {
                let lease = match taken {
                    Ok(taken) => taken.leased().await,
                    Err(error) => Err(error),
                };
                match lease {
                    Ok(lease) => leased.push(lease),
                    Err(EngineError::Conflict { .. } | EngineError::NotFound { .. }) => {}
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
            leased.reverse();
            if let Some(error) = refused.filter(|_| leased.is_empty()) {
                return Err(error);
            }
            if !leased.is_empty() && prompts {
                self.add_prompts(&mut leased).await;
            }
            if !leased.is_empty() || nothing {
                return Ok(leased);
            }
        }
    }

    /// Takes tasks of a queue, and waits for the first until a time of the steady clock, or until
    /// the host stops.
    async fn take(self, wanted: Wanted<'_>, deadline_ms: u64) -> Result<Received, EngineError> {
        let shared = self.engine.shared();
        let (stopping, clock) = (shared.tasks.stopping(), &shared.clock);
        let left_ms = deadline_ms.saturating_sub(clock.steady_ms());
        if stopping.is_cancelled() {
            return Ok(Received::Offered(Vec::new()));
        }
        if left_ms == 0 {
            return Ok(Received::Offered(shared.hub.take_now(wanted)));
        }
        let until = async {
            tokio::select! {
                biased;
                () = stopping.cancelled() => {}
                () = clock.sleep(left_ms) => {}
            }
        };
        shared.hub.take(wanted, until).await.map_err(|error| EngineError::Busy {
            code: Code::TooManyWorkers,
            message: error.to_string(),
            retry_after_s: 1,
        })
    }

    /// Adds the prompts to leased tasks, as far as they fit. An attempt that is over meanwhile has
    /// none: its worker is told so when it fetches it.
    async fn add_prompts(self, leased: &mut [Leased]) {
        let holders =
            leased.iter().filter_map(|leased| match self.engine.authenticate(&leased.handle) {
                Ok(Bearer::Holder(holder)) => Some((holder, WorkerAsk::Prompt)),
                Ok(Bearer::Caller(_)) | Err(_) => None,
            });
        let asks: Vec<_> = holders.collect();
        if asks.len() < leased.len() {
            return;
        }
        let prompts: Vec<Result<Box<PromptView>, _>> =
            self.work_all(Verb::WorkerPrompt, asks).await;
        let mut left = PROMPTS;
        for (leased, prompt) in leased.iter_mut().zip(prompts) {
            let Ok(prompt) = prompt else { continue };
            let system = prompt.system.as_ref().map_or(0, String::len);
            let size = prompt.prompt.len() + prompt.input.len() + system;
            leased.prompt = (size <= left).then_some(prompt);
            left = left.saturating_sub(size);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::engine::run::reply::Answer;

    /// Returns true if a ticket goes back to its queue when it is dropped with this answer unread.
    fn goes_back(answer: Option<Result<Answer, EngineError>>) -> bool {
        let (hub, (reply, answering)) = (QueueHub::default(), oneshot::channel());
        let handed = (Ticket { run: 1, step: 1, attempt: 1 }, Labels::default());
        let taken = Taken { hub: &hub, queue: "q", handed, answer: answering, goes_back: true };
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
        let handle = String::new();
        let lease = Lease { handle, scheduled_ms: 0, lease_ms: 0, trace: None };
        let gone = EngineError::NotFound { what: "run", id: String::new() };
        assert!(!goes_back(Some(Ok(Answer::Lease(lease)))));
        assert!(!goes_back(Some(Err(gone))));
        assert!(goes_back(Some(Err(EngineError::Stopping))));
        assert!(goes_back(None));
    }
}
