//! The command line as a whole: global flags, the verbs, and what happens around each.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::{Args, CommandFactory, Parser, Subcommand};

use super::{
    beside::Beside,
    connect::Target,
    context::Context,
    exit::{Exit, Stop, judge},
    report_worker,
    terminal::Terminal,
    verb,
};
use crate::{
    clock::Clock,
    config::{Layer, LogFormat},
    environment, telemetry,
};

const EXIT_CODES: &str = "\
First steps: moonswarm init, then moonswarm run hello.lua who=moon.

Exit codes: 0 ok, 1 run failed, 2 usage, 3 blueprint invalid, 4 not found, 5 denied, 6 conflict,
7 timed out, 8 canceled, 9 waiting for a person or a signal, 10 budget or limit,
69 server unavailable, 130 interrupted.";

/// The time limit for the runtime's shutdown when a command is done.
const LET_GO: Duration = Duration::from_millis(200);

/// Durable swarms from Lua blueprints
#[derive(Debug, Parser)]
#[command(name = "moonswarm", version, after_help = EXIT_CODES, arg_required_else_help = true)]
struct App {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Everywhere")]
struct Global {
    /// Connect to this daemon
    #[arg(long, global = true, value_name = "URL", env = "MOONSWARM_URL")]
    server: Option<String>,
    /// The token to use with it
    #[arg(long, global = true, env = "MOONSWARM_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The file that has the token
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MOONSWARM_TOKEN_FILE",
        hide_short_help = true
    )]
    token_file: Option<PathBuf>,
    /// Certificates (PEM) to trust with it beside the machine's
    #[arg(long, global = true, value_name = "FILE", env = "MOONSWARM_CA", hide_short_help = true)]
    ca: Option<PathBuf>,
    /// The data directory [default: .moonswarm]
    #[arg(long, global = true, value_name = "DIR", env = "MOONSWARM_DATA")]
    data: Option<PathBuf>,
    /// The configuration file [default: the nearest moonswarm.toml to the blueprint, and the one here]
    #[arg(long, global = true, value_name = "FILE", env = "MOONSWARM_CONFIG")]
    config: Option<PathBuf>,
    /// Print output as JSON
    #[arg(long, global = true)]
    json: bool,
    /// Filter for log lines: `info`, `moonswarm=debug,warn`
    #[arg(long, global = true, value_name = "FILTER", env = "MOONSWARM_LOG")]
    log: Option<String>,
    /// Format of log lines
    #[arg(long, global = true, value_enum, env = "MOONSWARM_LOG_FORMAT")]
    log_format: Option<LogFormat>,
    /// Number of shards; 0 means one per core
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "MOONSWARM_SHARDS",
        value_parser = crate::cli::values::shards
    )]
    shards: Option<usize>,
    /// After repeated crashes at startup, recover runs one at a time
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "MOONSWARM_SAFE_MODE",
        value_parser = clap::builder::BoolishValueParser::new()
    )]
    safe_mode: Option<bool>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Init(verb::Init),
    Run(verb::Run),
    Check(verb::Check),
    Graph(verb::Graph),
    Repl(verb::Repl),
    Agents(verb::Agents),
    Blueprints(verb::Blueprints),
    Test(verb::Test),
    Serve(verb::Serve),
    Open(verb::Open),
    Ps(verb::Ps),
    Show(verb::Show),
    Logs(verb::Logs),
    #[command(name = "result")]
    Output(verb::Output),
    Artifacts(verb::Artifacts),
    Cancel(verb::Cancel),
    Pause(verb::Pause),
    Resume(verb::Resume),
    Signal(verb::Signal),
    Triggers(verb::Triggers),
    Query(verb::Query),
    Fork(verb::Fork),
    Rerun(verb::Rerun),
    Diff(verb::Diff),
    Bulk(verb::Bulk),
    Replay(verb::Replay),
    Inspect(verb::Inspect),
    Export(verb::Export),
    Import(verb::Import),
    ImportMse(verb::ImportMse),
    Inbox(verb::Inbox),
    Answer(verb::Answer),
    Approve(verb::Approve),
    Reject(verb::Reject),
    Expire(verb::Expire),
    Link(verb::Link),
    Operators(verb::Operators),
    Cluster(verb::Cluster),
    Nodes(verb::Nodes),
    Stats(verb::Stats),
    Events(verb::Events),
    Sessions(verb::Sessions),
    State(verb::State),
    Seat(verb::Seat),
    Advise(verb::Advise),
    Worker(verb::Worker),
    Token(verb::Token),
    Whoami(verb::Whoami),
    Mcp(verb::Mcp),
    Skills(verb::Skills),
    Key(verb::Key),
    Audit(verb::Audit),
    Host(verb::Host),
    Doctor(verb::Doctor),
    Health(verb::Health),
    Backup(verb::Backup),
    Restore(verb::Restore),
    Store(verb::Store),
    Gc(verb::Gc),
    Delete(verb::Delete),
    Erase(verb::Erase),
    Doc(verb::Doc),
    Completions(verb::Completions),
    Version(verb::Version),
    #[command(hide = true)]
    Manual(verb::Manual),
    #[command(hide = true)]
    Formats(verb::Formats),
    /// Work for the blueprint repo-report where there is no Python; started by it, not by people
    #[command(hide = true)]
    ReportWorker,
}

