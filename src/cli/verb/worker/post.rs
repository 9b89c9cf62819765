//! The requests of a worker for all of its tasks together: results and heartbeats.
//!
//! A result waits only while the one before it is on its way; those that come meanwhile go together
//! with the next request. That request also leases as many tasks as it has results: their slots are
//! taken until they are answered, so that each leased task has one.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    time::Duration,
};

use anyhow::{Result, anyhow};
use futures::{StreamExt as _, channel::mpsc};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, mpsc::Sender, oneshot},
    time::{sleep, timeout},
};

use super::patience::{asked, may_pass, patiently};
use crate::{
    cli::{
        client::Client,
        context::Context,
        exit::{Exit, Stop},
        render::unix_ms,
    },
    engine::LeaseView,
};

/// The bounds of the time between two heartbeats, in milliseconds.
const BEAT_MS: (u64, u64) = (200, 20_000);
/// The maximum time between two heartbeats after trouble, in milliseconds; it doubles up to that.
const TROUBLE_MS: u64 = 5_000;
/// The bounds of the time that a heartbeat has, in milliseconds: one that hangs holds up the
/// others.
const ANSWER_MS: (u64, u64) = (1_000, 5_000);
/// The maximum number of results of one request, and of tasks that it leases.
const MOST: usize = 100;
/// The maximum number of results that are sent by themselves at a time.
const ALONE: usize = 8;
/// The maximum size of the results of one request, in bytes.
const BYTES: usize = 4 << 20;

/// The results and the leases of the tasks in work.
pub struct Post<'a> {
    cx: &'a Context,
    client: &'a Client,
    results: RefCell<Vec<Waiting>>,
    came: Notify,
    /// The lease that goes with results, without the number of tasks; none if only results go.
    next_lease: RefCell<Option<Value>>,
    begin: Sender<LeaseView>,
    /// The number of results that were refused, or are sent by themselves.
    held_up: Cell<usize>,
    leases: RefCell<BTreeMap<u64, Lease>>,
    leased: Notify,
    last: Cell<u64>,
    /// True from the first heartbeat that failed until all work again.
    is_troubled: Cell<bool>,
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
    /// When it is renewed, in steady time.
    beat_ms: u64,
    /// When it ends, in steady time.
    ends_ms: u64,
    /// A third of the time that it had when it was renewed.
    third_ms: u64,
    /// The next pause after trouble.
    pause_ms: u64,
    lost: Option<oneshot::Sender<String>>,
}

impl Lease {
    /// A lease that has `left_ms` from now on.
    fn new(
        handle: String,
        lost: Option<oneshot::Sender<String>>,
        now_ms: u64,
        left_ms: u64,
    ) -> Self {
        let mut lease = Self { handle, beat_ms: 0, ends_ms: 0, third_ms: 0, pause_ms: 0, lost };
        lease.renew(now_ms, left_ms);
        lease
    }

    /// Notes that the lease has `left_ms` from now on. It is renewed after a third of that.
    fn renew(&mut self, now_ms: u64, left_ms: u64) {
        self.third_ms = (left_ms / 3).max(BEAT_MS.0);
        self.beat_ms = now_ms + self.third_ms.min(BEAT_MS.1);
        self.ends_ms = now_ms.saturating_add(left_ms);
        self.pause_ms = BEAT_MS.0;
    }

    /// Puts off a renewal that failed, by a pause that grows, or longer if the daemon asked for
    /// that, but not past a third of what is left of the lease. A daemon that comes back gives a
    /// whole lease anew, which must not end before.
    fn put_off(&mut self, now_ms: u64, asked: Option<Duration>) {
        let asked_ms = asked.unwrap_or_default().as_millis() as u64;
        let left_ms = self.ends_ms.saturating_sub(now_ms);
        let most_ms = if left_ms > 0 { left_ms / 3 } else { self.third_ms };
        let pause_ms = self.pause_ms.max(asked_ms).min(most_ms).max(BEAT_MS.0);
        self.beat_ms = now_ms.saturating_add(pause_ms);
        self.pause_ms = (self.pause_ms * 2).min(TROUBLE_MS);
    }
}

/// Keeps a lease until it is dropped.
pub struct Keeping<'a> {
    post: &'a Post<'a>,
    number: u64,
    reason: oneshot::Receiver<String>,
}

