//! Spawned work that is polled by hand, one piece at a time, in any order; for simulations.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    sync::Arc,
    task::{Context, Wake, Waker},
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::{Piece, telling};

/// Polls spawned work; nothing runs by itself.
#[derive(Clone, Default)]
pub struct Driver {
    work: Arc<Mutex<DrivenTasks>>,
    woken: Arc<Mutex<BTreeSet<u64>>>,
}

#[derive(Default)]
struct DrivenTasks {
    last: u64,
    pieces: BTreeMap<u64, Piece>,
}

struct Alarm {
    number: u64,
    woken: Arc<Mutex<BTreeSet<u64>>>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        lock(&self.woken).insert(self.number);
    }
}

impl Driver {
    /// Adds a future; returns its number and the receiver of its result.
    pub fn add<F>(&self, future: F) -> (u64, oneshot::Receiver<F::Output>)
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (piece, result) = telling(future);
        (self.push(piece), result)
    }

    /// Adds a piece of work; returns its number.
    pub(super) fn push(&self, piece: Piece) -> u64 {
        // There is no runtime here that would refill tokio's cooperative budget.
        let piece = Box::pin(tokio::task::unconstrained(piece));
        let mut work = lock(&self.work);
        work.last += 1;
        let number = work.last;
        work.pieces.insert(number, piece);
        drop(work);
        lock(&self.woken).insert(number);
        number
    }

    /// Returns the numbers of the pieces that can make progress, oldest first.
    pub fn ready(&self) -> Vec<u64> {
        lock(&self.woken).iter().copied().collect()
    }

    /// Polls one piece once.
    pub fn poll(&self, number: u64) {
        lock(&self.woken).remove(&number);
        let Some(mut piece) = lock(&self.work).pieces.remove(&number) else { return };
        let waker = Waker::from(Arc::new(Alarm { number, woken: Arc::clone(&self.woken) }));
        // No lock is held here: a piece may spawn others.
        if piece.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            lock(&self.work).pieces.insert(number, piece);
        }
    }

    /// Drops one piece, in whatever state it is.
    pub fn give_up(&self, number: u64) {
        let piece = lock(&self.work).pieces.remove(&number);
        drop(piece);
        lock(&self.woken).remove(&number);
    }

    /// Drops every piece, as the end of a process does.
    pub fn give_up_all(&self) {
        let pieces = std::mem::take(&mut lock(&self.work).pieces);
        drop(pieces);
        lock(&self.woken).clear();
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("ready", &self.ready()).finish_non_exhaustive()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock()
}

#[cfg(test)]
mod tests {
    use super::{super::Tasks, *};

    #[test]
    fn nothing_runs_before_it_is_polled_and_what_is_given_up_never_does() {
        let (tasks, driver) = Tasks::driven();
        let mut first = std::pin::pin!(tasks.spawn_blocking(|| 1));
        let second = tasks.spawn(async { 2 });
        let mut context = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert_eq!(driver.ready(), [1, 2]);
        driver.poll(1);
        assert!(matches!(first.as_mut().poll(&mut context), std::task::Poll::Ready(Ok(1))));
        driver.give_up_all();
        let mut second = std::pin::pin!(second);
        assert!(matches!(second.as_mut().poll(&mut context), std::task::Poll::Ready(Err(_))));
    }
}
