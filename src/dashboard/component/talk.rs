//! The conversation of a model's loop: its turns, what it thought and said, the tools that it called
//! with what they gave, and what it says at this moment.

use std::collections::HashSet;

use maud::{Markup, html};
use serde_json::Value;

use super::{json, markdown, status, text, time, usage};
use crate::{
    dashboard::said::{Kind, Said},
    engine::{RunView, StepPart, StepParts, StepView, WaitingOn},
    protocol::{Json, TaskId},
};

/// The number of parts that a page shows, the last ones.
pub(in crate::dashboard) const SHOWN: usize = 200;
/// The size of all texts and values of a conversation, in bytes.
const ROOM: usize = 80_000;

/// Returns the conversation; `raw` texts are shown as they were written.
pub(in crate::dashboard) fn of(run: &RunView, parts: &StepParts, now_ms: u64, raw: bool) -> Markup {
    let called = called(parts);
    let mut page = Talk { run, parts, now_ms, raw, called, room: ROOM, turn: 0 };
    html! {
        h2 { "Conversation" }
        @if parts.earlier > 0 { p.dim { (parts.earlier) " earlier parts are left out; the run's steps have them." } }
        div.talk { @for part in &parts.items { (page.part(part)) } }
    }
}

/// Returns what models say now.
pub(in crate::dashboard) fn saying(said: Option<&Said>) -> Markup {
    let texts: Vec<_> = said.into_iter().flat_map(Said::texts).collect();
    html! {
        div #step-saying {
            @if !texts.is_empty() {
                section.card.saying aria-live="off" {
                    h2 { "Says now" }
                    @for (step, kind, words) in texts {
                        @match kind {
                            Kind::Answer => { div.text dir="auto" { (text::marked(words)) } }
                            Kind::Reasoning => { div.text.dim dir="auto" { (text::marked(words)) } }
                            Kind::Arguments => { pre { (text::marked(words)) } }
                        }
                        p.dim.small { "step " (step) }
                    }
                }
            }
        }
    }
}

/// A conversation that is being written.
struct Talk<'a> {
    run: &'a RunView,
    parts: &'a StepParts,
    now_ms: u64,
    raw: bool,
    /// The calls that the turns on the page made, by their ids.
    called: HashSet<String>,
    room: usize,
    turn: usize,
}

impl Talk<'_> {
    fn part(&mut self, part: &StepPart) -> Markup {
        let step = &part.step;
        match step.kind.as_str() {
            "model_call" => {
                self.turn += 1;
                html! {
                    section.card data-key=(step.seq) {
                        h3.line { "Turn " (self.turn) " " (status::pill(&step.state)) (self.facts(step)) }
                        @if let Some(error) = &step.error { (failed(&error.kind, &error.message)) }
                        @if let Some(reply) = &step.response { (self.reply(reply)) }
                        @else if step.ended_at.is_none() { p.dim { "The model is asked …" } }
                    }
                }
            }
            // A call is shown with the turn that made it.
            "tool_call" if step.call_id.as_ref().is_some_and(|id| self.called.contains(id)) => {
                html! {}
            }
            "tool_call" => {
                html! { section.card data-key=(step.seq) { (self.call(&step.name, None, Some(part))) } }
            }
            _ => html! {
                section.card data-key=(step.seq) {
                    div.line { (text::line(&step.name, 80)) (status::pill(&step.state)) (self.facts(step)) }
                    @if let Some(summary) = &step.summary { p { (text::line(summary, 500)) } }
                    (self.outcome(part))
                }
            },
        }
    }

    fn facts(&self, step: &StepView) -> Markup {
        html! {
            span.dim.small {
                a href={ "/ui/runs/" (self.run.id) "/steps/" (step.seq) } { "step " (step.seq) }
                @if step.kind == "model_call" { ", " (text::line(&step.name, 60)) }
                @if let Some(ms) = step.duration_ms { ", " (time::took(ms)) }
                @if step.usage.is_some() { ", " (usage::of(step.usage.as_ref())) }
                @if step.attempts > 1 { ", attempt " (step.attempts) }
            }
        }
    }

    fn reply(&mut self, reply: &Json) -> Markup {
        let reply = reply.to_value();
        html! { @for item in items(&reply) { (self.item(item)) } }
    }

    fn item(&mut self, item: &Value) -> Markup {
        let word = |key: &str| item[key].as_str().unwrap_or_default();
        match word("type") {
            "message" => {
                let texts = item["content"].as_array().into_iter().flatten();
                let texts: Vec<_> =
                    texts.filter_map(|it| it["text"].as_str().or(it["refusal"].as_str())).collect();
                html! { @for words in texts { (self.words(words)) } }
            }
            "reasoning" => {
                let all = [&item["summary"], &item["content"]];
                let texts = all.into_iter().filter_map(Value::as_array).flatten();
                let texts: Vec<_> = texts
                    .filter_map(|it| it["text"].as_str())
                    .filter(|it| !it.is_empty())
                    .collect();
                html! { @if !texts.is_empty() {
                    details { summary.dim { "Reasoning" } @for words in texts { (self.words(words)) } }
                } }
            }
            "function_call" => {
                let id = word("call_id");
                let part =
                    self.parts.items.iter().find(|it| it.step.call_id.as_deref() == Some(id));
                self.call(word("name"), Some(word("arguments")), part)
            }
            other => {
                let other = text::short(other, 60);
                html! { @if let Some(tree) = self.value(&Json::from(item)) { details { summary.dim { (other) } (tree) } } }
            }
        }
    }

    fn call(&mut self, name: &str, arguments: Option<&str>, part: Option<&StepPart>) -> Markup {
        let arguments = match arguments.filter(|it| !it.trim().is_empty()) {
            Some(text) => Json::parse(text).ok().or_else(|| Some(Json::from(Value::from(text)))),
            None => part.and_then(|part| part.step.request.clone()),
        };
        html! {
            div.call {
                div.line { strong { "⚙ " (text::line(name, 80)) }
                    @if let Some(part) = part { (status::pill(&part.step.state)) (self.facts(&part.step)) }
                    @else { span.dim.small { "not called so far" } }
                }
                @if let Some(arguments) = &arguments {
                    @if let Some(tree) = self.value(arguments) { (tree) } @else { p.dim.small { "The step has the arguments." } }
                }
                @if let Some(part) = part { (self.outcome(part)) }
            }
        }
    }

    fn outcome(&mut self, part: &StepPart) -> Markup {
        let step = &part.step;
        html! {
            @for (by, at) in &part.answered {
                p.small { @if step.error.as_ref().is_some_and(|it| it.kind == "human_rejected") { "✕ rejected by " } @else { "✓ answered by " }
                    (text::line(by, 120)) ", " (time::of(at, self.now_ms)) }
            }
            @if let Some(error) = &step.error { (failed(&error.kind, &error.message)) }
            @if let Some(output) = &step.response {
                details open { summary.dim { "gave" }
                    @if let Some(tree) = self.value(output) { (tree) } @else { p.dim.small { "The step has it." } }
                }
            } @else if let Some(task) = step.task.filter(|task| self.asks_a_person(*task)) {
                p { "A person is asked. " a href={ "/ui/inbox/" (task) } { "Answer it" } }
            }
        }
    }

    fn asks_a_person(&self, task: TaskId) -> bool {
        let human = |on: &WaitingOn| on.subject.operator_kind.as_deref() == Some("human");
        self.run.waiting_on.iter().any(|on| on.subject.task == Some(task) && human(on))
    }

    fn words(&mut self, words: &str) -> Markup {
        if self.room == 0 {
            return html! { p.dim.small { "The page is full; the step has this text." } };
        }
        self.room = self.room.saturating_sub(words.len());
        markdown::block(words, false, self.raw)
    }

    fn value(&mut self, value: &Json) -> Option<Markup> {
        json::part(value, &mut self.room)
    }
}

