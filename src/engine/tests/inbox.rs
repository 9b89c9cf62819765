use super::*;
use crate::{
    journal::{Decision, Outcome},
    operator::MAIN_AI,
    protocol::TaskId,
};

/// A flow that asks two people.
const TWO: &str = r#"flow = function(ctx)
        local ok, got = pcall(function()
            return ctx:approve { title = "Ship it?", required = 2 }
        end)
        return { ok, ok and got.note or got.kind }
    end"#;

impl Bench {
    /// The open tasks for people.
    async fn inbox(&self) -> Vec<TaskView> {
        let filter = TaskFilter { kind: Some("human".into()), limit: 10, ..Default::default() };
        self.engine.tasks(&self.admin(), filter).await.unwrap().items
    }

    /// The one task that a run asks people.
    async fn asked(&self, run: RunId) -> TaskView {
        self.waiting(run, "task").await;
        let open = self.inbox().await;
        let task = open.into_iter().find(|task| task.run == run).expect("it asks somebody");
        self.engine.task(&self.admin(), task.id).await.unwrap()
    }

    async fn say(&self, who: &Caller, task: TaskId, output: &str) -> Result<TaskView, String> {
        let answer = Answer::Output(Json::parse(output).unwrap());
        let said = self.engine.answer(who, task, (answer, None), None).await;
        said.map_err(|error| error.code().to_owned())
    }

    async fn reject(&self, who: &Caller, task: TaskId) -> Result<TaskView, String> {
        let answer = (Answer::Reject { reason: "no".into() }, None);
        let said = self.engine.answer(who, task, answer, None).await;
        said.map_err(|error| error.code().to_owned())
    }

    fn decided(&self, run: RunId, is: impl Fn(&Decision) -> bool) -> usize {
        self.count(run, |fact| matches!(fact, Fact::Decided(decision) if is(decision)))
    }
}

fn who(subject: &str, role: Role) -> Caller {
    Caller {
        subject: subject.into(),
        grant: Grant::new(role, Scopes::all()),
        jti: subject.into(),
        expires_ms: u64::MAX,
        session: None,
    }
}

fn approver(name: &str) -> Caller {
    who(name, Role::Approver)
}

#[tokio::test]
async fn two_must_answer_each_counts_once_and_a_restart_forgets_nobody() {
    let bench = Bench::new();
    let run = bench.start(TWO, "null").await;
    let task = bench.asked(run).await;
    assert_eq!((task.required, task.answers.len()), (Some(2), 0));
    let open = bench.say(&approver("ann"), task.id, r#"{"approved":true,"note":"a"}"#).await;
    let open = open.unwrap();
    assert_eq!((open.state.as_str(), open.answers.len()), ("pending", 1));
    assert_eq!(open.answers[0].by, "ann");
    assert_eq!(open.revision, task.revision, "what was shown is the same");
    let bench = bench.restart().await;
    assert_eq!(bench.inbox().await[0].answers, open.answers);
    let again = bench.say(&approver("ann"), task.id, r#"{"approved":true}"#).await;
    assert_eq!(again.unwrap_err(), "already_answered");
    let done = bench.say(&approver("bob"), task.id, r#"{"approved":true,"note":"b"}"#).await;
    assert_eq!(done.unwrap().state, "completed");
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"[true,"b"]"#);
    assert_eq!(bench.decided(run, |it| matches!(it, Decision::Answered { .. })), 2);
    let late = bench.say(&approver("cid"), task.id, r#"{"approved":true}"#).await;
    assert_eq!(late.unwrap_err(), "run_closed");
}

#[tokio::test]
async fn one_no_is_enough_however_many_must_say_yes() {
    let bench = Bench::new();
    let run = bench.start(TWO, "null").await;
    let task = bench.asked(run).await.id;
    bench.say(&approver("ann"), task, r#"{"approved":true,"note":"a"}"#).await.unwrap();
    bench.say(&approver("bob"), task, r#"{"approved":false,"note":"not yet"}"#).await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"[true,"not yet"]"#);

    let run = bench.start(TWO, "null").await;
    let task = bench.asked(run).await.id;
    bench.reject(&approver("ann"), task).await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"[false,"human_rejected"]"#);
}

#[tokio::test]
async fn only_who_is_asked_answers() {
    let bench = Bench::new();
    let body = r#"agents = { ship = { operator = "human", by = { "ann", "senior" },
            output = s.boolean } },
        flow = function(ctx) return ctx:run("ship", { title = "Ship it?" }) end"#;
    let run = bench.start(body, "null").await;
    let task = bench.asked(run).await;
    assert_eq!(task.by, ["ann", "senior"]);
    assert_eq!(bench.say(&approver("bob"), task.id, "true").await.unwrap_err(), "wrong_role");
    let reader = who("eve", Role::Observer);
    assert_eq!(bench.say(&reader, task.id, "true").await.unwrap_err(), "forbidden_verb");
    bench.say(&approver("ann"), task.id, "true").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "true");

    let body = r#"flow = function(ctx) return ctx:approve { title = "x", by = "ann" } end"#;
    let run = bench.start(body, "null").await;
    let task = bench.asked(run).await.id;
    let owner = bench.say(&bench.admin(), task, r#"{"approved":true}"#).await;
    assert_eq!(owner.unwrap_err(), "wrong_role", "a subject is that one alone");
}

#[tokio::test]
async fn more_than_can_answer_is_refused_where_it_is_asked() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            return ctx:approve { title = "x", by = { "ann" }, required = 2 }
        end"#;
    let (kind, message) = bench.failure(body, "null").await;
    assert_eq!(kind, "invalid_input");
    assert!(message.contains("2 must answer"), "{message}");
}

#[tokio::test]
async fn an_answer_to_what_is_not_asked_any_more_is_stale() {
    let bench = Bench::new();
    let body = r#"agents = { ship = { operator = "human", prompt = "Attempt {{ attempt }}.",
            timeout = "1m", retry = { max_attempts = 2, backoff = "0s" } } },
        flow = function(ctx) return ctx:run("ship", "x") end"#;
    let run = bench.start(body, "null").await;
    let first = bench.asked(run).await;
    bench.clock.advance(Duration::from_secs(60));
    bench
        .until(run, "the second attempt", |_| {
            bench.count(run, |fact| matches!(fact, Fact::AttemptOpened(_))) == 1
        })
        .await;
    let admin = bench.admin();
    let answer = |revision| {
        let answer = (Answer::Output(Json::parse("1").unwrap()), revision);
        bench.engine.answer(&admin, first.id, answer, None)
    };
    let stale = answer(first.revision.clone()).await.unwrap_err();
    assert_eq!(stale.code(), "stale_task", "{stale}");
    let second = bench.asked(run).await;
    assert_ne!(second.revision, first.revision);
    answer(second.revision).await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "1");
}

