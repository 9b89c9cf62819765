//! `/ui/runs/{run}/steps/{seq}`: one step, with its attempts.

use axum::{
    extract::{Path, State},
    response::Response,
};
use maud::{Markup, html};
use parking_lot::Mutex;
use serde_json::Value;

use super::source_links;
use crate::{
    dashboard::{
        component::{
            attempts, command, json, markdown, pager, status, talk, text, time, timeline, usage,
        },
        desk::Desk,
        fields::Fields,
        fragment::Fragment,
        layout::{Nav, Page},
        said::Said,
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    engine::{EventView, RunView, StepBounds, StepView, WholeStep},
    protocol::RunId,
    token::Verb,
};

/// The parts and events of a step that a page shows, the last ones.
const MOST: StepBounds = StepBounds { parts: talk::SHOWN, events: 200 };

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path((run, seq)): Path<(String, String)>,
    fields: Fields,
) -> Result<Response, Problem> {
    let (run, seq) = place(&run, &seq)?;
    let shown = Shown::read(&desk, &visitor, run, seq).await?;
    let whole = fields.given("whole").is_some();
    let step = &shown.whole.step;
    let body = html! {
        p { a href={ "/ui/runs/" (run) } { "← " (text::line(&shown.view.blueprint, 60)) } }
        (shown.html(&visitor, whole))
        (talk::saying(None))
        p.line {
            @if visitor.caller.may(Verb::RunInspect, run).is_ok() {
                a.button href=(source_links::locals(run, seq)) { "Locals at this step" }
            }
            @if visitor.caller.may(Verb::RunFork, run).is_ok() {
                a.button href={ "/ui/runs/" (run) "/fork?step=" (seq) } { "Fork from here …" }
            }
        }
        @if !whole { p { a href="?whole=1" { "Show long values in full" } } }
        (command::same(&visitor.url, &format!("moonswarm show {run}/{seq}"), &command::Request {
            method: "GET",
            path: format!("/v1/runs/{run}/steps/{seq}"),
            body: None,
        }))
    };
    let title = format!("{} · step {seq}", step.name);
    let query = [("whole", fields.text("whole")), ("raw", fields.text("raw"))];
    let path = format!("/ui/live/runs/{run}/steps/{seq}");
    let live = step.ended_at.is_none().then(|| pager::url(&path, &query));
    Ok(Page { nav: Nav::Runs, title: &title, live, body }.shown(&visitor))
}

/// Reads the run and the step of a path.
///
/// # Errors
/// Returns `not_found`.
pub(in crate::dashboard) fn place(run: &str, seq: &str) -> Result<(RunId, u32), Problem> {
    let not_one =
        || Problem::new(Code::NotFound, format!("there is no step {:?}", text::short(seq, 40)));
    Ok((id(run)?, seq.parse().map_err(|_| not_one())?))
}

/// Returns what changes on the page, and whether the step has ended. What models say at the moment is
/// all that is sent if nothing durable happened.
pub(in crate::dashboard) async fn fragments(
    desk: &Desk,
    visitor: &Visitor,
    (run, seq): (RunId, u32),
    fields: &Fields,
    said: &Mutex<Said>,
) -> Result<(Vec<Fragment>, bool), Problem> {
    let (mut all, mut over) = (Vec::new(), false);
    let moved = std::mem::take(&mut said.lock().moved);
    if moved {
        let shown = Shown::read(desk, visitor, run, seq).await?;
        over = shown.whole.step.ended_at.is_some();
        let parts = &shown.whole.parts.items;
        said.lock().know(parts.iter().map(|it| (it.step.seq, it.step.ended_at.is_none())));
        let whole = fields.given("whole").is_some();
        all.push(Fragment { id: "step", html: shown.html(visitor, whole) });
    }
    let said = said.lock();
    all.push(Fragment { id: "step-saying", html: talk::saying((!over).then_some(&*said)) });
    Ok((all, over))
}

/// The data of the page.
struct Shown {
    view: RunView,
    whole: WholeStep,
}

impl Shown {
    async fn read(desk: &Desk, visitor: &Visitor, run: RunId, seq: u32) -> Result<Self, Problem> {
        let (engine, caller) = (&desk.engine, &visitor.caller);
        let view = engine.run(caller, run).await?;
        let whole = engine.whole_step(caller, run, seq, MOST).await?;
        Ok(Self { view, whole })
    }

