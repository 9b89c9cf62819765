//! `seat`: gives an operator's seat in a run to a session.

use anyhow::Result;
use clap::Args;

use super::settle;
use crate::cli::{connect::Start, context::Context, exit::Exit, resolve};

/// Give an operator's seat in a run to a session
#[derive(Debug, Args)]
pub struct Seat {
    /// The run: an id, a unique prefix of one, or `last`
    run: String,
    /// The operator
    operator: String,
    /// The session's id
    session: String,
}

impl Seat {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run or session, a session of another operator, or a run that has ended.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, &self.run).await?;
            let taken = at.client.seat(id, &self.operator, &self.session).await?;
            match cx.terminal.json {
                true => cx.terminal.print_json(&taken)?,
                false => {
                    let Self { operator, session, .. } = self;
                    let run = at.client.run(id).await?;
                    cx.terminal.say(&match run.delegate.as_deref() == Some(session.as_str()) {
                        true => format!("{session} takes every task of {id}"),
                        false => format!("{session} holds the seat of {operator} in {id}"),
                    });
                }
            }
            settle(cx, at, id).await?;
            Ok(Exit::Ok)
        })
        .await
    }
}