#[tokio::test]
async fn a_session_that_works_on_a_run_answers_none_of_its_questions() {
    let bench = Bench::new();
    let open = || OpenSession {
        operator: MAIN_AI.to_owned(),
        ttl_ms: 3_600_000,
        scopes: None,
        direct: false,
    };
    let opened = bench.engine.open_session(&bench.admin(), open(), None).await.unwrap();
    let Bearer::Caller(worker) = bench.engine.authenticate(&opened.token).unwrap() else {
        panic!()
    };
    let body = r#"agents = { a = { operator = "main-ai", worker = { subagent_type = "x" } } },
        flow = function(ctx) ctx:run("a", 1) return ctx:approve { title = "Ship it?" } end"#;
    let run = bench.start(body, "null").await;
    let link = bench.engine.connect(&worker, &opened.session, None).await.unwrap();
    let spawned = tokio::time::timeout(PATIENCE, async {
        loop {
            match bench.engine.next_frame(&link) {
                Some(frame) => return frame,
                None => link.woken().await,
            }
        }
    });
    let frame: serde_json::Value = serde_json::from_str(&spawned.await.unwrap()).unwrap();
    let task: TaskId = frame["params"]["task"].as_str().unwrap().parse().unwrap();
    let holder = bench.engine.holder_of(&worker, task).await.unwrap();
    bench.engine.report(&holder, report("1")).await.unwrap();
    bench.until(run, "the question", |view| view.steps == 2).await;
    let bench = bench.restart().await;
    let question = bench.asked(run).await.id;
    let yes = r#"{"approved":true}"#;
    assert_eq!(bench.say(&worker, question, yes).await.unwrap_err(), "self_approval");
    assert_eq!(bench.reject(&worker, question).await.unwrap_err(), "self_approval");
    let expired = bench.engine.expire(&worker, question, None).await.unwrap_err();
    assert_eq!(expired.code(), "self_approval");
    let mint = MintToken {
        role: Role::Operator,
        verbs: None,
        scopes: None,
        ttl_ms: 60_000,
        name: Some("ann".into()),
        quotas: Default::default(),
    };
    let child = bench.engine.mint(&worker, mint, None).await.unwrap();
    let Bearer::Caller(child) = bench.engine.authenticate(&child.token).unwrap() else { panic!() };
    assert_eq!(bench.say(&child, question, yes).await.unwrap_err(), "self_approval");

    let other = bench.engine.open_session(&bench.admin(), open(), None).await.unwrap();
    let Bearer::Caller(other) = bench.engine.authenticate(&other.token).unwrap() else { panic!() };
    bench.say(&other, question, yes).await.unwrap();
    bench.ended(run).await;
}

