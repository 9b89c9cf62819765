//! What the daemon tells the service manager that started it.

use std::os::{
    linux::net::SocketAddrExt as _,
    unix::net::{SocketAddr, UnixDatagram},
};

use crate::support::{Daemon, PATIENCE, Shell};

/// The next message that has a word.
fn until(socket: &UnixDatagram, word: &str) -> String {
    let mut bytes = [0; 512];
    loop {
        let length = socket.recv(&mut bytes).unwrap_or_else(|error| panic!("{word}: {error}"));
        let text = String::from_utf8(bytes[..length].to_vec()).unwrap();
        if text.lines().any(|line| line.starts_with(word)) {
            return text;
        }
    }
}

fn follow(socket: &UnixDatagram, name: &str) {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let shell = Shell::new();
    let env = [("NOTIFY_SOCKET", name), ("WATCHDOG_USEC", "100000")];
    let daemon = Daemon::launch(&shell.path("data"), &env).unwrap();
    let ready = until(socket, "READY=1");
    assert!(ready.contains(&format!("MAINPID={}", daemon.pid())), "{ready}");
    assert!(ready.contains("STATUS=serving http://127.0.0.1:"), "{ready}");
    for _ in 0..3 {
        until(socket, "WATCHDOG=1");
    }
    assert_eq!(daemon.stop(), Some(0));
    until(socket, "STOPPING=1");
}

#[test]
fn a_manager_with_a_socket_in_a_directory_hears_of_start_life_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    follow(&UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap());
}

#[test]
fn a_manager_with_an_abstract_socket_hears_it_too() {
    let name = format!("moonswarm-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    follow(&UnixDatagram::bind_addr(&address).unwrap(), &format!("@{name}"));
}

#[test]
fn a_health_check_needs_no_token_and_says_when_nobody_answers() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let check = ["health", "--data", "data"];
    let said = shell.run(&check).ok().stdout;
    assert!(said.starts_with("ok: http://127.0.0.1:"), "{said}");
    let url = format!("{}/", daemon.url);
    assert_eq!(shell.run(&["health", "--server", &url, "--json"]).ok().json()["status"], "ok");
    assert_eq!(daemon.stop(), Some(0));
    shell.run(&["health", "--server", "http://127.0.0.1:9"]).exits(69);
    assert!(!shell.path("elsewhere").exists());
}

#[test]
fn a_health_check_without_a_daemon_advises_to_start_one() {
    let shell = Shell::new();
    Daemon::start(&shell.path("data")).kill();
    let done = shell.run(&["health", "--data", "data"]).exits(69);
    let done = done.says(&["cannot be reached", "next: start one with `moonswarm serve`"]);
    assert!(!done.stderr.contains("--server"), "{}", done.stderr);
}

#[test]
fn the_doctor_shows_the_address_of_the_daemon_that_runs() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    let told = shell.run(&["doctor"]).stdout;
    let address = daemon.url.trim_start_matches("http://");
    assert!(told.contains(&format!("address: {address}, for this machine")), "{told}");
}

#[test]
fn the_manual_has_a_page_for_every_command_that_is_shown() {
    let shell = Shell::new();
    shell.run(&["manual", "man"]).ok();
    let page = |name: &str| std::fs::read_to_string(shell.path("man").join(name)).unwrap();
    assert!(page("moonswarm.1").contains("moonswarm\\-erase(1)"), "{}", page("moonswarm.1"));
    assert!(page("moonswarm-erase.1").contains("\\-\\-subject"));
    let pages = std::fs::read_dir(shell.path("man")).unwrap().count();
    assert!(pages > 60, "{pages} pages");
    assert!(!shell.path("man/moonswarm-formats.1").exists());
}

#[test]
fn a_manager_that_is_gone_and_a_watchdog_of_another_process_change_nothing() {
    let shell = Shell::new();
    let env = [("NOTIFY_SOCKET", "/nowhere/at/all"), ("WATCHDOG_USEC", "1"), ("WATCHDOG_PID", "1")];
    let daemon = Daemon::launch(&shell.path("data"), &env).unwrap();
    assert_eq!(daemon.stop(), Some(0));
}
