//! Queues of attempts that wait for a pull worker.
//!
//! In memory only: the open tasks of the store are authoritative, and a host offers them again when
//! it opens. Within a queue, runs take turns, and within a run the earlier step comes first;
//! waiting pollers are served in the order of their arrival, but for those that report results and
//! are answered soon anyway. A task with labels goes to a poller
//! that has all of them; tasks with different labels take turns as well.
//!
//! A task that is about to be scheduled need not be offered if a poller waits for it: its run
//! claims the poller, and the commit that schedules the task leases it as well. If that commit
//! fails, it was never the poller's, and the poller waits on.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{DurableLease, WorkerBook, label_queue::LabelQueue};
use crate::{blueprint::Labels, clock::Clock, protocol::Ticket};

/// The maximum number of pollers that wait on one queue.
const MAX_POLLERS: usize = 1_024;
/// The time for which a worker counts as there after its last request, in milliseconds.
const SERVED_MS: u64 = 15_000;
/// The time for which a poller that has a lease waits for others, in milliseconds: their commits may
/// be held up, and the lease runs.
const LINGER_MS: u64 = 50;
/// The time for which a run that waits in a line may be overtaken by the next steps of others, in
/// milliseconds.
const OVERTAKEN_MS: u64 = 20;
/// The place of the pollers that are claimed no more, behind all others.
const FULL: usize = usize::MAX;

/// The error when too many pollers wait on a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_POLLERS} workers are already waiting for this queue")]
pub struct TooManyPollers;

/// The queues by name.
#[derive(Debug, Default)]
pub struct QueueHub {
    queues: Mutex<BTreeMap<String, Waiting>>,
    /// The number of pollers that wait on any queue.
    polling: AtomicUsize,
    /// The number of pollers that ever waited.
    arrivals: AtomicU64,
    /// The last time of the steady clock that somebody came with, in milliseconds. What is offered
    /// counts as offered then.
    now_ms: AtomicU64,
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

/// One queue: its tickets, and the pollers that wait. A ticket and a poller without claims that
/// match never both wait for long.
#[derive(Debug, Default)]
struct Waiting {
    /// Lines by their required labels, in the order of their turns; none is empty.
    lines: VecDeque<(Labels, LabelQueue)>,
    /// The baskets, each at its [`Place`].
    pollers: BTreeMap<Place, Arc<Basket>>,
    /// The number of those that gather.
    gathering: usize,
}

/// The place of a poller: the number of claims on it or [`FULL`], false if it gathers, and its
/// arrival. One that gathers is answered soon anyway, and another can wait on.
type Place = (usize, bool, u64);

/// The request of a worker for attempts of a queue.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The queue.
    pub queue: &'a str,
    /// The worker's name, for people.
    pub worker: &'a str,
    /// The labels of the worker.
    pub labels: &'a Labels,
    /// The maximum number of attempts.
    pub max: usize,
}

/// The attempts that a worker receives; none if its wait is over.
#[derive(Debug, Default)]
pub struct Received {
    /// These are leased already.
    pub leased: Vec<DurableLease>,
    /// These were offered, and are still to be leased.
    pub offered: Vec<Handed>,
}

/// A place in the basket of a waiting poller, for an attempt whose commit is still to come. One
/// that is dropped counts as a commit that failed.
#[derive(Debug)]
pub struct Claim {
    basket: Arc<Basket>,
    is_settled: bool,
}

/// A poller that waits, and what it receives: an offered ticket, or the leases that it was claimed
/// for.
///
/// A poller can be claimed while it has room, until the first of its claims is durable. Then it
/// waits a moment for the commits of the others, so that one request answers all of them. One that
/// gathers has no tickets, and is claimed until its poller looks.
#[derive(Debug)]
struct Basket {
    number: u64,
    worker: String,
    labels: Labels,
    max: usize,
    /// True if it takes claims until its poller looks, also when the first is durable.
    gathers: bool,
    /// Locked after the queues.
    contents: Mutex<Contents>,
    /// Notified when there is something to look at.
    filled: Notify,
}

#[derive(Debug, Default)]
struct Contents {
    /// The number of claims under which it stands among the pollers of its queue.
    place: usize,
    handed: Option<Handed>,
    leased: Vec<DurableLease>,
    /// The number of claims whose commits are not known yet.
    out: usize,
    /// True if it takes no more claims.
    is_closed: bool,
    /// True if its poller was answered, or went away.
    is_gone: bool,
}

/// A ticket that is handed to a poller, with the labels of its line, in case it must go back.
pub type Handed = (Ticket, Labels);

impl QueueHub {
    /// Adds an attempt to a queue, or hands it to the poller that has waited longest. Offering an
    /// attempt that is already queued changes nothing.
    pub fn offer(&self, queue: &str, ticket: Ticket, labels: &Labels) {
        let mut queues = self.queues.lock();
        waiting(&mut queues, queue).offer(ticket, labels, self.now_ms());
    }

    /// Returns true if a poller waits on any queue. Takes no lock.
    pub fn has_pollers(&self) -> bool {
        self.polling.load(Ordering::Relaxed) > 0
    }

