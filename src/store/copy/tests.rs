use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::store::copy_tables::JOURNAL;

/// Columns that an adapter makes from others, and tables of its own.
const SQLITE: &[&str] = &[
    "runs.count_sum runs.rest_sum",
    "journal.prev_lsn journal.continues",
    "journal_marks.*",
    "high_water.*",
    "state.id outbox.id evidence.id stats_new.id",
    "state_text.* state_text_data.* state_text_idx.* state_text_docsize.* state_text_config.*",
    "run_text.* run_text_data.* run_text_idx.* run_text_docsize.* run_text_config.*",
];
const POSTGRES: &[&str] = &[
    "cluster.* nodes.* lanes.* marks.* keys.*",
    "run_words.*",
    "state.place state.words state.session_bound state_links.place kept.place idempotency.place",
    "blueprints.id tokens.id outbox.id evidence.id stats_new.id",
];

fn compare_with(found: &BTreeMap<String, BTreeSet<String>>, own: &[&str], inside: &[&str]) {
    let own: BTreeSet<&str> = own.iter().flat_map(|line| line.split(' ')).collect();
    for (table, columns) in found {
        for column in columns {
            let known = own.contains(format!("{table}.*").as_str())
                || own.contains(format!("{table}.{column}").as_str())
                || TABLES.iter().any(|it| {
                    let names = it.columns.iter().flat_map(|it| [it.name, it.postgres()]);
                    it.name == table && names.into_iter().any(|it| it == column)
                });
            assert!(known, "a copy between stores would forget {table}.{column}");
        }
    }
    for table in TABLES {
        let columns = &found[table.name];
        for column in table.columns {
            let there = columns.contains(column.name) || columns.contains(column.postgres());
            let is_inside = inside.contains(&format!("{}.{}", table.name, column.name).as_str());
            assert!(there || is_inside, "there is no {}.{}", table.name, column.name);
        }
    }
}

#[test]
fn a_copy_forgets_no_table_and_no_column_of_the_embedded_database() {
    let dir = tempfile::tempdir().unwrap();
    drop(crate::store::Sqlite::open(dir.path(), &crate::store::Options::default()).unwrap());
    let conn = rusqlite::Connection::open(dir.path().join("moonswarm.db")).unwrap();
    let mut columns = conn
        .prepare(
            "SELECT t.name, c.name FROM pragma_table_list t JOIN pragma_table_info(t.name) c
             WHERE t.schema = 'main' AND t.name NOT LIKE 'sqlite_%'",
        )
        .unwrap();
    let columns = columns.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in columns {
        let (table, column): (String, String) = row.unwrap();
        found.entry(table).or_default().insert(column);
    }
    // An entry has its number inside, and a row without one before it begins a history.
    compare_with(&found, SQLITE, &["journal.seq", "journal.begins"]);
}

#[test]
fn a_copy_forgets_no_table_and_no_column_of_postgresql() {
    let schema = include_str!("../postgres/schema.sql");
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut table: Option<&str> = None;
    for line in schema.lines() {
        if let Some(rest) = line.strip_prefix("CREATE TABLE ") {
            table = rest.split([' ', '(']).next();
        } else if line.starts_with(')') {
            table = None;
        } else if let Some(table) = table
            && let Some(column) = line.trim().split(' ').next()
            && column.chars().all(|c| c.is_ascii_lowercase() || c == '_')
            && !column.is_empty()
        {
            found.entry(table.to_owned()).or_default().insert(column.to_owned());
        }
    }
    assert!(found.len() > 25, "{found:?}");
    compare_with(&found, POSTGRES, &[]);
}

#[test]
fn rows_are_told_apart_and_their_order_does_not_matter() {
    let sum = |rows: &[&[Value]]| {
        let mut sum = Sum::default();
        rows.iter().for_each(|row| sum.add(row));
        sum
    };
    let [a, b] = [b"a", b"b"].map(|it| Value::Bytes(it.to_vec()));
    let (one, other, pair, turned) = ([a.clone()], [b.clone()], [a.clone(), b.clone()], [b, a]);
    assert_eq!(sum(&[&one, &other]), sum(&[&other, &one]));
    assert_ne!(sum(&[&pair]), sum(&[&turned]));
    assert_ne!(sum(&[&[Value::Null]]), sum(&[&[Value::Bytes(Vec::new())]]));
    assert_eq!(sum(&[&[Value::Real(-0.0)]]), sum(&[&[Value::Real(0.0)]]));
    assert_ne!(sum(&[&one, &one]), sum(&[&one]));
}

#[test]
fn the_conditions_on_rows_name_tables_that_come_before() {
    let journal = TABLES.iter().position(|it| it.name == JOURNAL).unwrap();
    let runs = TABLES.iter().position(|it| it.name == "runs").unwrap();
    assert!(runs < journal, "the rows of the copy are counted while it is made");
}
