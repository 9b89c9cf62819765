//! Looks at nodes until something is so: one task looks, for all requests that wait for it.
//!
//! A network that hangs breaks no connection, so that a node that has not answered yet is looked at by other
//! means. The look is made by a task of its own: a request that is dropped, or that nobody polls, holds no
//! other up.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{clock::Clock, tasks::Tasks};

/// Waits for the same of every node.
pub(super) struct Looks(Arc<Inner>);

struct Inner {
    wanted: Wanted,
    /// The nodes that are looked at.
    nodes: Mutex<HashMap<i64, Arc<watch::Sender<bool>>>>,
    clock: Clock,
    tasks: Tasks,
}

/// The results of looks that end a wait.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// The result of a look that counts. One that takes longer than the limit has the result false.
    pub(super) result: bool,
    /// The number of such looks in a row.
    pub(super) times: u32,
    /// The interval of looks.
    pub(super) interval: Duration,
    /// The maximum time of one.
    pub(super) limit: Duration,
}

impl Looks {
    /// Creates what waits for `wanted`, and looks at nothing yet.
    pub(super) fn new(wanted: Wanted, clock: Clock, tasks: Tasks) -> Self {
        Self(Arc::new(Inner { wanted, nodes: Mutex::default(), clock, tasks }))
    }

    /// Waits until looks at a node have what is wanted. The first look is after an interval.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub(super) async fn found<F>(&self, node: i64, look: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = bool> + Send + 'static,
    {
        let mut found = self.0.subscribe(node, look);
        // An error means that the task was dropped with its runtime.
        let _ = found.wait_for(|it| *it).await;
    }
}

impl Inner {
    fn subscribe<F>(
        self: &Arc<Self>,
        node: i64,
        look: impl Fn() -> F + Send + Sync + 'static,
    ) -> watch::Receiver<bool>
    where
        F: Future<Output = bool> + Send + 'static,
    {
        let mut nodes = self.nodes.lock();
        if let Some(found) = nodes.get(&node) {
            return found.subscribe();
        }
        let (found, waits) = watch::channel(false);
        let found = Arc::new(found);
        nodes.insert(node, Arc::clone(&found));
        drop(nodes);
        let looks = Arc::clone(self);
        self.tasks.spawn(async move { looks.look_at(node, &found, look).await });
        waits
    }

    /// Looks at a node until it has what is wanted, or nobody waits for that.
    async fn look_at<F: Future<Output = bool>>(
        &self,
        node: i64,
        found: &watch::Sender<bool>,
        look: impl Fn() -> F,
    ) {
        let Wanted { result, times, interval, limit } = self.wanted;
        let [interval_ms, limit_ms] =
            [interval, limit].map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX));
        let mut in_a_row = 0;
        let mut last_ms = self.clock.steady_ms();
        while in_a_row < times {
            tokio::select! {
                () = self.clock.sleep_until_either(u64::MAX, last_ms.saturating_add(interval_ms)) => {}
                () = self.is_left(found) => {}
            }
            if self.leave(node, found) {
                return;
            }
            last_ms = self.clock.steady_ms();
            let looked = tokio::select! {
                looked = look() => looked,
                () = self.clock.sleep(limit_ms) => false,
                () = self.is_left(found) => continue,
            };
            in_a_row = if looked == result { in_a_row + 1 } else { 0 };
        }
        self.nodes.lock().remove(&node);
        found.send_replace(true);
    }

    /// Waits until the process stops, and nobody waits for this node.
    async fn is_left(&self, found: &watch::Sender<bool>) {
        self.tasks.stopping().cancelled().await;
        found.closed().await;
    }

    /// Forgets a node that nobody waits for.
    fn leave(&self, node: i64, found: &watch::Sender<bool>) -> bool {
        let mut nodes = self.nodes.lock();
        let is_left = found.receiver_count() == 0;
        if is_left {
            nodes.remove(&node);
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::poll;
    use tokio::{sync::Semaphore, time::timeout};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const EVERY: Duration = Duration::from_secs(3);

    fn lost(clock: &Clock) -> Looks {
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let wanted = Wanted { result: false, times: 2, interval: EVERY, limit: EVERY };
        Looks::new(wanted, clock.clone(), tasks)
    }

    /// Lets every task go on as far as it can without the clock.
    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_node_is_lost_after_two_looks_in_a_row_without_an_answer() {
        let clock = Clock::manual(0);
        let looks = lost(&clock);
        let count = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&count);
        // The second and the fourth look are answered, and none after them.
        let look = move || {
            let nth = counter.fetch_add(1, Ordering::SeqCst);
            async move { matches!(nth, 1 | 3) }
        };
        let mut waits = Box::pin(looks.found(1, look));
        let mut other = Box::pin(looks.found(2, || async { true }));
        for nth in 1..=6 {
            assert!(poll!(&mut waits).is_pending() && poll!(&mut other).is_pending());
            settle().await;
            clock.advance(EVERY);
            settle().await;
            assert_eq!(count.load(Ordering::SeqCst), nth);
        }
        timeout(LONG, waits).await.expect("it is lost");
        assert!(poll!(&mut other).is_pending(), "another node is not judged by it");
        drop(other);
        clock.advance(EVERY);
        settle().await;
        assert!(looks.0.nodes.lock().is_empty(), "nobody is looked at for nobody");
    }

    #[tokio::test]
    async fn a_request_that_is_not_polled_keeps_no_other_from_looking() {
        let clock = Clock::manual(0);
        let looks = lost(&clock);
        let begun = Arc::new(Semaphore::new(0));
        // A look that is never answered.
        let look = || {
            let begun = Arc::clone(&begun);
            move || {
                begun.add_permits(1);
                std::future::pending::<bool>()
            }
        };
        let (mut first, mut second) =
            (Box::pin(looks.found(1, look())), Box::pin(looks.found(1, look())));
        let mut has_begun = false;
        for _ in 0..8 {
            // Once a look is made, the first request is left alone.
            if !has_begun {
                assert!(poll!(&mut first).is_pending());
            }
            let is_lost = poll!(&mut second).is_ready();
            if is_lost {
                return;
            }
            settle().await;
            clock.advance(EVERY);
            settle().await;
            has_begun |= begun.available_permits() > 0;
        }
        panic!("the node is never lost");
    }
}
