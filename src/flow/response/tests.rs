mod budget;
mod compaction;

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::protocol::{BudgetDecision, BudgetEvent, CompactionEvent, CompactionPolicy, Scope};

/// A judge whose tools take objects with `n`, and whose answers must be numbers if `number` is set.
#[derive(Default)]
struct Plain {
    number: bool,
    verdicts: BTreeMap<&'static str, RuleVerdict>,
}

impl Judge for Plain {
    fn faces(&self, server: &str, tools: Vec<FunctionTool>) -> Vec<Face> {
        let name = |tool: FunctionTool| format!("{server}__{}", tool.name);
        tools.into_iter().map(|it| face(&name(it))).collect()
    }

    fn arguments(&self, _: &FunctionTool, arguments: Value) -> Result<Value, String> {
        if arguments["n"].is_string() { Err(" at $.n: a number".into()) } else { Ok(arguments) }
    }

    fn output(&self, text: &str) -> Result<Json, String> {
        match (self.number, text.parse::<u64>()) {
            (true, Ok(number)) => Ok(json!(number).into()),
            (true, Err(error)) => Err(error.to_string()),
            (false, _) => Ok(Value::from(text).into()),
        }
    }

    fn rule(&self, moment: &Moment<'_>, _: &Sums) -> Result<RuleVerdict, Failure> {
        let when = match moment {
            Moment::BeforeModel => "before model",
            Moment::AfterModel { .. } => "after model",
            Moment::BeforeTool { .. } => "before tool",
            Moment::AfterTool { .. } => "after tool",
        };
        Ok(self.verdicts.get(when).cloned().unwrap_or_default())
    }
}

fn face(name: &str) -> Face {
    Face {
        tool: FunctionTool {
            name: name.into(),
            description: None,
            parameters: json!({}),
            strict: None,
        },
        owner: Owner::Host,
        approve: Approve::Allow,
        parallel_safe: true,
        policy: CompactionPolicy::Normal,
    }
}

/// Returns a loop with the tools `a`, `b` and `c`, after changing its settings.
fn flow(change: impl FnOnce(&mut LoopSettings)) -> ResponseFlow {
    let tools = ["a", "b", "c"].map(face).to_vec();
    let mut settings = LoopSettings { operator: "m".into(), tools, ..LoopSettings::default() };
    change(&mut settings);
    ResponseFlow::new(settings, vec![user_message("go")])
}

fn says(text: &str) -> Outcome {
    reply(vec![message(text)], ModelStop::End)
}

fn message(text: &str) -> Value {
    json!({ "type": "message", "role": "assistant", "id": "m",
        "content": [{ "type": "output_text", "text": text }] })
}

fn reply(items: Vec<Value>, stop: ModelStop) -> Outcome {
    let reply = ModelReply { model: "x".into(), items, stop };
    Outcome::Completed(Json::encode(&reply).unwrap())
}

/// Returns a reply with tool calls and their raw arguments. Ids count from 1.
fn calls(calls: &[(&str, &str)]) -> Outcome {
    let item = |(n, (name, arguments)): (usize, &(&str, &str))| {
        json!({ "type": "function_call", "id": format!("f{n}"), "call_id": format!("call_{}", n + 1),
            "name": name, "arguments": arguments })
    };
    reply(calls.iter().enumerate().map(item).collect(), ModelStop::ToolCalls)
}

fn done(value: Value) -> Outcome {
    Outcome::Completed(value.into())
}

/// Returns the steps of a turn as short words.
fn begun(turn: LoopAction) -> Vec<String> {
    let LoopAction::Begin(begins) = turn else { panic!("{turn:?}") };
    let word = |begin: &Begin| match begin {
        Begin::List { server } => format!("list {server}"),
        Begin::Ask { turn } => format!("ask {turn}"),
        Begin::Compact { turn } => format!("compact {turn}"),
        Begin::Flush { turn } => format!("flush {turn}"),
        Begin::Recall => "recall".to_owned(),
        Begin::Keep => "keep".to_owned(),
        Begin::Approve(call) => format!("approve {}", call.name),
        Begin::Call(call) => format!("call {} {}", call.name, call.arguments),
        Begin::Refuse(call, failure) => format!("refuse {} {}", call.name, failure.kind),
    };
    begins.iter().map(word).collect()
}

fn stop(turn: LoopAction) -> LoopStop {
    let LoopAction::Stop(stop) = turn else { panic!("{turn:?}") };
    *stop
}

