//! Tests of erasing.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::json;

use super::{
    fixture::{append, batch, begin, commit, header, put, started},
    tables::{frame, session, task},
};
use crate::{
    journal::{Decision, Fact, RunStarted},
    protocol::{RunId, StoreOptions, TaskId},
    store::{
        Answers, ArtifactRow, AuditRow, BlueprintRow, CountedRun, Descent, ErasureTarget, Errand,
        EvidenceRow, Header, IdempotencyRow, MOST_ERASED_RUNS, OutboxRow, StateAct, StateBatch,
        StateChange, Store, TaskRow, TokenRow, Trace, Write,
    },
};

/// A text that stands in the place of a person's data.
const PERSON: &str = "zacharias \"zq\" quux";

fn json_of(text: &str) -> String {
    json!({ "a": text }).to_string()
}

fn state(scope: &str, key: &str, value: &str) -> Write {
    Write::PutState {
        scope: scope.to_owned(),
        key: key.to_owned(),
        value: json_of(value),
        hints: StoreOptions::default(),
        expires_ms: None,
        at_ms: 5,
    }
}

fn kept(layer: &str, key: &str, value: String) -> Write {
    let (layer, key) = (layer.to_owned(), key.to_owned());
    Write::PutKept { layer, key, value, expires_ms: None }
}

fn answer(principal: &str, key: &str, answer: String) -> Write {
    Write::PutIdempotency(IdempotencyRow {
        principal: principal.to_owned(),
        route: "POST /v1/runs".to_owned(),
        key: key.to_owned(),
        body: "b".to_owned(),
        answer,
        created_ms: 1,
    })
}

fn token(jti: &str, sub: &str) -> Write {
    Write::PutToken(TokenRow {
        jti: jti.to_owned(),
        role: "operator".to_owned(),
        claims: json!({ "sub": sub }).to_string(),
        parent: None,
        created_ms: 1,
        expires_ms: 2,
        revoked_ms: None,
    })
}

fn runs(store: &dyn Store, target: &ErasureTarget) -> Vec<u64> {
    store.upkeep().traces(target).unwrap().runs.iter().map(|run| run.num).collect()
}

fn erase(store: &dyn Store, target: &ErasureTarget) {
    let traces = store.upkeep().traces(target).unwrap();
    let runs = traces.runs.iter().map(|run| Trace::Run(run.num));
    let erase = |trace| Write::Erase(Box::new(trace));
    put(store, runs.chain(traces.rows).map(erase).collect());
    put(store, vec![Write::Rewrite]);
}

