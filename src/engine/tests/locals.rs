//! The variables of flows at their steps.

use super::*;
use crate::{
    engine::{FlowForm, Fork, LocalsRole, LocalsView},
    protocol::Code,
};

/// A flow of three steps, a map, and a deferred function; its text begins on line 3 of `it.lua`.
const FLOW: &str = r#"
agents = { e = { operator = "echo" }, q = { operator = "queue", queue = "q" } },
flow = function(ctx, input)
    local total = input.base
    local function add(n, note)
        local got = ctx:run("e", n)
        total += got
        return got
    end
    ctx:defer(function() local last = total; ctx:run("e", last) end)
    for i = 1, 2 do
        add(i * 10, "round " .. i)
    end
    local both = ctx:map({ "a", "b" }, function(x)
        local mine = x .. "!"
        return ctx:run("q", mine)
    end)
    return { total, both }
end"#;

async fn locals(bench: &Bench, run: RunId, step: u32) -> LocalsView {
    bench.engine.histories().locals(&bench.admin(), run, step).await.unwrap()
}

async fn refused(bench: &Bench, run: RunId, step: u32) -> (Code, String) {
    let looked = bench.engine.histories().locals(&bench.admin(), run, step).await;
    let error = looked.expect_err("it is refused");
    (error.code(), error.to_string())
}

/// The variables of a call: `name=value` with what they are, arguments and locals alone.
fn own(view: &LocalsView, branch: usize, frame: usize) -> Vec<String> {
    let frame = &view.branches[branch].frames[frame];
    let own = frame.variables.iter().filter(|it| it.role != LocalsRole::Upvalue);
    own.map(|it| format!("{} {}={}", it.role.as_str(), it.name, it.line(100))).collect()
}

fn value(view: &LocalsView, branch: usize, frame: usize, name: &str) -> String {
    let variables = &view.branches[branch].frames[frame].variables;
    variables.iter().find(|it| it.name == name).unwrap().value.as_str().to_owned()
}