    /// Claims a poller for an attempt that is about to be scheduled: of those with the fewest claims
    /// one that [stands](Self::stand), or else the one that has waited longest. Returns `None` if
    /// none with room waits for it: then it is offered after its commit.
    pub fn claim(&self, queue: &str, labels: &Labels, now_ms: u64) -> Option<Claim> {
        self.now_ms.store(now_ms, Ordering::Relaxed);
        let basket = self.queues.lock().get_mut(queue)?.claim(labels, now_ms)?;
        Some(Claim { basket, is_settled: false })
    }

    /// Removes an attempt that is over from a queue; returns true if it was there.
    pub fn remove(&self, queue: &str, ticket: Ticket) -> bool {
        let mut queues = self.queues.lock();
        let removed = queues.get_mut(queue).is_some_and(|waiting| waiting.remove(ticket));
        if removed {
            forget_if_idle(&mut queues, queue);
        }
        removed
    }

    /// Records that a worker of a queue asks for work, or is at work.
    pub fn note_worker(&self, queue: &str, now_ms: u64) {
        let mut seen = self.seen.lock();
        if let Some(at) = seen.get_mut(queue) {
            *at = now_ms;
            return;
        }
        seen.retain(|_, at| now_ms.saturating_sub(*at) < SERVED_MS);
        seen.insert(queue.to_owned(), now_ms);
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
        let mut pollers = queues.get(queue).into_iter().flat_map(|it| it.pollers.values());
        pollers.any(|basket| labels.fit(&basket.labels))
    }

    /// Returns the workers that were active in the last hour.
    pub fn book(&self) -> &WorkerBook {
        &self.book
    }

    /// Returns each queue with its lines, and the number of workers that wait on it.
    pub fn lines(&self) -> BTreeMap<String, (Vec<WaitingLine>, usize)> {
        let queues = self.queues.lock();
        let of = |waiting: &Waiting| {
            let lines = waiting
                .lines
                .iter()
                .map(|(labels, line)| WaitingLine { labels: labels.clone(), tasks: line.len() });
            (lines.collect(), waiting.pollers.len())
        };
        let used = queues.iter().filter(|(_, waiting)| !waiting.is_idle());
        used.map(|(name, waiting)| (name.clone(), of(waiting))).collect()
    }

    /// Returns the number of attempts on a queue.
    pub fn len(&self, queue: &str) -> usize {
        let queues = self.queues.lock();
        let lines = queues.get(queue).into_iter().flat_map(|waiting| &waiting.lines);
        lines.map(|(_, line)| line.len()).sum()
    }

    /// Takes the attempts that match a worker and are there now. One that does not reach its worker
    /// must be offered again.
    pub fn take_now(&self, wanted: Wanted<'_>) -> Vec<Handed> {
        let mut queues = self.queues.lock();
        let Some(waiting) = queues.get_mut(wanted.queue) else { return Vec::new() };
        let taken = waiting.take(wanted.max, wanted.labels, self.now_ms(), 0);
        forget_if_idle(&mut queues, wanted.queue);
        taken
    }

    /// Takes the attempts that match a worker, and waits for the first until `until` is over. A
    /// claim that is out by then is waited for: its commit decides. Those that were offered must be
    /// offered again if they do not reach their worker.
    ///
    /// # Errors
    /// Fails when too many pollers are waiting.
    ///
    /// # Cancel safety
    /// May be dropped at any time: a ticket that was handed to it goes back to the queue, and a lease
    /// that it was claimed for to its run.
    pub async fn take(
        &self,
        wanted: Wanted<'_>,
        clock: &Clock,
        until: impl Future<Output = ()>,
    ) -> Result<Received, TooManyPollers> {
        let poll = {
            let mut queues = self.queues.lock();
            let waiting = waiting(&mut queues, wanted.queue);
            let offered = waiting.take(wanted.max, wanted.labels, self.now_ms(), 0);
            if !offered.is_empty() || wanted.max == 0 {
                forget_if_idle(&mut queues, wanted.queue);
                return Ok(Received { offered, ..Received::default() });
            }
            if waiting.pollers.len() - waiting.gathering >= MAX_POLLERS {
                return Err(TooManyPollers);
            }
            self.poll(waiting, wanted, false)
        };
        Ok(poll.receive(clock, until).await)
    }

