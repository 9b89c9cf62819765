//! What is left of an attempt when it is over: nothing.

use std::{path::Path, process::Command};

use serde_json::json;

use super::{BOXED, attempts, boxed, enforced, script};
use crate::support::{Daemon, PATIENCE, Shell};

/// Groups of attempts that are there now, of whatever data directory.
fn groups_with(name: &str) -> Vec<String> {
    let found = Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-name", &format!("{name}*")])
        .output()
        .unwrap();
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

/// The environments that this machine can give.
fn kinds() -> Vec<&'static str> {
    let mut kinds = vec!["isolation = \"local\""];
    if enforced("paths") {
        kinds.push("isolation = \"process\"");
    }
    kinds
}

#[test]
fn nothing_is_left_after_success_and_after_an_error() {
    for kind in kinds() {
        let shell = boxed(kind);
        let data = shell.path(".moonswarm");
        for (text, status) in
            [("touch a; mkdir -p b/c; chmod 0 b; exit 0", "completed"), ("exit 3", "failed")]
        {
            let view = script(&shell, text);
            assert_eq!(view["status"], status, "{view:#}");
            assert!(data.join("work/.attempts").is_dir(), "it was made there");
            assert_eq!(attempts(&data), [""; 0].map(Path::new), "{kind}: {text}");
            assert_eq!(groups_with(view["id"].as_str().unwrap()), [""; 0], "{kind}: {text}");
        }
    }
}

#[test]
fn nothing_is_left_of_a_child_that_could_not_start() {
    for kind in kinds() {
        let shell = boxed(kind);
        shell.write("boxed.lua", BOXED.replace("\"sh\", \"-c\"", "\"no-such-program\", \"-c\""));
        let view = script(&shell, "true");
        assert_eq!(view["error"]["kind"], "process", "{view:#}");
        assert_eq!(attempts(&shell.path(".moonswarm")), [""; 0].map(Path::new), "{kind}");
    }
}

#[test]
fn what_got_away_from_its_group_dies_with_its_attempt() {
    if !enforced("pids") {
        return super::refused("resources = { pids = 10 }", "resources.pids");
    }
    let shell = boxed("resources = { pids = 50 }\npaths = { write = [\"shared\"] }");
    shell.write("shared/empty", "");
    // It goes on only once the other is in a session of its own.
    let view = script(
        &shell,
        "setsid sh -c 'echo $$ > $MOONSWARM_WORKDIR/shared/pid; exec sleep 100000' \
         </dev/null >/dev/null 2>&1 & until [ -s $MOONSWARM_WORKDIR/shared/pid ]; do :; done",
    );
    assert_eq!(view["status"], "completed", "{view:#}");
    let pid = std::fs::read_to_string(shell.path("shared/pid")).unwrap();
    // Torn down before the result counted: nobody has to wait.
    let stat = Command::new("ps").args(["-o", "stat=", "-p", pid.trim()]).output().unwrap();
    let stat = String::from_utf8_lossy(&stat.stdout).trim().to_owned();
    assert!(stat.is_empty() || stat.starts_with('Z'), "{stat}");
}

#[tokio::test]
async fn nothing_is_left_of_a_host_that_was_killed_once_the_next_one_starts() {
    for kind in kinds() {
        let shell = Shell::new();
        let data = shell.path("data");
        let config = shell.write(
            "moonswarm.toml",
            format!(
                "[environments.box]\n{kind}\ncredentials = {{ it = {{ file = \"it\" }} }}\n\
                 [secrets.it]\ncommand = [\"echo\", \"canary-in-a-file\"]\n"
            ),
        );
        let fifo = shell.path("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let config = config.to_str().unwrap().to_owned();
        let env = [("MOONSWARM_CONFIG", config.as_str())];
        let daemon = Daemon::launch(&data, &env).unwrap();
        // The first attempt hangs; the one after the crash ends.
        let source = BOXED.replace("{{ script }}", "{{ script }} {{ attempt }}");
        let text = "hang() { [ $1 = 1 ] || exit 0; sleep 100000; }; hang";
        let run = daemon.run_source(&source, json!({ "script": text })).await;
        let begun = async {
            let mut events = 0;
            while attempts(&data).is_empty() || events < 3 {
                let (_, view) = crate::support::send(daemon.get(&format!("/v1/runs/{run}"))).await;
                events = view["last_event"].as_u64().unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, begun).await.expect("it begins");
        daemon.kill();
        assert_eq!(attempts(&data).len(), 1, "{kind}: nobody could remove it");

        let daemon = Daemon::launch(&data, &env).unwrap();
        let view = daemon.ended(&run).await;
        assert_eq!(view["status"], "completed", "{kind}: {view:#}");
        assert_eq!(attempts(&data), [""; 0].map(Path::new), "{kind}");
        assert_eq!(groups_with(&run), [""; 0], "{kind}");
        assert_eq!(daemon.stop(), Some(0));
    }
}