impl App {
    fn layer(&self) -> Layer {
        let (listen, blueprints, lease, connections) = match &self.verb {
            Verb::Serve(serve) => {
                (serve.listen, serve.blueprints.clone(), serve.lease, serve.connections)
            }
            _ => (None, None, None, None),
        };
        let (memory, tls, insecure) = match &self.verb {
            Verb::Serve(serve) => (serve.memory, serve.tls(), serve.insecure.then_some(true)),
            _ => (None, None, None),
        };
        Layer {
            memory,
            run_memory: None,
            fallback: None,
            data: self.global.data.clone(),
            store: match &self.verb {
                Verb::Serve(serve) => serve.store(),
                Verb::Store(store) => store.store(),
                Verb::Doctor(doctor) => doctor.store(),
                Verb::Nodes(nodes) => nodes.store(),
                Verb::Cluster(cluster) => cluster.store(),
                _ => None,
            },
            durability: match &self.verb {
                Verb::Serve(serve) => serve.durability,
                Verb::Doctor(doctor) => doctor.durability,
                Verb::Cluster(cluster) => cluster.durability(),
                _ => None,
            },
            cluster: match &self.verb {
                Verb::Serve(serve) => serve.cluster.layer(),
                Verb::Nodes(nodes) => nodes.cluster(),
                _ => None,
            },
            listen,
            blueprints,
            shards: self.global.shards,
            safe_mode: self.global.safe_mode,
            lease,
            connections,
            hosts: None,
            origins: None,
            tls,
            proxies: None,
            insecure,
            people: None,
            log: self.global.log.clone(),
            log_format: self.global.log_format,
            metrics: None,
            retention: None,
            secrets: None,
            vault: None,
            environments: None,
            hide_data: None,
            watch: None,
            effects: None,
            operators: None,
            webhooks: None,
            middleware: None,
        }
    }

    /// The blueprint, or the directory of blueprints, that the verb is about.
    fn subject(&self) -> Option<&Path> {
        match &self.verb {
            Verb::Run(run) => run.file(),
            Verb::Graph(graph) => Some(graph.file()),
            Verb::Repl(repl) => repl.file(),
            _ => None,
        }
    }

    fn context(&self) -> Result<Context> {
        let Global { server, token, token_file, config, json, .. } = &self.global;
        let token = match (token, token_file) {
            (None, Some(file)) => {
                let text = std::fs::read_to_string(file);
                let text = text.with_context(|| format!("read {}", file.display()))?;
                Some(text.trim().to_owned())
            }
            (token, _) => token.clone(),
        };
        let beside = Beside::new(self.layer(), config.as_deref())?;
        let config = beside.config();
        let config = match (self.subject(), &self.verb, &config.blueprints) {
            (Some(path), ..) => beside.config_of(path)?,
            (None, Verb::Serve(_), Some(dir)) => beside.config_of(dir)?,
            (None, ..) => config,
        };
        Ok(Context {
            config,
            beside,
            target: Target { server: server.clone(), token, ca: self.global.ca.clone() },
            terminal: Terminal::of_process(*json),
            clock: Clock::system(),
        })
    }

