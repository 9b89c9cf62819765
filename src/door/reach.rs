//! Looks whether a node that has not answered yet can still be reached: a network that hangs breaks no
//! connection.

use std::time::Duration;

use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};

/// The interval of looks, and the maximum time of one.
const PROBE: Duration = Duration::from_secs(3);
/// The number of looks in a row after which a node that does not answer cannot be reached.
const PROBES: u32 = 2;

/// The last look, which counts for all requests that wait for the node.
pub(super) struct Reach {
    last: Mutex<Option<Probed>>,
    interval: Duration,
}

impl Default for Reach {
    fn default() -> Self {
        Self { last: Mutex::default(), interval: PROBE }
    }
}

/// A look.
struct Probed {
    node: i64,
    at: Instant,
    /// The number of looks in a row without an answer.
    silent: u32,
}

impl Reach {
    /// Waits until a node does not answer `probe`.
    pub(super) async fn lost<F: Future<Output = bool>>(&self, node: i64, probe: impl Fn() -> F) {
        let interval = self.interval;
        loop {
            sleep(interval).await;
            let mut last = self.last.lock().await;
            let is_recent = |it: &Probed| it.node == node && it.at.elapsed() < 3 * interval;
            let now = match last.take().filter(is_recent) {
                Some(it) if it.at.elapsed() < interval => it,
                known => {
                    let answers = timeout(interval, probe()).await.unwrap_or(false);
                    let before = known.map_or(0, |it| it.silent);
                    let silent = if answers { 0 } else { before + 1 };
                    Probed { node, at: Instant::now(), silent }
                }
            };
            let silent = now.silent;
            *last = Some(now);
            if silent >= PROBES {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_node_is_lost_after_two_looks_in_a_row_without_an_answer() {
        let interval = Duration::from_millis(50);
        let reach = Reach { interval, ..Reach::default() };
        let looks = AtomicU32::new(0);
        let counter = &looks;
        // The second and the fourth look are answered, and none after them.
        let probe = move || async move { matches!(counter.fetch_add(1, Ordering::SeqCst), 1 | 3) };
        let limit = Duration::from_secs(60);
        timeout(limit, reach.lost(1, probe)).await.expect("it is lost");
        assert!(looks.load(Ordering::SeqCst) >= 6, "{looks:?}");
        // Another node is not judged by it.
        let answered = timeout(8 * interval, reach.lost(2, || async { true })).await;
        assert!(answered.is_err(), "one that answers is waited for");
    }
}
