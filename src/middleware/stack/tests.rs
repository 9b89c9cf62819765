use std::sync::Arc;

use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::json;

use super::*;
use crate::middleware::{Sizes, Tracing, Watched, fixture};

/// Records visits, in order.
#[derive(Clone, Default)]
struct Visits(Arc<Mutex<Vec<String>>>);

impl Visits {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().push(what.into());
    }

    fn all(&self) -> String {
        self.0.lock().join(" ")
    }
}

struct Echo(Visits);

#[async_trait]
impl Terminal for Echo {
    async fn dispatch(&self, dispatch: Dispatch) -> Result<Dispatched, Failure> {
        self.0.note("terminal");
        Ok(Dispatched::Done(TaskDone::new(dispatch.input)))
    }
}

/// Records when it is entered and left.
struct Passing(&'static str, Visits);

#[async_trait]
impl DispatchLayer for Passing {
    fn name(&self) -> &'static str {
        self.0
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        self.1.note(format!("+{}", self.0));
        let outcome = next.run(dispatch).await;
        self.1.note(format!("-{}", self.0));
        outcome
    }
}

#[async_trait]
impl DispatchObserver for Passing {
    fn name(&self) -> &'static str {
        self.0
    }

    async fn observe(&self, watched: Watched<'_>) -> Result<(), Failure> {
        self.1.note(format!("+{}", self.0));
        let outcome = watched.run().await;
        self.1.note(format!("-{}:{}", self.0, if outcome.is_ok() { "ok" } else { "err" }));
        Ok(())
    }
}

/// Answers without calling `next`.
struct Halting(Result<Dispatched, Failure>);

#[async_trait]
impl DispatchLayer for Halting {
    fn name(&self) -> &'static str {
        "halting"
    }

    async fn dispatch(&self, _: Dispatch, _: Next<'_>) -> Result<Dispatched, Failure> {
        self.0.clone()
    }
}

/// Replaces the input.
struct Rewriting(Json);

#[async_trait]
impl DispatchLayer for Rewriting {
    fn name(&self) -> &'static str {
        "rewriting"
    }

    async fn dispatch(
        &self,
        mut dispatch: Dispatch,
        next: Next<'_>,
    ) -> Result<Dispatched, Failure> {
        dispatch.input = self.0.clone();
        next.run(dispatch).await
    }
}

/// The faults of an observer.
enum Faulty {
    FailsBefore,
    FailsAfter,
    PanicsBefore,
    PanicsAfter,
    LooksAway,
    Abandons,
}

#[async_trait]
impl DispatchObserver for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    async fn observe(&self, watched: Watched<'_>) -> Result<(), Failure> {
        match self {
            Self::FailsBefore => Err(Failure::new("odd", "before")),
            Self::PanicsBefore => panic!("before"),
            Self::LooksAway => Ok(()),
            Self::FailsAfter => {
                watched.run().await;
                Err(Failure::new("odd", "after"))
            }
            Self::PanicsAfter => {
                watched.run().await;
                panic!("after")
            }
            Self::Abandons => {
                let _ = watched.run().now_or_never();
                Ok(())
            }
        }
    }
}

