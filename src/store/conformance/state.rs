//! Tests of state: its tables, and the protocol's traits on top of them.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::fixture::{begin, commit, header, put};
use crate::{
    clock::Clock,
    protocol::{
        ContentKind, DurationMs, Lifetime, MemoryLink, MemoryTier, RunId, Scope, SearchOptions,
        StateReader, StateStore, StoreOptions,
    },
    store::{
        Answers, Changed, DurableState, MOST_COUNTED, Reducer, ScopeFilter, StateAct, StateBatch,
        StateChange, StateKey, StateLimits, Store, StoreError, Write,
    },
    tasks::Tasks,
};

const NOW: u64 = 1_000_000;

/// Returns the state of a store, its clock and its runtime.
fn state(store: Arc<dyn Store>) -> (DurableState, Clock, tokio::runtime::Runtime) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let clock = Clock::manual(NOW);
    let tasks = Tasks::new(runtime.handle().clone());
    (DurableState::new(store, clock.clone(), tasks, StateLimits::default()), clock, runtime)
}

fn run<T>(store: Arc<dyn Store>, test: impl AsyncFnOnce(DurableState, Clock) -> T) -> T {
    let (state, clock, runtime) = state(store);
    runtime.block_on(test(state, clock))
}

fn custom(name: &str) -> Scope {
    Scope::Custom(name.to_owned())
}

fn every_scope() -> Vec<Scope> {
    let operator = |workflow: &str, operator: &str| Scope::Operator {
        workflow: workflow.into(),
        operator: operator.into(),
    };
    vec![
        Scope::Session("a".into()),
        Scope::Workflow("a".into()),
        operator("a", "b"),
        operator("a:b", ""),
        operator("", "a:b"),
        Scope::Global,
        custom("a"),
        custom("global"),
        custom(""),
    ]
}

fn change(key: &str, reducer: Reducer, value: Value) -> StateChange {
    let (value, hints) = (value.to_string(), StoreOptions::default());
    StateChange {
        scope: "global".into(),
        key: key.into(),
        if_revision: None,
        act: StateAct::Put { value, reducer, hints },
    }
}

fn batch(changes: Vec<StateChange>, receipt: Option<(u64, u32)>) -> (Write, Answers) {
    let answers = Answers::default();
    let batch = StateBatch { changes, at_ms: NOW, most: 64, receipt, answers: answers.clone() };
    (Write::ChangeState(Box::new(batch)), answers)
}

fn value(store: &dyn Store, key: &str) -> Option<String> {
    store.state_value("global", key).unwrap().map(|row| row.value)
}

pub fn what_is_missing_is_nothing_and_deleting_it_does_nothing(store: Arc<dyn Store>) {
    run(store, async |state, _| {
        assert_eq!(StateStore::read(&state, &Scope::Global, "k").await.unwrap(), None);
        state.delete(&Scope::Global, "k").await.unwrap();
        assert!(StateStore::list(&state, &Scope::Global, "").await.unwrap().is_empty());
        assert!(
            StateStore::traverse(&state, &Scope::Global, "k", None, 9).await.unwrap().is_empty()
        );
    });
}

pub fn any_json_is_kept_and_a_write_takes_the_place_of_the_last(store: Arc<dyn Store>) {
    run(store, async |state, _| {
        for value in [
            json!(null),
            json!(false),
            json!(-1.5),
            json!(9_007_199_254_740_993_u64),
            json!("\u{0} \"quoted\" \\ ü 🌙"),
            json!([]),
            json!({}),
            json!({"a": [{"b": null}]}),
        ] {
            state.write(&Scope::Global, "k", value.clone()).await.unwrap();
            assert_eq!(StateStore::read(&state, &Scope::Global, "k").await.unwrap(), Some(value));
        }
    });
}

