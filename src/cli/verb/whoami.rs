//! `whoami`: whose token the other commands use.

use anyhow::Result;
use clap::Args;

use crate::cli::{connect::Start, context::Context, exit::Exit, render::printable};

/// Show the owner and the permissions of the current token
#[derive(Debug, Args)]
pub struct Whoami {}

impl Whoami {
    /// Runs the command.
    ///
    /// # Errors
    /// A token that is not valid, or no daemon.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            let who = at.client.whoami().await?;
            if cx.terminal.json {
                cx.terminal.print_json(&who)?;
                return Ok(Exit::Ok);
            }
            let text = |key: &str| who[key].as_str().map(printable);
            let list = |key: &str| -> Vec<String> {
                let items = who[key].as_array().into_iter().flatten();
                items.filter_map(|it| it.as_str().map(printable)).collect()
            };
            let subject = text("subject").unwrap_or_else(|| "the worker of an attempt".to_owned());
            let mut lines = vec![format!("{subject} ({})", text("role").unwrap_or_default())];
            lines.extend(text("expires_at").map(|at| format!("  until   {at}")));
            lines.extend(text("jti").map(|jti| format!("  id      {jti}")));
            for name in ["scopes", "verbs"] {
                let words = list(name);
                if !words.is_empty() {
                    lines.extend(columns(name, &words, cx.terminal.width()));
                }
            }
            cx.terminal.print(&lines.join("\n"))?;
            Ok(Exit::Ok)
        })
        .await
    }
}

/// A row of many words, on as many lines as the terminal needs.
fn columns(name: &str, words: &[String], width: Option<usize>) -> Vec<String> {
    let mut lines = vec![format!("  {name:<7}")];
    for word in words {
        let last = lines.last_mut().expect("there is a first line");
        let is_full = width.is_some_and(|width| last.len() + 1 + word.len() >= width);
        if is_full && last.len() > 9 {
            lines.push(format!("{:9} {word}", ""));
        } else {
            last.push(' ');
            last.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_words_take_as_many_lines_as_the_terminal_needs() {
        let words: Vec<String> = ["run.read", "run.start", "task.list"].map(str::to_owned).into();
        assert_eq!(columns("verbs", &words, None), ["  verbs   run.read run.start task.list"]);
        let narrow = columns("verbs", &words, Some(30));
        assert_eq!(narrow, ["  verbs   run.read run.start", "          task.list"]);
    }
}
