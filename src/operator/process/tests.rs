use std::{fs, path::Path, process::Command, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::io::AsyncBufReadExt as _;

use super::Process;
use crate::{
    blueprint::Blueprint,
    environment::{Environments, Text},
    operator::{
        Backend as _, Reply, Task,
        fixture::{Attempt, environments},
    },
    protocol::{Failure, Json, SecretAccessOutcome, failure::kind},
};

fn process() -> Process {
    let bundles = |blueprint: &Blueprint| Ok(Path::new("/bundles").join(blueprint.name()));
    Process::new(Arc::new(bundles), environments())
}

fn impatient() -> Process {
    let mut process = process();
    process.limits.terminate = Duration::from_millis(50);
    process.limits.report = Duration::from_millis(50);
    process.limits.drain = Duration::from_millis(50);
    process
}

async fn run(attempt: Attempt, input: Value) -> Result<Value, Failure> {
    execute(&process(), attempt.task(), input).await
}

async fn execute(process: &Process, task: Arc<Task>, input: Value) -> Result<Value, Failure> {
    let work = process.execute(task, Json::from(input));
    let reply = tokio::time::timeout(Duration::from_secs(20), work).await.expect("it ends")?;
    match reply {
        Reply::Done(done) => Ok(done.output.to_value()),
        Reply::Parked => Ok(json!("parked")),
        Reply::Short(short) => Err(short.failure),
    }
}

fn sh(script: &str) -> Attempt {
    Attempt::new().command(["sh", "-c", script])
}

/// Returns true if a process exists and is not a zombie.
fn lives(pid: &str) -> bool {
    let stat = Command::new("ps").args(["-o", "stat=", "-p", pid]).output().unwrap();
    let stat = String::from_utf8_lossy(&stat.stdout).trim().to_owned();
    !stat.is_empty() && !stat.starts_with('Z')
}

/// Waits until `pid` is gone; it is not a child of this process, so it cannot be awaited.
async fn gone(pid: &str) {
    let wait = async {
        while lives(pid) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("the process ends");
}

/// Reads one line that a child writes into a fifo.
async fn word(fifo: &Path) -> String {
    loop {
        let file = tokio::fs::File::open(fifo).await.unwrap();
        let mut line = String::new();
        tokio::io::BufReader::new(file).read_line(&mut line).await.unwrap();
        // The writer of the previous line may not have closed its end yet; then the line is empty.
        if !line.trim().is_empty() {
            return line.trim().to_owned();
        }
    }
}

fn fifo() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    (dir, path)
}

#[tokio::test]
async fn the_json_that_a_child_prints_is_its_result() {
    let got = run(Attempt::new().command(["cat"]), json!({ "a": [1, "x"] })).await.unwrap();
    assert_eq!(got, json!({ "a": [1, "x"] }));
}

#[tokio::test]
async fn other_output_is_a_result_with_its_streams() {
    let got = run(sh("printf 'h\\377i'; echo no >&2"), json!(null)).await.unwrap();
    assert_eq!(got, json!({ "exit_code": 0, "stdout": "h\u{fffd}i", "stderr": "no\n" }));
    let got = run(sh("printf 1e999"), json!(null)).await.unwrap();
    assert_eq!(got["stdout"], "1e999", "a number that nobody can read is text");
}

#[tokio::test]
async fn a_non_zero_exit_is_a_failure_that_shows_why() {
    let failure =
        run(sh("echo out; echo first >&2; echo last >&2; exit 3"), json!(null)).await.unwrap_err();
    assert_eq!(failure.message, "`sh` exited with code 3: last");
    assert!(failure.is(kind::PROCESS) && !failure.retryable);
    let data = failure.data.unwrap().to_value();
    assert_eq!(data, json!({ "exit_code": 3, "stdout": "out\n", "stderr": "first\nlast\n" }));
}

#[tokio::test]
async fn without_check_every_exit_is_a_result() {
    let unchecked = |script: &str| sh(script).agent(|agent| agent.check = false);
    let got = run(unchecked("echo 1; exit 3"), json!(null)).await.unwrap();
    assert_eq!(got, json!({ "exit_code": 3, "stdout": "1\n", "stderr": "" }));
    let got = run(unchecked("echo 1"), json!(null)).await.unwrap();
    assert_eq!(got["exit_code"], 0, "also where it would parse");
    let got = run(unchecked("kill -KILL $$"), json!(null)).await.unwrap();
    assert_eq!((&got["exit_code"], &got["signal"]), (&json!(137), &json!("SIGKILL")));
}

#[tokio::test]
async fn a_child_killed_by_a_signal_is_a_failure_that_names_it() {
    let failure = run(sh("kill -TERM $$"), json!(null)).await.unwrap_err();
    assert_eq!(failure.message, "`sh` was killed by SIGTERM");
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named_and_worth_another_try() {
    let failure = run(Attempt::new().command(["no-such-program"]), json!(null)).await.unwrap_err();
    assert!(failure.is(kind::PROCESS) && failure.retryable, "{failure}");
    assert!(failure.message.contains("`no-such-program`"), "{failure}");
    assert!(failure.message.contains("not installed"), "{failure}");
}

#[tokio::test]
async fn arguments_are_rendered_and_never_split() {
    let attempt = Attempt::new().command([
        "sh",
        "-c",
        "for a in \"$@\"; do printf '[%s]' \"$a\"; done",
        "-",
        "{{ text }}",
        "{{ input.list }}",
        "n={{ n }} {{ agent }}#{{ attempt }}",
        "{{ bundle }}/x",
        "{{ gone }}",
    ]);
    let input = json!({ "text": "$(id) `id` '; a b", "list": [1, "x"], "n": null, "gone": "" });
    let got = run(attempt, input).await.unwrap();
    let want = "[$(id) `id` '; a b][[1,\"x\"]][n=null worker#1][/bundles/fixture/x][]";
    assert_eq!(got["stdout"], want);
}

#[tokio::test]
async fn a_slot_that_is_not_there_is_a_failure_that_names_the_argument() {
    let failure = run(Attempt::new().command(["echo", "{{ nope }}"]), json!({})).await.unwrap_err();
    let expected =
        "element 2 of `command` (\"{{ nope }}\"): `nope` is not defined; there are: agent, attempt";
    assert!(failure.message.contains(expected), "{failure}");
    assert!(failure.is(kind::TEMPLATE) && !failure.retryable);
    let text = "{{ also | default('') }}{{ nope }}";
    let failure = run(Attempt::new().command(["echo", text]), json!({})).await.unwrap_err();
    assert!(failure.message.contains("`nope` is not defined"), "{failure}");
}

#[tokio::test]
async fn a_template_that_never_ends_runs_out_of_fuel_and_a_long_one_of_room() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let failure = run(Attempt::new().command(["echo", endless]), json!({})).await.unwrap_err();
    assert!(failure.message.contains("fuel"), "{failure}");
    let long = Attempt::new().command(["echo", "{{ text }}"]);
    let failure = run(long, json!({ "text": "x".repeat(200_000) })).await.unwrap_err();
    assert!(failure.message.contains("128 KiB"), "{failure}");
}

#[tokio::test]
async fn the_environment_is_cleared_but_for_the_list_and_the_agents_own() {
    let attempt = Attempt::new()
        .command(["env"])
        .agent(|agent| drop(agent.env.insert("GREETING".to_owned(), "hi {{ name }}".to_owned())));
    let got = run(attempt, json!({ "name": "Ann" })).await.unwrap();
    let lines: Vec<_> = got["stdout"].as_str().unwrap().lines().collect();
    for line in [
        "GREETING=hi Ann",
        "MOONSWARM_URL=http://127.0.0.1:7700",
        "MOONSWARM_HANDLE=wh_test",
        "MOONSWARM_BUNDLE=/bundles/fixture",
    ] {
        assert!(lines.contains(&line), "{line} in {lines:?}");
    }
    let allowed = ["PATH", "HOME", "LANG", "TZ", "TMPDIR", "GREETING"];
    for line in lines {
        let (name, _) = line.split_once('=').unwrap();
        assert!(allowed.contains(&name) || name.starts_with("MOONSWARM_"), "{name}");
    }
}

#[tokio::test]
async fn a_child_runs_in_the_runs_directory_or_inside_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    fs::create_dir(root.join("sub")).unwrap();
    let at = |cwd: &str| {
        let cwd = cwd.to_owned();
        Attempt::new().command(["pwd"]).workdir(&root).agent(|agent| agent.cwd = Some(cwd))
    };
    let got = run(at("sub"), json!(null)).await.unwrap();
    assert_eq!(got["stdout"], format!("{}/sub\n", root.display()));
    for outside in ["..", "/", "sub/../.."] {
        let failure = run(at(outside), json!(null)).await.unwrap_err();
        assert!(failure.message.contains("leads out"), "{failure}");
    }
    let failure = run(at("missing"), json!(null)).await.unwrap_err();
    assert!(failure.message.contains("failed to enter the directory"), "{failure}");
}

