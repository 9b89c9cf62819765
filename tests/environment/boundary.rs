//! What a child within a boundary cannot do.

use std::net::TcpListener;

use serde_json::Value;

use super::{boxed, enforced, printed, refused, script};

/// The run failed because a limit was broken.
#[track_caller]
fn broke(view: &Value, limit: &str) {
    assert_eq!(view["error"]["kind"], "limit", "{view:#}");
    let message = view["error"]["message"].as_str().unwrap();
    let begin = format!("resource limit exceeded: {limit}: ");
    assert!(message.starts_with(&begin), "{message}");
    assert!(message.contains(&format!("raise `resources.{limit}`")), "{message}");
}

#[test]
fn files_outside_of_its_paths_are_closed_and_those_within_are_open() {
    if !enforced("paths") {
        return refused("isolation = \"process\"", "Landlock");
    }
    let shell = boxed("paths = { read = [\"given\"], write = [\"shared\"] }");
    shell.write("secret.txt", "outside");
    shell.write("given/file.txt", "inside");
    shell.write("shared/old.txt", "old");
    let view = script(
        &shell,
        "w=$MOONSWARM_WORKDIR
         no() { \"$@\" 2>/dev/null && echo \"DID: $*\"; }
         no cat $w/secret.txt; no cat $w/moonswarm.toml; no ls $w/.moonswarm; no ls /root
         no touch $w/new.txt; no touch $w/given/new.txt; no rm $w/given/file.txt; no ls /tmp
         no cat /proc/$PPID/environ; no kill -0 $PPID; no mknod block b 8 0
         cat $w/given/file.txt; echo new > $w/shared/new.txt; cat $w/shared/new.txt
         echo own > own.txt && cat own.txt; cat $MOONSWARM_BUNDLE/boxed.lua | grep -c environment
         touch $TMPDIR/x && pwd",
    );
    let text = printed(&view);
    assert!(text.starts_with("insidenew\nown\n1\n/"), "{text}");
    assert!(text.trim_end().ends_with("/room/work"), "{text}");
    assert!(!shell.path("new.txt").exists() && shell.path("given/file.txt").exists());
}

#[test]
fn a_child_has_no_capabilities_and_leaves_no_core() {
    if !enforced("paths") {
        return refused("isolation = \"process\"", "Landlock");
    }
    let view =
        script(&boxed(""), "grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; ulimit -c");
    let text = printed(&view);
    assert!(text.contains("CapEff:\t0000000000000000"), "{text}");
    assert!(text.contains("NoNewPrivs:\t1") && text.ends_with("\n0\n"), "{text}");
}

#[test]
fn a_closed_network_reaches_nobody_but_itself() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let reach = format!("bash -c 'echo > /dev/tcp/127.0.0.1/{port}' 2>&1 && echo reached");
    let open = script(&boxed("network = \"allow\""), &reach);
    assert_eq!(printed(&open), "reached\n", "the way is right");
    if !enforced("network") {
        return refused("network = \"deny\"", "network namespace");
    }
    let view = script(&boxed("network = \"deny\""), &format!("{reach}; tail -n +3 /proc/net/dev"));
    let text = printed(&view);
    assert!(text.contains("Connection refused") && !text.contains("reached"), "{text}");
    let devices: Vec<_> = text.lines().filter(|line| line.contains(": ")).collect();
    assert!(devices.iter().any(|line| line.trim().starts_with("lo:")), "{text}");
    assert!(!text.contains("eth0"), "{text}");
}

#[test]
fn a_child_that_needs_more_memory_is_killed_with_a_typed_error() {
    if !enforced("memory") {
        return refused("resources = { memory = \"32Mi\" }", "resources.memory");
    }
    let shell = boxed("resources = { memory = \"32Mi\" }");
    broke(&script(&shell, "head -c 200000000 /dev/zero | tail -c 150000000 | wc -c"), "memory");
    assert_eq!(script(&shell, "echo 7")["output"], 7, "one that needs less is left alone");
}

