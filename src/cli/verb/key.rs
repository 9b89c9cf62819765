//! `key`: changes the keys behind tokens and handles.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::cli::{
    connect::{Connection, Start},
    context::Context,
    exit::Exit,
};

/// Rotate the keys of tokens and worker handles
#[derive(Debug, Args)]
pub struct Key {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create new keys; the previous ones stay valid for the grace period
    Rotate(Rotate),
}

#[derive(Debug, Args)]
struct Rotate {
    /// Key to rotate: signing or handles (repeatable) [default: both]
    #[arg(long = "key", value_name = "KEY")]
    keys: Vec<String>,
    /// Time for which the previous keys stay valid [default: 7d]
    #[arg(long, conflicts_with = "now")]
    grace: Option<String>,
    /// Invalidate the previous keys at once, because one of them leaked
    #[arg(long)]
    now: bool,
}

impl Key {
    /// Asks the daemon for it.
    ///
    /// # Errors
    /// A token that may not do that, or a grace that is none.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let Action::Rotate(rotate) = &self.action;
        cx.with(Start::Existing, async |at| rotate.execute(cx, at).await).await
    }
}

impl Rotate {
    async fn execute(&self, cx: &Context, at: &Connection) -> Result<Exit> {
        let rotated = at.client.rotate_keys(&self.body()).await?;
        if cx.terminal.json {
            cx.terminal.print_json(&rotated)?;
            return Ok(Exit::Ok);
        }
        let said = |key: &str| rotated[key].as_str().unwrap_or_default().to_owned();
        cx.terminal.say(&format!("the signing key is {}", said("kid")));
        match self.now {
            true => cx
                .terminal
                .say("everything made with the previous keys is refused; mint new tokens"),
            false => cx
                .terminal
                .say(&format!("the previous keys stay valid until {}", said("old_until"))),
        }
        Ok(Exit::Ok)
    }

    fn body(&self) -> Value {
        let mut body = json!({ "now": self.now });
        if !self.keys.is_empty() {
            body["keys"] = json!(self.keys);
        }
        if let Some(grace) = &self.grace {
            body["grace"] = json!(grace);
        }
        body
    }
}
