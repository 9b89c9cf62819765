//! `/ui/state`: the scopes that have state, the keys of one as a tree, and a search.

use axum::{extract::State, response::Response};
use maud::{Markup, html};

use crate::{
    dashboard::{
        component::{
            bytes::size,
            command, pager,
            state_path::{scope_of, value_path},
            text, time,
        },
        desk::Desk,
        fields::Fields,
        layout::{Nav, Page},
        visitor::Visitor,
    },
    door::Problem,
    engine::{ScopeView, StateItem, TreeItem, shell},
    protocol::Scope,
    token::Verb,
};

/// The number of scopes, or results, of a page.
const LIMIT: usize = 50;

/// Shows the scopes, or what one has.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let body = match fields.given("scope") {
        Some(scope) => of_scope(&desk, &visitor, &fields, scope.trim()).await?,
        None => all(&desk, &visitor, &fields).await?,
    };
    Ok(Page { nav: Nav::State, title: "State", live: None, body }.shown(&visitor))
}

async fn all(desk: &Desk, visitor: &Visitor, fields: &Fields) -> Result<Markup, Problem> {
    let (prefix, cursor) = (fields.text("prefix"), fields.given("cursor").map(str::to_owned));
    let is_first = cursor.is_none();
    let state = desk.engine.stored_state();
    let page = state.scopes(&visitor.caller, prefix, cursor, LIMIT).await?;
    let mut line = "moonswarm state scopes".to_owned();
    if !prefix.is_empty() {
        line.push_str(&format!(" {}", shell::operand(prefix)));
    }
    Ok(html! {
        h1 { "State" }
        form.card.filters method="get" action="/ui/state" role="search" {
            div {
                label for="prefix" { "Scopes that begin with" }
                input type="text" id="prefix" name="prefix" value=(prefix) placeholder="custom:" spellcheck="false";
            }
            button { "Filter" }
        }
        form.card.filters method="get" action="/ui/state" {
            div {
                label for="scope" { "Go to a scope" }
                input type="text" id="scope" name="scope" placeholder="global" spellcheck="false" required;
            }
            button { "Open" }
        }
        div.card.flush {
            @if page.items.is_empty() { div.empty { "No scope that this token reaches has a stored value: " code { "moonswarm state set answer 42" } " stores one, and so does " code { "ctx.state:set(\"key\", value)" } " in a flow." } }
            @else {
                table.stack {
                    thead { tr { th { "Scope" } th.num { "Keys" } th.num { "Size" } } }
                    tbody { @for it in &page.items { (scope_row(it)) } }
                }
            }
            (pager::links("/ui/state", &[("prefix", prefix)], is_first, page.next_cursor.as_deref()))
        }
        (command::same(&visitor.url, &line, &command::Request {
            method: "GET",
            path: pager::url("/v1/state", &[("prefix", prefix)]),
            body: None,
        }))
    })
}

fn scope_row(it: &ScopeView) -> Markup {
    html! {
        tr {
            td data-label="Scope" { a href=(pager::url("/ui/state", &[("scope", &it.scope)])) { (text::line(&it.scope, 120)) } }
            td.num data-label="Keys" { (it.keys) @if it.more { "+" } }
            td.num data-label="Size" { (size(it.bytes)) @if it.more { "+" } }
        }
    }
}

async fn of_scope(
    desk: &Desk,
    visitor: &Visitor,
    fields: &Fields,
    scope: &str,
) -> Result<Markup, Problem> {
    let (query, prefix) = (fields.text("q").trim(), fields.text("prefix"));
    let parsed = scope_of(scope)?;
    let (found, (verb, word), api) = if query.is_empty() {
        let found = tree(desk, visitor, fields, &parsed, prefix).await?;
        (found, ("ls", prefix), ("prefix", prefix))
    } else {
        let found = search(desk, visitor, &parsed, query, prefix).await?;
        (found, ("search", query), ("q", query))
    };
    let path = format!("/v1/state/{}", crate::dashboard::headers::escaped(scope));
    let flags = shell::option("--scope", scope);
    let line = format!("moonswarm state {verb}{flags} {}", shell::operand(word));
    Ok(html! {
        h1 { "State of " (text::line(scope, 120)) }
        p { a href="/ui/state" { "All scopes" } }
        @match fields.given("done") {
            Some("put") => { div.banner.ok role="status" { "The value is stored." } }
            Some("delete") => { div.banner.ok role="status" { "The value is deleted." } }
            _ => {}
        }
        form.card.filters method="get" action="/ui/state" role="search" {
            input type="hidden" name="scope" value=(scope);
            div {
                label for="q" { "Words in values" }
                input type="search" id="q" name="q" value=(query);
            }
            div {
                label for="prefix" { "Keys that begin with" }
                input type="text" id="prefix" name="prefix" value=(prefix) spellcheck="false";
            }
            button.main { "Search" }
        }
        (crumbs(scope, prefix))
        (found)
        @if visitor.may(Verb::StateWrite) { (super::state_value::new_form(visitor, scope, prefix)) }
        (command::same(&visitor.url, &line, &command::Request {
            method: "GET",
            path: pager::url(&path, &[api]),
            body: None,
        }))
    })
}

