//! The boundary of state: whoever asks, the layers stand before it.

use async_trait::async_trait;
use parking_lot::Mutex;

use super::*;
use crate::{
    middleware::{
        Stacks, StoreCall, StoreLayer, StoreNext, StoreObserver, StoreOp, StoreStack, Stored,
    },
    protocol::{
        Content, ExitReason, Failure, Lifetime, MemoryLink, Operator, OperatorError, OperatorInput,
        OperatorOutput, Scope, StateReader, StateStore, StoreOptions,
    },
    store::{Reducer, StateAct, StateChange},
};

/// Remembers what passed: what, where, by whom.
#[derive(Clone, Default)]
struct Saw(Arc<Mutex<Vec<(StoreOp, String, String)>>>);

impl StoreObserver for Saw {
    fn name(&self) -> &str {
        "saw"
    }

    fn stored(&self, call: &StoreCall, _: &Stored) {
        let seen = (call.op, format!("{}/{}", call.scope, call.key), call.principal.to_string());
        self.0.lock().push(seen);
    }
}

impl Saw {
    fn ops(&self) -> Vec<StoreOp> {
        self.0.lock().drain(..).map(|(op, ..)| op).collect()
    }
}

/// Keeps everything under `t/`, and takes the word `secret` out of what is read.
struct Below;

impl StoreLayer for Below {
    fn name(&self) -> &str {
        "below"
    }

    fn store(&self, mut call: StoreCall, next: StoreNext<'_>) -> Stored {
        if call.op != StoreOp::Search {
            call.key = format!("t/{}", call.key);
        }
        if let (StoreOp::Link | StoreOp::Unlink, Some(value)) = (call.op, &call.value) {
            let mut link = value.to_value();
            link["to"] = format!("t/{}", link["to"].as_str().unwrap()).into();
            call.value = Some(link.into());
        }
        let given = next.run(call)?;
        Ok(Json::from_trusted(given.as_str().replace("secret", "***").replace("t/", "")))
    }
}

/// Lets nobody into the scope `custom:closed`, and nobody clear anything.
struct Closed;

impl StoreLayer for Closed {
    fn name(&self) -> &str {
        "closed"
    }

    fn store(&self, call: StoreCall, next: StoreNext<'_>) -> Stored {
        if call.scope == "custom:closed" || call.op == StoreOp::Clear {
            return Err(Failure::new("", "it is closed"));
        }
        next.run(call)
    }
}

fn layered(code: &Coded) -> (Bench, Saw) {
    let saw = Saw::default();
    let mut stacks = Stacks::default();
    stacks.store =
        StoreStack::builder().observe(saw.clone()).transform(Below).guard(Closed).build();
    (Bench::open_layered(code, Middleware { code: stacks, layers: Vec::new() }), saw)
}

#[tokio::test]
async fn what_embeds_the_host_passes_the_layers_with_every_operation() {
    let (bench, saw) = layered(&Coded::default());
    let state = bench.engine.state();
    let open = Scope::Custom("open".into());
    state.write(&open, "a", "a secret place".into()).await.unwrap();
    state.link(&open, &MemoryLink::new("a", "b", "near")).await.unwrap();
    assert_eq!(bench.store.state("custom:open").unwrap()[0].key, "t/a");
    assert_eq!(StateStore::read(&state, &open, "a").await.unwrap(), Some("a *** place".into()));
    assert_eq!(StateStore::read(&state, &open, "none").await.unwrap(), None);
    assert_eq!(StateStore::list(&state, &open, "").await.unwrap(), ["a"]);
    let found = StateStore::search(&state, &open, "place", 9).await.unwrap();
    assert_eq!(found[0].snippet.as_deref(), Some("\"a *** [place]\""));
    assert_eq!(StateStore::traverse(&state, &open, "a", None, 9).await.unwrap(), ["b"]);
    state.unlink(&open, "a", "b", "near").await.unwrap();
    assert!(bench.store.links("custom:open").unwrap().is_empty());
    state.delete(&open, "a").await.unwrap();
    assert!(bench.store.state("custom:open").unwrap().is_empty());
    StateStore::clear_transient(&state);
    assert!(saw.0.lock().iter().all(|(.., who)| who == "host"));
    let expected = [
        StoreOp::Write,
        StoreOp::Link,
        StoreOp::Read,
        StoreOp::Read,
        StoreOp::List,
        StoreOp::Search,
        StoreOp::Traverse,
        StoreOp::Unlink,
        StoreOp::Delete,
        StoreOp::Clear,
    ];
    assert_eq!(saw.ops(), expected);
}

