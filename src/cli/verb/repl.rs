//! `repl`: a line of Lua at a time, each a durable run of its own.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    blueprint::Bundle,
    cli::{
        compile,
        connect::{Connection, Start},
        context::Context,
        exit::{Exit, Stop},
        follow::{End, Follow},
        render::printable,
        terminal::Questions,
    },
    store::RunStatus,
};

const ENTRY: &str = "repl.lua";

/// Run Lua line by line: each line is a run, with `ctx` and the agents of a blueprint
#[derive(Debug, Args)]
pub struct Repl {
    /// The blueprint whose agents the lines can run; without one there is the agent `echo`
    file: Option<PathBuf>,
}

impl Repl {
    /// The blueprint whose agents there are.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Does it, until the input ends or a Ctrl-C at the prompt.
    ///
    /// # Errors
    /// A blueprint that cannot be read, a daemon that goes away.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        let base = self.file.as_deref().map(compile::load).transpose()?;
        let first = Session { base, values: Map::new() };
        cx.terminal.say(&first.greeting(cx)?);
        cx.with(Start::Fresh, async |at| {
            let mut session = first;
            let mut questions = Questions::new();
            let mut interrupt = signal(SignalKind::interrupt())?;
            loop {
                let line = tokio::select! {
                    line = questions.ask(">") => line?,
                    _ = interrupt.recv() => None,
                };
                match line.as_deref() {
                    Some("") => {}
                    None | Some("exit" | "quit") => break,
                    Some(line) => session.line(cx, at, line, &mut interrupt).await?,
                }
            }
            Ok(Exit::Ok)
        })
        .await
    }
}

/// The state between two lines.
struct Session {
    base: Option<Bundle>,
    values: Map<String, Value>,
}

impl Session {
    /// The commands and the agents.
    fn greeting(&self, cx: &Context) -> Result<String> {
        let found = compile::agents(&self.bundle("return nil")?, &cx.config).unwrap_or_default();
        let names: Vec<_> = found.iter().map(|(name, _)| printable(name)).collect();
        let agents = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let more = match self.base {
            Some(_) => "",
            None => "; `moonswarm repl FILE` has those of a blueprint",
        };
        Ok(format!(
            "each line of Lua is a run: ctx:run(\"echo\", {{ a = 1 }})\n\
             x = … keeps a value, _ is the last one, Ctrl-D ends\n\
             agents: {agents}{more}"
        ))
    }

    async fn line(
        &mut self,
        cx: &Context,
        at: &Connection,
        line: &str,
        interrupt: &mut Signal,
    ) -> Result<()> {
        let (name, code) = assignment(line);
        // What is an expression is returned; anything else is run as it stands.
        let expression = self.bundle(&format!("return {code}"))?;
        let valid = |bundle: &Bundle| {
            let found = compile::compile(bundle, &cx.config).findings;
            found
                .into_iter()
                .filter(|it| it.severity == compile::Severity::Error)
                .collect::<Vec<_>>()
        };
        let mut bundle = expression;
        let mut errors = valid(&bundle);
        if !errors.is_empty() && name.is_none() {
            let statement = self.bundle(code)?;
            let others = valid(&statement);
            if others.is_empty() {
                (bundle, errors) = (statement, others);
            }
        }
        if let Some(error) = errors.first() {
            cx.terminal.say(&error.message);
            return Ok(());
        }
        let mut body = compile::program(&bundle);
        body["input"] = Value::Object(self.values.clone());
        body["trigger"] = json!({"kind": "repl"});
        let run = match at.client.start_watched(&body).await {
            Ok(run) => run,
            Err(error) => {
                cx.terminal.say(&format!("{error:#}"));
                return Ok(());
            }
        };
        let follow = Follow {
            client: &at.client,
            terminal: cx.terminal,
            clock: &cx.clock,
            leave_to_people: false,
            ask: at.is_embedded() && cx.terminal.asks,
            wait: None,
            leaves_tree: false,
        };
        match follow.until_end(run, interrupt).await? {
            End::Ended(run) if run.status == RunStatus::Completed => {
                let value = run.output.map(|output| output.to_value()).unwrap_or_default();
                if !value.is_null() {
                    cx.terminal.print_value(&value)?;
                }
                self.values.insert(name.unwrap_or("_").to_owned(), value);
            }
            End::Ended(run) => cx.terminal.say(&super::failure(&run)),
            End::Interrupted(run) => {
                at.client.steer(run.id, "cancel", &json!({"reason": "Ctrl-C"})).await?;
            }
            End::People(_) | End::TimedOut(_) => {}
        }
        Ok(())
    }

    /// A blueprint whose flow is `code`, with the values so far and the agents of the base.
    fn bundle(&self, code: &str) -> Result<Bundle> {
        let mut files: BTreeMap<String, Arc<str>> = BTreeMap::new();
        let agents = match &self.base {
            None => "{ echo = { operator = \"echo\" } }".to_owned(),
            Some(base) => {
                files.extend(
                    base.files().iter().map(|(path, text)| (path.clone(), Arc::clone(text))),
                );
                if base.entry().ends_with(".json") {
                    return Err(
                        Stop::usage("a flow as JSON has no agents that lines could run").into()
                    );
                }
                format!("require(\"./{}\").agents", base.entry())
            }
        };
        let names: Vec<&str> = self.values.keys().map(String::as_str).collect();
        let locals: String =
            names.iter().map(|name| format!("local {name} = input.{name} ")).collect();
        let source = format!(
            "local swarm = require(\"swarm\")\nreturn swarm.blueprint {{ name = \"repl\", edition = 2, agents = {agents}, \
             flow = function(ctx, input) {locals}\n{code}\nend }}\n"
        );
        files.insert(ENTRY.to_owned(), source.into());
        Ok(Bundle::from_files(files, Some(ENTRY))?)
    }
}

/// `x = …` keeps a value under a name.
fn assignment(line: &str) -> (Option<&str>, &str) {
    let word = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    match line.split_once('=') {
        Some((name, code)) if word(name.trim()) && !code.starts_with('=') => {
            (Some(name.trim()), code.trim())
        }
        _ => (None, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Layer};

    #[test]
    fn a_line_is_an_expression_an_assignment_or_a_statement() {
        assert_eq!(assignment("x = 1 + 2"), (Some("x"), "1 + 2"));
        assert_eq!(assignment("x == 1"), (None, "x == 1"));
        assert_eq!(assignment("ctx:run(\"a\", { b = 1 })"), (None, "ctx:run(\"a\", { b = 1 })"));
    }

    #[test]
    fn a_line_has_the_agents_of_the_base_and_the_values_so_far() {
        let source = "local swarm = require(\"swarm\") return swarm.blueprint { name = \"b\", \
                      agents = { e = { operator = \"echo\" } }, flow = function(ctx) return ctx:run(\"e\") end }";
        let base = Bundle::from_source("b.lua", source).unwrap();
        let values = Map::from_iter([("x".to_owned(), json!(1))]);
        let session = Session { base: Some(base), values };
        let bundle = session.bundle("return ctx:run(\"e\", { x = x })").unwrap();
        let found = compile::compile(&bundle, &Config::from(Layer::default())).findings;
        assert_eq!(found, []);
        let broken = session.bundle("return local").unwrap();
        assert!(!compile::compile(&broken, &Config::from(Layer::default())).findings.is_empty());
    }
}
