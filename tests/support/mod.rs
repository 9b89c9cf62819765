//! What the tests over the real program share: a daemon in a process of its own, the command line
//! as somebody types it, and requests as a client sends them.
#![allow(dead_code, reason = "every test program uses its own part of it")]

use std::{
    ffi::OsStr,
    fmt::Display,
    fs::{File, OpenOptions},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Output, Stdio},
    time::Duration,
};

use reqwest::{Client, Method, RequestBuilder, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub mod culprit;
pub mod network;
pub mod postgres;
pub mod provider;
pub mod receiver;
pub mod stored_run;
pub mod tls;

/// A test that waits longer than this for one thing has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two looks at what a test waits for.
pub const PAUSE: Duration = Duration::from_millis(5);

/// A blueprint that waits for a signal, asks a person, and can be queried.
pub const DEMO: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "demo",
  description = "Waits and asks.",
  agents = { echo = { operator = "echo" }, ask = { operator = "human" } },
  flow = function(ctx, input)
    local seen = 0
    ctx:on_query("seen", function(by) return { seen = seen, by = by } end)
    ctx:artifact("note.txt", "hello")
    seen = ctx:wait("go")
    local answer = ctx:run("ask", { title = "Well?" })
    return ctx:run("echo", { seen = seen, answer = answer })
  end,
}
"#;