    /// Takes the attempts that match a worker and have waited for a moment, and stands in the queue
    /// for the rest: it is claimed for attempts up to its maximum until it
    /// [gathers](QueuePoll::gather). The attempts that were there must be offered again if they do
    /// not reach their worker.
    pub fn stand<'a>(
        &'a self,
        wanted: Wanted<'a>,
        now_ms: u64,
    ) -> (Vec<Handed>, Option<QueuePoll<'a>>) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
        let mut queues = self.queues.lock();
        let waiting = waiting(&mut queues, wanted.queue);
        // A younger one would put the next step of the caller's own flow in its place, and that the
        // next one: each would be offered first, and leased by a commit of its own.
        let offered = waiting.take(wanted.max, wanted.labels, now_ms, OVERTAKEN_MS);
        let rest = Wanted { max: wanted.max - offered.len(), ..wanted };
        let poll = (rest.max > 0).then(|| self.poll(waiting, rest, true));
        forget_if_idle(&mut queues, wanted.queue);
        (offered, poll)
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    fn poll<'a>(
        &'a self,
        waiting: &mut Waiting,
        wanted: Wanted<'a>,
        gathers: bool,
    ) -> QueuePoll<'a> {
        let basket = Arc::new(Basket {
            number: self.arrivals.fetch_add(1, Ordering::Relaxed),
            worker: wanted.worker.to_owned(),
            labels: wanted.labels.clone(),
            max: wanted.max,
            gathers,
            contents: Mutex::default(),
            filled: Notify::new(),
        });
        waiting.stand(&basket, &mut basket.contents.lock(), 0);
        waiting.gathering += usize::from(gathers);
        self.polling.fetch_add(1, Ordering::Relaxed);
        QueuePoll { hub: self, queue: wanted.queue, basket }
    }
}

impl Waiting {
    fn offer(&mut self, ticket: Ticket, labels: &Labels, now_ms: u64) {
        let line = self.lines.iter_mut().find(|(of, _)| of == labels);
        if line.as_ref().is_some_and(|(_, line)| line.has(ticket)) {
            return;
        }
        // One that gathers takes from the lines in the end: another may come before that.
        let mut free = self.pollers.range((0, true, 0)..(1, false, 0));
        let free = free.find(|(_, basket)| labels.fit(&basket.labels));
        if let Some(basket) = free.map(|(_, basket)| Arc::clone(basket)) {
            let mut contents = basket.contents.lock();
            contents.handed = Some((ticket, labels.clone()));
            self.stand(&basket, &mut contents, FULL);
            basket.filled.notify_one();
            return;
        }
        match line {
            Some((_, line)) => line.put(ticket, now_ms),
            None => {
                let mut line = LabelQueue::default();
                line.put(ticket, now_ms);
                self.lines.push_back((labels.clone(), line));
            }
        }
    }

    /// Finds the basket for a task: of the fewest claims, so that a fan-out is spread over the
    /// pollers. What waits in a line for a poller is not overtaken, but for a moment by what one that
    /// gathers brings about.
    fn claim(&mut self, labels: &Labels, now_ms: u64) -> Option<Arc<Basket>> {
        loop {
            let awaits = |basket: &Basket| {
                labels.fit(&basket.labels)
                    && !self.lines.iter().any(|(asked, line)| {
                        asked.fit(&basket.labels)
                            && (!basket.gathers || line.waits_for(OVERTAKEN_MS, now_ms))
                    })
            };
            let mut open = self.pollers.range(..(FULL, false, 0));
            let basket = Arc::clone(open.find(|(_, basket)| awaits(basket))?.1);
            let mut contents = basket.contents.lock();
            let (is_closed, claims) = (contents.is_closed, contents.place + 1);
            let is_full = is_closed || claims >= basket.max;
            self.stand(&basket, &mut contents, if is_full { FULL } else { claims });
            if !is_closed {
                contents.out += 1;
                drop(contents);
                return Some(basket);
            }
        }
    }

    /// Puts a poller where those with so many claims stand, in the order of their arrival.
    fn stand(&mut self, basket: &Arc<Basket>, contents: &mut Contents, claims: usize) {
        self.pollers.remove(&basket.place(contents.place));
        contents.place = claims;
        self.pollers.insert(basket.place(claims), Arc::clone(basket));
    }

    /// Removes a poller that was answered or went away.
    fn leave(&mut self, basket: &Basket, contents: &mut Contents) {
        contents.is_gone = true;
        self.gathering -= usize::from(basket.gathers);
        self.pollers.remove(&basket.place(contents.place));
    }

    /// Takes what has waited for at least so long.
    fn take(&mut self, max: usize, labels: &Labels, now_ms: u64, waited_ms: u64) -> Vec<Handed> {
        let mut taken = Vec::new();
        while taken.len() < max {
            let fits = |(asked, line): &(Labels, LabelQueue)| {
                asked.fit(labels) && line.waits_for(waited_ms, now_ms)
            };
            let Some(at) = self.lines.iter().position(fits) else { break };
            let Some((asked, mut line)) = self.lines.remove(at) else { break };
            taken.extend(line.take(now_ms).map(|ticket| (ticket, asked.clone())));
            if !line.is_empty() {
                self.lines.push_back((asked, line));
            }
        }
        taken
    }

    fn remove(&mut self, ticket: Ticket) -> bool {
        let removed = self.lines.iter_mut().any(|(_, line)| line.remove(ticket));
        self.lines.retain(|(_, line)| !line.is_empty());
        removed
    }

    fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.pollers.is_empty()
    }
}

impl Claim {
    /// Returns the name of the worker.
    pub fn worker(&self) -> &str {
        &self.basket.worker
    }

