//! The resolution of a secret from its source, and the event about it.

use std::{io, process::Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::{io::AsyncReadExt as _, process::Command, time::timeout};
use zeroize::Zeroizing;

use super::{
    Secret, Text,
    config::Vault,
    found::{Found, LONGEST, Missing, PATIENCE},
    provider,
    scrub::SHORTEST,
    vault,
};
use crate::protocol::{SecretAccessEvent, SecretAccessOutcome, SecretSource};

/// The variables of the host that a child inherits, in addition to its configured ones.
pub const INHERITED: [&str; 5] = ["PATH", "HOME", "LANG", "TZ", "TMPDIR"];

/// Resolves a secret.
pub(super) async fn resolve(
    source: &SecretSource,
    vault: Option<&Vault>,
) -> Result<Found, Missing> {
    let found = match source {
        SecretSource::Vault { mount, path } => {
            let vault = vault.ok_or_else(|| Missing::denied("the host knows no vault"))?;
            vault::read(vault, mount, path).await?
        }
        SecretSource::Custom { provider, config } => {
            let secret = match provider.as_str() {
                provider::ENV => {
                    let name = text(config, "variable")?;
                    of_text(&Text::Env { name, prefix: String::new() })?
                }
                provider::FILE => {
                    let path = text(config, "path")?.into();
                    of_text(&Text::File { path, prefix: String::new() })?
                }
                provider::COMMAND => command(config).await?,
                other => return Err(Missing::denied(format!("there is no provider {other:?}"))),
            };
            Found { secret, lease: None }
        }
        other => {
            let kind = other.kind();
            return Err(Missing::denied(format!("this host does not speak with {kind}")));
        }
    };
    let length = found.secret.expose().len();
    if length < SHORTEST {
        let reason = format!("it has less than {SHORTEST} bytes, and would be found everywhere");
        return Err(Missing::failed(reason));
    }
    if found.secret.expose().contains('\0') {
        return Err(Missing::failed("it has a NUL byte"));
    }
    Ok(found)
}

/// Returns a source without confidential parts. Of a command, only the program is kept.
pub(super) fn shown(source: &SecretSource) -> SecretSource {
    match source {
        SecretSource::Custom { provider, config } if provider == provider::COMMAND => {
            let program = config.pointer("/argv/0").cloned().unwrap_or(Value::Null);
            let config = json!({ "program": program });
            SecretSource::Custom { provider: provider.clone(), config }
        }
        other => other.clone(),
    }
}

/// Returns the event for a requested secret.
pub(super) fn event(
    name: &str,
    source: &SecretSource,
    got: &Result<Found, Missing>,
    now_ms: u64,
) -> SecretAccessEvent {
    let outcome =
        got.as_ref().map_or_else(|missing| missing.outcome, |_| SecretAccessOutcome::Resolved);
    let mut event = SecretAccessEvent::new(name, shown(source), outcome, now_ms);
    match got {
        Ok(found) => {
            if let Some((id, seconds)) = &found.lease {
                event.lease_id = Some(id.clone());
                event.lease_ttl_secs = Some(*seconds);
            }
        }
        Err(missing) => event.reason = Some(missing.reason.clone()),
    }
    event
}

fn text(config: &Value, key: &str) -> Result<String, Missing> {
    let text = config.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    text.map(str::to_owned).ok_or_else(|| Missing::failed(format!("its source has no `{key}`")))
}

fn of_text(text: &Text) -> Result<Secret, Missing> {
    text.resolve().map_err(|error| Missing::failed(format!("failed to {error}")))
}

/// The process group of a command. Killed when dropped, unless the command has ended: it may have
/// started an agent that stays.
struct Running(Option<Pid>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // The group may already be gone, which is fine.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Runs a command that prints the secret. Its stderr is never shown, because it may contain
/// secrets.
async fn command(config: &Value) -> Result<Secret, Missing> {
    let list = |key: &str| {
        let list = config.get(key).map(Vec::<String>::deserialize);
        list.transpose().map_err(|_| Missing::failed(format!("its source has no list `{key}`")))
    };
    let argv = list("argv")?.unwrap_or_default();
    let inherit = list("inherit")?.unwrap_or_default();
    let (program, arguments) =
        argv.split_first().ok_or_else(|| Missing::failed("its command has no program"))?;
    let names = INHERITED.into_iter().chain(inherit.iter().map(String::as_str));
    let variables = names.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)));
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(variables)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| Missing::failed(format!("failed to start `{program}`: {error}")))?;
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let mut running = Running(pid);
    let stdout = child.stdout.take();
    let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST + 1));
    let read = async {
        if let Some(stdout) = stdout {
            let most = u64::try_from(LONGEST).unwrap_or(u64::MAX) + 1;
            stdout.take(most).read_to_end(&mut bytes).await?;
        }
        let status = child.wait().await?;
        running.0 = None;
        Ok(status)
    };
    let status = timeout(PATIENCE, read)
        .await
        .map_err(|_| {
            Missing::failed(format!("`{program}` took more than {} s", PATIENCE.as_secs()))
        })?
        .map_err(|error: io::Error| {
            Missing::failed(format!("failed to read from `{program}`: {error}"))
        })?;
    if bytes.len() > LONGEST {
        return Err(Missing::failed(format!("`{program}` printed more than {LONGEST} bytes")));
    }
    if !status.success() {
        return Err(Missing::failed(format!("`{program}` ended with {status}")));
    }
    Secret::of_bytes(&bytes).ok_or_else(|| Missing::failed(format!("`{program}` printed no text")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn custom(provider: &str, config: Value) -> SecretSource {
        SecretSource::Custom { provider: provider.into(), config }
    }

    async fn reason(source: &SecretSource) -> String {
        resolve(source, None).await.unwrap_err().reason
    }

    #[tokio::test]
    async fn a_command_prints_the_secret_and_sees_little_of_the_host() {
        let argv = json!({ "argv": ["sh", "-c", "echo canary-$(env | grep -c CARGO)"] });
        let found = resolve(&custom("command", argv), None).await.unwrap();
        assert_eq!(found.secret.expose(), "canary-0");
    }

    #[tokio::test]
    async fn a_secret_that_cannot_be_had_says_why_without_any_of_it() {
        let sh = |script: &str| custom("command", json!({ "argv": ["sh", "-c", script] }));
        let failed = reason(&sh("echo canary-1; echo canary-2 >&2; exit 3")).await;
        assert!(failed.contains("exit status: 3") && !failed.contains("canary"), "{failed}");
        assert!(reason(&sh("echo tiny")).await.contains("less than 6 bytes"));
        assert!(reason(&sh("head -c 70000 /dev/zero")).await.contains("more than 65536 bytes"));
        assert!(reason(&sh("printf 'abcdef\\0ghi'")).await.contains("NUL"));
        let missing = custom("command", json!({ "argv": ["no-such-program"] }));
        assert!(reason(&missing).await.contains("failed to start `no-such-program`"));
        let unset = custom("env", json!({ "variable": "MOONSWARM_TEST_NOT_SET" }));
        assert!(reason(&unset).await.contains("it is not set"));
        let other = resolve(&SecretSource::Hardware { slot: "9a".into() }, None).await;
        assert_eq!(other.unwrap_err().outcome, SecretAccessOutcome::Denied);
    }

    /// Waits until a process that is no child of this one is gone.
    async fn gone(pid: &str) {
        let lives = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        let wait = async {
            while lives() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, wait).await.expect("the process ends");
    }

    #[tokio::test]
    async fn a_command_that_is_given_up_leaves_no_process_and_one_that_ended_may() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let sh = |script: &str| {
            let script = script.replace("FIFO", fifo.to_str().unwrap());
            custom("command", json!({ "argv": ["sh", "-c", script] }))
        };
        let hangs = sh("sleep 987 & echo $! > FIFO; wait");
        let sleeper = tokio::select! {
            _ = resolve(&hangs, None) => panic!("it sleeps"),
            pid = tokio::fs::read_to_string(&fifo) => pid.unwrap(),
        };
        gone(&sleeper).await;

        let starts = sh("sleep 987 >/dev/null & echo canary-$!");
        let found = resolve(&starts, None).await.unwrap();
        let agent = found.secret.expose().strip_prefix("canary-").unwrap().parse().unwrap();
        let agent = Pid::from_raw(agent).unwrap();
        rustix::process::kill_process(agent, Signal::KILL).expect("the agent stays");
    }

    #[test]
    fn of_a_command_only_its_program_is_said() {
        let source = custom("command", json!({ "argv": ["pass", "show", "private/path"] }));
        let got = Err(Missing::failed("it is closed"));
        let event = event("db", &source, &got, 7);
        let json = serde_json::to_string(&event).unwrap();
        assert!(json.contains("pass") && !json.contains("private"), "{json}");
        assert_eq!(event.reason.as_deref(), Some("it is closed"));
    }
}
