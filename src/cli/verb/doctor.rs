//! `doctor`: what could keep this machine from running moonswarm well.

mod agents;
mod deep;
mod upgrade;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use clap::Args;
use futures::future::join_all;
use serde::Serialize;

use crate::{
    cli::{
        client::Client,
        connect::{Connection, Owner, Start, Target},
        context::Context,
        exit::Exit,
    },
    config::Config,
    engine::Retention,
    environment::{self, Environments},
    host,
    operator::Declared,
};

const LOW_DISK: u64 = 1 << 30;
const FULL_DISK: u64 = 64 << 20;

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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Line {
    verdict: Verdict,
    what: &'static str,
    says: String,
    next: Option<String>,
}

impl Line {
    fn new(verdict: Verdict, what: &'static str, says: impl Into<String>) -> Self {
        Self { verdict, what, says: says.into(), next: None }
    }

    fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }
}

impl Doctor {
    /// Runs the command.
    ///
    /// # Errors
    /// A closed stdout; what is wrong with the machine is no error here.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        if let Some(binary) = &self.upgrade {
            return tell(cx, &upgrade::check(cx, binary).await);
        }
        let data = &cx.config.data;
        let mut lines = vec![Line::new(Verdict::Ok, "version", env!("CARGO_PKG_VERSION"))];
        lines.push(directory(data));
        lines.extend(["admin.token", "key"].into_iter().filter_map(|name| secret(data, name)));
        lines.push(daemon(cx).await);
        lines.push(disk(data));
        lines.push(retention(cx));
        lines.extend(operators(&cx.config.operators).await);
        lines.extend(enforces(cx));
        lines.extend(secrets(cx).await);
        lines.extend(watched(cx));
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
    let failed = lines.iter().any(|line| line.verdict == Verdict::Fail);
    Ok(if failed { Exit::Failed } else { Exit::Ok })
}

/// A line for a person, wrapped to the width of the terminal.
fn shown(line: &Line, width: usize) -> String {
    let verdict = match line.verdict {
        Verdict::Ok => "ok  ",
        Verdict::Warn => "warn",
        Verdict::Fail => "fail",
    };
    // The command to run next stays whole: a terminal's own wrap can be copied as one line.
    let next = line.next.as_ref().map_or(String::new(), |next| format!("      next: {next}\n"));
    let text = format!("{verdict}  {}: {}", line.what, line.says);
    let options = textwrap::Options::new(width).subsequent_indent("      ");
    format!("{}\n{next}", textwrap::fill(&text, options))
}

fn directory(data: &Path) -> Line {
    const WHAT: &str = "data directory";
    let name = data.display();
    match fs::metadata(data) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Line::new(Verdict::Ok, WHAT, format!("{name} is not there yet; the first run makes it"))
        }
        Err(error) => Line::new(Verdict::Fail, WHAT, format!("{name}: {error}"))
            .next("--data DIR names another"),
        Ok(meta) if !meta.is_dir() => {
            Line::new(Verdict::Fail, WHAT, format!("{name} is not a directory"))
                .next("--data DIR names another")
        }
        Ok(meta) if meta.permissions().mode() & 0o022 != 0 => {
            Line::new(Verdict::Warn, WHAT, format!("others can write to {name}"))
                .next(format!("chmod go-w {name}"))
        }
        Ok(_) => Line::new(Verdict::Ok, WHAT, name.to_string()),
    }
}

/// A file that only its owner may read.
fn secret(data: &Path, name: &'static str) -> Option<Line> {
    let file = data.join(name);
    let mode = fs::metadata(&file).ok()?.permissions().mode() & 0o777;
    Some(match mode & 0o077 {
        0 => Line::new(Verdict::Ok, name, "only you can read it"),
        _ => Line::new(Verdict::Fail, name, format!("others can read it (mode {mode:o})"))
            .next(format!("chmod 600 {}", file.display())),
    })
}

/// The way to an owner that answers.
async fn answering(owner: &Owner, data: &Path) -> Option<Client> {
    let token = fs::read_to_string(data.join("admin.token")).unwrap_or_default();
    let client = Client::new(&owner.url, token.trim()).ok()?;
    client.ready(Duration::from_secs(2)).await.ok()?;
    Some(client)
}

