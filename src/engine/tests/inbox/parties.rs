//! Whoever works on a run, or is behind those who do, answers none of its questions.

use super::*;

#[tokio::test]
async fn a_session_that_works_on_a_run_answers_none_of_its_questions() {
    let bench = Bench::new();
    let extra = ["task.answer", "task.expire"];
    let opened = bench.opened(&bench.admin(), &extra).await;
    let worker = bench.caller(&opened.token);
    let body = r#"agents = { a = { operator = "main-ai", worker = { subagent_type = "x" } } },
        flow = function(ctx) ctx:run("a", 1) return ctx:approve { title = "Ship it?" } end"#;
    let run = bench.start(body, "null").await;
    work(&bench, run, &opened).await;
    bench.until(run, "the question", |view| view.steps == 2).await;
    let bench = bench.restart().await;
    let question = bench.asked(run).await.id;
    let yes = r#"{"approved":true}"#;
    assert_eq!(bench.say(&worker, question, yes).await.unwrap_err(), "self_approval");
    assert_eq!(bench.reject(&worker, question).await.unwrap_err(), "self_approval");
    let expired = bench.engine.tasks().expire(&worker, question, None).await.unwrap_err();
    assert_eq!(expired.code(), "self_approval");
    let mint = MintToken {
        role: Role::Operator,
        verbs: None,
        extra_verbs: vec!["task.answer".into()],
        scopes: None,
        ttl_ms: 60_000,
        name: Some("ann".into()),
        quotas: Default::default(),
    };
    let child = bench.engine.tokens().mint(&worker, mint, None).await.unwrap();
    let child = bench.caller(&child.token);
    assert_eq!(bench.say(&child, question, yes).await.unwrap_err(), "self_approval");

    let plain = bench.operates(&bench.admin(), &[]).await;
    assert_eq!(bench.say(&plain, question, yes).await.unwrap_err(), "forbidden_verb");
    let other = bench.operates(&bench.admin(), &["task.answer"]).await;
    bench.say(&other, question, yes).await.unwrap();
    bench.ended(run).await;
}

/// Does one task as a session, and returns the question that follows.
async fn work(bench: &Bench, run: RunId, opened: &Opened) -> TaskId {
    let worker = bench.caller(&opened.token);
    let link = bench.engine.sessions().connect(&worker, &opened.session, None).await.unwrap();
    let spawned = tokio::time::timeout(PATIENCE, async {
        loop {
            match bench.engine.sessions().next_frame(&link) {
                Some(frame) => return frame,
                None => link.woken().await,
            }
        }
    });
    let frame: serde_json::Value = serde_json::from_str(&spawned.await.unwrap()).unwrap();
    let task: TaskId = frame["params"]["task"].as_str().unwrap().parse().unwrap();
    let holder = bench.engine.sessions().holder_of(&worker, task, None).await.unwrap();
    bench.engine.tasks().report(&holder, report("1")).await.unwrap();
    let human = || TaskFilter { kind: Some("human".into()), limit: 10, ..Default::default() };
    let asks =
        |_: &RunView| bench.store.tasks(&human()).unwrap().iter().any(|task| task.run == run.num());
    bench.until(run, "the question", asks).await;
    bench.asked(run).await.id
}

const WORKS_AND_ASKS: &str = r#"agents = { a = { operator = "main-ai", worker = { subagent_type = "x" } } },
    flow = function(ctx, again)
        if again ~= "asks" then ctx:run("a", 1) end
        if again == "works" then ctx:continue_as("asks") end
        return ctx:approve { title = "Ship it?" }
    end"#;

#[tokio::test]
async fn whoever_stands_behind_a_session_that_works_on_a_run_answers_none_of_its_questions() {
    let bench = Bench::new();
    let may = ["task.answer", "task.expire"];
    // A main agent that kept the token with which it opens sessions.
    let agent = bench.token(&bench.admin(), Role::Operator, "agent", &may).await;
    let opened = bench.opened(&agent, &may).await;
    let own = bench.caller(&opened.token);
    assert_eq!(own.subject, format!("agent/session/{}", opened.session));
    let run = bench.start(WORKS_AND_ASKS, "null").await;
    let question = work(&bench, run, &opened).await;
    assert_eq!(bench.decided(run, |it| matches!(it, Decision::Joined { .. })), 1);
    // Who took part is known after the session and a restart, too.
    bench.engine.sessions().close_session(&bench.admin(), &opened.session).await.unwrap();
    let bench = bench.restart().await;
    let yes = r#"{"approved":true}"#;
    let second = bench.operates(&agent, &may).await;
    let below = bench.operates(&second, &may).await;
    let minted = bench.token(&agent, Role::Operator, "ann", &may).await;
    let of_session = bench.token(&below, Role::Operator, "ann", &may).await;
    for own in [&agent, &own, &second, &below, &minted, &of_session] {
        let who = &own.subject;
        assert_eq!(bench.say(own, question, yes).await.unwrap_err(), "self_approval", "{who}");
        assert_eq!(bench.reject(own, question).await.unwrap_err(), "self_approval", "{who}");
        let expired = bench.engine.tasks().expire(own, question, None).await.unwrap_err();
        assert_eq!(expired.code(), "self_approval", "{who}");
    }
    bench.say(&approver("ann"), question, yes).await.unwrap();
    bench.ended(run).await;
}