#[tokio::test]
async fn any_step_can_be_visited_again_while_the_run_waits_and_after_its_end() {
    let bench = Bench::new();
    let run = bench.start(FLOW, r#"{"base":1}"#).await;
    let leased = bench.lease("q").await;
    let before = bench.entries(run);

    let second = locals(&bench, run, 2).await;
    assert_eq!((second.step, second.requested, second.flow), (2, 2, FlowForm::Script));
    assert_eq!((&*second.kind, &*second.name), ("task", "e"));
    assert_eq!((second.previous, second.next), (Some(1), Some(3)));
    let add = &second.branches[0].frames[0];
    assert_eq!((add.function.as_deref(), &*add.file, add.line), (Some("add"), "it.lua", 8));
    assert_eq!(add.text.as_deref(), Some("local got = ctx:run(\"e\", n)"));
    assert_eq!(own(&second, 0, 0), ["argument n=20", "argument note=\"round 2\""]);
    assert_eq!(value(&second, 0, 0, "total"), "11");
    assert_eq!(value(&locals(&bench, run, 1).await, 0, 0, "total"), "1");
    assert_eq!(value(&second, 0, 1, "i"), "2");

    let fourth = locals(&bench, run, 4).await;
    let branches: Vec<_> =
        fourth.branches.iter().map(|it| (it.branch.as_deref(), it.step)).collect();
    assert_eq!(
        branches,
        [(Some("map, item 2"), Some(4)), (None, None), (Some("map, item 1"), Some(3))]
    );
    assert_eq!(own(&fourth, 0, 0), ["argument x=\"b\"", "local mine=\"b!\""]);
    assert_eq!(fourth.next, None);
    assert_eq!(bench.entries(run), before, "nothing is written");

    // The run goes on and fails: its deferred function is visited as well.
    let failed = Report {
        verdict: Verdict::Failed { message: "no".into(), retryable: false, data: None },
        ..report("0")
    };
    bench.engine.tasks().report(&bench.holder(&leased.handle), failed).await.unwrap();
    bench.ended(run).await;
    let steps = bench.engine.steps(&bench.admin(), run, 0, 50).await.unwrap().items;
    let last = steps.last().unwrap().seq;
    let deferred = locals(&bench, run, last).await;
    assert_eq!(deferred.branches[0].branch.as_deref(), Some("deferred function"));
    assert_eq!(own(&deferred, 0, 0), ["local last=31"]);
    assert_eq!(own(&locals(&bench, run, 2).await, 0, 0), own(&second, 0, 0));
    let ended = bench.entries(run);
    assert!(ended.len() > before.len());
    // Another process finds the same.
    let bench = bench.restart().await;
    assert_eq!(locals(&bench, run, 2).await, second);
    assert_eq!(bench.entries(run), ended);
}

#[tokio::test]
async fn a_canceled_run_a_fork_and_a_continued_run_are_visited_as_they_are() {
    let bench = Bench::new();
    let run = bench.start(FLOW, r#"{"base":1}"#).await;
    bench.lease("q").await;
    bench.engine.cancel(&bench.admin(), run, "enough".to_owned(), None).await.unwrap();
    bench.ended(run).await;
    assert_eq!(value(&locals(&bench, run, 2).await, 0, 0, "total"), "11");

    let fork = Fork { outputs: [(1, Json::from_trusted("500"))].into(), ..Fork::new(2) };
    let fork = bench.engine.histories().fork(&bench.admin(), run, fork, None).await.unwrap().id();
    bench.waiting(fork, "task").await;
    assert_eq!(value(&locals(&bench, fork, 2).await, 0, 0, "total"), "501");

    let body = r#"agents = { e = { operator = "echo" } },
        flow = function(ctx, input)
            local round = input
            ctx:run("e", round)
            if round < 3 then ctx:continue_as(round + 1) end
            ctx:wait("go")
        end"#;
    let run = bench.start(body, "1").await;
    bench.waiting(run, "signal").await;
    let steps = bench.engine.steps(&bench.admin(), run, 0, 50).await.unwrap().items;
    let [first, second] = &steps[..] else { panic!("{steps:?}") };
    let view = locals(&bench, run, first.seq).await;
    assert_eq!((value(&view, 0, 0, "round"), view.previous), ("3".to_owned(), None));
    assert_eq!(view.next, Some(second.seq));
}

#[tokio::test]
async fn a_part_of_a_step_is_visited_where_the_flow_asked_for_the_whole() {
    let bench = Bench::new();
    let body = r#"agents = { it = { operator = "either" } },
        flow = function(ctx) local n = 5; return ctx:run("it", n) end"#;
    let run = bench.start(body, "null").await;
    bench.lease("a").await;
    let part = locals(&bench, run, 2).await;
    assert_eq!((part.step, part.requested, part.previous), (2, 1, Some(1)));
    assert_eq!(own(&part, 0, 0).last().unwrap(), "local n=5");
}

#[tokio::test]
async fn a_flow_without_locals_says_so_and_what_is_not_there_is_refused() {
    let bench = Bench::new();
    let body = r#"agents = { e = { operator = "echo" } },
        flow = { kind = "seq", children = { { kind = "step", agent = "e", input = { n = 1 } } } }"#;
    let run = bench.start(body, "null").await;
    bench.ended(run).await;
    let table = locals(&bench, run, 1).await;
    assert_eq!((table.flow, table.branches.len()), (FlowForm::Table, 0));
    assert_eq!(refused(&bench, run, 2).await.0, Code::NotFound);
    assert_eq!(refused(&bench, run, 0).await.0, Code::NotFound);
    let nobody = RunId::new(99, 1);
    assert_eq!(refused(&bench, nobody, 1).await.0, Code::NotFound);
    // Who may not.
    let only = |role: Role, scopes: &str| Caller {
        grant: Grant::new(role, Scopes(vec![scopes.parse().unwrap()])).into(),
        ..bench.admin()
    };
    let looked = bench.engine.histories().locals(&only(Role::Operator, "*"), run, 1).await;
    assert_eq!(looked.unwrap_err().code(), Code::ForbiddenVerb);
    let other = only(Role::Admin, &format!("run:{nobody}"));
    let looked = bench.engine.histories().locals(&other, run, 1).await;
    assert_eq!(looked.unwrap_err().code(), Code::ForbiddenScope);
    // An operator's token that names the verb; without the right to read blueprints, no source.
    let mut named = only(Role::Operator, "*");
    named.grant = Grant::clone(&named.grant).only([Verb::RunInspect]).into();
    let run = bench.start(FLOW, r#"{"base":1}"#).await;
    bench.lease("q").await;
    let view = bench.engine.histories().locals(&named, run, 1).await.unwrap();
    assert_eq!((value(&view, 0, 0, "n"), &view.branches[0].frames[0].text), ("10".into(), &None));
}

#[tokio::test]
async fn a_history_that_the_source_no_longer_leads_to_is_refused_after_the_difference() {
    let bench = Bench::new();
    let run = bench.start(FLOW, r#"{"base":1}"#).await;
    bench.lease("q").await;
    // The second step of the copy has another input than the flow asks for.
    let fork = Fork { outputs: [(1, Json::from_trusted("500"))].into(), ..Fork::new(4) };
    let copy = bench.engine.histories().fork(&bench.admin(), run, fork, None).await.unwrap().id();
    assert_eq!(value(&locals(&bench, copy, 2).await, 0, 0, "total"), "501");
    let body = r#"agents = { e = { operator = "echo" } },
        flow = function(ctx, input)
            local a = ctx:run("e", 1)
            local b = ctx:run("e", a + 1)
            ctx:wait("go")
        end"#;
    let run = bench.start(body, "null").await;
    bench.waiting(run, "signal").await;
    let fork = Fork { outputs: [(1, Json::from_trusted("500"))].into(), ..Fork::new(3) };
    let copy = bench.engine.histories().fork(&bench.admin(), run, fork, None).await.unwrap().id();
    assert_eq!(locals(&bench, copy, 1).await.requested, 1);
    let (code, message) = refused(&bench, copy, 2).await;
    assert_eq!(code, Code::Conflict);
    assert!(message.contains("no longer") || message.contains("not lead"), "{message}");
    assert!(message.contains(&format!("moonswarm replay {copy}")), "{message}");
}

#[tokio::test]
async fn what_layers_redact_anywhere_is_redacted_here_before_it_is_cut() {
    let bench = Bench::new();
    let body = r#"middleware = { swarm.middleware.redact { keys = { "password" }, patterns = { "sk-[a-z]+" } } },
        agents = { e = { operator = "echo" } },
        flow = function(ctx, input)
            local password = "hunter2"
            local all = { Password = "hunter2", deep = { { token = "sk-abc" } }, ["sk-key"] = 1 }
            local long = string.rep("x", 1998) .. "sk-" .. string.rep("z", 100)
            ctx:run("e", 1)
        end"#;
    let run = bench.start(body, r#"{"password":"hunter2","say":"it is sk-abc"}"#).await;
    bench.ended(run).await;
    let view = locals(&bench, run, 1).await;
    let text = serde_json::to_string(&view).unwrap();
    for secret in ["hunter2", "sk-a", "sk-k", "sk-z", "xsk"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    assert_eq!(value(&view, 0, 0, "password"), "\"[redacted]\"");
    assert!(value(&view, 0, 0, "input").contains("it is [redacted]"));
}

#[tokio::test]
async fn a_hostile_blueprint_is_looked_at_and_not_run() {
    let bench = Bench::new();
    let body = r#"agents = { e = { operator = "echo" } },
        flow = function(ctx, input)
            local seen = 0
            local function count() seen += 1; while true do end end
            local trap = setmetatable({ own = 1 }, { __index = count, __len = count, __iter = count, __tostring = count, __eq = count })
            local huge = {}
            for i = 1, 2000 do huge[i] = { trap, huge, string.rep("x", 50) } end
            local many = table.create(100000, huge)
            local bad = "\27[31m<script>\0"
            ctx:run("e", 1)
            ctx:wait("go")
        end"#;
    let run = bench.start(body, "null").await;
    bench.waiting(run, "signal").await;
    let before = bench.entries(run);
    let view = locals(&bench, run, 1).await;
    assert_eq!(
        (value(&view, 0, 0, "seen"), value(&view, 0, 0, "trap")),
        ("0".into(), r#"{"own":1}"#.into())
    );
    assert!(value(&view, 0, 0, "huge").contains(r#""$cycle":"$""#));
    let bytes = serde_json::to_string(&view).unwrap().len();
    assert!(bytes < 200_000, "{bytes}");
    assert_eq!(bench.entries(run), before);
    let replay = bench.engine.histories().replay(&bench.admin(), run, None).await.unwrap();
    assert!(replay.divergence.is_none());
}

#[tokio::test]
async fn a_token_looks_at_few_runs_at_once() {
    let bench = Bench::new();
    let run = bench.start(FLOW, r#"{"base":1}"#).await;
    bench.lease("q").await;
    let histories = bench.engine.histories();
    let admin = bench.admin();
    let looks = (0..8).map(|_| histories.locals(&admin, run, 3));
    let looked = futures::future::join_all(looks).await;
    // How many meet there is a matter of chance; each is answered, or refused for now.
    let answered = |it: &&Result<LocalsView, EngineError>| match it {
        Ok(view) => view.step == 3,
        Err(error) => error.code() == Code::Busy,
    };
    assert_eq!(looked.iter().filter(answered).count(), 8, "{looked:?}");
    assert!(looked.iter().filter(|it| it.is_ok()).count() >= 2);
    assert!(locals(&bench, run, 3).await.branches.len() == 2, "and the places are free again");
}