pub fn scopes_and_keys_of_any_length_and_characters_never_collide(store: Arc<dyn Store>) {
    run(store, async |state, _| {
        let long = "k".repeat(60_000);
        let keys = ["", "a", "a/b", "a%2Fb", "a:b", "*", " ", "\n", "ü", "'", "a\u{0}b", &long];
        let places: Vec<(Scope, &str)> = every_scope()
            .into_iter()
            .flat_map(|scope| keys.map(|key| (scope.clone(), key)))
            .collect();
        for (n, (scope, key)) in places.iter().enumerate() {
            state.write(scope, key, json!(n)).await.unwrap();
        }
        for (n, (scope, key)) in places.iter().enumerate() {
            assert_eq!(
                StateStore::read(&state, scope, key).await.unwrap(),
                Some(json!(n)),
                "{scope} {key:.9}"
            );
        }
        for scope in every_scope() {
            assert_eq!(StateStore::list(&state, &scope, "").await.unwrap().len(), keys.len());
        }
        state.delete(&Scope::Global, "a").await.unwrap();
        assert!(StateStore::read(&state, &custom("global"), "a").await.unwrap().is_some());
        let too_long = "k".repeat(70_000);
        assert!(state.write(&Scope::Global, &too_long, json!(1)).await.is_err());
    });
}

pub fn keys_are_listed_in_order_by_their_prefix_and_in_pages(store: Arc<dyn Store>) {
    run(store, async |state, _| {
        for key in ["b", "a/2", "a/10", "é", "a", "a0"] {
            state.write(&Scope::Global, key, json!(1)).await.unwrap();
        }
        let list = async |prefix| StateStore::list(&state, &Scope::Global, prefix).await.unwrap();
        assert_eq!(list("").await, ["a", "a/10", "a/2", "a0", "b", "é"]);
        assert_eq!(list("a/").await, ["a/10", "a/2"]);
        assert_eq!(list("é").await, ["é"]);
        assert!(list("z").await.is_empty());
        let page = state.page("global", "a", Some("a/10".into()), 2).await.unwrap();
        assert_eq!(page.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["a/2", "a0"]);
    });
}

pub fn a_list_has_the_revisions_and_the_times_of_its_keys(store: Arc<dyn Store>) {
    run(store, async |state, clock| {
        let large = json!("x".repeat(1 << 20));
        let hints = StoreOptions { ttl: Some(DurationMs::from_millis(500)), ..Default::default() };
        state.write(&Scope::Global, "large", large.clone()).await.unwrap();
        state.write_hinted(&Scope::Global, "passing", large.clone(), &hints).await.unwrap();
        clock.advance(Duration::from_millis(100));
        state.write(&Scope::Global, "large", large).await.unwrap();
        let key = |key: &str, revision, updated_ms, expires_ms| StateKey {
            key: key.to_owned(),
            revision,
            updated_ms,
            expires_ms,
        };
        let mut expected =
            [key("large", 2, NOW + 100, None), key("passing", 1, NOW, Some(NOW + 500))];
        assert_eq!(state.page("global", "", None, 9).await.unwrap(), expected);
        assert_eq!(state.page("global", "", None, 1).await.unwrap(), expected[..1]);
        let transient = StoreOptions { lifetime: Some(Lifetime::Transient), ..Default::default() };
        state.write_hinted(&Scope::Global, "large", json!(1), &transient).await.unwrap();
        expected[0].revision = 1;
        assert_eq!(state.page("global", "", None, 9).await.unwrap(), expected, "it hides that");
        clock.advance(Duration::from_millis(400));
        assert_eq!(state.page("global", "", None, 9).await.unwrap(), expected[..1]);
    });
}

