//! `doctor`: what could keep this machine from running moonswarm well.

mod agents;
mod deep;
mod upgrade;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use clap::Args;

use crate::{
    cli::{
        client::Client,
        connect::{Connection, Owner, Start},
        context::Context,
        database,
        exit::Exit,
    },
    environment::{Environments, Text},
    host::doctor::{
        self, DoctorVerdict, Line, directory, disk, enforces, network, operators, own_secrets,
        retention, secrets, watched,
    },
    store::Durability,
};

const DAEMON: &str = "daemon";

/// Check this machine and the data directory
#[derive(Debug, Args)]
pub struct Doctor {
    /// Read all stored data once, and list what is damaged
    #[arg(long)]
    deep: bool,
    /// Report what an upgrade to this program would change, the disk space it needs, and which open
    /// runs would diverge; changes nothing
    #[arg(long, value_name = "BINARY", conflicts_with = "deep")]
    upgrade: Option<PathBuf>,
    /// The PostgreSQL database to look at, postgres://HOST/NAME
    #[arg(long, value_name = "ADDRESS", env = database::VARIABLE, hide_env_values = true)]
    store: Option<String>,
    /// Commits that a failover of that database may lose: synchronous (none), or asynchronous [default: synchronous]
    #[arg(long, value_name = "KIND", env = "MOONSWARM_DURABILITY")]
    pub durability: Option<Durability>,
}

impl Doctor {
    /// The database that the flag or its variable names.
    pub fn store(&self) -> Option<Text> {
        self.store.as_deref().map(database::named)
    }

    /// Runs the command.
    ///
    /// # Errors
    /// A closed stdout; what is wrong with the machine is no error here.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        if let Some(binary) = &self.upgrade {
            return tell(cx, &upgrade::check(cx, binary).await);
        }
        let data = &cx.config.data;
        let mut lines = vec![Line::new(DoctorVerdict::Ok, "version", env!("CARGO_PKG_VERSION"))];
        lines.push(directory(data));
        lines.extend(own_secrets(data));
        let (said, at) = daemon(cx).await;
        lines.push(said);
        lines.push(disk(data));
        if let Some(address) = cx.config.store.as_ref().filter(|_| cx.target.server.is_none()) {
            lines.extend(doctor::database(&database::options(address, cx.config.durability)?));
        }
        lines.push(retention(data, cx.config.retention.unwrap_or_default()));
        // A daemon may listen elsewhere than the configuration of this command says.
        let listen = at.unwrap_or(cx.config.listen);
        lines.extend(network(listen, &cx.config.door(), data, &cx.clock));
        let environments = cx.config.environments.clone();
        let environments = Arc::new(Environments::new(environments, data, cx.clock.clone()));
        lines.extend(operators(&cx.config.operators, &environments).await);
        lines.extend(enforces(&environments));
        lines.extend(secrets(&environments).await);
        lines.extend(watched(&cx.config.watch));
        lines.extend(agents::check(cx).await);
        lines.extend(programs());
        lines.push(terminal(cx));
        if self.deep {
            lines.extend(deep::check(cx).await);
        }
        tell(cx, &lines)
    }
}

fn tell(cx: &Context, lines: &[Line]) -> Result<Exit> {
    if cx.terminal.json {
        cx.terminal.print_json(lines)?;
    } else {
        let width = cx.terminal.width().unwrap_or(usize::MAX);
        cx.terminal.print(&lines.iter().map(|line| shown(line, width)).collect::<String>())?;
    }
    let failed = lines.iter().any(|line| line.verdict == DoctorVerdict::Fail);
    Ok(if failed { Exit::Failed } else { Exit::Ok })
}

/// A line for a person, wrapped to the width of the terminal.
fn shown(line: &Line, width: usize) -> String {
    let verdict = match line.verdict {
        DoctorVerdict::Ok => "ok  ",
        DoctorVerdict::Warn => "warn",
        DoctorVerdict::Fail => "fail",
    };
    // The command to run next stays whole: a terminal's own wrap can be copied as one line.
    let next = line.next.as_ref().map_or(String::new(), |next| format!("      next: {next}\n"));
    let text = format!("{verdict}  {}: {}", line.what, line.says);
    let options = textwrap::Options::new(width).subsequent_indent("      ");
    format!("{}\n{next}", textwrap::fill(&text, options))
}

