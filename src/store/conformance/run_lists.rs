//! Tests of lists of runs by their filters.

use super::{append, begin, commit, header, resumed};
use crate::{
    journal::Spent,
    protocol::{RunId, TagIs, Tags},
    store::{Header, RunFilter, RunStatus, Store, Used, Write},
};

fn all() -> RunFilter {
    RunFilter { limit: 100, ..RunFilter::default() }
}

fn found(store: &dyn Store, filter: &RunFilter) -> Vec<u64> {
    store.headers(filter).unwrap().iter().map(|header| header.num).collect()
}

fn tags(text: &str) -> Tags {
    Tags::parse(text.split(' ')).unwrap()
}

fn text(words: &str) -> RunFilter {
    RunFilter { text: Some(words.to_owned()), ..all() }
}

/// Ends a stored run.
fn end(store: &dyn Store, mut run: Header, change: impl FnOnce(&mut Header)) {
    run.ended_ms = Some(run.created_ms + 50);
    change(&mut run);
    let mut write = append(store, &mut run, vec![resumed()]);
    write.whole = true;
    commit(store, vec![], Some(write), vec![]).unwrap();
}

pub fn runs_are_found_by_what_their_headers_have(store: &dyn Store) {
    let agents = ["coder".to_owned()].into();
    let failure = r#"{"kind":"timeout","message":"late","agent":"judge","retryable":true}"#;
    let waits = r#"[{"kind":"task","subject":{"name":"ship","operator":"human"},"since":""}]"#;
    begin(store, Header { tags: tags("customer=acme env=a,b"), ..header(1) });
    begin(store, Header { tags: tags("customer=acme"), principal: "bob".into(), ..header(2) });
    begin(store, Header { tags: tags("customer=umbra"), parent: Some((7, 1)), ..header(3) });
    let mut spent = Spent::default();
    spent.total.cost = Some("0.75".to_owned());
    begin(store, Header { used: Used::encode(&spent, &agents), ..header(4) });
    begin(store, Header { error: Some(failure.to_owned()), ..header(5) });
    begin(store, Header { waiting_on: Some(waits.to_owned()), ..header(6) });
    end(store, begin(store, header(7)), |run| run.status = RunStatus::Completed);

    let tag = |text: &str| TagIs::parse(text).unwrap();
    let some = |text: &str| Some(text.to_owned());
    for (filter, nums) in [
        (RunFilter { tags: vec![tag("customer=acme")], ..all() }, vec![2, 1]),
        (RunFilter { tags: vec![tag("customer")], ..all() }, vec![3, 2, 1]),
        (RunFilter { tags: vec![tag("customer=acme"), tag("env=a,b")], ..all() }, vec![1]),
        (RunFilter { tags: vec![tag("env=a")], ..all() }, vec![]),
        (RunFilter { started_by: some("bob"), ..all() }, vec![2]),
        (RunFilter { parent: Some(7), ..all() }, vec![3]),
        (RunFilter { agent: some("coder"), ..all() }, vec![4]),
        (RunFilter { min_cost: Some(rust_decimal::Decimal::new(75, 2)), ..all() }, vec![4]),
        (RunFilter { min_cost: Some(rust_decimal::Decimal::ONE), ..all() }, vec![]),
        (RunFilter { agent: some("judge"), ..all() }, vec![5]),
        (RunFilter { agent: some("ship"), ..all() }, vec![6]),
        (RunFilter { error: some("timeout"), ..all() }, vec![5]),
        (RunFilter { waiting_on: some("task"), ..all() }, vec![6]),
        (RunFilter { waiting_on: some("human"), ..all() }, vec![6]),
        (RunFilter { since_ms: Some(1002), until_ms: Some(1004), ..all() }, vec![3, 2]),
        (RunFilter { ended_since_ms: Some(1057), ..all() }, vec![7]),
        (RunFilter { ended_until_ms: Some(1057), ..all() }, vec![]),
        (text(&header(4).id().to_string()), vec![4]),
        (text(&header(4).id().to_string()[..12]), vec![7, 6, 5, 4, 3, 2, 1]),
    ] {
        assert_eq!(found(store, &filter), nums, "{filter:?}");
    }
    let kept = store.header(1).unwrap().unwrap();
    assert_eq!(kept.tags.get("env"), Some("a,b"));
    commit(store, vec![], None, vec![Write::DeleteRun { run: 2 }]).unwrap();
    assert_eq!(found(store, &RunFilter { tags: vec![tag("customer=acme")], ..all() }), [1]);
}

pub fn words_of_a_run_are_found_while_it_is_open_and_after_its_end(store: &dyn Store) {
    let says = |num: u64, text: &str| Header { status_text: Some(text.into()), ..header(num) };
    begin(store, says(1, "Writing the report"));
    let failure = r#"{"kind":"worker","message":"the disk is FULL","retryable":false}"#;
    end(store, begin(store, says(2, "writing")), |run| {
        run.status = RunStatus::Failed;
        run.error = Some(failure.to_owned());
    });
    end(store, begin(store, says(3, "reported")), |run| run.status = RunStatus::Completed);
    for (words, nums) in [
        ("writing", vec![2, 1]),
        ("disk full", vec![2]),
        ("report", vec![1]),
        ("report*", vec![3, 1]),
        ("worker", vec![2]),
        ("disk empty", vec![]),
        ("\"", vec![]),
    ] {
        assert_eq!(found(store, &text(words)), nums, "{words}");
    }
    let failed = RunFilter { status: vec![RunStatus::Failed], ..text("writing") };
    assert_eq!(found(store, &failed), [2]);
    let after = RunFilter { before: Some(RunId::new(2, 1002)), ..text("writing") };
    assert_eq!(found(store, &after), [1]);
    commit(store, vec![], None, vec![Write::DeleteRun { run: 2 }]).unwrap();
    assert!(found(store, &text("disk")).is_empty());
}

pub fn a_page_that_looked_at_enough_rows_is_partial_and_the_next_goes_on(store: &dyn Store) {
    for num in 1..=9 {
        let principal = if num % 4 == 1 { "ann" } else { "bob" }.to_owned();
        let error = (num % 4 == 1).then(|| r#"{"kind":"x","message":"","retryable":false}"#.into());
        begin(store, Header { principal, error, ..header(num) });
    }
    let mut filter = RunFilter { error: Some("x".into()), look: Some(4), limit: 2, ..all() };
    let mut pages = Vec::new();
    loop {
        let page = store.runs(&filter).unwrap();
        let nums: Vec<u64> = page.headers.iter().map(|header| header.num).collect();
        pages.push((nums, page.partial));
        match page.next {
            Some(next) => filter.before = Some(next),
            None => break,
        }
    }
    assert_eq!(pages, [(vec![9], true), (vec![5], true), (vec![1], false)]);
    let full = RunFilter { error: Some("x".into()), limit: 2, ..all() };
    let page = store.runs(&full).unwrap();
    assert_eq!((page.headers.len(), page.partial), (2, false));
    assert_eq!(page.next, Some(RunId::new(5, 1005)));
}
