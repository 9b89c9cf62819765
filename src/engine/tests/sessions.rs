use super::*;
use crate::{
    journal::Decision,
    operator::MAIN_AI,
    protocol::{SessionId, TaskId},
    store::Write,
};

const ASKS: &str = r#"agents = { a = { operator = "main-ai", worker = { subagent_type = "x" },
            timeout = "10m", park = "1h" } },
        flow = function(ctx) return ctx:run("a", 1) end"#;

const HOUR_MS: u64 = 3_600_000;

impl Bench {
    /// Opens a session, as the caller that speaks for it.
    async fn session(&self) -> (Caller, SessionId) {
        self.session_for(7 * 86_400_000).await
    }

    async fn session_for(&self, ttl_ms: u64) -> (Caller, SessionId) {
        let open = OpenSession {
            operator: MAIN_AI.to_owned(),
            ttl_ms,
            scopes: None,
            extra_verbs: Vec::new(),
            direct: false,
        };
        let opened = self.engine.sessions().open_session(&self.admin(), open, None).await.unwrap();
        match self.engine.authenticate(&opened.token).unwrap() {
            Bearer::Caller(caller) => (caller, opened.session),
            Bearer::Holder(_) => panic!("a session's token is for no attempt"),
        }
    }

    /// Waits for the next frame of a session that never connected before, and gives its task.
    async fn task_of(&self, caller: &Caller, session: &SessionId) -> TaskId {
        let link = self.engine.sessions().connect(caller, session, None).await.unwrap();
        let frame = tokio::time::timeout(PATIENCE, async {
            loop {
                match self.engine.sessions().next_frame(&link) {
                    Some(frame) => return frame,
                    None => link.woken().await,
                }
            }
        });
        let frame: serde_json::Value = serde_json::from_str(&frame.await.unwrap()).unwrap();
        assert_eq!(frame["method"], "task/spawn", "{frame}");
        frame["params"]["task"].as_str().unwrap().parse().unwrap()
    }
}

#[tokio::test]
async fn a_task_that_no_session_takes_ends_with_its_park() {
    let bench = Bench::new();
    let run = bench.start(ASKS, "null").await;
    let view = bench.waiting(run, "task").await;
    let on = &view.waiting_on[0];
    assert_eq!(on.subject.session.as_ref().unwrap().state, "none", "{on:?}");
    assert!(on.until.is_some());
    bench.clock.advance(Duration::from_secs(3_600));
    let error = bench.ended(run).await.error.unwrap();
    assert_eq!((error.kind.as_str(), error.attempt), ("operator_unavailable", Some(1)));
}

#[tokio::test]
async fn a_disconnected_session_keeps_what_it_was_told_until_its_time_is_over() {
    let bench = Bench::new();
    let (caller, session) = bench.session().await;
    let run = bench.start(ASKS, "null").await;
    let task = bench.task_of(&caller, &session).await;
    let holder = bench.engine.sessions().holder_of(&caller, task, None).await.unwrap();
    bench.engine.sessions().accept(&holder).await.unwrap();
    let bench = bench.restart().await;
    bench.clock.advance(Duration::from_secs(599));
    let ask = TasksAsk { task: None, after: None, limit: usize::MAX };
    let list = bench.engine.sessions().session_tasks(&caller, ask).await.unwrap();
    assert_eq!(list.page.items.len(), 1);
    bench.clock.advance(Duration::from_secs(1));
    let error = bench.ended(run).await.error.unwrap();
    assert_eq!(error.kind, "timeout", "{error:?}");
}

