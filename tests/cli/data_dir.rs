//! A data directory has one owner, one format and no other readers.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    process::Stdio,
    time::Duration,
};

use moonswarm::{
    engine::Lend,
    host::{ClusterConfig, HostConfig, Node},
    store::{ClusterKey, DatabaseAddress, LeaseTimes, PostgresOptions},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    Daemon, Shell, eventually_blocking, postgres::Database, repository, skip, tls, when,
};

fn hello(shell: &Shell) -> crate::support::Done {
    shell.run(&["run", repository("blueprints/hello.lua").to_str().unwrap()])
}

#[test]
fn a_second_owner_is_refused_and_told_who_the_first_is() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path(".moonswarm"));
    shell
        .run(&["serve", "--listen", "127.0.0.1:0"])
        .exits(6)
        .says(&[&daemon.url, &format!("pid {}", daemon.pid())]);
    hello(&shell).ok();
}

#[test]
fn a_directory_that_its_owner_is_about_to_free_is_waited_for() {
    let shell = Shell::new();
    hello(&shell).ok();
    // A host that stops has no address any more, and the lock until the end.
    let path = shell.path(".moonswarm/lock");
    let take = || {
        let lock = File::options().write(true).open(&path).unwrap();
        lock.lock().unwrap();
        fs::write(&path, std::process::id().to_string()).unwrap();
        lock
    };
    let free = |lock: File| {
        fs::write(&path, "0").unwrap();
        drop(lock);
    };
    let held = take();
    let mut run = shell.start(&["run", repository("blueprints/hello.lua").to_str().unwrap()]);
    run.until("starts or stops: waiting for it");
    free(held);
    let done = run.end().ok();
    assert!(!done.stdout.is_empty(), "{}", done.stderr);
    let held = take();
    let mut serve = shell.start(&["serve", "--listen", "127.0.0.1:0"]);
    serve.until("starts or stops: waiting for it");
    free(held);
    serve.until("http://127.0.0.1:");
    serve.signal(Signal::TERM);
    serve.end().ok();
}

#[test]
fn a_daemon_that_waits_for_its_directory_stops_when_it_is_told_to() {
    let shell = Shell::new();
    hello(&shell).ok();
    let path = shell.path(".moonswarm/lock");
    let held = File::options().write(true).open(&path).unwrap();
    held.lock().unwrap();
    fs::write(&path, std::process::id().to_string()).unwrap();
    let mut serve = shell.start(&["serve", "--listen", "127.0.0.1:0"]);
    serve.until("starts or stops: waiting for it");
    serve.signal(Signal::TERM);
    serve.end().ok();
    drop(held);
}

#[test]
fn a_daemon_whose_stdout_is_closed_serves_and_stops_in_order() {
    let shell = Shell::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = shell.command(&["serve", "--json", "--listen", "127.0.0.1:0"]);
    let mut serve = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(serve.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("failed to print the address")));
    shell.run(&["health"]).ok();
    kill_process(Pid::from_child(&serve), Signal::TERM).unwrap();
    assert!(lines.any(|line| line.contains("stopping")));
    lines.for_each(drop);
    assert_eq!(serve.wait().unwrap().code(), Some(0));
    assert_eq!(fs::read_to_string(shell.path(".moonswarm/lock")).unwrap().trim(), "0");
}

#[test]
fn a_new_certificate_is_published_also_if_the_disk_was_full_when_it_came() {
    let shell = Shell::new();
    let put = |name: &str| {
        for (from, to) in [(format!("{name}.pem"), "c.pem"), (format!("{name}.key"), "k.pem")] {
            let draft = shell.write("draft", fs::read(tls::file(&from)).unwrap());
            fs::rename(draft, shell.path(to)).unwrap();
        }
    };
    put("first");
    let (cert, key) = (shell.path("c.pem"), shell.path("k.pem"));
    let flags = ["--tls-cert".as_ref(), cert.as_os_str(), "--tls-key".as_ref(), key.as_os_str()];
    let daemon = Daemon::start_with(&shell.path("data"), &flags);
    let server = || fs::read_to_string(shell.path("data/server.json")).unwrap();
    let before = server();
    // As on a full disk, its draft cannot be written.
    fs::create_dir(shell.path("data/server.new")).unwrap();
    put("second");
    eventually_blocking("the warning", || {
        let log = daemon.log();
        when(log.contains("do not trust the new certificate"), log)
    });
    assert_eq!(server(), before);
    fs::remove_dir(shell.path("data/server.new")).unwrap();
    eventually_blocking("the new certificate", || when(server() != before, server()));
}

