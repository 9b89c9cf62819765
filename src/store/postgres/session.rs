//! One connection, used by one thread at a time: every call blocks until its answer is there, or until
//! it is late.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use tokio::runtime::Handle;
use tokio_postgres::{
    Client, Row, Statement,
    types::{ToSql, Type},
};

use super::{failed::Failed, place, value::int};

/// The maximum number of prepared statements of a connection. All are named in this program, so that
/// only statements with a varying number of conditions could come to so many.
const PREPARED: usize = 512;

/// A parameter of a statement.
pub type Param<'a> = &'a (dyn ToSql + Sync);

/// A connection. Statements are prepared once and known by their text.
pub struct Session {
    client: Client,
    runtime: Handle,
    patience: Duration,
    /// Set when a commit no longer waits for a standby.
    at_risk: Arc<AtomicBool>,
    prepared: RefCell<HashMap<String, Statement>>,
}

/// A statement with its values, to be sent together with others.
pub struct Call {
    /// The statement.
    pub sql: &'static str,
    /// Its values.
    pub params: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Call {
    /// Creates a statement without values.
    pub fn new(sql: &'static str) -> Self {
        Self { sql, params: Vec::new() }
    }

    /// Adds a value.
    #[must_use]
    pub fn with(mut self, value: impl ToSql + Sync + Send + 'static) -> Self {
        self.params.push(Box::new(value));
        self
    }

    /// Adds a number.
    #[must_use]
    pub fn num(self, value: impl Into<u64>) -> Self {
        self.with(int(value.into()))
    }

    /// Adds a number, or null.
    #[must_use]
    pub fn num_or_null(self, value: Option<u64>) -> Self {
        self.with(value.map(int))
    }

    /// Adds a text.
    #[must_use]
    pub fn text(self, value: &str) -> Self {
        self.with(value.as_bytes().to_vec())
    }

    /// Adds a text, or null.
    #[must_use]
    pub fn text_or_null(self, value: Option<&str>) -> Self {
        self.with(value.map(|it| it.as_bytes().to_vec()))
    }

    /// Adds the key of a row with these names.
    #[must_use]
    pub fn place(self, names: &[&str]) -> Self {
        self.with(place::of(names).to_vec())
    }
}

impl Session {
    /// Creates a session over an open connection, which is driven by `runtime`. An answer that takes
    /// longer than `patience` ends it. `at_risk` is set when a commit no longer waits for a standby.
    pub fn new(
        client: Client,
        runtime: Handle,
        patience: Duration,
        at_risk: Arc<AtomicBool>,
    ) -> Self {
        Self { client, runtime, patience, at_risk, prepared: RefCell::default() }
    }

    /// Returns the rows of a statement.
    pub fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Failed> {
        let statement = self.prepare(sql)?;
        self.wait(self.client.query(&statement, params))
    }

    /// Returns the first row of a statement.
    pub fn one(&self, sql: &str, params: &[Param<'_>]) -> Result<Option<Row>, Failed> {
        Ok(self.query(sql, params)?.into_iter().next())
    }

    /// Returns true if a statement has a row.
    pub fn exists(&self, sql: &str, params: &[Param<'_>]) -> Result<bool, Failed> {
        Ok(!self.query(sql, params)?.is_empty())
    }

    /// Executes a statement and returns the number of its rows.
    pub fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, Failed> {
        let statement = self.prepare(sql)?;
        self.wait(self.client.execute(&statement, params))
    }

    /// Executes statements without values, as text.
    pub fn batch(&self, sql: &str) -> Result<(), Failed> {
        self.wait(self.client.batch_execute(sql))
    }

    /// Sends statements in their order, at once, and returns the rows of each. If one fails, returns the
    /// first failure.
    pub fn all(&self, calls: &[Call]) -> Result<Vec<Vec<Row>>, Failed> {
        self.send(None, calls, None)
    }

    /// Begins a transaction and sends statements as [`Session::all`], with it: nothing that writes,
    /// because a write behind a `BEGIN` that fails would be committed by itself.
    pub fn begin(&self, calls: &[Call]) -> Result<Vec<Vec<Row>>, Failed> {
        self.send(Some("BEGIN"), calls, None)
    }

    /// Sends statements as [`Session::all`], and `COMMIT` after them. The transaction is committed if
    /// and only if all succeed.
    ///
    /// # Errors
    /// Returns [`Failed::Silent`] if somebody ended its wait for a standby: it is committed, but a failover may
    /// still lose it, as if its answer were missing.
    pub fn commit(&self, calls: &[Call]) -> Result<(), Failed> {
        self.at_risk.store(false, Ordering::Release);
        self.send(None, calls, Some("COMMIT"))?;
        match self.at_risk.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Failed::Silent),
        }
    }