/// Returns links to the folders above a prefix.
fn crumbs(scope: &str, prefix: &str) -> Markup {
    let ends = prefix.match_indices('/').map(|(at, _)| at + 1);
    let folders = ends.scan(0, |begin, end| Some((std::mem::replace(begin, end), end)));
    html! {
        @if !prefix.is_empty() {
            nav.line aria-label="Folders" {
                a href=(pager::url("/ui/state", &[("scope", scope)])) { "all keys" }
                @for (begin, end) in folders {
                    a href=(pager::url("/ui/state", &[("scope", scope), ("prefix", &prefix[..end])])) { (text::short(&prefix[begin..end], 80)) }
                }
            }
        }
    }
}

async fn tree(
    desk: &Desk,
    visitor: &Visitor,
    fields: &Fields,
    scope: &Scope,
    prefix: &str,
) -> Result<Markup, Problem> {
    let cursor = fields.given("cursor").map(str::to_owned);
    let (is_first, name) = (cursor.is_none(), scope.to_string());
    let page = desk.engine.stored_state().tree(&visitor.caller, scope, prefix, cursor).await?;
    let query = [("scope", name.as_str()), ("prefix", prefix)];
    Ok(html! {
        div.card.flush {
            @if page.items.is_empty() { div.empty { "No key begins like this." } }
            @else {
                table.stack {
                    thead { tr { th { "Key" } th.num { "Revision" } th { "Changed" } th { "Expires" } } }
                    tbody { @for item in &page.items {
                        @match item {
                            TreeItem::Folder(folder) => { tr {
                                td data-label="Key" colspan="4" {
                                    a href=(pager::url("/ui/state", &[("scope", &name), ("prefix", folder)])) {
                                        "▸ " (text::line(&folder[prefix.len()..], 160))
                                    }
                                }
                            } }
                            TreeItem::Key(item) => { (key_row(&name, prefix, item, visitor.now_ms)) }
                        }
                    } }
                }
            }
            (pager::links("/ui/state", &query, is_first, page.next_cursor.as_deref()))
        }
    })
}

fn key_row(scope: &str, prefix: &str, item: &StateItem, now_ms: u64) -> Markup {
    let shown = item.key.strip_prefix(prefix).filter(|rest| !rest.is_empty()).unwrap_or(&item.key);
    html! {
        tr {
            td data-label="Key" { a href=(value_path(scope, &item.key)) { (text::line(shown, 160)) } }
            td.num data-label="Revision" { @if let Some(revision) = item.revision { (revision) } }
            td data-label="Changed" { @if let Some(at) = &item.updated_at { (time::of(at, now_ms)) } }
            td data-label="Expires" { @if let Some(at) = &item.expires_at { (time::of(at, now_ms)) } @else { "—" } }
        }
    }
}

async fn search(
    desk: &Desk,
    visitor: &Visitor,
    scope: &Scope,
    query: &str,
    prefix: &str,
) -> Result<Markup, Problem> {
    let state = desk.engine.stored_state();
    let hits = state.search_state(&visitor.caller, scope, query, prefix, LIMIT).await?;
    let name = scope.to_string();
    Ok(html! {
        div.card {
            @if hits.is_empty() { div.empty { "No value has all of these words. A word that ends with * stands for all that begin like it." } }
            @for hit in &hits {
                div.hit {
                    a href=(value_path(&name, &hit.key)) { (text::line(&hit.key, 160)) }
                    @if let Some(snippet) = &hit.snippet { div.small { (marked(snippet, query)) } }
                }
            }
            @if hits.len() == LIMIT { p.dim { "The best " (LIMIT) " are listed." } }
        }
    })
}

/// Returns a part of a value with the words that were found marked: they are in brackets.
fn marked(snippet: &str, query: &str) -> Markup {
    let words: Vec<String> = query
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let is_one = |inner: &str| words.iter().any(|word| inner.to_lowercase().starts_with(word));
    let mut rest = snippet;
    let mut pieces: Vec<(&str, bool)> = Vec::new();
    while let Some(open) = rest.find('[') {
        let inner = &rest[open + 1..];
        match inner.find([']', '[']).filter(|end| inner[*end..].starts_with(']')) {
            Some(end) if is_one(&inner[..end]) => {
                pieces.push((&rest[..open], false));
                pieces.push((&inner[..end], true));
                rest = &inner[end + 1..];
            }
            _ => {
                pieces.push((&rest[..=open], false));
                rest = inner;
            }
        }
    }
    pieces.push((rest, false));
    html! {
        bdi { @for (piece, is_found) in pieces {
            @if is_found { mark { (text::marked(piece)) } } @else { (text::marked(piece)) }
        } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_that_were_asked_for_are_marked() {
        let shown = marked("a [list] of [Moons] and <b>[x", "moon* y").into_string();
        assert_eq!(shown, "<bdi>a [list] of <mark>Moons</mark> and &lt;b&gt;[x</bdi>");
    }
}
