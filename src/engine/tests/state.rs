//! State in every scope, from flows, workers and callers.

use super::*;
use crate::{
    protocol::{Lifetime, MemoryLink, Scope, StateReader, StateStore, StoreOptions},
    store::{Reducer, StateAct, StateChange},
};

fn global(key: &str, reducer: Reducer, value: &str) -> (Scope, StateChange) {
    let (value, hints) = (value.to_owned(), StoreOptions::default());
    let act = StateAct::Put { value, reducer, hints };
    let change = StateChange { scope: "global".into(), key: key.into(), if_revision: None, act };
    (Scope::Global, change)
}

const EVERYTHING: &str = r#"flow = function(ctx)
        local g = ctx:scope("global")
        g:set("note/a", { text = "the quiet harbour" })
        g:set("note/b", "a harbour of noise", { content_kind = "semantic", ttl = "1h" })
        local sum = g:add("n", 2)
        local list = g:append("l", "x")
        local map = g:merge("m", { a = 1 })
        g:link("note/a", "note/b", "cites")
        local c = ctx:scope { custom = "a/b" }
        c:set("note/a", "elsewhere")
        local found = g:search("harbour quiet")
        ctx.state:set("own", "harbour")
        return {
            sum, list, map, found[1].key, found[1].snippet, #found, g:list("note/"),
            g:traverse("note/a", { relation = "cites", depth = 3 }), c:get("note/a"),
            ctx.state:search("harbour")[1].key, g:get("missing"),
        }
    end"#;

#[tokio::test]
async fn a_flow_reads_and_changes_every_scope() {
    let bench = Bench::new();
    let out = bench.output(EVERYTHING, "null").await;
    assert_eq!(
        out,
        r#"[2,["x"],{"a":1},"note/a","{\"text\":\"the [quiet] [harbour]\"}",1,["note/a","note/b"],["note/b"],"elsewhere","own"]"#
    );
    let state = bench.engine.state();
    let custom = Scope::Custom("a/b".into());
    let read = StateStore::read(&state, &custom, "note/a").await.unwrap();
    assert_eq!(read, Some("elsewhere".into()));
    let row = bench.store.state_value("global", "note/b").unwrap().unwrap();
    assert_eq!(row.expires_ms, Some(bench.clock.now_ms() + 3_600_000));
}

#[tokio::test]
async fn shared_state_is_changed_once_and_its_answer_outlives_the_host() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            local first = ctx:scope("global"):add("n")
            ctx:wait("go")
            return { first, ctx:scope("global"):add("n") }
        end"#;
    let run = bench.start(body, "null").await;
    bench.waiting(run, "signal").await;
    let bench = bench.restart().await;
    bench.signal(run, "go", "true").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "[1,2]");
    assert_eq!(bench.store.state_value("global", "n").unwrap().unwrap().value, "2");
}

#[tokio::test]
async fn many_runs_add_to_one_number_and_none_is_lost() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            for i = 1, 5 do ctx:scope("global"):add("n") end
        end"#;
    let mut runs = Vec::new();
    for _ in 0..10 {
        runs.push(bench.start(body, "null").await);
    }
    for run in runs {
        bench.ended(run).await;
    }
    assert_eq!(bench.store.state_value("global", "n").unwrap().unwrap().value, "50");
}

#[tokio::test]
async fn what_state_refuses_is_raised_with_the_reason() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            local g = ctx:scope("global")
            g:set("text", "x")
            ctx.state:set("text", "x")
            local function why(fn) local ok, err = pcall(fn) return { ok, err.kind, err.message, err.data } end
            return {
                why(function() g:add("text") end),
                why(function() ctx.state:append("text", 1) end),
                why(function() g:set("text", "y", { if_revision = 7 }) end),
                why(function() ctx.state:set("text", "y", { if_revision = 0 }) end),
                why(function() return ctx:scope("session"):get("k") end),
            }
        end"#;
    let out: serde_json::Value = serde_json::from_str(&bench.output(body, "null").await).unwrap();
    for refusal in out.as_array().unwrap() {
        assert_eq!((&refusal[0], &refusal[1]), (&false.into(), &"refused".into()), "{refusal}");
    }
    assert!(out[0][2].as_str().unwrap().contains("it is not a number"), "{out}");
    assert!(out[1][2].as_str().unwrap().contains("it is not an array"), "{out}");
    assert_eq!(out[2][3]["code"], "revision_mismatch");
    assert_eq!(out[3][3]["revision"], 1);
    assert!(out[4][2].as_str().unwrap().contains("belongs to no session"), "{out}");
}