    /// Executes statements in a transaction of their own.
    pub fn commit_all(&self, calls: &[Call]) -> Result<(), Failed> {
        self.batch("BEGIN")?;
        self.commit(calls).inspect_err(|error| {
            self.roll_back(error);
        })
    }

    /// Rolls back a transaction that failed; returns true if that succeeded. If not, the connection must
    /// not be used again, and `error` is still the reason.
    pub fn roll_back(&self, error: &Failed) -> bool {
        !error.ends_connection() && self.batch("ROLLBACK").is_ok()
    }

    fn send(
        &self,
        before: Option<&str>,
        calls: &[Call],
        last: Option<&str>,
    ) -> Result<Vec<Vec<Row>>, Failed> {
        let statements =
            calls.iter().map(|call| self.prepare(call.sql)).collect::<Result<Vec<_>, _>>()?;
        let client = &self.client;
        let mut sent: Vec<Sent<'_, Vec<Row>, tokio_postgres::Error>> =
            Vec::with_capacity(calls.len() + 2);
        if let Some(before) = before {
            sent.push(Box::pin(text(client, before)));
        }
        for (statement, call) in statements.iter().zip(calls) {
            sent.push(Box::pin(async move {
                let params: Vec<Param<'_>> = call.params.iter().map(|it| &**it as _).collect();
                client.query(statement, &params).await
            }));
        }
        if let Some(last) = last {
            sent.push(Box::pin(text(client, last)));
        }
        let answers = Answers::default();
        let sending = exchange(sent, &answers);
        // The server ends a statement that takes too long. All of them together may take longer: given
        // up then, they would be sent again and again.
        let rows = wait_for_each(&self.runtime, self.patience, &answers, sending)?;
        let mut rows = rows.map_err(Failed::Database)?;
        if before.is_some() {
            rows.remove(0);
        }
        Ok(rows)
    }

