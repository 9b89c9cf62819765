//! The budget of a loop: warnings, and the decisions after it is used up.

use super::*;

/// Returns a loop after `cents` turns that cost one cent each, with its events and its last turn.
fn spending(cents: u32, exceeded: Exceeded) -> (ResponseFlow, Vec<LifecycleEvent>, LoopAction) {
    let mut flow = flow(|it| {
        it.run = "run_1".into();
        (it.limits.cost, it.limits.exceeded) = (Some("0.05".parse().unwrap()), exceeded);
    });
    let judge = Plain::default();
    let mut turn = flow.turn(&judge);
    let used = Usage { cost: Some("0.01".into()), ..Usage::default() };
    for n in 0..cents as usize {
        let arguments = format!(r#"{{"n":{n}}}"#);
        flow.end(2 * n, calls(&[("a", &arguments)]), &used);
        turn = flow.turn(&judge);
        if matches!(turn, LoopAction::Begin(_)) {
            turn = ends(&mut flow, &judge, 2 * n + 1, done(json!(n)));
        }
    }
    let is_cost = |event: &LifecycleEvent| {
        matches!(event, LifecycleEvent::Budget(BudgetEvent::CostIncurred { .. }))
    };
    let (costs, events): (Vec<_>, Vec<_>) = flow.take_events().into_iter().partition(is_cost);
    let one = "0.01".parse().unwrap();
    for (n, event) in (1..).zip(&costs) {
        let LifecycleEvent::Budget(BudgetEvent::CostIncurred { cost, cumulative, .. }) = event
        else {
            panic!("{event:?}")
        };
        assert_eq!((*cost, *cumulative), (one, one * rust_decimal::Decimal::from(n)));
    }
    assert_eq!(costs.len(), cents as usize, "one for each call of the model");
    (flow, events, turn)
}

fn decided(events: &[LifecycleEvent]) -> Vec<BudgetDecision> {
    let action = |event: &LifecycleEvent| match event {
        LifecycleEvent::Budget(BudgetEvent::BudgetAction { action, .. }) => Some(action.clone()),
        _ => None,
    };
    events.iter().filter_map(action).collect()
}

#[test]
fn who_watches_is_warned_of_money_once_and_told_what_is_decided() {
    let (_, events, _) = spending(3, Exceeded::Halt);
    assert_eq!(events, []);
    let (_, events, turn) = spending(4, Exceeded::Halt);
    let [LifecycleEvent::Budget(BudgetEvent::BudgetWarning { workflow, spent, limit })] =
        &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(
        (workflow.as_str(), spent.to_string(), limit.to_string()),
        ("run_1", "0.04".into(), "0.05".into())
    );
    assert_eq!(begun(turn), ["ask 5"]);
    let (_, events, turn) = spending(5, Exceeded::Halt);
    assert_eq!(stop(turn).exit, ExitReason::BudgetExhausted);
    assert_eq!(decided(&events), [BudgetDecision::HaltWorkflow]);
    assert_eq!(events.len(), 2, "{events:?}");
}

#[test]
fn beyond_its_money_a_loop_goes_on_or_goes_on_with_a_cheaper_model() {
    let (flow, events, turn) = spending(7, Exceeded::Continue);
    assert_eq!(begun(turn), ["ask 8"]);
    assert_eq!((decided(&events), flow.downgraded()), (vec![BudgetDecision::Continue], None));
    let (flow, _, _) = spending(4, Exceeded::Downgrade("small".into()));
    assert_eq!(flow.downgraded(), None);
    let (flow, events, turn) = spending(7, Exceeded::Downgrade("small".into()));
    assert_eq!((begun(turn), flow.downgraded()), (vec!["ask 8".to_owned()], Some("small")));
    let (from, to) = ("x".to_owned(), "small".to_owned());
    assert_eq!(decided(&events), [BudgetDecision::DowngradeModel { from, to }]);
}

#[test]
fn who_watches_is_warned_of_turns_and_calls_once_before_they_are_used_up() {
    let near = |events: &[LifecycleEvent]| -> Vec<(u32, u32)> {
        let near = |event: &LifecycleEvent| match event {
            LifecycleEvent::Budget(BudgetEvent::StepLimitApproaching { current, max, .. }) => {
                Some((*current, *max))
            }
            _ => None,
        };
        events.iter().filter_map(near).collect()
    };
    let (mut turns, _) = three_turns(|it| it.limits.turns = 5, 1);
    assert_eq!(near(&turns.take_events()), [(4, 5)]);
    let calls = |it: &mut LoopSettings| (it.limits.tool_calls, it.limits.warn_at) = (Some(4), 0.5);
    let (mut calls, _) = three_turns(calls, 1);
    assert_eq!(near(&calls.take_events()), [(2, 4)]);
}