pub fn concurrent_writes_lose_nothing(store: Arc<dyn Store>) {
    run(store, async |state, _| {
        let writes = (0..200).map(|n| {
            let state = state.clone();
            async move { state.write(&Scope::Global, &format!("k{n}"), json!(n)).await }
        });
        let sums = (0..200)
            .map(|_| state.change(vec![], vec![change("sum", Reducer::Sum, json!(1))], None));
        let (written, summed) = futures::future::join(
            futures::future::join_all(writes),
            futures::future::join_all(sums),
        )
        .await;
        assert!(written.into_iter().all(|it| it.is_ok()));
        let mut left: Vec<u64> = summed
            .into_iter()
            .map(|it| it.unwrap()[0].value.as_ref().unwrap().parse().unwrap())
            .collect();
        left.sort_unstable();
        assert_eq!(left, (1..=200).collect::<Vec<u64>>());
        assert_eq!(StateStore::list(&state, &Scope::Global, "k").await.unwrap().len(), 200);
    });
}

pub fn a_value_expires_and_overwriting_it_begins_anew(store: Arc<dyn Store>) {
    let kept = Arc::clone(&store);
    run(store, async |state, clock| {
        let ttl =
            |ms| StoreOptions { ttl: Some(DurationMs::from_millis(ms)), ..Default::default() };
        let read = async || StateStore::read(&state, &Scope::Global, "k").await.unwrap();
        state.write_hinted(&Scope::Global, "k", json!("old words"), &ttl(100)).await.unwrap();
        clock.advance(Duration::from_millis(60));
        state.write_hinted(&Scope::Global, "k", json!("new words"), &ttl(100)).await.unwrap();
        clock.advance(Duration::from_millis(60));
        assert_eq!(read().await, Some(json!("new words")));
        clock.advance(Duration::from_millis(40));
        assert_eq!(read().await, None);
        assert!(StateStore::list(&state, &Scope::Global, "").await.unwrap().is_empty());
        assert!(StateStore::search(&state, &Scope::Global, "words", 9).await.unwrap().is_empty());
        assert!(kept.has_expired_state(clock.now_ms()).unwrap());

        state.write_hinted(&Scope::Global, "k", json!(1), &ttl(100)).await.unwrap();
        assert_eq!(state.value("global", "k").unwrap().unwrap().revision, 1);
        state.write(&Scope::Global, "k", json!(2)).await.unwrap();
        clock.advance(Duration::from_secs(9));
        assert_eq!(read().await, Some(json!(2)), "it was overwritten without a ttl");

        state.write_hinted(&Scope::Global, "gone", json!(1), &ttl(1)).await.unwrap();
        clock.advance(Duration::from_secs(9));
        put(&*kept, vec![Write::ExpireState { now_ms: clock.now_ms(), rows: 9 }]);
        assert!(!kept.has_expired_state(clock.now_ms()).unwrap());
        assert_eq!(kept.state("global").unwrap().len(), 1);
    });
}

pub fn a_transient_value_is_readable_until_it_is_cleared_and_never_stored(store: Arc<dyn Store>) {
    let kept = Arc::clone(&store);
    run(store, async |state, _| {
        let hints = StoreOptions { lifetime: Some(Lifetime::Transient), ..Default::default() };
        let read = async || StateReader::read(&state, &Scope::Global, "k").await.unwrap();
        state.write(&Scope::Global, "k", json!("durable")).await.unwrap();
        state.write_hinted(&Scope::Global, "k", json!("passing"), &hints).await.unwrap();
        state.write_hinted(&Scope::Global, "only", json!(1), &hints).await.unwrap();
        assert_eq!(read().await, Some(json!("passing")));
        assert_eq!(StateReader::list(&state, &Scope::Global, "").await.unwrap(), ["k", "only"]);
        assert_eq!(value(&*kept, "k").as_deref(), Some("\"durable\""));
        assert_eq!(value(&*kept, "only"), None);
        StateReader::clear_transient(&state);
        assert_eq!(read().await, Some(json!("durable")));
        state.write_hinted(&Scope::Global, "k", json!("again"), &hints).await.unwrap();
        state.write(&Scope::Global, "k", json!("over it")).await.unwrap();
        assert_eq!(read().await, Some(json!("over it")));
    });
}

