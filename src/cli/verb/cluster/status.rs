//! `cluster status`: the nodes and the database of a cluster.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use super::options;
use crate::{
    cli::{context::Context, exit::Exit, render::fitted},
    engine::rfc3339,
    store::{
        ClusterStatus, Connections, DatabaseFinding, FindingLevel, NodeRow, Retained, Standbys,
        cluster_status,
    },
};

/// Shows the state of a cluster. Fails if something does not work.
pub fn execute(cx: &Context) -> Result<Exit> {
    let status = cluster_status(&options(cx)?)?;
    if cx.terminal.json {
        cx.terminal.print_json(&view(&status))?;
    } else {
        cx.terminal.print(&text(&status, cx.terminal.width()))?;
    }
    let fails = status.findings.iter().any(|it| it.level == FindingLevel::Fails);
    Ok(if fails { Exit::Failed } else { Exit::Ok })
}

fn view(status: &ClusterStatus) -> Value {
    let node = |it: &NodeRow| {
        json!({
            "node": it.node, "name": it.name, "state": it.state.as_str(), "alive": it.is_alive(),
            "lease_ms": it.lease_ms, "version": it.version, "format": it.format, "clock_ms": it.clock_ms,
            "url": it.url, "started_at": rfc3339(it.started_ms),
        })
    };
    let finding = |it: &DatabaseFinding| json!({ "verdict": verdict(it.level), "says": it.says, "next": it.next });
    let Standbys { synchronous, all, .. } = status.standbys;
    let Connections { used, most, ours } = status.connections;
    let Retained { transaction_s, snapshot, prepared, slots, idle_slots, kept_bytes } =
        status.retained;
    json!({
        "database": status.database,
        "is_cluster": status.is_shared,
        "incarnation": status.incarnation,
        "format": status.format,
        "oldest": status.oldest,
        "feature": status.feature,
        "held": status.held,
        "known": status.known,
        "driver": status.driver().map(|it| &it.name),
        "nodes": status.nodes.iter().map(node).collect::<Vec<_>>(),
        "durability": {
            "configured": status.asked, "found": status.standbys.durability(),
            "standbys": all, "synchronous": synchronous,
        },
        "clock_ms": status.clock_ms,
        "connections": { "used": used, "max": most, "moonswarm": ours },
        "oldest_transaction_s": transaction_s,
        "oldest_snapshot": snapshot,
        "prepared_transactions": prepared,
        "slots": { "all": slots, "idle": idle_slots, "kept_bytes": kept_bytes },
        "findings": status.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}

fn verdict(level: FindingLevel) -> &'static str {
    match level {
        FindingLevel::Fine => "ok",
        FindingLevel::Risk => "warn",
        FindingLevel::Fails => "fail",
    }
}

fn text(status: &ClusterStatus, width: Option<usize>) -> String {
    let mut out = String::new();
    let mut line = |what: &str, says: String| {
        let _never_fails = writeln!(out, "{what:<12} {says}");
    };
    line("database", status.database.clone());
    let ClusterStatus { format, feature, held, oldest, .. } = status;
    let held = if *held { ", held" } else { "" };
    line(
        "format",
        format!("{format}, written up to {feature}{held}; releases from format {oldest} on"),
    );
    line("incarnation", status.incarnation.clone().unwrap_or_else(|| "none yet".to_owned()));
    line("driver", status.driver().map_or("none", |it| &it.name).to_owned());
    let Standbys { synchronous, all, .. } = status.standbys;
    line(
        "durability",
        format!(
            "{} (configured: {}); {all} standbys, {synchronous} synchronous",
            status.standbys.durability().as_str(),
            status.asked.as_str()
        ),
    );
    let Connections { used, most, ours } = status.connections;
    line("connections", format!("{used} of {most}, {ours} by moonswarm"));
    let Retained { transaction_s, snapshot, slots, idle_slots, kept_bytes, .. } = status.retained;
    line(
        "transactions",
        format!("the oldest {transaction_s} s, a snapshot {snapshot} transactions old"),
    );
    line("slots", format!("{slots}, {idle_slots} idle, which keep {} MiB", kept_bytes >> 20));
    line("clock", format!("the database's is {} ms ahead of this machine's", status.clock_ms));
    out.push('\n');
    if status.nodes.is_empty() {
        out.push_str("no nodes\n");
    } else {
        let rows = status.nodes.iter().map(|it| {
            let clock = it.clock_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms"));
            let (name, state) = (it.name.clone(), it.state.as_str().to_owned());
            let lease = format!("{} ms", it.lease_ms);
            vec![
                name,
                state,
                lease,
                clock,
                it.version.clone(),
                it.format.to_string(),
                it.url.clone(),
            ]
        });
        let heads = ["node", "state", "lease", "clock", "version", "format", "url"];
        out.push_str(fitted(width, &heads, rows).trim_end());
        out.push('\n');
    }
    for it in &status.findings {
        let _never_fails = write!(out, "\n{:<4}  {}\n", verdict(it.level), it.says);
        if let Some(next) = &it.next {
            let _never_fails = writeln!(out, "      next: {next}");
        }
    }
    out.truncate(out.trim_end().len());
    out
}
