//! `/ui/tokens`: the own token, who else has which until when; mint a narrower one, revoke.

use axum::{
    extract::State,
    http::StatusCode,
    response::{Redirect, Response},
};
use maud::{Markup, html};
use serde_json::json;

use crate::{
    blueprint::parse_duration,
    dashboard::{
        again,
        component::{command, text, time},
        desk::Desk,
        fields::Fields,
        fragment::allowed,
        layout::{self, Nav, Page},
        visitor::Visitor,
    },
    door::{Code, Problem},
    engine::{MintToken, Minted, TokenView, rfc3339},
    token::{Quotas, Role},
};

/// The number of tokens that are listed.
const LIMIT: usize = 200;

/// Shows the page: the own token, and live ones or all.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let all = fields.given("all").is_some();
    let now_ms = visitor.now_ms;
    let own = desk.engine.tokens().own(&visitor.caller).await?;
    let mut tokens = allowed(desk.engine.tokens().list(&visitor.caller).await)?;
    let ended = |at: &str| time::unix_ms(at).is_some_and(|at| at <= now_ms);
    if let Some(tokens) = &mut tokens {
        tokens.retain(|it| all || (it.revoked_at.is_none() && !ended(&it.expires_at)));
    }
    let body = html! {
        h1 { "Tokens" }
        @if fields.given("done") == Some("revoke") {
            div.banner.ok role="status" { "The token is revoked, and every token made from it." }
        }
        h2 { "This sign-in" }
        (own_token(&own, now_ms))
        (mint_form(&visitor))
        @if let Some(tokens) = &tokens {
            h2 { "All tokens" }
            p { @if all { a href="/ui/tokens" { "Only live ones" } } @else { a href="/ui/tokens?all=1" { "Ended ones as well" } } }
            (list(tokens, &visitor))
            (revoke_form(&visitor, fields.text("jti")))
        }
        (command::same(&visitor.url, if tokens.is_some() { "moonswarm token ls" } else { "moonswarm whoami" }, &command::Request {
            method: "GET",
            path: if tokens.is_some() { "/v1/tokens" } else { "/v1/tokens/self" }.to_owned(),
            body: None,
        }))
    };
    Ok(Page { nav: Nav::Tokens, title: "Tokens", live: None, body }.shown(&visitor))
}

fn own_token(own: &TokenView, now_ms: u64) -> Markup {
    html! {
        dl.card {
            dt { "Subject" } dd { (text::line(&own.subject, 120)) }
            dt { "Role" } dd { (own.role) }
            dt { "Id" } dd { code { (text::short(&own.jti, 60)) } }
            @if let Some(parent) = &own.parent { dt { "Made from" } dd { code { (text::short(parent, 60)) } } }
            dt { "Scopes" } dd { (text::short(&own.scopes.join(" "), 400)) }
            @if let Some(verbs) = &own.verbs { dt { "Verbs" } dd.small { (text::short(&verbs.join(" "), 2_000)) } }
            dt { "Until" } dd { (time::of(&own.expires_at, now_ms)) }
        }
    }
}

fn list(tokens: &[TokenView], visitor: &Visitor) -> Markup {
    let now_ms = visitor.now_ms;
    html! {
        div.card.flush {
            table.stack {
                thead { tr { th { "Subject" } th { "Role" } th { "Scopes" } th { "Made" } th { "Last used" } th { "Until" } } }
                tbody { @for it in tokens.iter().take(LIMIT) {
                    tr {
                        td data-label="Subject" {
                            (text::line(&it.subject, 100))
                            @if it.jti == visitor.caller.jti { " (this sign-in)" }
                            div.small { code.dim { (text::short(&it.jti, 60)) } " " (text::copy(&it.jti)) }
                        }
                        td data-label="Role" { (it.role) @if it.verbs.is_some() { span.dim { " narrowed" } } }
                        td data-label="Scopes" { (text::short(&it.scopes.join(" "), 120)) }
                        td data-label="Made" { (time::of(&it.created_at, now_ms)) }
                        td data-label="Last used" { @if let Some(at) = &it.last_used_at { (time::of(at, now_ms)) } @else { "—" } }
                        td data-label="Until" {
                            @match &it.revoked_at {
                                Some(at) => { "revoked " (time::of(at, now_ms)) }
                                None => {
                                    (time::of(&it.expires_at, now_ms)) " "
                                    a.small href={ "/ui/tokens?jti=" (crate::dashboard::headers::escaped(&it.jti)) "#revoke" } { "revoke" }
                                }
                            }
                        }
                    }
                } }
            }
        }
        @if tokens.len() > LIMIT { p.dim { "Only the newest " (LIMIT) " are listed." } }
    }
}

