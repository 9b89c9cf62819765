//! What is refused before anything runs.

use super::{boxed, enforced, refused, shown};

#[test]
fn what_no_machine_gives_is_refused_by_check_with_its_reason() {
    for (environment, part) in [
        ("resources = { gpu = 1 }", "resources.gpu"),
        ("isolation = \"local\"\nnetwork = \"deny\"", "without a boundary"),
        ("isolation = \"local\"\nresources = { memory = \"1Gi\" }", "without a boundary"),
        ("isolation = \"local\"\npaths = { read = [\"/usr\"] }", "without a boundary"),
        ("resources = { memory = \"lots\" }", "no size"),
        ("credentials = { ci = { env = \"A\" } }", "[secrets.ci]"),
    ] {
        refused(environment, part);
    }
}

#[test]
fn a_source_that_this_host_cannot_ask_is_refused_by_check() {
    let environment = "credentials = { ci = { env = \"A\" } }\n\
                       [secrets.ci]\nvault = { mount = \"kv\", path = \"ci\" }";
    refused(environment, "[vault]");
}

#[test]
fn an_environment_that_nobody_declared_is_refused_by_name() {
    let shell = boxed("");
    shell.write("moonswarm.toml", "[environments.other]\n");
    let done = shell.run(&["check", "boxed.lua"]).exits(3);
    let all = shown(&done);
    assert!(all.contains("no environment \"box\", but other"), "{all}");
    assert!(all.contains("[environments.box]"), "{all}");
}

#[test]
fn a_daemon_refuses_what_check_refuses() {
    let shell = boxed("resources = { gpu = 1 }");
    let done = shell.run(&["run", "boxed.lua", "--input", "{\"script\":\"true\"}"]);
    assert_eq!(done.code, 3, "{done:?}");
    assert!(shown(&done).contains("MS-B027"), "{done:?}");
}

#[test]
fn a_mistake_in_the_file_is_shown_with_its_line() {
    let shell = boxed("netwrok = \"deny\"");
    let done = shell.run(&["check", "boxed.lua"]).exits(2);
    assert!(shown(&done).contains("moonswarm.toml:2:1: unknown key `netwrok`"), "{done:?}");
    shell.write("moonswarm.toml", "[secrets.x]\nenv = \"A\"\nfile = \"b\"\n");
    let done = shell.run(&["doctor"]).exits(2);
    assert!(shown(&done).contains("give one of"), "{done:?}");
}

#[test]
fn doctor_says_what_can_be_enforced_and_which_secrets_are_there() {
    let shell = boxed("resources = { gpu = 1 }");
    shell.write(
        "moonswarm.toml",
        "[environments.box]\nresources = { gpu = 1 }\n[environments.plain]\nisolation = \"local\"\n\
         [secrets.here]\ncommand = [\"echo\", \"canary-000\"]\n\
         [secrets.gone]\nenv = \"MOONSWARM_TEST_NOT_SET\"\n",
    );
    let done = shell.run(&["doctor"]).exits(1);
    for what in ["paths", "network", "memory", "cpu", "pids", "disk", "wall"] {
        enforced(what);
        assert!(done.stdout.contains(&format!("environment: {what} ")), "{}", done.stdout);
    }
    for line in [
        "ok    environment: plain can be given",
        "fail  environment: box: `resources.gpu`",
        "ok    secret: here (command) is there",
        "fail  secret: gone: failed to read the environment variable",
    ] {
        assert!(done.stdout.contains(line), "{line} in {}", done.stdout);
    }
    assert!(!done.stdout.contains("canary-000"), "{}", done.stdout);
}