#[test]
fn a_child_cannot_have_more_processes_than_it_may() {
    if !enforced("pids") {
        return refused("resources = { pids = 10 }", "resources.pids");
    }
    let shell = boxed("resources = { pids = 10 }");
    broke(&script(&shell, "for i in $(seq 40); do sleep 1000 & done; wait"), "pids");
    assert_eq!(script(&shell, "(sleep 0; echo 7)")["output"], 7);
}

#[test]
fn the_cores_of_a_child_are_counted() {
    if !enforced("cpu") {
        return refused("resources = { cpu = 0.5 }", "resources.cpu");
    }
    let shell = boxed("resources = { cpu = 0.5 }\npaths = { read = [\"/sys/fs/cgroup\"] }");
    let view = script(
        &shell,
        "own=$(grep -E '^[0-9]+:([^:]*,)?cpu[:,]' /proc/self/cgroup | cut -d: -f3)
         two=$(grep '^0::' /proc/self/cgroup | cut -d: -f3)
         cat /sys/fs/cgroup/cpu*$own/cpu.cfs_quota_us /sys/fs/cgroup*/$two/cpu.max 2>/dev/null
         echo end",
    );
    let text = printed(&view);
    assert!(text == "50000\nend\n" || text == "50000 100000\nend\n", "{text}");
}

#[test]
fn the_files_of_a_child_have_a_size() {
    if !enforced("disk") {
        return refused("resources = { disk = \"1Mi\" }", "resources.disk");
    }
    let shell = boxed("resources = { disk = \"1Mi\" }");
    let fill = "for i in 1 2 3 4; do head -c 500000 /dev/zero > f$i || echo full $i; done 2>&1";
    let view = script(&shell, fill);
    assert!(printed(&view).contains("No space left"), "{view:#}");
    assert!(printed(&view).contains("full 3"), "{view:#}");
}

#[test]
fn the_files_of_a_child_have_a_number() {
    if !enforced("disk") {
        return refused("resources = { disk = \"1Mi\" }", "resources.disk");
    }
    let shell = boxed("resources = { disk = \"1Mi\" }");
    let fill = "i=0; while [ $i -lt 2000 ] && true > f$i; do i=$((i + 1)); done 2>&1; ls | wc -l";
    let view = script(&shell, fill);
    let made: u32 = printed(&view).lines().last().unwrap().trim().parse().unwrap();
    assert!((400..600).contains(&made), "{view:#}");
}

#[test]
fn a_child_that_takes_too_long_is_killed_with_a_typed_error() {
    for isolation in ["process", "local"] {
        if isolation == "process" && !enforced("paths") {
            continue;
        }
        let environment =
            format!("isolation = \"{isolation}\"\nresources = {{ wall = \"200ms\" }}");
        broke(&script(&boxed(&environment), "sleep 1000"), "wall");
    }
}

#[test]
fn a_program_out_of_reach_says_what_would_help() {
    if !enforced("paths") {
        return refused("isolation = \"process\"", "Landlock");
    }
    let shell = boxed("");
    let tool = shell.write("tool", "#!/bin/sh\necho 7\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&tool, mode).unwrap();
    let blueprint = super::BOXED.replace("\"sh\", \"-c\", \"{{ script }}\"", "\"{{ script }}\"");
    shell.write("boxed.lua", blueprint);
    let view = script(&shell, tool.to_str().unwrap());
    let message = view["error"]["message"].as_str().unwrap();
    assert!(message.contains("failed to start") && message.contains("`paths.read`"), "{message}");
    let missing = script(&shell, "no-such-program");
    let message = missing["error"]["message"].as_str().unwrap();
    assert!(message.contains("not installed"), "{message}");
    shell.write("moonswarm.toml", "[environments.box]\npaths = { read = [\"tool\", \"gone\"] }\n");
    let view = script(&shell, tool.to_str().unwrap());
    assert_eq!(view["error"]["kind"], "environment", "{view:#}");
    assert!(view["error"]["message"].as_str().unwrap().contains("gone"), "{view:#}");
    shell.write("moonswarm.toml", "[environments.box]\npaths = { read = [\"tool\"] }\n");
    assert_eq!(script(&shell, tool.to_str().unwrap())["output"], 7);
}
