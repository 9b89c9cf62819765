//! Children: their input, their death with the host, and what they can read.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
    process::Command,
};

use serde_json::{Value, json};

use crate::support::{Daemon, eventually, eventually_blocking, send, when};

/// A user who may nothing.
const NOBODY: u32 = 65_534;

/// A blueprint whose branches are children of a shell each: the script, and how many.
fn shells(script: &str, branches: usize) -> String {
    shells_with(script, branches, "")
}

/// As [`shells`], with more about the agent, such as its environment.
fn shells_with(script: &str, branches: usize, declared: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!(
        r#"local swarm = require("swarm")
return swarm.blueprint {{
  name = "shells",
  agents = {{ sh = {{ operator = "process", command = {{ "sh", "-c", {script} }}, check = false, {declared} }} }},
  flow = function(ctx, input)
    local items = {{}}
    for n = 1, {branches} do items[n] = n end
    return ctx:map(items, function(n) return ctx:run("sh", {{ n = n, text = input.text }}) end)
  end,
}}"#
    )
}

/// The processes, dead ones aside, that have this word in their command line.
fn alive(word: &str) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(word)
    };
    pids.filter(has).collect()
}

/// Waits until no process has this word in its command line.
fn gone(word: &str) {
    eventually_blocking("the end of every child", || {
        let living = alive(word);
        when(living.is_empty(), format!("{living:?}"))
    });
}

fn lines(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

async fn start(daemon: &Daemon, source: &str, text: &str) -> bool {
    let body = json!({ "source": source, "input": { "text": text } });
    // It may be killed before it answers.
    daemon.post("/v1/runs", &body).send().await.is_ok_and(|answer| answer.status() == 201)
}

/// Kills a daemon at a point of its children's start; says how many began. None may outlive it.
#[cfg(feature = "faults")]
async fn began_until(point: &str, branches: usize, declared: &str) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let word = format!("birth-{}-{}", point.replace('#', "-"), std::process::id());
    let log = dir.path().join("log");
    let script = format!(": {word}; echo $$ >> {}; sleep 1000", log.display());
    let daemon = Daemon::launch(&dir.path().join("data"), &[("MOONSWARM_KILL_AT", point)]).unwrap();
    start(&daemon, &shells_with(&script, branches, declared), "").await;
    assert!(daemon.died(), "{point} was reached");
    gone(&word);
    lines(&log).len()
}

/// A child with an environment that is forked, or that the watch even knows of, has not begun before
/// it is let in.
#[cfg(feature = "faults")]
#[tokio::test(flavor = "multi_thread")]
async fn a_child_does_not_begin_if_its_host_dies_at_its_birth() {
    let declared = "environment = { isolation = \"local\" }";
    for (most, point) in
        ["operator.process_spawned#1", "operator.process_watched#2"].iter().enumerate()
    {
        let began = began_until(point, 1 + most, declared).await;
        assert!(began <= most, "{point}: {began} children began");
    }
}

/// One that the launcher starts begins when it is ordered, and ends with the host all the same.
#[cfg(feature = "faults")]
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_has_just_begun_ends_with_its_host() {
    for (most, point) in
        ["operator.process_spawn#1", "operator.process_spawned#1"].iter().enumerate()
    {
        let began = began_until(point, 1, "").await;
        assert!(began <= most, "{point}: {began} children began");
    }
}

/// The launchers that a daemon has started.
fn launchers(daemon: u32) -> Vec<rustix::process::Pid> {
    let own = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
        let fields: Vec<&str> = after.split(' ').collect();
        fields.first() != Some(&"Z") && fields.get(1) == Some(&daemon.to_string().as_str())
    };
    let pids = alive("--launch").into_iter().filter(own);
    pids.filter_map(rustix::process::Pid::from_raw).collect()
}

