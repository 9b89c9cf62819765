use super::*;

fn done(json: &str) -> Outcome {
    Outcome::Completed(Json::parse(json).unwrap())
}

fn failed(kind: &str) -> Outcome {
    Outcome::Failed(Failure::new(kind, "no"))
}

/// Ends members in the given order until the composite ends. Returns its last turn and the members
/// that started, in order.
fn play(
    rule: &Rule,
    members: usize,
    first: usize,
    ends: &[(usize, Outcome)],
) -> (CompositeAction, Vec<usize>) {
    let (mut course, mut begun, mut ends) = (Course::new(members), Vec::new(), ends.iter());
    loop {
        match rule.turn(&course, first) {
            CompositeAction::Begin(place) => {
                course.begin(place);
                begun.push(place);
            }
            CompositeAction::Wait => match ends.next() {
                Some((place, outcome)) => course.end(*place, outcome.clone()),
                None => return (CompositeAction::Wait, begun),
            },
            over => return (over, begun),
        }
    }
}

fn quorum(agree: u32, path: &str) -> Rule {
    Rule::Quorum { agree, path: path.parse().unwrap() }
}

#[test]
fn a_fallback_takes_the_next_only_after_a_failure() {
    let ends = [(0, failed("worker")), (1, done("2"))];
    assert_eq!(play(&Rule::Fallback, 3, 0, &ends[..0]), (CompositeAction::Wait, vec![0]));
    assert_eq!(play(&Rule::Fallback, 3, 0, &ends[..1]), (CompositeAction::Wait, vec![0, 1]));
    assert_eq!(play(&Rule::Fallback, 3, 0, &ends), (CompositeAction::Complete(1), vec![0, 1]));
    let all = [(0, failed("worker")), (1, failed("timeout"))];
    assert_eq!(play(&Rule::Fallback, 2, 0, &all), (CompositeAction::Fail, vec![0, 1]));
}

#[test]
fn a_race_begins_all_and_the_first_success_wins() {
    let ends = [(2, failed("worker")), (1, done("1")), (0, done("0"))];
    assert_eq!(play(&Rule::Race, 3, 0, &ends), (CompositeAction::Complete(1), vec![0, 1, 2]));
    let all = [(1, failed("a")), (0, failed("b"))];
    assert_eq!(play(&Rule::Race, 2, 0, &all), (CompositeAction::Fail, vec![0, 1]));
}

#[test]
fn a_quorum_needs_as_many_equal_values_at_its_path() {
    let by = |texts: [&str; 3]| -> Vec<(usize, Outcome)> {
        texts.iter().enumerate().map(|(place, text)| (2 - place, done(text))).collect()
    };
    let rule = quorum(2, "v.w");
    let same = by([r#"{"v":{"w":1},"n":1}"#, r#"{"v":{"w":2}}"#, r#"{"v":{"w":1.0},"n":3}"#]);
    assert_eq!(
        play(&rule, 3, 0, &same).0,
        CompositeAction::Complete(2),
        "the first of those that agree"
    );
    let apart = by([r#"{"v":{"w":1}}"#, r#"{"v":{"w":2}}"#, r#"{"v":{"w":3}}"#]);
    assert_eq!(play(&rule, 3, 0, &apart).0, CompositeAction::Fail);
    let silent = by([r#"{"v":1}"#, r#"{"v":1}"#, r#"{"v":1}"#]);
    assert_eq!(play(&rule, 3, 0, &silent[..2]).0, CompositeAction::Fail, "no value is no vote");
    let whole = by([r#"{"a":1,"b":[2]}"#, r#"{"b":[2],"a":1}"#, "0"]);
    assert_eq!(play(&quorum(2, "$"), 3, 0, &whole[..2]).0, CompositeAction::Complete(2));
}

#[test]
fn a_quorum_fails_as_soon_as_it_cannot_be_reached() {
    let ends = [(0, failed("worker")), (2, failed("worker"))];
    assert_eq!(play(&quorum(2, "$"), 3, 0, &ends[..1]).0, CompositeAction::Wait);
    assert_eq!(play(&quorum(2, "$"), 3, 0, &ends).0, CompositeAction::Fail);
}

#[test]
fn round_robin_is_one_member_with_whatever_it_comes_to() {
    assert_eq!(
        play(&Rule::RoundRobin, 3, 4, &[(1, done("1"))]),
        (CompositeAction::Complete(1), vec![1])
    );
    assert_eq!(
        play(&Rule::RoundRobin, 3, 2, &[(2, failed("x"))]),
        (CompositeAction::Fail, vec![2])
    );
}

#[test]
fn a_failure_names_its_members_and_keeps_the_kind_of_the_last() {
    let mut course = Course::new(2);
    for (place, kind) in [(1, "timeout"), (0, "worker")] {
        course.begin(place);
        course.end(place, failed(kind));
    }
    let failure = Rule::Race.failure(&course, &["a", "b"]);
    assert_eq!(
        (failure.kind.as_str(), failure.message.as_str()),
        ("worker", "every member failed, a last: no")
    );
    let data = failure.data.unwrap().to_value();
    assert_eq!(data["members"][0]["operator"], "b");
    let failure = quorum(2, "v").failure(&course, &["a", "b"]);
    assert_eq!(failure.message, "2 of 2 members must agree on $.v, and at most 0 did");
}

#[test]
fn an_end_counts_once_and_only_of_a_member_that_began() {
    let mut course = Course::new(2);
    course.end(0, done("1"));
    course.end(7, done("1"));
    assert_eq!(course, Course::new(2));
    course.begin(0);
    course.end(0, done("1"));
    course.end(0, failed("late"));
    assert_eq!(course.output(0).unwrap().as_str(), "1");
}

#[test]
fn a_path_is_read_with_or_without_its_root() {
    for (text, shown) in [("$", "$"), ("a", "$.a"), ("$.a.0.b", "$.a.0.b")] {
        assert_eq!(text.parse::<ValuePath>().unwrap().to_string(), shown);
    }
    for bad in ["", "$a", "a..b", "$."] {
        assert!(bad.parse::<ValuePath>().is_err(), "{bad}");
    }
    let value = serde_json::json!({ "a": [{ "b": 3 }] });
    let path: ValuePath = "a.0.b".parse().unwrap();
    assert_eq!(path.of(&value), Some(&3.into()));
}
