use super::*;
use crate::{
    protocol::Scope,
    store::{StateAct, StateChange},
};

fn bundle(name: &str, body: &str) -> Bundle {
    let source = format!(
        "local swarm = require(\"swarm\")\nlocal s = swarm.schema\nreturn swarm.blueprint {{ name = \"{name}\", {body} }}"
    );
    Bundle::from_source("it.lua", source).unwrap()
}

fn start_of(program: Program, input: &str) -> StartRun {
    StartRun { input: Json::parse(input).unwrap(), ..StartRun::new(program) }
}

impl Bench {
    /// A caller with a role, some scopes, and more verbs than the role has by itself.
    fn caller_with(&self, role: Role, scopes: &[&str], extra: &[Verb]) -> Caller {
        let scopes = scopes.iter().map(|scope| scope.parse().unwrap()).collect();
        let grant = Grant::new(role, scopes).and(extra).unwrap();
        Caller { subject: "who".into(), grant: grant.into(), ..self.admin() }
    }

    async fn publish(&self, by: &Caller, name: &str, body: &str) -> String {
        let put =
            self.engine.blueprints().put_blueprint(by, name.to_owned(), bundle(name, body), None);
        put.await.unwrap().0.hash
    }

    async fn starts(&self, by: &Caller, program: Program, input: &str) -> Result<RunId, String> {
        let started = self.engine.start(by, start_of(program, input), None).await;
        started.map(|it| it.run).map_err(|error| error.code().as_str().to_owned())
    }

    async fn output_of(&self, by: &Caller, program: Program, input: &str) -> String {
        let run = self.starts(by, program, input).await.unwrap();
        let view = self.ended(run).await;
        view.output.unwrap_or_else(|| panic!("{:?}", view.error)).as_str().to_owned()
    }
}

const ONE: &str = "flow = function() return 1 end";

#[tokio::test]
async fn what_is_posted_is_stored_only_once_it_may_run_and_fits() {
    let bench = Bench::new();
    let typed = "input = s.object { n = s.integer }, flow = function() return 1 end";
    let posted = bundle("it", typed);
    let hash = posted.hash().to_owned();
    let plain = bench.caller_with(Role::Operator, &["*"], &[]);
    let refused = bench.starts(&plain, Program::Bundle(posted.clone()), "{\"n\":1}").await;
    assert_eq!(refused.unwrap_err(), "forbidden_verb");
    let author = bench.caller_with(Role::Operator, &["run:*"], &[Verb::RunSource]);
    let refused = bench.starts(&author, Program::Bundle(posted.clone()), "{\"n\":\"x\"}").await;
    assert_eq!(refused.unwrap_err(), "invalid_input");
    let elsewhere = StartRun {
        workdir: Some("/".into()),
        ..start_of(Program::Bundle(posted.clone()), "{\"n\":1}")
    };
    let refused = bench.engine.start(&author, elsewhere, None).await.unwrap_err();
    assert_eq!(refused.code(), "forbidden_verb");
    let admin = bench.admin();
    let named =
        bench.engine.blueprints().put_blueprint(&admin, "other".into(), posted.clone(), None);
    assert_eq!(named.await.unwrap_err().code(), "bad_request");
    assert_eq!(bench.store.blueprint(&hash).unwrap(), None, "nothing of that was stored");
    assert_eq!(bench.output_of(&author, Program::Bundle(posted), "{\"n\":1}").await, "1");
    assert_eq!(bench.store.blueprint(&hash).unwrap().unwrap().publisher, None);
}

#[tokio::test]
async fn a_scope_of_a_blueprint_reaches_what_was_published_under_its_name_alone() {
    let bench = Bench::new();
    let narrow = bench.caller_with(Role::Operator, &["blueprint:safe", "run:*"], &[]);
    let posted = bundle("safe", "flow = function() return 'posted' end");
    let at = |hash: &str| Program::Named(format!("safe@{hash}"));
    let run = bench.starts(&bench.admin(), Program::Bundle(posted.clone()), "null").await.unwrap();
    bench.ended(run).await;
    let refused = bench.starts(&narrow, at(posted.hash()), "null").await.unwrap_err();
    assert_eq!(refused, "forbidden_verb");
    let source = bench.engine.blueprints().blueprint_source(&narrow, "safe", posted.hash()).await;
    assert_eq!(source.unwrap_err().code(), "not_found");
    let view = bench.engine.blueprints().get(&narrow, &format!("safe@{}", posted.hash())).await;
    assert_eq!(view.unwrap_err().code(), "forbidden_scope");
    // Nor does a copy of its run make it a blueprint.
    let fork = || Fork::new(1);
    let forked = bench.engine.histories().fork(&narrow, run, fork(), None).await.unwrap_err();
    assert_eq!(forked.code(), "forbidden_verb");
    let hash = bench.publish(&bench.admin(), "safe", ONE).await;
    assert_eq!(bench.output_of(&narrow, at(&hash), "null").await, "1");
    let other = Fork { program: Some(Program::Bundle(posted.clone())), ..fork() };
    let forked = bench.engine.histories().fork(&narrow, run, other, None).await.unwrap_err();
    assert_eq!(forked.code(), "forbidden_verb");
    let replayed =
        bench.engine.histories().replay(&narrow, run, Some(Program::Bundle(posted))).await;
    assert_eq!(replayed.unwrap().divergence, None, "a replay stores and does nothing");
    let bench = bench.restart().await;
    assert_eq!(bench.output_of(&narrow, Program::Named("safe".into()), "null").await, "1");
}