pub fn a_text_is_found_in_every_place_and_erased_from_all_that_the_host_can_miss(
    store: &dyn Store,
) {
    let plain = |num| Header { parent: None, ..header(num) };
    for num in 1..=9 {
        begin(store, plain(num));
    }
    let mut failed = Header { error: Some(json_of(PERSON)), ..plain(10) };
    let of_header = append(store, &mut failed, vec![started(None)]);
    let mut noted = plain(11);
    let by = Fact::Decided(Decision::Resume { by: PERSON.to_owned() });
    let of_journal = append(store, &mut noted, vec![started(None), by]);
    for run in [of_header, of_journal] {
        commit(store, vec![], Some(run), vec![]).unwrap();
    }
    let hash = blake3::hash(PERSON.as_bytes()).to_hex().to_string();
    let file = |run, name: &str, hash: &str| ArtifactRow {
        run,
        n: 1,
        name: name.to_owned(),
        hash: hash.to_owned(),
        size: 5,
        created_ms: 6,
        step: 1,
        attempt: 1,
        published: true,
    };
    let audit = AuditRow {
        seq: 1,
        at: "2026-11-21T00:00:00.000Z".to_owned(),
        line: json_of(PERSON),
        hash: "h".to_owned(),
    };
    let link = StateAct::Link {
        to: "to".to_owned(),
        relation: "r".to_owned(),
        metadata: Some(json_of(PERSON)),
    };
    let change =
        StateChange { scope: "global".into(), key: "plain".into(), if_revision: None, act: link };
    put(
        store,
        vec![
            Write::PutTask(Box::new(TaskRow { prompt: json_of(PERSON), ..task(1, 1) })),
            Write::PutBlob { hash: hash.clone(), data: Arc::from(PERSON.as_bytes()) },
            Write::PutArtifact(file(2, "a.txt", &hash)),
            Write::PutArtifact(file(3, PERSON, "other")),
            Write::PutOutbox(OutboxRow {
                run: 4,
                step: 1,
                to: 5,
                errand: Errand::Signal { name: "s".to_owned(), payload: json_of(PERSON) },
            }),
            Write::PutEvidence(EvidenceRow {
                run: 6,
                step: 1,
                attempt: 1,
                at_ms: 1,
                code: "c".to_owned(),
                body: PERSON.to_owned(),
            }),
            Write::PutSession(Box::new(session("s", 7))),
            Write::PutFrame(Box::new(crate::store::FrameRow {
                run: 7,
                params: json_of(PERSON),
                ..frame("s", 1)
            })),
            state("global", "plain", "nothing"),
            state("global", "with", PERSON),
            Write::ChangeState(Box::new(StateBatch {
                changes: vec![change],
                at_ms: 5,
                most: 64,
                receipt: None,
                answers: Answers::default(),
            })),
            kept("cache", "k", json_of(PERSON)),
            kept("cache", "other", json_of("x")),
            answer("ann", "k", json_of(PERSON)),
            answer("ann", "other", json_of("x")),
            token("t", PERSON),
            token("other", "ann"),
            Write::CountRun(Box::new(CountedRun {
                run: 9,
                created_ms: 1,
                ended_ms: 2,
                blueprint: PERSON.to_owned(),
                ending: crate::journal::Ending::Completed,
                tally: crate::journal::Tally::default(),
            })),
            Write::PutMeta { key: "m".to_owned(), value: json_of(PERSON) },
            Write::AddAudit(audit),
            Write::PutBlueprint(BlueprintRow {
                hash: "b".to_owned(),
                name: "n".to_owned(),
                bundle: PERSON.as_bytes().to_vec(),
                created_ms: 1,
                publisher: None,
            }),
        ],
    );
    let target = ErasureTarget { text: Some(PERSON.to_owned()), ..ErasureTarget::default() };
    assert_eq!(runs(store, &target), [1, 2, 3, 4, 6, 7, 10, 11]);
    let found = store.upkeep().traces(&target).unwrap();
    let mut places: Vec<&str> = found.rows.iter().map(Trace::place).collect();
    places.dedup();
    assert_eq!(places, ["state", "links", "kept", "answers", "tokens", "sums", "blueprints"]);
    let stays = BTreeMap::from([("audit", 1), ("host", 1)]);
    assert_eq!((&found.stays, found.more), (&stays, false));
    assert_eq!((found.runs[1].entries, found.runs[1].files), (1, 1));

    erase(store, &target);
    let left = store.upkeep().traces(&target).unwrap();
    assert_eq!((left.runs, left.rows.len(), left.stays), (vec![], 0, stays));
    assert_eq!(store.blob(&hash).unwrap(), None);
    assert_eq!(store.blueprint("b").unwrap(), None);
    assert_eq!(store.frames().unwrap(), []);
    assert_eq!(store.kept_by("cache", "", 9).unwrap().len(), 1);
    assert!(store.idempotent("ann", "POST /v1/runs", "other").unwrap().is_some());
    assert!(store.token("other").unwrap().is_some());
    assert!(store.state_value("global", "plain").unwrap().is_some());
    assert!([5, 8, 9].iter().all(|run| store.header(*run).unwrap().is_some()));
}

