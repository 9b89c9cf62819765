use super::*;

fn of(members: &[&str]) -> Composite {
    Composite::new(Rule::Fallback, members.iter().copied()).unwrap()
}

fn checked(composites: &[(&str, &[&str])]) -> Result<(), String> {
    let composites = composites.iter().map(|(name, members)| ((*name).to_owned(), of(members)));
    check(&composites.collect(), &["echo", "human", "main-ai"])
        .map_err(|error| format!("{}: {error}", error.operator()))
}

#[test]
fn turns_are_shared_evenly_by_all_copies() {
    let composite = Composite::new(Rule::RoundRobin, ["a", "b", "c"]).unwrap();
    let copy = composite.clone();
    let mut counts = [0; 3];
    for _ in 0..150 {
        counts[composite.next()] += 1;
        counts[copy.next()] += 1;
    }
    assert_eq!(counts, [100; 3]);
    assert_eq!(
        of(&["a", "b"]).next() + of(&["a", "b"]).next(),
        0,
        "a fallback begins at its first"
    );
}

#[test]
fn what_can_never_come_to_an_end_is_refused() {
    let quorum = |agree| Rule::Quorum { agree, path: crate::flow::ValuePath::default() };
    let new = |rule, members: usize| Composite::new(rule, vec!["a"; members]).map(|_| ());
    assert_eq!(new(Rule::Race, 0), Err(CompositeError::Empty));
    assert_eq!(new(Rule::Race, 33), Err(CompositeError::TooMany(33)));
    assert_eq!(new(quorum(3), 2), Err(CompositeError::Quorum { agree: 3, members: 2 }));
    assert_eq!(new(quorum(0), 2), Err(CompositeError::Quorum { agree: 0, members: 2 }));
    assert_eq!(new(quorum(2), 2), Ok(()));
}

#[test]
fn members_that_do_not_exist_and_cycles_are_found() {
    assert_eq!(checked(&[("a", &["b", "echo"]), ("b", &["echo", "human"])]), Ok(()));
    assert_eq!(checked(&[("a", &["main-ai", "main_ai"])]), Ok(()), "the kind is read as the name");
    assert_eq!(
        checked(&[("a", &["echo", "humen"])]).unwrap_err(),
        "a: its member `humen` is no operator; did you mean `human`?"
    );
    assert_eq!(
        checked(&[("a", &["echo", "b"]), ("b", &["c"]), ("c", &["b"])]).unwrap_err(),
        "b: it is a member of itself: b > c > b"
    );
    assert_eq!(checked(&[("a", &["a"])]).unwrap_err(), "a: it is a member of itself: a > a");
}

#[test]
fn nesting_has_a_limit_and_sharing_has_none() {
    let names: Vec<String> = (0..=MOST_DEPTH).map(|n| format!("c{n}")).collect();
    let chain = |length: usize| {
        let members = |n: usize| if n + 1 < length { names[n + 1].as_str() } else { "echo" };
        let of = |n: usize| (names[n].clone(), of(&[members(n), members(n)]));
        check(&(0..length).map(of).collect(), &["echo"])
    };
    assert_eq!(chain(MOST_DEPTH), Ok(()));
    assert!(matches!(chain(MOST_DEPTH + 1), Err(GraphError::TooDeep { .. })));
}
