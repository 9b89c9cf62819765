mod parties;

use super::*;
use crate::{
    journal::{Decision, Outcome},
    middleware::{Short, TaskDone},
    operator::{Backend, MAIN_AI, Reply, Residence, Task},
    protocol::{Failure, TaskId},
};

/// A flow that asks two people.
const TWO: &str = r#"flow = function(ctx)
        local ok, got = pcall(function()
            return ctx:approve { title = "Ship it?", required = 2 }
        end)
        return { ok, ok and got.note or got.kind }
    end"#;

#[tokio::test]
async fn an_answer_that_loads_its_run_passes_the_layers() {
    let bench = Bench::new();
    let body = r#"middleware = { swarm.middleware.redact { patterns = { "sk-[a-z]+" } } },
        agents = { ask = { operator = "human", output = s.string } },
        flow = function(ctx) return ctx:run("ask") end"#;
    let run = bench.start(body, "null").await;
    let task = bench.asked(run).await.id;
    let bench = bench.restart_after(Duration::ZERO, Recovery::Asked).await;
    bench.say(&bench.admin(), task, r#""sk-abc""#).await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#""[redacted]""#);
}

#[tokio::test]
async fn an_answer_is_stored_under_the_key_of_its_step() {
    let bench = Bench::new();
    let body = r#"middleware = { swarm.middleware.idempotency {} },
        agents = { ask = { operator = "human", output = s.string } },
        flow = function(ctx) return ctx:run("ask", 1, { idempotency_key = "k" }) end"#;
    let run = bench.start(body, "null").await;
    let task = bench.asked(run).await.id;
    bench.say(&bench.admin(), task, r#""yes""#).await.unwrap();
    bench.ended(run).await;
    assert_eq!(bench.output(body, "null").await, r#""yes""#);
}

/// Stops to ask for an approval, and returns 5 once it has the answer.
struct StopsToAsk;

#[async_trait::async_trait]
impl Backend for StopsToAsk {
    fn kind(&self) -> &'static str {
        "stops_to_ask"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    async fn execute(&self, _: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        if input.to_value().get("approvals").is_some() {
            return Ok(Reply::Done(TaskDone::new(serde_json::json!(5).into())));
        }
        let asks = serde_json::json!({
            "type": "tool_approval_required", "tool_name": "rm", "call_id": "c1", "input": 1,
        });
        let effects = vec![serde_json::from_value(asks).unwrap()];
        let failure = Failure::new("worker", "it stopped to ask");
        Ok(Reply::Short(Box::new(Short { failure, usage: None, effects })))
    }
}

#[tokio::test]
async fn a_key_has_the_value_of_its_step_where_an_operator_stops_to_ask() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let code = Coded::default().and("stops_to_ask", StopsToAsk);
    let bench = Bench::open_coded(dir, Clock::manual(1_700_000_000_000), &code);
    let body = r#"middleware = { swarm.middleware.idempotency {} },
        agents = { w = { operator = "stops_to_ask" } },
        flow = function(ctx) return ctx:run("w", 1, { idempotency_key = "k" }) end"#;
    let run = bench.start(body, "null").await;
    let asks = |view: &RunView| {
        view.waiting_on.iter().any(|it| it.subject.operator_kind.as_deref() == Some("human"))
    };
    bench.until(run, "a question", asks).await;
    let task = bench.asked(run).await.id;
    // With so many others it does not stay in memory.
    let other = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx) return ctx:run("q") end"#;
    for _ in 0..60 {
        bench.start(other, "null").await;
    }
    let second = bench.start(body, "null").await;
    bench.say(&bench.admin(), task, r#"{"approved":true}"#).await.unwrap();
    for run in [run, second] {
        assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "5");
    }
    assert_eq!(bench.store.kept_by("it/idempotency", "", 9).unwrap().len(), 1);
    assert_eq!(bench.output(body, "null").await, "5");
}

#[tokio::test]
async fn an_approval_is_asked_again_whatever_is_cached() {
    let bench = Bench::new();
    let body = r#"middleware = { swarm.middleware.cache {} },
        flow = function(ctx)
            ctx:approve { title = "Ship it?", by = "ann" }
            return ctx:approve { title = "Ship it?", by = "bob" }.note
        end"#;
    let run = bench.start(body, "null").await;
    for (name, said) in [("ann", "first"), ("bob", "second")] {
        let task = bench.asked(run).await;
        assert_eq!(task.by, [name]);
        let yes = format!(r#"{{"approved":true,"note":"{said}"}}"#);
        bench.say(&approver(name), task.id, &yes).await.unwrap();
    }
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#""second""#);
}

impl Bench {
    /// The open tasks for people.
    async fn inbox(&self) -> Vec<TaskView> {
        let filter = TaskFilter { kind: Some("human".into()), limit: 10, ..Default::default() };
        self.engine.tasks().list(&self.admin(), filter).await.unwrap().items
    }

    /// The one task that a run asks people.
    async fn asked(&self, run: RunId) -> TaskView {
        self.waiting(run, "task").await;
        let open = self.inbox().await;
        let task = open.into_iter().find(|task| task.run == run).expect("it asks somebody");
        self.engine.tasks().get(&self.admin(), task.id).await.unwrap()
    }

    async fn say(&self, who: &Caller, task: TaskId, output: &str) -> Result<TaskView, String> {
        let answer = Answer::Output(Json::parse(output).unwrap());
        let said = self.engine.tasks().answer(who, task, (answer, None), None).await;
        said.map_err(|error| error.code().as_str().to_owned())
    }

    async fn reject(&self, who: &Caller, task: TaskId) -> Result<TaskView, String> {
        let answer = (Answer::Reject { reason: "no".into() }, None);
        let said = self.engine.tasks().answer(who, task, answer, None).await;
        said.map_err(|error| error.code().as_str().to_owned())
    }

    /// Opens a session of `main-ai` with more verbs than an operator has.
    async fn opened(&self, by: &Caller, extra: &[&str]) -> Opened {
        let open = OpenSession {
            operator: MAIN_AI.to_owned(),
            ttl_ms: 3_600_000,
            scopes: None,
            extra_verbs: extra.iter().map(ToString::to_string).collect(),
            direct: false,
        };
        self.engine.sessions().open_session(by, open, None).await.unwrap()
    }

    async fn operates(&self, by: &Caller, extra: &[&str]) -> Caller {
        self.caller(&self.opened(by, extra).await.token)
    }

    /// The bearer of a token.
    fn caller(&self, token: &str) -> Caller {
        match self.engine.authenticate(token).unwrap() {
            Bearer::Caller(caller) => caller,
            Bearer::Holder(_) => panic!("it is a task's"),
        }
    }

    async fn token(&self, by: &Caller, role: Role, name: &str, extra: &[&str]) -> Caller {
        let mint = MintToken {
            role,
            verbs: None,
            extra_verbs: extra.iter().map(ToString::to_string).collect(),
            scopes: None,
            ttl_ms: 3_600_000,
            name: Some(name.to_owned()),
            quotas: Default::default(),
        };
        self.caller(&self.engine.tokens().mint(by, mint, None).await.unwrap().token)
    }

    fn decided(&self, run: RunId, is: impl Fn(&Decision) -> bool) -> usize {
        self.count(run, |fact| matches!(fact, Fact::Decided(decision) if is(decision)))
    }
}

fn who(subject: &str, role: Role) -> Caller {
    Caller {
        subject: subject.into(),
        grant: Grant::new(role, Scopes::all()).into(),
        jti: subject.into(),
        expires_ms: u64::MAX,
        session: None,
        trace: None,
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
async fn an_approval_has_its_own_form_also_beside_an_agent_of_that_name() {
    let bench = Bench::new();
    let body = r#"agents = { approve = { operator = "echo", output = s.object { verdict = s.string } } },
        flow = function(ctx) return ctx:approve { title = "Ship it?" } end"#;
    let run = bench.start(body, "null").await;
    let task = bench.asked(run).await;
    bench.say(&approver("ann"), task.id, r#"{"approved":true}"#).await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"{"approved":true}"#);
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
        bench.engine.tasks().answer(&admin, first.id, answer, None)
    };
    let stale = answer(first.revision.clone()).await.unwrap_err();
    assert_eq!(stale.code(), "stale_task", "{stale}");
    let second = bench.asked(run).await;
    assert_ne!(second.revision, first.revision);
    answer(second.revision).await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "1");
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
    while last.kind != "task.reminded" {
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
    let denied = bench.engine.tasks().expire(&approver("ann"), task, None).await.unwrap_err();
    assert_eq!(denied.code(), "forbidden_verb");
    let operator = who("op", Role::Operator);
    let denied = bench.engine.tasks().expire(&operator, task, None).await.unwrap_err();
    assert_eq!(denied.code(), "forbidden_verb");
    let grant = Grant::clone(&operator.grant).and(&[Verb::TaskExpire]).unwrap();
    let operator = Caller { grant: grant.into(), ..operator };
    let expired = bench.engine.tasks().expire(&operator, task, None).await.unwrap();
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
    let first = bench.engine.tasks().list(&bench.admin(), filter()).await.unwrap();
    assert_eq!(first.items[0].form, None);
    let (num, step) = first.next_cursor.as_deref().unwrap().split_once('-').unwrap();
    let after = Some((num.parse().unwrap(), step.parse().unwrap()));
    let second =
        bench.engine.tasks().list(&bench.admin(), TaskFilter { after, ..filter() }).await.unwrap();
    assert_ne!(second.items[0].run, first.items[0].run);
}

#[tokio::test]
async fn the_starter_answers_what_names_it_and_nothing_else() {
    let bench = Bench::new();
    let starter = bench.token(&bench.admin(), Role::Operator, "bot", &["run.source"]).await;
    let other = bench.token(&bench.admin(), Role::Operator, "cat", &["run.source"]).await;
    let asks = |by: &str| {
        format!(
            r#"local swarm = require("swarm") return swarm.blueprint {{ name = "it",
                agents = {{ ask = {{ operator = "human", by = {by} }} }},
                flow = function(ctx) return ctx:run("ask") end }}"#
        )
    };
    let begin = async |source: String| {
        let start = StartRun::new(Program::Bundle(Bundle::from_source("it.lua", source).unwrap()));
        bench.engine.start(&starter, start, None).await.unwrap().run
    };
    let reply = async |who: &Caller, task| {
        let answer = (Answer::Output(Json::parse("7").unwrap()), None);
        let said = bench.engine.tasks().reply(who, task, answer, None).await;
        said.map(drop).map_err(|error| error.code().as_str().to_owned())
    };
    let run = begin(asks(r#"{ "ann", "starter" }"#)).await;
    let task = bench.asked(run).await.id;
    let filter = TaskFilter { limit: 9, ..Default::default() };
    for (who, lists) in [(&starter, 1), (&other, 0), (&bench.admin(), 0), (&approver("ann"), 1)] {
        let sought = Sought { mine: true, text: None };
        let found = bench.engine.tasks().find(who, filter.clone(), sought).await.unwrap();
        assert_eq!(found.items.len(), lists, "{}", who.subject);
    }
    // Without the verb, and without being asked.
    assert_eq!(bench.say(&starter, task, "7").await.unwrap_err(), "forbidden_verb");
    assert_eq!(reply(&other, task).await.unwrap_err(), "wrong_role");
    assert_eq!(reply(&bench.admin(), task).await.unwrap_err(), "wrong_role");
    assert_eq!(reply(&approver("ann"), task).await.unwrap_err(), "forbidden_verb");
    // Behind the starter is not the starter.
    let below = bench.token(&starter, Role::Operator, "child", &[]).await;
    assert_eq!(reply(&below, task).await.unwrap_err(), "self_approval");
    reply(&starter, task).await.unwrap();
    bench.ended(run).await;

    let run = begin(asks(r#"{ "ann" }"#)).await;
    let task = bench.asked(run).await.id;
    assert_eq!(reply(&starter, task).await.unwrap_err(), "self_approval");
    bench.say(&approver("ann"), task, "7").await.unwrap();
    bench.ended(run).await;

    // Its model and its directories are asked through it.
    for who in ["starter:model", "starter:roots"] {
        let run = begin(asks(&format!("{who:?}"))).await;
        let task = bench.asked(run).await.id;
        assert_eq!(reply(&other, task).await.unwrap_err(), "wrong_role");
        reply(&starter, task).await.unwrap();
        bench.ended(run).await;
    }

    // An approval asks somebody else.
    for who in ["starter", "starter:model", "starter:roots"] {
        let body = format!(
            r#"flow = function(ctx)
            local ok, got = pcall(function() return ctx:approve {{ title = "x", by = "{who}" }} end)
            return {{ ok, got.kind }} end"#
        );
        let run = bench.start(&body, "null").await;
        let refused = Json::parse(r#"[false,"invalid_input"]"#).unwrap();
        assert_eq!(bench.ended(run).await.output, Some(refused), "{who}");
    }
}
