use super::*;

fn scope(text: &str) -> Scope {
    text.parse().unwrap()
}

fn run() -> RunId {
    RunId::new(7, 1_700_000_000_000)
}

fn task() -> TaskId {
    TaskId::new(7, 3, 1_700_000_000_000)
}

#[test]
fn a_scope_is_printed_as_it_was_written() {
    let run = format!("run:{}", run());
    let task = format!("task:{}", task());
    for text in [
        "*",
        "run:*",
        &run,
        &task,
        "operator:main-ai",
        "queue:*",
        "state:global/",
        "state:session:s1/notes/",
        "state:*",
        "blueprint:repo:report",
    ] {
        assert_eq!(scope(text).to_string(), text);
        let json = serde_json::to_string(&scope(text)).unwrap();
        assert_eq!(serde_json::from_str::<Scope>(&json).unwrap(), scope(text));
    }
}

#[test]
fn what_is_not_a_scope_is_refused() {
    for text in [
        "",
        "run",
        "run:",
        "run:7",
        "task:run_x",
        "planet:x",
        "operator:",
        "operator:a*",
        "queue:**",
        "state:global",
        "state:/x",
        "state:*/x",
        "**",
        "Run:*",
    ] {
        assert!(text.parse::<Scope>().is_err(), "{text}");
    }
}

#[test]
fn a_scope_covers_its_own_and_nothing_of_another_kind() {
    assert!(scope(&format!("run:{}", run())).covers(&Need::Run(run())));
    assert!(!scope(&format!("run:{}", run())).covers(&Need::Task(task())));
    assert!(!scope("run:*").covers(&Need::Task(task())));
    assert!(scope("task:*").covers(&Need::Task(task())));
    assert!(scope("operator:a").covers(&Need::Operator("a")));
    assert!(!scope("operator:a").covers(&Need::Operator("ab")));
    assert!(!scope("operator:a").covers(&Need::Queue("a")));
    assert!(scope("*").covers(&Need::Blueprint("any")));
}

#[test]
fn every_of_a_kind_needs_the_star() {
    assert!(!scope("queue:a").covers(&Need::Every(ScopeKind::Queue)));
    assert!(scope("queue:*").covers(&Need::Every(ScopeKind::Queue)));
    assert!(!scope("queue:*").covers(&Need::Every(ScopeKind::Run)));
    assert!(scope("*").covers(&Need::Every(ScopeKind::Run)));
}

#[test]
fn state_is_covered_by_prefix_within_its_scope() {
    let notes = scope("state:global/notes/");
    assert!(notes.covers(&Need::State { scope: "global", key: "notes/a" }));
    assert!(!notes.covers(&Need::State { scope: "global", key: "note" }));
    assert!(!notes.covers(&Need::State { scope: "session", key: "notes/a" }));
    assert!(scope("state:global/").covers(&Need::State { scope: "global", key: "" }));
}

#[test]
fn a_narrower_scope_is_contained_and_a_wider_one_is_not() {
    for (outer, inner) in [
        ("*", "run:*"),
        ("operator:*", "operator:a"),
        ("operator:a", "operator:a"),
        ("state:global/", "state:global/notes/"),
        ("state:*", "state:global/"),
    ] {
        assert!(scope(outer).contains(&scope(inner)), "{outer} ⊇ {inner}");
        if outer != inner {
            assert!(!scope(inner).contains(&scope(outer)), "{inner} ⊉ {outer}");
        }
    }
    assert!(!scope("run:*").contains(&scope("task:*")));
    assert!(!scope("operator:a").contains(&scope("operator:b")));
}

#[test]
fn no_scopes_reach_nothing_and_are_within_anything() {
    let none = Scopes::default();
    assert!(!none.cover(&Need::Run(run())));
    assert!(none.contain(&none));
    assert!(!none.contain(&Scopes::task(task())));
    let several: Scopes = [scope("queue:a"), scope("operator:*")].into_iter().collect();
    assert!(several.contain(&none));
    assert!(several.cover(&Need::Queue("a")));
    assert!(!several.contain(&Scopes::all()));
}
