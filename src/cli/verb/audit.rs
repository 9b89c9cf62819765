//! `audit`: lists the audit log, and verifies that it is the one that was written.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    cli::{
        connect::{Connection, Start},
        context::Context,
        exit::{Exit, Stop},
        render::fitted,
    },
    engine::AuditView,
    middleware::{Chained, GENESIS},
    protocol::text::counted,
};

/// List the audit log, or verify its integrity
#[derive(Debug, Args)]
pub struct Audit {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Verify the hash of every line
    Verify {
        /// The hash that was noted as the last one, some time ago: it has to be there still
        #[arg(long)]
        head: Option<String>,
    },
    /// List the lines, oldest first
    #[command(visible_alias = "list")]
    Ls {
        /// Only lines after this number
        #[arg(long, default_value_t = 0)]
        after: u64,
    },
}

impl Audit {
    /// Runs the command.
    ///
    /// # Errors
    /// A log that is not the one that was written, and a token that may not read it.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| match &self.action {
            Action::Verify { head } => verify(cx, at, head.as_deref()).await,
            Action::Ls { after } => list(cx, at, *after).await,
        })
        .await
    }
}

async fn verify(cx: &Context, at: &Connection, head: Option<&str>) -> Result<Exit> {
    let (mut seq, mut hash) = (0, GENESIS.to_owned());
    let mut seen = head.is_none_or(|head| head == GENESIS);
    loop {
        let page = at.client.audit(seq).await?;
        for AuditView { seq: number, at, line, hash: own } in page.items {
            let line = Chained { seq: number, at, line, hash: own };
            line.follows(seq, &hash).map_err(|error| tampered(&error.to_string()))?;
            seen |= head == Some(line.hash.as_str());
            (seq, hash) = (line.seq, line.hash);
        }
        if page.next_cursor.is_none() {
            break;
        }
    }
    if !seen {
        let text = "verify the audit log: the noted hash is not there; lines were cut off, or \
                    it is another log";
        return Err(tampered(text));
    }
    if cx.terminal.json {
        cx.terminal.print_json(&json!({ "lines": seq, "head": hash }))?;
    } else {
        cx.terminal.print(&format!("{}, whole; the last hash is {hash}", counted(seq, "line")))?;
    }
    Ok(Exit::Ok)
}

fn tampered(message: &str) -> anyhow::Error {
    Stop::new(Exit::Failed, format!("failed to {message}")).into()
}

async fn list(cx: &Context, at: &Connection, after: u64) -> Result<Exit> {
    let mut after = after;
    let mut lines: Vec<AuditView> = Vec::new();
    loop {
        let page = at.client.audit(after).await?;
        after = page.items.last().map_or(after, |line| line.seq);
        lines.extend(page.items);
        if page.next_cursor.is_none() {
            break;
        }
    }
    if cx.terminal.json {
        cx.terminal.print_json(&lines)?;
        return Ok(Exit::Ok);
    }
    let rows = lines.iter().map(|it| {
        let line: Value = serde_json::from_str(&it.line).unwrap_or_default();
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let what = format!("{}.{}", text("boundary"), text("event"));
        let who = [text("agent"), text("target")].join(" ").trim().to_owned();
        vec![it.seq.to_string(), it.at.clone(), what, who, text("principal"), text("outcome")]
    });
    cx.terminal.print(&fitted(
        cx.terminal.width(),
        &["line", "at", "what", "who", "for", "outcome"],
        rows,
    ))?;
    Ok(Exit::Ok)
}