#[tokio::test]
async fn a_run_reaches_the_state_that_its_starter_reaches() {
    let bench = Bench::new();
    let scopes = ["blueprint:*", "run:*", "operator:*", "state:global/mine/"];
    let scopes = scopes.map(|scope| scope.parse().unwrap()).into_iter().collect();
    let grant = Grant::new(Role::Operator, scopes).and(&[Verb::RunSource]).unwrap();
    let caller = Caller { grant: grant.into(), ..bench.admin() };
    let source = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "it", flow = function(ctx)
            local g = ctx:scope("global")
            g:set("mine/a", 1)
            local ok, err = pcall(function() g:set("yours", 1) end)
            local read = pcall(function() return g:search("x") end)
            return { ok, err.kind, read, ctx.state:search("x") }
        end }"#;
    let start = StartRun::new(Program::Bundle(Bundle::from_source("it.lua", source).unwrap()));
    let run = bench.engine.start(&caller, start, None).await.unwrap().run;
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"[false,"refused",false,[]]"#);

    let read =
        |key: &'static str| bench.engine.stored_state().state_value(&caller, &Scope::Global, key);
    assert_eq!(read("mine/a").await.unwrap().value.as_str(), "1");
    assert_eq!(read("yours").await.unwrap_err().code(), "forbidden_scope");
    let page = bench.engine.stored_state().state_page(&caller, &Scope::Global, "", None, 9).await;
    assert_eq!(page.unwrap_err().code(), "forbidden_scope");
    let change = vec![global("yours", Reducer::Sum, "1")];
    let refused = bench.engine.stored_state().change_state(&caller, change).await.unwrap_err();
    assert_eq!(refused.code(), "forbidden_scope");
}

#[tokio::test]
async fn a_runs_own_state_is_changed_from_outside_through_the_run() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            ctx.state:set("n", 1)
            ctx:wait("go")
            return { ctx.state:get("n"), ctx.state:get("passing"), ctx.state:list() }
        end"#;
    let run = bench.start(body, "null").await;
    bench.waiting(run, "signal").await;
    let own = Scope::Workflow(run.to_string().into());
    let state = bench.engine.state();
    let change = StateChange { scope: own.to_string(), ..global("n", Reducer::Sum, "4").1 };
    let changed =
        bench.engine.stored_state().change_state(&bench.admin(), vec![(own.clone(), change)]).await;
    assert_eq!(changed.unwrap()[0].value.as_ref().unwrap().as_str(), "5");
    let hints = StoreOptions { lifetime: Some(Lifetime::Transient), ..Default::default() };
    state.write_hinted(&own, "passing", 7.into(), &hints).await.unwrap();
    state.link(&own, &MemoryLink::new("n", "m", "r")).await.unwrap();
    assert_eq!(StateReader::traverse(&state, &own, "n", None, 1).await.unwrap(), ["m"]);
    let mixed = vec![
        global("a", Reducer::Overwrite, "1"),
        (own.clone(), global("b", Reducer::Overwrite, "1").1),
    ];
    let refused =
        bench.engine.stored_state().change_state(&bench.admin(), mixed).await.unwrap_err();
    assert_eq!(refused.code(), "bad_request");
    bench.signal(run, "go", "true").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"[5,7,["n","passing"]]"#);
    assert_eq!(bench.store.state(&own.to_string()).unwrap().len(), 1, "it was never stored");
}

