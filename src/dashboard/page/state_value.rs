//! `/ui/state/value`: one value of state, with its links; set and delete.

use axum::{
    extract::State,
    response::{Redirect, Response},
};
use maud::{Markup, html};
use serde_json::json;

use crate::{
    dashboard::{
        component::{
            command, json as tree, pager,
            state_path::{scope_of, value_path},
            text, time,
        },
        desk::Desk,
        fields::Fields,
        fragment::allowed,
        headers::escaped,
        layout::{self, Nav, Page},
        visitor::Visitor,
    },
    door::{Code, Problem},
    engine::{StateView, shell},
    protocol::{Json, StoreOptions},
    store::{Reducer, StateAct, StateChange},
    token::{Need, Verb},
};

/// The maximum length of a key, in bytes.
const MOST_KEY: usize = 1_024;
/// The maximum number of links that are listed.
const LINKS: usize = 100;
/// The maximum size of a value that is offered for editing, in bytes.
const EDITED: usize = 256 << 10;

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let (scope, key) = (scope_of(fields.text("scope"))?, fields.text("key"));
    let state = desk.engine.stored_state();
    let view = state.state_value(&visitor.caller, &scope, key).await?;
    let links = allowed(state.walk_state(&visitor.caller, &scope, key, None, 1).await)?;
    let whole = fields.given("whole").is_some();
    let now_ms = visitor.now_ms;
    let path = api_path(&view.scope, key);
    let line = format!(
        "moonswarm state get{} {}",
        shell::option("--scope", &view.scope),
        shell::operand(key)
    );
    let body = html! {
        h1 { (text::line(key, 200)) }
        p { "In " a href=(pager::url("/ui/state", &[("scope", &view.scope)])) { (text::line(&view.scope, 120)) } }
        @if fields.given("done") == Some("put") { div.banner.ok role="status" { "The value is stored." } }
        dl.card {
            dt { "Revision" } dd { (view.revision) }
            dt { "Changed" } dd { (time::of(&view.updated_at, now_ms)) }
            dt { "Expires" } dd { @match &view.expires_at { Some(at) => { (time::of(at, now_ms)) } None => { "never" } } }
            @if let Some(lifetime) = view.lifetime { dt { "Lifetime" } dd { (json!(lifetime).as_str().unwrap_or_default()) } }
            @if let Some(tier) = view.tier { dt { "Tier" } dd { (json!(tier).as_str().unwrap_or_default()) } }
            @if let Some(kind) = &view.content_kind { dt { "Kind" } dd { (text::short(&json!(kind).to_string(), 80)) } }
            @if let Some(salience) = view.salience { dt { "Salience" } dd { (salience) } }
        }
        h2 { "Value" }
        div.card { (tree::tree(&view.value, whole)) }
        @if !whole && view.value.len() > text::SHOWN {
            p { a href={ (value_path(&view.scope, key)) "&whole=1" } { "Show all of it" } }
        }
        @if let Some(links) = links.filter(|it| !it.is_empty()) {
            h2 { "Links to" }
            ul { @for item in links.iter().take(LINKS) {
                li { a href=(value_path(&view.scope, &item.key)) { (text::line(&item.key, 160)) } }
            } }
            @if links.len() > LINKS { p.dim { "The first " (LINKS) " are listed." } }
        }
        @if may_write(&visitor, &view.scope, key) { (acts(&visitor, &view)) }
        (command::same(&visitor.url, &line, &command::Request { method: "GET", path, body: None }))
    };
    Ok(Page { nav: Nav::State, title: key, live: None, body }.shown(&visitor))
}

fn api_path(scope: &str, key: &str) -> String {
    format!("/v1/state/{}/{}", escaped(scope), escaped(key))
}

fn may_write(visitor: &Visitor, scope: &str, key: &str) -> bool {
    visitor.caller.grant.check(Verb::StateWrite, &[Need::State { scope, key }]).is_ok()
}

