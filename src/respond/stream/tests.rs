//! Tests of a response, with synthetic facts of a run.

use serde_json::{Value, json};

use super::*;

const AT: &str = "2026-01-01T00:00:00.000Z";

fn start(body: Value, agent: bool) -> Stream {
    let create = Create::read(&body, &mut |prefix| format!("{prefix}_in")).unwrap();
    let conversation = Conversation::of(Vec::new(), create.items.clone()).unwrap();
    let trigger = Trigger::new(create, conversation, agent.then(|| "helper".to_owned()));
    let data = json!({ "trigger": trigger }).into();
    Stream::begin("run_x", &Fact { kind: "run.started", at: AT, data: &data }).unwrap()
}

fn agent() -> Stream {
    let mut stream = start(json!({ "model": "b/helper", "input": "hi" }), true);
    hear(&mut stream, "step.scheduled", json!({ "step": 1, "scope": "", "kind": "task" }));
    stream
}

fn hear(stream: &mut Stream, kind: &str, data: Value) {
    stream.hear(&Fact { kind, at: AT, data: &data.into() });
}

fn asked(stream: &mut Stream, step: u32) {
    let data = json!({ "step": step, "parent": 1, "scope": "0.0", "kind": "model_call" });
    hear(stream, "step.scheduled", data);
}

fn piece(stream: &mut Stream, (step, attempt, n): (u32, u32, u64), delta: Value) {
    let data =
        json!({ "step": step, "attempt": attempt, "n": n, "agent": "helper", "delta": delta });
    hear(stream, "model.delta", data);
}

fn reply(stream: &mut Stream, step: u32, items: Value) {
    let output = json!({ "model": "m", "items": items, "stop": "end" });
    let usage = json!({ "input_tokens": 5, "output_tokens": 2 });
    hear(stream, "step.completed", json!({ "step": step, "output": output, "usage": usage }));
}

fn answer(stream: &mut Stream, items: Value, end: &str) {
    let output = json!({ "model": "m", "items": items, "end": end });
    hear(stream, "step.completed", json!({ "step": 1, "output": output }));
    hear(stream, "run.ended", json!({ "status": "completed", "output": null }));
}

fn said(id: &str, text: &str) -> Value {
    json!({ "type": "message", "id": id, "status": "completed", "role": "assistant",
        "content": [{ "type": "output_text", "text": text, "annotations": [] }] })
}

fn call(id: &str) -> Value {
    json!({ "type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": "look",
        "arguments": "{\"a\": 1}", "status": "completed" })
}

fn output(id: &str, text: &str) -> Value {
    json!({ "type": "function_call_output", "id": format!("fco_{id}"), "call_id": id,
        "output": text, "status": "completed" })
}

fn kinds(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(|event| event.kind.strip_prefix("response.").unwrap()).collect()
}

fn text(events: &[Event]) -> String {
    events.iter().filter_map(|event| event.data["delta"].as_str()).collect()
}

#[test]
fn pieces_are_sent_as_they_come_and_the_whole_adds_what_was_missed() {
    let mut stream = agent();
    asked(&mut stream, 2);
    drop(stream.take());
    piece(
        &mut stream,
        (2, 1, 0),
        json!({ "type": "item", "item": 0, "begins":
        { "type": "message", "id": "msg_1", "role": "assistant" } }),
    );
    assert_eq!(kinds(&stream.take()), ["output_item.added"]);
    let text = |delta: &str| json!({ "type": "text", "item": 0, "part": 0, "delta": delta });
    piece(&mut stream, (2, 1, 1), text("one two thr"));
    assert_eq!(
        kinds(&stream.take()),
        ["content_part.added", "output_text.delta", "output_text.delta"]
    );
    // The third delta is lost, so the ones after it wait for the reply.
    piece(&mut stream, (2, 1, 3), text(" five"));
    assert_eq!(stream.take(), []);
    let items = json!([said("msg_1", "one two three four five")]);
    reply(&mut stream, 2, items.clone());
    let rest = stream.take();
    assert_eq!(self::text(&rest), " three four five");
    answer(&mut stream, items.clone(), "complete");
    assert_eq!(kinds(&stream.take()), ["completed"]);
    let response = stream.response();
    assert_eq!((&response["output"], &response["status"]), (&items, &json!("completed")));
    assert_eq!(response["usage"]["total_tokens"], 7);
}

