//! Long conversations: the parts that are removed, and summaries.

use super::*;

#[test]
fn a_long_conversation_loses_whole_turns_and_keeps_its_beginning() {
    let drop = |it: &mut LoopSettings| {
        it.compaction = Some(Compaction { at_tokens: 100, keep: 1, summarize: false });
    };
    let (mut flow, turn) = three_turns(drop, 100);
    assert_eq!(begun(turn), ["ask 4"]);
    let conversation = flow.conversation();
    assert_eq!(conversation[0], user_message("go"));
    assert_eq!(outputs(&flow), [("call_1".to_owned(), "out 2".to_owned())]);
    let calls = conversation.iter().filter(|item| item["type"] == "function_call").count();
    assert_eq!(calls, 1, "no call loses its output, no output its call");
    let events = flow.take_events();
    let complete = |it: &LifecycleEvent| matches!(it, LifecycleEvent::Compaction(CompactionEvent::CompactionComplete { strategy, .. }) if strategy == "drop");
    assert!(events.iter().any(complete), "{events:?}");
    let (mut short, _) = three_turns(drop, 99);
    assert_eq!((outputs(&short).len(), short.take_events().len()), (3, 0));
}

/// Returns a loop after three turns with a call of a tool with this policy, and outputs of 400 bytes.
fn with_policy(policy: CompactionPolicy, tokens: u64) -> ResponseFlow {
    let change = |it: &mut LoopSettings| {
        it.compaction = Some(Compaction { at_tokens: 100, keep: 1, summarize: false });
        it.tools[0].policy = policy;
    };
    let (mut flow, judge) = (flow(change), Plain::default());
    flow.turn(&judge);
    let used = Usage { input_tokens: Some(tokens), ..Usage::default() };
    for n in 0..3 {
        let arguments = format!(r#"{{"n":{n}}}"#);
        let of_b = if n == 0 { vec![("b", "{}")] } else { Vec::new() };
        let asked: Vec<_> = [("a", &*arguments)].into_iter().chain(of_b).collect();
        let begun = flow.begun();
        flow.end(begun - 1, calls(&asked), &used);
        flow.turn(&judge);
        for (at, _) in asked.iter().enumerate() {
            let long = n.to_string().repeat(400);
            ends(&mut flow, &judge, begun + at, done(json!(long)));
        }
    }
    flow
}

#[test]
fn the_calls_of_a_pinned_tool_stay() {
    let flow = with_policy(CompactionPolicy::Pinned, 500);
    let begins: Vec<String> = outputs(&flow).iter().map(|it| it.1[..1].to_owned()).collect();
    assert_eq!(begins, ["0", "1", "2"]);
    let names: Vec<Value> = flow
        .conversation()
        .iter()
        .filter(|item| item["type"] == "function_call")
        .map(|item| item["name"].clone())
        .collect();
    assert_eq!(names, ["a", "a", "a"], "what else was called in their turn goes");
    assert_eq!(flow.conversation()[0], user_message("go"));
    assert_eq!(outputs(&with_policy(CompactionPolicy::Normal, 500)).len(), 1);
}

#[test]
fn outputs_that_go_first_are_removed_before_any_turn() {
    let mut flow = with_policy(CompactionPolicy::CompressFirst, 150);
    let seen: Vec<String> = outputs(&flow).into_iter().map(|it| it.1).collect();
    let long = |n: &str| n.repeat(400);
    assert_eq!(seen, [REMOVED.to_owned(), long("0"), REMOVED.to_owned(), long("2")]);
    assert!(flow.turn_items(1).iter().any(|it| it["output"] == long("0")), "a flush has it all");
    let events = flow.take_events();
    let complete = |it: &LifecycleEvent| matches!(it, LifecycleEvent::Compaction(CompactionEvent::CompactionComplete { strategy, .. }) if strategy == "compress_first");
    assert!(events.iter().any(complete), "{events:?}");
    assert_eq!(outputs(&with_policy(CompactionPolicy::CompressFirst, 900)).len(), 1, "not enough");
}

#[test]
fn outputs_whose_work_is_done_are_not_kept_for_the_session() {
    let judge = Plain::default();
    let mut flow = remembering(|it| it.tools[0].policy = CompactionPolicy::DiscardWhenDone);
    flow.turn(&judge);
    ends(&mut flow, &judge, 0, done(json!(null)));
    ends(&mut flow, &judge, 1, calls(&[("a", "{}"), ("b", "{}")]));
    ends(&mut flow, &judge, 2, done(json!("of a")));
    ends(&mut flow, &judge, 3, done(json!("of b")));
    ends(&mut flow, &judge, 4, says("done"));
    let of = |items: &[Value]| -> Vec<Value> {
        let outputs = items.iter().filter(|item| item["type"] == "function_call_output");
        outputs.map(|item| item["output"].clone()).collect()
    };
    assert_eq!(of(&flow.conversation()), ["of a", "of b"]);
    assert_eq!(of(&flow.remembered().items), [REMOVED, "of b"]);
}

#[test]
fn a_summary_stands_for_what_is_gone_and_a_failed_one_changes_nothing() {
    let sum = |it: &mut LoopSettings| {
        it.compaction = Some(Compaction { at_tokens: 100, keep: 2, summarize: true });
    };
    let (mut flow, turn) = three_turns(sum, 100);
    assert_eq!(begun(turn), ["compact 3"]);
    assert_eq!(flow.to_sum_up().last().unwrap(), &user_message(super::compact::SUM_UP));
    let mut failed = flow.clone();
    let judge = Plain::default();
    assert_eq!(begun(ends(&mut flow, &judge, 6, says("so far"))), ["ask 4"]);
    assert_eq!(flow.conversation()[1], summary_item("so far"));
    assert_eq!(outputs(&flow).len(), 2);
    let gone = Outcome::Failed(Failure::new(kind::MODEL, "no"));
    assert_eq!(begun(ends(&mut failed, &judge, 6, gone)), ["ask 4"]);
    assert_eq!(outputs(&failed).len(), 3);
    let events = failed.take_events();
    assert!(events.iter().any(|it| matches!(
        it,
        LifecycleEvent::Compaction(CompactionEvent::CompactionFailed { .. })
    )));
}

/// Returns the compaction events since the last call, by type.
fn compactions(flow: &mut ResponseFlow) -> Vec<String> {
    let events = flow.take_events().into_iter().map(|event| event.data());
    events.filter_map(|data| data["type"].as_str().map(str::to_owned)).collect()
}

/// Returns a loop that is too long after its third turn, of which two are to be removed, and the
/// next turn.
fn flushing(required: bool, summarize: bool) -> (ResponseFlow, LoopAction) {
    let mut flow = flow(|it| {
        it.compaction = Some(Compaction { at_tokens: 100, keep: 1, summarize });
        it.flush = Some(Flush { scope: Scope::Global, keys: "log/".to_owned(), required });
    });
    let judge = Plain::default();
    flow.turn(&judge);
    let mut turn = LoopAction::Wait;
    for (n, tokens) in [10, 20, 100].into_iter().enumerate() {
        let used = Usage { input_tokens: Some(tokens), ..Usage::default() };
        let arguments = format!(r#"{{"n":{n}}}"#);
        flow.end(2 * n, calls(&[("a", &arguments)]), &used);
        flow.turn(&judge);
        turn = ends(&mut flow, &judge, 2 * n + 1, done(json!(format!("out {n}"))));
    }
    (flow, turn)
}

#[test]
fn turns_are_written_before_they_go_and_stay_where_that_failed() {
    let judge = Plain::default();
    let (mut written, turn) = flushing(true, false);
    assert_eq!(begun(turn), ["flush 1", "flush 2"]);
    assert_eq!(outputs(&written).len(), 3, "nothing goes before it is written");
    assert_eq!(compactions(&mut written), ["context_pressure", "pre_compaction_flush"]);
    let kinds = |items: Vec<Value>| -> Vec<String> {
        items.iter().map(|item| item["type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(written.turn_items(2)), ["function_call", "function_call_output"]);
    assert_eq!(written.flush_key(2), "log/2");
    assert_eq!(ends(&mut written, &judge, 6, done(json!(null))), LoopAction::Wait);
    assert_eq!(begun(ends(&mut written, &judge, 7, done(json!(null)))), ["ask 4"]);
    assert_eq!(outputs(&written).len(), 1);
    assert_eq!(compactions(&mut written), ["compaction_complete", "compaction_quality"]);

    let fails = |required: bool| {
        let (mut flow, _) = flushing(required, false);
        flow.take_events();
        flow.end(6, done(json!(null)), &Usage::default());
        let gone = Outcome::Failed(Failure::new(kind::REFUSED, "no"));
        assert_eq!(begun(ends(&mut flow, &judge, 7, gone)), ["ask 4"]);
        flow
    };
    let mut kept = fails(true);
    assert_eq!(outputs(&kept).len(), 3, "what could not be written stays");
    let events = kept.take_events();
    let key = |it: &LifecycleEvent| matches!(it, LifecycleEvent::Compaction(CompactionEvent::FlushFailed { key, error, scope: Scope::Global, .. }) if key == "log/2" && error == "no");
    assert!(key(&events[0]), "{events:?}");
    assert_eq!(events[1].data()["type"], "compaction_skipped");
    let mut lost = fails(false);
    assert_eq!(outputs(&lost).len(), 1);
    let told = ["flush_failed", "compaction_complete", "compaction_quality"];
    assert_eq!(compactions(&mut lost), told);
}

#[test]
fn what_was_written_once_is_not_written_again_with_the_next_compaction() {
    let (mut flow, _) = flushing(true, true);
    let judge = Plain::default();
    flow.end(6, done(json!(null)), &Usage::default());
    assert_eq!(begun(ends(&mut flow, &judge, 7, done(json!(null)))), ["compact 3"]);
    assert_eq!(begun(ends(&mut flow, &judge, 8, says("so far"))), ["ask 4"]);
    let used = Usage { input_tokens: Some(100), ..Usage::default() };
    flow.end(9, calls(&[("a", r#"{"n":9}"#)]), &used);
    flow.turn(&judge);
    assert_eq!(begun(ends(&mut flow, &judge, 10, done(json!(1)))), ["flush 3"]);
}