#[tokio::test]
async fn an_open_task_is_recalled_as_often_as_it_says_also_after_a_restart() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            return ctx:approve { title = "x", remind = "1h", timeout = "1d" }
        end"#;
    let run = bench.start(body, "null").await;
    let task = bench.asked(run).await;
    assert_eq!(task.reminders, Some(0));
    let reminders = |it: &Decision| matches!(it, Decision::Remind { .. });
    bench.clock.advance(Duration::from_secs(3_600));
    bench.until(run, "a reminder", |_| bench.decided(run, reminders) == 1).await;
    assert_eq!(bench.inbox().await[0].reminders, Some(1));
    let mut events = bench.engine.events(&bench.admin(), run, 0).await.unwrap();
    let mut last = events.next().await.unwrap().unwrap();
    while last.kind != "task_reminder" {
        last = events.next().await.unwrap().unwrap();
    }
    assert_eq!(last.data.to_value()["count"], 1, "{last:?}");

    // Three are missed while nobody is there, and are one.
    let bench = bench.restart_after(Duration::from_secs(3 * 3_600), Recovery::All).await;
    bench.until(run, "a reminder", |_| bench.decided(run, reminders) == 2).await;
    bench.clock.advance(Duration::from_secs(3_600));
    bench.until(run, "a reminder", |_| bench.decided(run, reminders) == 3).await;
    bench.say(&bench.admin(), task.id, r#"{"approved":true}"#).await.unwrap();
    bench.clock.advance(Duration::from_secs(86_400));
    bench.ended(run).await;
    assert_eq!(bench.decided(run, reminders), 3);
}

#[tokio::test]
async fn the_time_for_an_answer_is_shown_and_ends_also_over_a_restart() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            local ok, err = pcall(function() return ctx:approve { title = "x", timeout = "1h" } end)
            return { err.kind, err.message }
        end"#;
    let run = bench.start(body, "null").await;
    let task = bench.asked(run).await;
    assert_eq!(task.expires_at.as_deref(), Some("2023-11-14T23:13:20.000Z"));
    let bench = bench.restart().await;
    bench.clock.advance(Duration::from_secs(3_599));
    assert_eq!(bench.inbox().await.len(), 1);
    bench.clock.advance(Duration::from_secs(1));
    let output = bench.ended(run).await.output.unwrap();
    assert_eq!(output.as_str(), r#"["timeout","nobody answered within 3600000 ms"]"#);

    let run = bench.start(body, "null").await;
    let task = bench.asked(run).await.id;
    let denied = bench.engine.expire(&approver("ann"), task, None).await.unwrap_err();
    assert_eq!(denied.code(), "forbidden_verb");
    let expired = bench.engine.expire(&who("op", Role::Operator), task, None).await.unwrap();
    assert_eq!(expired.state, "failed");
    let output = bench.ended(run).await.output.unwrap();
    assert_eq!(output.as_str(), r#"["timeout","op ended the wait for an answer"]"#);
    assert_eq!(bench.decided(run, |it| matches!(it, Decision::Expire { .. })), 1);
    let rejected = |fact: &Fact| matches!(fact, Fact::StepEnded { outcome: Outcome::Failed(it), .. } if it.retryable);
    assert_eq!(bench.count(run, rejected), 1);
}

#[tokio::test]
async fn a_task_for_people_has_a_form_and_its_list_goes_on_page_by_page() {
    let bench = Bench::new();
    let run = bench.start(TWO, "null").await;
    bench.start(TWO, "null").await;
    let form = bench.asked(run).await.form.unwrap();
    let approved = form.fields.iter().find(|it| it.name.as_deref() == Some("approved")).unwrap();
    assert_eq!((approved.r#type.as_str(), approved.required), ("boolean", true));
    let filter = || TaskFilter { limit: 1, ..Default::default() };
    bench.until(run, "two tasks", |_| true).await;
    let first = bench.engine.tasks(&bench.admin(), filter()).await.unwrap();
    assert_eq!(first.items[0].form, None);
    let (num, step) = first.next_cursor.as_deref().unwrap().split_once('-').unwrap();
    let after = Some((num.parse().unwrap(), step.parse().unwrap()));
    let second =
        bench.engine.tasks(&bench.admin(), TaskFilter { after, ..filter() }).await.unwrap();
    assert_ne!(second.items[0].run, first.items[0].run);
}