#[tokio::test]
async fn a_child_that_reads_nothing_and_one_that_prints_first_are_fine() {
    let input = json!("x".repeat(1 << 20));
    assert_eq!(run(Attempt::new().command(["true"]), input.clone()).await.unwrap()["exit_code"], 0);
    let chatty = sh("head -c 300000 /dev/zero | tr '\\0' o; head -c 300000 /dev/zero >&2; cat");
    let got = run(chatty, input).await.unwrap();
    assert_eq!(got["stdout"].as_str().unwrap().len(), 300_000 + (1 << 20) + 2);
    assert_eq!(got["stderr"].as_str().unwrap().len(), 64 * 1024, "the tail is kept");
}

#[tokio::test]
async fn a_child_that_prints_too_much_is_killed() {
    let mut process = process();
    process.limits.stdout = 10_000;
    let failure = execute(&process, sh("yes").task(), json!(null)).await.unwrap_err();
    assert!(failure.is(kind::LIMIT), "{failure}");
    assert!(failure.message.contains("10000 bytes"), "{failure}");
}

#[tokio::test]
async fn a_result_that_no_run_takes_is_refused_before_it_is_parsed() {
    let mut process = process();
    process.limits.result = 1_000;
    let long = "printf '[%999s' | tr ' ' '['";
    let failure = execute(&process, sh(&format!("{long}; printf '[[]'")).task(), json!(null)).await;
    let failure = failure.unwrap_err();
    assert!(failure.is(kind::LIMIT), "{failure}");
    assert!(failure.message.contains("more than 1000 bytes"), "{failure}");
    // What is between the parts of JSON does not count.
    let spaced = sh("printf '[%3000s]' 7").task();
    assert_eq!(execute(&process, spaced, json!(null)).await.unwrap(), json!([7]));
}

