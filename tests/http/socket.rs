//! The socket in the data directory: the commands of this machine use it first.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};

use crate::support::{Daemon, Shell};

/// Makes the published address one at which nobody listens.
fn hide_the_port(shell: &Shell, daemon: &Daemon) {
    let file = shell.path("data/server.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let dead = text.replace(&daemon.url, "http://127.0.0.1:1");
    assert_ne!(text, dead);
    std::fs::write(file, dead).unwrap();
}

#[tokio::test]
async fn commands_go_through_the_socket_and_without_it_to_the_port() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let socket = shell.path("data/moonswarm.sock");
    let meta = std::fs::symlink_metadata(&socket).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    std::fs::rename(&socket, shell.path("aside")).unwrap();
    shell.run(&["ps", "--data", "data"]).ok();
    std::fs::rename(shell.path("aside"), &socket).unwrap();
    hide_the_port(&shell, &daemon);
    shell.run(&["ps", "--data", "data"]).ok();
    let raw = shell.run(&["whoami", "--data", "data", "--json"]).ok().json();
    assert_eq!(raw["subject"], "admin");
    std::fs::remove_file(&socket).unwrap();
    assert_ne!(shell.run(&["ps", "--data", "data"]).code, 0, "neither way is left");
}

#[tokio::test]
async fn a_socket_that_a_killed_daemon_left_is_replaced_and_a_stopped_one_leaves_none() {
    let shell = Shell::new();
    let socket = shell.path("data/moonswarm.sock");
    Daemon::start(&shell.path("data")).kill();
    assert!(socket.exists());
    let daemon = Daemon::start(&shell.path("data"));
    hide_the_port(&shell, &daemon);
    shell.run(&["ps", "--data", "data"]).ok();
    assert_eq!(daemon.stop(), Some(0));
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_long_path_has_a_socket_as_well() {
    let shell = Shell::new();
    let name = "d".repeat(150);
    let daemon = Daemon::start(&shell.path(&name));
    let file = shell.path(&name).join("server.json");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(file, text.replace(&daemon.url, "http://127.0.0.1:1")).unwrap();
    shell.run(&["ps", "--data", &name]).ok();
}