pub fn a_subject_is_found_by_its_whole_name_and_runs_of_others_that_name_it_are_listed(
    store: &dyn Store,
) {
    let of = |num, principal: &str| Header {
        parent: None,
        principal: principal.to_owned(),
        ..header(num)
    };
    begin(store, of(1, "ann"));
    begin(store, of(2, "anna"));
    // Its history begins with a fact that names ann.
    begin(store, of(3, "bob"));
    let mine = RunId::new(1, header(1).created_ms);
    let of_mine = json!({ "task": TaskId::new(1, 2, 3) }).to_string();
    put(
        store,
        vec![
            token("a", "ann"),
            token("b", "anna"),
            answer("ann", "k", json_of("x")),
            answer("bob", "k", json!({ "id": mine }).to_string()),
            kept("answered task", "00ff task_x ann", json_of("x")),
            kept("answer link", "l", of_mine),
            kept("host event", "e", json!({ "data": { "by": "ann" } }).to_string()),
            kept("host event", "f", json!({ "data": { "by": "anna" } }).to_string()),
            state("custom:ann", "k", "x"),
            state("custom:anna", "k", "x"),
            state("session:conv_1", "conversation", &mine.to_string().replace("run_", "resp_")),
        ],
    );
    let target = ErasureTarget { subject: Some("ann".to_owned()), ..ErasureTarget::default() };
    let found = store.upkeep().traces(&target).unwrap();
    assert_eq!(runs(store, &target), [1]);
    assert_eq!(found.named_in.into_iter().collect::<Vec<_>>(), [2, 3]);
    let count = |place| found.rows.iter().filter(|row| row.place() == place).count();
    assert_eq!(["state", "kept", "answers", "tokens"].map(count), [2, 3, 2, 1]);
    erase(store, &target);
    assert!(store.upkeep().traces(&target).unwrap().rows.is_empty());
    assert!(store.token("b").unwrap().is_some() && store.header(2).unwrap().is_some());
    assert_eq!(store.kept_by("host event", "", 9).unwrap().len(), 1);
}

pub fn a_run_is_erased_with_those_that_it_called_and_what_names_them(store: &dyn Store) {
    let called =
        |num, parent: Option<u64>| Header { parent: parent.map(|run| (run, 1)), ..header(num) };
    for (num, parent) in [(1, None), (2, Some(1)), (3, Some(2)), (4, None)] {
        begin(store, called(num, parent));
    }
    let fact = |num: u64| json!({ "run": RunId::new(num, 1_000 + num) }).to_string();
    put(store, vec![kept("host event", "a", fact(3)), kept("host event", "b", fact(4))]);
    let target = ErasureTarget { runs: [1].into(), ..ErasureTarget::default() };
    assert_eq!(runs(store, &target), [1, 2, 3]);
    erase(store, &target);
    assert_eq!(runs(store, &target), [0_u64; 0]);
    assert_eq!(store.kept_by("host event", "", 9).unwrap().len(), 1);
    assert!(store.header(4).unwrap().is_some());
}

pub fn the_forks_and_repetitions_of_an_erased_run_are_erased_with_it(store: &dyn Store) {
    let id = |num: u64| RunId::new(num, header(num).created_ms).to_string();
    let begin_with = |num, principal: &str, facts: Vec<Fact>| {
        let principal = principal.to_owned();
        let mut header = Header { parent: None, principal, ..header(num) };
        let run = append(store, &mut header, facts);
        commit(store, vec![], Some(run), vec![]).unwrap();
    };
    let copied = |of: u64| {
        let from = id(of);
        Fact::Decided(Decision::Copied { by: "bob".to_owned(), from, step: Some(2) })
    };
    let repeats = |of: u64| match started(None) {
        Fact::RunStarted(mut it) => {
            it.trigger = json!({ "kind": "rerun", "run": id(of) }).into();
            Fact::RunStarted(it)
        }
        other => other,
    };
    begin_with(1, "ann", vec![started(None)]);
    begin_with(2, "bob", vec![started(None), copied(1)]);
    // A fork of a fork has both marks, and a repetition of it is known by its trigger.
    begin_with(3, "bob", vec![started(None), copied(1), copied(2)]);
    begin_with(4, "bob", vec![repeats(3)]);
    begin(store, Header { parent: Some((4, 1)), principal: "bob".to_owned(), ..header(5) });
    // A run that is only named by its input descends from nothing.
    let named = match started(None) {
        Fact::RunStarted(it) => {
            Fact::RunStarted(Box::new(RunStarted { input: json!({ "run": id(1) }).into(), ..*it }))
        }
        other => other,
    };
    begin_with(6, "bob", vec![named]);
    // Of another host, where another run has the number.
    let from = RunId::new(1, 7).to_string();
    let imported = Decision::Copied { by: "bob".to_owned(), from, step: None };
    begin_with(7, "bob", vec![started(None), Fact::Decided(imported)]);
    let of_run = ErasureTarget { runs: [1].into(), ..ErasureTarget::default() };
    let of_ann = ErasureTarget { subject: Some("ann".to_owned()), ..ErasureTarget::default() };
    for target in [&of_run, &of_ann] {
        let found = store.upkeep().traces(target).unwrap();
        assert_eq!(runs(store, target), [1, 2, 3, 4, 5]);
        let descents = found.descents.into_iter().collect::<Vec<_>>();
        assert_eq!(descents.len(), 4, "{descents:?}");
        assert_eq!(descents[0], (2, (Descent::Forked, 1)));
        assert_eq!((descents[1].0, descents[1].1.0), (3, Descent::Forked));
        assert_eq!(descents[2], (4, (Descent::Repeated, 3)));
        assert_eq!(descents[3], (5, (Descent::Called, 4)));
    }
    let fork = ErasureTarget { runs: [2].into(), ..ErasureTarget::default() };
    assert_eq!(runs(store, &fork), [2, 3, 4, 5], "the original stays");
    erase(store, &of_run);
    assert_eq!(runs(store, &of_run), [0_u64; 0]);
    assert!([6, 7].iter().all(|run| store.header(*run).unwrap().is_some()));
}