/// Returns true if the data directory can be used: by its owner, or else by opening it.
async fn daemon(cx: &Context) -> Line {
    const WHAT: &str = "daemon";
    let Config { data, .. } = &cx.config;
    let named = cx.target.server.clone();
    let owner = Owner::read(data);
    if let Some(owner) = owner.as_ref().filter(|_| named.is_none())
        && answering(owner, data).await.is_some()
    {
        let says = format!("{} answers (pid {}, {})", owner.url, owner.pid, owner.version);
        return match owner.version == env!("CARGO_PKG_VERSION") {
            true => Line::new(Verdict::Ok, WHAT, says),
            false => Line::new(Verdict::Warn, WHAT, format!("{says}, another version"))
                .next("restart the daemon with this program"),
        };
    }
    if named.is_none() && !data.is_dir() {
        return Line::new(Verdict::Ok, WHAT, "none; commands run without one");
    }
    let target = Target { server: named, token: cx.target.token.clone() };
    match Connection::open(&target, &cx.config, Start::Existing, cx.terminal).await {
        Err(error) => Line::new(Verdict::Fail, WHAT, format!("{error:#}"))
            .next("is another process using it? is it of a newer version?"),
        Ok(at) => {
            let says = match at.is_embedded() {
                true => "none; the data directory opens and its format is known".to_owned(),
                false => format!("{} answers", at.client.url()),
            };
            let ready = at.client.ready(Duration::from_secs(5)).await;
            at.close().await;
            match ready {
                Ok(()) => Line::new(Verdict::Ok, WHAT, says),
                Err(error) => Line::new(Verdict::Fail, WHAT, format!("{error:#}")),
            }
        }
    }
}

fn disk(data: &Path) -> Line {
    const WHAT: &str = "disk";
    let dir = if data.is_dir() { data } else { Path::new(".") };
    let free = match rustix::fs::statvfs(dir) {
        Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
        Err(error) => return Line::new(Verdict::Warn, WHAT, error.to_string()),
    };
    let says = format!("{} MiB free", free >> 20);
    match free {
        0..FULL_DISK => Line::new(Verdict::Fail, WHAT, says).next("free disk space"),
        FULL_DISK..LOW_DISK => Line::new(Verdict::Warn, WHAT, says).next("free disk space"),
        _ => Line::new(Verdict::Ok, WHAT, says),
    }
}

/// Reports the retention policy of this configuration, and the size of the database.
fn retention(cx: &Context) -> Line {
    let Retention { age_ms, runs, bytes } = cx.config.retention;
    let limit = |set: bool, text: String| if set { text } else { "no limit".to_owned() };
    let size = fs::metadata(cx.config.data.join("moonswarm.db")).map_or(0, |file| file.len());
    Line::new(
        Verdict::Ok,
        "retention",
        format!(
            "ended runs are kept; age: {}, count: {}, size: {}; the database has {} MiB",
            limit(age_ms > 0, format!("{:.1} days", age_ms as f64 / 86_400_000.0)),
            limit(runs > 0, format!("{runs} runs")),
            limit(bytes > 0, format!("{} MiB", bytes >> 20)),
            size >> 20,
        ),
    )
}

/// Each operator, and whether it could be used from here.
async fn operators(declared: &Declared) -> Vec<Line> {
    let known = host::known_operators(declared, environment::Config::default());
    let own: BTreeMap<_, _> = declared.iter().collect();
    // Each may have to ask somebody: all are asked at once.
    let lines = known.names().map(|(name, kind)| {
        let settings = own.get(name).copied();
        async move {
            let named = format!("{name} ({kind})");
            match settings {
                None => Line::new(Verdict::Ok, "operator", format!("{named} is built in")),
                Some(settings) => match settings.inspect().await {
                    Ok(says) => Line::new(Verdict::Ok, "operator", format!("{named} {says}")),
                    Err(why) => Line::new(Verdict::Fail, "operator", format!("{named}: {why}"))
                        .next(format!("see [operators.{name}] in the configuration file")),
                },
            }
        }
    });
    join_all(lines).await
}

