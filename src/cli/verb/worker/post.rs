//! The requests of a worker for all of its tasks together: results and heartbeats.
//!
//! A result waits only while the one before it is on its way; those that come meanwhile go together
//! with the next request.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    time::Duration,
};

use anyhow::{Result, anyhow};
use serde_json::Value;
use tokio::{
    sync::{Notify, oneshot},
    time::sleep,
};

use super::patience::{may_pass, patiently};
use crate::{
    cli::{
        client::Client,
        context::Context,
        exit::{Exit, Stop},
        render::unix_ms,
    },
    engine::LeaseView,
};

/// The bounds of the time between two heartbeats.
const BEAT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(20));
/// The maximum number of results of one request.
const MOST: usize = 200;
/// The maximum size of the results of one request, in bytes.
const BYTES: usize = 4 << 20;

/// The results and the leases of the tasks in work.
pub struct Post<'a> {
    cx: &'a Context,
    client: &'a Client,
    results: RefCell<Vec<Waiting>>,
    came: Notify,
    leases: RefCell<BTreeMap<u64, Lease>>,
    leased: Notify,
    last: Cell<u64>,
}

/// A result that waits to be sent.
struct Waiting {
    handle: String,
    body: Value,
    size: usize,
    answer: oneshot::Sender<Result<()>>,
}

/// A lease that is kept.
struct Lease {
    handle: String,
    /// When it is renewed.
    beat_ms: u64,
    lost: Option<oneshot::Sender<String>>,
}

/// Keeps a lease until it is dropped.
struct Keeping<'a> {
    post: &'a Post<'a>,
    number: u64,
}

impl Drop for Keeping<'_> {
    fn drop(&mut self) {
        self.post.leases.borrow_mut().remove(&self.number);
    }
}

impl<'a> Post<'a> {
    /// Creates a post through `client`, which has the token that leases.
    pub fn new(cx: &'a Context, client: &'a Client) -> Self {
        Self {
            cx,
            client,
            results: RefCell::default(),
            came: Notify::new(),
            leases: RefCell::default(),
            leased: Notify::new(),
            last: Cell::new(0),
        }
    }