/// How many files a process holds open.
fn files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Whoever starts children for the daemon may be killed, by the kernel that needs memory.
#[tokio::test(flavor = "multi_thread")]
async fn the_children_of_a_killed_launcher_end_and_others_begin() {
    let dir = tempfile::tempdir().unwrap();
    let (log, word) = (dir.path().join("log"), format!("launcher-{}", std::process::id()));
    let config = dir.path().join("moonswarm.toml");
    // So that a plain user has one, too.
    fs::write(&config, "hide_data = false\n").unwrap();
    let env = [("MOONSWARM_CONFIG", config.to_str().unwrap())];
    let daemon = Daemon::launch(&dir.path().join("data"), &env).unwrap();
    let file = log.display();
    // The second of the same name has nothing to wait for.
    let script = format!(
        ": {word}; if [ -e {file} ]; then echo again >> {file}; else echo first >> {file}; sleep 1000; fi"
    );
    assert!(start(&daemon, &shells(&script, 1), "").await);
    eventually_blocking("the child's begin", || when(lines(&log) == ["first"], daemon.log()));
    let running = launchers(daemon.pid());
    assert_eq!(running.len(), 1, "{}", daemon.log());
    rustix::process::kill_process(running[0], rustix::process::Signal::KILL).unwrap();
    gone(&word);
    // Its child ends with one of its threads. While others end, it could still be given an order.
    eventually_blocking("the end of the launcher", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", running[0].as_raw_nonzero()));
        let is_over = tasks.map_or(0, Iterator::count) <= 1 && launchers(daemon.pid()).is_empty();
        when(is_over, daemon.log())
    });
    assert!(start(&daemon, &shells(&script, 1), "").await);
    eventually_blocking("a child of the next launcher", || {
        when(lines(&log).contains(&"again".to_owned()), daemon.log())
    });
    assert_eq!(daemon.stop(), Some(0));
}

/// Orders that a busy launcher has not read yet are there when the host is killed, and are void then: the
/// next host repeats the attempts.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_was_ordered_does_not_begin_after_its_host() {
    const BRANCHES: usize = 8;
    let dir = tempfile::tempdir().unwrap();
    let (log, data) = (dir.path().join("log"), dir.path().join("data"));
    let config = dir.path().join("moonswarm.toml");
    fs::write(&config, "hide_data = false\n").unwrap();
    let env = [("MOONSWARM_CONFIG", config.to_str().unwrap())];
    let daemon = Daemon::launch(&data, &env).unwrap();
    let script = format!("echo began >> {}", log.display());
    // Its result is stored before the launcher is stopped, or the next host would repeat this child, too.
    let body = json!({ "source": shells(&script, 1), "input": {}, "wait": "60s" });
    let (status, first) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!((status, &first["status"]), (201, &json!("completed")), "{first}\n{}", daemon.log());
    assert_eq!(lines(&log).len(), 1, "{}", daemon.log());

    let running = launchers(daemon.pid());
    assert_eq!(running.len(), 1, "{}", daemon.log());
    let signal = |signal| rustix::process::kill_process(running[0], signal).unwrap();
    signal(rustix::process::Signal::STOP);
    let before = files(daemon.pid());
    let body = json!({ "source": shells(&script, BRANCHES), "input": {} });
    let (status, run) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!(status, 201, "{run}");
    let run = run["id"].as_str().unwrap();
    // The daemon holds a socket and two pipes of each child that it has ordered.
    eventually_blocking("the orders", || {
        let held = files(daemon.pid()).saturating_sub(before);
        when(held >= 3 * BRANCHES, format!("{held} files more\n{}", daemon.log()))
    });
    daemon.kill();
    signal(rustix::process::Signal::CONT);
    let stat = format!("/proc/{}/stat", running[0].as_raw_nonzero());
    eventually_blocking("the end of the launcher", || {
        let stat = fs::read_to_string(&stat).unwrap_or_default();
        when(stat.is_empty() || stat.contains(") Z "), stat)
    });
    assert_eq!(lines(&log).len(), 1, "children of a host that was gone began");

    let daemon = Daemon::launch(&data, &env).unwrap();
    daemon.ended(run).await;
    assert_eq!(lines(&log).len(), 1 + BRANCHES);
    assert_eq!(daemon.stop(), Some(0));
}