    /// Gives the worker its lease, once that is durable.
    pub fn fill(mut self, lease: DurableLease) {
        self.is_settled = true;
        self.basket.settle(Some(lease));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_settled {
            self.basket.settle(None);
        }
    }
}

impl Basket {
    fn place(&self, claims: usize) -> Place {
        (claims, !self.gathers, self.number)
    }

    /// Takes the end of a claim: its lease, or nothing if its commit failed. A lease that nobody
    /// waits for any more is dropped, and goes back.
    fn settle(&self, lease: Option<DurableLease>) {
        let mut contents = self.contents.lock();
        contents.out -= 1;
        if contents.is_gone {
            drop(contents);
            return;
        }
        let is_first = lease.is_some() && contents.leased.is_empty();
        contents.is_closed |= lease.is_some() && !self.gathers;
        contents.leased.extend(lease);
        if is_first || contents.out == 0 {
            self.filled.notify_one();
        }
    }
}

/// A waiting poller. One that is dropped gives up its place: what it was handed goes back to the
/// queue, and the leases that it was claimed for to their runs.
#[derive(Debug)]
pub struct QueuePoll<'a> {
    hub: &'a QueueHub,
    queue: &'a str,
    basket: Arc<Basket>,
}

impl QueuePoll<'_> {
    /// Waits for the first attempt until `until` is over, and a moment for those that come with it.
    /// A claim that is out by then is waited for.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn receive(mut self, clock: &Clock, until: impl Future<Output = ()>) -> Received {
        let mut until = pin!(until);
        let (mut is_over, mut late_ms) = (false, u64::MAX);
        loop {
            tokio::select! {
                biased;
                () = self.basket.filled.notified() => {}
                () = &mut until, if !is_over => is_over = true,
                () = clock.sleep_until_either(u64::MAX, late_ms), if late_ms < u64::MAX => {}
            }
            let now_ms = clock.steady_ms();
            if let Some(received) = self.look(is_over, now_ms >= late_ms) {
                return received;
            }
            if late_ms == u64::MAX && !self.basket.contents.lock().leased.is_empty() {
                late_ms = now_ms.saturating_add(LINGER_MS);
            }
        }
    }

    /// Waits for the claims that are out, but not for longer than that. Takes also what waits in the
    /// lines, if there is room.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn gather(mut self, clock: &Clock, within_ms: u64) -> Received {
        let late_ms = clock.steady_ms().saturating_add(within_ms);
        loop {
            if let Some(received) = self.look(true, false) {
                return received;
            }
            tokio::select! {
                biased;
                () = self.basket.filled.notified() => {}
                () = clock.sleep_until_either(u64::MAX, late_ms) => {
                    return self.look(true, true).unwrap_or_default();
                }
            }
        }
    }

    /// Returns what came, if nothing more is on its way or that takes too long; at the end of the
    /// wait also nothing.
    fn look(&mut self, is_over: bool, is_late: bool) -> Option<Received> {
        let mut queues = self.hub.queues.lock();
        let mut contents = self.basket.contents.lock();
        contents.is_closed |= is_over;
        if contents.out > 0 && (contents.leased.is_empty() || !is_late) {
            return None;
        }
        let waiting = waiting(&mut queues, self.queue);
        let leased = std::mem::take(&mut contents.leased);
        let mut offered: Vec<Handed> = contents.handed.take().into_iter().collect();
        if leased.is_empty() || self.basket.gathers {
            // What came while it had claims waits in a line; with a lease, until its next request,
            // unless that is the one that gathers.
            let room = self.basket.max - leased.len() - offered.len();
            offered.extend(waiting.take(room, &self.basket.labels, self.hub.now_ms(), 0));
        }
        if leased.is_empty() && offered.is_empty() && !is_over {
            // None of its claims held: it stands where it stood before.
            waiting.stand(&self.basket, &mut contents, 0);
            return None;
        }
        waiting.leave(&self.basket, &mut contents);
        drop(contents);
        forget_if_idle(&mut queues, self.queue);
        Some(Received { leased, offered })
    }
}

impl Drop for QueuePoll<'_> {
    fn drop(&mut self) {
        self.hub.polling.fetch_sub(1, Ordering::Relaxed);
        if self.basket.contents.lock().is_gone {
            return;
        }
        let mut queues = self.hub.queues.lock();
        let mut contents = self.basket.contents.lock();
        let waiting = waiting(&mut queues, self.queue);
        waiting.leave(&self.basket, &mut contents);
        // Nothing is put into it after this.
        let (handed, leased) = (contents.handed.take(), std::mem::take(&mut contents.leased));
        drop(contents);
        if let Some((ticket, labels)) = handed {
            waiting.offer(ticket, &labels, self.hub.now_ms());
        }
        forget_if_idle(&mut queues, self.queue);
        drop(queues);
        // These go back to their runs.
        drop(leased);
    }
}