/// Looks until it finds something, and returns it; `look` returns what it saw instead.
///
/// # Panics
/// After [`PATIENCE`], with what was waited for and what was seen last.
pub async fn eventually<T, S: Display>(
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, S>,
) -> T {
    let mut last = String::from("nothing");
    let looks = async {
        loop {
            match look().await {
                Ok(found) => break found,
                Err(seen) => last = seen.to_string(),
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    match tokio::time::timeout(PATIENCE, looks).await {
        Ok(found) => found,
        Err(_) => panic!("waited {PATIENCE:?} for {what}; last seen: {last}"),
    }
}

/// The same for tests without a runtime.
///
/// # Panics
/// As [`eventually`].
pub fn eventually_blocking<T, S: Display>(what: &str, mut look: impl FnMut() -> Result<T, S>) -> T {
    let since = std::time::Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) if since.elapsed() > PATIENCE => {
                panic!("waited {PATIENCE:?} for {what}; last seen: {seen}")
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Lets real time pass, where the passing of time is what is tested: a host that is stopped or away
/// for longer than a lease. A test that waits for something uses [`eventually`].
pub async fn elapse(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Numbers that look random and are the same in every test run.
pub struct Dice(pub u64);

impl Dice {
    /// The next number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// The events of a stream, whose numbers have no gap.
pub fn numbered_events(stream: &str) -> Vec<Value> {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["seq"], at + 1, "{event}");
    }
    events
}

/// Turns a look that is yes or no into one for [`eventually`].
pub fn when<S>(is_so: bool, seen: S) -> Result<(), S> {
    if is_so { Ok(()) } else { Err(seen) }
}

/// Notes that something is not tested, since a tool is not there.
///
/// # Panics
/// When `MOONSWARM_REQUIRE_TOOLS` is 1: then every tool has to be there.
pub fn skip(what: &str, why: &str) {
    assert!(
        std::env::var("MOONSWARM_REQUIRE_TOOLS").as_deref() != Ok("1"),
        "{what}: {why}, and MOONSWARM_REQUIRE_TOOLS asks for it"
    );
    note_skipped(what, why);
}

/// Notes that something is not tested here. `scripts/test.sh` reads these lines from the file that
/// `MOONSWARM_SKIPPED` names.
pub fn note_skipped(what: &str, why: &str) {
    eprintln!("SKIPPED {what}: {why}");
    let Some(list) = std::env::var_os("MOONSWARM_SKIPPED") else { return };
    let mut list = OpenOptions::new().create(true).append(true).open(list).unwrap();
    list.write_all(format!("{what}: {why}\n").as_bytes()).unwrap();
}

/// The program, with nothing of this process's environment that it would listen to.
pub fn program() -> Command {
    as_program(Command::new(env!("CARGO_BIN_EXE_moonswarm")))
}

fn as_program(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let name_of = name.to_string_lossy();
        if name_of.starts_with("MOONSWARM_") || name_of.starts_with("OTEL_") {
            command.env_remove(name);
        }
    }
    // These tests kill daemons on purpose; that is no crash loop to be careful about.
    command.env("MOONSWARM_SAFE_MODE", "off");
    command.env("NO_COLOR", "1");
    command
}

/// Returns true if the daemons of the tests have their runs in PostgreSQL.
pub fn over_postgres() -> bool {
    std::env::var("MOONSWARM_TEST_STORE").as_deref() == Ok("postgres")
}

/// Returns true, and notes that the test is left out, if the daemons have their runs in PostgreSQL:
/// the test is about what only the embedded database does.
pub fn needs_sqlite(what: &str) -> bool {
    let skips = over_postgres();
    if skips {
        note_skipped(&format!("over PostgreSQL, {what}"), "only SQLite has it");
    }
    skips
}

/// A file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A daemon in a process of its own; dropped, it is killed.
pub struct Daemon {
    child: Option<Child>,
    /// Where it listens.
    pub url: String,
    /// The admin token.
    pub token: String,
    log: PathBuf,
    http: Client,
    /// What it said when it listened.
    pub said: Value,
}

impl Daemon {
    /// Starts one over a data directory and waits until it listens.
    pub fn start(data: &Path) -> Self {
        Self::start_with(data, &[])
    }

    /// The same, with more flags.
    pub fn start_with(data: &Path, flags: &[&OsStr]) -> Self {
        match Self::spawn(data, flags, &[]) {
            Some(daemon) => daemon,
            None => panic!("the daemon did not start: {}", tail(&data.with_extension("log"))),
        }
    }

    /// Starts one with more in its environment; none if it ended before it listened.
    pub fn launch(data: &Path, env: &[(&str, &str)]) -> Option<Self> {
        Self::spawn(data, &[], env)
    }

    /// Starts one at an address that another one has left.
    pub fn start_at(data: &Path, address: &str) -> Self {
        Self::start_with(data, &["--listen".as_ref(), address.as_ref()])
    }

    /// Starts one that may have only so many bytes of address space, as `ulimit -v` would: a
    /// program that asks for more is ended by its allocator.
    pub fn start_within(bytes: u64, data: &Path, flags: &[&OsStr]) -> Self {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -v {} && exec \"$0\" \"$@\"", bytes / 1_024);
        command.args(["-c", &limited]).arg(env!("CARGO_BIN_EXE_moonswarm"));
        Self::spawn_as(as_program(command), data, flags, &[])
            .unwrap_or_else(|| panic!("it did not start: {}", tail(&data.with_extension("log"))))
    }

    /// Starts one through another program: `setpriv`, with its arguments.
    pub fn start_through(words: &[&str], data: &Path, env: &[(&str, &str)]) -> Self {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(env!("CARGO_BIN_EXE_moonswarm"));
        Self::spawn_as(as_program(command), data, &[], env)
            .unwrap_or_else(|| panic!("it did not start: {}", tail(&data.with_extension("log"))))
    }

    fn spawn(data: &Path, flags: &[&OsStr], env: &[(&str, &str)]) -> Option<Self> {
        Self::spawn_as(program(), data, flags, env)
    }

    fn spawn_as(
        mut command: Command,
        data: &Path,
        flags: &[&OsStr],
        env: &[(&str, &str)],
    ) -> Option<Self> {
        let log = data.with_extension("log");
        let to = OpenOptions::new().create(true).append(true).open(&log).unwrap();
        command.args(["serve", "--json", "--data"]).arg(data);
        // A directory that a test has filled has its runs in itself.
        if over_postgres() && !postgres::has_runs(data) {
            // More writers than a small machine has by default.
            let url = format!("{}?writers=3", postgres::Database::of(data));
            command.env("MOONSWARM_STORE", url);
        }
        if !flags.contains(&OsStr::new("--listen")) {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let mut child = command
            .envs(env.iter().copied())
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(to)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Ok(said) = serde_json::from_str::<Value>(&line) else {
            child.wait().unwrap();
            return None;
        };
        let token_file = said["token_file"].as_str().unwrap();
        // It may be on a disk that only the daemon sees.
        let seen = format!("/proc/{}/root{token_file}", child.id());
        let token = std::fs::read_to_string(token_file).or_else(|_| std::fs::read_to_string(seen));
        let token = token.unwrap().trim().to_owned();
        let url = said["url"].as_str().unwrap().to_owned();
        Some(Self { child: Some(child), url, token, log, http: client(), said })
    }

    /// One that runs in this process.
    pub fn of(url: &str, token: &str) -> Self {
        let (url, token) = (url.to_owned(), token.to_owned());
        let (log, said) = (PathBuf::new(), Value::Null);
        Self { child: None, url, token, log, http: client(), said }
    }

    /// Waits until it is gone, and says whether it was killed.
    pub fn died(mut self) -> bool {
        use std::os::unix::process::ExitStatusExt as _;
        let child = self.child.as_mut().expect("a process of its own");
        let status = eventually_blocking("the end of the daemon", || {
            child.try_wait().unwrap().ok_or("it runs")
        });
        status.signal() == Some(Signal::KILL.as_raw())
    }

    /// Waits until it ends by itself, and gives its exit code.
    pub fn ends(&mut self) -> Option<i32> {
        self.child.as_mut().expect("a process of its own").wait().unwrap().code()
    }

    /// Its resident memory, in bytes.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib * 1_024
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a process of its own").id()
    }

    /// Kills it as a power cut would, and waits until it is gone.
    pub fn kill(mut self) {
        let child = self.child.as_mut().expect("a process of its own");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Asks it to stop and gives its exit code.
    pub fn stop(mut self) -> Option<i32> {
        let child = self.child.as_mut().expect("a process of its own");
        kill_process(Pid::from_child(child), Signal::TERM).unwrap();
        child.wait().unwrap().code()
    }

    /// The last lines that it logged.
    pub fn log(&self) -> String {
        tail(&self.log)
    }

    /// A request without a bearer.
    pub fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    /// A request with another bearer.
    pub fn with(&self, token: &str, method: Method, path: &str) -> RequestBuilder {
        self.bare(method, path).bearer_auth(token)
    }

    /// An admin's GET.
    pub fn get(&self, path: &str) -> RequestBuilder {
        self.with(&self.token, Method::GET, path)
    }

    /// An admin's POST.
    pub fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.with(&self.token, Method::POST, path).json(body)
    }

    /// An admin's PUT.
    pub fn put(&self, path: &str, body: &Value) -> RequestBuilder {
        self.with(&self.token, Method::PUT, path).json(body)
    }

    /// An admin's DELETE.
    pub fn delete(&self, path: &str) -> RequestBuilder {
        self.with(&self.token, Method::DELETE, path)
    }

    /// Waits until a run has ended.
    pub async fn ended(&self, run: &str) -> Value {
        let (status, view) = send(self.get(&format!("/v1/runs/{run}?wait=60s"))).await;
        assert_eq!(status, 200, "{view}\n{}", self.log());
        assert!(!view["ended_at"].is_null(), "it did not end in time: {view}\n{}", self.log());
        view
    }

    /// A run, once it waits for something of this kind.
    pub async fn waits(&self, run: &str, kind: &str) -> Value {
        eventually(&format!("{run} waits for a {kind}"), async || {
            let (status, view) = send(self.get(&format!("/v1/runs/{run}?wait=50ms"))).await;
            assert_eq!(status, 200, "{view}");
            let waits = view["waiting_on"][0]["kind"] == kind;
            if waits { Ok(view) } else { Err(format!("{view}\n{}", self.log())) }
        })
        .await
    }

    /// Starts a run of a source and gives its id.
    pub async fn run_source(&self, source: &str, input: Value) -> String {
        let body = serde_json::json!({ "source": source, "input": input });
        let (status, view) = send(self.post("/v1/runs", &body)).await;
        assert_eq!(status, 201, "{view}");
        view["id"].as_str().unwrap().to_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may be gone already.
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn client() -> Client {
    moonswarm::environment::http_client()
        .no_proxy()
        // A connection that broke off over one request is not used for the next.
        .pool_max_idle_per_host(0)
        .timeout(2 * PATIENCE)
        .build()
        .unwrap()
}

fn tail(log: &Path) -> String {
    let mut text = String::new();
    let _ = File::open(log).map(|mut file| file.read_to_string(&mut text));
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Sends a request; the answer's body as JSON, as a text if it is none, null if it is empty.
pub async fn send(request: RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    let body = match text.is_empty() {
        true => Value::Null,
        false => serde_json::from_str(&text).unwrap_or(Value::String(text)),
    };
    (status.as_u16(), body)
}

/// Sends a request that is to be refused; the status and the code of the problem.
pub async fn refusal(request: RequestBuilder) -> (u16, String) {
    let answer = request.send().await.unwrap();
    let status = answer.status();
    assert_ne!(status, StatusCode::OK);
    let kind = answer.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
    let body: Value = answer.json().await.unwrap();
    assert_eq!(kind.as_deref(), Some("application/problem+json"), "{body}");
    assert_eq!(body["status"], status.as_u16(), "{body}");
    (status.as_u16(), body["code"].as_str().unwrap().to_owned())
}

/// How a command ended.
#[derive(Debug)]
pub struct Done {
    /// The exit code.
    pub code: i32,
    /// What it printed.
    pub stdout: String,
    /// What it said.
    pub stderr: String,
}

impl Done {
    /// The command went well.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits(0)
    }

    /// The command ended with this code.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// What it said has all of these in it.
    #[track_caller]
    pub fn says(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in: {}", self.stderr);
        }
        self
    }

    /// What it printed, as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl From<Output> for Done {
    fn from(it: Output) -> Self {
        Self {
            code: it.status.code().expect("it ended by itself"),
            stdout: String::from_utf8_lossy(&it.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&it.stderr).into_owned(),
        }
    }
}

/// A directory in which somebody types commands.
pub struct Shell {
    dir: tempfile::TempDir,
}

impl Shell {
    /// An empty directory.
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A file or directory in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file into it.
    pub fn write(&self, name: impl AsRef<OsStr>, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(Path::new(name.as_ref()));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A command that has not been started.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = program();
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// A command, to its end.
    pub fn run(&self, args: &[&str]) -> Done {
        self.command(args).output().unwrap().into()
    }

    /// A command that goes on beside the test.
    pub fn start(&self, args: &[&str]) -> Watched {
        let mut command = self.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        Watched { child, lines, said: String::new() }
    }
}

/// A command that goes on beside the test; dropped, it is killed.
pub struct Watched {
    child: Child,
    lines: BufReader<ChildStderr>,
    said: String,
}

impl Watched {
    /// Waits until it says something with this in it, and gives that line.
    #[track_caller]
    pub fn until(&mut self, part: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it ended without {part:?}: {}", self.said);
            self.said.push_str(&line);
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it ends by itself.
    pub fn end(mut self) -> Done {
        self.lines.read_to_string(&mut self.said).unwrap();
        let mut stdout = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        let code = self.child.wait().unwrap().code().expect("it ended by itself");
        Done { code, stdout, stderr: std::mem::take(&mut self.said) }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub mod schema;
