//! The lease that an agent sets: how long its worker may be silent.

use super::*;
use crate::{protocol::TaskId, store::TaskPhase, token::Scope};

const LEASE: Duration = Duration::from_secs(300);
const MINUTE: Duration = Duration::from_secs(60);

/// One task of a queue whose agent has these keys as well; the flow returns the kind of the failure.
fn task(more: &str) -> String {
    format!(
        r#"agents = {{ q = {{ operator = "queue", queue = "q", lease = "5m", {more} }} }},
        flow = function(ctx) local r, err = ctx:try("q", {{}}) return r or err.kind end"#
    )
}

fn closed(bench: &Bench, run: RunId) -> usize {
    bench.count(run, |fact| matches!(fact, Fact::AttemptClosed(_)))
}

/// Lets the lease of the open attempt run out, and the pause before the next one.
async fn lose(bench: &Bench, run: RunId, lost: usize) {
    bench.clock.advance(LEASE);
    let is_closed = async {
        while closed(bench, run) < lost {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, is_closed).await.expect("the attempt ends");
    bench.clock.advance(MINUTE);
}

async fn says(bench: &Bench, leased: &Leased) {
    let said = Json::from_trusted(r#"{"text":"at it"}"#);
    bench.engine.tasks().progress(&bench.holder(&leased.handle), said).await.unwrap();
}

async fn asks_a_senior(bench: &Bench, leased: &Leased) {
    let question = Json::from_trusted(r#"{"question":"Which?"}"#);
    bench.engine.sessions().escalate(&bench.holder(&leased.handle), question).await.unwrap();
}

async fn no_lease_runs_for_an_hour(bench: &Bench, run: RunId) {
    let timer = bench.start(r#"flow = function(ctx) ctx:sleep("50m") end"#, "null").await;
    bench.waiting(timer, "timer").await;
    bench.clock.advance(60 * MINUTE);
    bench.ended(timer).await;
    let row = bench.store.task(run.num(), 1).unwrap().expect("it is open");
    assert_eq!((row.attempt, row.lease_ms), (1, None));
}

async fn a_senior_answers(bench: &Bench, run: RunId) {
    let row = bench.store.task(run.num(), 1).unwrap().expect("it is open");
    let task = TaskId::new(run.num(), 1, row.scheduled_ms);
    let answer = Json::from_trusted("\"this\"");
    let advice = Advice { answer, attempt: None, revision: None };
    bench.engine.sessions().advise(&bench.admin(), task, advice, None).await.unwrap();
}

#[tokio::test]
async fn a_worker_that_takes_a_task_and_falls_silent_again_and_again_comes_to_an_end() {
    let bench = Bench::new();
    let run = bench.start(&task(""), "null").await;
    for lost in 1..=2 {
        bench.lease("q").await;
        lose(&bench, run, lost).await;
    }
    let last = bench.lease("q").await;
    bench.clock.advance(LEASE);
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "\"timeout\"");
    assert_eq!(bench.report(&last.handle, "1").await.unwrap_err().code(), "run_closed");
    assert_eq!(closed(&bench, run), 2);
}

#[tokio::test]
async fn a_policy_of_the_agent_or_of_the_call_says_how_often_a_lease_may_be_lost() {
    let bench = Bench::new();
    let run = bench.start(&task("retry = { max_attempts = 1 }"), "null").await;
    bench.lease("q").await;
    bench.clock.advance(LEASE);
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "\"timeout\"");
    let body = r#"agents = { q = { operator = "queue", queue = "q", lease = "5m" } },
        flow = function(ctx)
          local r, err = ctx:try("q", {}, { retry = { max_attempts = 2 } })
          return r or err.message
        end"#;
    let run = bench.start(body, "null").await;
    bench.lease("q").await;
    lose(&bench, run, 1).await;
    bench.lease("q").await;
    bench.clock.advance(LEASE);
    let why = bench.ended(run).await.output.unwrap();
    assert_eq!(why.as_str(), "\"the worker was silent for longer than its lease of 300000 ms\"");
}

#[tokio::test]
async fn whoever_says_how_far_it_is_keeps_its_task_and_a_restart_takes_nothing_of_it() {
    let bench = Bench::new();
    let run = bench.start(&task(""), "null").await;
    let leased = bench.lease("q").await;
    for _ in 0..4 {
        bench.clock.advance(4 * MINUTE);
        says(&bench, &leased).await;
    }
    // It is stored as well, and the host's own lease is none of it.
    let bench = bench.restart_after(MINUTE, Recovery::All).await;
    bench.clock.advance(3 * MINUTE);
    says(&bench, &leased).await;
    bench.clock.advance(4 * MINUTE);
    let holder = bench.holder(&leased.handle);
    let alive = bench.engine.tasks().heartbeat(&holder).await.unwrap();
    assert!(!alive.cancel && alive.deadline.is_some());
    bench.clock.advance(4 * MINUTE);
    assert!(bench.report(&leased.handle, "1").await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "1");
    assert_eq!(closed(&bench, run), 0);
}

#[tokio::test]
async fn a_lease_stands_still_while_a_senior_is_asked() {
    let bench = Bench::new();
    let run = bench.start(&task(""), "null").await;
    let leased = bench.lease("q").await;
    asks_a_senior(&bench, &leased).await;
    no_lease_runs_for_an_hour(&bench, run).await;
    a_senior_answers(&bench, run).await;
    lose(&bench, run, 1).await;
    assert_eq!(bench.report(&leased.handle, "1").await.unwrap_err().code(), "fenced");
    let next = bench.lease("q").await;
    assert!(bench.report(&next.handle, "2").await.unwrap());
    bench.ended(run).await;
}

#[tokio::test]
async fn the_lease_of_the_host_stands_still_as_well_and_begins_again_with_the_answer() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx) return ctx:run("q", {}) end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    asks_a_senior(&bench, &leased).await;
    let bench = bench.restart_after(60 * MINUTE, Recovery::All).await;
    no_lease_runs_for_an_hour(&bench, run).await;
    let holder = bench.holder(&leased.handle);
    assert!(!bench.engine.tasks().heartbeat(&holder).await.unwrap().cancel);
    a_senior_answers(&bench, run).await;
    let row = bench.store.task(run.num(), 1).unwrap().expect("it is open");
    assert!(row.lease_ms.is_some(), "a worker that is gone loses it in the end");
    bench.clock.advance(MINUTE);
    let next = bench.lease("q").await;
    assert_eq!(bench.report(&leased.handle, "1").await.unwrap_err().code(), "fenced");
    assert!(bench.report(&next.handle, "2").await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "2");
}