pub fn a_transient_value_is_found_in_place_of_the_one_that_it_lies_over(store: Arc<dyn Store>) {
    run(store, async |state, clock| {
        let hints = StoreOptions {
            lifetime: Some(Lifetime::Transient),
            tier: Some(MemoryTier::Hot),
            ttl: Some(DurationMs::from_millis(100)),
            ..Default::default()
        };
        let g = Scope::Global;
        state.write(&g, "kept", json!("a lighthouse of stone")).await.unwrap();
        state.write(&g, "hidden", json!("a lighthouse of wood")).await.unwrap();
        state.write_hinted(&g, "hidden", json!("a windmill"), &hints).await.unwrap();
        state.write_hinted(&g, "only/lighthouse", json!("in passing"), &hints).await.unwrap();
        state.write_hinted(&custom("other"), "k", json!("lighthouse"), &hints).await.unwrap();
        let find = async |query: &str, limit| {
            let found = StateStore::search(&state, &g, query, limit).await.unwrap();
            assert!(found.windows(2).all(|two| two[0].score >= two[1].score), "{found:?}");
            let mut keys: Vec<String> = found.into_iter().map(|hit| hit.key).collect();
            keys.sort_unstable();
            keys
        };
        assert_eq!(find("lighthouse", 9).await, ["kept", "only/lighthouse"]);
        assert_eq!(find("windmill", 9).await, ["hidden"]);
        assert_eq!(find("light* passing", 9).await, ["only/lighthouse"]);
        assert_eq!(find("lighthouse", 1).await.len(), 1, "what is hidden takes no place");
        assert!(find("", 9).await.is_empty());
        let of_prefix = state.find("global", "light*", "only/", 9, SearchOptions::default()).await;
        let of_prefix = of_prefix.unwrap();
        assert_eq!(of_prefix[0].snippet, "\"in passing\"", "the word is in its key");
        let hot = SearchOptions { tier: Some(MemoryTier::Hot), ..SearchOptions::default() };
        let of_tier = state.find("global", "lighthouse", "", 9, hot).await.unwrap();
        assert_eq!(of_tier.len(), 1);
        clock.advance(Duration::from_millis(100));
        assert_eq!(find("lighthouse", 9).await, ["hidden", "kept"], "they have expired");
    });
}

pub fn hints_are_kept_with_their_value(store: Arc<dyn Store>) {
    let kept = Arc::clone(&store);
    run(store, async |state, _| {
        let hints = StoreOptions {
            tier: Some(MemoryTier::Cold),
            lifetime: Some(Lifetime::Durable),
            content_kind: Some(ContentKind::Custom("recipe".into())),
            salience: Some(0.75),
            ttl: Some(DurationMs::from_millis(5_000)),
        };
        state.write_hinted(&Scope::Global, "k", json!("soup of leek"), &hints).await.unwrap();
        state.write(&Scope::Global, "plain", json!("soup of beans")).await.unwrap();
        let row = kept.state_value("global", "k").unwrap().unwrap();
        assert_eq!((row.hints, row.expires_ms), (hints.clone(), Some(NOW + 5_000)));
        let only = SearchOptions { content_kind: hints.content_kind, ..Default::default() };
        let found = StateStore::search_hinted(&state, &Scope::Global, "soup", 9, &only).await;
        let found = found.unwrap();
        assert_eq!(found.iter().map(|hit| hit.key.as_str()).collect::<Vec<_>>(), ["k"]);
    });
}

