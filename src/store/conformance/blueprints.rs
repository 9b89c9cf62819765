//! Blueprints: versions and names.

use super::fixture::{begin, header, put};
use crate::store::{BlueprintRow, Header, Store, Write};

pub fn blueprints_are_kept_by_hash_and_found_by_name_and_prefix(store: &dyn Store) {
    let version = |hash: &str, name: &str, created_ms| BlueprintRow {
        hash: hash.to_owned(),
        name: name.to_owned(),
        bundle: vec![1, 2],
        created_ms,
        publisher: None,
    };
    let versions = [version("aa1", "x", 1), version("aa2", "x", 2), version("ab3", "x", 3)];
    let other = version("aa9", "y", 1);
    let again = BlueprintRow { created_ms: 50, ..versions[0].clone() };
    let rows = versions.iter().cloned().chain([other, again]);
    put(store, rows.map(Write::PutBlueprint).collect());
    assert_eq!(store.blueprint("aa1").unwrap(), Some(versions[0].clone()));
    assert_eq!(store.blueprint_like("x", "aa", false).unwrap(), Some(("aa1".to_owned(), 2)));
    assert_eq!(store.blueprint_like("x", "", false).unwrap(), Some(("aa1".to_owned(), 3)));
    let hashes = |after, limit| -> Vec<String> {
        let rows = store.blueprint_list("x", after, limit).unwrap();
        rows.into_iter().map(|row| format!("{} {}", row.hash, row.created_ms)).collect()
    };
    assert_eq!(hashes(None, 2), ["ab3 3", "aa2 2"]);
    assert_eq!(hashes(Some((2, "aa2")), 2), ["aa1 1"]);
    assert_eq!(hashes(Some((2, "aa3")), 1), ["aa2 2"]);
    let published = |by: Option<&str>| {
        let publisher = by.map(str::to_owned);
        put(store, vec![Write::PutBlueprint(BlueprintRow { publisher, ..versions[0].clone() })]);
        store.blueprint("aa1").unwrap().unwrap()
    };
    assert_eq!(published(Some("a")).publisher.as_deref(), Some("a"));
    assert_eq!(published(None).publisher.as_deref(), Some("a"), "posted again");
    let known: Vec<bool> =
        store.blueprint_list("x", None, 9).unwrap().iter().map(|row| row.published).collect();
    assert_eq!(known, [false, false, true]);
    assert_eq!(
        published(Some("b")),
        BlueprintRow { publisher: Some("b".into()), ..versions[0].clone() }
    );
    let name = |name: &str, hash: &str, at_ms| Write::NameBlueprint {
        name: name.to_owned(),
        hash: hash.to_owned(),
        at_ms,
    };
    put(store, vec![name("y", "aa9", 1), name("x", "aa1", 1), name("x", "aa2", 2)]);
    assert_eq!(store.blueprint_named("x").unwrap().as_deref(), Some("aa2"));
    let names = store.blueprint_names().unwrap();
    assert_eq!(names[0], ("x".to_owned(), "aa2".to_owned(), 2));
    assert_eq!(names.len(), 2);
    let unname = |name: &str, hash: &str| Write::UnnameBlueprint {
        name: name.to_owned(),
        hash: hash.to_owned(),
    };
    put(store, vec![unname("x", "aa1"), unname("y", "aa9"), unname("z", "aa1")]);
    assert_eq!(
        store.blueprint_named("x").unwrap().as_deref(),
        Some("aa2"),
        "it stands for another"
    );
    assert_eq!(store.blueprint_named("y").unwrap(), None);
    assert!(
        store.blueprint("aa9").unwrap().is_none() || store.blueprint_names().unwrap().len() == 1
    );
    begin(store, Header { blueprint: "x".into(), hash: "aa1".into(), ..header(1) });
    put(store, vec![Write::DeleteBlueprint { name: "x".to_owned() }]);
    assert_eq!(store.blueprint_named("x").unwrap(), None);
    let left = store.blueprint_like("x", "", false).unwrap();
    assert_eq!(left, Some(("aa1".to_owned(), 1)), "a run has it");
    assert!(store.blueprint("aa9").unwrap().is_some(), "it has another name");
}

pub fn one_of_many_versions_is_found_by_its_publisher_or_by_a_part_of_its_hash(store: &dyn Store) {
    let version = |hash: &str, name: &str, created_ms, by: Option<&str>| {
        Write::PutBlueprint(BlueprintRow {
            hash: hash.to_owned(),
            name: name.to_owned(),
            bundle: vec![1, 2],
            created_ms,
            publisher: by.map(str::to_owned),
        })
    };
    let like = |prefix: &str, published| store.blueprint_like("x", prefix, published).unwrap();
    let some = |hash: &str, count: u64| Some((hash.to_owned(), count));
    put(store, vec![version("abcde1", "x", 9, None), version("abcdf", "y", 9, Some("a"))]);
    assert_eq!(store.last_published("x").unwrap(), None, "it only came with a run");
    assert_eq!(store.last_published("none").unwrap(), None);
    assert_eq!((like("abcde", true), like("abcde", false)), (None, some("abcde1", 1)));
    let more = [
        version("abcde3", "x", 3, Some("a")),
        version("abcde2", "x", 5, Some("a")),
        version("ff", "x", 5, Some("a")),
        version("abcde0", "x", 7, None),
    ];
    put(store, more.to_vec());
    assert_eq!(store.last_published("x").unwrap().as_deref(), Some("ff"), "the last one of a time");
    assert_eq!(store.last_published("y").unwrap().as_deref(), Some("abcdf"));
    for prefix in ["a", "abcd", "abcde"] {
        assert_eq!(like(prefix, true), some("abcde2", 2), "{prefix}");
        assert_eq!(like(prefix, false), some("abcde0", 4), "{prefix}");
    }
    assert_eq!((like("", true), like("", false)), (some("abcde2", 3), some("abcde0", 5)));
    assert_eq!((like("abcde3", true), like("abcde0", true)), (some("abcde3", 1), None));
    for none in ["abcdf", "b", "abcde33", "ABCDE", "%", "_bcde", "abcde1\0", "é"] {
        assert_eq!(like(none, false), None, "{none}");
    }
}
