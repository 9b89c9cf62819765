//! Leases of the tasks in a queue, by pull workers.

use std::time::Duration;

use crate::{
    blueprint::Labels,
    engine::{
        Bearer, Caller, EngineError, Leased, PromptView,
        run::reply::Lease,
        shared::message::{ControlAsk, WorkerAsk},
        verbs::engine::TaskVerbs,
    },
    operator::{Handed, QueueHub, Ticket},
    protocol::{Code, TaskId},
    store::StoreError,
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

/// A ticket that was taken from its queue. It goes back unless its run has answered for it: the
/// run may be unreadable for a moment, or its caller gone while it is read. One that was leased
/// after all is refused to whoever takes it next.
struct Taken<'a> {
    hub: &'a QueueHub,
    queue: &'a str,
    handed: Handed,
    goes_back: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.goes_back {
            let (ticket, labels) = &self.handed;
            self.hub.offer(self.queue, *ticket, labels);
        }
    }
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
        let deadline = tokio::time::Instant::now() + wait;
        let mut leased = Vec::new();
        loop {
            let (hub, now_ms) = (&self.engine.shared().hub, self.engine.shared().clock.now_ms());
            hub.note_worker(queue, now_ms);
            hub.book().note(queue, worker, Some(labels), now_ms);
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            let taking = hub.take(queue, max.clamp(1, LEASES), left, labels);
            let stopping = self.engine.shared().tasks.stopping();
            let tickets = tokio::select! {
                taken = taking => taken.map_err(|error| EngineError::Busy {
                    code: Code::TooManyWorkers,
                    message: error.to_string(),
                    retry_after_s: 1,
                })?,
                () = stopping.cancelled() => return Ok(leased),
            };
            let nothing = tickets.is_empty();
            // Each waits for its commit; together they share one.
            let asked = tickets.into_iter().map(|handed| {
                let taken = Taken { hub, queue, handed, goes_back: true };
                self.take_lease(taken, worker)
            });
            let mut refused = None;
            for lease in futures::future::join_all(asked).await {
                match lease {
                    Ok(lease) => leased.push(lease),
                    Err(EngineError::Conflict { .. } | EngineError::NotFound { .. }) => {}
                    Err(error) => refused = Some(error),
                }
            }
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

    async fn take_lease(self, mut taken: Taken<'_>, worker: &str) -> Result<Leased, EngineError> {
        let (ticket, worker) = (taken.handed.0, worker.to_owned());
        let Ticket { step, attempt, .. } = ticket;
        let ask = ControlAsk::Lease { step, attempt, worker };
        let lease: Result<Lease, _> = self.engine.ask(ticket.run, ask).await;
        taken.goes_back = lease.as_ref().is_err_and(may_pass);
        let lease = lease?;
        Ok(Leased {
            task: TaskId::new(ticket.run, step, lease.scheduled_ms),
            handle: lease.handle,
            lease_ms: lease.lease_ms,
            trace: lease.trace,
            prompt: None,
        })
    }
}
