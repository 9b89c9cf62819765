//! `health`: whether the daemon answers; for the health checks of containers and services.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::cli::{
    client::{Client, Way},
    connect::Owner,
    context::Context,
    exit::Exit,
};

/// Ask the daemon whether it answers; needs no token, and starts none
#[derive(Debug, Args)]
pub struct Health {
    /// The maximum time to wait for the answer
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = crate::cli::values::duration)]
    within: Duration,
}

impl Health {
    /// Runs the command.
    ///
    /// # Errors
    /// Nobody answers.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let client = match (&cx.target.server, Owner::read(&cx.config.data)) {
            (Some(server), _) => {
                let way = Way { ca: cx.target.ca.clone(), ..Way::default() };
                Client::by(&way, server, "")?
            }
            (None, Some(owner)) => owner.client("")?,
            (None, None) => Client::new(&format!("http://{}", cx.config.listen), "")?,
        };
        client.healthy(self.within).await?;
        let url = client.url();
        match cx.terminal.json {
            true => cx.terminal.print_json(&json!({ "status": "ok", "url": url }))?,
            false => cx.terminal.print(&format!("ok: {url}"))?,
        }
        Ok(Exit::Ok)
    }
}