#[tokio::test]
async fn a_large_result_is_parsed_like_a_small_one() {
    let large = sh("printf '[%400000s]' 7").task();
    assert_eq!(execute(&process(), large, json!(null)).await.unwrap(), json!([7]));
    let text = execute(&process(), sh("printf '[%400000s' 7").task(), json!(null)).await.unwrap();
    assert_eq!(text["stdout"].as_str().unwrap().len(), 400_001);
}

#[tokio::test]
async fn a_directory_that_cannot_be_made_is_worth_another_try() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("full"), "").unwrap();
    let mut task = sh("true").workdir(root.path().join("full/run")).task();
    Arc::get_mut(&mut task).expect("nobody else has it").own_workdir = true;
    let failure = execute(&process(), task, json!(null)).await.unwrap_err();
    assert!(failure.is(kind::PROCESS) && failure.retryable, "{failure}");
}

#[tokio::test]
async fn a_cancel_reaches_the_whole_group_and_lets_it_clean_up() {
    let (_dir, fifo) = fifo();
    let script = format!(
        "trap 'echo cleaned > {0}; exit' TERM; sleep 1000 & echo $! > {0}; wait",
        fifo.display()
    );
    let task = sh(&script).task();
    let cancel = task.cancel.clone();
    let process = process();
    let (got, (sleeper, cleaned)) = tokio::join!(execute(&process, task, json!(null)), async {
        let sleeper = word(&fifo).await;
        cancel.cancel();
        (sleeper, word(&fifo).await)
    });
    assert!(got.unwrap_err().is(kind::CANCELED));
    assert_eq!(cleaned, "cleaned");
    gone(&sleeper).await;
}