/// Returns the ids of the calls that the turns on the page made. A conversation can have many large
/// results: only what models said is read, and once.
fn called(parts: &StepParts) -> HashSet<String> {
    let turns = parts.items.iter().map(|it| &it.step).filter(|it| it.kind == "model_call");
    let mut ids = HashSet::new();
    for reply in turns.filter_map(|turn| turn.response.as_ref()) {
        let reply = reply.to_value();
        ids.extend(items(&reply).filter_map(|it| it["call_id"].as_str()).map(str::to_owned));
    }
    ids
}

/// Returns the items of a model's reply.
fn items(reply: &Value) -> impl Iterator<Item = &Value> {
    reply["items"].as_array().into_iter().flatten()
}

fn failed(kind: &str, message: &str) -> Markup {
    html! { div.banner.bad { strong { (text::short(kind, 60)) } " " (text::line(message, 1_000)) } }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run() -> RunView {
        serde_json::from_value(json!({
            "id": crate::protocol::RunId::new(7, 5), "blueprint": "talk", "hash": "00", "status": "completed",
            "waiting_on": [], "steps": 0, "steps_done": 0, "tags": {}, "children": [],
            "undelivered": [], "limits": [], "can": [], "seats": {}, "stored_bytes": 0,
            "started_by": "ann", "last_event": 0, "created_at": "", "updated_at": "",
        }))
        .unwrap()
    }

    fn part(seq: u32, kind: &str, call: Option<u32>, response: &Value) -> StepPart {
        let id = call.map(|call| format!("call_{call}"));
        let step = json!({
            "id": "x", "seq": seq, "scope": "", "index": 0, "kind": kind, "call_id": id,
            "name": format!("name-{seq}"), "state": "completed", "attempts": 1, "scheduled_at": "",
            "ended_at": "", "response": response,
        });
        StepPart { step: serde_json::from_value(step).unwrap(), answered: Vec::new() }
    }

    fn turn(call: u32) -> Value {
        let id = format!("call_{call}");
        json!({ "items": [{ "type": "function_call", "call_id": id, "name": "look", "arguments": "{}" }] })
    }

    #[test]
    fn a_call_is_shown_with_the_turn_that_made_it_and_else_by_itself() {
        // Results that look like turns make no calls.
        let result = json!({ "items": [{ "call_id": "call_999" }], "text": "x".repeat(256 << 10) });
        let mut items = Vec::new();
        for n in 1..=100 {
            items.push(part(2 * n, "model_call", None, &turn(n)));
            items.push(part(2 * n + 1, "tool_call", Some(n), &result));
        }
        items.push(part(300, "tool_call", Some(999), &result));
        let parts = StepParts { items, earlier: 0 };
        let ids = called(&parts);
        assert_eq!(
            (ids.len(), ids.contains("call_100"), ids.contains("call_999")),
            (100, true, false)
        );
        let page = of(&run(), &parts, 0, false).into_string();
        assert_eq!(page.matches("<div class=\"call\">").count(), 101);
        assert_eq!(page.matches("<section class=\"card\"").count(), 101);
        assert!(page.contains("data-key=\"300\"") && !page.contains("data-key=\"3\""), "{page}");
    }
}