    /// Returns true if the connection is closed.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    fn prepare(&self, sql: &str) -> Result<Statement, Failed> {
        if let Some(known) = self.prepared.borrow().get(sql) {
            return Ok(known.clone());
        }
        let statement = self.wait(self.client.prepare_typed(sql, &[] as &[Type]))?;
        let mut prepared = self.prepared.borrow_mut();
        if prepared.len() >= PREPARED {
            prepared.clear();
        }
        prepared.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    fn wait<T>(
        &self,
        future: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failed> {
        wait(&self.runtime, self.patience, future)?.map_err(Failed::Database)
    }
}

/// A statement with its answer. It is sent when it is first polled.
type Sent<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + 'a>>;

/// Sends statements in their order, each once, and waits for their answers. Returns the first failure: what
/// follows only says that the transaction has failed.
async fn exchange<T, E>(mut sent: Vec<Sent<'_, T, E>>, answers: &Answers) -> Result<Vec<T>, E> {
    let mut done = Vec::with_capacity(sent.len());
    for future in &mut sent {
        let begun = poll_fn(|context| Poll::Ready(first(future, context))).await;
        // It could not be sent, or its answer is there already: what follows, and above all a COMMIT, must not
        // be sent. What was sent before it may have failed first.
        let has_failed = matches!(begun, Some(Err(_)));
        done.push(begun);
        if has_failed {
            break;
        }
    }
    let mut found = Vec::with_capacity(sent.len());
    let mut failure = None;
    for (future, done) in sent.into_iter().zip(done) {
        let result = match done {
            Some(result) => result,
            None => future.await,
        };
        answers.count();
        match result {
            Ok(rows) => found.push(rows),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(found), Err)
}

async fn text(client: &Client, sql: &str) -> Result<Vec<Row>, tokio_postgres::Error> {
    client.batch_execute(sql).await.map(|()| Vec::new())
}

fn first<F: Future + ?Sized>(
    future: &mut Pin<Box<F>>,
    context: &mut Context<'_>,
) -> Option<F::Output> {
    match future.as_mut().poll(context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Waits on this thread for a future whose work is done by `runtime`. May be called anywhere, also on a
/// thread of another runtime.
///
/// # Errors
/// Returns [`Failed::Silent`] if it takes longer than `patience`.
pub fn wait<F: Future>(
    runtime: &Handle,
    patience: Duration,
    future: F,
) -> Result<F::Output, Failed> {
    wait_for_each(runtime, patience, &Answers::default(), future)
}

/// The number of answers that a future has received.
#[derive(Default)]
struct Answers(Cell<usize>);

impl Answers {
    fn count(&self) {
        self.0.set(self.0.get() + 1);
    }
}

/// Waits as [`wait`] does, for at most `patience` before each of the answers.
fn wait_for_each<F: Future>(
    runtime: &Handle,
    patience: Duration,
    answers: &Answers,
    future: F,
) -> Result<F::Output, Failed> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    // Sockets and timers belong to it.
    let _entered = runtime.enter();
    let mut late = pin!(tokio::time::sleep(patience));
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let (mut before, mut is_late) = (0, false);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Ok(output);
        }
        if answers.0.get() > before {
            (before, is_late) = (answers.0.get(), false);
            late.set(tokio::time::sleep(patience));
        }
        if is_late {
            return Err(Failed::Silent);
        }
        // An answer may have come while this thread was held up: it is looked for once more.
        is_late = late.as_mut().poll(&mut context).is_ready();
        if !is_late {
            thread::park();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Its statements are closed with the connection, not one by one.
        self.prepared.get_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::runtime::Builder;

    use super::*;

    fn now<'a>(answer: Result<u8, &'a str>) -> Sent<'a, u8, &'a str> {
        Box::pin(ready(answer))
    }

    fn later<'a>(answer: Result<u8, &'a str>) -> Sent<'a, u8, &'a str> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            answer
        })
    }

    #[tokio::test]
    async fn the_first_failure_is_returned_whichever_answer_is_seen_first() {
        let answers = Answers::default();
        let all = vec![later(Ok(1)), later(Err("taken")), now(Err("aborted"))];
        assert_eq!(exchange(all, &answers).await, Err("taken"));
        assert_eq!(answers.0.get(), 3);
        let all = vec![later(Err("taken")), later(Err("aborted")), now(Ok(1))];
        assert_eq!(exchange(all, &answers).await, Err("taken"));
        let all = vec![later(Ok(1)), now(Ok(2)), later(Ok(3))];
        assert_eq!(exchange(all, &answers).await, Ok(vec![1, 2, 3]));
    }

    #[test]
    fn an_answer_that_came_while_the_thread_was_held_up_is_not_late() {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let (patience, long) = (Duration::from_millis(1), Duration::from_secs(60));
        let mut has_come = false;
        let answer = poll_fn(|_| {
            if has_come {
                return Poll::Ready(7);
            }
            wait(runtime.handle(), long, tokio::time::sleep(patience * 2)).unwrap();
            has_come = true;
            Poll::Pending
        });
        assert!(matches!(wait(runtime.handle(), patience, answer), Ok(7)));
        let never = std::future::pending::<()>();
        assert!(matches!(wait(runtime.handle(), patience, never), Err(Failed::Silent)));
    }

    #[tokio::test]
    async fn nothing_is_sent_after_a_failure_that_is_known() {
        let is_sent = Cell::new(false);
        let commit = Box::pin(async {
            is_sent.set(true);
            Ok(3)
        });
        let all: Vec<Sent<'_, u8, _>> = vec![later(Ok(1)), now(Err("closed")), commit];
        assert_eq!(exchange(all, &Answers::default()).await, Err("closed"));
        assert!(!is_sent.get());
    }
}
