//! Queues of attempts that wait for a pull worker.
//!
//! In memory only: the open tasks of the store are authoritative, and a host offers them again when
//! it opens. Within a queue, runs take turns, and within a run the earlier step comes first;
//! waiting pollers are served in the order of their arrival. A task with labels goes to a poller
//! that has all of them; tasks with different labels take turns as well.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::WorkerBook;
use crate::{blueprint::Labels, protocol::Ticket};

/// The maximum number of pollers that wait on one queue.
const MAX_POLLERS: usize = 1_024;
/// The time for which a worker counts as there after its last request, in milliseconds.
const SERVED_MS: u64 = 15_000;

/// The error when too many pollers wait on a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_POLLERS} workers are already waiting for this queue")]
pub struct TooManyPollers;

/// The queues by name.
#[derive(Debug, Default)]
pub struct QueueHub {
    queues: Mutex<BTreeMap<String, Waiting>>,
    /// The time at which a worker of each queue was last active, in milliseconds.
    seen: Mutex<BTreeMap<String, u64>>,
    /// The workers, for people.
    book: WorkerBook,
}

/// Tasks of a queue that wait for workers with the same labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingLine {
    /// The labels that a worker needs.
    pub labels: Labels,
    /// The number of tasks.
    pub tasks: usize,
}

/// One queue: its tickets, and the pollers that wait. A ticket and a poller that match never both
/// wait for long.
#[derive(Debug, Default)]
struct Waiting {
    /// Lines by their required labels, in the order of their turns; none is empty.
    lines: VecDeque<(Labels, LabelQueue)>,
    pollers: VecDeque<Poller>,
    last_poller: u64,
}

/// Tickets that require the same labels.
#[derive(Debug, Default)]
struct LabelQueue {
    tickets: BTreeMap<u64, BTreeSet<Ticket>>,
    /// The runs that have tickets, each once, in the order of their turns.
    turns: VecDeque<u64>,
}

/// A poller that waits for a ticket.
#[derive(Debug)]
struct Poller {
    number: u64,
    labels: Labels,
    sender: oneshot::Sender<Handed>,
}

/// A ticket that is handed to a poller, with the labels of its line, in case it must go back.
pub type Handed = (Ticket, Labels);

impl QueueHub {
    /// Adds an attempt to a queue, or hands it to the poller that has waited longest. Offering an
    /// attempt that is already queued changes nothing.
    pub fn offer(&self, queue: &str, ticket: Ticket, labels: &Labels) {
        let mut queues = self.queues.lock();
        queues.entry(queue.to_owned()).or_default().offer(ticket, labels);
    }

    /// Removes an attempt that is over from a queue; returns true if it was there.
    pub fn remove(&self, queue: &str, ticket: Ticket) -> bool {
        let mut queues = self.queues.lock();
        let removed = queues.get_mut(queue).is_some_and(|waiting| waiting.remove(ticket));
        forget_if_idle(&mut queues, queue);
        removed
    }

    /// Records that a worker of a queue asks for work, or is at work.
    pub fn note_worker(&self, queue: &str, now_ms: u64) {
        let mut seen = self.seen.lock();
        if seen.insert(queue.to_owned(), now_ms).is_none() {
            seen.retain(|_, at| now_ms.saturating_sub(*at) < SERVED_MS);
        }
    }

    /// Returns true if a worker of a queue waits for a task with these labels, or was there a short
    /// time ago.
    pub fn is_served(&self, queue: &str, labels: &Labels, now_ms: u64) -> bool {
        let seen = self.seen.lock();
        if seen.get(queue).is_some_and(|at| now_ms.saturating_sub(*at) < SERVED_MS) {
            return true;
        }
        drop(seen);
        let queues = self.queues.lock();
        let mut pollers = queues.get(queue).into_iter().flat_map(|waiting| &waiting.pollers);
        pollers.any(|poller| labels.fit(&poller.labels) && !poller.sender.is_closed())
    }

    /// Returns the workers that were active in the last hour.
    pub fn book(&self) -> &WorkerBook {
        &self.book
    }

    /// Returns each queue with its lines, and the number of workers that wait on it.
    pub fn lines(&self) -> BTreeMap<String, (Vec<WaitingLine>, usize)> {
        let queues = self.queues.lock();
        let of = |waiting: &Waiting| {
            let lines = waiting.lines.iter().map(|(labels, line)| WaitingLine {
                labels: labels.clone(),
                tasks: line.tickets.values().map(BTreeSet::len).sum(),
            });
            let pollers = waiting.pollers.iter().filter(|it| !it.sender.is_closed()).count();
            (lines.collect(), pollers)
        };
        queues.iter().map(|(name, waiting)| (name.clone(), of(waiting))).collect()
    }