pub fn a_search_finds_what_has_every_word_ranks_it_and_shows_where(store: Arc<dyn Store>) {
    run(store, async |state, _| {
        let filler = "and other words that say nothing of it ".repeat(8);
        for (key, value) in [
            ("once", json!(format!("the lighthouse keeper {filler}"))),
            ("often", json!({"t": "Lighthouse: the lighthouse keeper of a lighthouse"})),
            ("half", json!("a lighthouse alone")),
            ("keeper/lighthouse", json!(0)),
            ("escaped", json!("first\nlighthouse\tkeeper")),
            ("none", json!("a windmill")),
        ] {
            state.write(&Scope::Global, key, value).await.unwrap();
        }
        state.write(&custom("other"), "else", json!("lighthouse keeper")).await.unwrap();
        let find = async |query: &str, limit| {
            StateStore::search(&state, &Scope::Global, query, limit).await.unwrap()
        };
        let found = find("LIGHTHOUSE keeper", 9).await;
        let keys: Vec<&str> = found.iter().map(|hit| hit.key.as_str()).collect();
        assert_eq!(keys.len(), 4, "{keys:?}");
        assert!(keys.contains(&"escaped") && keys.contains(&"keeper/lighthouse"));
        let place = |key: &str| keys.iter().position(|it| *it == key).unwrap();
        assert!(place("often") < place("once"), "{keys:?}");
        assert!(found.windows(2).all(|two| two[0].score >= two[1].score));
        let once = found.iter().find(|hit| hit.key == "once").unwrap();
        assert!(once.snippet.as_ref().unwrap().contains("[lighthouse] [keeper]"), "{once:?}");
        assert_eq!(find("LIGHTHOUSE keeper", 2).await.len(), 2);
        assert_eq!(find("light*", 9).await.len(), 5);
        for query in ["", "  ", "\"", "*", "AND (", "col:x", "'; DROP", "-", "NEAR("] {
            find(query, 9).await;
        }
        assert!(find("", 9).await.is_empty() && find("!?", 9).await.is_empty());

        state.write(&Scope::Global, "half", json!("a lighthouse keeper")).await.unwrap();
        state.delete(&Scope::Global, "often").await.unwrap();
        let after: Vec<_> = find("lighthouse keeper", 9).await;
        assert!(
            after.iter().any(|hit| hit.key == "half") && after.iter().all(|hit| hit.key != "often")
        );
        let only = state.find("global", "lighthouse", "keeper/", 9, SearchOptions::default()).await;
        assert_eq!(only.unwrap().len(), 1);
    });
}

pub fn a_search_goes_on_past_what_does_not_fit_its_options(store: Arc<dyn Store>) {
    run(store, async |state, _| {
        for n in 0..100 {
            state.write(&Scope::Global, &format!("k{n}"), json!("lighthouse")).await.unwrap();
        }
        let hints = StoreOptions { tier: Some(MemoryTier::Hot), ..StoreOptions::default() };
        let filler = "and other words that say nothing of it ".repeat(8);
        let last = json!(format!("a lighthouse {filler}"));
        state.write_hinted(&Scope::Global, "last", last, &hints).await.unwrap();
        let options = SearchOptions { tier: Some(MemoryTier::Hot), ..SearchOptions::default() };
        let found = state.find("global", "lighthouse", "", 1, options).await.unwrap();
        assert_eq!(found.iter().map(|hit| &*hit.key).collect::<Vec<_>>(), ["last"]);
        let all = StateStore::search(&state, &Scope::Global, "lighthouse", 90).await.unwrap();
        assert_eq!(all.len(), 90);
    });
}

pub fn links_are_followed_as_far_as_asked_and_go_with_their_keys(store: Arc<dyn Store>) {
    let kept = Arc::clone(&store);
    run(store, async |state, _| {
        let scope = custom("graph");
        let mut noted = MemoryLink::new("a", "b", "cites");
        noted.metadata = Some(json!({"page": 3}));
        state.link(&scope, &noted).await.unwrap();
        for (from, to, relation) in
            [("b", "c", "cites"), ("c", "a", "cites"), ("a", "d", "amends"), ("d", "e", "cites")]
        {
            state.link(&scope, &MemoryLink::new(from, to, relation)).await.unwrap();
        }
        let walk = async |from, relation, depth| {
            StateReader::traverse(&state, &scope, from, relation, depth).await.unwrap()
        };
        assert_eq!(walk("a", None, 1).await, ["b", "d"]);
        assert_eq!(walk("a", None, 9).await, ["b", "d", "c", "e"], "the circle ends");
        assert_eq!(walk("a", Some("cites"), 9).await, ["b", "c"]);
        assert!(walk("a", None, 0).await.is_empty());
        assert!(
            StateStore::traverse(&state, &Scope::Global, "a", None, 9).await.unwrap().is_empty()
        );
        assert_eq!(kept.links_from("custom:graph", "a", Some("cites"), 9).unwrap(), [noted]);
        state.unlink(&scope, "a", "b", "amends").await.unwrap();
        state.unlink(&scope, "a", "d", "amends").await.unwrap();
        assert_eq!(walk("a", None, 9).await, ["b", "c"]);
        state.write(&scope, "b", json!(1)).await.unwrap();
        state.delete(&scope, "b").await.unwrap();
        assert!(walk("a", None, 9).await.is_empty());
    });
}