#[tokio::test]
async fn a_node_that_cannot_open_the_runs_gives_its_port_and_its_directory_back() {
    let Ok(database) = Database::fresh().map_err(|why| skip("a node over PostgreSQL", &why)) else {
        return;
    };
    let shell = Shell::new();
    shell.run(&["cluster", "key", "--out", "key"]).ok();
    let key = fs::read_to_string(shell.path("key")).unwrap();
    let cluster = ClusterConfig {
        key: key.trim().parse::<ClusterKey>().unwrap(),
        name: None,
        peer_listen: "127.0.0.1:0".parse().unwrap(),
        peer_address: None,
        url: None,
        times: LeaseTimes::default(),
        lend: Lend::Off,
    };
    let address = DatabaseAddress::parse(&database.url()).unwrap();
    let config = HostConfig {
        postgres: Some(PostgresOptions::new(address)),
        cluster: Some(cluster),
        ..HostConfig::new(shell.path("data"))
    };
    let node = Node::open(config).await.unwrap();
    let at = node.url().strip_prefix("http://").unwrap().to_owned();
    assert!(TcpStream::connect(&at).is_ok());
    fs::remove_dir(shell.path("data/work")).unwrap();
    fs::write(shell.path("data/work"), "no directory").unwrap();
    let never = std::future::pending();
    let ended = node.run(never, Duration::from_secs(10), |_| ()).await;
    assert!(ended.unwrap_err().to_string().contains("data/work"));
    assert!(TcpStream::connect(&at).is_err());
    assert!(File::open(shell.path("data/lock")).unwrap().try_lock().is_ok());
}

#[test]
fn what_a_killed_owner_left_behind_is_in_nobodys_way() {
    let shell = Shell::new();
    let data = shell.path(".moonswarm");
    Daemon::start(&data).kill();
    assert!(data.join("server.json").exists());
    let done = hello(&shell).ok();
    assert!(!done.stderr.contains("attached"), "{}", done.stderr);
    Daemon::start(&data).stop();
    assert!(!data.join("server.json").exists(), "who stops in order takes it away");
}

#[test]
fn a_directory_of_a_newer_release_is_refused_and_left_as_it_is() {
    let shell = Shell::new();
    hello(&shell).ok();
    let file = shell.path(".moonswarm/moonswarm.db");
    let db = rusqlite::Connection::open(&file).unwrap();
    db.pragma_update(None, "user_version", 999).unwrap();
    db.close().unwrap();
    let before = fs::read(&file).unwrap();
    let done = hello(&shell);
    assert_ne!(done.code, 0);
    done.says(&["newer"]);
    assert_ne!(shell.run(&["serve", "--listen", "127.0.0.1:0"]).says(&["newer"]).code, 0);
    assert!(fs::read(&file).unwrap() == before, "not a byte changed");
}

#[test]
fn keys_that_others_can_read_are_refused_with_the_command_that_helps() {
    let shell = Shell::new();
    hello(&shell).ok();
    for name in ["signing.key", "handle.key", "admin.token"] {
        let file = shell.path(".moonswarm").join(name);
        let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        mode(0o644).unwrap();
        let done = hello(&shell);
        assert_ne!(done.code, 0, "{name}");
        done.says(&["others can read it", "chmod 600", name]);
        mode(0o600).unwrap();
    }
    hello(&shell).ok();
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error_and_no_panic() {
    let shell = Shell::new();
    shell.write("file", "");
    let file = repository("blueprints/hello.lua");
    let done = shell.run(&["--data", "file/below", "run", file.to_str().unwrap()]);
    assert_ne!(done.code, 0);
    done.says(&["file/below"]);
}