impl Keeping<'_> {
    /// Returns when the daemon wants the task back, with the reason.
    pub async fn lost(&mut self) -> String {
        match (&mut self.reason).await {
            Ok(reason) => reason,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Keeping<'_> {
    fn drop(&mut self) {
        self.post.leases.borrow_mut().remove(&self.number);
    }
}

impl<'a> Post<'a> {
    /// Creates a post through `client`, which has the token that leases. The tasks that `lease`
    /// brings, a body without `max`, go to `begin`.
    pub fn new(
        cx: &'a Context,
        client: &'a Client,
        lease: Value,
        begin: Sender<LeaseView>,
    ) -> Self {
        Self {
            cx,
            client,
            results: RefCell::default(),
            came: Notify::new(),
            next_lease: RefCell::new(Some(lease)),
            begin,
            held_up: Cell::new(0),
            leases: RefCell::default(),
            leased: Notify::new(),
            last: Cell::new(0),
            is_troubled: Cell::new(false),
        }
    }

    /// Stops leasing tasks; a request that is under way may still bring some.
    pub fn stop_leasing(&self) {
        *self.next_lease.borrow_mut() = None;
    }

    /// Reports the result of a task in work, and waits for its answer. Tasks that the same request
    /// leases begin before that. A daemon that restarts meanwhile is waited for.
    pub async fn report(&self, handle: &str, body: &Value) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let size = body.to_string().len();
        let waiting = Waiting { handle: handle.to_owned(), body: body.clone(), size, answer };
        self.results.borrow_mut().push(waiting);
        self.came.notify_one();
        answered.await.unwrap_or_else(|_| Err(anyhow!("the worker stopped before it was sent")))
    }

    /// Keeps a lease.
    pub fn keep(&self, lease: &LeaseView) -> Keeping<'_> {
        let number = self.last.get() + 1;
        self.last.set(number);
        let (lost, reason) = oneshot::channel();
        let handle = lease.handle.clone();
        let left_ms = self.left_ms(Some(&lease.deadline));
        let kept = Lease::new(handle, Some(lost), self.cx.clock.steady_ms(), left_ms);
        self.leases.borrow_mut().insert(number, kept);
        self.leased.notify_one();
        Keeping { post: self, number, reason }
    }

    /// Sends what comes, until it is dropped.
    pub async fn deliver(&self) {
        let (later, rest) = mpsc::unbounded();
        // One that is held up holds up no other.
        let alone = rest.for_each_concurrent(ALONE, |(it, answer)| self.send_alone(it, answer));
        tokio::join!(self.send_results(&later), alone, self.beat());
    }

    async fn send_results(&self, later: &mpsc::UnboundedSender<(Waiting, Option<Result<()>>)>) {
        loop {
            let waiting = self.take();
            if waiting.is_empty() {
                self.came.notified().await;
                continue;
            }
            let items: Vec<_> =
                waiting.iter().map(|it| (it.handle.clone(), it.body.clone())).collect();
            let ask = async || self.client.report_all(&items, self.lease_for(items.len())).await;
            let (mut answers, leased) = match patiently(self.cx, "the report", ask).await {
                Ok(both) => both,
                Err(error) => {
                    let code = error.downcast_ref::<Stop>().and_then(|stop| stop.code.as_deref());
                    if code == Some("unknown_field") {
                        // An older daemon does not lease with results.
                        self.stop_leasing();
                    }
                    Default::default()
                }
            };
            for lease in leased {
                // The worker may have been stopped.
                drop(self.begin.send(lease).await);
            }
            if answers.len() != waiting.len() {
                answers.clear();
            }
            let mut answers = answers.into_iter();
            for it in waiting {
                match answers.next() {
                    // Who waits may have given up.
                    Some(answer) if answer.as_ref().map_or_else(is_over, |()| true) => {
                        drop(it.answer.send(answer));
                    }
                    answer => {
                        self.held_up.set(self.held_up.get() + 1);
                        drop(later.unbounded_send((it, answer)));
                    }
                }
            }
        }
    }

    /// Sees to a result that was refused, or is to be sent by itself.
    async fn send_alone(&self, it: Waiting, answer: Option<Result<()>>) {
        match answer {
            Some(answer) if !answer.as_ref().is_err_and(may_pass) => self.settle(it, answer).await,
            // The token that leases may have ended, or the daemon is older: a handle is enough.
            Some(_) | None => self.send_one(it).await,
        }
        self.held_up.set(self.held_up.get() - 1);
    }

    /// Returns the body of a lease for the slots that so many results free, unless only results go.
    fn lease_for(&self, results: usize) -> Option<Value> {
        let max = results.saturating_sub(self.held_up.get());
        let mut body = self.next_lease.borrow().clone().filter(|_| max > 0)?;
        body["max"] = max.into();
        Some(body)
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
        self.settle(it, sent.map(drop)).await;
    }

    /// Passes an answer on. A refused result becomes the failure of its attempt: left alone, that
    /// would be taken for interrupted and be done again and again.
    async fn settle(&self, it: Waiting, answer: Result<()>) {
        let answer = match answer {
            Err(error) if !is_over(&error) => {
                let message = format!("the daemon refused the result: {error:#}");
                let refusal = json!({"ok": false, "error": {"message": message}});
                let client = self.client.with_token(&it.handle);
                let told = async || client.report(&refusal).await;
                patiently(self.cx, "the report", told).await.and(Err(error))
            }
            answer => answer,
        };
        // Who waits may have given up.
        drop(it.answer.send(answer));
    }

    async fn beat(&self) {
        loop {
            let next_ms = self.leases.borrow().values().map(|it| it.beat_ms).min();
            let Some(next_ms) = next_ms else {
                self.leased.notified().await;
                continue;
            };
            let left = next_ms.saturating_sub(self.cx.clock.steady_ms());
            if left > 0 {
                // A lease that comes meanwhile may end sooner.
                tokio::select! {
                    () = sleep(Duration::from_millis(left)) => {}
                    () = self.leased.notified() => {}
                }
                continue;
            }
            let mut trouble = None;
            for part in self.handles().chunks(MOST) {
                let found = self.beat_for(part).await;
                trouble = trouble.or(found);
            }
            self.note(trouble);
        }
    }

    /// Returns the leases that are kept, each with its number.
    fn handles(&self) -> Vec<(u64, String)> {
        let leases = self.leases.borrow();
        leases.iter().map(|(number, lease)| (*number, lease.handle.clone())).collect()
    }

    /// Says once that heartbeats fail, and once that they work again.
    fn note(&self, trouble: Option<String>) {
        let was_troubled = self.is_troubled.replace(trouble.is_some());
        match trouble {
            Some(why) if !was_troubled => self.cx.terminal.say(&format!("heartbeats: {why}")),
            None if was_troubled => self.cx.terminal.say("heartbeats: they work again"),
            Some(_) | None => {}
        }
    }

    /// Returns how much is left of a lease that ends at `deadline`, by the clock of the daemon; one
    /// without a deadline does not end.
    fn left_ms(&self, deadline: Option<&str>) -> u64 {
        let now_ms = self.client.daemon_ms().unwrap_or_else(|| self.cx.clock.now_ms());
        deadline.map_or(u64::MAX, |at| unix_ms(at).saturating_sub(now_ms))
    }

    fn put_off(&self, number: u64, asked: Option<Duration>) {
        if let Some(lease) = self.leases.borrow_mut().get_mut(&number) {
            lease.put_off(self.cx.clock.steady_ms(), asked);
        }
    }

    /// Waits for the answer to a heartbeat, for a third of the shortest lease.
    async fn in_time<T>(
        &self,
        part: &[(u64, String)],
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let shortest_ms = {
            let leases = self.leases.borrow();
            part.iter().filter_map(|(number, _)| leases.get(number)).map(|it| it.third_ms).min()
        };
        let most_ms = shortest_ms.unwrap_or_default().clamp(ANSWER_MS.0, ANSWER_MS.1);
        let answer = timeout(Duration::from_millis(most_ms), request).await;
        answer.unwrap_or_else(|_| Err(anyhow!("no answer within {most_ms} ms")))
    }

    /// Renews leases, and returns what went wrong.
    async fn beat_for(&self, part: &[(u64, String)]) -> Option<String> {
        let handles: Vec<_> = part.iter().map(|(_, handle)| handle.clone()).collect();
        let mut trouble = None;
        let answers = match self.in_time(part, self.client.heartbeat_all(&handles)).await {
            Ok(answers) => answers,
            // The token that leases may have ended, or the daemon is older: a handle is enough.
            Err(error) if !may_pass(&error) => {
                trouble = Some(format!("{error:#}; sending them one by one"));
                let mut answers = Vec::with_capacity(handles.len());
                for handle in &handles {
                    let client = self.client.with_token(handle);
                    let beat = self.in_time(part, client.heartbeat()).await;
                    answers.push(beat.map(|beat| crate::cli::client::HeartbeatAnswer {
                        deadline: beat.deadline,
                        cancel: beat.cancel,
                    }));
                }
                answers
            }
            // A daemon that restarts: the leases outlive that.
            Err(error) => {
                for (number, _) in part {
                    self.put_off(*number, asked(&error));
                }
                return Some(format!("{error:#}"));
            }
        };
        let mut answers = answers.into_iter();
        for (number, _) in part {
            let lost = match answers.next() {
                Some(Ok(beat)) if beat.cancel => {
                    "the run does not want it any more, or its lease is over".to_owned()
                }
                Some(Ok(beat)) => {
                    let left_ms = self.left_ms(beat.deadline.as_deref());
                    if let Some(lease) = self.leases.borrow_mut().get_mut(number) {
                        lease.renew(self.cx.clock.steady_ms(), left_ms);
                    }
                    continue;
                }
                Some(Err(error)) if is_over(&error) => format!("{error:#}"),
                Some(Err(error)) => {
                    self.put_off(*number, asked(&error));
                    trouble.get_or_insert_with(|| format!("{error:#}"));
                    continue;
                }
                None => {
                    self.put_off(*number, None);
                    continue;
                }
            };
            let lease = self.leases.borrow_mut().remove(number);
            if let Some(sender) = lease.and_then(|lease| lease.lost) {
                // Who waits may have given up.
                drop(sender.send(lost));
            }
        }
        trouble
    }
}

