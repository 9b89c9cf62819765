use super::*;

const ASKS: &str = r#"agents = { q = { operator = "queue", queue = "q", output = s.object { n = s.integer },
            system = "You count {{ input.what }}." } },
        flow = function(ctx) local r, err = ctx:try("q", { what = "sheep" }) return r or err.kind end"#;

#[tokio::test]
async fn a_worker_fetches_its_prompt_and_reports_once() {
    let bench = Bench::new();
    let run = bench.start(ASKS, "null").await;
    let leased = bench.lease("q").await;
    let holder = bench.holder(&leased.handle);
    let prompt = bench.engine.tasks().prompt(&holder).await.unwrap();
    assert_eq!(prompt.system.as_deref(), Some("You count sheep."));
    assert_eq!(prompt.input.as_str(), r#"{"what":"sheep"}"#);
    assert!(bench.report(&leased.handle, r#"{"n":5}"#).await.unwrap());
    assert!(!bench.report(&leased.handle, r#"{"n":5}"#).await.unwrap(), "the same again");
    let other = bench.report(&leased.handle, r#"{"n":6}"#).await.unwrap_err();
    assert_eq!(other.code(), "already_accepted");
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"{"n":5}"#);
}

#[tokio::test]
async fn a_result_in_a_markdown_fence_is_unfolded() {
    let bench = Bench::new();
    let run = bench.start(ASKS, "null").await;
    let leased = bench.lease("q").await;
    let fenced = serde_json::to_string("Here:\n```json\n{\"n\": 9}\n```\n").unwrap();
    assert!(bench.report(&leased.handle, &fenced).await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"{"n":9}"#);
}

#[tokio::test]
async fn three_results_that_break_the_schema_end_the_attempt() {
    let bench = Bench::new();
    let run = bench.start(ASKS, "null").await;
    let leased = bench.lease("q").await;
    for wrong in [r#"{"n":"a"}"#, r#"{"n":"b"}"#, r#"{"n":"c"}"#] {
        let error = bench.report(&leased.handle, wrong).await.unwrap_err();
        assert_eq!(error.code(), "invalid_result");
        assert!(error.to_string().contains("$.n"), "{error}");
    }
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "\"invalid_result\"");
}

#[tokio::test]
async fn a_forged_handle_is_refused() {
    let bench = Bench::new();
    bench.start(ASKS, "null").await;
    let leased = bench.lease("q").await;
    let last = if leased.handle.ends_with('a') { "b" } else { "a" };
    let forged = format!("{}{last}", &leased.handle[..leased.handle.len() - 1]);
    let refused = match bench.engine.authenticate(&forged) {
        Err(error) => error,
        Ok(Bearer::Holder(holder)) => bench.engine.tasks().prompt(&holder).await.unwrap_err(),
        Ok(Bearer::Caller(_)) => panic!("it is no token"),
    };
    assert_eq!(refused.code(), "unauthenticated");
}

#[tokio::test]
async fn effects_are_applied_with_the_accepted_result_and_never_with_a_refused_one() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q", output = s.object { n = s.integer } } },
        flow = function(ctx) ctx:run("q") return ctx.state:get("k") end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    let effect = serde_json::json!({
        "type": "write_memory", "scope": { "workflow": run.to_string() }, "key": "k", "value": 5,
    });
    let holder = bench.holder(&leased.handle);
    let wrong = Report { effects: vec![effect.clone()], ..report(r#"{"n":"x"}"#) };
    bench.engine.tasks().report(&holder, wrong).await.unwrap_err();
    assert!(bench.store.state(&format!("run:{run}")).unwrap().is_empty());
    let unknown =
        Report { effects: vec![serde_json::json!({ "type": "explode" })], ..report(r#"{"n":1}"#) };
    assert_eq!(
        bench.engine.tasks().report(&holder, unknown).await.unwrap_err().code(),
        "invalid_result"
    );
    let right = Report { effects: vec![effect], ..report(r#"{"n":1}"#) };
    assert!(bench.engine.tasks().report(&holder, right).await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "5");
}

#[tokio::test]
async fn a_result_after_a_refused_one_passes_the_layers_as_well() {
    let bench = Bench::new();
    let body = r#"middleware = { swarm.middleware.redact { patterns = { "sk-[a-z]+" } } },
        agents = { q = { operator = "queue", queue = "q", output = s.object { say = s.string } } },
        flow = function(ctx) return ctx:run("q") end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    let holder = bench.holder(&leased.handle);
    let secret = r#"{"say":"sk-abc"}"#;
    let effect = serde_json::json!({
        "type": "write_memory", "scope": { "workflow": run.to_string() }, "key": "", "value": 5,
    });
    let refused = Report { effects: vec![effect], ..report(secret) };
    assert_eq!(
        bench.engine.tasks().report(&holder, refused).await.unwrap_err().code(),
        "invalid_result"
    );
    assert!(bench.report(&leased.handle, secret).await.unwrap());
    let output = bench.ended(run).await.output.unwrap();
    assert_eq!(output.as_str(), r#"{"say":"[redacted]"}"#);
}

#[tokio::test]
async fn a_result_is_stored_under_its_key_in_the_commit_that_accepts_its_effects() {
    let bench = Bench::new();
    let body = r#"middleware = { swarm.middleware.idempotency {} },
        agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx) return ctx:run("q", 1, { idempotency_key = "k" }) end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    let kept = || bench.store.kept_by("it/idempotency", "", 9).unwrap().len();
    let effect = serde_json::json!({
        "type": "write_memory", "scope": { "workflow": run.to_string() }, "key": "", "value": 5,
    });
    let refused = Report { effects: vec![effect], ..report("1") };
    let holder = bench.holder(&leased.handle);
    let error = bench.engine.tasks().report(&holder, refused).await.unwrap_err();
    assert_eq!((error.code().as_str(), kept()), ("invalid_result", 0));
    assert!(bench.report(&leased.handle, "2").await.unwrap());
    assert_eq!(kept(), 1);
    bench.ended(run).await;
    assert_eq!(bench.output(body, "null").await, "2");
}

#[tokio::test]
async fn a_result_of_a_task_that_was_leased_before_a_restart_passes_the_layers() {
    let bench = Bench::new();
    let body = r#"middleware = {
            swarm.middleware.redact { patterns = { "sk-[a-z]+" } }, swarm.middleware.audit {},
        },
        agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx) return ctx:run("q") end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    let bench = bench.restart().await;
    assert!(bench.report(&leased.handle, r#""sk-abc""#).await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#""[redacted]""#);
    let bench = bench.restart().await;
    let lines = bench.store.audit(0, 10).unwrap();
    let settled = lines.iter().filter(|it| it.line.contains(r#""settled""#)).count();
    assert_eq!((lines.len(), settled), (2, 1), "{lines:?}");
}

#[tokio::test]
async fn a_cache_keeps_what_is_redacted_and_nothing_that_breaks_the_schema() {
    let bench = Bench::new();
    let body = r#"middleware = {
            swarm.middleware.redact { patterns = { "sk-[a-z]+" } }, swarm.middleware.cache {},
        },
        agents = { p = { operator = "process", output = s.object { say = s.string }, command = {
            "sh", "-c", [[if [ -e once ]; then echo '{"say":"sk-abc"}'; else : > once; echo 1; fi]],
        } } },
        flow = function(ctx)
            local _, err = ctx:try("p")
            return { err.kind, ctx:run("p").say, ctx:run("p").say }
        end"#;
    let output = bench.output(body, "null").await;
    assert_eq!(output, r#"["invalid_result","[redacted]","[redacted]"]"#);
    let bench = bench.restart().await;
    let kept = bench.store.kept_by("it/cache", "", 9).unwrap();
    let kept: Vec<_> = kept.iter().map(|row| row.value.as_str()).collect();
    assert_eq!(kept, [r#"{"say":"[redacted]"}"#]);
}

/// Lets an attempt call one operator alone.
struct Narrows;

#[async_trait::async_trait]
impl crate::middleware::DispatchLayer for Narrows {
    fn name(&self) -> &str {
        "narrows"
    }

    async fn dispatch(
        &self,
        mut dispatch: crate::middleware::Dispatch,
        next: crate::middleware::Next<'_>,
    ) -> Result<crate::middleware::Dispatched, crate::protocol::Failure> {
        dispatch.config.allowed_operators = Some(vec!["echo".to_owned()]);
        next.run(dispatch).await
    }
}

#[tokio::test]
async fn a_reported_result_is_left_only_to_operators_that_the_layers_allow() {
    let mut middleware = Middleware::default();
    middleware.code.dispatch = crate::middleware::DispatchStack::builder().guard(Narrows).build();
    let bench = Bench::open_layered(&Coded::default(), middleware);
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx) return ctx:run("q") end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    let holder = bench.holder(&leased.handle);
    let to = |operator: &str| {
        let input = serde_json::json!({ "message": "on", "trigger": "task" });
        let effect = serde_json::json!({
            "type": "delegate", "operator": operator, "input": input,
        });
        Report { effects: vec![effect], ..report("1") }
    };
    let refused = bench.engine.tasks().report(&holder, to("human")).await.unwrap_err();
    assert!(refused.to_string().contains("none of the operators"), "{refused}");
    // The layers do not see it again after a restart; what they left is in the journal.
    let bench = bench.restart().await;
    let holder = bench.holder(&leased.handle);
    let refused = bench.engine.tasks().report(&holder, to("human")).await.unwrap_err();
    assert!(refused.to_string().contains("none of the operators"), "{refused}");
    assert!(bench.engine.tasks().report(&holder, to("echo")).await.unwrap());
    bench.ended(run).await;
}

#[tokio::test]
async fn a_workers_file_is_published_with_its_result() {
    let bench = Bench::new();
    let run = bench.start(ASKS, "null").await;
    let leased = bench.lease("q").await;
    let holder = bench.holder(&leased.handle);
    bench.engine.tasks().put_artifact(&holder, "a.txt".into(), b"hi".to_vec()).await.unwrap();
    assert!(bench.engine.tasks().artifacts(&bench.admin(), run).await.unwrap().is_empty());
    bench.report(&leased.handle, r#"{"n":1}"#).await.unwrap();
    let files = bench.engine.tasks().artifacts(&bench.admin(), run).await.unwrap();
    assert_eq!(files.len(), 1);
    assert_eq!(bench.engine.tasks().artifact(&bench.admin(), files[0].id).await.unwrap().1, b"hi");
}

#[tokio::test]
async fn a_person_answers_a_form_and_a_rejection_is_raised() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx)
            local first = ctx:approve { title = "Ship it?" }
            local ok, err = pcall(function() return ctx:approve { title = "Really?" } end)
            return { first.approved, ok, err.kind }
        end"#;
    let run = bench.start(body, "null").await;
    let ask = |answer| async {
        bench.waiting(run, "task").await;
        let open = bench
            .engine
            .tasks()
            .list(&bench.admin(), TaskFilter { limit: 10, ..Default::default() })
            .await;
        let task = open.unwrap().items[0].id;
        bench.engine.tasks().answer(&bench.admin(), task, (answer, None), None).await.map(|_| ())
    };
    let wrong = ask(Answer::Output(Json::from_trusted("{}"))).await.unwrap_err();
    assert_eq!(wrong.code(), "invalid_result");
    ask(Answer::Output(Json::from_trusted(r#"{"approved":true}"#))).await.unwrap();
    bench.until(run, "second", |view| view.steps == 2).await;
    ask(Answer::Reject { reason: "no".into() }).await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"[true,false,"human_rejected"]"#);
}

#[tokio::test]
async fn a_revoked_token_is_refused_at_once() {
    let bench = Bench::new();
    let admin = bench.engine.tokens().mint_admin().await.unwrap();
    let Bearer::Caller(caller) = bench.engine.authenticate(&admin.token).unwrap() else { panic!() };
    let mint = MintToken {
        role: Role::Operator,
        verbs: None,
        extra_verbs: Vec::new(),
        scopes: Some(vec!["run:*".into()]),
        ttl_ms: 60_000,
        name: None,
        quotas: Default::default(),
    };
    let child = bench.engine.tokens().mint(&caller, mint, None).await.unwrap();
    assert!(bench.engine.authenticate(&child.token).is_ok());
    bench.engine.tokens().revoke(&bench.admin(), &admin.jti).await.unwrap();
    assert_eq!(bench.engine.authenticate(&admin.token).unwrap_err().code(), "token_revoked");
    assert_eq!(bench.engine.authenticate(&child.token).unwrap_err().code(), "token_revoked");
}

#[tokio::test]
async fn a_worker_skips_what_does_not_apply_whatever_the_schema_says() {
    let bench = Bench::new();
    let asks = ASKS.replace("return r or err.kind", "return tostring(r) .. tostring(err)");
    let run = bench.start(&asks, "null").await;
    let leased = bench.lease("q").await;
    let skip = |data: serde_json::Value| {
        let effect = serde_json::json!({ "type": "custom", "effect_type": "skip", "data": data });
        Report { effects: vec![effect], ..report("\"no number\"") }
    };
    let holder = bench.holder(&leased.handle);
    for data in [serde_json::json!(null), serde_json::json!({ "reason": "x".repeat(1_025) })] {
        let error = bench.engine.tasks().report(&holder, skip(data)).await.unwrap_err();
        assert_eq!(error.code(), "invalid_result", "{error}");
    }
    let reason = serde_json::json!({ "reason": "there is no number" });
    bench.engine.tasks().report(&holder, skip(reason.clone())).await.unwrap();
    let view = bench.ended(run).await;
    assert_eq!((view.status, view.output.unwrap().as_str()), (RunStatus::Completed, "\"nilnil\""));
    let steps = bench.engine.steps(&bench.admin(), run, 0, 9).await.unwrap().items;
    assert_eq!(steps[0].effects[0].to_value()["data"], reason);
}

#[tokio::test]
async fn a_task_whose_run_cannot_be_read_for_a_moment_stays_in_its_queue() {
    let bench = Bench::new();
    let run = bench.start(ASKS, "null").await;
    bench.waiting(run, "task").await;
    let bench = bench.restart().await;
    crate::store::tamper(bench.dir.path(), "ALTER TABLE journal RENAME TO away");
    let labels = Labels::default();
    let (queue, worker, wait) = ("q", "test", Duration::ZERO);
    let ask = LeaseAsk { queue, worker, labels: &labels, max: 1, wait, prompts: false };
    for _ in 0..2 {
        let refused = bench.engine.tasks().lease(&bench.admin(), &ask).await.unwrap_err();
        assert!(matches!(refused, EngineError::Store(_)), "{refused:?}");
    }
    crate::store::tamper(bench.dir.path(), "ALTER TABLE away RENAME TO journal");
    let leased = bench.leases("q", Duration::ZERO).await;
    assert!(bench.report(&leased[0].handle, r#"{"n":5}"#).await.unwrap());
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"{"n":5}"#);
}
