//! The thread that notices slices which take too long.
//!
//! A shard marks the beginning and the end of a slice in its [`Lane`], without reading a clock. The
//! watchdog looks at every lane each tick; once half of a slice's time has passed it writes the
//! slice's number into the lane's flag, which the interrupt then weighs against its CPU clock. With
//! nothing to watch it sleeps.

use std::{
    io,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::raw::Clock;

/// The time between two looks.
const TICK: Duration = Duration::from_millis(5);
/// Looks without a change until it sleeps.
const QUIET: u32 = 20;

/// One shard's place under the watchdog.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Odd while a slice runs.
    slice: AtomicU64,
    limit_ms: AtomicU64,
    flag: AtomicU64,
    state: Arc<State>,
    waker: Thread,
}

#[derive(Debug, Default)]
struct State {
    lanes: Mutex<Vec<Weak<Lane>>>,
    asleep: AtomicBool,
    stopped: AtomicBool,
}

impl State {}

/// The watchdog of a host; dropping it stops its thread.
#[derive(Debug)]
pub struct Watchdog {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails when the system cannot start a thread.
    pub fn start() -> io::Result<Self> {
        let state = Arc::new(State::default());
        let watched = Arc::clone(&state);
        let thread = thread::Builder::new()
            .name("lua-watchdog".to_owned())
            .spawn(move || watch(&watched))?;
        Ok(Self { state, thread: Some(thread) })
    }

    pub(crate) fn lane(&self) -> Arc<Lane> {
        let thread = self.thread.as_ref().expect("the thread is joined only in drop");
        let lane = Arc::new(Lane {
            slice: AtomicU64::new(0),
            limit_ms: AtomicU64::new(0),
            flag: AtomicU64::new(0),
            state: Arc::clone(&self.state),
            waker: thread.thread().clone(),
        });
        self.state.lanes.lock().push(Arc::downgrade(&lane));
        lane
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there has been reported by its own thread.
            let _ = thread.join();
        }
    }
}

/// A slice that runs; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Slice<'a> {
    lane: &'a Lane,
    ticket: u64,
    limit: Duration,
}

impl Lane {
    pub(crate) fn begin(&self, limit_ms: u64) -> Slice<'_> {
        self.limit_ms.store(limit_ms, Ordering::Relaxed);
        let ticket = self.slice.fetch_add(1, Ordering::SeqCst) + 1;
        if self.state.asleep.load(Ordering::SeqCst) {
            self.waker.unpark();
        }
        Slice { lane: self, ticket, limit: Duration::from_millis(limit_ms) }
    }
}

impl Slice<'_> {
    pub(crate) fn clock(&self) -> Clock<'_> {
        Clock::Watched { flag: &self.lane.flag, ticket: self.ticket, limit: self.limit }
    }
}

impl Drop for Slice<'_> {
    fn drop(&mut self) {
        self.lane.slice.fetch_add(1, Ordering::SeqCst);
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures real time, which no journal tells")]
fn watch(state: &State) {
    let mut seen: Vec<(usize, u64, Instant)> = Vec::new();
    let mut quiet = 0;
    while !state.stopped.load(Ordering::SeqCst) {
        let lanes = live(state);
        let now = Instant::now();
        let mut changed = false;
        seen.retain(|(id, ..)| lanes.iter().any(|lane| address(lane) == *id));
        for lane in &lanes {
            let slice = lane.slice.load(Ordering::SeqCst);
            let known = seen.iter_mut().find(|(id, ..)| *id == address(lane));
            match known {
                Some((_, last, since)) if *last == slice => {
                    let half = Duration::from_millis(lane.limit_ms.load(Ordering::Relaxed)) / 2;
                    if slice % 2 == 1 {
                        changed = true;
                        if now.duration_since(*since) >= half {
                            lane.flag.store(slice, Ordering::Relaxed);
                        }
                    }
                }
                Some((_, last, since)) => {
                    (*last, *since, changed) = (slice, now, true);
                }
                None => {
                    seen.push((address(lane), slice, now));
                    changed = true;
                }
            }
        }
        quiet = if changed { 0 } else { quiet + 1 };
        if quiet < QUIET {
            thread::park_timeout(TICK);
            continue;
        }
        state.asleep.store(true, Ordering::SeqCst);
        let idle =
            live(state).iter().all(|lane| lane.slice.load(Ordering::SeqCst).is_multiple_of(2));
        if idle && !state.stopped.load(Ordering::SeqCst) {
            thread::park();
        }
        state.asleep.store(false, Ordering::SeqCst);
        quiet = 0;
    }
}

fn live(state: &State) -> Vec<Arc<Lane>> {
    let mut lanes = state.lanes.lock();
    lanes.retain(|lane| lane.strong_count() > 0);
    lanes.iter().filter_map(Weak::upgrade).collect()
}

fn address(lane: &Arc<Lane>) -> usize {
    Arc::as_ptr(lane).addr()
}
