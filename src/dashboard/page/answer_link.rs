//! `/ui/answer/{link}`: one task, answered once by whom the link names, without signing in.
//!
//! The page says nothing else of the host. Its address is a secret, so it has no links and no
//! referrer. Showing it uses nothing up; its form does.

use axum::{
    extract::{Path, Request, State},
    http::StatusCode,
    response::Response,
};
use maud::{Markup, html};
use subtle::ConstantTimeEq as _;

use crate::{
    blueprint::Form,
    dashboard::{
        component::{form, form::Wrong, json, markdown, text, time},
        desk::Desk,
        fields::Fields,
        layout::document,
        page::problem,
        visitor::Theme,
    },
    door::{Code, Entered, Problem},
    engine::OpenLink,
};

/// Shows the task and the form of its answer.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    Path(link): Path<String>,
) -> Result<Response, Problem> {
    let link = desk.engine.tasks().open_link(&link).await?;
    Ok(shown(&desk, &link, None, &[], &html! {}, StatusCode::OK))
}

/// Answers the task. The link is used up once the answer counts.
pub(in crate::dashboard) async fn answer(
    State(desk): State<Desk>,
    Path(link): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    // First the link: whoever has none makes the host keep nothing. Its form counts as its person's.
    let link = desk.engine.tasks().open_link(&link).await?;
    Entered::put_place(&mut parts.extensions, desk.door.place_of(link.caller())?);
    let fields = Fields::read(&mut parts, body, &desk).await?;
    let own: bool = link.form.as_bytes().ct_eq(fields.text("form").as_bytes()).into();
    if !own {
        let detail = "open the link, and send the form that it shows";
        return Err(Problem::new(Code::FormRefused, detail));
    }
    let answer = match form::answer(&form_of(&link), &fields) {
        Ok(answer) => answer,
        Err(wrong) => {
            let words = html! { div.banner.bad role="alert" { "Some fields cannot be read." } };
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            return Ok(shown(&desk, &link, Some(&fields), &wrong, &words, status));
        }
    };
    match desk.engine.tasks().answer_link(&link, answer).await {
        Ok(()) => Ok(thanks()),
        Err(error) => {
            let refused = Problem::from(error);
            if refused.status() != StatusCode::UNPROCESSABLE_ENTITY {
                return Err(refused);
            }
            let why = problem::banner(refused.body());
            Ok(shown(&desk, &link, Some(&fields), &[], &why, refused.status()))
        }
    }
}

fn form_of(link: &OpenLink) -> Form {
    link.task.form.clone().unwrap_or_else(|| Form::of(None))
}

fn page(title: &str, status: StatusCode, body: &Markup) -> Response {
    let main = html! { main #main { div.narrow { (body) } } };
    // A second click would find the link used up.
    document(title, Theme::System, &["away.js"], status, &main)
}

fn thanks() -> Response {
    let body = html! {
        h1 { "Thank you" }
        div.banner.ok role="status" { "Your answer is recorded. This link is used up." }
    };
    page("Thank you", StatusCode::OK, &body)
}

fn shown(
    desk: &Desk,
    link: &OpenLink,
    sent: Option<&Fields>,
    wrong: &[Wrong],
    why: &Markup,
    status: StatusCode,
) -> Response {
    let (view, now_ms) = (&link.task, desk.door.clock.now_ms());
    let title = view.summary.as_deref().unwrap_or(&view.agent);
    let hidden = html! { input type="hidden" name="form" value=(link.form); };
    let body = html! {
        h1 { (text::line(title, 200)) }
        (why)
        p.dim { "You answer as " (text::line(&link.person, 120)) ". This link is good for one answer, until "
            (time::of_ms(link.expires_ms, now_ms)) ". Nothing happens before you send the form." }
        @if let Some(prompt) = &view.prompt { section.card { (markdown::block(prompt, false, false)) } }
        @if let Some(input) = view.input.as_ref().filter(|input| !input.is_null()) {
            section.card { details open { summary { "Input" } (json::tree(input, false)) } }
        }
        section.card {
            h2 { "Your answer" }
            form method="post" {
                (hidden)
                (form::fields(&form_of(link), sent, wrong))
                div.acts.send { button.main name="act" value="answer" { "Send the answer" } }
            }
        }
        details.card open[sent.is_some_and(|sent| sent.text("act") == "reject")] {
            summary { "Reject instead …" }
            form method="post" {
                (hidden)
                (form::reason(sent))
            }
        }
    };
    page(title, status, &body)
}
