//! A walk through the dashboard in a real Chromium: `browser/walk.mjs`.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::json;

use crate::{
    person::{DEMO, HOSTILE, daemon, mint},
    sign_in::open,
    support::{Daemon, eventually_blocking, program, repository, send, skip},
    things,
};

/// Where `scripts/test.sh` installs the packages of npm.
pub fn modules() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository("target"), PathBuf::from);
    target.join("clients/browser")
}

/// Starts a daemon again where it was.
fn again(data: &Path, url: &str) -> Child {
    let address = url.strip_prefix("http://").unwrap();
    let serve = program()
        .args(["serve", "--listen", address, "--data"])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually_blocking("the daemon listens again", || std::net::TcpStream::connect(address));
    serve
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_walks_through_every_page() {
    let chromium = Path::new("/usr/bin/chromium");
    let modules = modules();
    let there = |name: &str| modules.join("node_modules").join(name).is_dir();
    if !chromium.exists() || !there("playwright-core") || !there("axe-core") {
        return skip(
            "the dashboard in a browser",
            "chromium, playwright-core or axe-core is not installed",
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let daemon: Daemon = daemon(dir.path()).await;
    assert!(DEMO.contains("alert") && HOSTILE.contains("alert"));
    let body = json!({ "blueprint": "hostile", "input": { "text": "<script>alert(9)</script>" } });
    let (status, view) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!(status, 201, "{view}");
    daemon.ended(view["id"].as_str().unwrap()).await;
    things::furnish(&daemon).await;
    let approver = mint(&daemon, "approver", &json!({ "name": "ann" })).await;
    let admin = mint(&daemon, "admin", &json!({})).await;
    let mut walk = Command::new("node")
        .arg(repository("tests/dashboard/browser/walk.mjs"))
        .env("MODULES", &modules)
        .env("CHROMIUM", chromium)
        .env("LINK", open(&data, &["--role", "operator"]))
        .env("APPROVER", approver)
        .env("ADMIN", admin)
        .env("SHOTS", modules.join("../../dashboard"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answers = walk.stdin.take().unwrap();
    let mut told = BufReader::new(walk.stdout.take().unwrap()).lines();
    let (url, mut first, mut next) = (daemon.url.clone(), Some(daemon), None);
    let end = loop {
        let line = told.next().expect("the walk says how it ended").unwrap();
        match line.as_str() {
            "kill" => first.take().expect("once").kill(),
            "start" => next = Some(again(&data, &url)),
            _ => break line,
        }
        writeln!(answers, "done").unwrap();
    };
    walk.wait().unwrap();
    if let Some(mut next) = next {
        next.kill().unwrap();
        next.wait().unwrap();
    }
    let why = end.strip_prefix("failed ").and_then(|why| serde_json::from_str::<String>(why).ok());
    assert!(end.starts_with("walked "), "{}", why.unwrap_or(end));
}