#[tokio::test]
async fn what_is_transient_of_a_run_goes_with_it() {
    let bench = Bench::new();
    let run = bench.start(r#"flow = function(ctx) return ctx:wait("go") end"#, "null").await;
    bench.waiting(run, "signal").await;
    let own = Scope::Workflow(run.to_string().into());
    let within = Scope::Operator { workflow: run.to_string().into(), operator: "coder".into() };
    let hints = StoreOptions { lifetime: Some(Lifetime::Transient), ..Default::default() };
    let state = bench.engine.state();
    for scope in [&own, &within, &Scope::Global] {
        state.write_hinted(scope, "k", 1.into(), &hints).await.unwrap();
    }
    let held = |scope: &Scope| {
        bench.engine.shared().state.transient_value(&scope.to_string(), "k").is_some()
    };
    assert!(held(&own) && held(&within));
    bench.signal(run, "go", "1").await.unwrap();
    bench.ended(run).await;
    let gone = async {
        while held(&own) || held(&within) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("they go when it ends");

    state.write_hinted(&within, "k", 1.into(), &hints).await.unwrap();
    bench.engine.upkeep().delete_runs(Vec::new(), vec![run]).await.unwrap();
    assert!(!held(&within), "it goes when the run is deleted");
    assert!(held(&Scope::Global));
}

const ASKS: &str = r#"agents = { q = { operator = "queue", queue = "q" } },
    flow = function(ctx) return ctx:run("q") end"#;

/// Starts a run and leases its task of the queue `q`.
async fn at_work(bench: &Bench, body: &str) -> (RunId, Holder) {
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    (run, bench.holder(&leased.handle))
}

#[tokio::test]
async fn a_worker_sees_its_run_and_its_operator_and_nothing_else() {
    let bench = Bench::new();
    let (run, holder) = at_work(&bench, ASKS).await;
    let own = Scope::Operator { workflow: run.to_string().into(), operator: "queue".into() };
    let put = async |scope: Option<String>| {
        let value = Json::from_trusted("1");
        bench.engine.tasks().put_worker_state(&holder, scope, "k".into(), value).await
    };
    put(None).await.unwrap();
    put(Some(own.to_string())).await.unwrap();
    let read = bench.engine.tasks().worker_state(&holder, Some(own.to_string()), "k".into()).await;
    assert_eq!(read.unwrap().unwrap().as_str(), "1");
    for scope in ["global", "custom:x", "run:run_other", "operator:run_other:queue"] {
        assert_eq!(put(Some(scope.into())).await.unwrap_err().code(), "forbidden_scope");
    }
    let narrow = ["state:custom:x/k".parse().unwrap()].into_iter().collect();
    let narrowed = Holder { grant: Some(Grant::new(Role::Worker, narrow)), ..holder.clone() };
    let at = async |scope: Option<&str>| {
        let scope = scope.map(str::to_owned);
        bench.engine.tasks().worker_state(&narrowed, scope, "k".into()).await
    };
    assert_eq!(at(Some("custom:x")).await.unwrap(), None);
    assert_eq!(at(None).await.unwrap_err().code(), "forbidden_scope");
}

#[tokio::test]
async fn effects_on_state_are_applied_in_order_with_their_hints_or_not_at_all() {
    let bench = Bench::new();
    let (run, holder) = at_work(&bench, ASKS).await;
    let own = serde_json::json!({ "workflow": run.to_string() });
    let effects = vec![
        serde_json::json!({ "type": "write_memory", "scope": "global", "key": "a", "value": 1,
            "tier": "cold", "lifetime": "durable", "content_kind": "episodic", "salience": 0.5,
            "ttl": 60000 }),
        serde_json::json!({ "type": "write_memory", "scope": own, "key": "b", "value": 1 }),
        serde_json::json!({ "type": "write_memory", "scope": own, "key": "b", "value": 2 }),
        serde_json::json!({ "type": "link_memory", "scope": own,
            "link": { "from_key": "b", "to_key": "c", "relation": "r" } }),
        serde_json::json!({ "type": "log", "level": "info", "message": "done", "data": null }),
    ];
    let foreign = serde_json::json!({ "type": "custom", "effect_type": "x", "data": 1 });
    let refused =
        Report { effects: effects.iter().cloned().chain([foreign]).collect(), ..report("1") };
    let error = bench.engine.tasks().report(&holder, refused).await.unwrap_err();
    assert!(error.to_string().contains("effects[5]"), "{error}");
    assert_eq!(bench.store.state_value("global", "a").unwrap(), None);

    bench.engine.tasks().report(&holder, Report { effects, ..report("1") }).await.unwrap();
    bench.ended(run).await;
    let row = bench.store.state_value("global", "a").unwrap().unwrap();
    assert_eq!(row.expires_ms, Some(bench.clock.now_ms() + 60_000));
    assert_eq!(row.hints.salience, Some(0.5));
    let scope = format!("run:{run}");
    assert_eq!(bench.store.state_value(&scope, "b").unwrap().unwrap().value, "2");
    assert_eq!(bench.store.links_from(&scope, "b", None, 9).unwrap().len(), 1);
}

async fn step_of(bench: &Bench, run: RunId) -> StepView {
    let steps = bench.engine.steps(&bench.admin(), run, 0, 9).await.unwrap();
    steps.items.into_iter().next().unwrap()
}

fn delegate(operator: &str, text: &str) -> serde_json::Value {
    serde_json::json!({ "type": "delegate", "operator": operator,
        "input": { "message": text, "trigger": "task", "session": null, "config": null } })
}

#[tokio::test]
async fn a_delegates_result_goes_to_the_flow_and_several_in_their_order() {
    for (effects, value) in [
        (vec![delegate("echo", "one")], r#""one""#),
        (vec![delegate("echo", "one"), delegate("echo", "two")], r#"["one","two"]"#),
        (
            vec![
                delegate("echo", "one"),
                serde_json::json!({ "type": "handoff", "operator": "echo", "state": { "n": 3 } }),
            ],
            r#"{"n":3}"#,
        ),
    ] {
        let bench = Bench::new();
        let (run, holder) = at_work(&bench, ASKS).await;
        let kept = effects.len();
        bench.engine.tasks().report(&holder, Report { effects, ..report("7") }).await.unwrap();
        assert_eq!(bench.ended(run).await.output.unwrap().as_str(), value);
        let step = step_of(&bench, run).await;
        assert_eq!((step.attempts as usize, step.effects.len()), (kept + 1, kept));
    }
}

#[tokio::test]
async fn what_was_left_to_another_is_taken_up_after_a_restart() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q", output = s.object { n = s.integer } } },
        flow = function(ctx) return ctx:run("q") end"#;
    let (run, holder) = at_work(&bench, body).await;
    let handoff =
        serde_json::json!({ "type": "handoff", "operator": "queue", "state": { "left": 2 } });
    bench
        .engine
        .tasks()
        .report(&holder, Report { effects: vec![handoff], ..report("7") })
        .await
        .unwrap();
    let bench = bench.restart().await;
    let next = bench.lease("q").await;
    let holder = bench.holder(&next.handle);
    let prompt = bench.engine.tasks().prompt(&holder).await.unwrap();
    assert_eq!(prompt.input.as_str(), r#"{"left":2}"#);
    let refused = bench.engine.tasks().report(&holder, report("\"text\"")).await.unwrap_err();
    assert_eq!(refused.code(), "invalid_result");
    bench.engine.tasks().report(&holder, report(r#"{"n":5}"#)).await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"{"n":5}"#);
}

#[tokio::test]
async fn a_key_has_the_value_of_its_step_where_a_worker_leaves_that_to_another() {
    let body = r#"middleware = { swarm.middleware.idempotency {} },
        agents = { q = { operator = "queue", queue = "q", output = s.object { n = s.integer } } },
        flow = function(ctx) return ctx:run("q", 1, { idempotency_key = "k" }) end"#;
    let handoff = serde_json::json!({ "type": "handoff", "operator": "queue", "state": 2 });
    // The agent accepts the result of its own operator, or it does not.
    let cases = [(r#"{"n":1}"#, false), ("7", false), (r#"{"n":1}"#, true), ("7", true)];
    for (first, restarts) in cases {
        let mut bench = Bench::new();
        let (run, holder) = at_work(&bench, body).await;
        let left = Report { effects: vec![handoff.clone()], ..report(first) };
        bench.engine.tasks().report(&holder, left).await.unwrap();
        assert_eq!(bench.store.kept_by("it/idempotency", "", 9).unwrap().len(), 0);
        let mut runs = vec![run];
        match restarts {
            true => bench = bench.restart().await,
            // It waits for the first.
            false => runs.push(bench.start(body, "null").await),
        }
        let next = bench.lease("q").await;
        assert!(bench.report(&next.handle, r#"{"n":5}"#).await.unwrap());
        for run in runs {
            assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"{"n":5}"#);
        }
        assert_eq!(bench.store.kept_by("it/idempotency", "", 9).unwrap().len(), 1);
        assert_eq!(bench.output(body, "null").await, r#"{"n":5}"#);
    }
}

#[tokio::test]
async fn the_signals_of_every_result_of_a_step_arrive_and_all_of_them_are_limited() {
    let bench = Bench::new();
    let receiver = bench
        .start(
            r#"flow = function(ctx)
                local all = {}
                for i = 1, 3 do all[i] = ctx:wait("s") end
                return all
            end"#,
            "null",
        )
        .await;
    let signal = |n: u32| {
        serde_json::json!({ "type": "signal", "target": receiver.to_string(),
            "payload": { "signal_type": "s", "data": n } })
    };
    let handoff = || serde_json::json!({ "type": "handoff", "operator": "queue", "state": 1 });
    let (run, holder) = at_work(&bench, ASKS).await;
    let effects = vec![signal(1), signal(2), handoff()];
    bench.engine.tasks().report(&holder, Report { effects, ..report("7") }).await.unwrap();
    // What was sent before the restart counts.
    let bench = bench.restart().await;
    let leased = bench.lease("q").await;
    let holder = bench.holder(&leased.handle);
    let flood = (0..63).map(signal).collect();
    let report_with = |effects| Report { effects, ..report("8") };
    let refused = bench.engine.tasks().report(&holder, report_with(flood)).await.unwrap_err();
    assert!(refused.to_string().contains("at most 64 signals"), "{refused}");
    let more = report_with(vec![signal(3)]);
    bench.engine.tasks().report(&holder, more).await.unwrap();
    bench.ended(run).await;
    assert_eq!(bench.ended(receiver).await.output.unwrap().as_str(), "[1,2,3]");
}

#[tokio::test]
async fn signals_of_flows_and_effects_are_those_that_a_caller_may_send() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            local kinds = {}
            for i, name in { "", "a\nb", string.rep("x", 201), "ok" } do
                local sent, err = pcall(function() ctx:signal(ctx.run_id, name) end)
                kinds[i] = if sent then "sent" else err.kind
            end
            ctx:run("q")
            return kinds
        end"#;
    let (run, holder) = at_work(&bench, body).await;
    let large = "x".repeat(4 << 20);
    for (name, data, says) in [("a\nb", "", "1 to 200 bytes"), ("s", large.as_str(), "is over")] {
        let signal = serde_json::json!({ "type": "signal", "target": run.to_string(),
            "payload": { "signal_type": name, "data": data } });
        let said = Report { effects: vec![signal], ..report("1") };
        let refused = bench.engine.tasks().report(&holder, said).await.unwrap_err();
        assert!(refused.to_string().contains(says), "{refused}");
    }
    bench.engine.tasks().report(&holder, report("1")).await.unwrap();
    let kinds = bench.ended(run).await.output.unwrap();
    assert_eq!(kinds.as_str(), r#"["refused","refused","refused","sent"]"#);
}

#[tokio::test]
async fn what_is_left_to_another_has_the_time_of_its_call() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            local _, err = ctx:try("q", 1, { timeout = "10s" })
            return err.kind
        end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    let handoff = serde_json::json!({ "type": "handoff", "operator": "queue", "state": 1 });
    let left = Report { effects: vec![handoff], ..report("7") };
    bench.engine.tasks().report(&bench.holder(&leased.handle), left).await.unwrap();
    bench.lease("q").await;
    bench.clock.advance(Duration::from_secs(10));
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#""timeout""#);
}

#[tokio::test]
async fn a_person_allows_a_tool_and_the_operator_goes_on_with_the_answer() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx) return ctx:run("q", { goal = "clean" }) end"#;
    let (run, holder) = at_work(&bench, body).await;
    let asks = serde_json::json!({ "type": "tool_approval_required", "tool_name": "rm",
        "call_id": "c1", "input": { "path": "x" } });
    bench
        .engine
        .tasks()
        .report(&holder, Report { effects: vec![asks], ..report("null") })
        .await
        .unwrap();
    bench
        .until(run, "a person", |view| {
            view.waiting_on.iter().any(|it| it.subject.operator_kind.as_deref() == Some("human"))
        })
        .await;
    let filter = TaskFilter { limit: 9, ..TaskFilter::default() };
    let open = bench.engine.tasks().list(&bench.admin(), filter).await.unwrap().items;
    assert_eq!(open[0].summary.as_deref(), Some("Let it call rm?"));
    let answer = Answer::Output(Json::from_trusted(r#"{"approved":true,"note":"once"}"#));
    bench.engine.tasks().answer(&bench.admin(), open[0].id, (answer, None), None).await.unwrap();
    let again = bench.lease("q").await;
    let holder = bench.holder(&again.handle);
    let input = bench.engine.tasks().prompt(&holder).await.unwrap().input.to_value();
    assert_eq!(input["goal"], "clean");
    assert_eq!(input["approvals"][0]["call_id"], "c1");
    assert_eq!(input["approvals"][0]["approved"], true);
    bench.engine.tasks().report(&holder, report(r#""done""#)).await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#""done""#);
}

#[tokio::test]
async fn follow_ups_are_bounded_known_and_permitted() {
    let bench = Bench::new();
    let (_, holder) = at_work(&bench, ASKS).await;
    let handoff = serde_json::json!({ "type": "handoff", "operator": "echo", "state": 1 });
    for (effects, why) in [
        (vec![delegate("nobody", "x")], "there is no operator nobody"),
        (vec![handoff, delegate("echo", "x")], "a handoff is the last"),
    ] {
        let refused = Report { effects, ..report("1") };
        let error = bench.engine.tasks().report(&holder, refused).await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    let flood = vec![delegate("echo", "x"); 129];
    let error =
        bench.engine.tasks().report(&holder, Report { effects: flood, ..report("1") }).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("at most 128 follow-ups"), "{error}");
}

#[tokio::test]
async fn every_operation_on_state_passes_the_layers() {
    let bench = Bench::new();
    let body = r#"middleware = { swarm.middleware.guard { scopes = { "run:*" } } },
        agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            ctx.state:set("k", 1)
            local g = ctx:scope("global")
            local function kind(fn) local ok, err = pcall(fn) return if ok then "done" else err.kind end
            local kinds = {
                kind(function() g:set("k", 1) end), kind(function() g:get("k") end),
                kind(function() g:delete("k") end), kind(function() g:list() end),
                kind(function() g:search("k") end), kind(function() g:add("k") end),
                kind(function() g:link("k", "l", "r") end), kind(function() g:unlink("k", "l", "r") end),
                kind(function() g:traverse("k") end), kind(function() return ctx.state:get("k") end),
            }
            ctx:run("q")
            return kinds
        end"#;
    let (run, holder) = at_work(&bench, body).await;
    let write =
        serde_json::json!({ "type": "write_memory", "scope": "global", "key": "k", "value": 1 });
    let error =
        bench.engine.tasks().report(&holder, Report { effects: vec![write], ..report("1") }).await;
    assert_eq!(error.unwrap_err().code(), "invalid_result");
    bench.engine.tasks().report(&holder, report("1")).await.unwrap();
    let out = bench.ended(run).await.output.unwrap().to_value();
    let mut expected = vec!["refused"; 9];
    expected.push("done");
    assert_eq!(out, serde_json::json!(expected));
    assert_eq!(bench.store.state("global").unwrap().len(), 0);
}
