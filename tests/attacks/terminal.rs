//! Text from outside that is shown on a terminal or in a log.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Daemon, Shell};

/// Sets the title, clears the screen, hides what follows, fills the clipboard, turns the direction
/// around, and begins a line of its own.
const EVIL: &str = "\u{1b}]0;pwn\u{7}\u{1b}[2J\u{1b}[8m\u{1b}]52;c;cHdu\u{7}\u{9b}2J\u{202e}\u{61c}\u{7f}\
                    \r\nFAKE: all good\n  next: moonswarm delete last";

/// The same as Lua writes it.
const LUA: &str = r#""\27]0;pwn\7\27[2J\27[8m\27]52;c;cHdu\7\u{9b}2J\u{202e}\u{61c}\u{7f}\r\nFAKE: all good\n  next: moonswarm delete last""#;

/// What is left of a text that may steer a terminal, colors of this program aside, and lines
/// that somebody else began.
fn steering(shown: &str) -> Vec<String> {
    let mut plain = shown.replace("\r\n", "\n");
    // Colors of this program; what hides text is none of them.
    let mut rest = std::mem::take(&mut plain);
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        let end = after.find(|c: char| !c.is_ascii_digit() && c != ';').unwrap_or(after.len());
        let is_color = after[end..].starts_with('m') && &after[..end] != "8";
        plain.push_str(if is_color { "" } else { "\u{1b}[" });
        rest = after[if is_color { end + 1 } else { 0 }..].to_owned();
    }
    plain.push_str(&rest);
    // How this program takes its own drawing away.
    for rows in 1..9 {
        plain = plain.replace(&format!("\r\u{1b}[{rows}A\u{1b}[J"), "");
    }
    let steers = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let around =
        |(at, _): (usize, char)| format!("{:?}", plain[at..].chars().take(12).collect::<String>());
    let mut found: Vec<_> = plain.char_indices().filter(|(_, c)| steers(*c)).map(around).collect();
    let forged =
        |line: &&str| line.starts_with("FAKE") || line.starts_with("  next: moonswarm delete");
    found.extend(plain.lines().filter(forged).map(str::to_owned));
    found
}

/// A command on a real terminal, with colors; what it wrote there.
fn on_a_terminal(shell: &Shell, args: &[&str]) -> String {
    let line = format!("exec '{}' {}", env!("CARGO_BIN_EXE_moonswarm"), args.join(" "));
    let output = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .current_dir(shell.path(""))
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR")
        .env("CLICOLOR_FORCE", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn stays_plain(shell: &Shell, args: &[&str]) {
    let done = shell.run(args);
    for shown in [&done.stdout, &done.stderr, &on_a_terminal(shell, args)] {
        let found = steering(shown);
        assert!(found.is_empty(), "moonswarm {args:?}: {found:?} in {shown:?}");
    }
}

fn flow(name: &str, agents: &str, body: &str) -> String {
    format!(
        "local swarm = require(\"swarm\")\nlocal evil = {LUA}\nreturn swarm.blueprint {{ name = \
         \"{name}\", agents = {{ {agents} }}, flow = function(ctx, input)\n{body}\nend }}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_flow_or_a_worker_wrote_steers_the_terminal_of_whoever_looks() {
    let shell = Shell::new();
    let data = shell.path(".moonswarm");
    let daemon = Daemon::start_with(&data, &["--log".as_ref(), "debug".as_ref()]);
    let report = json!({ "ok": false, "error": { "message": EVIL } }).to_string();
    shell.write("report.json", &report);
    let worker = format!(
        "w = {{ operator = \"process\", command = {{ \"sh\", \"-c\", 'curl -s -H \"Authorization: Bearer \
         $MOONSWARM_HANDLE\" -H \"content-type: application/json\" -d @{} $MOONSWARM_URL/v1/worker/result; \
         printf \"\\033[2Jx\" >&2' }} }}",
        shell.path("report.json").display()
    );
    let body = "ctx:log(\"info\", evil) ctx:status(evil) ctx.state:set(\"k\", evil) return ctx:run(\"w\", evil)";
    let failed = daemon.run_source(&flow("failed", &worker, body), Value::Null).await;
    let view = daemon.ended(&failed).await;
    assert!(view["error"]["message"].as_str().unwrap().contains("\u{1b}]0;pwn"), "{view}");
    let raised = daemon.run_source(&flow("raised", "", "error(evil)"), Value::Null).await;
    daemon.ended(&raised).await;
    let asked = "return ctx:approve { title = evil, body = evil }";
    let asked = daemon.run_source(&flow("asked", "", asked), Value::Null).await;
    let task = daemon.waits(&asked, "task").await["waiting_on"][0]["subject"]["task"].clone();
    let task = task.as_str().unwrap().to_owned();
    let said = daemon.run_source(&flow("said", "", "return evil"), Value::Null).await;
    daemon.ended(&said).await;
    shell.write("raises.lua", flow("raises", "", "error(evil)"));
    shell.write("wrong.lua", flow("wrong", "x = { operator = evil }", "return 1"));
    shell.write("broken.lua", "local x = -- \u{202e}\u{1b}[2J\u{9b}\nreturn \u{1b}[2J");
    shell.write("says_test.lua", "local t = require(\"swarm.test\")\nt.case(\"a\", function() error(\"\\27[2J\\nFAKE\") end)");

    for args in [
        &["show", &failed][..],
        &["show", &raised],
        &["show", &asked],
        &["show", &task],
        &["result", &failed],
        &["result", &raised],
        &["logs", &failed],
        &["logs", &failed, "--json"],
        &["ps"],
        &["ps", "--json"],
        &["inbox"],
        &["inbox", &task],
        &["inbox", "--json"],
        &["show", &failed, "--json"],
        &["show", &failed, "--step", "1"],
        &["state", "list"],
        &["run", "raises.lua"],
        &["run", "wrong.lua"],
        &["check", "wrong.lua"],
        &["check", "broken.lua"],
        &["check", "broken.lua", "--format", "github"],
        &["check", "broken.lua", "--format", "json"],
        &["test", "says_test.lua"],
        &["doctor"],
    ] {
        stays_plain(&shell, args);
    }
    // A result is data: whole in a pipe, plain on a terminal.
    assert_eq!(shell.run(&["result", &said]).ok().stdout, format!("{EVIL}\n"));
    let shown = on_a_terminal(&shell, &["result", &said]).replace("FAKE", "");
    assert!(steering(&shown.replace("  next:", "")).is_empty(), "{shown:?}");
    let exact: Value = shell.run(&["result", &said, "--json"]).ok().json();
    assert_eq!(exact, EVIL);
    let ended = ["events", "--since", "first", "--types", "run.ended", "--limit", "1", "--json"];
    let event = shell.run(&ended).ok().json();
    let message = event["data"]["error"]["message"].as_str().unwrap();
    assert!(message.contains('\u{202e}'), "JSON means what it meant: {event}");
    let log = std::fs::read_to_string(data.with_extension("log")).unwrap();
    assert!(steering(&log).is_empty(), "{:?}", steering(&log));
}

#[test]
fn what_is_in_the_way_of_a_daemon_steers_no_terminal_either() {
    let shell = Shell::new();
    let name = "a\u{1b}[2J\u{202e}.lua";
    shell.write(name, "return 1");
    for args in [&["check", name][..], &["run", name], &["show", "\u{1b}[2J"]] {
        let done = shell.run(args);
        assert!(steering(&done.stderr).is_empty(), "{args:?}: {:?}", done.stderr);
        assert!(steering(&done.stdout).is_empty(), "{args:?}: {:?}", done.stdout);
    }
}
