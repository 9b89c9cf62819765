//! The examples run and print what they say.

use std::{path::PathBuf, process::Command};

/// The built example, beside the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not built: cargo build --examples", path.display());
    path
}

fn printed(name: &str) -> String {
    let done = Command::new(example(name)).output().unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{name}: {stderr}");
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn a_plain_operator_is_used_from_a_blueprint() {
    assert_eq!(printed("custom_operator"), "3\n");
}

#[test]
fn a_layer_that_is_code_refuses_an_agent() {
    let printed = printed("custom_layer");
    assert!(printed.contains("hello") && printed.contains("curse is not greet"), "{printed}");
}

#[test]
fn a_host_runs_inside_another_program() {
    let printed = printed("embed");
    assert!(printed.starts_with("listening on http://127.0.0.1:"), "{printed}");
    assert!(printed.contains(r#"["ADA","GRACE"]"#), "{printed}");
}

#[test]
fn a_program_drives_a_models_loop_by_itself() {
    assert_eq!(printed("response_loop"), "\"It is 42.\"\n");
}

#[test]
fn a_coded_operator_is_a_tool_of_a_model() {
    assert_eq!(printed("coded_tool"), "\"It is 42.\"\n");
}

#[test]
fn middleware_of_the_protocol_stands_around_state_and_execution() {
    assert_eq!(printed("around"), "[\"us\",\"hi\",5,\"refused\",\"refused\"]\n");
}

#[test]
fn a_command_goes_through_an_environment_of_ones_own() {
    let expected = r#"{"args":["-w"],"memory":"1Gi","program":"wc","stdin":"\"two words\""}"#;
    assert_eq!(printed("own_environment").trim_end(), expected);
}

#[test]
fn a_scope_of_state_is_kept_in_files_of_ones_own() {
    assert_eq!(printed("file_store"), "[\"round\",\"low\",[\"moon\",\"tide\"]]\n2\n");
}

#[test]
fn code_of_ones_own_is_plugged_into_a_host() {
    let expected = "[\"MOON\",\"pong\",\"(quiet)\",\"a worker for far\"]\n";
    assert_eq!(printed("plug_in"), expected);
}