/// Ends the step at a place and returns the next turn.
fn ends(flow: &mut ResponseFlow, judge: &Plain, place: usize, outcome: Outcome) -> LoopAction {
    flow.end(place, outcome, &Usage::default());
    flow.turn(judge)
}

/// Returns the call outputs that the model sees.
fn outputs(flow: &ResponseFlow) -> Vec<(String, String)> {
    let conversation = flow.conversation();
    let outputs = conversation.iter().filter(|item| item["type"] == "function_call_output");
    let text = |item: &Value, key: &str| item[key].as_str().unwrap().to_owned();
    outputs.map(|item| (text(item, "call_id"), text(item, "output"))).collect()
}

#[test]
fn an_answer_without_calls_is_the_value() {
    let (mut flow, judge) = (flow(|_| {}), Plain::default());
    assert_eq!(begun(flow.turn(&judge)), ["ask 1"]);
    assert_eq!(flow.turn(&judge), LoopAction::Wait);
    let turn = ends(&mut flow, &judge, 0, says("hello"));
    let value = Value::from("hello").into();
    assert_eq!(turn, LoopAction::Done { value, end: ModelEnd::Complete });
    assert_eq!(flow.turn(&judge), LoopAction::Wait, "an end comes once");
}

#[test]
fn a_batch_begins_as_a_whole_and_ends_as_a_whole() {
    let (mut flow, judge) = (flow(|_| {}), Plain::default());
    flow.turn(&judge);
    let asked = calls(&[("a", "{}"), ("b", r#"{"n":1}"#), ("c", "{}")]);
    let turn = ends(&mut flow, &judge, 0, asked);
    assert_eq!(begun(turn), ["call a {}", r#"call b {"n":1}"#, "call c {}"]);
    assert_eq!(ends(&mut flow, &judge, 3, done(json!("third"))), LoopAction::Wait);
    let failed = Outcome::Failed(Failure::new(kind::PROCESS, "no"));
    assert_eq!(ends(&mut flow, &judge, 1, failed), LoopAction::Wait);
    let failed = Outcome::Failed(Failure::new(kind::TIMEOUT, "late"));
    assert_eq!(begun(ends(&mut flow, &judge, 2, failed)), ["ask 2"]);
    let expected = [
        ("call_1", r#"{"error":{"kind":"process","message":"no"}}"#),
        ("call_2", r#"{"error":{"kind":"timeout","message":"late"}}"#),
        ("call_3", "third"),
    ];
    assert_eq!(outputs(&flow), expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
}

#[test]
fn what_cannot_be_called_is_refused_and_the_model_sees_why() {
    let deny = |it: &mut LoopSettings| it.tools[2].approve = Approve::Deny;
    let (mut flow, judge) = (flow(deny), Plain::default());
    flow.turn(&judge);
    let asked = calls(&[
        ("z", "{}"),
        ("a", "{"),
        ("a", "[1]"),
        ("a", ""),
        ("b", r#"{"n":""}"#),
        ("c", "{}"),
    ]);
    let turn = ends(&mut flow, &judge, 0, asked);
    let LoopAction::Begin(begins) = &turn else { panic!("{turn:?}") };
    let Begin::Refuse(call, failure) = &begins[1] else { panic!() };
    assert_eq!(call.arguments.as_str(), r#""{""#, "what was written is kept, and is never {{}}");
    for place in 1..=6 {
        flow.end(place, Outcome::Failed(failure.clone()), &Usage::default());
    }
    let kinds = [
        "z not_found",
        "a invalid_input",
        "a invalid_input",
        "a invalid_input",
        "b invalid_input",
        "c refused",
    ]
    .map(|it| format!("refuse {it}"));
    assert_eq!(begun(turn), kinds);
    assert_eq!(begun(flow.turn(&judge)), ["ask 2"]);
}

#[test]
fn a_call_without_an_id_stops_the_loop_and_one_that_comes_twice_is_one() {
    let (mut first, judge) = (flow(|_| {}), Plain::default());
    first.turn(&judge);
    let nameless = json!({ "type": "function_call", "name": "a", "arguments": "{}" });
    let turn = ends(&mut first, &judge, 0, reply(vec![nameless], ModelStop::ToolCalls));
    assert!(stop(turn).failure.is(kind::MODEL));
    let mut flow = flow(|_| {});
    flow.turn(&judge);
    let call = json!({ "type": "function_call", "name": "a", "arguments": "{}", "call_id": "x" });
    let turn = ends(&mut flow, &judge, 0, reply(vec![call.clone(), call], ModelStop::ToolCalls));
    assert_eq!(begun(turn), ["call a {}"]);
}

#[test]
fn a_batch_with_a_tool_of_the_callers_is_handed_back_whole() {
    let callers = |it: &mut LoopSettings| {
        it.tools[1].owner = Owner::Caller;
        it.asked = true;
    };
    let (mut flow, judge) = (flow(callers), Plain::default());
    flow.turn(&judge);
    let turn = ends(&mut flow, &judge, 0, calls(&[("a", "{}"), ("b", "{}")]));
    let LoopAction::Done { value, end: ModelEnd::HandedBack } = turn else { panic!("{turn:?}") };
    let answer: ModelAnswer = value.decode().unwrap();
    assert_eq!(answer.items.len(), 2);
    assert_eq!(flow.begun(), 1, "nothing of it begins");
}

#[test]
fn turns_calls_repeats_failures_and_money_are_held() {
    let judge = Plain::default();
    let mut turns = flow(|it| it.limits.turns = 1);
    turns.turn(&judge);
    ends(&mut turns, &judge, 0, calls(&[("a", "{}")]));
    let held = stop(ends(&mut turns, &judge, 1, done(json!(1))));
    assert_eq!(held.exit, ExitReason::MaxTurns);
    assert!(matches!(
        turns.take_events()[..],
        [LifecycleEvent::Budget(BudgetEvent::StepLimitReached { .. })]
    ));

    let mut most = flow(|it| it.limits.tool_calls = Some(1));
    most.turn(&judge);
    let held = stop(ends(&mut most, &judge, 0, calls(&[("a", "{}"), ("b", "{}")])));
    assert_eq!(held.exit, ExitReason::BudgetExhausted);

    let mut repeats = flow(|it| it.limits.repeats = 2);
    repeats.turn(&judge);
    ends(&mut repeats, &judge, 0, calls(&[("a", r#"{"n": 1}"#)]));
    ends(&mut repeats, &judge, 1, done(json!(1)));
    let held = stop(ends(&mut repeats, &judge, 2, calls(&[("a", r#"{"n":1}"#)])));
    assert_eq!(held.exit, ExitReason::custom("stuck_detected"));
    assert!(matches!(
        repeats.take_events()[..],
        [LifecycleEvent::Budget(BudgetEvent::LoopDetected { consecutive_count: 2, .. })]
    ));

    let mut failures = flow(|it| it.limits.failures = 2);
    failures.turn(&judge);
    ends(&mut failures, &judge, 0, calls(&[("a", "{}"), ("b", "{}")]));
    let failed = || Outcome::Failed(Failure::new(kind::PROCESS, "no"));
    ends(&mut failures, &judge, 1, failed());
    assert_eq!(stop(ends(&mut failures, &judge, 2, failed())).exit, ExitReason::CircuitBreaker);

    let mut money = flow(|it| it.limits.cost = Some("0.10".parse().unwrap()));
    money.turn(&judge);
    let used = Usage { cost: Some("0.10".into()), ..Usage::default() };
    money.end(0, calls(&[("a", "{}")]), &used);
    assert_eq!(stop(money.turn(&judge)).exit, ExitReason::BudgetExhausted);
    let told = money.take_events().iter().map(LifecycleEvent::data).collect::<Vec<_>>();
    let told: Vec<_> = told.iter().filter_map(|data| data["type"].as_str()).collect();
    assert_eq!(told, ["cost_incurred", "budget_warning", "budget_action"]);
}

#[test]
fn every_stop_of_the_model_has_its_end() {
    let judge = Plain::default();
    for (stopped, asked, exit) in [
        (ModelStop::Length, false, Some(ExitReason::custom("length"))),
        (
            ModelStop::ContentFilter,
            false,
            Some(ExitReason::safety_stop("a filter of the provider cut the answer off")),
        ),
        (ModelStop::Refusal, false, Some(ExitReason::safety_stop("the model would not answer"))),
        (ModelStop::Length, true, None),
        (ModelStop::ContentFilter, true, None),
        (ModelStop::Refusal, true, None),
    ] {
        let mut flow = flow(|it| it.asked = asked);
        flow.turn(&judge);
        match (ends(&mut flow, &judge, 0, reply(vec![message("x")], stopped)), exit) {
            (LoopAction::Stop(stop), Some(exit)) => assert_eq!(stop.exit, exit),
            (LoopAction::Done { end, .. }, None) => {
                let length = stopped == ModelStop::Length;
                let filter = stopped == ModelStop::ContentFilter;
                assert_eq!(
                    (end == ModelEnd::Length, end == ModelEnd::ContentFilter),
                    (length, filter)
                );
            }
            (turn, exit) => panic!("{stopped:?} {exit:?}: {turn:?}"),
        }
    }
    let failures = [
        (kind::BUDGET, ExitReason::BudgetExhausted),
        (kind::TIMEOUT, ExitReason::Timeout),
        (kind::OPERATOR_UNAVAILABLE, ExitReason::CircuitBreaker),
        (kind::REFUSED, ExitReason::interceptor_halt("no")),
        (kind::MODEL, ExitReason::Error),
    ];
    for (kind, exit) in failures {
        let mut flow = flow(|_| {});
        flow.turn(&judge);
        let failed = Outcome::Failed(Failure::new(kind, "no"));
        assert_eq!(stop(ends(&mut flow, &judge, 0, failed)).exit, exit);
    }
}

#[test]
fn an_answer_that_breaks_the_schema_is_asked_for_once_more() {
    let (mut flow, judge) = (flow(|_| {}), Plain { number: true, ..Plain::default() });
    flow.turn(&judge);
    assert_eq!(begun(ends(&mut flow, &judge, 0, says("seven"))), ["ask 2"]);
    let last = flow.conversation().pop().unwrap();
    assert!(last["content"][0]["text"].as_str().unwrap().contains("cannot be used"), "{last}");
    let mut again = flow.clone();
    let turn = ends(&mut flow, &judge, 1, says("7"));
    assert_eq!(turn, LoopAction::Done { value: json!(7).into(), end: ModelEnd::Complete });
    assert!(stop(ends(&mut again, &judge, 1, says("VII"))).failure.is(kind::INVALID_RESULT));
}

#[test]
fn a_person_is_asked_and_a_no_is_what_the_model_sees() {
    let ask = |it: &mut LoopSettings| it.tools[1].approve = Approve::Ask;
    let (mut yes, judge) = (flow(ask), Plain::default());
    yes.turn(&judge);
    let turn = ends(&mut yes, &judge, 0, calls(&[("a", "{}"), ("b", "{}")]));
    assert_eq!(begun(turn), ["call a {}", "approve b"]);
    let mut no = yes.clone();
    let turn = ends(&mut yes, &judge, 2, done(json!({ "approved": true })));
    assert_eq!(begun(turn), ["call b {}"]);
    ends(&mut yes, &judge, 1, done(json!("A")));
    assert_eq!(begun(ends(&mut yes, &judge, 3, done(json!("B")))), ["ask 2"]);
    assert_eq!(outputs(&yes)[1], ("call_2".to_owned(), "B".to_owned()));

    let answer = done(json!({ "approved": false, "note": "too early" }));
    assert_eq!(ends(&mut no, &judge, 2, answer), LoopAction::Wait, "the other goes on");
    assert_eq!(begun(ends(&mut no, &judge, 1, done(json!("A")))), ["ask 2"]);
    assert!(outputs(&no)[1].1.contains("human_rejected"), "{:?}", outputs(&no));
}

#[test]
fn a_tool_that_is_not_safe_beside_others_runs_alone() {
    let alone = |it: &mut LoopSettings| it.tools[1].parallel_safe = false;
    let (mut flow, judge) = (flow(alone), Plain::default());
    flow.turn(&judge);
    ends(
        &mut flow,
        &judge,
        0,
        calls(&[("a", "{}"), ("c", "{}"), ("b", "{}"), ("a", r#"{"n":1}"#)]),
    );
    let may = |flow: &ResponseFlow| (1..=4).map(|at| flow.may_start(at)).collect::<Vec<_>>();
    assert_eq!(may(&flow), [true, true, false, false]);
    ends(&mut flow, &judge, 1, done(json!(1)));
    assert_eq!(may(&flow)[2..], [false, false]);
    ends(&mut flow, &judge, 2, done(json!(1)));
    assert_eq!(may(&flow)[2..], [true, false]);
    ends(&mut flow, &judge, 3, done(json!(1)));
    assert!(flow.may_start(4));
}

#[test]
fn rules_halt_deny_ask_change_and_say() {
    let with = |when, verdict| Plain { verdicts: BTreeMap::from([(when, verdict)]), number: false };
    let halt = || RuleVerdict { halt: Some("stop".into()), ..RuleVerdict::default() };
    let judge = with("before model", halt());
    assert_eq!(stop(flow(|_| {}).turn(&judge)).exit, ExitReason::interceptor_halt("stop"));
    let judge =
        with("before tool", RuleVerdict { deny: Some("no".into()), ..RuleVerdict::default() });
    let mut denied = flow(|_| {});
    denied.turn(&judge);
    assert_eq!(begun(ends(&mut denied, &judge, 0, calls(&[("a", "{}")]))), ["refuse a refused"]);
    let judge = with(
        "before tool",
        RuleVerdict { set: Some(json!({ "n": 2 })), ask: true, ..RuleVerdict::default() },
    );
    let mut changed = flow(|_| {});
    changed.turn(&judge);
    let turn = ends(&mut changed, &judge, 0, calls(&[("a", r#"{"m":1}"#)]));
    assert_eq!(begun(turn), ["approve a"]);
    let turn = ends(&mut changed, &judge, 1, done(json!({ "approved": true })));
    let LoopAction::Begin(begins) = turn else { panic!() };
    let Begin::Call(call) = &begins[0] else { panic!() };
    assert_eq!(call.arguments.to_value(), json!({ "m": 1, "n": 2 }));
    let said = RuleVerdict {
        set: Some(json!("hidden")),
        say: vec!["hurry".into()],
        ..RuleVerdict::default()
    };
    let judge = with("after tool", said);
    let mut after = flow(|_| {});
    after.turn(&judge);
    ends(&mut after, &judge, 0, calls(&[("a", "{}")]));
    assert_eq!(begun(ends(&mut after, &judge, 1, done(json!("secret")))), ["ask 2"]);
    assert_eq!(outputs(&after)[0].1, "hidden");
    assert_eq!(after.conversation().pop().unwrap(), user_message("hurry"));
}

#[test]
fn servers_are_asked_first_and_their_tools_have_their_names_before_them() {
    let servers = |it: &mut LoopSettings| it.servers = vec!["s".into(), "t".into()];
    let (mut flow, judge) = (flow(servers), Plain::default());
    assert_eq!(begun(flow.turn(&judge)), ["list s", "list t"]);
    let tools = json!([{ "name": "read", "parameters": {} }]);
    assert_eq!(ends(&mut flow, &judge, 0, done(tools)), LoopAction::Wait);
    let mut lost = flow.clone();
    assert_eq!(begun(ends(&mut flow, &judge, 1, done(json!([])))), ["ask 1"]);
    let names: Vec<&str> = flow.tools().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "s__read"]);
    let failed = Outcome::Failed(Failure::new(kind::OPERATOR_UNAVAILABLE, "gone"));
    assert_eq!(stop(ends(&mut lost, &judge, 1, failed)).exit, ExitReason::CircuitBreaker);
}

#[test]
fn a_long_output_is_cut_for_the_model_and_says_so() {
    let (mut flow, judge) = (flow(|it| it.limits.output = 4), Plain::default());
    flow.turn(&judge);
    ends(&mut flow, &judge, 0, calls(&[("a", "{}")]));
    ends(&mut flow, &judge, 1, done(json!("abcé")));
    assert_eq!(outputs(&flow)[0].1, "abc\n[cut: 3 of 5 bytes]");
}

/// Returns a loop after three turns with a call each, and the next turn.
fn three_turns(change: impl FnOnce(&mut LoopSettings), tokens: u64) -> (ResponseFlow, LoopAction) {
    let (mut flow, judge) = (flow(change), Plain::default());
    flow.turn(&judge);
    let used = Usage { input_tokens: Some(tokens), ..Usage::default() };
    let mut turn = LoopAction::Wait;
    for n in 0..3 {
        let arguments = format!(r#"{{"n":{n}}}"#);
        flow.end(2 * n, calls(&[("a", &arguments)]), &used);
        flow.turn(&judge);
        turn = ends(&mut flow, &judge, 2 * n + 1, done(json!(format!("out {n}"))));
    }
    (flow, turn)
}

fn remembering(change: impl FnOnce(&mut LoopSettings)) -> ResponseFlow {
    flow(|it| {
        let (scope, key) = ("session:c".to_owned(), "conversation/it".to_owned());
        it.conversation = Some(Conversation { scope, key });
        change(it);
    })
}

/// Returns what the model sees, as the texts of messages.
fn texts(flow: &ResponseFlow) -> Vec<String> {
    let text = |item: &Value| item["content"][0]["text"].as_str().unwrap_or("?").to_owned();
    flow.conversation().iter().map(text).collect()
}

fn mismatch(found: u64) -> Outcome {
    let mut failure = Failure::new(kind::REFUSED, "it has another revision");
    failure.data = Some(json!({ "code": "revision_mismatch", "revision": found }).into());
    Outcome::Failed(failure)
}

#[test]
fn a_conversation_is_read_first_and_written_last() {
    let judge = Plain::default();
    let mut first = remembering(|_| {});
    assert_eq!(begun(first.turn(&judge)), ["recall"]);
    assert_eq!(begun(ends(&mut first, &judge, 0, done(json!(null)))), ["ask 1"]);
    assert_eq!(begun(ends(&mut first, &judge, 1, says("one"))), ["keep"]);
    let kept = first.remembered();
    assert_eq!((first.recalled_revision(), kept.revision, &kept.exchanges[..]), (0, 1, &[0][..]));
    let LoopAction::Done { value, .. } = ends(&mut first, &judge, 2, done(json!(null))) else {
        panic!()
    };
    assert_eq!(value.as_str(), "\"one\"");

    let mut second = remembering(|_| {});
    second.turn(&judge);
    ends(&mut second, &judge, 0, done(serde_json::to_value(&kept).unwrap()));
    assert_eq!(texts(&second), ["go", "one", "go"], "the question stands after what was said");
    ends(&mut second, &judge, 1, says("two"));
    let kept = second.remembered();
    assert_eq!((kept.revision, kept.items.len(), &kept.exchanges[..]), (2, 4, &[0, 2][..]));
    assert!(
        stop(ends(&mut second, &judge, 2, Outcome::Failed(Failure::new("no", "x"))))
            .failure
            .is("no")
    );
}

#[test]
fn where_another_loop_was_faster_the_model_is_asked_again_with_what_it_said() {
    let judge = Plain::default();
    let mut flow = remembering(|_| {});
    flow.turn(&judge);
    ends(&mut flow, &judge, 0, done(json!(null)));
    ends(&mut flow, &judge, 1, says("too late"));
    assert_eq!(begun(ends(&mut flow, &judge, 2, mismatch(1))), ["recall"]);
    let other = Remembered { revision: 1, items: vec![message("other")], exchanges: vec![0] };
    let read = done(serde_json::to_value(&other).unwrap());
    assert_eq!(begun(ends(&mut flow, &judge, 3, read)), ["ask 2"]);
    assert_eq!(texts(&flow), ["other", "go"]);
    // Written by hand, without counting: what the write found counts.
    ends(&mut flow, &judge, 4, says("again"));
    ends(&mut flow, &judge, 5, mismatch(7));
    ends(&mut flow, &judge, 6, done(serde_json::to_value(&other).unwrap()));
    assert_eq!(flow.recalled_revision(), 7);
}

#[test]
fn exchanges_of_a_conversation_are_compacted_as_turns_and_the_question_stays() {
    let judge = Plain::default();
    let mut flow = remembering(|it| {
        it.compaction = Some(Compaction { at_tokens: 1, keep: 1, summarize: true });
    });
    flow.turn(&judge);
    let items: Vec<Value> = ["q1", "a1", "q2", "a2"].map(message).to_vec();
    let earlier = Remembered { revision: 4, items, exchanges: vec![0, 2] };
    let turn = ends(&mut flow, &judge, 0, done(serde_json::to_value(&earlier).unwrap()));
    assert_eq!(begun(turn), ["compact 0"]);
    assert_eq!(flow.to_sum_up().len(), 3, "the first exchange, and what is asked of it");
    assert_eq!(begun(ends(&mut flow, &judge, 1, says("in short"))), ["ask 1"]);
    let seen = texts(&flow);
    assert_eq!(&seen[1..], ["q2", "a2", "go"], "{seen:?}");
    ends(&mut flow, &judge, 2, says("a3"));
    let kept = flow.remembered();
    assert_eq!((kept.items.len(), &kept.exchanges[..]), (5, &[1, 3][..]));
}
