use super::*;
use crate::journal::SignalReceived;

fn started(generation: u32, first_step: u32) -> Fact {
    Fact::RunStarted(Box::new(RunStarted {
        blueprint: "b".into(),
        hash: "00".into(),
        input: Json::null(),
        trigger: Json::null(),
        seed: 1,
        parent: None,
        depth: 0,
        workdir: None,
        principal: "admin".into(),
        delegate: None,
        grant: Json::null(),
        generation,
        first_step,
        queued: vec![("left".into(), Json::from_trusted("1"))],
        continues: None,
    }))
}

fn scheduled(step: u32, kind: StepKind, name: &str) -> Box<Scheduled> {
    Box::new(Scheduled {
        step,
        key: StepKey::new(ScopePath::main(), step - 1),
        prev: step.checked_sub(2).map(|p| p + 1).filter(|p| *p > 0),
        parent: None,
        kind,
        name: name.into(),
        call_id: None,
        request: Json::from_trusted("{\"a\":1}"),
        fingerprint: 7,
        attempt: 1,
        epoch: 1,
        seat_epoch: 0,
        wake_at_ms: None,
        summary: None,
    })
}

fn ended(step: u32, outcome: Outcome) -> Fact {
    Fact::StepEnded { step, attempt: 1, epoch: 1, outcome, effects: None, usage: None }
}

fn fold(facts: Vec<Fact>) -> Result<Chain, ChainError> {
    let mut chain = Chain::full();
    for (n, fact) in (1..).zip(facts) {
        chain.apply(&Entry::new(n, u64::from(n) * 10, fact))?;
    }
    Ok(chain)
}

#[test]
fn a_step_opens_and_ends_once() {
    let task = scheduled(1, StepKind::Task, "coder");
    let done = || ended(1, Outcome::Completed(Json::from_trusted("5")));
    let chain = fold(vec![started(0, 1), Fact::StepScheduled(task.clone()), done()]).unwrap();
    let step = chain.step(1).unwrap();
    assert_eq!((step.state, step.ended_ms), (StepState::Completed, Some(30)));
    assert_eq!(step.output.as_ref().unwrap().as_str(), "5");
    assert_eq!((chain.counts(), chain.open_count()), ((1, 1), 0));
    let twice = fold(vec![started(0, 1), Fact::StepScheduled(task), done(), done()]);
    assert_eq!(twice.unwrap_err(), ChainError::StepEnded { seq: 4, step: 1 });
}

#[test]
fn a_fact_that_does_not_follow_is_refused() {
    let task = || Fact::StepScheduled(scheduled(2, StepKind::Task, "x"));
    assert_eq!(fold(vec![task()]).unwrap_err(), ChainError::NotStarted(1));
    let skipped = fold(vec![started(0, 1), task()]).unwrap_err();
    assert_eq!(skipped, ChainError::StepOrder { seq: 2, expected: 1, found: 2 });
    let none = fold(vec![started(0, 1), ended(9, Outcome::Canceled("x".into()))]).unwrap_err();
    assert_eq!(none, ChainError::NoStep { seq: 2, step: 9 });
    let over = Fact::RunEnded(Outcome::Completed(Json::null()));
    let late = fold(vec![started(0, 1), over.clone(), over]).unwrap_err();
    assert_eq!(late, ChainError::Ended(3));
}

#[test]
fn signals_are_first_in_first_out_and_a_repetition_is_dropped() {
    let signal = |payload: &str, sender| {
        Fact::SignalReceived(SignalReceived {
            name: "go".into(),
            payload: Json::from_trusted(payload),
            sender,
        })
    };
    let wait = Fact::StepScheduled(scheduled(1, StepKind::Signal, "go"));
    let took = ended(1, Outcome::Completed(Json::from_trusted("{\"payload\":1}")));
    let sent = Some((4, 2));
    let chain = fold(vec![
        started(0, 1),
        signal("1", sent),
        signal("1", sent),
        signal("2", None),
        wait,
        took,
    ])
    .unwrap();
    assert_eq!(chain.first_signal("go").unwrap().as_str(), "2");
    assert_eq!(chain.queued_signals(), 2, "go:2 and left:1");
    assert_eq!(chain.first_waiter("go"), None);
}

#[test]
fn a_fresh_history_goes_on_counting_steps_and_entries() {
    let mut chain = Chain::full();
    chain.apply(&Entry::new(41, 5, started(2, 30))).unwrap();
    assert_eq!((chain.next_step(), chain.seq()), (30, 41));
    let task = scheduled(30, StepKind::Task, "x");
    chain.apply(&Entry::new(42, 6, Fact::StepScheduled(task))).unwrap();
    assert_eq!(chain.open().collect::<Vec<_>>(), vec![30]);
}

#[test]
fn an_access_to_a_secret_changes_nothing() {
    let event = Json::from_trusted("{}");
    let access = Fact::SecretAccessed { step: 2, attempt: 3, event };
    let mut chain = Chain::full();
    chain.apply(&Entry::new(1, 1, started(0, 1))).unwrap();
    let before = format!("{:?} {:?} {}", chain.state(), chain.paused(), chain.steps().len());
    chain.apply(&Entry::new(2, 2, access)).unwrap();
    let after = format!("{:?} {:?} {}", chain.state(), chain.paused(), chain.steps().len());
    assert_eq!((before, chain.seq()), (after, 2));
}
