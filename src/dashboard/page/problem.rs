//! An error as a page, with the code that the API has for it.

use axum::response::Response;
use maud::{Markup, html};

use crate::{
    dashboard::{component::text, layout::document, visitor::Theme},
    door::ProblemBody,
};

/// Returns the page of a problem; with links for whoever is signed in.
pub(in crate::dashboard) fn shown(problem: &ProblemBody, signed_in: bool) -> Response {
    let body = html! {
        main #main {
            div.narrow {
                h1 { (problem.title()) }
                (banner(problem))
                @if signed_in { p { a href="/ui" { "Back to the overview" } } }
                @else { p { a href="/ui/login" { "Sign in" } } }
            }
        }
    };
    document(problem.title(), Theme::System, &[], problem.status(), &body)
}

/// Returns the page of a problem before it is known who asks.
pub(in crate::dashboard) fn bare(problem: &ProblemBody) -> Response {
    shown(problem, false)
}

/// Returns a problem as part of a page.
pub(in crate::dashboard) fn banner(problem: &ProblemBody) -> Markup {
    html! {
        div.banner.bad role="alert" {
            p { (text::line(problem.detail(), 2_000)) }
            @if !problem.violations().is_empty() {
                ul { @for it in problem.violations().iter().take(50) {
                    li { code { (text::short(&it.path, 200)) } " " (text::line(&it.message, 500)) }
                } }
            }
            @if !problem.findings().is_empty() { (findings(problem)) }
            p.small { code { (problem.code()) } }
        }
    }
}

fn findings(problem: &ProblemBody) -> Markup {
    html! {
        ul { @for it in problem.findings().iter().take(50) {
            li { code { (text::short(&it.file, 120)) ":" (it.line) ":" (it.column) } " "
                (text::line(&it.message, 500)) }
        } }
    }
}