#[tokio::test]
async fn a_session_that_opens_another_one_does_not_answer_itself_through_it() {
    let bench = Bench::new();
    let opened = bench.opened(&bench.admin(), &["task.answer", "run.source"]).await;
    let first = bench.caller(&opened.token);
    let second = bench.operates(&first, &["task.answer", "run.source"]).await;
    assert!(second.subject.starts_with(&format!("session/{}/session/", opened.session)));
    let source = r#"local swarm = require("swarm") return swarm.blueprint { name = "it",
        flow = function(ctx) return ctx:approve { title = "Delete it?" } end }"#;
    let start = StartRun::new(Program::Bundle(Bundle::from_source("it.lua", source).unwrap()));
    let run = bench.engine.start(&second, start, None).await.unwrap().run;
    let question = bench.asked(run).await.id;
    let yes = r#"{"approved":true}"#;
    for own in [&first, &second, &bench.operates(&first, &["task.answer"]).await] {
        assert_eq!(bench.say(own, question, yes).await.unwrap_err(), "self_approval");
    }
    let stranger = bench.operates(&bench.admin(), &["task.answer"]).await;
    bench.say(&stranger, question, yes).await.unwrap();
    bench.ended(run).await;
}

#[tokio::test]
async fn a_session_that_worked_on_an_earlier_history_answers_none_of_the_next_one() {
    let bench = Bench::new();
    let opened = bench.opened(&bench.admin(), &["task.answer"]).await;
    let run = bench.start(WORKS_AND_ASKS, "\"works\"").await;
    let question = work(&bench, run, &opened).await;
    let worker = bench.caller(&opened.token);
    let yes = r#"{"approved":true}"#;
    assert_eq!(bench.say(&worker, question, yes).await.unwrap_err(), "self_approval");
    bench.say(&bench.admin(), question, yes).await.unwrap();
    bench.ended(run).await;
}

#[tokio::test]
async fn a_session_that_works_on_a_called_run_answers_neither_it_nor_its_caller() {
    let bench = Bench::new();
    let agent = bench.token(&bench.admin(), Role::Operator, "agent", &["task.answer"]).await;
    let opened = bench.opened(&agent, &["task.answer"]).await;
    let below = format!(
        "local swarm = require(\"swarm\") return swarm.blueprint {{ name = \"below\", {WORKS_AND_ASKS} }}"
    );
    let below = Bundle::from_source("below.lua", below).unwrap();
    bench
        .engine
        .blueprints()
        .put_blueprint(&bench.admin(), "below".into(), below, None)
        .await
        .unwrap();
    let body = r#"flow = function(ctx)
            ctx:call("below")
            return ctx:approve { title = "And all of it?" }
        end"#;
    let run = bench.start(body, "null").await;
    let yes = r#"{"approved":true}"#;
    let called = || {
        let filter = RunFilter { blueprint: Some("below".into()), limit: 1, ..Default::default() };
        bench.store.headers(&filter).unwrap().pop()
    };
    bench.waiting(run, "child").await;
    let begins = async {
        while called().is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, begins).await.expect("the called run begins");
    let child = called().unwrap();
    let child = RunId::new(child.num, child.created_ms);
    let question = work(&bench, child, &opened).await;
    assert_eq!(bench.say(&agent, question, yes).await.unwrap_err(), "self_approval");
    bench.say(&approver("ann"), question, yes).await.unwrap();
    let question = bench.asked(run).await.id;
    assert_eq!(bench.say(&agent, question, yes).await.unwrap_err(), "self_approval");
    bench.say(&approver("ann"), question, yes).await.unwrap();
    bench.ended(run).await;
}

#[tokio::test]
async fn one_party_counts_once_where_several_must_answer() {
    let bench = Bench::new();
    let run = bench.start(TWO, "null").await;
    let task = bench.asked(run).await.id;
    let yes = r#"{"approved":true,"note":"a"}"#;
    bench.say(&approver("ann"), task, yes).await.unwrap();
    let again = bench.say(&approver("ann/deputy"), task, yes).await.unwrap_err();
    assert_eq!(again, "already_answered");
    bench.say(&approver("bob"), task, yes).await.unwrap();
    bench.ended(run).await;
}

#[tokio::test]
async fn a_person_answers_what_their_own_run_asks_and_a_program_does_not() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx) return ctx:approve { title = "x" } end"#;
    let yes = r#"{"approved":true}"#;
    let source = format!(
        "local swarm = require(\"swarm\") return swarm.blueprint {{ name = \"it\", {body} }}"
    );
    for (role, refused) in [(Role::Admin, false), (Role::Operator, true)] {
        let starter = match role {
            Role::Admin => bench.token(&bench.admin(), role, "ada", &[]).await,
            _ => bench.token(&bench.admin(), role, "bot", &["run.source", "task.answer"]).await,
        };
        let start =
            StartRun::new(Program::Bundle(Bundle::from_source("it.lua", source.clone()).unwrap()));
        let run = bench.engine.start(&starter, start, None).await.unwrap().run;
        let question = bench.asked(run).await.id;
        let said = bench.say(&starter, question, yes).await;
        assert_eq!(said.as_ref().err().map(String::as_str), refused.then_some("self_approval"));
        if refused {
            bench.say(&approver("ann"), question, yes).await.unwrap();
        }
        bench.ended(run).await;
    }
}