#[test]
fn who_joins_late_gets_several_pieces_in_one_and_none_twice() {
    let begins = json!({ "type": "item", "item": 0, "begins":
        { "type": "message", "id": "msg_1", "role": "assistant" } });
    let text = |delta: &str| json!({ "type": "text", "item": 0, "part": 0, "delta": delta });
    let joined = |stream: &mut Stream, first: u64, n: u64, delta: Value| {
        let data = json!({ "step": 2, "attempt": 1, "n": n, "first": first, "at": 0,
            "agent": "helper", "delta": delta });
        hear(stream, "model.delta", data);
    };
    let mut early = agent();
    asked(&mut early, 2);
    let mut late = agent();
    asked(&mut late, 2);
    piece(&mut early, (2, 1, 0), begins.clone());
    piece(&mut early, (2, 1, 1), text("one "));
    piece(&mut early, (2, 1, 2), text("two "));
    piece(&mut late, (2, 1, 0), begins);
    joined(&mut late, 1, 2, text("one two "));
    let said = early.take();
    assert_eq!(late.take(), said);
    // A new subscription receives the text so far again.
    piece(&mut early, (2, 1, 1), text("one "));
    joined(&mut early, 1, 2, text("one two "));
    assert_eq!(early.take(), []);
    for stream in [&mut early, &mut late] {
        piece(stream, (2, 1, 3), text("three "));
        assert_eq!(self::text(&stream.take()), " three");
    }
    // The beginning is lost, so the rest waits for the reply.
    let mut later = agent();
    asked(&mut later, 2);
    drop(later.take());
    joined(&mut later, 5, 9, text("far on"));
    assert_eq!(later.take(), []);
}