    /// Returns the number of attempts on a queue.
    pub fn len(&self, queue: &str) -> usize {
        let queues = self.queues.lock();
        let lines = queues.get(queue).into_iter().flat_map(|waiting| &waiting.lines);
        lines.flat_map(|(_, line)| line.tickets.values()).map(BTreeSet::len).sum()
    }

    /// Takes at most `max` attempts that match a worker's `labels`, waiting at most `wait` for the
    /// first; returns none on timeout. One that does not reach its worker must be offered again.
    ///
    /// # Errors
    /// Fails when too many pollers are waiting.
    ///
    /// # Cancel safety
    /// May be dropped at any time: a ticket that was handed to it goes back to the queue.
    pub async fn take(
        &self,
        queue: &str,
        max: usize,
        wait: Duration,
        labels: &Labels,
    ) -> Result<Vec<Handed>, TooManyPollers> {
        let mut poll = {
            let mut queues = self.queues.lock();
            let waiting = queues.entry(queue.to_owned()).or_default();
            let taken = waiting.take(max, labels);
            if !taken.is_empty() || max == 0 || wait.is_zero() {
                forget_if_idle(&mut queues, queue);
                return Ok(taken);
            }
            waiting.pollers.retain(|poller| !poller.sender.is_closed());
            if waiting.pollers.len() >= MAX_POLLERS {
                return Err(TooManyPollers);
            }
            waiting.last_poller += 1;
            let (sender, receiver) = oneshot::channel();
            let number = waiting.last_poller;
            waiting.pollers.push_back(Poller { number, labels: labels.clone(), sender });
            Poll { hub: self, queue, number, receiver }
        };
        let Ok(Ok(first)) = tokio::time::timeout(wait, &mut poll.receiver).await else {
            return Ok(poll.withdraw().into_iter().collect());
        };
        let mut taken = vec![first];
        let mut queues = self.queues.lock();
        if let Some(waiting) = queues.get_mut(queue) {
            taken.extend(waiting.take(max - 1, labels));
        }
        forget_if_idle(&mut queues, queue);
        drop(queues);
        Ok(taken)
    }
}

impl Waiting {
    fn offer(&mut self, ticket: Ticket, labels: &Labels) {
        let line = self.lines.iter_mut().find(|(of, _)| of == labels);
        if line.as_ref().is_some_and(|(_, line)| line.has(ticket)) {
            return;
        }
        let mut handed = (ticket, labels.clone());
        while let Some(at) = self.pollers.iter().position(|poller| labels.fit(&poller.labels)) {
            let Some(poller) = self.pollers.remove(at) else { break };
            match poller.sender.send(handed) {
                Ok(()) => return,
                Err(back) => handed = back,
            }
        }
        match line {
            Some((_, line)) => line.put(ticket),
            None => {
                let mut line = LabelQueue::default();
                line.put(ticket);
                self.lines.push_back((labels.clone(), line));
            }
        }
    }

    fn take(&mut self, max: usize, labels: &Labels) -> Vec<Handed> {
        let mut taken = Vec::new();
        while taken.len() < max {
            let Some(at) = self.lines.iter().position(|(asked, _)| asked.fit(labels)) else {
                break;
            };
            let Some((asked, mut line)) = self.lines.remove(at) else { break };
            taken.extend(line.take().map(|ticket| (ticket, asked.clone())));
            if !line.turns.is_empty() {
                self.lines.push_back((asked, line));
            }
        }
        taken
    }

    fn remove(&mut self, ticket: Ticket) -> bool {
        let removed = self.lines.iter_mut().any(|(_, line)| line.remove(ticket));
        self.lines.retain(|(_, line)| !line.turns.is_empty());
        removed
    }
}

impl LabelQueue {
    fn has(&self, ticket: Ticket) -> bool {
        self.tickets.get(&ticket.run).is_some_and(|run| run.contains(&ticket))
    }

    fn put(&mut self, ticket: Ticket) {
        let run = self.tickets.entry(ticket.run).or_default();
        if run.is_empty() {
            self.turns.push_back(ticket.run);
        }
        run.insert(ticket);
    }