fn acts(visitor: &Visitor, view: &StateView) -> Markup {
    let line = |verb: &str, value: &str| {
        let (scope, key) = (shell::option("--scope", &view.scope), shell::operand(&view.key));
        format!("moonswarm state {verb}{scope} --if-revision {} {key}{value}", view.revision)
    };
    let hidden = html! {
        (layout::token(visitor))
        input type="hidden" name="scope" value=(view.scope);
        input type="hidden" name="key" value=(view.key);
        input type="hidden" name="revision" value=(view.revision);
    };
    html! {
        div.acts {
            @if view.value.len() <= EDITED {
                details {
                    summary { "Set" }
                    form method="post" action="/ui/state/put" {
                        (hidden)
                        div.field {
                            label for="value" { "Value, as JSON" }
                            p.hint { "Setting it keeps no expiry. It is refused if the value has changed since this page was loaded." }
                            textarea id="value" name="value" rows="8" spellcheck="false" { (view.value.as_str()) }
                        }
                        button.main { "Set the value" }
                        (command::same(&visitor.url, &line("set", " '<json>'"), &command::Request {
                            method: "PUT",
                            path: api_path(&view.scope, &view.key),
                            body: Some(json!({ "value": "…", "if_revision": view.revision }).to_string()),
                        }))
                    }
                }
            }
            details {
                summary.danger { "Delete" }
                form method="post" action="/ui/state/delete" {
                    (hidden)
                    p { "Deletes the value with its links." }
                    button.danger { "Delete the value" }
                    (command::same(&visitor.url, &line("delete", ""), &command::Request {
                        method: "DELETE",
                        path: format!("{}?if_revision={}", api_path(&view.scope, &view.key), view.revision),
                        body: None,
                    }))
                }
            }
        }
    }
}

/// Returns the form of a new value.
pub(super) fn new_form(visitor: &Visitor, scope: &str, prefix: &str) -> Markup {
    html! {
        div.acts {
            details {
                summary { "New value" }
                form method="post" action="/ui/state/put" {
                    (layout::token(visitor))
                    input type="hidden" name="scope" value=(scope);
                    input type="hidden" name="revision" value="0";
                    div.field {
                        label for="new-key" { "Key" }
                        input type="text" id="new-key" name="key" value=(prefix) required maxlength=(MOST_KEY) spellcheck="false";
                    }
                    div.field {
                        label for="new-value" { "Value, as JSON" }
                        textarea id="new-value" name="value" rows="4" spellcheck="false" {}
                    }
                    button.main { "Create the value" }
                    (command::same(&visitor.url, &format!("moonswarm state set{} --if-revision 0 <key> '<json>'", shell::option("--scope", scope)), &command::Request {
                        method: "PUT",
                        path: format!("/v1/state/{}/<key>", escaped(scope)),
                        body: Some(json!({ "value": "…", "if_revision": 0 }).to_string()),
                    }))
                }
            }
        }
    }
}

/// Sets a value, if it is still the one that the form was made for.
pub(in crate::dashboard) async fn put(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Redirect, Problem> {
    let value = Json::parse(fields.text("value").trim()).map_err(|error| {
        Problem::new(Code::MalformedJson, format!("the value is not JSON: {error}"))
    })?;
    let value = value.as_str().to_owned();
    let act = StateAct::Put { value, reducer: Reducer::Overwrite, hints: StoreOptions::default() };
    let (scope, key) = change(&desk, &visitor, &fields, act).await?;
    Ok(Redirect::to(&format!("{}&done=put", value_path(&scope, &key))))
}

/// Deletes a value, if it is still the one that the form was made for.
pub(in crate::dashboard) async fn delete(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Redirect, Problem> {
    let (scope, _) = change(&desk, &visitor, &fields, StateAct::Delete).await?;
    Ok(Redirect::to(&pager::url("/ui/state", &[("scope", &scope), ("done", "delete")])))
}

async fn change(
    desk: &Desk,
    visitor: &Visitor,
    fields: &Fields,
    act: StateAct,
) -> Result<(String, String), Problem> {
    let (scope, key) = (scope_of(fields.text("scope"))?, fields.text("key").to_owned());
    if key.is_empty() || key.len() > MOST_KEY {
        return Err(Problem::new(Code::BadId, format!("a key has 1 to {MOST_KEY} bytes")));
    }
    let revision = fields.text("revision").parse();
    let revision =
        revision.map_err(|_| Problem::new(Code::BadRequest, "the revision is a number"))?;
    let name = scope.to_string();
    let change =
        StateChange { scope: name.clone(), key: key.clone(), if_revision: Some(revision), act };
    desk.engine.stored_state().change_state(&visitor.caller, vec![(scope, change)]).await?;
    Ok((name, key))
}