#[tokio::test]
async fn the_sign_of_life_that_is_shown_goes_by_the_lease_of_the_agent() {
    let bench = Bench::new();
    let run = bench.start(&task(""), "null").await;
    let leased = bench.lease("q").await;
    bench.clock.advance(2 * MINUTE);
    says(&bench, &leased).await;
    let now = rfc3339(bench.clock.now_ms());
    let shown = async {
        loop {
            let attempts = bench.engine.attempts(&bench.admin(), run, 1).await.unwrap();
            if attempts.items[0].last_heartbeat_at.as_ref() == Some(&now) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, shown).await.expect("it is shown");
}

#[tokio::test]
async fn a_task_that_a_worker_waited_for_is_its_own_also_after_a_restart() {
    let bench = Bench::new();
    let body = task("");
    let (leased, run) = tokio::join!(bench.lease("q"), bench.start(&body, "null"));
    let row = bench.store.task(run.num(), 1).unwrap().expect("it is open");
    assert_eq!((row.phase, row.worker.as_deref()), (TaskPhase::Delivered, Some("test")));
    assert!(row.lease_ms.is_some());
    let bench = bench.restart().await;
    assert!(bench.leases("q", Duration::ZERO).await.is_empty(), "nobody else gets it");
    assert!(bench.report(&leased.handle, "1").await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "1");
}

#[tokio::test]
async fn a_waiting_worker_gets_no_task_that_the_gate_refuses() {
    let bench = Bench::new();
    let scopes = ["run:*", "blueprint:*", "operator:echo"];
    let scopes = scopes.iter().map(|text| text.parse::<Scope>().unwrap()).collect();
    let narrow = Caller { grant: Grant::new(Role::Admin, Scopes(scopes)).into(), ..bench.admin() };
    let source = format!(
        "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"it\", {} }}",
        task("")
    );
    let start = StartRun::new(Program::Bundle(Bundle::from_source("it.lua", source).unwrap()));
    let refused = async {
        let run = bench.engine.start(&narrow, start, None).await.unwrap().run;
        (run, bench.ended(run).await.output.unwrap())
    };
    let (run, output) = tokio::select! {
        biased;
        leased = bench.leases("q", PATIENCE) => panic!("{leased:?}"),
        refused = refused => refused,
    };
    assert_eq!(output.as_str(), "\"refused\"");
    assert_eq!(bench.count(run, |fact| matches!(fact, Fact::AttemptDelivered { .. })), 0);
}

/// Waits for two hours for a task of the queue.
fn patient(labels: &Labels) -> LeaseAsk<'_> {
    LeaseAsk { queue: "q", worker: "test", labels, max: 1, wait: 120 * MINUTE, prompts: true }
}

