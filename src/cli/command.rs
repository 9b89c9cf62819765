//! A command as a worker runs it: input on stdin, a small environment, a process group of its own.

use std::io;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::environment::{Environments, INHERITED, Input, NotStarted};

/// The bytes that are kept of each output.
pub const KEPT: u64 = 4 << 20;
const SUMMARY_CHARS: usize = 200;

/// The end of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Its exit code; none if a signal ended it.
    pub exit_code: Option<i32>,
    /// The printed lines.
    pub stdout: String,
    /// The text on stderr.
    pub stderr: String,
    /// True if it printed more than is kept: what is there of stdout is only its beginning.
    pub is_cut: bool,
}

impl Finished {
    /// The result: the JSON that was printed, else the three facts.
    pub fn output(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| self.raw())
    }

    /// Exit code and both outputs.
    pub fn raw(&self) -> Value {
        json!({"exit_code": self.exit_code, "stdout": self.stdout, "stderr": self.stderr})
    }

    /// One line: the exit code and the last line of stderr.
    pub fn summary(&self) -> String {
        let ended = match self.exit_code {
            Some(code) => format!("exit code {code}"),
            None => "ended by a signal".to_owned(),
        };
        match self.stderr.trim_end().lines().last() {
            Some(last) => {
                let last: String = last.chars().take(SUMMARY_CHARS).collect();
                format!("{ended}: {last}")
            }
            None => ended,
        }
    }
}

/// Runs a command to its end.
///
/// # Errors
/// A command that cannot be started.
///
/// # Cancel safety
/// Dropping this kills the command and everything in its process group.
pub async fn run(
    environments: &Environments,
    argv: &[String],
    env: &[(&str, String)],
    input: &str,
) -> Result<Finished> {
    let (program, arguments) = argv.split_first().context("find the command: it is empty")?;
    let inherited = INHERITED.into_iter();
    let variables = inherited
        .filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)))
        .chain(env.iter().map(|(name, value)| ((*name).to_owned(), value.into())))
        .collect();
    let cwd = std::env::current_dir().context("find the working directory")?;
    let launch = environments.launch(program, arguments, variables, &cwd, &[&cwd]);
    let launch = launch.with_context(|| format!("start {program}"))?;
    let input = Input::Whole(input.as_bytes());
    let launched = launch.start(input).await;
    let mut launched = launched.with_context(|| format!("start {program}"))?;
    let stdout = launched.stdout.take().context("open the command's stdout")?;
    let stderr = launched.stderr.take().context("open the command's stderr")?;
    let (stdout, stderr, status) = tokio::join!(keep(stdout), keep(stderr), launched.wait());
    match launched.not_started() {
        None => {}
        Some(NotStarted::Boundary(error)) => return Err(error.into()),
        Some(NotStarted::Program(error)) => {
            return Err(error).with_context(|| format!("start {program}"));
        }
    }
    let status = status.with_context(|| format!("wait for {program}"))?;
    let (stdout, is_cut) = stdout.context("read stdout")?;
    let (stderr, _) = stderr.context("read stderr")?;
    Ok(Finished { exit_code: status.code(), stdout, stderr, is_cut })
}

/// Keeps the beginning of an output and lets the rest go by, so that the command never blocks.
/// Returns true with it if there was more.
async fn keep(mut from: impl AsyncRead + Unpin) -> io::Result<(String, bool)> {
    let mut kept = Vec::new();
    (&mut from).take(KEPT).read_to_end(&mut kept).await?;
    let dropped = tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    Ok((String::from_utf8_lossy(&kept).into_owned(), dropped > 0))
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use tokio::{fs::File, time::timeout};

    use super::*;
    use crate::{clock::Clock, environment::Config};

    fn environments() -> Environments {
        Environments::new(Config::default(), Path::new(""), Clock::system())
    }

    async fn sh(script: &str, input: &str) -> Finished {
        let argv = ["sh", "-c", script].map(str::to_owned);
        run(&environments(), &argv, &[("MOONSWARM_TASK", "task_x".to_owned())], input)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn a_command_gets_its_input_and_its_json_is_the_result() {
        assert_eq!(sh("cat", r#"{"a":1}"#).await.output(), json!({"a": 1}));
        let plain = sh("echo $MOONSWARM_TASK; echo no >&2; exit 3", "null").await;
        assert_eq!(plain.output(), json!({"exit_code": 3, "stdout": "task_x\n", "stderr": "no\n"}));
    }

    #[tokio::test]
    async fn the_environment_is_what_is_allowed() {
        let names = sh("env | cut -d= -f1", "").await.stdout;
        let allowed = |name: &str| {
            INHERITED.contains(&name)
                || ["MOONSWARM_TASK", "PWD", "SHLVL", "_", "OLDPWD"].contains(&name)
        };
        assert!(names.lines().all(allowed), "{names}");
    }

    #[tokio::test]
    async fn output_beyond_what_is_kept_is_dropped_and_the_command_still_ends() {
        let out = sh("head -c 6000000 /dev/zero | tr '\\0' x; true", "").await;
        assert_eq!((out.exit_code, out.stdout.len(), out.is_cut), (Some(0), 4 << 20, true));
        let out = sh("head -c 4194304 /dev/zero | tr '\\0' x; true", "").await;
        assert_eq!((out.stdout.len(), out.is_cut), (4 << 20, false));
    }

    #[tokio::test]
    async fn a_dropped_command_takes_its_children_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("alive");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let script = format!("exec 3>{}; echo up >&3; sleep 100 & wait", fifo.display());
        let argv = ["sh".to_owned(), "-c".to_owned(), script];
        let up = async {
            let mut alive = File::open(&fifo).await.unwrap();
            alive.read_exact(&mut [0; 3]).await.unwrap();
            alive
        };

        let environments = environments();
        let mut alive = tokio::select! {
            alive = up => alive,
            _ = run(&environments, &argv, &[], "") => unreachable!("the command sleeps"),
        };

        // The pipe ends when nobody holds its other end any more, neither the shell nor the sleep.
        let mut rest = Vec::new();
        let ended = timeout(Duration::from_secs(20), alive.read_to_end(&mut rest)).await;
        assert_eq!(ended.expect("the group is gone").unwrap(), 0);
    }

    #[tokio::test]
    async fn a_command_that_is_not_there_is_named() {
        let error =
            run(&environments(), &["/nonexistent/cmd".to_owned()], &[], "").await.unwrap_err();
        assert!(error.to_string().contains("start /nonexistent/cmd"));
    }
}
