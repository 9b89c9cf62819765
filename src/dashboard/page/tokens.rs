//! `/ui/tokens`: who has tokens, of which role, until when.

use axum::{extract::State, response::Response};
use maud::html;

use crate::{
    dashboard::{
        component::{command, text, time},
        desk::Desk,
        fields::Fields,
        layout::{Nav, Page},
        visitor::Visitor,
    },
    door::Problem,
};

/// The number of tokens that are listed.
const LIMIT: usize = 200;

/// Shows the page: live tokens, or all.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let all = fields.given("all").is_some();
    let now_ms = visitor.now_ms;
    let mut tokens = desk.engine.tokens().list(&visitor.caller).await?;
    let ended = |at: &str| time::unix_ms(at).is_some_and(|at| at <= now_ms);
    tokens.retain(|it| all || (it.revoked_at.is_none() && !ended(&it.expires_at)));
    let body = html! {
        h1 { "Tokens" }
        p { @if all { a href="/ui/tokens" { "Only live ones" } } @else { a href="/ui/tokens?all=1" { "Ended ones as well" } } }
        div.card.flush {
            table.stack {
                thead { tr { th { "Subject" } th { "Role" } th { "Scopes" } th { "Made" } th { "Last used" } th { "Until" } } }
                tbody { @for it in tokens.iter().take(LIMIT) {
                    tr {
                        td data-label="Subject" {
                            (text::line(&it.subject, 100))
                            @if it.jti == visitor.caller.jti { " (this sign-in)" }
                            div.dim.small.mono { (text::short(&it.jti, 60)) }
                        }
                        td data-label="Role" { (it.role) @if it.verbs.is_some() { span.dim { " narrowed" } } }
                        td data-label="Scopes" { (text::short(&it.scopes.join(" "), 120)) }
                        td data-label="Made" { (time::of(&it.created_at, now_ms)) }
                        td data-label="Last used" { @if let Some(at) = &it.last_used_at { (time::of(at, now_ms)) } @else { "—" } }
                        td data-label="Until" {
                            @match &it.revoked_at {
                                Some(at) => { "revoked " (time::of(at, now_ms)) }
                                None => { (time::of(&it.expires_at, now_ms)) }
                            }
                        }
                    }
                } }
            }
        }
        @if tokens.len() > LIMIT { p.dim { "Only the newest " (LIMIT) " are listed." } }
        p.dim { "Tokens are made and revoked with a token itself, not with a sign-in: "
            code { "moonswarm token mint" } ", " code { "moonswarm token revoke JTI" } "." }
        (command::same(&visitor.url, "moonswarm token ls", &command::Request {
            method: "GET",
            path: "/v1/tokens".to_owned(),
            body: None,
        }))
    };
    Ok(Page { nav: Nav::Tokens, title: "Tokens", live: None, body }.shown(&visitor))
}
