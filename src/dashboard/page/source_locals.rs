//! The pane of the tab Source that shows the locals of a flow at a step.

use maud::{Markup, html};

use super::source_links::{locals, url};
use crate::{
    dashboard::{
        component::{command, json, text},
        desk::Desk,
        fields::Fields,
        visitor::Visitor,
    },
    door::{Code, Problem},
    engine::{EngineError, FlowForm, LocalsBranch, LocalsFrame, LocalsVariable, LocalsView},
    protocol::RunId,
    token::Verb,
};

/// The longest value of a row, in bytes.
const VALUE: usize = 160;
/// The calls and branches that are open at first.
const OPEN: usize = 2;

/// The pane.
pub(super) struct Pane {
    pub html: Markup,
    /// The line of the innermost call.
    pub place: Option<(String, u32)>,
}

impl Pane {
    /// Returns the pane for the step that the page asks for, if it asks for one.
    ///
    /// # Errors
    /// Fails when there is no such step. Whatever may pass or cannot be replayed is shown.
    pub(super) async fn of(
        desk: &Desk,
        visitor: &Visitor,
        run: RunId,
        fields: &Fields,
    ) -> Result<Option<Self>, Problem> {
        let Some(step) = fields.given("at") else { return Ok(None) };
        let step: u32 = step
            .parse()
            .map_err(|_| Problem::new(Code::BadQuery, "at is not the number of a step"))?;
        if visitor.caller.may(Verb::RunInspect, run).is_err() {
            return Ok(Some(Self::note(
                step,
                html! { "This token may not look at locals: it needs the verb " code { "run.inspect" } "." },
            )));
        }
        let view = match desk.engine.histories().locals(&visitor.caller, run, step).await {
            Ok(view) => view,
            Err(error @ (EngineError::Conflict { .. } | EngineError::Busy { .. })) => {
                let words = error.to_string();
                return Ok(Some(Self::note(
                    step,
                    html! {
                        (text::line(&words, 2_000))
                        @if matches!(error, EngineError::Busy { .. }) {
                            " " a href=(locals(run, step)) { "Try again" }
                        }
                    },
                )));
            }
            Err(error) => return Err(error.into()),
        };
        let first = view.branches.first().and_then(|it| it.frames.first());
        let place = first.map(|frame| (frame.file.clone(), frame.line));
        Ok(Some(Self { html: shown(&view, visitor), place }))
    }

    fn note(step: u32, words: Markup) -> Self {
        let html = html! {
            section.card #locals { h2 { "Locals at step " (step) } p { (words) } }
        };
        Self { html, place: None }
    }
}

fn shown(view: &LocalsView, visitor: &Visitor) -> Markup {
    let (run, step) = (view.run, view.step);
    html! {
        section.card #locals {
            h2 { "Locals at step " (step) }
            nav.pager aria-label="Steps" {
                @if let Some(previous) = view.previous {
                    a rel="prev" href=(locals(run, previous)) { "← step " (previous) }
                }
                a href={ "/ui/runs/" (run) "/steps/" (step) } {
                    (text::line(&format!("{} {}", view.kind, view.name), 80))
                }
                @if let Some(next) = view.next {
                    a rel="next" href=(locals(run, next)) { "step " (next) " →" }
                }
                a href={ "/ui/runs/" (run) "?tab=source" } { "close" }
            }
            @if view.requested != step {
                p.dim.small { "A part of step " (view.requested) ", which the flow requested." }
            }
            @if view.branches.is_empty() {
                p.dim { @match view.flow {
                    FlowForm::Table => { "This flow is a table: it has no locals." }
                    FlowForm::Agent => { "This run asks one agent: it has no flow of its own." }
                    FlowForm::Script => { "No call of the flow was in progress." }
                } }
            }
            @for (n, it) in view.branches.iter().enumerate() { (branch(run, it, n, view.branches.len())) }
            @if view.more_branches > 0 { p.dim.small { "and " (view.more_branches) " more branches" } }
            (command::same(&visitor.url, &format!("moonswarm inspect {run} --at {step}"), &command::Request {
                method: "GET",
                path: format!("/v1/runs/{run}/steps/{step}/locals"),
                body: None,
            }))
        }
    }
}

fn branch(run: RunId, it: &LocalsBranch, number: usize, all: usize) -> Markup {
    html! {
        @if all > 1 {
            h3.line {
                @match &it.branch {
                    Some(name) => { (text::line(name, 200)) }
                    None => { "the flow's own function" }
                }
                @if let Some(step) = it.step.filter(|_| number > 0) {
                    a.small href=(locals(run, step)) { "waits for step " (step) }
                }
            }
        }
        @for (n, it) in it.frames.iter().enumerate() { (frame(run, it, number == 0 && n < OPEN)) }
        @if it.more_frames > 0 { p.dim.small { "and " (it.more_frames) " more calls" } }
    }
}

fn frame(run: RunId, it: &LocalsFrame, is_open: bool) -> Markup {
    html! {
        details.frame open[is_open] {
            summary {
                strong { (text::short(it.function.as_deref().unwrap_or("function"), 100)) } " "
                @if let Some(line) = &it.text { code.dim { (text::short(line, 120)) } }
            }
            p.small { "at " a href=(url(run, &it.file, it.line)) { code { (text::short(&it.file, 200)) ":" (it.line) } } }
            @if it.variables.is_empty() { p.dim.small { "no variables" } }
            @else {
                table { tbody { @for it in &it.variables { (variable(it)) } } }
            }
        }
    }
}

fn variable(it: &LocalsVariable) -> Markup {
    let line = it.line(VALUE);
    let has_parts = it.of_type == "table" || line.len() > VALUE;
    html! {
        tr {
            td.dim.small { (it.role.as_str()) }
            td { code { (text::short(&it.name, 100)) } }
            td.clip {
                @if has_parts {
                    details {
                        summary { code { (text::short(&line, VALUE)) } }
                        (json::tree(&it.value, false))
                    }
                } @else { code { (text::short(&line, VALUE)) } }
            }
        }
    }
}
