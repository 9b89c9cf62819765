//! Files in a watched directory that are no regular files.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use serde_json::json;

use crate::support::{Daemon, Shell, eventually, send, when};

const GOOD: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "good", flow = function(ctx) return 1 end }
"#;

/// More than the watch of a directory needs.
const MEMORY: u64 = 3 << 30;

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// What careless or hostile hands put into a directory of blueprints.
fn spoil(dir: &Path) {
    let outside = dir.parent().unwrap().join("outside.lua");
    fs::write(&outside, GOOD.replace("good", "outside")).unwrap();
    fifo(&dir.join("pipe.lua"));
    fifo(&dir.join("pipe.flow.json"));
    symlink("/dev/zero", dir.join("zero.lua")).unwrap();
    symlink("/dev/zero", dir.join("zero.flow.json")).unwrap();
    symlink(&outside, dir.join("link.lua")).unwrap();
    symlink("/", dir.join("root")).unwrap();
    symlink("loop.lua", dir.join("loop.lua")).unwrap();
    fs::create_dir(dir.join("main")).unwrap();
    symlink(&outside, dir.join("main/main.lua")).unwrap();
    fs::create_dir(dir.join("piped")).unwrap();
    fifo(&dir.join("piped/main.lua"));
    // Sparse: it takes no room, but whoever reads all of it takes as much memory.
    fs::File::create(dir.join("huge.lua")).unwrap().set_len(16 << 30).unwrap();
    let needs = GOOD.replace("good", "needs").replace("return 1", "return require(\"./part\")");
    fs::write(dir.join("needs.lua"), needs).unwrap();
    fifo(&dir.join("part.lua"));
}

async fn names(daemon: &Daemon) -> Vec<String> {
    let (status, view) = send(daemon.get("/v1/blueprints")).await;
    assert_eq!(status, 200, "{view}");
    let items = view["items"].as_array().or_else(|| view.as_array()).unwrap();
    items.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
}

async fn has(daemon: &Daemon, name: &str) -> Vec<String> {
    eventually(name, async || {
        let names = names(daemon).await;
        let is_there = names.iter().any(|it| it == name);
        when(is_there, format!("{names:?}\n{}", daemon.log())).map(|()| names)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn pipes_devices_and_links_out_stop_no_daemon_that_watches_their_directory() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("bp");
    fs::create_dir(&dir).unwrap();
    spoil(&dir);
    fs::write(dir.join("good.lua"), GOOD).unwrap();
    symlink("good.lua", dir.join("inside.flow.json")).unwrap();
    let flags = ["--blueprints".as_ref(), dir.as_os_str()];
    let daemon = Daemon::start_within(MEMORY, &root.path().join("data"), &flags);
    let known = has(&daemon, "good").await;
    assert!(!known.iter().any(|name| name == "outside"), "{known:?}");
    // The same while it runs.
    for name in ["later.lua", "later.flow.json"] {
        fifo(&dir.join(name));
    }
    symlink("/dev/zero", dir.join("later-zero.lua")).unwrap();
    fs::write(dir.join("second.lua"), GOOD.replace("good", "second")).unwrap();
    has(&daemon, "second").await;
    assert!(daemon.resident() < 512 << 20, "{} bytes", daemon.resident());
    assert!(daemon.log().contains("left out"), "{}", daemon.log());
    assert_eq!(daemon.stop(), Some(0), "it ends when it is asked to");
}

#[test]
fn pipes_and_devices_stop_no_command_that_reads_a_directory() {
    let shell = Shell::new();
    fs::create_dir(shell.path("bp")).unwrap();
    spoil(&shell.path("bp"));
    shell.write("bp/good.lua", GOOD);
    let done = shell.run(&["check", "bp"]);
    assert!(done.stderr.contains("good.lua: no findings"), "{}", done.stderr);
    for (file, part) in [("pipe.lua", "it is not a file"), ("huge.lua", "larger than 1 MiB")] {
        let done = shell.run(&["check", &format!("bp/{file}")]).exits(3);
        assert!(done.stdout.contains(part), "{done:?}");
        shell.run(&["run", &format!("bp/{file}")]).exits(3).says(&[file, part]);
    }
    fifo(&shell.path("agent.md"));
    let done = shell.run(&["agents", "import", "agent.md"]);
    assert!(done.code != 0 && done.stderr.contains("regular file"), "{done:?}");
    fifo(&shell.path("moonswarm.toml"));
    let done = shell.run(&["version"]);
    assert!(done.code != 0 && done.stderr.contains("regular file"), "{done:?}");
    fs::remove_file(shell.path("moonswarm.toml")).unwrap();
    let done = shell.run(&["run", "bp/good.lua", "-i", "@/dev/zero"]);
    assert!(done.code != 0, "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_and_secrets_in_a_pipe_or_a_device_fail_their_attempt_and_nothing_else() {
    let shell = Shell::new();
    fifo(&shell.path("turns.json"));
    fifo(&shell.path("secret"));
    let text = "[operators.pipe]\nkind = \"process\"\nenv = { KEY = { file = \"secret\" } }\n\
                [operators.zero]\nkind = \"process\"\nenv = { KEY = { file = \"/dev/zero\" } }\n";
    shell.write(
        "moonswarm.toml",
        text.replace("\"secret\"", &format!("{:?}", shell.path("secret"))),
    );
    let config = shell.path("moonswarm.toml");
    let env = [("MOONSWARM_CONFIG", config.to_str().unwrap())];
    let daemon = Daemon::launch(&shell.path("data"), &env).unwrap();
    for operator in ["pipe", "zero"] {
        let source = GOOD
            .replace("flow =", &format!("agents = {{ a = {{ operator = \"{operator}\", command = {{ \"true\" }}, retry = {{ max_attempts = 1 }} }} }}, flow ="))
            .replace("return 1", "return ctx:run(\"a\")");
        let (status, view) =
            send(daemon.post("/v1/runs", &json!({ "source": source, "wait": "30s" }))).await;
        assert_eq!(status, 201, "{view}");
        let error = view["error"]["message"].as_str().unwrap_or_default();
        assert!(error.contains("not a regular file"), "{view}");
    }
}