/// Returns true if a refusal means that nothing more can be said of an attempt.
fn is_over(error: &anyhow::Error) -> bool {
    let stop = error.downcast_ref::<Stop>();
    stop.is_some_and(|it| matches!(it.exit, Exit::Denied | Exit::Conflict | Exit::NotFound))
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::{
        cli::{beside::Beside, connect::Target, fixture, terminal::Terminal},
        clock::Clock,
        config::Layer,
        protocol::TaskId,
    };

    fn context() -> Context {
        let beside = Beside::new(Layer::default(), None).unwrap();
        Context {
            config: beside.config(),
            beside,
            target: Target { server: None, token: None, ca: None },
            terminal: Terminal::quiet(),
            clock: Clock::system(),
        }
    }

    fn accepted() -> Value {
        json!({"status": 200, "accepted": true, "repeated": false})
    }

    /// Delivers until `work` has ended.
    async fn deliver_during(post: &Post<'_>, work: impl Future<Output = ()>) {
        tokio::select! {
            () = work => {}
            () = post.deliver() => {}
        }
    }

    fn body(request: &str) -> Value {
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }

    #[tokio::test]
    async fn a_result_leases_the_next_task_which_begins_before_the_answer() {
        let task = TaskId::new(7, 2, 1_767_225_600_000);
        let next = json!({"task": task, "handle": "wh_b", "deadline": "2026-01-01T00:01:00.000Z"});
        let first = json!({"items": [accepted()], "leased": [next]}).to_string();
        let second = json!({"items": [accepted()]}).to_string();
        let server = fixture::serve(vec![(200, first), (200, second)]).await;
        let (cx, client) = (context(), Client::new(&server.url, "t").unwrap());
        let (begin, mut leased) = mpsc::channel(1);
        let post = Post::new(&cx, &client, json!({"queue": "q"}), begin);
        let work = async {
            post.report("wh_a", &json!({"output": 1})).await.unwrap();
            let next = leased.try_recv().unwrap();
            post.stop_leasing();
            post.report(&next.handle, &json!({"output": 2})).await.unwrap();
        };
        deliver_during(&post, work).await;
        let asked = server.asked();
        assert_eq!(body(&asked[0])["lease"], json!({"queue": "q", "max": 1}));
        assert_eq!(body(&asked[1]).get("lease"), None, "{asked:?}");
        assert_eq!(body(&asked[1])["results"][0]["handle"], "wh_b");
    }

    #[tokio::test]
    async fn an_older_daemon_gets_its_results_and_is_not_asked_for_tasks_with_them_again() {
        let refusal = json!({"code": "unknown_field", "path": "$.lease"}).to_string();
        let alone = json!({"accepted": true, "repeated": false}).to_string();
        let carried = json!({"items": [accepted()]}).to_string();
        let server = fixture::serve(vec![(422, refusal), (200, alone), (200, carried)]).await;
        let (cx, client) = (context(), Client::new(&server.url, "t").unwrap());
        let (begin, _leased) = mpsc::channel(1);
        let post = Post::new(&cx, &client, json!({"queue": "q"}), begin);
        let work = async {
            post.report("wh_a", &json!({"output": 1})).await.unwrap();
            post.report("wh_b", &json!({"output": 2})).await.unwrap();
        };
        deliver_during(&post, work).await;
        let asked = server.asked();
        assert!(asked[1].starts_with("POST /v1/worker/result "), "{asked:?}");
        assert_eq!(body(&asked[2]).get("lease"), None, "{asked:?}");
    }

    /// A lease that has `left_ms` at `now_ms`.
    fn lease(now_ms: u64, left_ms: u64) -> Lease {
        Lease::new("wh_a".to_owned(), None, now_ms, left_ms)
    }

    #[test]
    fn pauses_after_trouble_grow_and_leave_time_before_the_lease_ends() {
        let mut it = lease(1_000, 30_000);
        assert_eq!((it.beat_ms, it.ends_ms), (11_000, 31_000));
        let pauses = [(); 7].map(|()| {
            it.put_off(1_000, None);
            it.beat_ms - 1_000
        });
        assert_eq!(pauses, [200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        let asked = Some(Duration::from_secs(9));
        it.put_off(1_000, asked);
        assert_eq!(it.beat_ms, 10_000);
        it.put_off(25_000, asked);
        assert_eq!(it.beat_ms, 27_000);
        it.put_off(31_000, asked);
        assert_eq!(it.beat_ms, 40_000);
        // The daemon gives as much again when it is back.
        it.put_off(31_000, Some(Duration::from_secs(60)));
        assert_eq!(it.beat_ms, 41_000);
        it.renew(31_000, u64::MAX);
        assert_eq!(it.beat_ms, 51_000);
        it.put_off(31_000, None);
        assert_eq!(it.beat_ms, 31_200);
    }

    #[tokio::test]
    async fn a_lease_is_renewed_by_the_clock_of_the_daemon() {
        let task = TaskId::new(7, 2, 1_767_225_600_000);
        let leased =
            json!([{"task": task, "handle": "wh_a", "deadline": "2026-01-01T00:00:31.000Z"}]);
        let beat = |more: Value| json!({"items": [more]}).to_string();
        let kept = json!({"status": 200, "deadline": "2026-01-01T00:00:07.000Z", "cancel": false});
        let fenced = json!({"status": 409, "problem": {"code": "fenced"}});
        let busy = json!({"code": "stopping"}).to_string();
        let server = fixture::serve(vec![
            (200, leased.to_string()),
            (503, busy.clone()),
            (503, busy),
            (200, beat(kept)),
            (200, beat(fenced)),
        ])
        .await;
        // It is an hour behind.
        let now_ms = 1_767_225_600_000 - 3_600_000;
        let cx = Context { clock: Clock::manual(now_ms), ..context() };
        let client = Client::new(&server.url, "t").unwrap();
        let (begin, _leased) = mpsc::channel(1);
        let post = Post::new(&cx, &client, json!({"queue": "q"}), begin);
        let leased = client.lease(&json!({"queue": "q"}), Duration::from_secs(60)).await.unwrap();
        let mut keeping = post.keep(&leased[0]);
        let next = || post.leases.borrow().values().next().map(|it| it.beat_ms - now_ms);
        assert_eq!(next(), Some(10_000));
        let part = [(1, "wh_a".to_owned())];
        assert!(post.beat_for(&part).await.is_some());
        assert_eq!(next(), Some(200));
        assert!(post.beat_for(&part).await.is_some());
        assert_eq!(next(), Some(400));
        assert_eq!(post.beat_for(&part).await, None);
        assert_eq!(next(), Some(2_000));
        // One that is lost is not renewed any more.
        assert_eq!(post.beat_for(&part).await, None);
        assert_eq!(next(), None);
        assert!(keeping.lost().await.contains("fenced"));
    }
}
