//! A thread that repeats its work until it is stopped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::Mutex;

use crate::store::StoreError;

/// A running thread, which ends when this is stopped or dropped.
pub struct Repeated {
    rounds: Rounds,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The thread's view of whether it is to go on.
#[derive(Clone, Default)]
pub struct Rounds(Arc<AtomicBool>);

impl Rounds {
    /// Returns true until the thread is stopped.
    pub fn go_on(&self) -> bool {
        !self.0.load(Ordering::Acquire)
    }

    /// Waits until the next round. Returns earlier when the thread is stopped.
    pub fn pause(&self, time: Duration) {
        if self.go_on() {
            thread::park_timeout(time);
        }
    }
}

impl Repeated {
    /// Starts `work` on a thread of this name.
    ///
    /// # Errors
    /// Fails when the system cannot create a thread.
    pub fn start(
        name: &str,
        work: impl FnOnce(&Rounds) + Send + 'static,
    ) -> Result<Self, StoreError> {
        let rounds = Rounds::default();
        let of_thread = rounds.clone();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&of_thread))
            .map_err(|error| StoreError::Database {
            context: format!("start the thread {name}"),
            reason: error.to_string(),
        })?;
        Ok(Self { rounds, thread: Mutex::new(Some(thread)) })
    }

    /// Returns true once the thread was told to stop.
    pub fn is_stopped(&self) -> bool {
        !self.rounds.go_on()
    }

    /// Ends the thread. Blocks until its current round is over, but for a call by the thread itself.
    pub fn stop(&self) {
        self.rounds.0.store(true, Ordering::Release);
        let Some(thread) = self.thread.lock().take() else { return };
        thread.thread().unpark();
        if thread.thread().id() == thread::current().id() {
            return;
        }
        let name = thread.thread().name().unwrap_or_default().to_owned();
        if thread.join().is_err() {
            tracing::error!(thread = name, "a thread of the database panicked");
        }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.stop();
    }
}