/// A process that was killed keeps its memory, files and ports for a moment. The next host must not repeat
/// its work meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_host_begins_when_the_children_of_the_killed_one_are_gone() {
    for declared in ["", "environment = { isolation = \"local\" }"] {
        let dir = tempfile::tempdir().unwrap();
        let (log, data) = (dir.path().join("log"), dir.path().join("data"));
        // Its end takes as long as its memory is large.
        let script = format!(
            "x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo $$ >> {}; sleep 1000; : $x",
            log.display()
        );
        let daemon = Daemon::start(&data);
        assert!(start(&daemon, &shells_with(&script, 1, declared), "").await);
        eventually_blocking("the child", || when(lines(&log).len() == 1, daemon.log()));
        daemon.kill();
        let work = fs::File::open(data.join("work")).unwrap();
        rustix::fs::flock(&work, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let stat = fs::read_to_string(format!("/proc/{}/stat", lines(&log)[0])).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{declared}: {stat}");
    }
}

/// Starts a daemon of a plain user.
fn start_as_nobody(dir: &Path, data: &Path) -> Daemon {
    if !rustix::process::geteuid().is_root() {
        return Daemon::start(data);
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(data).unwrap();
    chown(data, Some(NOBODY), Some(NOBODY)).unwrap();
    let words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    Daemon::start_through(&words, data, &[("HOME", "/tmp")])
}

/// Has two children look for each other's handle while both are there.
async fn read_nothing_of_each_other(daemon: &Daemon) {
    // The run's directory is of both. Neither ends before the other has looked.
    let script = r#"n=$(sed 's/.*"n":\([0-9]*\).*/\1/'); other=$((3 - n)); : > here-$n
until [ -e here-$other ]; do sleep 0.02; done
found=$(cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' | grep ^MOONSWARM_HANDLE= | sort -u | wc -l)
: > done-$n; until [ -e done-$other ]; do sleep 0.02; done; echo $found"#;
    let body = json!({ "source": shells(script, 2), "input": {}, "wait": "60s" });
    let (status, view) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!((status, &view["status"]), (201, &json!("completed")), "{view}");
    for n in 0..2 {
        assert_eq!(view["output"][n]["stdout"], "1\n", "its own handle and no other: {view}");
    }
}

/// One launcher starts all of them, and each is alone all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_of_root_reads_nothing_of_another_child() {
    if !rustix::process::geteuid().is_root() {
        crate::support::note_skipped(
            "a_child_of_root_reads_nothing_of_another_child",
            "only root may do this",
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    read_nothing_of_each_other(&daemon).await;
    assert_eq!(launchers(daemon.pid()).len(), 1);
}

/// Whether this kernel has what keeps a plain user's children of one launcher apart.
fn keeps_plain_children_apart() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|it| it.trim().parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

/// The launcher of a plain user has a user namespace, in which its children are alone all the same,
/// and may bring sandboxes of their own along.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_of_a_plain_user_reads_nothing_of_another_child_and_may_mount() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let daemon = start_as_nobody(dir.path(), &data);
    read_nothing_of_each_other(&daemon).await;
    let expected = usize::from(keeps_plain_children_apart());
    assert_eq!(launchers(daemon.pid()).len(), expected, "{}", daemon.log());
    let script = format!(
        "unshare -rm sh -c 'mount -t tmpfs own /tmp && umount /tmp && echo mounted'; \
         for pid in $(pgrep -f -- --launch); do head -c 40 /proc/$pid/root{0}/admin.token; \
         nsenter -t $pid -m head -c 40 {0}/admin.token; nsenter -t $pid -U true && echo entered; done 2>/dev/null",
        data.display()
    );
    let body = json!({ "source": shells(&script, 1), "input": {}, "wait": "60s" });
    let (status, view) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!((status, &view["status"]), (201, &json!("completed")), "{view}");
    assert_eq!(view["output"][0]["stdout"], "mounted\n", "{view}");
    assert_eq!(daemon.stop(), Some(0));
}

/// Root of a container, who may not mount there, is root in a namespace of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_of_root_without_the_right_to_mount_gets_at_no_key_and_no_token() {
    if !rustix::process::geteuid().is_root() {
        crate::support::note_skipped(
            "a_child_of_root_without_the_right_to_mount_gets_at_no_key_and_no_token",
            "only root may do this",
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let words = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"];
    let daemon = Daemon::start_through(&words, &data, &[]);
    tries_everything(&daemon, &data, "").await;
    assert_eq!(launchers(daemon.pid()).len(), 1, "{}", daemon.log());
    tries_everything(&daemon, &data, "environment = { isolation = \"local\" }").await;
    read_nothing_of_each_other(&daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_child_reads_a_cut_input_or_outlives_a_killed_host() {
    const WHOLE: usize = 300_000;
    let dir = tempfile::tempdir().unwrap();
    let (sizes, word) = (dir.path().join("sizes"), format!("storm-{}", std::process::id()));
    let script = format!(": {word}; n=$(wc -c); echo $n >> {}; sleep 1000", sizes.display());
    let (source, text) = (shells(&script, 8), "x".repeat(WHOLE));
    for round in 0..8 {
        let data = dir.path().join(format!("data-{round}"));
        let daemon = Daemon::start(&data);
        let before = lines(&sizes).len();
        assert!(start(&daemon, &source, &text).await);
        // Some are killed while they start their first child, some while they start the others.
        eventually_blocking("the first children", || {
            when(round < 2 || lines(&sizes).len() >= before + round - 1, daemon.log())
        });
        daemon.kill();
        gone(&word);
    }
    let read = lines(&sizes);
    assert!(read.len() >= 21, "{read:?}");
    let cut: Vec<_> = read.iter().filter(|size| size.parse().unwrap_or(0) < WHOLE).collect();
    println!("{} children read, {} of them less than all", read.len(), cut.len());
    assert!(cut.is_empty(), "{cut:?}");
}

/// What a child tries to get at, each as a line of a shell that prints what it got.
fn attempts(data: &Path, pid: u32) -> Vec<String> {
    let data = data.display();
    let files = ["admin.token", "signing.key", "handle.key", "server.json", "moonswarm.db", "lock"];
    let read = files.iter().map(|file| format!("head -c 40 {data}/{file}"));
    let others = [
        format!("ls -A {data}/work/.attempts | grep -v -- -1-1"),
        format!("head -c 40 /proc/{pid}/root{data}/admin.token"),
        format!("head -c 40 /proc/{pid}/cwd/data/admin.token"),
        format!("head -c 40 /proc/{pid}/environ"),
        format!("for fd in /proc/{pid}/fd/*; do head -c 40 $fd; done"),
        format!("umount -l {data} && head -c 40 {data}/admin.token"),
        format!("unshare -rm sh -c 'umount -l {data}; head -c 40 {data}/admin.token'"),
        format!("nsenter -t {pid} -m head -c 40 {data}/admin.token"),
        format!("nsenter -t {pid} -U -m head -c 40 {data}/admin.token"),
        format!("echo x > {data}/planted && echo planted"),
    ];
    read.chain(others).collect()
}

async fn tries_everything(daemon: &Daemon, data: &Path, declared: &str) {
    let attempts = attempts(data, daemon.pid());
    let all: String =
        attempts.iter().map(|it| format!("({it}) </dev/null 2>/dev/null\n")).collect();
    let script = format!("{all}echo end");
    let own = "mkdir -p a b && echo x > a/f && mv a/f b/g && cat b/g && head -c 5 \"$MOONSWARM_BUNDLE\"/*.lua && \
               curl -s -H \"Authorization: Bearer $MOONSWARM_HANDLE\" \
               $MOONSWARM_URL/v1/worker/prompt | grep -c '\"n\"'";
    let (script, own) =
        (serde_json::to_string(&script).unwrap(), serde_json::to_string(own).unwrap());
    let source = format!(
        r#"local swarm = require("swarm")
return swarm.blueprint {{
  name = "thief",
  agents = {{
    thief = {{ operator = "process", command = {{ "sh", "-c", {script} }}, check = false, {declared} }},
    own = {{ operator = "process", command = {{ "sh", "-c", {own} }}, check = false, {declared} }},
  }},
  flow = function(ctx, input)
    return {{ thief = ctx:run("thief", {{ n = 1 }}), own = ctx:run("own", {{ n = 1 }}) }}
  end,
}}"#
    );
    let body = json!({ "source": source, "input": {}, "wait": "60s" });
    let (status, view) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!((status, &view["status"]), (201, &json!("completed")), "{view}");
    let got = &view["output"]["thief"]["stdout"];
    assert_eq!(got, "end\n", "a child got at what is not its own: {view}");
    if declared.is_empty() {
        let own = view["output"]["own"]["stdout"].as_str().unwrap().split_whitespace();
        let own: Vec<_> = own.collect();
        assert_eq!(own, ["x", "local1"], "what is its own it can use: {view}");
    }
}

/// The lines of `doctor`.
fn doctor(data: &Path, config: Option<&Path>) -> Vec<Value> {
    let mut doctor = crate::support::program();
    doctor.args(["doctor", "--json", "--data"]).arg(data);
    if let Some(config) = config {
        doctor.env("MOONSWARM_CONFIG", config);
    }
    serde_json::from_slice(&doctor.output().unwrap().stdout).unwrap()
}

fn hides(lines: &[Value]) -> bool {
    lines.iter().any(|line| line["what"] == "children" && line["verdict"] == "ok")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_of_root_gets_at_no_key_and_no_token() {
    if !rustix::process::geteuid().is_root() {
        crate::support::note_skipped(
            "a_child_of_root_gets_at_no_key_and_no_token",
            "only root may do this",
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let daemon = Daemon::start(&data);
    tries_everything(&daemon, &data, "").await;
    tries_everything(&daemon, &data, "environment = { isolation = \"local\" }").await;
    // What it may write to has the data directory in it.
    let whole = format!("environment = {{ paths = {{ write = {{ {:?} }} }} }}", dir.path());
    tries_everything(&daemon, &data, &whole).await;
    assert!(hides(&doctor(&data, None)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_of_a_plain_user_gets_at_no_key_and_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let daemon = start_as_nobody(dir.path(), &data);
    tries_everything(&daemon, &data, "").await;
    tries_everything(&daemon, &data, "environment = { isolation = \"local\" }").await;
}

/// A server that `doctor` asks for its tools is a child like any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_doctor_starts_gets_at_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let (data, read) = (dir.path().join("data"), dir.path().join("read"));
    let daemon = Daemon::start(&data);
    if !hides(&doctor(&data, None)) {
        crate::support::note_skipped(
            "a_server_that_doctor_starts_gets_at_no_token",
            "this machine hides no directory",
        );
        return;
    }
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/src/operator/mcp/tests/server.py");
    let script =
        format!("cat {}/admin.token > {}; exec python3 {server}", data.display(), read.display());
    let config = dir.path().join("moonswarm.toml");
    let tools =
        format!("[operators.tools]\nkind = \"mcp\"\ncommand = [\"sh\", \"-c\", {script:?}]\n");
    for (is_empty, more) in [(true, ""), (false, "hide_data = false\n")] {
        fs::write(&config, format!("{more}{tools}")).unwrap();
        let lines = doctor(&data, Some(&config));
        let says =
            |line: &Value| line["says"].as_str().unwrap().starts_with("tools (mcp) 7 tool(s)");
        assert!(lines.iter().any(says), "{lines:?}");
        assert_eq!(fs::read_to_string(&read).unwrap().is_empty(), is_empty, "{lines:?}");
    }
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_may_not_hide_its_keys_says_so_and_runs_its_children_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::write(dir.path().join("moonswarm.toml"), "hide_data = false\n").unwrap();
    let config = dir.path().join("moonswarm.toml");
    let env = [("MOONSWARM_CONFIG", config.to_str().unwrap())];
    let daemon = Daemon::launch(&data, &env).unwrap();
    let script = shells(&format!("head -c 3 {}/admin.token", data.display()), 1);
    let body = json!({ "source": script, "input": {}, "wait": "60s" });
    let (status, view) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!(status, 201);
    assert!(!view["output"][0]["stdout"].as_str().unwrap().is_empty(), "{view}");
    assert!(
        daemon.log().contains("children of the same user can read the keys"),
        "{}",
        daemon.log()
    );
}

/// A child of `moonswarm worker` is one like any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_of_a_worker_dies_with_it_and_had_its_whole_input() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let daemon = Daemon::start(&data);
    let source = r#"local swarm = require("swarm")
return swarm.blueprint {
  name = "pull",
  agents = { q = { operator = "queue", queue = "q" } },
  flow = function(ctx, input) return ctx:run("q", input) end,
}"#;
    daemon.run_source(source, json!({ "text": "x".repeat(200_000) })).await;
    let (sizes, word) = (dir.path().join("sizes"), format!("pull-{}", std::process::id()));
    let token = data.join("admin.token");
    let script = format!(
        ": {word}; n=$(wc -c); cat {} >/dev/null 2>&1 && n=token; echo $n > {}; sleep 1000",
        token.display(),
        sizes.display()
    );
    let mut worker = crate::support::program();
    worker.args(["worker", "--queue", "q", "--data"]).arg(&data);
    let mut worker: std::process::Child =
        Command::spawn(worker.args(["--", "sh", "-c", &script])).unwrap();
    eventually_blocking("the command's begin", || when(!lines(&sizes).is_empty(), "no line"));
    worker.kill().unwrap();
    worker.wait().unwrap();
    let own = alive(&word);
    gone(&word);
    let size = lines(&sizes)[0].parse::<usize>().unwrap_or(0);
    assert!(size > 200_000, "{:?} {own:?}", lines(&sizes));
}

/// A program that was replaced under its host is still there for its children.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_program_was_removed_still_starts_children() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    fs::copy(env!("CARGO_BIN_EXE_moonswarm"), &copy).unwrap();
    let data = dir.path().join("data");
    let run = format!("exec {} \"$@\"", copy.display());
    // The last word is the program of the build, which `sh` takes for its own name.
    let daemon = Daemon::start_through(&["sh", "-c", &run], &data, &[]);
    fs::remove_file(&copy).unwrap();
    tries_everything(&daemon, &data, "").await;
}

/// Runs one command as a step, once, and gives the run when it has ended.
async fn once(daemon: &Daemon, command: &str, timeout: &str) -> Value {
    let command = serde_json::to_string(command).unwrap();
    let source = format!(
        r#"local swarm = require("swarm")
return swarm.blueprint {{
  name = "once",
  agents = {{ sh = {{ operator = "process", command = {{ "sh", "-c", {command} }}, timeout = "{timeout}",
    retry = {{ max_attempts = 1 }} }} }},
  flow = function(ctx) return ctx:run("sh") end,
}}"#
    );
    let body = json!({ "source": source, "input": {}, "wait": "60s" });
    let (status, view) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!(status, 201, "{view}");
    view
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_forks_without_end_is_gone_with_its_timeout_and_the_daemon_goes_on() {
    if !rustix::process::geteuid().is_root() {
        crate::support::note_skipped(
            "a_child_that_forks_without_end_is_gone_with_its_timeout_and_the_daemon_goes_on",
            "only root may do this",
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&data).unwrap();
    // A user of its own, whose processes are all of this test.
    let user = 70_000 + std::process::id() % 10_000;
    chown(&data, Some(user), Some(user)).unwrap();
    let (uid, gid) = (format!("--reuid={user}"), format!("--regid={user}"));
    let words = ["prlimit", "--nproc=150", "setpriv", &uid, &gid, "--clear-groups"];
    let daemon = Daemon::start_through(&words, &data, &[("HOME", "/tmp")]);
    let word = format!("bomb-{}", std::process::id());
    let bomb =
        format!("exec perl -e 'while (1) {{ fork; select undef, undef, undef, 0.01 }}' {word}");
    let view = once(&daemon, &bomb, "1s").await;
    assert_eq!(view["error"]["kind"], "timeout", "{view}");
    gone(&word);
    let view = once(&daemon, "echo 7", "20s").await;
    assert_eq!(view["output"], 7, "{view}");
    assert_eq!(daemon.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_fills_the_disk_of_the_daemon_stops_nothing_for_good() {
    if !rustix::process::geteuid().is_root() {
        crate::support::note_skipped(
            "a_child_that_fills_the_disk_of_the_daemon_stops_nothing_for_good",
            "only root may do this",
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    let small =
        format!("mount -t tmpfs -o size=24m small {} && exec \"$0\" \"$@\"", data.display());
    // Only the daemon and its children see that disk; the token is read through its root.
    let words = ["unshare", "-m", "sh", "-c", &small];
    let daemon = Daemon::start_through(&words, &data, &[]);
    let inside = format!("/proc/{}/root{}", daemon.pid(), data.display());
    let source = shells("head -c 100M /dev/zero > big; echo filled", 1);
    let body = json!({ "source": source, "input": {} });
    let (status, view) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!(status, 201, "{view}");
    let run = view["id"].as_str().unwrap().to_owned();
    let big = format!("{inside}/work/{run}/big");
    eventually_blocking("a file that grows", || {
        when(fs::metadata(&big).is_ok_and(|meta| meta.len() >= 1 << 20), daemon.log())
    });
    assert_eq!(daemon.bare(reqwest::Method::GET, "/healthz").send().await.unwrap().status(), 200);
    // Its result cannot be written. It is tried again once a second, although a client waits for it
    // all the time.
    let tries = || daemon.log().matches("could not write a run").count();
    let waits = daemon.get(&format!("/v1/runs/{run}?wait=60s"));
    let waits = tokio::spawn(async move { waits.send().await });
    eventually("its first result to be refused", async || when(tries() >= 2, tries())).await;
    let (since, first) = (std::time::Instant::now(), tries());
    eventually("it to be tried again", async || when(tries() >= first + 2, tries())).await;
    assert!(since.elapsed() >= std::time::Duration::from_secs(1), "{:?}", since.elapsed());
    let ended = eventually("room to be found", async || {
        // An attempt that begins meanwhile writes it once more.
        let _ = fs::remove_file(&big);
        let (_, view) = send(daemon.get(&format!("/v1/runs/{run}"))).await;
        when(!view["ended_at"].is_null(), view.to_string())
    });
    ended.await;
    let view = daemon.ended(&run).await;
    assert_eq!(waits.await.unwrap().unwrap().status(), 200);
    assert_eq!(view["status"], "completed", "{view}");
    assert_eq!(daemon.stop(), Some(0));
}

/// The first process of a container awaits what children leave: nobody else does.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_the_first_process_has_no_zombies() {
    let words = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let tried = Command::new(words[0]).args(&words[1..]).arg("true").output().unwrap();
    if !tried.status.success() {
        println!("cannot enforce: process namespaces (unshare is not permitted)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_through(&words, &dir.path().join("data"), &[]);
    // Its background process is killed with the group, after its parent has ended.
    let script = "sleep 1000 & echo x";
    for declared in ["", "environment = { isolation = \"local\" }"] {
        let source = shells_with(script, 8, declared);
        let body = json!({ "source": source, "input": {}, "wait": "60s" });
        let (status, view) = send(daemon.post("/v1/runs", &body)).await;
        assert_eq!((status, &view["status"]), (201, &json!("completed")), "{view}");
    }
    let children = format!("/proc/{0}/task/{0}/children", daemon.pid());
    let first = fs::read_to_string(children).unwrap().trim().to_owned();
    eventually_blocking("the end of every zombie", || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let zombies = processes.filter(|entry| {
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            stat.contains(&format!(") Z {first} "))
        });
        when(zombies.count() == 0, daemon.log())
    });
}