/// Calls, signals and links what is not its own; the kinds of the failures.
const REACHES: &str = r#"flow = function(ctx, input)
        local function kind(fn)
            local ok, err = pcall(fn)
            return ok and "ok" or err.kind
        end
        local shared = ctx:scope { custom = "notes" }
        return {
            kind(function() ctx:call("other") end),
            kind(function() ctx:signal(input.to, "go", 1) end),
            kind(function() shared:link("mine/a", "yours/b", "near") end),
            kind(function() shared:unlink("mine/a", "yours/b", "near") end),
        }
    end"#;

#[tokio::test]
async fn a_published_flow_acts_under_its_publisher_and_a_posted_one_under_its_starter() {
    let bench = Bench::new();
    bench.publish(&bench.admin(), "other", ONE).await;
    let waits = "flow = function(ctx) return ctx:wait('go') end";
    let target = bench.start(waits, "null").await;
    let input = format!("{{\"to\":\"{target}\"}}");
    let scopes = ["blueprint:reaches", "state:custom:notes/mine/"];
    let narrow = bench.caller_with(Role::Operator, &scopes, &[Verb::RunSource]);

    let posted = || Program::Bundle(bundle("reaches", REACHES));
    let none = r#"["refused","refused","refused","refused"]"#;
    assert_eq!(bench.output_of(&narrow, posted(), &input).await, none);
    let publisher = bench.caller_with(Role::Admin, &scopes, &[]);
    bench.publish(&publisher, "reaches", REACHES).await;
    let named = || Program::Named("reaches".into());
    assert_eq!(bench.output_of(&bench.admin(), named(), &input).await, none, "of its publisher");
    assert_eq!(bench.count(target, |fact| matches!(fact, Fact::SignalReceived(_))), 0);

    let all = r#"["ok","ok","ok","ok"]"#;
    bench.publish(&bench.admin(), "reaches", REACHES).await;
    // Whoever can do less and publishes the same text takes nothing from it.
    bench.publish(&publisher, "reaches", REACHES).await;
    assert_eq!(bench.output_of(&narrow, named(), &input).await, all);
    bench.ended(target).await;
    let bench = bench.restart().await;
    let target = bench.start(waits, "null").await;
    let input = format!("{{\"to\":\"{target}\"}}");
    assert_eq!(bench.output_of(&narrow, named(), &input).await, all, "after a restart");
}

#[tokio::test]
async fn a_flow_signals_its_own_family_whatever_its_token_reaches() {
    let bench = Bench::new();
    let child = r#"flow = function(ctx, input)
            ctx:signal(input.parent, "child", ctx.run_id)
            return ctx:wait("go")
        end"#;
    bench.publish(&bench.caller_with(Role::Admin, &["blueprint:below"], &[]), "below", child).await;
    let scopes = ["blueprint:below"];
    let narrow = bench.caller_with(Role::Operator, &scopes, &[Verb::RunSource]);
    let parent = r#"flow = function(ctx)
            ctx:signal(ctx.run_id, "self", 1)
            ctx:wait("self")
            local below = ctx:spawn(function() return ctx:call("below", { parent = ctx.run_id }) end)
            ctx:signal(ctx:wait("child"), "go", "done")
            return below:await()
        end"#;
    let posted = Program::Bundle(bundle("above", parent));
    assert_eq!(bench.output_of(&narrow, posted, "null").await, "\"done\"");
}