/// Returns a queue. One that is new takes the place of those that nobody uses.
fn waiting<'a>(queues: &'a mut BTreeMap<String, Waiting>, queue: &str) -> &'a mut Waiting {
    if !queues.contains_key(queue) {
        queues.retain(|_, waiting| !waiting.is_idle());
        queues.insert(queue.to_owned(), Waiting::default());
    }
    queues.get_mut(queue).expect("it is there")
}

fn forget_if_idle(queues: &mut BTreeMap<String, Waiting>, queue: &str) {
    if queues.get(queue).is_some_and(Waiting::is_idle) {
        queues.remove(queue);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        sync::LazyLock,
        time::Duration,
    };

    use futures::{FutureExt as _, poll};

    use super::*;
    use crate::{
        operator::{LeaseReturn, TaskLease},
        protocol::TaskId,
    };

    /// A time at which tickets that were offered at the start are older than [`OVERTAKEN_MS`].
    const NOW_MS: u64 = 1_000;

    static CLOCK: LazyLock<Clock> = LazyLock::new(|| Clock::manual(0));
    static PLAIN: LazyLock<Labels> = LazyLock::new(Labels::default);

    fn ticket(run: u64, step: u32) -> Ticket {
        Ticket { run, step, attempt: 1 }
    }

    fn plain(run: u64, step: u32) -> Handed {
        (ticket(run, step), PLAIN.clone())
    }

    fn gpu() -> Labels {
        Labels::new([("gpu".to_owned(), "true".to_owned())].into()).unwrap()
    }

    fn wanted(max: usize, labels: &Labels) -> Wanted<'_> {
        Wanted { queue: "q", worker: "w", labels, max }
    }

    fn take(hub: &QueueHub, max: usize) -> Vec<(u64, u32)> {
        let taken = hub.take_now(wanted(max, &PLAIN));
        taken.into_iter().map(|(ticket, _)| (ticket.run, ticket.step)).collect()
    }

    /// Waits for as long as it takes.
    async fn wait(hub: &QueueHub, max: usize, labels: &Labels) -> Received {
        hub.take(wanted(max, labels), &CLOCK, pending()).await.unwrap()
    }

    /// The steps whose leases went back.
    #[derive(Default)]
    struct Returned(Mutex<Vec<u32>>);

    impl LeaseReturn for Returned {
        fn give_back(&self, attempt: Ticket) {
            self.0.lock().push(attempt.step);
        }
    }

    impl Returned {
        fn lease(self: &Arc<Self>, step: u32) -> DurableLease {
            let (task, handle) = (TaskId::new(1, step, 0), format!("wh_{step}"));
            let lease = TaskLease { task, attempt: 1, handle, lease_ms: 1, trace: None };
            DurableLease::new(Box::new(lease), Arc::clone(self) as Arc<dyn LeaseReturn>)
        }
    }

    fn lease(step: u32) -> DurableLease {
        Arc::<Returned>::default().lease(step)
    }

    /// Delivers the leases; returns their steps, and what was offered.
    fn delivered(received: Received) -> (Vec<u32>, Vec<Handed>) {
        let leased = received.leased.into_iter().map(|lease| lease.deliver().task.step());
        (leased.collect(), received.offered)
    }

    fn claim(hub: &QueueHub) -> Option<Claim> {
        hub.claim("q", &PLAIN, 0)
    }

    #[test]
    fn runs_take_turns_and_steps_keep_their_order() {
        let hub = QueueHub::default();
        for (run, step) in [(1, 2), (1, 1), (1, 3), (2, 9), (3, 1)] {
            hub.offer("q", ticket(run, step), &PLAIN);
        }
        assert_eq!(take(&hub, 4), [(1, 1), (2, 9), (3, 1), (1, 2)]);
        assert_eq!(take(&hub, 4), [(1, 3)]);
        assert_eq!(take(&hub, 4), []);
    }

    #[tokio::test]
    async fn pollers_are_served_in_the_order_in_which_they_came() {
        let hub = QueueHub::default();
        let mut first = pin!(wait(&hub, 5, &PLAIN));
        let mut second = pin!(wait(&hub, 5, &PLAIN));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        hub.offer("q", ticket(1, 1), &PLAIN);
        hub.offer("q", ticket(1, 2), &PLAIN);
        assert_eq!(second.await.offered, [plain(1, 2)]);
        assert_eq!(first.await.offered, [plain(1, 1)]);
    }

    #[tokio::test]
    async fn a_queue_is_served_while_a_worker_waits_and_a_while_after_it_was_there() {
        let hub = QueueHub::default();
        assert!(!hub.is_served("q", &PLAIN, 5));
        {
            let mut waits = pin!(wait(&hub, 1, &PLAIN));
            assert!(poll!(&mut waits).is_pending());
            assert!(hub.is_served("q", &PLAIN, 5));
            assert!(!hub.is_served("q", &gpu(), 5), "it has not the labels");
            let _out = claim(&hub).unwrap();
            assert!(hub.is_served("q", &PLAIN, 5), "it waits for its claim");
            assert_eq!(hub.lines()["q"].1, 1);
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
            let mut gone = pin!(wait(&hub, 1, &PLAIN));
            assert!(poll!(&mut gone).is_pending());
            hub.offer("q", ticket(1, 1), &PLAIN);
            assert_eq!(hub.len("q"), 0);
        }
        assert_eq!(take(&hub, 1), [(1, 1)]);
        assert!(!hub.has_pollers());
    }

    #[test]
    fn what_is_over_is_not_handed_out() {
        let hub = QueueHub::default();
        hub.offer("q", ticket(1, 1), &PLAIN);
        hub.offer("q", ticket(1, 1), &PLAIN);
        hub.offer("q", ticket(2, 1), &PLAIN);
        assert_eq!(hub.len("q"), 2);
        assert!(hub.remove("q", ticket(1, 1)));
        assert!(!hub.remove("q", ticket(1, 1)));
        assert_eq!(take(&hub, 5), [(2, 1)]);
        assert!(hub.queues.lock().is_empty(), "an idle queue is forgotten");
    }

    #[tokio::test]
    async fn queues_do_not_mix_and_a_wait_ends() {
        let hub = QueueHub::default();
        hub.offer("other", ticket(1, 1), &PLAIN);
        let taken = hub.take(wanted(1, &PLAIN), &CLOCK, ready(())).await.unwrap();
        assert_eq!(delivered(taken), (vec![], vec![]));
        assert_eq!(hub.len("other"), 1);
    }

    #[tokio::test]
    async fn too_many_pollers_are_refused() {
        let hub = QueueHub::default();
        let mut polls: Vec<_> = (0..MAX_POLLERS).map(|_| Box::pin(wait(&hub, 1, &PLAIN))).collect();
        for poll in &mut polls {
            assert!(poll.now_or_never().is_none());
        }
        let _out = claim(&hub).unwrap();
        let refused = hub.take(wanted(1, &PLAIN), &CLOCK, pending()).await.unwrap_err();
        assert_eq!(refused, TooManyPollers);
        polls.pop();
        let mut late = pin!(wait(&hub, 1, &PLAIN));
        assert!(poll!(&mut late).is_pending());
    }

    #[tokio::test]
    async fn a_task_with_labels_goes_to_a_worker_that_has_them() {
        let hub = QueueHub::default();
        let mut without = pin!(wait(&hub, 5, &PLAIN));
        assert!(poll!(&mut without).is_pending());
        let labels = gpu();
        assert!(hub.claim("q", &labels, 0).is_none());
        hub.offer("q", ticket(1, 1), &labels);
        assert_eq!(hub.len("q"), 1, "the poller without labels is passed over");
        let taken = hub.take_now(wanted(5, &labels));
        assert_eq!(taken, [(ticket(1, 1), labels)]);
        hub.offer("q", ticket(2, 1), &PLAIN);
        assert_eq!(without.await.offered, [plain(2, 1)]);
    }

    #[test]
    fn a_worker_with_labels_takes_from_every_line_in_turn() {
        let hub = QueueHub::default();
        let labels = gpu();
        for step in 1..=3 {
            hub.offer("q", ticket(1, step), &labels);
            hub.offer("q", ticket(2, step), &PLAIN);
        }
        let taken = hub.take_now(wanted(4, &labels));
        let with = |step| (ticket(1, step), labels.clone());
        assert_eq!(taken, [with(1), plain(2, 1), with(2), plain(2, 2)]);
        assert_eq!(take(&hub, 5), [(2, 3)]);
        assert!(hub.remove("q", ticket(1, 3)));
        assert!(hub.queues.lock().is_empty());
    }

    #[tokio::test]
    async fn what_a_gone_poller_was_handed_keeps_its_labels() {
        let hub = QueueHub::default();
        let labels = gpu();
        {
            let mut gone = pin!(wait(&hub, 1, &labels));
            assert!(poll!(&mut gone).is_pending());
            hub.offer("q", ticket(1, 1), &labels);
        }
        assert_eq!(take(&hub, 1), []);
        let taken = hub.take_now(wanted(1, &labels));
        assert_eq!(taken, [(ticket(1, 1), labels)]);
    }

    #[tokio::test]
    async fn a_claimed_poller_waits_for_all_its_claims_and_takes_no_more_after_the_first() {
        let hub = QueueHub::default();
        assert!(claim(&hub).is_none(), "nobody waits");
        let mut waits = pin!(wait(&hub, 5, &PLAIN));
        assert!(poll!(&mut waits).is_pending());
        let [one, two, three] = [1, 2, 3].map(|_| claim(&hub).unwrap());
        assert_eq!(one.worker(), "w");
        one.fill(lease(1));
        assert!(claim(&hub).is_none(), "it is on its way to the worker");
        assert!(poll!(&mut waits).is_pending(), "two are out");
        drop(two);
        three.fill(lease(3));
        assert_eq!(delivered(waits.await), (vec![1, 3], vec![]));
    }

    #[tokio::test]
    async fn claims_are_spread_over_the_pollers_and_none_gets_more_than_it_asked_for() {
        let hub = QueueHub::default();
        let mut small = pin!(wait(&hub, 1, &PLAIN));
        let mut large = pin!(wait(&hub, 2, &PLAIN));
        assert!(poll!(&mut small).is_pending() && poll!(&mut large).is_pending());
        let [one, two, three] = [1, 2, 3].map(|_| claim(&hub).unwrap());
        assert!(claim(&hub).is_none());
        one.fill(lease(1));
        two.fill(lease(2));
        three.fill(lease(3));
        assert_eq!(delivered(small.await), (vec![1], vec![]));
        assert_eq!(delivered(large.await), (vec![2, 3], vec![]));
    }

    #[tokio::test]
    async fn a_poller_whose_claims_fail_waits_on_in_its_place() {
        let hub = QueueHub::default();
        let mut first = pin!(wait(&hub, 1, &PLAIN));
        let mut second = pin!(wait(&hub, 1, &PLAIN));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        drop(claim(&hub).unwrap());
        assert!(poll!(&mut first).is_pending());
        hub.offer("q", ticket(1, 1), &PLAIN);
        assert_eq!(first.await.offered, [plain(1, 1)]);
        assert!(poll!(&mut second).is_pending());
    }

    #[tokio::test]
    async fn what_is_offered_while_a_claim_is_out_is_not_overtaken_and_taken_if_that_fails() {
        let hub = QueueHub::default();
        for holds in [true, false] {
            let mut waits = pin!(wait(&hub, 3, &PLAIN));
            assert!(poll!(&mut waits).is_pending());
            let out = claim(&hub).unwrap();
            for step in 2..=4 {
                hub.offer("q", ticket(1, step), &PLAIN);
            }
            assert!(claim(&hub).is_none(), "one waits already");
            let expected = match holds {
                true => {
                    out.fill(lease(1));
                    (vec![1], vec![])
                }
                false => {
                    drop(out);
                    (vec![], vec![plain(1, 2), plain(1, 3), plain(1, 4)])
                }
            };
            assert_eq!(delivered(waits.await), expected);
            take(&hub, 5);
        }
    }

    #[tokio::test]
    async fn a_claim_that_is_out_at_the_end_of_a_wait_is_waited_for() {
        let hub = QueueHub::default();
        for holds in [true, false] {
            let (end, ended) = tokio::sync::oneshot::channel::<()>();
            let mut waits = pin!(hub.take(wanted(2, &PLAIN), &CLOCK, ended.map(drop)));
            assert!(poll!(&mut waits).is_pending());
            let out = claim(&hub).unwrap();
            end.send(()).unwrap();
            assert!(poll!(&mut waits).is_pending());
            assert!(claim(&hub).is_none(), "its wait is over");
            let expected = match holds {
                true => {
                    out.fill(lease(1));
                    vec![1]
                }
                false => {
                    drop(out);
                    vec![]
                }
            };
            assert_eq!(delivered(waits.await.unwrap()), (expected, vec![]));
        }
    }

    #[tokio::test]
    async fn one_that_stands_takes_what_is_there_and_is_claimed_until_it_gathers() {
        let hub = QueueHub::default();
        hub.offer("q", ticket(9, 1), &PLAIN);
        let (offered, stands) = hub.stand(wanted(4, &PLAIN), NOW_MS);
        assert_eq!(offered, [plain(9, 1)]);
        for step in [1, 2] {
            hub.claim("q", &PLAIN, NOW_MS).unwrap().fill(lease(step));
        }
        for step in [2, 3] {
            hub.offer("q", ticket(9, step), &PLAIN);
        }
        let received = stands.unwrap().gather(&CLOCK, 0).await;
        assert_eq!(delivered(received), (vec![1, 2], vec![plain(9, 2)]), "four in all");
        assert_eq!(take(&hub, 5), [(9, 3)]);
        assert!(!hub.has_pollers() && hub.lines().is_empty());
    }

    #[tokio::test]
    async fn a_claim_that_is_held_up_goes_back_and_those_that_are_stored_do_not() {
        let (hub, clock) = (QueueHub::default(), Clock::manual(0));
        let returned = Arc::<Returned>::default();
        let (_, stands) = hub.stand(wanted(3, &PLAIN), NOW_MS);
        let [one, two, three] = [1, 2, 3].map(|_| claim(&hub).unwrap());
        let mut gathers = pin!(stands.unwrap().gather(&clock, 100));
        assert!(poll!(&mut gathers).is_pending());
        assert!(claim(&hub).is_none(), "it looks for what is out only");
        one.fill(returned.lease(1));
        clock.advance(Duration::from_millis(99));
        assert!(poll!(&mut gathers).is_pending());
        two.fill(returned.lease(2));
        clock.advance(Duration::from_millis(1));
        assert_eq!(delivered(gathers.await), (vec![1, 2], vec![]));
        three.fill(returned.lease(3));
        assert_eq!(*returned.0.lock(), [3]);
    }

    #[tokio::test]
    async fn one_that_stands_is_claimed_before_one_that_waits_with_as_many_claims() {
        let hub = QueueHub::default();
        let mut waits = pin!(wait(&hub, 2, &PLAIN));
        assert!(poll!(&mut waits).is_pending());
        let (_, stands) = hub.stand(wanted(2, &PLAIN), NOW_MS);
        for step in 1..=3 {
            claim(&hub).unwrap().fill(lease(step));
        }
        assert_eq!(delivered(waits.await), (vec![2], vec![]));
        let received = stands.unwrap().gather(&CLOCK, 0).await;
        assert_eq!(delivered(received), (vec![1, 3], vec![]));
    }

    #[tokio::test]
    async fn what_has_waited_for_a_moment_only_is_overtaken_by_what_one_that_stands_brings_about() {
        let hub = QueueHub::default();
        let claim = |now_ms| hub.claim("q", &PLAIN, now_ms);
        let (_, first) = hub.stand(wanted(1, &PLAIN), NOW_MS);
        drop(first);
        hub.offer("q", ticket(9, 1), &PLAIN);
        for (now_ms, is_old) in [(NOW_MS + OVERTAKEN_MS - 1, false), (NOW_MS + OVERTAKEN_MS, true)]
        {
            let (offered, stands) = hub.stand(wanted(2, &PLAIN), NOW_MS);
            assert_eq!(offered, []);
            assert_eq!(claim(now_ms).is_none(), is_old, "{now_ms}");
            drop(stands);
        }
        let (offered, stands) = hub.stand(wanted(1, &PLAIN), NOW_MS + OVERTAKEN_MS - 1);
        assert_eq!(offered, []);
        let received = stands.unwrap().gather(&CLOCK, 0).await;
        assert_eq!(received.offered, [plain(9, 1)], "nothing was brought about");
        hub.offer("q", ticket(9, 1), &PLAIN);
        let (offered, _) = hub.stand(wanted(1, &PLAIN), NOW_MS + 2 * OVERTAKEN_MS);
        assert_eq!(offered, [plain(9, 1)]);
    }

    #[tokio::test]
    async fn one_that_stands_and_has_all_that_it_wants_does_not_wait() {
        let hub = QueueHub::default();
        hub.offer("q", ticket(1, 1), &PLAIN);
        let (offered, stands) = hub.stand(wanted(1, &PLAIN), NOW_MS);
        assert!(offered.len() == 1 && stands.is_none() && hub.queues.lock().is_empty());
        assert!(claim(&hub).is_none());
    }

    #[tokio::test]
    async fn a_worker_that_waits_is_offered_what_one_that_stands_is_not() {
        let hub = QueueHub::default();
        let (_, stands) = hub.stand(wanted(3, &PLAIN), NOW_MS);
        hub.offer("q", ticket(7, 1), &PLAIN);
        assert_eq!(take(&hub, 1), [(7, 1)], "another had it sooner");
        let mut waits = pin!(wait(&hub, 1, &PLAIN));
        assert!(poll!(&mut waits).is_pending());
        hub.offer("q", ticket(8, 1), &PLAIN);
        assert_eq!(waits.await.offered, [plain(8, 1)]);
        assert_eq!(delivered(stands.unwrap().gather(&CLOCK, 0).await), (vec![], vec![]));
    }

    #[tokio::test]
    async fn a_lease_does_not_wait_for_long_for_a_claim_that_is_held_up() {
        let (hub, clock) = (QueueHub::default(), Clock::manual(0));
        let returned = Arc::<Returned>::default();
        let mut waits = pin!(hub.take(wanted(5, &PLAIN), &clock, pending()));
        assert!(poll!(&mut waits).is_pending());
        let [one, two] = [1, 2].map(|_| claim(&hub).unwrap());
        one.fill(returned.lease(1));
        assert!(poll!(&mut waits).is_pending());
        clock.advance(Duration::from_millis(LINGER_MS - 1));
        assert!(poll!(&mut waits).is_pending());
        clock.advance(Duration::from_millis(1));
        assert_eq!(delivered(waits.await.unwrap()), (vec![1], vec![]));
        two.fill(returned.lease(2));
        assert_eq!(*returned.0.lock(), [2], "nobody waits for it any more");
    }

    #[tokio::test]
    async fn a_poller_that_went_away_is_not_claimed_and_its_leases_go_back() {
        let hub = QueueHub::default();
        let returned = Arc::<Returned>::default();
        let [two, _three] = {
            let mut gone = pin!(wait(&hub, 5, &PLAIN));
            assert!(poll!(&mut gone).is_pending());
            let [one, two, three] = [1, 2, 3].map(|_| claim(&hub).unwrap());
            one.fill(returned.lease(1));
            [two, three]
        };
        assert_eq!(*returned.0.lock(), [1]);
        let mut waits = pin!(wait(&hub, 1, &PLAIN));
        assert!(poll!(&mut waits).is_pending());
        two.fill(returned.lease(2));
        assert_eq!(*returned.0.lock(), [1, 2]);
        claim(&hub).unwrap().fill(lease(4));
        assert_eq!(delivered(waits.await), (vec![4], vec![]));
        assert!(hub.lines().is_empty(), "an idle queue is not shown");
    }
}