    fn html(&self, visitor: &Visitor, whole: bool) -> Markup {
        let Self { view, whole: WholeStep { step, attempts: tried, parts, .. } } = self;
        let (now_ms, seq, open) = (visitor.now_ms, step.seq, step.ended_at.is_none());
        let is_loop = parts.items.iter().any(|it| it.step.kind == "model_call");
        html! {
            div #step {
                h1.line { (text::line(&step.name, 80)) (status::pill(&step.state)) span.dim.small { "step " (seq) ", " (step.kind) } }
                @if let Some(summary) = &step.summary { p { (text::line(summary, 500)) } }
                @if let Some(error) = &step.error {
                    div.banner.bad {
                        p { strong { (text::short(&error.kind, 60)) } " " }
                        (text::block(&error.message, whole))
                        p.small { @if error.retryable { "Another attempt may succeed." } @else { "Another attempt would not help." } }
                        @if let Some(data) = &error.data { (json::tree(data, whole)) }
                    }
                }
                (facts(view.id, step, now_ms))
                @for (label, words) in [("System prompt", &tried.system), ("Prompt", &tried.prompt)] {
                    @if let Some(words) = words.as_ref().filter(|it| !it.is_empty()) {
                        section.card { h2 { (label) }
                            @if !open { p.dim.small { "rendered again from the recorded input" } }
                            (markdown::block(words, whole, visitor.raw()))
                        }
                    }
                }
                @if is_loop { (talk::of(view, parts, now_ms, visitor.raw())) }
                @else if !parts.items.is_empty() {
                    @let members: Vec<_> = parts.items.iter().map(|it| it.step.clone()).collect();
                    h2 { "Parts" }
                    div.card.flush tabindex="0" { (timeline::of(view.id, &members, now_ms)) }
                }
                @if tried.prompt.is_some() || tried.system.is_some() || is_loop { (markdown::switch(visitor)) }
                div.cards {
                    @if let Some(request) = &step.request { section.card { h2 { "Input" } (json::tree(request, whole)) } }
                    section.card { h2 { "Output" }
                        @match &step.response {
                            Some(output) => { (json::tree(output, whole)) }
                            None => { p.dim { @if open { "not yet" } @else { "none" } } }
                        }
                    }
                    @if !step.effects.is_empty() {
                        section.card { h2 { "Effects" } @for effect in step.effects.iter().take(100) { (json::tree(effect, whole)) } }
                    }
                }
                (attempts::of(tried, now_ms))
                (happened(&self.whole, now_ms))
            }
        }
    }
}

fn facts(run: RunId, step: &StepView, now_ms: u64) -> Markup {
    html! {
        dl.card {
            dt { "Scheduled" } dd { (time::of(&step.scheduled_at, now_ms)) }
            @if let Some(at) = &step.started_at { dt { "Started" } dd { (time::of(at, now_ms)) } }
            @if let Some(at) = &step.ended_at { dt { "Ended" } dd { (time::of(at, now_ms)) } }
            @if let Some(ms) = step.duration_ms { dt { "Took" } dd { (time::took(ms))
                @if let (Some(queued), Some(ran)) = (step.queued_ms, step.ran_ms) {
                    span.dim { " (waited " (time::took(queued)) ", worked " (time::took(ran)) ")" }
                }
            } }
            @if step.attempts > 0 { dt { "Attempts" } dd { (step.attempts) } }
            @if step.task.is_some() { dt { "Usage" } dd { (usage::of(step.usage.as_ref())) } }
            @if !step.scope.is_empty() { dt { "Branch" } dd {
                @if let Some(name) = &step.branch { (text::short(name, 200)) " " }
                code { (text::short(&step.scope, 200)) }
            } }
            @if let Some(line) = &step.line { dt { "Line" } dd {
                a href=(source_links::path(run, line)) { code { (text::short(line, 200)) } }
            } }
            @for (label, seq) in [("Before it", step.prev), ("Part of", step.parent), ("Member of", step.composite)] {
                @if let Some(seq) = seq { dt { (label) } dd { a href={ "/ui/runs/" (run) "/steps/" (seq) } { "step " (seq) } } }
            }
            @if let Some(operator) = &step.operator { dt { "Operator" } dd { (text::line(operator, 100)) } }
            @if let Some(task) = step.task { dt { "Task" } dd { code { (task) } " " (text::copy(&task.to_string())) } }
        }
    }
}

fn happened(whole: &WholeStep, now_ms: u64) -> Markup {
    let events: Vec<(&EventView, Value)> =
        whole.events.iter().map(|event| (event, event.data.to_value())).collect();
    let word = |data: &Value, key: &str| match &data[key] {
        Value::Null => String::new(),
        Value::String(text) => text::short(text, 120),
        other => text::short(&other.to_string(), 120),
    };
    html! {
        @if !events.is_empty() {
            h2 { "What happened" }
            @if whole.earlier > 0 { p.dim { (whole.earlier) " earlier events are left out; the run's events have them." } }
            div.card.flush tabindex="0" {
                table.stack {
                    thead { tr { th.num { "Event" } th { "What" } th { "Attempt" } th { "Details" } th { "When" } } }
                    tbody { @for (event, data) in &events {
                        tr {
                            td.num data-label="Event" { (event.seq.unwrap_or(0)) }
                            td data-label="What" { (text::short(&event.kind, 60)) }
                            td data-label="Attempt" { (word(data, "attempt")) }
                            td.clip data-label="Details" {
                                @for (label, key) in [("worker", "worker"), ("by", "by"), ("deadline", "deadline"), ("again at", "retry_at")] {
                                    @let value = word(data, key);
                                    @if !value.is_empty() { div.small { (label) " " code { (value) } } }
                                }
                                @if let Some(message) = data["error"]["message"].as_str() {
                                    div.small { (text::line(message, 300)) }
                                }
                            }
                            td data-label="When" { (time::of(&event.at, now_ms)) }
                        }
                    } }
                }
            }
        }
    }
}