/// The way to an owner that answers.
async fn answering(owner: &Owner, data: &Path) -> Option<Client> {
    let token = fs::read_to_string(data.join("admin.token")).unwrap_or_default();
    let client = owner.client(token.trim()).ok()?;
    client.ready(Duration::from_secs(2)).await.ok()?;
    Some(client)
}

/// Examines if the data directory can be used: by its owner, or else by opening it. Returns the
/// address of an owner that answers as well.
async fn daemon(cx: &Context) -> (Line, Option<SocketAddr>) {
    let owner = Owner::read(&cx.config.data).filter(|_| cx.target.server.is_none());
    if let Some(owner) = owner
        && answering(&owner, &cx.config.data).await.is_some()
    {
        return (running(&owner), address_of(&owner.url));
    }
    (reached(cx).await, None)
}

/// Describes an owner that answers.
fn running(owner: &Owner) -> Line {
    let says = format!("{} answers (pid {}, {})", owner.url, owner.pid, owner.version);
    match owner.version == env!("CARGO_PKG_VERSION") {
        true => Line::new(DoctorVerdict::Ok, DAEMON, says),
        false => Line::new(DoctorVerdict::Warn, DAEMON, format!("{says}, another version"))
            .next("restart the daemon with this program"),
    }
}

/// Returns the address in the URL of a daemon.
fn address_of(url: &str) -> Option<SocketAddr> {
    let (_, address) = url.split_once("://")?;
    address.trim_end_matches('/').parse().ok()
}

/// Examines the daemon that the command line names, or the data directory.
async fn reached(cx: &Context) -> Line {
    if cx.target.server.is_none() && !cx.config.data.is_dir() {
        return Line::new(DoctorVerdict::Ok, DAEMON, "none; commands run without one");
    }
    match Connection::open(&cx.target, &cx.config, Start::Existing, cx.terminal).await {
        Err(error) => Line::new(DoctorVerdict::Fail, DAEMON, format!("{error:#}"))
            .next("is another process using it? is it of a newer version?"),
        Ok(at) => {
            let says = match at.is_embedded() {
                true => "none; the data directory opens and its format is known".to_owned(),
                false => format!("{} answers", at.client.url()),
            };
            let ready = at.client.ready(Duration::from_secs(5)).await;
            at.close().await;
            match ready {
                Ok(()) => Line::new(DoctorVerdict::Ok, DAEMON, says),
                Err(error) => Line::new(DoctorVerdict::Fail, DAEMON, format!("{error:#}")),
            }
        }
    }
}

fn programs() -> Vec<Line> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        |name: &str| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|it| it.is_file());
    let look = |name: &'static str, without: &str| match found(name) {
        Some(file) => Line::new(DoctorVerdict::Ok, name, file.display().to_string()),
        None => Line::new(DoctorVerdict::Warn, name, format!("not in PATH; {without}")),
    };
    vec![
        look("python3", "examples/worker.py needs it, the built-in worker stands in"),
        look("git", "repo-report walks the directory instead and shows no churn"),
    ]
}

fn terminal(cx: &Context) -> Line {
    let says = match (cx.terminal.live, cx.terminal.asks) {
        (true, true) => "a live tree, and people are asked",
        (true, false) => "a live tree; stdin is no terminal, so nobody is asked",
        (false, _) => {
            "none: plain lines, and `run` exits with 9 where a person or a signal is needed"
        }
    };
    Line::new(DoctorVerdict::Ok, "terminal", says)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_daemon_is_in_its_url() {
        let at = |url| address_of(url).map(|it| it.to_string());
        assert_eq!(at("http://127.0.0.1:7793").as_deref(), Some("127.0.0.1:7793"));
        assert_eq!(at("https://[::1]:7793/").as_deref(), Some("[::1]:7793"));
        assert_eq!(at("https://swarm.example.com"), None);
    }

    #[test]
    fn a_long_line_is_wrapped_to_the_terminal_and_the_next_command_stays_whole() {
        let line =
            Line::new(DoctorVerdict::Warn, "disk", "word ".repeat(40).trim()).next("x ".repeat(60));
        let text = shown(&line, 80);
        let (long, short): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.len() > 80);
        assert_eq!(long, [format!("      next: {}", "x ".repeat(60))]);
        assert!(short.len() == 3 && short[1].starts_with("      word"), "{text}");
        assert_eq!(shown(&line, usize::MAX).lines().count(), 2, "a file is never wrapped");
    }
}