fn dispatch() -> Dispatch {
    fixture::dispatch(r#"{"secret":"violet"}"#)
}

fn done() -> Result<Dispatched, Failure> {
    Ok(Dispatched::Done(TaskDone::new(dispatch().input)))
}

fn run(stack: &DispatchStack) -> Result<Dispatched, Failure> {
    run_over(stack, &Visits::default())
}

fn run_over(stack: &DispatchStack, visits: &Visits) -> Result<Dispatched, Failure> {
    let echo = Echo(visits.clone());
    stack.run(dispatch(), &echo).now_or_never().expect("no layer here waits")
}

#[test]
fn an_empty_stack_is_its_terminal() {
    assert_eq!(run(&DispatchStack::builder().build()), done());
}

#[test]
fn observers_are_outside_transformers_outside_guards_in_order_of_registration() {
    let visits = Visits::default();
    let passing = |name| Passing(name, visits.clone());
    let stack = DispatchStack::builder()
        .guard(passing("g1"))
        .transform(passing("t1"))
        .observe(passing("o1"))
        .guard(passing("g2"))
        .transform(passing("t2"))
        .observe(passing("o2"))
        .build();
    assert_eq!(run_over(&stack, &visits), done());
    let down = "+o1 +o2 +t1 +t2 +g1 +g2 terminal";
    assert_eq!(visits.all(), format!("{down} -g2 -g1 -t2 -t1 -o2:ok -o1:ok"));
    assert_eq!(stack.names().collect::<Vec<_>>(), ["o1", "o2", "t1", "t2", "g1", "g2"]);
}

#[test]
fn observers_run_even_when_a_guard_halts() {
    let visits = Visits::default();
    let stack = DispatchStack::builder()
        .guard(Halting(Err(Failure::new("curfew", "too late"))))
        .observe(Passing("o", visits.clone()))
        .build();
    assert_eq!(run_over(&stack, &visits), Err(Failure::new("curfew", "too late")));
    assert_eq!(visits.all(), "+o -o:err");
}

#[test]
fn a_guard_that_names_no_kind_refuses() {
    let stack = DispatchStack::builder().guard(Halting(Err(Failure::new("", "no")))).build();
    assert_eq!(run(&stack), Err(Failure::new(kind::REFUSED, "no")));
}

#[test]
fn a_layer_that_does_not_call_next_gives_the_answer() {
    let visits = Visits::default();
    let stack = DispatchStack::builder()
        .transform(Halting(Ok(Dispatched::Parked)))
        .guard(Passing("g", visits.clone()))
        .build();
    assert_eq!(run_over(&stack, &visits), Ok(Dispatched::Parked));
    assert_eq!(visits.all(), "");
}

#[test]
fn guards_see_what_transformers_made() {
    let large = Json::from(json!("x".repeat(100)));
    let stack =
        DispatchStack::builder().guard(Sizes::new(50)).transform(Rewriting(large.clone())).build();
    let failure = run(&stack).unwrap_err();
    assert_eq!(failure.kind, kind::LIMIT);
    assert_eq!(failure.data.unwrap().to_value()["size"], large.len());
    let stack = DispatchStack::builder().guard(Sizes::new(102)).transform(Rewriting(large)).build();
    assert!(run(&stack).is_ok());
}

#[test]
fn an_observers_fault_changes_nothing_and_the_dispatch_runs_once() {
    use Faulty::{FailsAfter, FailsBefore, LooksAway, PanicsAfter, PanicsBefore};
    for fault in [FailsBefore, FailsAfter, PanicsBefore, PanicsAfter, LooksAway] {
        let visits = Visits::default();
        let stack = DispatchStack::builder()
            .observe(Passing("outer", visits.clone()))
            .observe(fault)
            .observe(Passing("inner", visits.clone()))
            .build();
        assert_eq!(run_over(&stack, &visits), done());
        assert_eq!(visits.all(), "+outer +inner terminal -inner:ok -outer:ok");
    }
}

#[test]
fn an_observers_fault_does_not_hide_a_failure() {
    let stack = DispatchStack::builder()
        .observe(Faulty::FailsAfter)
        .guard(Halting(Err(Failure::new("curfew", "too late"))))
        .build();
    assert_eq!(run(&stack).unwrap_err().kind, "curfew");
}

struct Never;

#[async_trait]
impl Terminal for Never {
    async fn dispatch(&self, _: Dispatch) -> Result<Dispatched, Failure> {
        futures::future::pending().await
    }
}

#[test]
fn an_observer_that_drops_a_running_dispatch_interrupts_it() {
    let stack = DispatchStack::builder().observe(Faulty::Abandons).build();
    let failure = stack.run(dispatch(), &Never).now_or_never().unwrap().unwrap_err();
    assert!(failure.is(kind::INTERRUPTED) && failure.retryable);
}

struct Exploding;

#[async_trait]
impl Terminal for Exploding {
    async fn dispatch(&self, _: Dispatch) -> Result<Dispatched, Failure> {
        panic!("from the terminal")
    }
}

#[test]
#[should_panic(expected = "from the terminal")]
fn a_panic_below_an_observer_is_not_the_observers() {
    let stack = DispatchStack::builder().observe(Passing("o", Visits::default())).build();
    let _ = stack.run(dispatch(), &Exploding).now_or_never();
}

/// Passes every dispatch.
struct Through;

impl DispatchLayer for Through {
    fn name(&self) -> &'static str {
        "through"
    }
}