    async fn execute(self, cx: &Context) -> Result<Exit> {
        match self.verb {
            Verb::Init(it) => it.execute(cx),
            Verb::Run(it) => it.execute(cx).await,
            Verb::Check(it) => it.execute(cx),
            Verb::Graph(it) => it.execute(cx),
            Verb::Repl(it) => it.execute(cx).await,
            Verb::Agents(it) => it.execute(cx),
            Verb::Blueprints(it) => it.execute(cx).await,
            Verb::Test(it) => it.execute(cx).await,
            Verb::Serve(it) => it.execute(cx).await,
            Verb::Open(it) => it.execute(cx).await,
            Verb::Ps(it) => it.execute(cx).await,
            Verb::Show(it) => it.execute(cx).await,
            Verb::Logs(it) => it.execute(cx).await,
            Verb::Output(it) => it.execute(cx).await,
            Verb::Artifacts(it) => it.execute(cx).await,
            Verb::Cancel(it) => it.execute(cx).await,
            Verb::Pause(it) => it.execute(cx).await,
            Verb::Resume(it) => it.execute(cx).await,
            Verb::Signal(it) => it.execute(cx).await,
            Verb::Triggers(it) => it.execute(cx).await,
            Verb::Query(it) => it.execute(cx).await,
            Verb::Fork(it) => it.execute(cx).await,
            Verb::Rerun(it) => it.execute(cx).await,
            Verb::Diff(it) => it.execute(cx).await,
            Verb::Bulk(it) => it.execute(cx).await,
            Verb::Replay(it) => it.execute(cx).await,
            Verb::Inspect(it) => it.execute(cx).await,
            Verb::Export(it) => it.execute(cx).await,
            Verb::Import(it) => it.execute(cx).await,
            Verb::ImportMse(it) => it.execute(cx),
            Verb::Inbox(it) => it.execute(cx).await,
            Verb::Answer(it) => it.execute(cx).await,
            Verb::Approve(it) => it.execute(cx).await,
            Verb::Reject(it) => it.execute(cx).await,
            Verb::Expire(it) => it.execute(cx).await,
            Verb::Link(it) => it.execute(cx).await,
            Verb::Operators(it) => it.execute(cx).await,
            Verb::Cluster(it) => it.execute(cx),
            Verb::Nodes(it) => it.execute(cx).await,
            Verb::Stats(it) => it.execute(cx).await,
            Verb::Events(it) => it.execute(cx).await,
            Verb::State(it) => it.execute(cx).await,
            Verb::Sessions(it) => it.execute(cx).await,
            Verb::Seat(it) => it.execute(cx).await,
            Verb::Advise(it) => it.execute(cx).await,
            Verb::Worker(it) => it.execute(cx).await,
            Verb::Token(it) => it.execute(cx).await,
            Verb::Whoami(it) => it.execute(cx).await,
            Verb::Mcp(it) => it.execute(cx).await,
            Verb::Skills(it) => it.execute(cx),
            Verb::Key(it) => it.execute(cx).await,
            Verb::Audit(it) => it.execute(cx).await,
            Verb::Host(it) => it.execute(cx).await,
            Verb::Doctor(it) => it.execute(cx).await,
            Verb::Health(it) => it.execute(cx).await,
            Verb::Backup(it) => it.execute(cx).await,
            Verb::Restore(it) => it.execute(cx),
            Verb::Store(it) => it.execute(cx),
            Verb::Gc(it) => it.execute(cx).await,
            Verb::Delete(it) => it.execute(cx).await,
            Verb::Erase(it) => it.execute(cx).await,
            Verb::Doc(it) => it.execute(cx),
            Verb::Completions(it) => it.execute(cx, Self::command()),
            Verb::Version(it) => it.execute(cx),
            Verb::Manual(it) => it.execute(cx, Self::command()),
            Verb::Formats(it) => it.execute(cx),
            Verb::ReportWorker => report_worker::execute().await,
        }
    }
}

/// The whole program: reads the command line, does the verb, says what went wrong.
pub fn main() -> ExitCode {
    // Before anything else: a child that confines itself reads no configuration and has no threads.
    if let Some(code) = environment::confined() {
        return code;
    }
    if let Some(code) = environment::init() {
        return code;
    }
    let app = match App::try_parse() {
        Ok(app) => app,
        Err(error) => return misread(&error),
    };
    let json = app.global.json;
    match start(app) {
        Ok(exit) => exit.into(),
        Err(error) => {
            let (exit, stop) = judge(&error);
            if let Some(stop) = stop {
                Terminal::of_process(json).complain(&stop);
            }
            exit.into()
        }
    }
}

/// Answers a command line that cannot be read, or that asks for help.
fn misread(error: &clap::Error) -> ExitCode {
    let flags = std::env::args_os().skip(1).take_while(|it| it != "--");
    if error.use_stderr() && flags.into_iter().any(|it| it == "--json") {
        let text = error.render().to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        let stop = Stop::usage(message).next("`moonswarm --help` shows the commands");
        Terminal::of_process(true).complain(&stop);
        return Exit::Usage.into();
    }
    // A closed stdout or stderr leaves nobody to tell.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Usage as u8))
}

fn start(app: App) -> Result<Exit> {
    let cx = app.context()?;
    let default = match &app.verb {
        Verb::Serve(_) => "info",
        // What happens to runs is shown by the command itself.
        _ => "warn,moonswarm::runs=off",
    };
    telemetry::init(cx.config.log.as_deref().unwrap_or(default), cx.config.log_format)
        .map_err(|error| Stop::usage(error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    let done = runtime.block_on(app.execute(&cx));
    // A read of stdin may still be waiting for a line that never comes.
    runtime.shutdown_timeout(LET_GO);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn parse(line: &str) -> App {
        App::try_parse_from(line.split(' ')).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent() {
        App::command().debug_assert();
    }

    #[test]
    fn flags_may_stand_before_and_after_the_verb() {
        let app = parse("moonswarm --data a serve --listen 127.0.0.1:1 --json");
        let config = Config::from(app.layer());
        assert_eq!(config.data, std::path::Path::new("a"));
        assert_eq!(config.listen.port(), 1);
        assert!(app.global.json);
    }

    #[test]
    fn a_worker_takes_everything_after_the_dashes() {
        let app = parse("moonswarm worker --queue q -- sh -c true");
        assert!(matches!(app.verb, Verb::Worker(_)));
        assert!(App::try_parse_from(["moonswarm", "worker", "--queue", "q"]).is_err());
    }

    #[test]
    fn detaching_and_waiting_exclude_each_other() {
        let both = ["moonswarm", "run", "x", "--detach", "--wait", "1s"];
        assert!(App::try_parse_from(both).is_err());
        parse("moonswarm run repo-report.lua path=. n=3 --wait 20m");
    }
}