/// Returns a caller with a token of its own that lasts an hour.
fn worker(bench: &Bench) -> Caller {
    let jti = uuid::Uuid::new_v4().simple().to_string();
    let expires_ms = bench.clock.now_ms() + 3_600_000;
    Caller { jti, expires_ms, ..bench.admin() }
}

#[tokio::test]
async fn a_worker_that_waits_is_sent_away_when_its_token_is_revoked_or_expires() {
    let (bench, labels) = (Bench::new(), Labels::default());
    let (ask, tasks) = (patient(&labels), bench.engine.tasks());
    let one = worker(&bench);
    let polls = async {
        let revoke = async { bench.engine.tokens().revoke(&bench.admin(), &one.jti).await };
        let both = tasks.report_and_lease(&one, Vec::new(), &ask);
        tokio::join!(tasks.lease(&one, &ask), both, revoke)
    };
    let (lone, both, revoked) = tokio::time::timeout(PATIENCE, polls).await.expect("at once");
    revoked.unwrap();
    assert_eq!(lone.unwrap_err().code().to_string(), "token_revoked");
    assert!(both.unwrap().1.is_empty());
    let other = worker(&bench);
    let polls = async {
        let expire = async { bench.clock.advance(61 * MINUTE) };
        tokio::join!(tasks.lease(&other, &ask), expire).0
    };
    let expired = tokio::time::timeout(PATIENCE, polls).await.expect("at its end").unwrap_err();
    assert!(matches!(expired, EngineError::Unauthenticated(_)), "{expired:?}");
    assert!(!bench.engine.shared().hub.has_pollers());
}

#[tokio::test]
async fn a_task_that_comes_as_the_token_of_its_worker_is_revoked_goes_to_another_uncounted() {
    let (bench, labels) = (Bench::new(), Labels::default());
    let (ask, tasks) = (patient(&labels), bench.engine.tasks());
    let gone = worker(&bench);
    let starts = async {
        // As if its poll had not heard of it yet.
        bench.engine.inner.auth.revoked.write().insert(gone.jti.clone());
        bench.start(&task("retry = { max_attempts = 1 }"), "null").await
    };
    let polls = async { tokio::join!(tasks.lease(&gone, &ask), starts) };
    let (refused, run) = tokio::time::timeout(PATIENCE, polls).await.expect("the task comes");
    assert_eq!(refused.unwrap_err().code().to_string(), "token_revoked");
    let next = bench.lease("q").await;
    assert!(bench.report(&next.handle, "1").await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "1");
}
