//! `/ui/inbox/{task}`: what is asked, and the form of the answer.

use axum::{
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use maud::{Markup, html};
use serde_json::Value;

use crate::{
    blueprint::Form,
    dashboard::{
        component::{command, form, form::Wrong, json, markdown, status, text, time},
        desk::Desk,
        fields::Fields,
        layout::{self, Nav, Page},
        page::problem,
        visitor::{Visitor, id},
    },
    door::{Code, Problem},
    engine::{Advice, EngineError, IdempotencyKey, TaskView},
    protocol::{Json, TaskId},
    token::Verb,
};

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(task): Path<String>,
) -> Result<Response, Problem> {
    let task: TaskId = id(&task)?;
    let view = desk.engine.tasks().get(&visitor.caller, task).await?;
    Ok(shown(&visitor, &view, None, &[], &html! {}, StatusCode::OK))
}

/// Answers a task. If that is refused, the page comes again with what was written and the reason. A
/// form that is sent twice answers once.
pub(in crate::dashboard) async fn answer(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(task): Path<String>,
    fields: Fields,
) -> Result<Response, Problem> {
    let task: TaskId = id(&task)?;
    let view = desk.engine.tasks().get(&visitor.caller, task).await?;
    if is_recorded(&desk, &visitor, task, &fields).await {
        // The task may be over by now, and then it has no fields to read the answer by.
        return Ok(recorded(&view));
    }
    let revision = fields.given("revision").map(str::to_owned);
    let answer = match form::answer(&form_of(&view), &fields) {
        Ok(answer) => answer,
        Err(wrong) => {
            let words = html! { div.banner.bad role="alert" { "Some fields cannot be read." } };
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            return Ok(shown(&visitor, &view, Some(&fields), &wrong, &words, status));
        }
    };
    let (answer, key) = ((answer, revision), key_of(task, &fields));
    let told = desk.engine.tasks().answer(&visitor.caller, task, answer, key).await;
    ended(&desk, &visitor, task, &fields, told).await
}

/// Answers the question of an attempt. If that is refused, the page comes again with what was written.
pub(in crate::dashboard) async fn advise(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(task): Path<String>,
    fields: Fields,
) -> Result<Response, Problem> {
    let task: TaskId = id(&task)?;
    // Browsers send the line breaks of a text as CR LF.
    let answer = Json::from(Value::from(fields.text("advice").replace("\r\n", "\n")));
    let revision = fields.given("revision").map(str::to_owned);
    let advice = Advice { answer, attempt: None, revision };
    let key = key_of(task, &fields);
    let told = desk.engine.sessions().advise(&visitor.caller, task, advice, key).await;
    ended(&desk, &visitor, task, &fields, told).await
}

/// Returns the key of what was sent.
fn key_of(task: TaskId, sent: &Fields) -> Option<IdempotencyKey> {
    sent.once("dashboard answer", &format!("{task} {sent:?}"))
}

/// Returns true if exactly this form was sent before and is recorded.
async fn is_recorded(desk: &Desk, visitor: &Visitor, task: TaskId, sent: &Fields) -> bool {
    let key = key_of(task, sent);
    let before = desk.engine.repeated(&visitor.caller, key.as_ref()).await;
    matches!(before, Ok(Some(_)))
}

/// Leads back to the inbox, which says that the answer is recorded.
fn recorded(view: &TaskView) -> Response {
    Redirect::to(&format!("/ui/inbox?done=answer&run={}", view.run)).into_response()
}

