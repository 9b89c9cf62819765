//! `/ui/system`: whether the host is well, its configuration and layers, the audit log, a backup,
//! the keys.

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use maud::{Markup, html};
use tokio_util::io::ReaderStream;

use super::keys;
use crate::{
    dashboard::{
        again,
        component::{bytes::size, command, json, text, time},
        desk::Desk,
        fields::Fields,
        fragment::allowed,
        layout::{self, Nav, Page},
        visitor::Visitor,
    },
    door::Problem,
    engine::{
        AuditView, ChainView, ConfigItem, DoctorLine, DoctorVerdict, HostView, LayerView, NodeView,
    },
    token::Verb,
};

/// The number of lines of the audit log.
const LINES: usize = 100;
/// The maximum number of nodes that are shown.
const NODES: usize = 50;
/// The maximum number of lines of the audit log that a page verifies.
const VERIFIED: u64 = 100_000;
/// The number of bytes of a backup that are read at a time.
const CHUNK: usize = 256 << 10;

/// Shows the page.
pub(in crate::dashboard) async fn show(
    State(desk): State<Desk>,
    visitor: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let (upkeep, caller) = (desk.engine.upkeep(), &visitor.caller);
    let host = upkeep.host(caller).await?;
    let layers = upkeep.layers(caller, None).await?;
    let nodes = upkeep.nodes(caller)?;
    let audit = allowed(upkeep.audit(caller, 0, LINES).await)?;
    let verdict = match fields.given("verify") {
        Some(_) => allowed(upkeep.verify_audit(caller, VERIFIED).await)?,
        None => None,
    };
    let body = html! {
        h1 { "System" }
        @match &host.reason {
            None => { div.banner.ok { "The host takes work." } }
            Some(reason) => { div.banner.bad role="alert" { "Not ready: " (text::line(reason, 500)) } }
        }
        (of_host(&host, &visitor))
        @if !nodes.is_empty() { (of_nodes(&nodes, &visitor)) }
        @if let Some(lines) = &host.doctor { (of_doctor(lines)) }
        @if let Some(config) = host.config.as_ref().filter(|it| !it.is_empty()) { (of_config(config)) }
        h2 { "Layers around tasks and state" }
        (of_layers(&layers))
        @if let Some(audit) = audit.filter(|it| !it.items.is_empty()) {
            (of_audit(&audit.items, audit.next_cursor.is_some(), verdict.as_ref(), visitor.now_ms))
        }
        (backup_form(&visitor))
        (keys::form(&visitor))
        (command::same(&visitor.url, "moonswarm host", &command::Request {
            method: "GET",
            path: "/v1/host".to_owned(),
            body: None,
        }))
    };
    Ok(Page { nav: Nav::System, title: "System", live: None, body }.shown(&visitor))
}

fn of_host(host: &HostView, visitor: &Visitor) -> Markup {
    let limit = |value: u64, shown: String| if value == 0 { "no limit".to_owned() } else { shown };
    let kept = host.retention;
    html! {
        dl.card {
            dt { "Version" } dd { (host.version) }
            dt { "Up since" } dd { (time::of(&host.started_at, visitor.now_ms)) }
            dt { "Address" } dd { code { (visitor.url) } }
            dt { "Shards" } dd { (host.shards) }
            dt { "Open runs" } dd { (host.open_runs) }
            dt { "Memory for runs" } dd { (size(host.memory_budget)) }
            @if let Some(bytes) = host.database_bytes { dt { "Database" } dd { (size(bytes)) } }
            @if let Some(bytes) = host.disk_free_bytes { dt { "Free on its disk" } dd { (size(bytes)) } }
            dt { "Ended runs are kept" } dd {
                "age: " (limit(kept.age_ms, time::took(kept.age_ms))) ", count: " (limit(kept.runs, kept.runs.to_string()))
                ", size: " (limit(kept.bytes, size(kept.bytes)))
            }
            dt { "API" } dd { code { "/openapi.json" } ", " a href="/docs" { "/docs" } }
        }
    }
}