pub fn the_links_of_a_scope_are_listed_in_their_order_and_of_no_other(store: Arc<dyn Store>) {
    let kept = Arc::clone(&store);
    run(store, async |state, _| {
        let scope = custom("graph");
        let mut noted = MemoryLink::new("b", "a", "amends");
        noted.metadata = Some(json!({"page": 3}));
        for link in [
            MemoryLink::new("b", "c", "cites"),
            MemoryLink::new("b", "a", "cites"),
            noted.clone(),
            MemoryLink::new("a", "c", "cites"),
        ] {
            state.link(&scope, &link).await.unwrap();
        }
        state.link(&custom("graph2"), &MemoryLink::new("x", "y", "z")).await.unwrap();
        let expected = [
            MemoryLink::new("a", "c", "cites"),
            noted,
            MemoryLink::new("b", "a", "cites"),
            MemoryLink::new("b", "c", "cites"),
        ];
        assert_eq!(kept.links("custom:graph").unwrap(), expected);
        assert!(kept.links("custom:none").unwrap().is_empty());
    });
}

pub fn a_batch_of_state_is_made_whole_or_not_at_all(store: Arc<dyn Store>) {
    let store = &*store;
    let conditional = |key: &str, revision, value| StateChange {
        if_revision: Some(revision),
        ..change(key, Reducer::Overwrite, value)
    };
    let (write, answers) = batch(
        vec![
            conditional("a", 0, json!(1)),
            change("a", Reducer::Sum, json!(2)),
            conditional("a", 2, json!(9)),
            change("list", Reducer::Append, json!("x")),
            change("map", Reducer::Merge, json!({"k": 1})),
        ],
        None,
    );
    put(store, vec![write]);
    let of: Vec<_> = answers.get().iter().map(|it| (it.revision, it.value.clone())).collect();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        of,
        [(1, None), (2, some("3")), (3, None), (1, some("[\"x\"]")), (1, some("{\"k\":1}"))]
    );

    let refuse = |changes| {
        let (write, answers) = batch(changes, None);
        let marker = Write::PutMeta { key: "marker".into(), value: "1".into() };
        let error = commit(store, vec![], None, vec![marker, write]).unwrap_err();
        assert!(answers.get().is_empty());
        assert_eq!(store.meta("marker").unwrap(), None);
        error
    };
    let error = refuse(vec![change("new", Reducer::Sum, json!(1)), conditional("a", 2, json!(0))]);
    assert!(
        matches!(&error, StoreError::Revision { key, expected: 2, found: 3 } if key == "a"),
        "{error}"
    );
    let error = refuse(vec![
        change("new", Reducer::Sum, json!(1)),
        change("map", Reducer::Append, json!(0)),
    ]);
    assert!(matches!(&error, StoreError::StateRefused { key, .. } if key == "map"), "{error}");
    let error = refuse(vec![change("list", Reducer::Append, json!("y".repeat(60)))]);
    assert!(error.to_string().contains("64 are allowed"), "{error}");
    assert_eq!((value(store, "new"), value(store, "a").as_deref()), (None, Some("9")));
}