#[tokio::test]
async fn what_a_layer_refuses_is_refused_to_who_embeds_the_host() {
    let (bench, _) = layered(&Coded::default());
    let state = bench.engine.state();
    let closed = Scope::Custom("closed".into());
    let link = MemoryLink::new("a", "b", "near");
    let refusals = [
        state.write(&closed, "a", 1.into()).await.unwrap_err(),
        state.delete(&closed, "a").await.unwrap_err(),
        state.link(&closed, &link).await.unwrap_err(),
        state.unlink(&closed, "a", "b", "near").await.unwrap_err(),
        StateStore::read(&state, &closed, "a").await.unwrap_err(),
        StateStore::list(&state, &closed, "").await.unwrap_err(),
        StateStore::search(&state, &closed, "a", 9).await.unwrap_err(),
        StateStore::traverse(&state, &closed, "a", None, 9).await.unwrap_err(),
    ];
    for refusal in refusals {
        assert!(refusal.to_string().contains("it is closed"), "{refusal}");
    }
    let passing = StoreOptions { lifetime: Some(Lifetime::Transient), ..StoreOptions::default() };
    state.write_hinted(&Scope::Global, "p", 1.into(), &passing).await.unwrap();
    StateStore::clear_transient(&state);
    assert_eq!(StateStore::read(&state, &Scope::Global, "p").await.unwrap(), Some(1.into()));
}