pub fn a_source_is_erased_with_the_last_run_that_has_it_unless_it_is_published(store: &dyn Store) {
    let with = |num, hash: &str| Header { parent: None, hash: hash.to_owned(), ..header(num) };
    let source = |hash: &str, publisher: Option<&str>| {
        Write::PutBlueprint(BlueprintRow {
            hash: hash.to_owned(),
            name: header(1).blueprint,
            bundle: PERSON.as_bytes().to_vec(),
            created_ms: 1,
            publisher: publisher.map(str::to_owned),
        })
    };
    for (num, hash) in [(1, "one"), (2, "two"), (3, "two"), (4, "public"), (5, "named")] {
        begin(store, with(num, hash));
    }
    let named = header(1).blueprint;
    put(
        store,
        vec![
            source("one", None),
            source("two", None),
            source("public", Some("{}")),
            source("named", None),
            Write::NameBlueprint { name: named, hash: "named".to_owned(), at_ms: 1 },
        ],
    );
    let stored = || {
        let all = ["one", "two", "public", "named"];
        all.map(|hash| store.blueprint(hash).unwrap().is_some())
    };
    let of = |runs: &[u64]| ErasureTarget {
        runs: runs.iter().copied().collect(),
        ..ErasureTarget::default()
    };
    let sources = |target: &ErasureTarget| {
        let found = store.upkeep().traces(target).unwrap();
        found.rows.iter().filter(|row| row.place() == "blueprints").count()
    };
    // A run that is not erased has the second one.
    assert_eq!(sources(&of(&[1, 2, 4, 5])), 1);
    // Also if an act names it all the same.
    let wrong = Trace::Blueprint { name: header(1).blueprint, hash: "two".to_owned() };
    put(store, vec![Write::Erase(Box::new(wrong))]);
    assert_eq!(stored(), [true; 4]);
    erase(store, &of(&[1, 2, 4, 5]));
    assert_eq!(stored(), [false, true, true, true]);
    let text = ErasureTarget { text: Some(PERSON.to_owned()), ..ErasureTarget::default() };
    let left = store.upkeep().traces(&text).unwrap();
    assert_eq!((sources(&text), left.stays.get("blueprints")), (0, Some(&3)));
    put(store, vec![Write::DeleteRun { run: 3 }]);
    assert_eq!(sources(&text), 1);
    erase(store, &text);
    assert_eq!(stored(), [false, false, true, true]);
}

pub fn of_more_runs_than_are_erased_at_a_time_the_newest_go_first(store: &dyn Store) {
    let last = MOST_ERASED_RUNS as u64 + 1;
    let mut acked = Vec::new();
    for num in 1..=last {
        let parent = (num > 1).then(|| (num - 1, 1));
        let mut header = Header { parent, ..header(num) };
        let run = append(store, &mut header, vec![started(None)]);
        let (batch, told) = batch(vec![], Some(run), vec![]);
        store.submit(batch);
        acked.push(told);
    }
    acked.into_iter().for_each(|told| told.recv().unwrap().unwrap());
    let target = ErasureTarget { runs: [1].into(), ..ErasureTarget::default() };
    let traces = store.upkeep().traces(&target).unwrap();
    let found: Vec<u64> = traces.runs.iter().map(|run| run.num).collect();
    // Without the first one, nothing would lead to the others.
    assert!(traces.more && found == (2..=last).collect::<Vec<_>>(), "{:?}", found.first());
}