    fn take(&mut self) -> Option<Ticket> {
        let run = self.turns.pop_front()?;
        let tickets = self.tickets.get_mut(&run)?;
        let taken = tickets.pop_first();
        if tickets.is_empty() {
            self.tickets.remove(&run);
        } else {
            self.turns.push_back(run);
        }
        taken
    }

    fn remove(&mut self, ticket: Ticket) -> bool {
        let Some(run) = self.tickets.get_mut(&ticket.run) else { return false };
        let removed = run.remove(&ticket);
        if run.is_empty() {
            self.tickets.remove(&ticket.run);
            self.turns.retain(|turn| *turn != ticket.run);
        }
        removed
    }
}

/// The place of a waiting poller; given up when dropped.
struct Poll<'a> {
    hub: &'a QueueHub,
    queue: &'a str,
    number: u64,
    receiver: oneshot::Receiver<Handed>,
}

impl Poll<'_> {
    /// Leaves the line; returns a ticket that was handed over in the meantime.
    fn withdraw(&mut self) -> Option<Handed> {
        let mut queues = self.hub.queues.lock();
        if let Some(waiting) = queues.get_mut(self.queue) {
            waiting.pollers.retain(|poller| poller.number != self.number);
        }
        forget_if_idle(&mut queues, self.queue);
        // Tickets are handed over under the lock, so nothing arrives after this.
        self.receiver.try_recv().ok()
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        if let Some((ticket, labels)) = self.withdraw() {
            self.hub.offer(self.queue, ticket, &labels);
        }
    }
}