/// Leads back to the inbox or, if what was sent is refused, shows the task as it is now, with that and the
/// reason.
async fn ended(
    desk: &Desk,
    visitor: &Visitor,
    task: TaskId,
    sent: &Fields,
    told: Result<TaskView, EngineError>,
) -> Result<Response, Problem> {
    let refused = match told {
        Ok(view) => return Ok(recorded(&view)),
        Err(error) => Problem::from(error),
    };
    if !refused.status().is_client_error() {
        return Err(refused);
    }
    let fresh = desk.engine.tasks().get(&visitor.caller, task).await?;
    if is_recorded(desk, visitor, task, sent).await {
        return Ok(recorded(&fresh));
    }
    let why = html! {
        (problem::banner(refused.body()))
        // What was sent is for the revision that was shown.
        @if refused.code() == Code::StaleTask.as_str() { (changed(&fresh, sent)) }
    };
    Ok(shown(visitor, &fresh, Some(sent), &[], &why, refused.status()))
}

fn form_of(view: &TaskView) -> Form {
    view.form.clone().unwrap_or_else(|| Form::of(None))
}

/// Returns hashes of what was shown, so that a later page can say what changed.
fn seen(view: &TaskView) -> [(&'static str, &'static str, String); 6] {
    let hash = |text: &str| blake3::hash(text.as_bytes()).to_hex()[..16].to_owned();
    let json = |value: &Option<Json>| hash(value.as_ref().map_or("", Json::as_str));
    [
        ("seen-prompt", "the prompt", hash(view.prompt.as_deref().unwrap_or_default())),
        ("seen-input", "the input", json(&view.input)),
        ("seen-schema", "the form of the answer", json(&view.output_schema)),
        ("seen-attempt", "the attempt", view.attempt.to_string()),
        ("seen-answers", "the answers of others", view.answers.len().to_string()),
        ("seen-question", "the question", hash(view.question.as_deref().unwrap_or_default())),
    ]
}

fn changed(fresh: &TaskView, sent: &Fields) -> Markup {
    let now = seen(fresh);
    let differ: Vec<_> = now.iter().filter(|(name, _, now)| sent.text(name) != now).collect();
    html! {
        div.banner.warn {
            p { "The task changed while you read it. Nothing was recorded; what you wrote is below." }
            @if !differ.is_empty() {
                ul { @for (_, label, _) in differ { li { (label) " changed" } } }
            }
        }
    }
}

fn shown(
    visitor: &Visitor,
    view: &TaskView,
    sent: Option<&Fields>,
    wrong: &[Wrong],
    why: &Markup,
    status: StatusCode,
) -> Response {
    let now_ms = visitor.now_ms;
    let title = view.summary.as_deref().unwrap_or(&view.agent);
    let open = view.form.is_some();
    let body = html! {
        p { a href="/ui/inbox" { "← Inbox" } }
        h1.line { (text::line(title, 200)) (status::pill(&view.state)) }
        (why)
        dl.card {
            dt { "Run" } dd { a href={ "/ui/runs/" (view.run) } { (view.run) } ", "
                a href={ "/ui/runs/" (view.run) "/steps/" (view.step) } { "step " (view.step) } }
            dt { "Id" } dd { code { (view.id) } " " (text::copy(&view.id.to_string())) }
            dt { "Agent" } dd { (text::line(&view.agent, 100)) }
            dt { "Asked" } dd { (time::of(&view.scheduled_at, now_ms)) }
            @if let Some(until) = &view.expires_at { dt { "Until" } dd { (time::of(until, now_ms)) } }
            @if !view.by.is_empty() { dt { "Who answers" } dd { (text::line(&view.by.join(", "), 300)) } }
            @if let Some(required) = view.required.filter(|it| *it > 1) {
                dt { "Answers" } dd { (view.answers.len()) " of " (required) }
            }
        }
        @if let Some(prompt) = view.prompt.as_ref().filter(|prompt| !is_input(prompt, view)) {
            section.card { (markdown::block(prompt, false, visitor.raw())) (markdown::switch(visitor)) }
        }
        @if let Some(input) = view.input.as_ref().filter(|input| !input.is_null()) {
            section.card { details open { summary { "Input" } (json::tree(input, false)) } }
        }
        @for given in view.answers.iter().take(50) {
            section.card { h3 { (text::line(&given.by, 120)) " " (time::of(&given.at, now_ms)) }
                (json::tree(&given.output, false)) }
        }
        @if let Some(question) = &view.question { (asked(visitor, view, question, sent)) }
        @else if open && visitor.may(Verb::TaskAnswer) { (forms(visitor, view, sent, wrong)) }
        @else if open { p.dim { "This sign-in (" (visitor.caller.grant.role) ") does not answer tasks: "
            code { "moonswarm open --role approver" } " makes one that does." } }
        @else { p.dim { "This task is over, or is not one for people." } }
    };
    Page { nav: Nav::Inbox, title, live: None, body }.with_status(visitor, status)
}

