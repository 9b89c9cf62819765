//! Formats of the database: migration of older ones, refusal of newer and foreign ones.

use super::*;
use crate::journal;

#[test]
fn a_newer_format_is_refused_and_left_as_it_is() {
    let (dir, store) = fresh();
    drop(store);
    raw(&dir).pragma_update(None, "user_version", 99).unwrap();
    let refused = Sqlite::open(&dir.path().join("data"), &options()).err().unwrap();
    assert!(matches!(refused, StoreError::Newer { found: 99, .. }), "{refused}");
    let version: u32 = raw(&dir).pragma_query_one(None, "user_version").unwrap();
    assert_eq!(version, 99);
}

#[test]
fn values_of_the_format_before_are_found_once_their_words_have_their_scope() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    let mut before = raw(&dir);
    super::format::migrate_to(&mut before, 0, 5).unwrap();
    before
        .execute_batch(
            "INSERT INTO state (scope, key, revision, updated_ms, value)
                 VALUES ('global', 'note', 1, 1, '\"a quick fox\"'), ('custom:x', 'k', 1, 1, '\"quick\"');
             INSERT INTO state_text (rowid, scope, key, text) SELECT id, hex(scope), key, value FROM state;",
        )
        .unwrap();
    drop(before);
    let store = reopen(&dir);
    let search = crate::store::StateSearch {
        scope: "global".to_owned(),
        query: "quick".to_owned(),
        limit: 9,
        ..Default::default()
    };
    let hits = store.search_state(&search).unwrap();
    assert_eq!(hits.len(), 1);
    assert_eq!((hits[0].key.as_str(), hits[0].snippet.as_str()), ("note", "\"a [quick] fox\""));
}

#[test]
fn a_database_of_the_first_format_is_brought_to_this_one_with_what_it_has() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    let first = raw(&dir);
    first.execute_batch(include_str!("../migrations/0001_initial.sql")).unwrap();
    first
        .execute_batch(
            "PRAGMA application_id = 0x6d6f6f6e; PRAGMA user_version = 1;
             INSERT INTO tasks (run, step, attempt, epoch, agent, operator, kind, phase,
                 scheduled_ms, opened_ms, prompt)
             VALUES (1, 2, 1, 1, 'a', 'human', 'human', 'pending', 3, 4, '{}');
             INSERT INTO runs (num, cursor, seq, steps, steps_done, updated_ms, created_ms, status,
                 epoch, blueprint, hash, principal)
             VALUES (1, 2, 2, 0, 0, 1, 1, 'running', 1, 'b', 'h', 'ann'),
                    (2, 3, 1, 0, 0, 1, 1, 'running', 1, 'b', 'h', 'ann');
             INSERT INTO journal (lsn, run, entry)
             VALUES (1, 1, zeroblob(40)), (2, 1, zeroblob(60)), (3, 2, zeroblob(5));
             INSERT INTO artifacts (run, n, name, hash, size, created_ms, step, attempt, published)
             VALUES (1, 1, 'f', 'h', 1000, 1, 1, 1, 1);",
        )
        .unwrap();
    drop(first);
    let store = reopen(&dir);
    let task = store.task(1, 2).unwrap().unwrap();
    assert_eq!((task.agent.as_str(), task.question), ("a", None));
    assert!(store.sessions().unwrap().is_empty());
    let bytes = [1, 2].map(|run| store.header(run).unwrap().unwrap().bytes);
    assert_eq!(bytes, [1_100, 5], "what is stored of a run is summed once");
}

/// Creates a data directory from the golden file of a format.
fn golden(dir: &TempDir, format: u32) {
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    let file = format!("{}/tests/golden/format-{format}.db", env!("CARGO_MANIFEST_DIR"));
    fs::copy(file, data.join("moonswarm.db")).unwrap();
}

/// A database with something in every table that a run has, as this program writes it.
fn write_golden(dir: &TempDir) {
    let store = Sqlite::open(&dir.path().join("data"), &options()).unwrap();
    let mut run = header(store.next_run());
    let begins = append(&*store, &mut run, vec![started(None), resumed()]);
    commit(&*store, vec![], Some(begins), vec![]).unwrap();
    let again = append(&*store, &mut run, vec![started(Some(2)), resumed()]);
    let state = Write::PutState {
        scope: format!("run:{}", RunId::new(run.num, run.created_ms)),
        key: "k".to_owned(),
        value: "[1]".to_owned(),
        hints: StoreOptions::default(),
        expires_ms: None,
        at_ms: 5,
    };
    commit(&*store, vec![], Some(again), vec![state, meta("a")]).unwrap();
}

#[test]
fn a_database_of_this_format_is_opened_as_it_is() {
    let format = super::format::known();
    let dir = TempDir::new().unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        write_golden(&dir);
        let to = format!("{}/tests/golden/format-{format}.db", env!("CARGO_MANIFEST_DIR"));
        fs::copy(dir.path().join("data/moonswarm.db"), to).unwrap();
        return;
    }
    golden(&dir, format);
    let store = reopen(&dir);
    assert_eq!(store.migrated(), None, "a release that changes the format counts it up");
    let want = Want { rows: &|_| true, most: 1 << 20 };
    let Loaded { header, rows } = store.load(1, &want).unwrap().unwrap();
    let rows = rows.unwrap();
    assert_eq!((header.seq, rows.entries.len()), (4, 2));
    assert_eq!(rows.state.unwrap()[0].value, "[1]");
    assert_eq!(store.all_entries(1, 0).unwrap().len(), 4);
}