fn forget_if_idle(queues: &mut BTreeMap<String, Waiting>, queue: &str) {
    let idle = |waiting: &Waiting| waiting.lines.is_empty() && waiting.pollers.is_empty();
    if queues.get(queue).is_some_and(idle) {
        queues.remove(queue);
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, sync::LazyLock};

    use futures::{FutureExt as _, poll};

    use super::*;

    static PLAIN: LazyLock<Labels> = LazyLock::new(Labels::default);

    const LONG: Duration = Duration::from_secs(60);

    fn ticket(run: u64, step: u32) -> Ticket {
        Ticket { run, step, attempt: 1 }
    }

    fn plain(run: u64, step: u32) -> Handed {
        (ticket(run, step), PLAIN.clone())
    }

    fn gpu() -> Labels {
        Labels::new([("gpu".to_owned(), "true".to_owned())].into()).unwrap()
    }

    async fn take(hub: &QueueHub, max: usize) -> Vec<(u64, u32)> {
        let taken = hub.take("q", max, Duration::ZERO, &PLAIN).await.unwrap();
        taken.into_iter().map(|(ticket, _)| (ticket.run, ticket.step)).collect()
    }

    #[tokio::test]
    async fn runs_take_turns_and_steps_keep_their_order() {
        let hub = QueueHub::default();
        for (run, step) in [(1, 2), (1, 1), (1, 3), (2, 9), (3, 1)] {
            hub.offer("q", ticket(run, step), &PLAIN);
        }
        assert_eq!(take(&hub, 4).await, [(1, 1), (2, 9), (3, 1), (1, 2)]);
        assert_eq!(take(&hub, 4).await, [(1, 3)]);
        assert_eq!(take(&hub, 4).await, []);
    }

    #[tokio::test]
    async fn pollers_are_served_in_the_order_in_which_they_came() {
        let hub = QueueHub::default();
        let mut first = pin!(hub.take("q", 5, LONG, &PLAIN));
        let mut second = pin!(hub.take("q", 5, LONG, &PLAIN));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        hub.offer("q", ticket(1, 1), &PLAIN);
        hub.offer("q", ticket(1, 2), &PLAIN);
        assert_eq!(second.await.unwrap(), [plain(1, 2)]);
        assert_eq!(first.await.unwrap(), [plain(1, 1)]);
    }

    #[tokio::test]
    async fn a_queue_is_served_while_a_worker_waits_and_a_while_after_it_was_there() {
        let hub = QueueHub::default();
        assert!(!hub.is_served("q", &PLAIN, 5));
        {
            let mut waits = pin!(hub.take("q", 1, LONG, &PLAIN));
            assert!(poll!(&mut waits).is_pending());
            assert!(hub.is_served("q", &PLAIN, 5));
            assert!(!hub.is_served("q", &gpu(), 5), "it has not the labels");
        }
        assert!(!hub.is_served("q", &PLAIN, 5));
        hub.note_worker("q", 5);
        assert!(hub.is_served("q", &PLAIN, 5 + SERVED_MS - 1));
        assert!(!hub.is_served("q", &PLAIN, 5 + SERVED_MS));
        assert!(!hub.is_served("other", &PLAIN, 5));
        hub.note_worker("other", 5 + SERVED_MS);
        assert_eq!(hub.seen.lock().len(), 1, "what is long past is forgotten");
    }

    #[tokio::test]
    async fn a_poller_that_went_away_loses_nothing() {
        let hub = QueueHub::default();
        {
            let mut gone = pin!(hub.take("q", 1, LONG, &PLAIN));
            assert!(poll!(&mut gone).is_pending());
            hub.offer("q", ticket(1, 1), &PLAIN);
            assert_eq!(hub.len("q"), 0);
        }
        assert_eq!(take(&hub, 1).await, [(1, 1)]);
    }

    #[tokio::test]
    async fn what_is_over_is_not_handed_out() {
        let hub = QueueHub::default();
        hub.offer("q", ticket(1, 1), &PLAIN);
        hub.offer("q", ticket(1, 1), &PLAIN);
        hub.offer("q", ticket(2, 1), &PLAIN);
        assert_eq!(hub.len("q"), 2);
        assert!(hub.remove("q", ticket(1, 1)));
        assert!(!hub.remove("q", ticket(1, 1)));
        assert_eq!(take(&hub, 5).await, [(2, 1)]);
        assert!(hub.queues.lock().is_empty(), "an idle queue is forgotten");
    }

    #[tokio::test]
    async fn queues_do_not_mix_and_a_wait_ends() {
        let hub = QueueHub::default();
        hub.offer("other", ticket(1, 1), &PLAIN);
        let taken = hub.take("q", 1, Duration::from_millis(1), &PLAIN).await.unwrap();
        assert_eq!(taken, []);
        assert_eq!(hub.len("other"), 1);
    }

    #[tokio::test]
    async fn too_many_pollers_are_refused() {
        let hub = QueueHub::default();
        let mut polls: Vec<_> =
            (0..MAX_POLLERS).map(|_| Box::pin(hub.take("q", 1, LONG, &PLAIN))).collect();
        for poll in &mut polls {
            assert!(poll.now_or_never().is_none());
        }
        assert_eq!(hub.take("q", 1, LONG, &PLAIN).await, Err(TooManyPollers));
        polls.pop();
        let mut late = pin!(hub.take("q", 1, LONG, &PLAIN));
        assert!(poll!(&mut late).is_pending());
    }

    #[tokio::test]
    async fn a_task_with_labels_goes_to_a_worker_that_has_them() {
        let hub = QueueHub::default();
        let mut without = pin!(hub.take("q", 5, LONG, &PLAIN));
        assert!(poll!(&mut without).is_pending());
        let labels = gpu();
        hub.offer("q", ticket(1, 1), &labels);
        assert_eq!(hub.len("q"), 1, "the poller without labels is passed over");
        let taken = hub.take("q", 5, Duration::ZERO, &labels).await.unwrap();
        assert_eq!(taken, [(ticket(1, 1), labels)]);
        hub.offer("q", ticket(2, 1), &PLAIN);
        assert_eq!(without.await.unwrap(), [plain(2, 1)]);
    }

    #[tokio::test]
    async fn a_worker_with_labels_takes_from_every_line_in_turn() {
        let hub = QueueHub::default();
        let labels = gpu();
        for step in 1..=3 {
            hub.offer("q", ticket(1, step), &labels);
            hub.offer("q", ticket(2, step), &PLAIN);
        }
        let taken = hub.take("q", 4, Duration::ZERO, &labels).await.unwrap();
        let with = |step| (ticket(1, step), labels.clone());
        assert_eq!(taken, [with(1), plain(2, 1), with(2), plain(2, 2)]);
        assert_eq!(take(&hub, 5).await, [(2, 3)]);
        assert!(hub.remove("q", ticket(1, 3)));
        assert!(hub.queues.lock().is_empty());
    }

    #[tokio::test]
    async fn what_a_gone_poller_was_handed_keeps_its_labels() {
        let hub = QueueHub::default();
        let labels = gpu();
        {
            let mut gone = pin!(hub.take("q", 1, LONG, &labels));
            assert!(poll!(&mut gone).is_pending());
            hub.offer("q", ticket(1, 1), &labels);
        }
        assert_eq!(take(&hub, 1).await, []);
        let taken = hub.take("q", 1, Duration::ZERO, &labels).await.unwrap();
        assert_eq!(taken, [(ticket(1, 1), labels)]);
    }
}