#[tokio::test]
async fn a_child_that_ignores_the_cancel_is_killed() {
    let (_dir, fifo) = fifo();
    let script = format!("trap '' TERM; echo $$ > {}; sleep 1000", fifo.display());
    let task = sh(&script).task();
    let cancel = task.cancel.clone();
    let process = impatient();
    let (got, pid) = tokio::join!(execute(&process, task, json!(null)), async {
        let pid = word(&fifo).await;
        cancel.cancel();
        pid
    });
    assert!(got.unwrap_err().is(kind::CANCELED));
    assert!(!lives(&pid));
}

#[tokio::test]
async fn a_child_that_reported_over_http_may_end_by_itself_and_is_killed_if_it_does_not() {
    for (script, process) in [("exit 7", process()), ("sleep 1000", impatient())] {
        let attempt = sh(script);
        let heard = attempt.heard();
        let task = attempt.task();
        let reported = task.reported.clone();
        let (got, _) = tokio::join!(execute(&process, task, json!(null)), async {
            let worker = heard.worker().await;
            reported.cancel();
            worker
        });
        assert_eq!(got.unwrap(), "parked");
    }
}

#[tokio::test]
async fn the_delivery_names_the_childs_pid() {
    let attempt = sh("echo $$");
    let heard = attempt.heard();
    let got = run(attempt, json!(null)).await.unwrap();
    assert_eq!(heard.worker().await, format!("pid {got}"));
}

#[tokio::test]
async fn what_a_child_leaves_behind_in_its_group_is_killed() {
    let (_dir, fifo) = fifo();
    let script = format!("sleep 1000 & echo $! > {}", fifo.display());
    let (got, sleeper) = tokio::join!(run(sh(&script), json!(null)), word(&fifo));
    assert_eq!(got.unwrap()["exit_code"], 0, "though the sleeper holds stdout");
    gone(&sleeper).await;
}

#[tokio::test]
async fn an_attempt_that_is_dropped_takes_its_child_along() {
    let (_dir, fifo) = fifo();
    let task = sh(&format!("echo $$ > {}; sleep 1000", fifo.display())).task();
    let process = process();
    let pid = tokio::select! {
        _ = execute(&process, task, json!(null)) => panic!("it sleeps"),
        pid = word(&fifo) => pid,
    };
    gone(&pid).await;
}

/// Returns an agent with an environment that needs no boundary.
fn within(script: &str, declared: Value) -> Attempt {
    sh(script).agent(|agent| agent.environment = Some(declared.into()))
}

fn rooms(environments: &Environments) -> usize {
    fs::read_dir(environments.root()).map_or(0, |entries| entries.count())
}

#[tokio::test]
async fn an_attempt_with_an_environment_has_a_directory_of_its_own_that_goes_with_it() {
    let process = process();
    let local = json!({ "isolation": "local" });
    let script = "pwd; touch x $TMPDIR/y; ls -d $MOONSWARM_WORKDIR $MOONSWARM_SECRETS >/dev/null";
    let got = execute(&process, within(script, local.clone()).task(), json!(null)).await.unwrap();
    let work = got["stdout"].as_str().unwrap().trim();
    assert!(work.ends_with("/room/work") && !Path::new(work).exists(), "{work}");
    let failing = within("touch x; exit 3", local.clone()).task();
    let failure = execute(&process, failing, json!(null)).await.unwrap_err();
    assert_eq!(failure.message, "`sh` exited with code 3");
    assert_eq!(rooms(&process.environments), 0);
    let canceled = within("sleep 1000", local).task();
    canceled.cancel.cancel();
    assert!(execute(&process, canceled, json!(null)).await.unwrap_err().is(kind::CANCELED));
    assert_eq!(rooms(&process.environments), 0);
}