/// Returns what the attempt asks a senior, with the form of the advice.
fn asked(visitor: &Visitor, view: &TaskView, question: &str, sent: Option<&Fields>) -> Markup {
    let task = view.id.to_string();
    html! {
        section.card {
            h2 { "The worker asks" }
            (text::block(question, true))
            @if let Some(data) = &view.question_data { (json::tree(data, false)) }
        }
        @if visitor.may(Verb::TaskAdvise) {
            section.card {
                h2 { "Your advice" }
                form method="post" action={ "/ui/inbox/" (task) "/advice" } {
                    (of_shown(visitor, view))
                    div.field {
                        label for="advice" { "The same attempt goes on with it" }
                        textarea id="advice" name="advice" required dir="auto" {
                            "\n" (sent.map_or("", |sent| sent.text("advice")))
                        }
                    }
                    div.acts.send { button.main { "Send the advice" } }
                }
                (command::same(&visitor.url, &format!("moonswarm advise {task} '<json>'"), &command::Request {
                    method: "POST",
                    path: format!("/v1/tasks/{task}/advice"),
                    body: Some(r#"{"answer":"<json>"}"#.to_owned()),
                }))
            }
        } @else { p.dim { "This sign-in (" (visitor.caller.grant.role) ") gives no advice: a token of the role senior or admin does." } }
    }
}

/// Returns true if a prompt is the input and nothing else: an agent without a prompt of its own.
fn is_input(prompt: &str, view: &TaskView) -> bool {
    let own = view.input.as_ref().map(Json::to_value);
    own.is_some() && serde_json::from_str(prompt).ok() == own
}

/// Returns the hidden fields of a form that is for what is shown.
fn of_shown(visitor: &Visitor, view: &TaskView) -> Markup {
    html! {
        (layout::token(visitor))
        (layout::once())
        input type="hidden" name="revision" value=(view.revision.as_deref().unwrap_or_default());
        @for (name, _, hash) in seen(view) { input type="hidden" name=(name) value=(hash); }
    }
}

fn forms(visitor: &Visitor, view: &TaskView, sent: Option<&Fields>, wrong: &[Wrong]) -> Markup {
    let task = view.id.to_string();
    let action = format!("/ui/inbox/{task}/answer");
    let hidden = of_shown(visitor, view);
    let path = format!("/v1/tasks/{task}/answer");
    html! {
        section.card {
            h2 { "Your answer" }
            form method="post" action=(action) {
                (hidden)
                (form::fields(&form_of(view), sent, wrong))
                div.acts.send { button.main name="act" value="answer" { "Send the answer" } }
            }
            (command::same(&visitor.url, &format!("moonswarm answer {task} '<json>'"), &command::Request {
                method: "POST",
                path: path.clone(),
                body: Some(r#"{"output":"<json>"}"#.to_owned()),
            }))
        }
        details.card open[sent.is_some_and(|sent| sent.text("act") == "reject")] {
            summary { "Reject instead …" }
            form method="post" action=(action) {
                (hidden)
                (form::reason(sent))
            }
            (command::same(&visitor.url, &format!("moonswarm reject {task} 'why'"), &command::Request {
                method: "POST",
                path,
                body: Some(r#"{"reject":"why"}"#.to_owned()),
            }))
        }
    }
}
