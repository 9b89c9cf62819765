//! The plans of the statements whose tables grow: each is answered by an index, in its order.

use tokio_postgres::types::ToSql;

use super::fresh;
use crate::{
    protocol::{RunId, TagIs},
    store::{
        RunFilter, RunStatus,
        postgres::{
            blueprints, header, journal, kept, links, run_list, scopes, session::Session, state,
            state_text, tasks,
        },
    },
};

type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

fn plan(db: &Session, sql: &str, params: Params<'_>) -> String {
    let lines = db.query(&format!("EXPLAIN (COSTS OFF) {sql}"), params).unwrap();
    lines.iter().map(|line| line.get::<_, String>(0)).collect::<Vec<_>>().join("\n")
}

/// Fails if a plan does not read an index, or sorts or reads a whole table. An incremental sort is
/// none: it puts in order what an index cannot tell apart.
fn holds(plan: &str, index: &str) {
    let sorts = plan.lines().any(|line| line.trim_start_matches([' ', '-', '>']) == "Sort");
    assert!(plan.contains(index) && !sorts && !plan.contains("Seq Scan"), "{index}:\n{plan}");
}

#[test]
fn every_read_of_a_growing_table_is_answered_by_an_index_in_its_order() {
    let Some((home, store)) = fresh() else { return };
    home.database.sql(concat!("SET search_path = moonswarm;", include_str!("fill.sql")));
    let (zero, most, ten, seven) = (0_i64, i64::MAX, 10_i64, 7_i64);
    let (a_text, parts, after, late) =
        (b"custom:5".as_slice(), vec![1_i64, 2], 900_000_i64, 15_000_i64);
    let (k, end, f, none) = (b"k3".as_slice(), b"\xFF".as_slice(), b"f7".as_slice(), None::<&[u8]>);
    let (words, with, now) = ("'w7'", true, 5_i64);
    let cases: &[(&str, Params<'_>, &str)] = &[
        (header::DUE, &[&late, &parts, &ten], "Index Only Scan using runs_wake"),
        (header::CHILDREN, &[&seven], "Index Scan using runs_open_children"),
        (header::WITHOUT_NONCE, &[], "runs_without_nonce"),
        (journal::ALL, &[&seven, &zero, &most], "journal_pkey"),
        (journal::CURRENT, &[&seven, &zero, &most], "journal_pkey"),
        (journal::CURRENT, &[&seven, &zero, &most], "using journal_begins"),
        (journal::START, &[&seven], "using journal_begins"),
        (journal::SIZES_OF, &[&seven, &zero, &late, &ten], "Scan Backward using journal_pkey"),
        (journal::FEED, &[&late, &after, &ten, &most], "Index Scan using journal_lsn"),
        (tasks::LIST, &[&zero, &most, &zero, &zero, &none, &none, &ten], "using tasks_pkey"),
        (tasks::LIST, &[&seven, &seven, &zero, &zero, &none, &none, &most], "using tasks_pkey"),
        (state::PAGE, &[&a_text, &k, &end, &with, &now, &ten], "Index Scan using state_list"),
        (state_text::FOUND, &[&words, &a_text, &k, &end, &now, &ten, &zero], "state_words"),
        (scopes::FROM, &[&a_text], "Index Scan using state_list"),
        (scopes::AFTER, &[&a_text], "Index Scan using state_list"),
        (links::FROM, &[&b"s".as_slice(), &f, &none, &ten], "state_links_from"),
        (kept::OF_LAYER, &[&b"l2".as_slice(), &k, &ten], "Index Scan using kept_list"),
        (blueprints::LIST, &[&b"n".as_slice(), &most, &k, &ten], "using blueprints_name"),
    ];
    let sorted_by_rank = [state_text::FOUND, links::FROM];
    store
        .pool
        .read("plan", |db| {
            for (sql, params, index) in cases {
                let plan = plan(db, sql, params);
                match sorted_by_rank.contains(sql) {
                    true => assert!(plan.contains(index) && !plan.contains("Seq"), "{plan}"),
                    false => holds(&plan, index),
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn every_list_of_runs_reads_an_index_in_the_order_of_the_list() {
    let Some((home, store)) = fresh() else { return };
    home.database.sql(concat!("SET search_path = moonswarm;", include_str!("fill.sql")));
    let before = Some(RunId::new(19_000, 19_000));
    let all =
        || RunFilter { limit: 5, look: Some(9), before, since_ms: Some(3), ..RunFilter::default() };
    let tag = TagIs { name: "a".into(), value: Some("b".into()) };
    let failed = vec![RunStatus::Failed, RunStatus::Running];
    let some = |text: &str| Some(text.to_owned());
    store
        .pool
        .read("plan", |db| {
            for (filter, index) in [
                (all(), "using runs_created"),
                (RunFilter { blueprint: some("b7"), ..all() }, "using runs_blueprint"),
                (RunFilter { started_by: some("p7"), ..all() }, "using runs_principal"),
                (RunFilter { parent: Some(7), ..all() }, "using runs_parent"),
                (RunFilter { status: failed.clone(), ..all() }, "Backward using runs_status"),
                (RunFilter { status: vec![RunStatus::Failed], ..all() }, "using runs_status"),
                (RunFilter { tags: vec![tag.clone()], ..all() }, "using run_tags_pkey"),
                (RunFilter { text: some("run_abc"), ..all() }, "using runs_created"),
                (RunFilter { text: some("failed"), ..all() }, "Backward using run_words_pkey"),
                (RunFilter { text: some("failed"), ..all() }, "Backward using runs_open"),
            ] {
                let plan = run_list::plan(db, &filter).unwrap();
                assert!(plan.contains(index) && !plan.contains("Seq Scan"), "{index}:\n{plan}");
            }
            let rare = RunFilter { text: some("rare"), ..all() };
            let plan = run_list::plan(db, &rare).unwrap();
            assert!(plan.contains("run_words_words"), "{plan}");
            Ok(())
        })
        .unwrap();
}
