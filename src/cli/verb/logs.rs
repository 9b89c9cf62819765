//! `logs`: the events of a run.

use anyhow::Result;
use clap::Args;

use crate::{
    cli::{
        connect::Start,
        context::Context,
        exit::Exit,
        render::{LiveText, Story, cut, said_line},
        resolve,
    },
    engine::EventView,
};

/// Show the events of a run
#[derive(Debug, Args)]
pub struct Logs {
    /// The run: an id, a unique prefix of one, or `last`
    run: String,
    /// Follow the run until it ends
    #[arg(short, long)]
    follow: bool,
    /// Only events after this number
    #[arg(long, default_value_t = 0)]
    after: u32,
}

impl Logs {
    /// Runs the command.
    ///
    /// # Errors
    /// No such run, or a connection that breaks.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let id = resolve::run(&at.client, &self.run).await?;
            let run = at.client.run(id).await?;
            let (mut after, last) = (self.after, run.last_event);
            let mut said = LiveText::default();
            let colors = console::colors_enabled();
            let mut story = Story::new(colors);
            loop {
                let done = |after: u32| !self.follow && after >= last;
                if done(after) {
                    return Ok(Exit::Ok);
                }
                let mut events = at.client.events(id, after).await?;
                while let Some(event) = events.next().await? {
                    after = event.seq.unwrap_or(after);
                    self.print(cx, &event, &mut said, &mut story)?;
                    if done(after) {
                        return Ok(Exit::Ok);
                    }
                }
                // The stream also ends where the daemon lets go of it; the number goes on.
                let run = at.client.run(id).await?;
                if run.status.is_ended() && after >= run.last_event {
                    return Ok(Exit::Ok);
                }
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        })
        .await
    }

    fn print(
        &self,
        cx: &Context,
        it: &EventView,
        said: &mut LiveText,
        story: &mut Story,
    ) -> std::io::Result<()> {
        if cx.terminal.json {
            return cx.terminal.print_json_line(it);
        }
        let print = |line: &str| match cx.terminal.width() {
            Some(width) => cx.terminal.print_painted(&cut(line, width)),
            None => cx.terminal.print_painted(line),
        };
        // What a model says is shown line by line, not piece by piece.
        for line in said.hear(it) {
            print(&said_line(it, &line))?;
        }
        match LiveText::is_piece(it) {
            true => Ok(()),
            false => print(&story.line(it)),
        }
    }
}
