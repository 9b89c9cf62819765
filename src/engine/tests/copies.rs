use super::*;
use crate::{
    journal::Decision,
    protocol::{MemoryLink, Scope, StateStore as _},
};

const CHAIN: &str = r#"agents = { e = { operator = "echo" }, q = { operator = "queue", queue = "q" } },
    flow = function(ctx, input)
        ctx.state:set("seen", 1)
        local a = ctx:run("e", input.base)
        ctx.state:set("seen", 2)
        local b = ctx:run("q", a + 1)
        ctx:status("done")
        return { a, b, ctx.state:get("seen") }
    end"#;

async fn chained(bench: &Bench) -> RunId {
    let run = bench.start(CHAIN, r#"{"base":10}"#).await;
    let leased = bench.lease("q").await;
    bench.report(&leased.handle, "\"first\"").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"[10,"first",2]"#);
    run
}

/// Waits until a called run has begun and waits for its signal.
async fn called(bench: &Bench, run: RunId) {
    let begun = async {
        while bench.store.header(run.num()).unwrap().is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.expect("the called run begins");
    bench.waiting(run, "signal").await;
}

async fn fork(bench: &Bench, run: RunId, from_step: u32, patch: Option<&str>) -> RunView {
    let fork =
        Fork { input_patch: patch.map(|text| Json::parse(text).unwrap()), ..Fork::new(from_step) };
    bench.engine.histories().fork(&bench.admin(), run, fork, None).await.unwrap().view().unwrap()
}

fn other(body: &str) -> Option<Program> {
    let source = format!(
        "local swarm = require(\"swarm\")\nlocal s = swarm.schema\nreturn swarm.blueprint {{ name = \"it\", {body} }}"
    );
    Some(Program::Bundle(Bundle::from_source("it.lua", source).unwrap()))
}

#[tokio::test]
async fn a_fork_keeps_what_lies_before_its_step_and_does_the_rest_anew() {
    let bench = Bench::new();
    let run = chained(&bench).await;
    let steps = bench.engine.steps(&bench.admin(), run, 0, 50).await.unwrap().items;
    let asked = steps.iter().find(|step| step.name == "q").unwrap().seq;
    let view = fork(&bench, run, asked, None).await;
    assert_ne!(view.id, run);
    assert_eq!(view.copied_from.clone().unwrap().run, run.to_string());
    assert_eq!(view.copied_from.unwrap().step, Some(asked));
    let leased = bench.lease("q").await;
    bench.report(&leased.handle, "\"second\"").await.unwrap();
    assert_eq!(bench.ended(view.id).await.output.unwrap().as_str(), r#"[10,"second",2]"#);
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"[10,"first",2]"#);
    let bench = bench.restart().await;
    assert!(bench.engine.run(&bench.admin(), view.id).await.unwrap().copied_from.is_some());
}

#[tokio::test]
async fn a_fork_of_an_open_run_leaves_it_alone_and_has_attempts_of_its_own() {
    let bench = Bench::new();
    let run = bench.start(CHAIN, r#"{"base":1}"#).await;
    let held = bench.lease("q").await;
    let steps = bench.engine.steps(&bench.admin(), run, 0, 50).await.unwrap().items;
    let last = steps.last().unwrap().seq;
    // Past the last step: the open one is kept, as a task of the fork's own.
    let view = fork(&bench, run, last + 1, None).await;
    let leased = bench.lease("q").await;
    bench.report(&leased.handle, "\"fork\"").await.unwrap();
    bench.report(&held.handle, "\"original\"").await.unwrap();
    assert_eq!(bench.ended(view.id).await.output.unwrap().as_str(), r#"[1,"fork",2]"#);
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"[1,"original",2]"#);
}

#[tokio::test]
async fn a_fork_that_asks_for_something_else_rests_and_says_what() {
    let bench = Bench::new();
    let run = chained(&bench).await;
    let view = fork(&bench, run, 4, Some(r#"{"base":11}"#)).await;
    assert_eq!(view.status, RunStatus::Paused, "{view:#?}");
    let message = view.error.unwrap().message;
    assert!(message.contains("with 10") && message.contains("with 11"), "{message}");
    let view = fork(&bench, run, 1, Some(r#"{"base":11}"#)).await;
    let leased = bench.lease("q").await;
    bench.report(&leased.handle, "12").await.unwrap();
    assert_eq!(bench.ended(view.id).await.output.unwrap().as_str(), "[11,12,2]");
}

#[tokio::test]
async fn a_fork_from_no_step_of_the_run_is_refused() {
    let bench = Bench::new();
    let run = chained(&bench).await;
    for from_step in [0, 99] {
        let fork = Fork::new(from_step);
        let refused =
            bench.engine.histories().fork(&bench.admin(), run, fork, None).await.unwrap_err();
        assert_eq!(refused.code(), "not_found");
    }
}

#[tokio::test]
async fn what_ended_after_the_cut_is_kept_where_it_began_before_it() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            return ctx:map({ 1, 2, 3 }, function(n) return ctx:run("q", n) end)
        end"#;
    let run = bench.start(body, "null").await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(bench.lease("q").await);
    }
    for (n, leased) in held.iter().enumerate().rev() {
        bench.report(&leased.handle, &n.to_string()).await.unwrap();
    }
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "[0,1,2]");
    let view = fork(&bench, run, 3, None).await;
    let leased = bench.lease("q").await;
    bench.report(&leased.handle, "9").await.unwrap();
    assert_eq!(bench.ended(view.id).await.output.unwrap().as_str(), "[0,1,9]");
}

#[tokio::test]
async fn a_fork_calls_runs_of_its_own() {
    let bench = Bench::new();
    let body = r#"flow = function(ctx, input)
            if input and input.child then return ctx:wait("go") end
            return ctx:call("it", { child = true })
        end"#;
    let run = bench.start(body, "{}").await;
    let child = |view: &RunView| -> RunId {
        let on = view.waiting_on.iter().find(|on| on.kind == "child").unwrap();
        on.subject.run.unwrap()
    };
    let first = child(&bench.waiting(run, "child").await);
    called(&bench, first).await;
    let copy = fork(&bench, run, 2, None).await.id;
    let second = child(&bench.waiting(copy, "child").await);
    assert_ne!(first, second);
    called(&bench, second).await;
    bench.signal(second, "go", "2").await.unwrap();
    assert_eq!(bench.ended(copy).await.output.unwrap().as_str(), "2");
    bench.signal(first, "go", "1").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "1");
}

#[tokio::test]
async fn a_replay_has_no_effects_and_shows_the_first_divergence() {
    let bench = Bench::new();
    let run = chained(&bench).await;
    let before = bench.entries(run).len();
    let same = bench.engine.histories().replay(&bench.admin(), run, None).await.unwrap();
    assert_eq!((same.divergence, same.entries as usize), (None, before));

    let changed = CHAIN.replace("a + 1", "a + 2");
    let replay =
        bench.engine.histories().replay(&bench.admin(), run, other(&changed)).await.unwrap();
    let divergence = replay.divergence.unwrap();
    assert_eq!(divergence.recorded.unwrap().request.as_str(), "11");
    assert_eq!(divergence.asked.unwrap().request.as_str(), "12");

    let longer = CHAIN.replace("return { a, b, ", "ctx.state:get(\"seen\") return { a, b, ");
    let replay =
        bench.engine.histories().replay(&bench.admin(), run, other(&longer)).await.unwrap();
    let divergence = replay.divergence.unwrap();
    assert!(divergence.recorded.is_none(), "{divergence:?}");

    let shorter = CHAIN.replace("ctx.state:get(\"seen\")", "2");
    let replay =
        bench.engine.histories().replay(&bench.admin(), run, other(&shorter)).await.unwrap();
    assert!(replay.divergence.unwrap().asked.is_none());

    let ending = CHAIN.replace("return { a, b,", "return { a, a,");
    let replay =
        bench.engine.histories().replay(&bench.admin(), run, other(&ending)).await.unwrap();
    let message = replay.divergence.unwrap().message;
    assert!(message.contains("completed with [10,10,2]"), "{message}");
    assert_eq!(bench.entries(run).len(), before);
}

async fn document(bench: &Bench, run: RunId) -> Vec<u8> {
    let mut export = bench.engine.histories().export(&bench.admin(), run).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(line) = export.next().await {
        bytes.extend(line.unwrap());
    }
    bytes
}

#[tokio::test]
async fn a_document_that_no_import_takes_is_refused_before_its_first_line() {
    let bench = Bench::new();
    let run = bench.start(WITH_FILE, "null").await;
    bench.waiting(run, "signal").await;
    bench.signal(run, "go", "1").await.unwrap();
    bench.ended(run).await;
    let refused = async |says: &str| {
        let refused = bench.engine.histories().export(&bench.admin(), run).await.unwrap_err();
        assert_eq!(refused.code(), "history_too_long");
        assert!(refused.to_string().contains(says), "{refused}");
    };
    crate::store::tamper(bench.dir.path(), "UPDATE artifacts SET size = 140000000");
    refused("bytes, and `import` takes at most 134217728").await;
    let mut header = bench.store.header(run.num()).unwrap().unwrap();
    header.seq = 99_999;
    let expected = Some(header.cursor);
    let longer = crate::store::RunWrite { header, expected, entries: Vec::new(), whole: true };
    crate::store::commit(&*bench.store, Vec::new(), Some(longer), Vec::new()).await.unwrap();
    refused("99999 entries, and `import` takes at most 99998").await;
}

const WITH_FILE: &str = r#"agents = { e = { operator = "echo" } },
    flow = function(ctx)
        local file = ctx:artifact("report.md", "hello")
        ctx.state:set("k", { 1, 2 })
        local n = ctx:wait("go")
        return { ctx:read_artifact(file.id), n }
    end"#;

#[tokio::test]
async fn an_exported_run_goes_on_elsewhere() {
    let bench = Bench::new();
    let run = bench.start(WITH_FILE, "null").await;
    bench.waiting(run, "signal").await;
    let bytes = document(&bench, run).await;

    let there = Bench::new();
    let view = there
        .engine
        .histories()
        .import(&there.admin(), bytes.clone(), None)
        .await
        .unwrap()
        .view()
        .unwrap();
    assert_eq!((view.id, view.status), (run, RunStatus::Paused));
    assert_eq!(view.waiting_on[0].kind, "resume");
    there.engine.resume(&there.admin(), run).await.unwrap();
    there.signal(run, "go", "7").await.unwrap();
    assert_eq!(there.ended(run).await.output.unwrap().as_str(), r#"["hello",7]"#);

    // Its number is taken now; the copy is another run, and finds its files under its old name.
    let again =
        there.engine.histories().import(&there.admin(), bytes, None).await.unwrap().view().unwrap();
    assert_ne!(again.id, run);
    assert_eq!(again.copied_from.unwrap().run, run.to_string());
    there.engine.resume(&there.admin(), again.id).await.unwrap();
    there.signal(again.id, "go", "8").await.unwrap();
    assert_eq!(there.ended(again.id).await.output.unwrap().as_str(), r#"["hello",8]"#);
    let scope = format!("run:{}", again.id);
    assert_eq!(there.store.state(&scope).unwrap()[0].value, "[1,2]");
}

#[tokio::test]
async fn the_document_of_a_run_that_goes_on_is_of_one_moment() {
    let bench = Bench::new();
    let body = r#"agents = { e = { operator = "echo" } },
        flow = function(ctx)
            for n = 1, 100 do ctx:run("e", n) end
            ctx.state:add("n")
            ctx:wait("go")
            ctx.state:add("n")
            ctx:wait("on")
            return ctx.state:get("n")
        end"#;
    let run = bench.start(body, "null").await;
    bench.waiting(run, "signal").await;
    let mut export = bench.engine.histories().export(&bench.admin(), run).await.unwrap();
    let mut bytes = Vec::new();
    // The run, its blueprint and the first entry; the history has more lines than are buffered.
    for _ in 0..3 {
        bytes.extend(export.next().await.unwrap().unwrap());
    }
    bench.signal(run, "go", "1").await.unwrap();
    let scope = format!("run:{run}");
    let value = || bench.store.state_value(&scope, "n").unwrap().unwrap().value;
    bench.until(run, "the second change", |_| value() == "2").await;
    while let Some(line) = export.next().await {
        bytes.extend(line.unwrap());
    }

    let there = Bench::new();
    there.engine.histories().import(&there.admin(), bytes, None).await.unwrap();
    there.engine.resume(&there.admin(), run).await.unwrap();
    there.signal(run, "go", "1").await.unwrap();
    there.signal(run, "on", "1").await.unwrap();
    assert_eq!(there.ended(run).await.output.unwrap().as_str(), "2");
}

#[tokio::test]
async fn an_ended_run_is_the_same_in_another_directory() {
    let bench = Bench::new();
    let run = chained(&bench).await;
    let bytes = document(&bench, run).await;
    let there = Bench::new();
    let view =
        there.engine.histories().import(&there.admin(), bytes, None).await.unwrap().view().unwrap();
    assert_eq!((view.id, view.status), (run, RunStatus::Completed));
    assert_eq!(view.output.unwrap().as_str(), r#"[10,"first",2]"#);
    let replay = there.engine.histories().replay(&there.admin(), run, None).await.unwrap();
    assert_eq!(replay.divergence, None);
    let there = there.restart().await;
    assert_eq!(there.ended(run).await.status, RunStatus::Completed);
}

#[tokio::test]
async fn a_document_that_was_changed_is_refused_and_leaves_nothing() {
    let bench = Bench::new();
    let run = bench.start(WITH_FILE, "null").await;
    bench.waiting(run, "signal").await;
    let text = String::from_utf8(document(&bench, run).await).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let join = |lines: &[&str]| lines.join("\n") + "\n";
    let without_end = join(&lines[..lines.len() - 1]);
    let without_entry = join(&[&lines[..3], &lines[4..]].concat());
    let cases = [
        ("{}".to_owned(), "no run that moonswarm exported"),
        (text.replace("\"version\":2", "\"version\":3"), "version 3"),
        (without_end, "breaks off"),
        (without_entry, "was changed"),
        (text.replace("\"name\":\"report.md\"", "\"name\":\"resort.md\""), "was changed"),
        (text.replace("local n", "local m"), "the files have the hash"),
        (text.clone() + "{}", "document"),
    ];
    let there = Bench::new();
    for (document, says) in cases {
        let refused =
            there.engine.histories().import(&there.admin(), document.into_bytes(), None).await;
        let message = refused.unwrap_err().to_string();
        assert!(message.contains(says), "{says}: {message}");
    }
    let all = RunFilter { limit: 10, ..RunFilter::default() };
    assert!(there.store.headers(&all).unwrap().is_empty());
}

#[tokio::test]
async fn what_an_import_brings_along_may_do_no_more_than_who_imports_it() {
    let bench = Bench::new();
    let run = bench.start(WITH_FILE, "null").await;
    bench.waiting(run, "signal").await;
    let bytes = document(&bench, run).await;
    let there = Bench::new();
    let who = Caller { subject: "ann".into(), ..there.admin() };
    there.engine.histories().import(&who, bytes.clone(), None).await.unwrap();
    let entries = there.entries(run);
    let Fact::RunStarted(started) = &entries[0].fact else { panic!() };
    assert_eq!(started.principal, "ann");
    assert!(entries.iter().any(|e| matches!(e.fact, Fact::Decided(Decision::Copied { .. }))));
    let grant = Grant::new(Role::Operator, Scopes::all()).into();
    let operator = Caller { grant, ..there.admin() };
    let refused = there.engine.histories().import(&operator, bytes, None).await.unwrap_err();
    assert_eq!(refused.code(), "forbidden_verb");
}

const LINKED: &str = r#"agents = { q = { operator = "queue", queue = "q" } },
    flow = function(ctx)
        local st = ctx.state
        st:set("a", 1, { ttl = "1h", salience = 0.5 })
        st:set("gone", 1)
        st:set("passing", 1, { lifetime = "transient" })
        st:link("a", "b", "near")
        st:link("b", "c", "near")
        st:link("a", "gone", "near")
        ctx:run("q", "first")
        st:unlink("b", "c", "near")
        st:delete("gone")
        st:link("c", "a", "later")
        ctx:run("q", "second")
        return st:traverse("a", { depth = 9 })
    end"#;

/// A run that has made links, and others made some at it, up to its second task.
async fn linked(bench: &Bench) -> RunId {
    let run = bench.start(LINKED, "null").await;
    let leased = bench.lease("q").await;
    let own = Scope::Workflow(run.to_string().into());
    let mut noted = MemoryLink::new("b", "x", "noted");
    noted.metadata = Some(serde_json::json!({ "by": "hand" }));
    bench.engine.state().link(&own, &noted).await.unwrap();
    bench.report(&leased.handle, "1").await.unwrap();
    run
}

fn links(bench: &Bench, run: RunId) -> Vec<String> {
    let links = bench.store.links(&format!("run:{run}")).unwrap();
    let shown = |it: MemoryLink| {
        let noted = it.metadata.map(|it| it["by"].as_str().unwrap().to_owned());
        format!("{}-{}-{}{}", it.from_key, it.relation, it.to_key, noted.unwrap_or_default())
    };
    links.into_iter().map(shown).collect()
}

#[tokio::test]
async fn a_fork_has_the_links_and_the_hints_that_the_kept_steps_left() {
    let bench = Bench::new();
    let run = linked(&bench).await;
    let held = bench.lease("q").await;
    assert_eq!(links(&bench, run), ["a-near-b", "b-noted-xhand", "c-later-a"]);
    let steps = bench.engine.steps(&bench.admin(), run, 0, 50).await.unwrap().items;
    let first = steps.iter().find(|step| step.name == "q").unwrap().seq;
    let began = bench.clock.now_ms();
    bench.clock.advance(Duration::from_secs(10));
    let copy = fork(&bench, run, first, None).await.id;
    let before = ["a-near-b", "a-near-gone", "b-near-c", "b-noted-xhand"];
    assert_eq!(links(&bench, copy), before);
    let rows = bench.store.state(&format!("run:{copy}")).unwrap();
    let kept: Vec<_> =
        rows.iter().map(|row| (row.key.as_str(), row.expires_ms, row.hints.salience)).collect();
    assert_eq!(kept, [("a", Some(began + 3_600_000), Some(0.5)), ("gone", None, None)]);
    for _ in 0..2 {
        let leased = bench.lease("q").await;
        bench.report(&leased.handle, "2").await.unwrap();
    }
    assert_eq!(bench.ended(copy).await.output.unwrap().as_str(), r#"["b","x"]"#);
    bench.report(&held.handle, "2").await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), r#"["b","x"]"#);
}

#[tokio::test]
async fn an_imported_run_has_its_links_and_what_is_said_of_its_values() {
    let bench = Bench::new();
    let run = linked(&bench).await;
    bench.lease("q").await;
    let bytes = document(&bench, run).await;
    let there = Bench::new();
    let view =
        there.engine.histories().import(&there.admin(), bytes, None).await.unwrap().view().unwrap();
    assert_eq!(links(&there, view.id), ["a-near-b", "b-noted-xhand", "c-later-a"]);
    let row = there.store.state_value(&format!("run:{run}"), "a").unwrap().unwrap();
    assert_eq!((row.hints.salience, row.value.as_str()), (Some(0.5), "1"));
    assert_eq!(row.expires_ms, Some(1_700_000_000_000 + 3_600_000));
    there.engine.resume(&there.admin(), run).await.unwrap();
    let leased = there.lease("q").await;
    there.report(&leased.handle, "2").await.unwrap();
    assert_eq!(there.ended(run).await.output.unwrap().as_str(), r#"["b","x"]"#);
}

#[tokio::test]
async fn an_imported_run_has_the_state_of_the_operators_within_it() {
    let bench = Bench::new();
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            local coder = ctx:scope { operator = "a/coder" }
            coder:set("a", 1, { salience = 0.5 })
            coder:link("a", "b", "near")
            ctx:scope({ operator = "writer" }):set("a", 2)
            return ctx:run("q")
        end"#;
    let run = bench.start(body, "null").await;
    bench.lease("q").await;
    let bytes = document(&bench, run).await;
    let there = Bench::new();
    let importer = there.admin();
    for _ in 0..2 {
        let made = there.engine.histories().import(&importer, bytes.clone(), None).await.unwrap();
        let id = made.view().unwrap().id;
        let scope = format!("operator:{id}:a%2Fcoder");
        let row = there.store.state_value(&scope, "a").unwrap().unwrap();
        assert_eq!((row.value.as_str(), row.hints.salience), ("1", Some(0.5)));
        assert_eq!(there.store.links(&scope).unwrap(), [MemoryLink::new("a", "b", "near")]);
        let row = there.store.state_value(&format!("operator:{id}:writer"), "a").unwrap().unwrap();
        assert_eq!(row.value, "2");
        assert!(there.store.state(&format!("run:{id}")).unwrap().is_empty());
        assert!(links(&there, id).is_empty());
    }
}

#[tokio::test]
async fn a_document_is_imported_with_values_and_times_at_the_limits_of_its_host() {
    let small = || {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(1_700_000_000_000));
        let limits = RunLimits { value: 1 << 10, ..RunLimits::default() };
        Bench::open_with(Arc::new(dir), clock, 2, limits, Recovery::All)
    };
    let bench = small();
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            ctx.state:set("k", string.rep("v", 1022))
            ctx.state:link("k", "", "")
            ctx:run("q")
            return #ctx.state:get("k")
        end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    let late = serde_json::json!({ "type": "write_memory", "key": "late", "value": 1,
        "scope": { "workflow": run.to_string() }, "ttl": 400_000_000_000_000_u64 });
    let said = Report { effects: vec![late], ..report("1") };
    bench.engine.tasks().report(&bench.holder(&leased.handle), said).await.unwrap();
    assert_eq!(bench.ended(run).await.output.unwrap().as_str(), "1022");
    let bytes = document(&bench, run).await;
    let there = small();
    let view =
        there.engine.histories().import(&there.admin(), bytes, None).await.unwrap().view().unwrap();
    assert_eq!(view.output.unwrap().as_str(), "1022");
    assert_eq!(links(&there, view.id), ["k--"]);
    let late = there.store.state_value(&format!("run:{run}"), "late").unwrap().unwrap();
    assert_eq!(late.expires_ms, Some(253_402_300_799_999));
}

#[tokio::test]
async fn copies_of_a_run_pass_the_layers_of_state() {
    let bench = Bench::new();
    let body = r#"middleware = { swarm.middleware.redact { keys = { "password" }, state = true } },
        agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            ctx.state:set("k", { password = "hunter2" })
            ctx:run("q")
            return ctx.state:get("k")
        end"#;
    let run = bench.start(body, "null").await;
    bench.lease("q").await;
    let blotted = r#"{"password":"[redacted]"}"#;
    let value = |run: RunId| bench.store.state_value(&format!("run:{run}"), "k").unwrap();
    assert_eq!(value(run).unwrap().value, blotted);
    let steps = bench.engine.steps(&bench.admin(), run, 0, 50).await.unwrap().items;
    let copy = fork(&bench, run, steps.last().unwrap().seq, None).await.id;
    assert_eq!(value(copy).unwrap().value, blotted, "the journal has what the flow asked for");
    let text = String::from_utf8(document(&bench, run).await).unwrap();
    let state = text.lines().find(|line| line.starts_with(r#"{"state""#)).unwrap();
    assert!(state.contains("[redacted]"), "{state}");
}