#[tokio::test]
async fn callers_flows_and_workers_read_what_the_layers_let_through() {
    let (bench, _) = layered(&Coded::default());
    let body = r#"agents = { q = { operator = "queue", queue = "q" } },
        flow = function(ctx)
            local g = ctx:scope("global")
            g:set("a", "a secret place")
            g:link("a", "b", "near")
            ctx.state:set("own", "secret")
            ctx:run("q")
            return { g:get("a"), g:list(), g:search("place")[1].snippet, g:traverse("a"), ctx.state:get("own") }
        end"#;
    let run = bench.start(body, "null").await;
    let leased = bench.lease("q").await;
    let holder = bench.holder(&leased.handle);
    let read = bench.engine.tasks().worker_state(&holder, None, "own".into()).await.unwrap();
    assert_eq!(read.unwrap().as_str(), r#""***""#);
    bench.engine.tasks().report(&holder, report("1")).await.unwrap();
    let out = bench.ended(run).await.output.unwrap();
    assert_eq!(out.as_str(), r#"["a *** place",["a"],"\"a *** [place]\"",["b"],"***"]"#);

    let stored = &bench.store.links("global").unwrap()[0];
    assert_eq!((stored.from_key.as_str(), stored.to_key.as_str()), ("t/a", "t/b"));

    let (admin, global) = (bench.admin(), Scope::Global);
    let value = bench.engine.stored_state().state_value(&admin, &global, "a").await.unwrap();
    assert_eq!((value.value.as_str(), value.revision), (r#""a *** place""#, 1));
    let page = bench.engine.stored_state().state_page(&admin, &global, "", None, 9).await.unwrap();
    assert_eq!(page.items.iter().map(|it| it.key.as_str()).collect::<Vec<_>>(), ["a"]);
    let found =
        bench.engine.stored_state().search_state(&admin, &global, "place", "", 9).await.unwrap();
    assert_eq!(found[0].snippet.as_deref(), Some("\"a *** [place]\""));
    let walk = bench.engine.stored_state().walk_state(&admin, &global, "a", None, 9).await.unwrap();
    assert_eq!(walk[0].key, "b");
    let act = StateAct::Put {
        value: "1".into(),
        reducer: Reducer::Overwrite,
        hints: StoreOptions::default(),
    };
    let change =
        StateChange { scope: "custom:closed".into(), key: "k".into(), if_revision: None, act };
    let closed = vec![(Scope::Custom("closed".into()), change)];
    let refused = bench.engine.stored_state().change_state(&admin, closed).await.unwrap_err();
    assert_eq!(refused.code(), "forbidden");
}

/// Answers with what it may read of some scopes.
struct Reads {
    state: Arc<dyn StateReader>,
}

#[async_trait]
impl Operator for Reads {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        let run = input.metadata["moonswarm"]["run"].as_str().unwrap_or_default().to_owned();
        let within = |operator: &str| Scope::Operator {
            workflow: run.as_str().into(),
            operator: operator.into(),
        };
        let scopes = [
            Scope::Workflow(run.as_str().into()),
            within("reads"),
            within("other"),
            Scope::Global,
            Scope::Custom("closed".into()),
            Scope::Workflow("run_another".into()),
        ];
        let mut said = Vec::new();
        for scope in scopes {
            said.push(match self.state.read(&scope, "k").await {
                Ok(value) => value.unwrap_or_default(),
                Err(error) => error.to_string().into(),
            });
        }
        let own = Scope::Workflow(run.as_str().into());
        said.push(self.state.list(&own, "").await.unwrap().into());
        let found = self.state.search(&own, "harbour", 9).await.unwrap();
        said.push(found.into_iter().map(|hit| hit.key).collect::<Vec<_>>().into());
        said.push(self.state.traverse(&own, "k", None, 1).await.unwrap().into());
        let whole = self.state.search(&Scope::Global, "harbour", 9).await;
        said.push(whole.is_err().into());
        let text = serde_json::Value::from(said).to_string();
        Ok(OperatorOutput::new(Content::text(text), ExitReason::Complete))
    }
}

#[tokio::test]
async fn an_operator_reads_the_state_that_its_attempt_may_through_the_layers() {
    let code = Coded::default().and_reader("reads", |state| Reads { state });
    let (bench, saw) = layered(&code);
    bench.engine.state().write(&Scope::Global, "k", "shared".into()).await.unwrap();
    let source = r#"local swarm = require("swarm")
        return swarm.blueprint { name = "it", agents = { r = { operator = "reads" } },
        flow = function(ctx)
            ctx.state:set("k", "a secret harbour")
            ctx.state:link("k", "l", "near")
            ctx:scope { operator = "reads" }:set("k", "mine")
            return ctx:run("r")
        end }"#;
    let scopes = ["blueprint:*", "run:*", "operator:*", "state:global/t/k", "state:global/k"];
    let scopes = scopes.map(|scope| scope.parse().unwrap()).into_iter().collect();
    let grant = Grant::new(Role::Operator, scopes).and(&[Verb::RunSource]).unwrap();
    let caller = Caller { grant: grant.into(), ..bench.admin() };
    let start = StartRun::new(Program::Bundle(Bundle::from_source("it.lua", source).unwrap()));
    saw.ops();
    let run = bench.engine.start(&caller, start, None).await.unwrap().run;
    let view = bench.ended(run).await;
    let out = view.output.unwrap_or_else(|| panic!("{:?}", view.error)).to_value();
    assert_eq!(out[0], "a *** harbour");
    assert_eq!(out[1], "mine");
    for refused in [&out[2], &out[4], &out[5]] {
        assert!(refused.as_str().unwrap().contains("state.read"), "{refused}");
    }
    assert_eq!(out[3], "shared");
    assert_eq!(out[6], serde_json::json!(["k"]));
    assert_eq!(out[7], serde_json::json!(["k"]));
    assert_eq!(out[8], serde_json::json!(["l"]));
    assert_eq!(out[9], true, "a search sees the whole scope");
    let seen = saw.0.lock().clone();
    let own = format!("run:{run}/k");
    assert!(seen.iter().any(|(op, at, who)| *op == StoreOp::Read && *at == own && who == "admin"));
}