    /// Reports a result, and waits for its answer. A daemon that restarts meanwhile is waited for.
    pub async fn report(&self, handle: &str, body: &Value) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let size = body.to_string().len();
        let waiting = Waiting { handle: handle.to_owned(), body: body.clone(), size, answer };
        self.results.borrow_mut().push(waiting);
        self.came.notify_one();
        answered.await.unwrap_or_else(|_| Err(anyhow!("the worker stopped before it was sent")))
    }

    /// Keeps a lease. Returns when the daemon wants the task back, with the reason.
    pub async fn keep(&self, lease: &LeaseView) -> String {
        let number = self.last.get() + 1;
        self.last.set(number);
        let (lost, reason) = oneshot::channel();
        let beat_ms = self.beat_ms(Some(&lease.deadline));
        let kept = Lease { handle: lease.handle.clone(), beat_ms, lost: Some(lost) };
        self.leases.borrow_mut().insert(number, kept);
        let _keeping = Keeping { post: self, number };
        self.leased.notify_one();
        match reason.await {
            Ok(reason) => reason,
            Err(_) => std::future::pending().await,
        }
    }

    /// Sends what comes, until it is dropped.
    pub async fn deliver(&self) {
        tokio::join!(self.send_results(), self.beat());
    }

    async fn send_results(&self) {
        loop {
            let mut waiting = self.take();
            if waiting.is_empty() {
                self.came.notified().await;
                continue;
            }
            let items: Vec<_> =
                waiting.iter().map(|it| (it.handle.clone(), it.body.clone())).collect();
            let ask = async || self.client.report_all(&items).await;
            match patiently(self.cx, "the report", ask).await {
                Ok(answers) if answers.len() == waiting.len() => {
                    for (it, answer) in waiting.into_iter().zip(answers) {
                        match answer {
                            Err(error) if may_pass(&error) => self.send_one(it).await,
                            // Who waits may have given up.
                            answer => drop(it.answer.send(answer)),
                        }
                    }
                }
                // The token that leases may have ended, or the daemon is older: a handle is enough.
                Ok(_) | Err(_) => {
                    for it in waiting.drain(..) {
                        self.send_one(it).await;
                    }
                }
            }
        }
    }

    /// Takes the results of the next request.
    fn take(&self) -> Vec<Waiting> {
        let mut results = self.results.borrow_mut();
        results.retain(|it| !it.answer.is_closed());
        let mut bytes = 0;
        let fits = |it: &&Waiting| {
            bytes += it.size;
            bytes <= BYTES
        };
        // One is sent whatever its size.
        let most = results.iter().take(MOST).take_while(fits).count().max(1);
        let end = most.min(results.len());
        results.drain(..end).collect()
    }

    async fn send_one(&self, it: Waiting) {
        let client = self.client.with_token(&it.handle);
        let sent = patiently(self.cx, "the report", async || client.report(&it.body).await).await;
        drop(it.answer.send(sent.map(drop)));
    }

    async fn beat(&self) {
        loop {
            let next_ms = self.leases.borrow().values().map(|it| it.beat_ms).min();
            let Some(next_ms) = next_ms else {
                self.leased.notified().await;
                continue;
            };
            let left = next_ms.saturating_sub(self.cx.clock.now_ms());
            if left > 0 {
                // A lease that comes meanwhile may end sooner.
                tokio::select! {
                    () = sleep(Duration::from_millis(left)) => {}
                    () = self.leased.notified() => {}
                }
                continue;
            }
            let mut handles = Vec::new();
            let soon_ms = self.beat_ms(None);
            for (number, lease) in self.leases.borrow_mut().iter_mut() {
                lease.beat_ms = soon_ms;
                handles.push((*number, lease.handle.clone()));
            }
            for part in handles.chunks(MOST) {
                self.beat_for(part).await;
            }
        }
    }

    /// Returns when a lease is renewed: after a third of its time.
    fn beat_ms(&self, deadline: Option<&str>) -> u64 {
        let now_ms = self.cx.clock.now_ms();
        let left = deadline.map(|at| unix_ms(at).saturating_sub(now_ms));
        let pause = Duration::from_millis(left.unwrap_or_default() / 3).clamp(BEAT.0, BEAT.1);
        now_ms + pause.as_millis() as u64
    }

    async fn beat_for(&self, part: &[(u64, String)]) {
        let handles: Vec<_> = part.iter().map(|(_, handle)| handle.clone()).collect();
        let answers = match self.client.heartbeat_all(&handles).await {
            Ok(answers) => answers,
            // The token that leases may have ended, or the daemon is older: a handle is enough.
            Err(error) if !may_pass(&error) => {
                let mut answers = Vec::with_capacity(handles.len());
                for handle in &handles {
                    let beat = self.client.with_token(handle).heartbeat().await;
                    answers.push(beat.map(|beat| crate::cli::client::HeartbeatAnswer {
                        deadline: beat.deadline,
                        cancel: beat.cancel,
                    }));
                }
                answers
            }
            // A daemon that restarts: the leases outlive that.
            Err(_) => return,
        };
        for ((number, _), answer) in part.iter().zip(answers) {
            let lost = match answer {
                Ok(beat) if beat.cancel => {
                    "the run does not want it any more, or its lease is over".to_owned()
                }
                Ok(beat) => {
                    if let Some(lease) = self.leases.borrow_mut().get_mut(number)
                        && beat.deadline.is_some()
                    {
                        lease.beat_ms = self.beat_ms(beat.deadline.as_deref());
                    }
                    continue;
                }
                Err(error) => {
                    let exit = error.downcast_ref::<Stop>().map(|stop| stop.exit);
                    let Some(Exit::Denied | Exit::Conflict | Exit::NotFound) = exit else {
                        continue;
                    };
                    format!("{error:#}")
                }
            };
            let lease = self.leases.borrow_mut().remove(number);
            if let Some(sender) = lease.and_then(|lease| lease.lost) {
                // Who waits may have given up.
                drop(sender.send(lost));
            }
        }
    }
}
