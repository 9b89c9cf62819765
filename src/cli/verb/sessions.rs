//! `sessions`: lists, opens and closes the sessions of operators.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::cli::{
    connect::{Connection, Start},
    context::Context,
    exit::Exit,
    render::{age, fitted, printable},
};

/// List, open or close sessions of operators
#[derive(Debug, Args)]
pub struct Sessions {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the open sessions (the default)
    #[command(visible_alias = "list")]
    Ls,
    /// Open a session; its token is printed once
    Open(Open),
    /// Close a session; its tasks go to others, or wait
    Close {
        /// The session's id
        session: String,
    },
}

#[derive(Debug, Args)]
struct Open {
    /// Operator that the session acts as
    #[arg(default_value = "main-ai")]
    operator: String,
    /// Lifetime of its token; a connected session renews it
    #[arg(long, default_value = "24h")]
    ttl: String,
    /// A scope (repeatable) [default: your own]
    #[arg(long = "scope")]
    scopes: Vec<String>,
    /// A verb that is granted only by name, such as `run.source` (repeatable)
    #[arg(long = "extra-verb", value_name = "VERB")]
    extra_verbs: Vec<String>,
    /// Send prompts inside the frames
    #[arg(long)]
    direct: bool,
}

impl Sessions {
    /// Runs the command.
    ///
    /// # Errors
    /// No such operator or session, or a token that may not do that.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let start = match &self.action {
            Some(Action::Open(_)) => Start::Attached,
            Some(Action::Close { .. } | Action::Ls) | None => Start::Existing,
        };
        cx.with(start, async |at| match &self.action {
            Some(Action::Open(open)) => open.execute(cx, at).await,
            Some(Action::Close { session }) => {
                at.client.close_session(session).await?;
                match cx.terminal.json {
                    true => cx.terminal.print_json(&json!({"closed": session}))?,
                    false => cx.terminal.say(&format!("closed {session}")),
                }
                Ok(Exit::Ok)
            }
            Some(Action::Ls) | None => list(cx, at).await,
        })
        .await
    }
}

impl Open {
    async fn execute(&self, cx: &Context, at: &Connection) -> Result<Exit> {
        let mut body = json!({"ttl": self.ttl, "direct": self.direct});
        if !self.scopes.is_empty() {
            body["scopes"] = json!(self.scopes);
        }
        if !self.extra_verbs.is_empty() {
            body["extra_verbs"] = json!(self.extra_verbs);
        }
        let opened = at.client.open_session(&self.operator, &body).await?;
        if cx.terminal.json {
            cx.terminal.print_json(&opened)?;
        } else {
            cx.terminal.print(&opened.token)?;
            let ws = format!("{}{}", at.client.url().replacen("http", "ws", 1), opened.ws);
            let (session, until) = (&opened.session, &opened.expires_at);
            cx.terminal.say(&format!("{session} until {until}: {ws}"));
        }
        Ok(Exit::Ok)
    }
}

async fn list(cx: &Context, at: &Connection) -> Result<Exit> {
    let sessions = at.client.sessions().await?;
    if cx.terminal.json {
        cx.terminal.print_json(&sessions)?;
        return Ok(Exit::Ok);
    }
    if sessions.is_empty() {
        cx.terminal.say("no sessions; `moonswarm sessions open main-ai` opens one");
        return Ok(Exit::Ok);
    }
    let now = cx.clock.now_ms();
    let rows = sessions.iter().map(|it| {
        vec![
            it.id.clone(),
            it.operator.clone(),
            if it.connected { "connected" } else { "away" }.to_owned(),
            it.open_tasks.to_string(),
            it.unacknowledged.to_string(),
            age(&it.created_at, now),
            printable(&it.opened_by),
        ]
    });
    let head = ["session", "operator", "is", "tasks", "unseen", "age", "opened by"];
    cx.terminal.print(&fitted(cx.terminal.width(), &head, rows))?;
    Ok(Exit::Ok)
}