pub fn what_has_a_receipt_is_done_once(store: Arc<dyn Store>) {
    let store = &*store;
    let add = || batch(vec![change("n", Reducer::Sum, json!(1))], Some((7, 3)));
    for _ in 0..2 {
        let (write, answers) = add();
        put(store, vec![write]);
        assert_eq!(answers.get(), [Changed { revision: 1, value: Some("1".into()) }]);
    }
    assert_eq!(value(store, "n").as_deref(), Some("1"));
    put(store, vec![Write::ForgetReceipt { run: 7, step: 3 }]);
    put(store, vec![add().0]);
    assert_eq!(value(store, "n").as_deref(), Some("2"));
}

pub fn state_ends_with_its_run_and_its_session(store: Arc<dyn Store>) {
    let stored = begin(&*store, header(5));
    let run_id = RunId::new(5, stored.created_ms).to_string();
    let kept = Arc::clone(&store);
    run(store, async |state, _| {
        let own = Scope::Workflow(run_id.as_str().into());
        let within = Scope::Operator { workflow: run_id.as_str().into(), operator: "coder".into() };
        let session = Scope::Session("ses_1".into());
        let passing = StoreOptions { lifetime: Some(Lifetime::Session), ..Default::default() };
        for scope in [&own, &within, &session, &Scope::Global] {
            state.write(scope, "k", json!("words")).await.unwrap();
            state.link(scope, &MemoryLink::new("k", "l", "r")).await.unwrap();
        }
        state.write_hinted(&session, "passing", json!(1), &passing).await.unwrap();
        let reason = "done".to_owned();
        put(
            &*kept,
            vec![
                Write::DeleteRun { run: 5 },
                Write::CloseSession { session: "ses_1".into(), at_ms: 1, reason },
            ],
        );
        for scope in [&own, &within] {
            assert!(StateStore::list(&state, scope, "").await.unwrap().is_empty());
            assert!(StateStore::traverse(&state, scope, "k", None, 1).await.unwrap().is_empty());
            assert!(StateStore::search(&state, scope, "words", 9).await.unwrap().is_empty());
        }
        assert_eq!(StateStore::list(&state, &session, "").await.unwrap(), ["k"]);
        assert_eq!(StateStore::list(&state, &Scope::Global, "").await.unwrap(), ["k"]);
    });
}

pub fn scopes_are_listed_with_what_they_hold(store: Arc<dyn Store>) {
    let kept = Arc::clone(&store);
    run(store, async |state, clock| {
        for (scope, keys) in [("b", 3), ("a", 1), ("c", MOST_COUNTED + 1)] {
            for n in 0..keys {
                state.write(&custom(scope), &format!("{n:04}"), json!("é")).await.unwrap();
            }
        }
        let passing = StoreOptions { ttl: Some(DurationMs::from_millis(5)), ..Default::default() };
        state.write_hinted(&Scope::Global, "k", json!(1), &passing).await.unwrap();
        let list = |prefix: &str, after: Option<&str>, limit, now_ms| {
            let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
            let filter = ScopeFilter { prefix, after, limit, now_ms };
            let rows = kept.state_scopes(&filter).unwrap().into_iter();
            rows.map(|it| (it.scope, it.keys, it.bytes, it.more)).collect::<Vec<_>>()
        };
        let now = clock.now_ms();
        let [a, b] = [("a", 1), ("b", 3)].map(|(it, n)| (format!("custom:{it}"), n, n * 8, false));
        let c = ("custom:c".to_owned(), MOST_COUNTED, MOST_COUNTED * 8, true);
        let global = ("global".to_owned(), 1, 2, false);
        assert_eq!(list("", None, 9, now), [a.clone(), b.clone(), c.clone(), global]);
        assert_eq!(list("", None, 9, now + 5), [a.clone(), b.clone(), c.clone()], "it has expired");
        assert_eq!(list("custom:", None, 1, now), [a]);
        assert_eq!(list("custom:", Some("custom:a"), 9, now), [b, c]);
        assert!(list("run:", None, 9, now).is_empty());
    });
}
