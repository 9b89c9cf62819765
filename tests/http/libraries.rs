//! The worker libraries of `clients/` against a daemon: many tasks, a daemon that is killed in the
//! middle, a stop. Their own tests run here too. What a library needs that is not there is named, and
//! the library not tested.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use parking_lot::Mutex;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Daemon, Shell, eventually, repository, send, skip, when};

const FLOW: &str = r#"local swarm = require("swarm")
return swarm.blueprint { name = "doubles",
  agents = { double = { operator = "queue", queue = "doubles" } },
  flow = function(ctx, input)
    local all = {}
    for n = 1, input.tasks do all[n] = n end
    return ctx:map(all, function(n) return ctx:run("double", { n = n }).double end)
  end }"#;
/// The tasks of the run.
const TASKS: u64 = 60;

/// An address that stays the same while daemons come and go behind it.
struct Front {
    url: String,
    behind: Arc<Mutex<String>>,
}

impl Front {
    async fn before(daemon: &Daemon) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let behind = Arc::new(Mutex::new(address(daemon)));
        let now = Arc::clone(&behind);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let address = now.lock().clone();
                tokio::spawn(async move {
                    // A daemon that is not there closes the connection.
                    if let Ok(mut server) = TcpStream::connect(address).await {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        Self { url, behind }
    }

    fn now_before(&self, daemon: &Daemon) {
        *self.behind.lock() = address(daemon);
    }
}

fn address(daemon: &Daemon) -> String {
    daemon.url.strip_prefix("http://").unwrap().to_owned()
}

async fn queue_token(daemon: &Daemon) -> String {
    let body = json!({"role": "queue", "scopes": ["queue:doubles"], "ttl": "1h"});
    let (status, minted) = send(daemon.post("/v1/tokens", &body)).await;
    assert_eq!(status, 201, "{minted}");
    minted["token"].as_str().unwrap().to_owned()
}

/// Lets a worker of a library do a run, whose daemon is killed in the middle, and stops it.
async fn doubles(mut command: Command) {
    let shell = Shell::new();
    let data = shell.path("data");
    let config = shell.write("fronted.toml", "hosts = [\"127.0.0.1\"]\n");
    let flags = ["--config".as_ref(), config.as_os_str()];
    let mut daemon = Daemon::start_with(&data, &flags);
    let front = Front::before(&daemon).await;
    command.env("MOONSWARM_URL", &front.url).env("QUEUE_TOKEN", queue_token(&daemon).await);
    let log = shell.path("worker.log");
    let out = std::fs::File::create(&log).unwrap();
    command.stdout(out.try_clone().unwrap()).stderr(out);
    let run = daemon.run_source(FLOW, json!({ "tasks": TASKS })).await;
    let mut worker = command.spawn().unwrap();
    eventually("a part is done", async || {
        let (_, shown) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
        when(shown["steps_done"].as_u64() >= Some(TASKS / 4), shown)
    })
    .await;
    daemon.kill();
    daemon = Daemon::start_with(&data, &flags);
    front.now_before(&daemon);
    let ended = daemon.ended(&run).await;
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let expected: Vec<_> = (1..=TASKS).map(|n| n * 2).collect();
    assert_eq!(ended["output"], json!(expected), "{ended}\n{}", said());
    let (_, files) = send(daemon.get(&format!("/v1/runs/{run}/artifacts"))).await;
    assert_eq!(files["items"][0]["name"], "one.md", "{files}");
    let pid = rustix::process::Pid::from_child(&worker);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let status = tokio::task::spawn_blocking(move || worker.wait().unwrap()).await.unwrap();
    assert!(status.success() && said().contains("stopped"), "{status}\n{}", said());
}

async fn run(mut command: Command) {
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

fn python() -> Option<Command> {
    let python = std::env::var_os("MOONSWARM_PYTHON").unwrap_or_else(|| "python3".into());
    if Command::new(&python).arg("--version").output().is_err() {
        skip("the Python worker library", &format!("{} is not there", python.display()));
        return None;
    }
    let mut command = Command::new(python);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    Some(command)
}

#[tokio::test]
async fn the_python_library_does_what_it_says() {
    let Some(mut command) = python() else { return };
    command.args(["-m", "unittest", "discover", "-s", "tests"]);
    command.current_dir(repository("clients/python"));
    run(command).await;
}

#[tokio::test]
async fn a_python_worker_outlives_its_daemon() {
    let Some(mut command) = python() else { return };
    command.arg(repository("clients/python/tests/doubles.py"));
    doubles(command).await;
}

/// Compiles the TypeScript library into a directory; none if the compiler or Node is not there.
fn compiled(shell: &Shell) -> Option<(PathBuf, Command)> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository("target"), PathBuf::from);
    let modules = target.join("clients/ts/node_modules");
    let node = std::env::var_os("MOONSWARM_NODEJS").unwrap_or_else(|| "node".into());
    let there = modules.join(".bin/tsc").exists();
    if !there || Command::new(&node).arg("--version").output().is_err() {
        let why = format!("{} or {} is not there", modules.display(), node.display());
        skip("the TypeScript worker library", &why);
        return None;
    }
    let (from, to) = (repository("clients/typescript"), shell.path("library"));
    for part in ["src", "tests"] {
        std::fs::create_dir_all(to.join(part)).unwrap();
        for file in std::fs::read_dir(from.join(part)).unwrap() {
            let file = file.unwrap().path();
            std::fs::copy(&file, to.join(part).join(file.file_name().unwrap())).unwrap();
        }
    }
    for file in ["package.json", "tsconfig.json"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    std::os::unix::fs::symlink(modules.canonicalize().unwrap(), to.join("node_modules")).unwrap();
    let tsc = |to: &Path| Command::new(to.join("node_modules/.bin/tsc")).current_dir(to).output();
    let built = tsc(&to).unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stdout));
    let mut command = Command::new(node);
    command.current_dir(&to);
    Some((to, command))
}

#[tokio::test]
async fn the_typescript_library_does_what_it_says() {
    let shell = Shell::new();
    let Some((to, mut command)) = compiled(&shell) else { return };
    let package: Value =
        serde_json::from_slice(&std::fs::read(to.join("package.json")).unwrap()).unwrap();
    assert!(package["dependencies"].is_null(), "it has no dependencies");
    command.args(["--test", "tests/worker.test.js"]);
    run(command).await;
}

#[tokio::test]
async fn a_typescript_worker_outlives_its_daemon() {
    let shell = Shell::new();
    let Some((_, mut command)) = compiled(&shell) else { return };
    command.arg("tests/doubles.js");
    doubles(command).await;
}