fn mint_form(visitor: &Visitor) -> Markup {
    let body = json!({ "role": "approver", "ttl": "12h", "name": "ann" });
    html! {
        div.acts {
            details {
                summary { "Mint a token" }
                form method="post" action="/ui/tokens/mint" {
                    (layout::token(visitor))
                    div.field {
                        label for="role" { "Role" }
                        select id="role" name="role" {
                            @for role in Role::ALL { option value=(role.as_str()) selected[role == Role::Observer] { (role) } }
                        }
                    }
                    div.field {
                        label for="name" { "Name" }
                        p.hint { "Whose it is. People with a name each are told apart where several must answer." }
                        input type="text" id="name" name="name" maxlength="64" spellcheck="false";
                    }
                    div.field {
                        label for="scopes" { "Scopes" }
                        p.hint { "One on a line: " code { "run:*" } ", " code { "blueprint:nightly" } ". Empty for those of the token below." }
                        textarea id="scopes" name="scopes" rows="3" spellcheck="false" {}
                    }
                    div.field {
                        label for="verbs" { "Verbs" }
                        p.hint { "One on a line, of those of the role. Empty for all of them." }
                        textarea id="verbs" name="verbs" rows="2" spellcheck="false" {}
                    }
                    div.field {
                        label for="ttl" { "Lives for" }
                        input type="text" id="ttl" name="ttl" value="12h" required;
                    }
                    (again::field("mint-token"))
                    button.main { "Mint it" }
                    (command::same(&visitor.url, "moonswarm token mint --role approver --ttl 12h --name ann", &command::Request {
                        method: "POST",
                        path: "/v1/tokens".to_owned(),
                        body: Some(body.to_string()),
                    }))
                }
            }
        }
    }
}

fn revoke_form(visitor: &Visitor, jti: &str) -> Markup {
    html! {
        div.acts #revoke {
            details open[!jti.is_empty()] {
                summary.danger { "Revoke a token" }
                form method="post" action="/ui/tokens/revoke" {
                    (layout::token(visitor))
                    p { "It is refused at once, and so is every token that was made from it." }
                    div.field {
                        label for="jti" { "Id" }
                        input type="text" id="jti" name="jti" value=(text::short(jti, 200)) required spellcheck="false";
                    }
                    (again::field("revoke-token"))
                    button.danger { "Revoke it" }
                    (command::same(&visitor.url, "moonswarm token revoke <id>", &command::Request {
                        method: "DELETE",
                        path: "/v1/tokens/<id>".to_owned(),
                        body: None,
                    }))
                }
            }
        }
    }
}

/// Mints a token with the one that the form carries, and shows it this once.
pub(in crate::dashboard) async fn mint(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let caller = again::caller(&desk, &fields)?;
    let minted = desk.engine.tokens().mint(&caller, asked(&fields)?, None).await?;
    let body = html! {
        h1 { "A new token" }
        div.banner.ok role="status" { "It is shown this once. Give it to whom it is for, and nobody else." }
        (shown_once(&minted, visitor.now_ms))
        p { a href="/ui/tokens" { "All tokens" } }
    };
    let page = Page { nav: Nav::Tokens, title: "A new token", live: None, body };
    Ok(page.with_status(&visitor, StatusCode::CREATED))
}

fn shown_once(minted: &Minted, now_ms: u64) -> Markup {
    html! {
        div.card {
            pre.clip tabindex="0" { (minted.token) }
            (text::copy(&minted.token))
            dl {
                dt { "Id" } dd { code { (minted.jti) } }
                dt { "Until" } dd { (time::of(&rfc3339(minted.expires_ms), now_ms)) }
            }
        }
    }
}

fn asked(fields: &Fields) -> Result<MintToken, Problem> {
    let role = fields.text("role").parse();
    let role: Role = role.map_err(|error: crate::token::UnknownRole| {
        Problem::new(Code::BadRequest, error.to_string())
    })?;
    let ttl_ms = parse_duration(fields.text("ttl").trim())
        .map_err(|error| Problem::new(Code::BadRequest, format!("failed to {error}")))?;
    let words = |name: &str| -> Option<Vec<String>> {
        let words = fields.given(name)?.split_whitespace().map(str::to_owned);
        Some(words.collect())
    };
    Ok(MintToken {
        role,
        verbs: words("verbs"),
        extra_verbs: Vec::new(),
        scopes: words("scopes"),
        ttl_ms,
        name: fields.given("name").map(|name| name.trim().to_owned()),
        quotas: Quotas::default(),
    })
}

/// Revokes a token with the one that the form carries.
pub(in crate::dashboard) async fn revoke(
    State(desk): State<Desk>,
    _: Visitor,
    fields: Fields,
) -> Result<Redirect, Problem> {
    let caller = again::caller(&desk, &fields)?;
    desk.engine.tokens().revoke(&caller, fields.text("jti").trim()).await?;
    Ok(Redirect::to("/ui/tokens?done=revoke"))
}