/// Reports the features for environments on this machine, and whether those of the configuration
/// exist.
fn enforces(cx: &Context) -> Vec<Line> {
    const WHAT: &str = "environment";
    let config = cx.config.environments.clone();
    let names: Vec<String> = config.environments.keys().cloned().collect();
    let environments = Environments::new(config, &cx.config.data, cx.clock.clone());
    let machine = environments.machine().enforces().into_iter().map(|it| match it.how {
        Ok(by) => Line::new(Verdict::Ok, WHAT, format!("{} is enforced by {by}", it.what)),
        Err(refusal) => {
            let says = format!("{} cannot be enforced: {}", it.what, refusal.reason);
            Line::new(Verdict::Warn, WHAT, says).next(refusal.helps)
        }
    });
    let declared = names.into_iter().map(|name| {
        let refused = environments.judge(&name.as_str().into());
        match refused.first() {
            None => Line::new(Verdict::Ok, WHAT, format!("{name} can be given")),
            Some(refusal) => {
                let says = format!("{name}: `{}`: {}", refusal.what, refusal.reason);
                Line::new(Verdict::Fail, WHAT, says).next(refusal.helps.clone())
            }
        }
    });
    machine.chain([hidden(&environments)]).chain(declared).collect()
}

/// Returns true if children see keys and tokens.
fn hidden(environments: &Environments) -> Line {
    const WHAT: &str = "children";
    match environments.hides() {
        Ok(()) => Line::new(Verdict::Ok, WHAT, "the data directory is hidden from them"),
        Err(reason) => {
            let says = format!(
                "those of the same user can read the keys and tokens of the data directory: {reason}"
            );
            Line::new(Verdict::Warn, WHAT, says)
                .next("give agents an `environment`, or let users make namespaces")
        }
    }
}

/// Returns true if the directories that blueprints may watch are there.
fn watched(cx: &Context) -> Vec<Line> {
    const WHAT: &str = "watch";
    let line = |(name, dir): (&String, &std::path::PathBuf)| {
        let says = format!("{name} is {}", dir.display());
        match std::fs::read_dir(dir) {
            Ok(_) => Line::new(Verdict::Ok, WHAT, says),
            Err(error) => Line::new(Verdict::Fail, WHAT, format!("{says}: {error}"))
                .next("make the directory readable, or change [watch] in moonswarm.toml"),
        }
    };
    cx.config.watch.iter().map(line).collect()
}

/// Returns true if each secret is where the configuration says, without a word of it.
async fn secrets(cx: &Context) -> Vec<Line> {
    let config = cx.config.environments.clone();
    let names: Vec<String> = config.secrets.keys().cloned().collect();
    let environments = Environments::new(config, &cx.config.data, cx.clock.clone());
    let environments = &environments;
    let lines = names.iter().map(|name| async move {
        match environments.look_for(name).await {
            Ok(kind) => Line::new(Verdict::Ok, "secret", format!("{name} ({kind}) is there")),
            Err(why) => Line::new(Verdict::Fail, "secret", format!("{name}: {why}"))
                .next(format!("see [secrets.{name}] in the configuration file")),
        }
    });
    join_all(lines).await
}

fn programs() -> Vec<Line> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        |name: &str| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|it| it.is_file());
    let look = |name: &'static str, without: &str| match found(name) {
        Some(file) => Line::new(Verdict::Ok, name, file.display().to_string()),
        None => Line::new(Verdict::Warn, name, format!("not in PATH; {without}")),
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
    Line::new(Verdict::Ok, "terminal", says)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_others_can_read_fails_with_the_command_that_helps() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("admin.token");
        assert_eq!(secret(dir.path(), "admin.token"), None);
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let line = secret(dir.path(), "admin.token").unwrap();
        assert_eq!(line.verdict, Verdict::Fail);
        let text = shown(&line, 80);
        assert!(text.contains("next: chmod 600"), "{text}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(secret(dir.path(), "admin.token").unwrap().verdict, Verdict::Ok);
    }

    #[test]
    fn a_long_line_is_wrapped_to_the_terminal_and_the_next_command_stays_whole() {
        let line =
            Line::new(Verdict::Warn, "disk", "word ".repeat(40).trim()).next("x ".repeat(60));
        let text = shown(&line, 80);
        let (long, short): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.len() > 80);
        assert_eq!(long, [format!("      next: {}", "x ".repeat(60))]);
        assert!(short.len() == 3 && short[1].starts_with("      word"), "{text}");
        assert_eq!(shown(&line, usize::MAX).lines().count(), 2, "a file is never wrapped");
    }

    #[test]
    fn a_data_directory_that_is_a_file_fails() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(directory(file.path()).verdict, Verdict::Fail);
        assert_eq!(directory(Path::new("/nonexistent/x")).verdict, Verdict::Ok);
    }
}