/// Records the addresses of the input and the payload.
struct Addresses(Mutex<Option<(usize, usize)>>);

#[async_trait]
impl Terminal for Addresses {
    async fn dispatch(&self, dispatch: Dispatch) -> Result<Dispatched, Failure> {
        *self.0.lock() = Some(addresses(&dispatch));
        Ok(Dispatched::Parked)
    }
}

fn addresses(dispatch: &Dispatch) -> (usize, usize) {
    let payload = Arc::as_ptr(&dispatch.payload).cast::<()>();
    (dispatch.input.as_str().as_ptr() as usize, payload as usize)
}

#[test]
fn a_dispatch_to_a_ready_terminal_is_done_in_one_poll_and_nothing_is_copied() {
    let stack = DispatchStack::builder().observe(Tracing).guard(Through).build();
    let dispatch = dispatch();
    let before = addresses(&dispatch);
    let seen = Addresses(Mutex::new(None));
    let outcome = stack.run(dispatch, &seen).now_or_never();
    assert_eq!(outcome, Some(Ok(Dispatched::Parked)));
    assert_eq!(seen.0.into_inner(), Some(before));
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn logged(stack: &DispatchStack) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _ = tracing::subscriber::with_default(subscriber, || run(stack));
    String::from_utf8(log.0.lock().clone()).unwrap()
}

#[test]
fn tracing_says_who_and_how_it_ended_and_never_what() {
    let log = logged(&DispatchStack::builder().observe(Tracing).build());
    let ids = [dispatch().run.to_string(), dispatch().task.to_string()];
    for word in ["attempt=1", "counter", "echo", r#"outcome="done""#, &ids[0], &ids[1]] {
        assert!(log.contains(word), "{word} in {log}");
    }
    assert!(!log.contains("violet"), "{log}");
    let refusal = Failure::new("curfew", "quotes violet");
    let log =
        logged(&DispatchStack::builder().observe(Tracing).guard(Halting(Err(refusal))).build());
    assert!(log.contains(r#"outcome="curfew""#) && !log.contains("violet"), "{log}");
}

#[test]
fn an_observers_fault_is_logged_with_its_name() {
    for fault in [Faulty::FailsAfter, Faulty::PanicsBefore] {
        let log = logged(&DispatchStack::builder().observe(fault).build());
        assert!(log.contains("WARN") && log.contains("faulty"), "{log}");
    }
}

/// Records the settlements.
struct Settles(Visits);

#[async_trait]
impl DispatchLayer for Settles {
    fn name(&self) -> &str {
        "settles"
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        let (about, input) = (Arc::clone(&dispatch.about), dispatch.input.clone());
        let outcome = next.run(dispatch).await;
        settle_now(self, &about, &input, outcome)
    }

    fn settle(&self, _: &About, _: &Json, outcome: Settled) -> Settled {
        self.0.note(if outcome.is_ok() { "ok" } else { "err" });
        outcome
    }
}

#[test]
fn what_was_settled_by_another_way_is_not_settled_again() {
    let visits = Visits::default();
    let stack = DispatchStack::builder().guard(Settles(visits.clone())).build();
    let dispatch = dispatch();
    let about = Arc::clone(&dispatch.about);
    about.give_up();
    let failure = Failure::new(kind::TIMEOUT, "late");
    assert!(stack.settle(&about, &Json::null(), Err(Box::new(failure.into()))).is_err());
    let echo = Echo(Visits::default());
    stack.run(dispatch, &echo).now_or_never().unwrap().unwrap();
    assert_eq!(visits.all(), "err");
}

#[test]
fn a_layer_that_panics_when_it_settles_changes_nothing() {
    struct Panics;
    #[async_trait]
    impl DispatchLayer for Panics {
        fn name(&self) -> &str {
            "panics"
        }

        fn settle(&self, _: &About, _: &Json, _: Settled) -> Settled {
            panic!("on purpose")
        }
    }
    let stack = DispatchStack::builder().guard(Panics).transform(Panics).build();
    let done = TaskDone::new(Json::null());
    assert_eq!(stack.settle(&dispatch().about, &Json::null(), Ok(done.clone())), Ok(done));
}