#[test]
fn a_stream_with_pieces_and_one_without_are_the_same() {
    let items = json!([
        { "type": "reasoning", "id": "rs_1", "summary": [{ "type": "summary_text", "text": "I think so" }],
          "encrypted_content": "secret" },
        said("msg_1", "it is done"),
        call("c1"),
    ]);
    let tell = |pieces: bool| {
        let mut stream = agent();
        asked(&mut stream, 2);
        if pieces {
            let deltas = [
                json!({ "type": "item", "item": 0, "begins": { "type": "reasoning", "id": "rs_1" } }),
                json!({ "type": "reasoning_summary", "item": 0, "part": 0, "delta": "I think" }),
                json!({ "type": "item", "item": 1, "begins": { "type": "message", "id": "msg_1" } }),
                // Arrives before the end of the previous item, and waits.
                json!({ "type": "text", "item": 1, "part": 0, "delta": "it is " }),
                json!({ "type": "done", "item": 0, "whole": items[0] }),
                json!({ "type": "text", "item": 1, "part": 0, "delta": "done" }),
                json!({ "type": "done", "item": 1, "whole": items[1] }),
                json!({ "type": "item", "item": 2, "begins": { "type": "function_call",
                    "id": "fc_c1", "call_id": "c1", "name": "look" } }),
                json!({ "type": "arguments", "item": 2, "delta": "{\"a\":" }),
            ];
            for (n, delta) in (0..).zip(deltas) {
                piece(&mut stream, (2, 1, n), delta);
            }
        }
        reply(&mut stream, 2, items.clone());
        answer(&mut stream, items.clone(), "handed_back");
        stream.take()
    };
    let whole = tell(false);
    assert_eq!(tell(true), whole);
    let numbers: Vec<_> =
        whole.iter().map(|it| it.data["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..whole.len() as u64).collect::<Vec<_>>());
    assert_eq!(whole.last().unwrap().data["response"]["output"], items);
    assert!(kinds(&whole).contains(&"function_call_arguments.done"));
}

#[test]
fn the_agents_own_tools_are_items_and_what_is_below_it_is_not() {
    let mut stream = agent();
    asked(&mut stream, 2);
    let first = json!([said("msg_1", "let me look"), call("c1"), call("c2")]);
    reply(&mut stream, 2, first);
    for (step, id) in [(3, "c1"), (4, "c2")] {
        let data = json!({ "step": step, "parent": 1, "kind": "tool_call", "call_id": id });
        hear(&mut stream, "step.scheduled", data);
    }
    // A nested agent: its model's output is not part of the response.
    hear(&mut stream, "step.scheduled", json!({ "step": 5, "parent": 3, "kind": "model_call" }));
    piece(
        &mut stream,
        (5, 1, 0),
        json!({ "type": "item", "item": 0, "begins": { "type": "message", "id": "x" } }),
    );
    reply(&mut stream, 5, json!([said("x", "hidden")]));
    drop(stream.take());
    hear(
        &mut stream,
        "step.failed",
        json!({ "step": 4, "error": { "kind": "worker", "message": "no" } }),
    );
    assert_eq!(stream.take(), [], "outputs come in the order of their calls");
    hear(&mut stream, "step.completed", json!({ "step": 3, "output": { "n": 7 } }));
    let outputs =
        [output("c1", r#"{"n":7}"#), output("c2", r#"{"error":{"kind":"worker","message":"no"}}"#)];
    let events = stream.take();
    assert_eq!(kinds(&events), ["output_item.added", "output_item.done"].repeat(2));
    assert_eq!(events[1].data["item"], outputs[0]);
    assert_eq!(events[3].data["item"], outputs[1]);
    // A summary of the conversation is not part of the answer either.
    hear(
        &mut stream,
        "step.scheduled",
        json!({ "step": 6, "parent": 1, "kind": "model_call", "compact": true }),
    );
    reply(&mut stream, 6, json!([said("y", "summary")]));
    assert_eq!(stream.take(), []);
    asked(&mut stream, 7);
    reply(&mut stream, 7, json!([said("msg_2", "seven")]));
    let all = json!([
        said("msg_1", "let me look"),
        call("c1"),
        call("c2"),
        outputs[0],
        outputs[1],
        said("msg_2", "seven")
    ]);
    answer(&mut stream, all.clone(), "complete");
    let events = stream.take();
    assert_eq!(events.last().unwrap().data["response"]["output"], all);
    assert_eq!(stream.output().len(), 6);
}

#[test]
fn a_call_that_is_tried_again_goes_on_under_the_numbers_it_had() {
    let mut stream = agent();
    asked(&mut stream, 2);
    let begins =
        json!({ "type": "item", "item": 0, "begins": { "type": "message", "id": "msg_1" } });
    let text = |delta: &str| json!({ "type": "text", "item": 0, "part": 0, "delta": delta });
    piece(&mut stream, (2, 1, 0), begins.clone());
    piece(&mut stream, (2, 1, 1), text("one two "));
    let used = json!({ "input_tokens": 4, "output_tokens": 1 });
    hear(&mut stream, "attempt.failed", json!({ "step": 2, "attempt": 1, "usage": used }));
    piece(&mut stream, (2, 2, 0), begins);
    piece(&mut stream, (2, 2, 1), text("one two three"));
    reply(&mut stream, 2, json!([said("msg_1", "one two three")]));
    answer(&mut stream, json!([said("msg_1", "one two three")]), "complete");
    let events = stream.take();
    assert_eq!(self::text(&events), "one two three");
    assert_eq!(kinds(&events).iter().filter(|kind| **kind == "output_item.added").count(), 1);
    assert_eq!(stream.response()["usage"]["total_tokens"], 12, "what failed was used too");
}

#[test]
fn a_response_that_did_not_complete_goes_on_without_the_calls_that_nobody_answers() {
    let tool = json!({ "type": "function", "name": "ask" });
    let body = json!({ "model": "b/helper", "input": "hi", "tools": [tool] });
    let named = |id: &str, name: &str, status: &str| {
        let mut call = call(id);
        (call["name"], call["status"]) = (name.into(), status.into());
        call
    };
    // The id of a call may be one that was used before.
    let items = json!([
        call("a"),
        output("a", "1"),
        call("a"),
        named("b", "ask", "completed"),
        named("c", "ask", "incomplete"),
    ]);
    for (end, left) in [("max_tool_calls", 4), ("length", 4), ("handed_back", 6)] {
        let mut stream = start(body.clone(), true);
        hear(&mut stream, "step.scheduled", json!({ "step": 1, "scope": "", "kind": "task" }));
        answer(&mut stream, items.clone(), end);
        let conversation = stream.conversation();
        assert_eq!(conversation.len(), left, "{end}: {conversation:#?}");
        let open = response::open_calls(&stream.response()).count();
        assert_eq!(open, left - 3, "{end}");
    }
}

#[test]
fn a_model_that_stands_for_others_streams_the_one_that_answers() {
    let mut stream = agent();
    asked(&mut stream, 2);
    for step in [3, 4] {
        hear(
            &mut stream,
            "step.scheduled",
            json!({ "step": step, "parent": 2, "kind": "model_call" }),
        );
    }
    let begins =
        json!({ "type": "item", "item": 0, "begins": { "type": "message", "id": "msg_1" } });
    let text = |delta: &str| json!({ "type": "text", "item": 0, "part": 0, "delta": delta });
    piece(&mut stream, (3, 1, 0), begins.clone());
    piece(&mut stream, (4, 1, 0), begins);
    piece(&mut stream, (3, 1, 1), text("one two "));
    piece(&mut stream, (4, 1, 1), text("uno due "));
    reply(&mut stream, 2, json!([said("msg_1", "one two")]));
    answer(&mut stream, json!([said("msg_1", "one two")]), "complete");
    assert_eq!(self::text(&stream.take()), "one two");
}

#[test]
fn every_end_is_one_terminal_event_and_nothing_follows_it() {
    let ends = [
        (
            json!({ "status": "failed", "error": { "kind": "model", "message": "m" } }),
            "failed",
            "failed",
        ),
        (json!({ "status": "canceled", "reason": "r" }), "incomplete", "cancelled"),
        (json!({ "status": "completed", "output": "x" }), "completed", "completed"),
    ];
    for (data, kind, status) in ends {
        let mut stream = start(json!({ "model": "b", "input": "hi", "background": true }), false);
        assert_eq!(kinds(&stream.take()), ["created", "queued", "in_progress"]);
        hear(&mut stream, "run.ended", data.clone());
        hear(&mut stream, "run.ended", data);
        let events = stream.take();
        assert_eq!(kinds(&events).last(), Some(&kind));
        let terminal = |it: &&&str| ["failed", "incomplete", "completed"].contains(*it);
        assert_eq!(kinds(&events).iter().filter(terminal).count(), 1);
        assert_eq!(stream.response()["status"], status);
    }
    for (end, reason) in [
        ("length", "max_output_tokens"),
        ("content_filter", "content_filter"),
        ("max_tool_calls", "max_tool_calls"),
    ] {
        let mut stream = agent();
        answer(&mut stream, json!([said("msg_1", "cut")]), end);
        let response = stream.response();
        assert_eq!(response["status"], "incomplete");
        assert_eq!(response["incomplete_details"]["reason"], reason);
    }
}

#[test]
fn a_run_that_was_no_response_is_none() {
    let data = json!({ "trigger": { "kind": "cli" } }).into();
    assert!(Stream::begin("run_x", &Fact { kind: "run.started", at: AT, data: &data }).is_none());
}