#[test]
fn entries_of_version_1_are_read_and_go_on_in_the_current_one() {
    let dir = TempDir::new().unwrap();
    golden(&dir, 7);
    let store = reopen(&dir);
    // The run started two new histories. Each refers to a row of the one before.
    let all = store.all_entries(2, 0).unwrap();
    assert_eq!(all.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(store.entries(2, 0).unwrap(), all[4..]);
    let mut header = store.header(2).unwrap().unwrap();
    let continues: Vec<_> = all
        .iter()
        .filter_map(|entry| match &entry.fact {
            Fact::RunStarted(started) => Some(started.continues),
            _ => None,
        })
        .collect();
    assert_eq!(continues, [None, Some(2), Some(4)]);

    let write = append(&*store, &mut header, vec![resumed(), started(Some(8)), resumed()]);
    commit(&*store, vec![], Some(write), vec![]).unwrap();
    assert_eq!(store.all_entries(2, 0).unwrap().len(), 10);
    assert_eq!(store.entries(2, 0).unwrap().len(), 2);
    let versions: Vec<u8> = raw(&dir)
        .prepare("SELECT substr(entry, 1, 1) FROM journal WHERE run = 2 ORDER BY lsn")
        .unwrap()
        .query_map([], |row| Ok(row.get_ref(0)?.as_blob()?[0]))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(versions, [[1; 7].as_slice(), &[journal::VERSION; 3]].concat());
}

#[test]
fn a_database_of_another_program_is_refused() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    raw(&dir).execute_batch("CREATE TABLE theirs (a)").unwrap();
    let refused = Sqlite::open(&dir.path().join("data"), &options()).err().unwrap();
    assert!(refused.to_string().contains("not a database of moonswarm"), "{refused}");
}

/// Returns the files beside the database.
fn beside(dir: &TempDir) -> Vec<String> {
    let files = fs::read_dir(dir.path().join("data")).unwrap().flatten();
    let names = files.map(|file| file.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with("backup")).collect();
    names.sort();
    names
}

#[test]
fn a_migration_keeps_a_copy_from_before_and_makes_another_only_of_another_state() {
    let dir = TempDir::new().unwrap();
    golden(&dir, 7);
    let path = dir.path().join("data/moonswarm.db");
    let store = reopen(&dir);
    let backup = dir.path().join("data/backup-format-7.db");
    let to = super::format::known();
    let migrated = crate::store::Migrated { from: 7, to, backup: backup.clone() };
    assert_eq!(store.migrated(), Some(migrated));
    drop(store);
    let format = |path: &Path| -> u32 {
        Connection::open(path)
            .unwrap()
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .unwrap()
    };
    assert_eq!((format(&path), format(&backup)), (to, 7));
    assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(reopen(&dir).migrated(), None);
    assert_eq!(beside(&dir), ["backup-format-7.db"]);

    // Restores the old state by hand, and then opens it again: it is the same state.
    let back = |from: &Path| {
        for name in ["moonswarm.db-wal", "moonswarm.db-shm", "mark"] {
            let _ = fs::remove_file(dir.path().join("data").join(name));
        }
        fs::copy(from, &path).unwrap();
    };
    back(&backup);
    drop(reopen(&dir));
    assert_eq!(beside(&dir), ["backup-format-7.db"]);
    // The state has changed meanwhile, so it is another one.
    back(&backup);
    Connection::open(&path).unwrap().execute("UPDATE high_water SET run = 90", []).unwrap();
    drop(reopen(&dir));
    assert_eq!(beside(&dir), ["backup-format-7-2.db", "backup-format-7.db"]);
}

#[test]
fn a_survey_says_what_a_migration_takes_and_changes_nothing() {
    let dir = TempDir::new().unwrap();
    golden(&dir, 7);
    let data = dir.path().join("data");
    let before = fs::read(data.join("moonswarm.db")).unwrap();
    let survey = crate::store::survey(&data).unwrap();
    assert_eq!((survey.format, survey.size), (7, before.len() as u64));
    assert!(survey.needs > survey.size && survey.free > 0, "{survey:?}");
    assert_eq!(fs::read(data.join("moonswarm.db")).unwrap(), before);
    drop(reopen(&dir));
    assert_eq!(crate::store::survey(&data).unwrap().format, super::format::known());
}

#[test]
fn runs_of_format_8_are_listed_and_found_by_their_words() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    let mut before = raw(&dir);
    super::format::migrate_to(&mut before, 0, 8).unwrap();
    before
        .execute_batch(
            r#"INSERT INTO runs (num, cursor, seq, steps, steps_done, updated_ms, created_ms,
                   status, ended_ms, epoch, blueprint, hash, principal, error)
               VALUES (1, 1, 1, 0, 0, 1, 9, 'failed', 10, 1, 'b', 'h', 'ann',
                       '{"kind":"worker","message":"the disk is full","retryable":false}'),
                      (2, 2, 1, 0, 0, 1, 5, 'running', NULL, 1, 'b', 'h', 'ann', NULL);"#,
        )
        .unwrap();
    super::header::seal_format_8(&before).unwrap();
    drop(before);
    let store = reopen(&dir);
    let list = |filter: crate::store::RunFilter| -> Vec<u64> {
        store.headers(&filter).unwrap().iter().map(|header| header.num).collect()
    };
    let all = || crate::store::RunFilter { limit: 9, ..Default::default() };
    assert_eq!(list(all()), [1, 2], "in the order of creation");
    assert_eq!(list(crate::store::RunFilter { text: Some("disk".into()), ..all() }), [1]);
}