fn of_nodes(nodes: &[NodeView], visitor: &Visitor) -> Markup {
    html! {
        h2 { "Nodes" }
        (node_table(nodes, visitor.now_ms))
        (command::same(&visitor.url, "moonswarm nodes", &command::Request {
            method: "GET",
            path: "/v1/nodes".to_owned(),
            body: None,
        }))
    }
}

/// Returns the nodes of a cluster: the one that has the runs, and those that stand by.
fn node_table(nodes: &[NodeView], now_ms: u64) -> Markup {
    let pill = |state: &str| match state {
        "up" => ("status ok", "✓ up"),
        "draining" => ("status warn", "… draining"),
        _ => ("status", "○ standby"),
    };
    html! {
        div.card.flush { table.stack {
            thead { tr { th { "Node" } th { "State" } th { "Lent runs" } th { "Lease" } th { "Version" } th { "Joined" } th { "Address" } } }
            tbody { @for node in nodes.iter().take(NODES) {
                @let (class, word) = pill(&node.state);
                tr {
                    td data-label="Node" { (text::line(&node.name, 80)) }
                    td data-label="State" { span class=(class) { (word) } }
                    td data-label="Lent runs" { (node.runs) }
                    td data-label="Lease" {
                        @match u64::try_from(node.lease_ms) {
                            Ok(ms) => { (time::took(ms)) " left" }
                            Err(_) => { span class="status bad" { "✕ late by " (time::took(node.lease_ms.unsigned_abs())) } }
                        }
                    }
                    td data-label="Version" { (text::short(&node.version, 40)) }
                    td data-label="Joined" { (time::of(&node.started_at, now_ms)) }
                    td data-label="Address" { code { (text::short(&node.url, 200)) } }
                }
            } }
        } }
    }
}

fn of_doctor(lines: &[DoctorLine]) -> Markup {
    let word = |verdict| match verdict {
        DoctorVerdict::Ok => ("status ok", "✓ ok"),
        DoctorVerdict::Warn => ("status warn", "! warn"),
        DoctorVerdict::Fail => ("status bad", "✕ fail"),
    };
    let bad = lines.iter().filter(|it| it.verdict != DoctorVerdict::Ok).count();
    html! {
        h2 { "What doctor says" }
        details.card open[bad > 0] {
            summary { @if bad == 0 { "All " (lines.len()) " checks are well" } @else { (bad) " of " (lines.len()) " checks need a look" } }
            table.stack {
                thead { tr { th { "Verdict" } th { "What" } th { "Says" } } }
                tbody { @for it in lines {
                    @let (class, shown) = word(it.verdict);
                    tr {
                        td data-label="Verdict" { span class=(class) { (shown) } }
                        td data-label="What" { (text::line(&it.what, 80)) }
                        td data-label="Says" { (text::line(&it.says, 600))
                            @if let Some(next) = &it.next { div.small.dim { "next: " (text::line(next, 400)) } } }
                    }
                } }
            }
        }
    }
}

fn of_config(config: &[ConfigItem]) -> Markup {
    html! {
        h2 { "Effective configuration" }
        details.card {
            summary { (config.len()) " settings" }
            table.stack {
                thead { tr { th { "Setting" } th { "Value" } th { "From" } } }
                tbody { @for it in config {
                    tr {
                        td data-label="Setting" { code { (it.key) } }
                        td.clip data-label="Value" { (text::line(&it.value.to_string(), 400)) }
                        td data-label="From" { (it.origin) }
                    }
                } }
            }
            p.small.dim { "Secrets are names. A flag may have come from its environment variable." }
        }
    }
}