#[tokio::test]
async fn a_signal_to_a_run_that_only_has_the_number_is_refused() {
    let bench = Bench::new();
    let target = bench.start("flow = function(ctx) return ctx:wait('go') end", "null").await;
    let wrong = RunId::new(target.num(), target.created_ms() + 1);
    let body = "flow = function(ctx, to) ctx:signal(to, 'go', 1) end";
    let (kind, message) = bench.failure(body, &format!("\"{wrong}\"")).await;
    assert_eq!(kind, "refused");
    assert!(message.contains("there is no run"), "{message}");
}

#[tokio::test]
async fn both_ends_of_a_link_are_looked_at_from_outside_too() {
    let bench = Bench::new();
    let caller = bench.caller_with(Role::Operator, &["state:global/mine/"], &[]);
    let link = |key: &str, to: &str| {
        let (key, to) = (key.to_owned(), to.to_owned());
        let act = StateAct::Link { to, relation: "near".into(), metadata: None };
        vec![(Scope::Global, StateChange { scope: "global".into(), key, if_revision: None, act })]
    };
    for (key, to) in [("mine/a", "yours/b"), ("yours/b", "mine/a")] {
        let refused =
            bench.engine.stored_state().change_state(&caller, link(key, to)).await.unwrap_err();
        assert_eq!(refused.code(), "forbidden_scope", "{key} → {to}");
    }
    bench.engine.stored_state().change_state(&caller, link("mine/a", "mine/b")).await.unwrap();
}

#[tokio::test]
async fn what_starts_by_itself_may_do_what_its_publisher_could() {
    let bench = Bench::new();
    let body = r#"on = { { schedule = "* * * * *" } }, flow = function() return 1 end"#;
    let scopes = ["blueprint:minutely", "operator:echo"];
    bench.publish(&bench.caller_with(Role::Admin, &scopes, &[]), "minutely", body).await;
    let mut known = Schedules::default();
    bench.engine.triggers().run_schedules(&mut known).await.unwrap();
    bench.clock.advance(Duration::from_secs(60));
    bench.engine.triggers().run_schedules(&mut known).await.unwrap();
    let filter = RunFilter { limit: 10, ..RunFilter::default() };
    let runs = bench.engine.runs(&bench.admin(), filter).await.unwrap().items;
    assert_eq!(runs.len(), 1);
    let entries = bench.store.entries(runs[0].id.num(), 0).unwrap();
    let Fact::RunStarted(started) = &entries[0].fact else { panic!() };
    let grant: Grant = started.grant.decode().unwrap();
    let scopes: Scopes = scopes.iter().map(|scope| scope.parse().unwrap()).collect();
    assert_eq!(grant, Grant::new(Role::Admin, scopes));
}

#[tokio::test]
async fn the_requests_of_a_token_share_its_grant_until_it_is_revoked() {
    let bench = Bench::new();
    let minted = bench.engine.tokens().mint_admin().await.unwrap();
    let caller = || match bench.engine.authenticate(&minted.token) {
        Ok(Bearer::Caller(caller)) => Some(caller),
        Ok(Bearer::Holder(_)) | Err(_) => None,
    };
    let (first, second) = (caller().unwrap(), caller().unwrap());
    assert!(Arc::ptr_eq(&first.grant.shared(), &second.grant.shared()));
    assert_eq!(first.grant.json().decode::<Grant>().unwrap(), *second.grant);
    bench.engine.tokens().revoke(&bench.admin(), &minted.jti).await.unwrap();
    assert!(caller().is_none());
}

#[tokio::test]
async fn whoever_may_start_and_not_read_gets_the_id() {
    let bench = Bench::new();
    let caller = bench.caller_with(Role::Operator, &["blueprint:it"], &[]);
    bench.publish(&bench.admin(), "it", ONE).await;
    let start = || start_of(Program::Named("it".into()), "null");
    let made = bench.engine.start_seen(&caller, start(), None).await.unwrap();
    assert!(matches!(made, Made::Hidden { .. }), "{made:?}");
    let (until, forever) = (WaitFor::Ended, std::future::pending());
    let waited = bench.engine.start_and_wait(&caller, start(), None, until, forever).await.unwrap();
    assert_eq!(serde_json::to_value(&waited).unwrap(), serde_json::json!({ "id": waited.id() }));
    assert_ne!(waited.id(), made.id());
}

#[tokio::test]
async fn the_changes_of_a_run_are_for_those_who_may_read_it() {
    let bench = Bench::new();
    let run = bench.start("flow = function(ctx) ctx:wait('go') end", "null").await;
    let other = bench.caller_with(Role::Operator, &["blueprint:other"], &[]);
    assert!(Moves::of(&bench.engine, &other, run).await.is_err());
    let reader = bench.caller_with(Role::Observer, &["*"], &[]);
    assert!(Moves::of(&bench.engine, &reader, run).await.is_ok());
}