#[tokio::test]
async fn a_directory_of_the_runs_own_can_still_be_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let attempt = within("pwd", json!({ "isolation": "local" }))
        .workdir(&root)
        .agent(|agent| agent.cwd = Some(".".to_owned()));
    assert_eq!(run(attempt, json!(null)).await.unwrap()["stdout"], format!("{}\n", root.display()));
}

#[tokio::test]
async fn a_child_that_takes_longer_than_its_environment_allows_is_killed() {
    let declared = json!({ "isolation": "local", "resources": { "wall": "20ms" } });
    let failure = run(within("sleep 1000", declared), json!(null)).await.unwrap_err();
    assert!(failure.is(kind::LIMIT) && !failure.retryable, "{failure}");
    assert!(failure.message.contains("wall: it took more than 20ms"), "{failure}");
}

#[tokio::test]
async fn what_cannot_be_given_is_a_failure_and_nothing_runs() {
    let declared = json!({ "isolation": "local", "network": "deny" });
    let failure = run(within("echo ran", declared), json!(null)).await.unwrap_err();
    assert!(failure.is(kind::ENVIRONMENT) && !failure.retryable, "{failure}");
    assert!(failure.message.contains("without a boundary"), "{failure}");
    let unknown = json!({ "credentials": { "ci": { "env": "A" } } });
    let failure = run(within("echo ran", unknown), json!(null)).await.unwrap_err();
    assert!(failure.message.contains("[secrets.ci]"), "{failure}");
}

#[tokio::test]
async fn the_operators_own_secrets_are_said_to_be_used_and_do_not_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    fs::write(&path, "canary-815\n").unwrap();
    let env = [
        ("KEY".to_owned(), Text::File { path: path.clone(), prefix: String::new() }),
        ("PLAIN".to_owned(), Text::Plain("plainly".to_owned())),
    ];
    let process = process().with_env(env.into());
    let attempt = sh("echo $KEY $PLAIN; echo $KEY >&2");
    let heard = attempt.heard();
    let task = attempt.task();
    let got = execute(&process, Arc::clone(&task), json!(null)).await.unwrap();
    assert_eq!(got["stdout"], "[secret KEY] plainly\n");
    assert_eq!(got["stderr"], "[secret KEY]\n");
    let [event] = &heard.secrets()[..] else { panic!("one was asked for") };
    assert_eq!(event.credential_name, "KEY");
    assert_eq!(event.outcome, SecretAccessOutcome::Resolved);
    let held = process.environments.held().of(task.ticket()).expect("what comes late is known");
    assert_eq!(held.scrub_text("canary-815"), "[secret KEY]");

    fs::remove_file(&path).unwrap();
    let attempt = sh("echo ran");
    let heard = attempt.heard();
    let failure = execute(&process, attempt.task(), json!(null)).await.unwrap_err();
    assert!(failure.message.starts_with("failed to read "), "{failure}");
    assert_eq!(heard.secrets()[0].outcome, SecretAccessOutcome::Failed);
}

#[tokio::test]
async fn json_in_which_a_secret_is_spelled_otherwise_is_kept_without_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    fs::write(&path, "canary/815").unwrap();
    let env = [("KEY".to_owned(), Text::File { path, prefix: String::new() })];
    let process = process().with_env(env.into());
    let spelled = sh(r#"printf '%s' '{"key":"canary\/815"}'"#).task();
    let got = execute(&process, spelled, json!(null)).await.unwrap();
    assert_eq!(got, json!({ "key": "[secret KEY]" }));
}

#[tokio::test]
async fn half_a_secret_where_the_complaints_were_cut_off_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    fs::write(&path, "canary-".repeat(20)).unwrap();
    let env = [("KEY".to_owned(), Text::File { path, prefix: String::new() })];
    let mut process = process().with_env(env.into());
    process.limits.stderr = 200;
    let got = execute(
        &process,
        sh("for i in 1 2 3 4 5 6 7 8 9; do echo \"$i $KEY\" >&2; done").task(),
        json!(null),
    );
    let got = got.await.unwrap();
    let stderr = got["stderr"].as_str().unwrap();
    assert!(!stderr.contains("canary") && stderr.ends_with("9 [secret KEY]\n"), "{stderr}");
}