fn of_layers(layers: &[LayerView]) -> Markup {
    html! {
        div.card.flush {
            @if layers.is_empty() { div.empty { "None." } }
            @else {
                table.stack {
                    thead { tr { th { "Boundary" } th { "Layer" } th { "Class" } th { "From" } th { "Settings" } } }
                    tbody { @for it in layers {
                        tr {
                            td data-label="Boundary" { (it.boundary) }
                            td data-label="Layer" { (text::line(&it.name, 80)) }
                            td data-label="Class" { (it.class) }
                            td data-label="From" { (it.from) }
                            td data-label="Settings" { @if let Some(settings) = &it.settings { (json::tree(settings, false)) } }
                        }
                    } }
                }
            }
        }
    }
}

fn of_audit(lines: &[AuditView], more: bool, verdict: Option<&ChainView>, now_ms: u64) -> Markup {
    html! {
        h2 { "Audit log" }
        @match verdict {
            None => { p { a href="/ui/system?verify=1" { "Verify its hashes" } } }
            Some(it) => {
                @if let Some(problem) = &it.problem { div.banner.bad role="alert" { "It is not what was written: " (text::line(problem, 400)) } }
                @else { div.banner.ok role="status" {
                    (it.lines) " lines fit" @if !it.whole { ", and there are more: " code { "moonswarm audit verify" } } ". The last hash is " code { (it.head) }
                } }
            }
        }
        div.card.flush tabindex="0" {
            table {
                thead { tr { th.num { "#" } th { "When" } th { "What" } } }
                tbody { @for it in lines {
                    tr { td.num { (it.seq) } td { (time::of(&it.at, now_ms)) } td.clip.mono { (text::short(&it.line, 400)) } }
                } }
            }
        }
        @if more { p.dim { "The first " (LINES) " lines; " code { "moonswarm audit" } " has all." } }
    }
}

fn backup_form(visitor: &Visitor) -> Markup {
    html! {
        @if visitor.caller.grant.role == crate::token::Role::Admin && visitor.may(Verb::HostRead) {
            h2 { "Backup" }
            div.acts {
                details {
                    summary { "Back up now" }
                    form method="post" action="/ui/system/backup" {
                        (layout::token(visitor))
                        p { "Downloads the database as it is now, for " code { "moonswarm restore" } ". Keys are not in it." }
                        (again::field("backup-token"))
                        button.main { "Download it" }
                        (command::same(&visitor.url, "moonswarm backup <file>", &command::Request {
                            method: "GET",
                            path: "/v1/backup".to_owned(),
                            body: None,
                        }))
                    }
                }
            }
        }
    }
}

/// Downloads the database, with the token that the form carries.
pub(in crate::dashboard) async fn backup(
    State(desk): State<Desk>,
    _: Visitor,
    fields: Fields,
) -> Result<Response, Problem> {
    let caller = again::caller(&desk, &fields)?;
    let (file, size) = desk.engine.upkeep().backup(&caller).await?;
    let stream = ReaderStream::with_capacity(tokio::fs::File::from_std(file), CHUNK);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/vnd.sqlite3")),
        (header::CONTENT_LENGTH, HeaderValue::from(size)),
        (
            header::CONTENT_DISPOSITION,
            HeaderValue::from_static("attachment; filename=\"moonswarm-backup.db\""),
        ),
    ];
    Ok((headers, Body::from_stream(stream)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_shown_with_their_state_and_a_lease_that_is_late() {
        let node = |name: &str, state: &str, lease_ms| NodeView {
            node: 1,
            name: name.into(),
            state: state.into(),
            runs: 7,
            version: "0.1.0".into(),
            url: "https://<a>".into(),
            lease_ms,
            started_at: "2026-01-31T08:00:00.000Z".into(),
        };
        let nodes =
            [node("a", "up", 4_000), node("b", "draining", 10), node("c", "standby", -2_000)];
        let shown = node_table(&nodes, 1_780_000_000_000).into_string();
        for text in ["✓ up", "… draining", "○ standby", "4.0 s left", "late by 2.0 s", "&lt;a&gt;"]
        {
            assert!(shown.contains(text), "{text}: {shown}");
        }
    }
}