#[tokio::test]
async fn an_attempts_time_stands_still_while_it_waits_for_a_senior() {
    let bench = Bench::new();
    let (caller, session) = bench.session().await;
    let run = bench.start(ASKS, "null").await;
    let task = bench.task_of(&caller, &session).await;
    let holder = bench.engine.sessions().holder_of(&caller, task, None).await.unwrap();
    bench.engine.sessions().accept(&holder).await.unwrap();
    bench.clock.advance(Duration::from_secs(300));
    let question = Json::parse(r#"{"question":"which?"}"#).unwrap();
    bench.engine.sessions().escalate(&holder, question).await.unwrap();
    let bench = bench.restart_after(Duration::from_secs(86_400), Recovery::All).await;
    let view = bench.engine.run(&bench.admin(), run).await.unwrap();
    assert_eq!(view.status, RunStatus::Waiting, "{view:?}");
    let answer = Json::parse("\"this\"").unwrap();
    let advice = Advice { answer, attempt: None, revision: None };
    bench.engine.sessions().advise(&bench.admin(), task, advice, None).await.unwrap();
    let holder = bench.engine.sessions().holder_of(&caller, task, None).await.unwrap();
    bench.clock.advance(Duration::from_secs(299));
    assert_eq!(
        bench.engine.tasks().prompt(&holder).await.unwrap().advice.unwrap().to_value()["by"],
        "admin"
    );
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(bench.ended(run).await.error.unwrap().kind, "timeout");
    let asked = |fact: &Fact| matches!(fact, Fact::Decided(Decision::Escalate { .. }));
    assert_eq!(bench.count(run, asked), 1);
}

#[tokio::test]
async fn seats_outlive_a_fresh_history_and_a_session_that_ends_is_replaced() {
    let bench = Bench::new();
    let (_, first) = bench.session().await;
    let (caller, second) = bench.session().await;
    let body = r#"agents = { a = { operator = "main-ai", worker = { subagent_type = "x" } } },
        flow = function(ctx, input)
          ctx:wait("go")
          if input then return ctx:run("a", 1) end
          ctx:continue_as(true)
        end"#;
    let run = bench.start(body, "null").await;
    let seat = |session: &SessionId| {
        bench.engine.sessions().take_seat(&caller, run, MAIN_AI.to_owned(), session.clone())
    };
    assert_eq!(seat(&first).await.unwrap(), 1);
    assert_eq!(seat(&second).await.unwrap(), 2);
    bench.signal(run, "go", "1").await.unwrap();
    bench.signal(run, "go", "2").await.unwrap();
    let task = bench.task_of(&caller, &second).await;
    let view = bench.engine.run(&bench.admin(), run).await.unwrap();
    assert_eq!(view.seats[MAIN_AI].epoch, 2, "{view:?}");
    let scheduled = bench.entries(run).into_iter().find_map(|entry| match entry.fact {
        Fact::StepScheduled(step) if step.name == "a" => Some(step.seat_epoch),
        _ => None,
    });
    assert_eq!(scheduled, Some(2), "the attempt names the seat that it was opened under");
    let holder = bench.engine.sessions().holder_of(&caller, task, None).await.unwrap();
    bench.engine.sessions().close_session(&bench.admin(), &second).await.unwrap();
    let late = bench.engine.tasks().report(&holder, report("0")).await.unwrap_err();
    assert_eq!(late.code(), "fenced");
    let view = bench.waiting(run, "task").await;
    let session = view.waiting_on[0].subject.session.as_ref();
    assert!(
        session.is_some_and(|it| matches!(it.state.as_str(), "closed" | "several")),
        "{view:?}"
    );
}

#[tokio::test]
async fn a_session_that_polls_counts_as_connected_for_ninety_seconds_after_each_call() {
    let bench = Bench::new();
    let (caller, session) = bench.session().await;
    let connected =
        async || bench.engine.sessions().get(&bench.admin(), &session).await.unwrap().connected;
    assert!(!connected().await);
    let run = bench.start(ASKS, "null").await;
    let poll = bench.engine.sessions().poll(&caller, &session, None, 1, std::future::pending());
    assert_eq!(tokio::time::timeout(PATIENCE, poll).await.unwrap().unwrap().last, 1);
    bench.clock.advance(Duration::from_secs(89));
    assert!(connected().await);
    bench.engine.sessions().speaker(&caller, &session).await.unwrap();
    bench.clock.advance(Duration::from_secs(89));
    assert!(connected().await);
    bench.clock.advance(Duration::from_secs(1));
    assert!(!connected().await, "its client is gone");
    let view = bench.waiting(run, "task").await;
    let on = &view.waiting_on[0];
    let waits = on.subject.session.as_ref().expect("it waits for a session");
    assert_eq!((waits.state.as_str(), waits.id.as_deref()), ("away", Some(&*session.0)), "{on:?}");
    let again = bench.engine.sessions().poll(&caller, &session, None, 1, std::future::pending());
    let again = tokio::time::timeout(PATIENCE, again).await.unwrap().unwrap();
    assert_eq!(again.frames.len(), 1, "the task is still with it");
    let link = bench.engine.sessions().connect(&caller, &session, None).await.unwrap();
    bench.engine.sessions().disconnect(&link);
    assert!(!connected().await, "the end of a socket counts at once");
}

/// The host died after a token was revoked, and before the session of the token was ended.
#[tokio::test]
async fn a_session_whose_token_was_revoked_ends_after_a_restart() {
    let bench = Bench::new();
    let (caller, session) = bench.session().await;
    let revoke = Write::RevokeToken { jti: caller.jti.clone(), at_ms: bench.clock.now_ms() };
    bench.engine.write(Vec::new(), vec![revoke]).await.unwrap();
    let bench = bench.restart().await;
    let link = bench.engine.sessions().connect(&caller, &session, None).await.unwrap();
    let ended = async {
        while link.ended().is_none() {
            // The first sweep may begin to wait only after the clock has moved.
            bench.clock.advance(Duration::from_secs(5));
            let _ = tokio::time::timeout(Duration::from_millis(20), link.woken()).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("the session ends");
    assert!(bench.engine.sessions().list(&bench.admin()).unwrap().is_empty());
    let view = bench.engine.sessions().get(&bench.admin(), &session).await.unwrap();
    assert_eq!(view.reason.as_deref(), Some("the token was revoked"), "{view:?}");
}

#[tokio::test]
async fn a_renewal_that_cannot_be_stored_changes_nothing() {
    let bench = Bench::new();
    let (caller, session) = bench.session_for(HOUR_MS).await;
    let sessions = bench.engine.sessions();
    let before = sessions.expiry(&session);
    let revoke = Write::RevokeToken { jti: caller.jti.clone(), at_ms: bench.clock.now_ms() };
    bench.engine.write(Vec::new(), vec![revoke]).await.unwrap();
    sessions.renew_session(&caller, 2 * HOUR_MS).await.unwrap_err();
    assert_eq!(sessions.expiry(&session), before, "memory agrees with the store");
}

#[tokio::test]
async fn of_two_renewals_at_once_the_longer_one_is_stored() {
    let bench = Bench::new();
    let (caller, session) = bench.session_for(HOUR_MS).await;
    let sessions = bench.engine.sessions();
    for round in 1..=20 {
        let (shorter, longer) = tokio::join!(
            sessions.renew_session(&caller, HOUR_MS + round * 10_000),
            sessions.renew_session(&caller, HOUR_MS + round * 10_000 + 5_000),
        );
        shorter.unwrap();
        let until_ms = longer.unwrap().expires_ms;
        assert_eq!(sessions.expiry(&session), Some(until_ms), "round {round}");
        let token = sessions.newest_token(&session).await.unwrap();
        let Bearer::Caller(stored) = bench.engine.authenticate(&token).unwrap() else {
            panic!("a session's token is for no attempt");
        };
        assert_eq!(stored.expires_ms / 1_000, until_ms / 1_000, "round {round}");
    }
}
