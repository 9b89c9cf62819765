//! Links that answer a task: who may make one, what uses it up, and where it must not appear.

use std::{io::Write as _, net::TcpStream};

use reqwest::{Method, header};
use serde_json::{Value, json};

use crate::support::{Daemon, Shell, eventually, refusal, send, when};

/// Asks one person, twice if the first time runs out.
const ASKS: &str = r#"
return require("swarm").blueprint {
  name = "asks",
  agents = { ask = { operator = "human", prompt = "Ship <script>it</script>?", by = { "ann" }, timeout = "1d",
                     retry = { max_attempts = 3, backoff = "1ms" },
                     output = { type = "boolean" } } },
  flow = function(ctx) return ctx:run("ask", {}) end,
}
"#;

async fn mint(daemon: &Daemon, body: Value) -> String {
    let (status, minted) = send(daemon.post("/v1/tokens", &body)).await;
    assert_eq!(status, 201, "{minted}");
    minted["token"].as_str().unwrap().to_owned()
}

/// Starts a run with a token, and returns its id and that of its task.
async fn asks(daemon: &Daemon, token: &str) -> (String, String) {
    let (status, put) = send(daemon.put("/v1/blueprints/asks", &json!({ "source": ASKS }))).await;
    assert_eq!(status, 200, "{put}");
    let start = daemon.with(token, Method::POST, "/v1/runs").json(&json!({ "blueprint": "asks" }));
    let (status, run) = send(start).await;
    assert_eq!(status, 201, "{run}");
    let run = run["id"].as_str().unwrap().to_owned();
    daemon.waits(&run, "task").await;
    let (_, tasks) = send(daemon.get(&format!("/v1/tasks?run={run}"))).await;
    (run, tasks["items"][0]["id"].as_str().unwrap().to_owned())
}

fn ask(daemon: &Daemon, token: &str, task: &str, person: &str) -> reqwest::RequestBuilder {
    let path = format!("/v1/tasks/{task}/links");
    daemon.with(token, Method::POST, &path).json(&json!({ "for": person }))
}

/// Makes a link, and returns its path.
async fn link(daemon: &Daemon, task: &str) -> String {
    let (status, made) = send(ask(daemon, &daemon.token, task, "ann")).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(made["for"], "ann");
    let path = made["path"].as_str().unwrap().to_owned();
    assert_eq!(made["url"], format!("{}{path}", daemon.url));
    path
}

async fn page(daemon: &Daemon, path: &str) -> (u16, String) {
    let answer = daemon.bare(Method::GET, path).send().await.unwrap();
    assert_eq!(answer.headers()["referrer-policy"], "no-referrer");
    assert_eq!(answer.headers()["cache-control"], "no-store");
    assert!(!answer.headers().contains_key(header::SET_COOKIE));
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// Sends the form as a browser does from a page without a referrer.
async fn post(daemon: &Daemon, path: &str, form: &str, more: &str) -> (u16, String) {
    let answer = daemon
        .bare(Method::POST, path)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(header::ORIGIN, "null")
        .body(format!("form={form}&act=answer&{more}"))
        .send()
        .await
        .unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

fn form_of(page: &str) -> String {
    page.split("name=\"form\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_link_answers_once_for_its_person_and_looking_at_it_uses_nothing_up() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (run, task) = asks(&daemon, &daemon.token).await;
    let path = link(&daemon, &task).await;
    for _ in 0..3 {
        let (status, page) = page(&daemon, &path).await;
        assert_eq!(status, 200, "{page}");
        assert!(page.contains("&lt;script&gt;it") && page.contains("ann"), "{page}");
        assert!(!page.contains("/ui/runs") && !page.contains(&run), "it leads nowhere: {page}");
        assert!(page.contains("/away-"), "a second click sends nothing: {page}");
    }
    let form = form_of(&page(&daemon, &path).await.1);
    for wrong in ["", "0123456789abcdef0123456789abcdef"] {
        let (status, page) = post(&daemon, &path, wrong, "f0=true").await;
        assert!(status == 403 && page.contains("form_refused"), "{page}");
    }
    assert_eq!(post(&daemon, &path, &form, "raw=%22maybe%22").await.0, 422, "it does not fit");
    let (status, done) = post(&daemon, &path, &form, "f0=true").await;
    assert_eq!(status, 200, "{done}");
    assert_eq!(daemon.ended(&run).await["output"], true);
    for _ in 0..2 {
        assert_eq!(post(&daemon, &path, &form, "f0=false").await.0, 404, "it is used up");
        assert_eq!(page(&daemon, &path).await.0, 404);
    }
    let (_, answered) = send(daemon.get("/v1/tasks?status=answered")).await;
    assert_eq!(answered["items"][0]["by"], "ann", "{answered}");
    let (_, tokens) = send(daemon.get("/v1/tokens")).await;
    let minted = tokens["items"].as_array().unwrap().iter().find(|it| it["subject"] == "ann");
    assert!(minted.unwrap()["revoked_at"].is_string(), "its token is worthless: {tokens}");
}

#[tokio::test]
async fn a_link_is_made_by_who_may_mint_for_the_person_and_never_by_the_runs_own_party() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let bot = mint(&daemon, json!({ "role": "admin", "ttl": "1h", "name": "bot" })).await;
    let (_, task) = asks(&daemon, &bot).await;
    let own = refusal(ask(&daemon, &bot, &task, "ann")).await;
    assert_eq!(own, (403, "self_approval".to_owned()), "who started the run");
    // A token without a name is its maker's.
    let body = json!({ "role": "admin", "ttl": "30m" });
    let (_, child) = send(daemon.with(&bot, Method::POST, "/v1/tokens").json(&body)).await;
    let child = refusal(ask(&daemon, child["token"].as_str().unwrap(), &task, "ann")).await;
    assert_eq!(child, (403, "self_approval".to_owned()), "who was made by whoever started the run");
    for (role, code) in [
        ("operator", "token_widens"),
        ("approver", "forbidden_verb"),
        ("observer", "forbidden_verb"),
    ] {
        let token = mint(&daemon, json!({ "role": role, "ttl": "1h" })).await;
        let refused = refusal(ask(&daemon, &token, &task, "ann")).await;
        assert_eq!(refused, (403, code.to_owned()), "{role}");
    }
    let other = refusal(ask(&daemon, &daemon.token, &task, "eve")).await;
    assert_eq!(other, (403, "wrong_role".to_owned()), "the task does not ask eve");
    let (_, tokens) = send(daemon.get("/v1/tokens")).await;
    let eve = tokens["items"].as_array().unwrap().iter().find(|it| it["subject"] == "eve");
    assert!(eve.unwrap()["revoked_at"].is_string(), "nothing is left of it: {tokens}");
    let path = format!("/v1/tasks/{task}/links");
    let long = daemon.post(&path, &json!({ "for": "ann", "ttl": "8d" }));
    assert_eq!(refusal(long).await, (400, "bad_request".to_owned()));
    assert_eq!(send(ask(&daemon, &daemon.token, &task, "ann")).await.0, 201);
}

#[tokio::test]
async fn a_link_ends_with_the_revision_that_it_was_made_for_and_with_its_token() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (_, task) = asks(&daemon, &daemon.token).await;
    let (first, second) = (link(&daemon, &task).await, link(&daemon, &task).await);
    let (_, tokens) = send(daemon.get("/v1/tokens")).await;
    let tokens = tokens["items"].as_array().unwrap().clone();
    let newest = tokens.iter().find(|it| it["subject"] == "ann").unwrap()["jti"].as_str().unwrap();
    let revoke = daemon.with(&daemon.token, Method::DELETE, &format!("/v1/tokens/{newest}"));
    assert_eq!(send(revoke).await.0, 204);
    let open: Vec<u16> = vec![page(&daemon, &first).await.0, page(&daemon, &second).await.0];
    assert_eq!(open.iter().filter(|status| **status == 404).count(), 1, "{open:?}");
    let left = if open[0] == 200 { first } else { second };
    let form = form_of(&page(&daemon, &left).await.1);

    // The task is asked again: that is another revision.
    let expire = daemon.post(&format!("/v1/tasks/{task}/expire"), &Value::Null);
    assert_eq!(send(expire).await.0, 200);
    eventually("the task is asked again", async || match page(&daemon, &left).await.0 {
        409 => Ok(()),
        status => Err(status),
    })
    .await;
    assert_eq!(post(&daemon, &left, &form, "f0=true").await.0, 409);
    for nonsense in ["ln_x", "ln_", &format!("ln_{}", "0".repeat(64)), "..%2fruns"] {
        assert_eq!(page(&daemon, &format!("/ui/answer/{nonsense}")).await.0, 404, "{nonsense}");
    }
}

#[tokio::test]
async fn the_bodies_that_come_over_a_link_are_counted_together() {
    // Two are less than what the bodies of one bearer may have, and three are more.
    const BYTES: usize = 24_000_000;
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (_, task) = asks(&daemon, &daemon.token).await;
    let path = link(&daemon, &task).await;
    let form = form_of(&page(&daemon, &path).await.1);
    let (host, kind) = (&daemon.url["http://".len()..], "application/x-www-form-urlencoded");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\norigin: null\r\n\
         content-type: {kind}\r\ncontent-length: {BYTES}\r\n\r\n"
    );
    // Their last byte never comes.
    let mut unfinished = vec![b'x'; BYTES - 1];
    unfinished.splice(0..0, head.into_bytes());
    let held = [(); 2].map(|()| {
        let mut stream = TcpStream::connect(host).unwrap();
        stream.write_all(&unfinished).unwrap();
        stream
    });
    eventually("the third is refused", async || {
        let request = daemon.bare(Method::POST, &path).header(header::ORIGIN, "null");
        let answer = request.header(header::CONTENT_TYPE, kind).body(vec![0xff; BYTES]);
        let answer = answer.send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        when(status == 429 && text.contains("busy"), format!("{status} {text}"))
    })
    .await;
    drop(held);
    eventually("there is room again", async || {
        let (status, text) = post(&daemon, &path, &form, "f0=true").await;
        when(status == 200, text)
    })
    .await;
}

#[tokio::test]
async fn a_link_stands_in_no_log_no_file_and_nothing_that_the_run_can_read() {
    let shell = Shell::new();
    let data = shell.path("data");
    let daemon = Daemon::start_with(&data, &["--log".as_ref(), "trace".as_ref()]);
    let (run, task) = asks(&daemon, &daemon.token).await;
    let path = link(&daemon, &task).await;
    let secret = path.strip_prefix("/ui/answer/").unwrap().to_owned();
    let bare = secret.strip_prefix("ln_").unwrap().to_owned();
    let form = form_of(&page(&daemon, &path).await.1);
    assert_eq!(page(&daemon, &format!("/ui/answer/{secret}0")).await.0, 404);
    assert_eq!(post(&daemon, &path, &form, "f0=true").await.0, 200);
    daemon.ended(&run).await;
    for read in [
        format!("/v1/runs/{run}"),
        format!("/v1/runs/{run}/steps?limit=100"),
        format!("/v1/runs/{run}/export"),
        format!("/v1/tasks/{task}"),
        "/v1/tasks?status=answered".to_owned(),
        "/v1/tokens".to_owned(),
        "/v1/audit".to_owned(),
    ] {
        let text = daemon.get(&read).send().await.unwrap().text().await.unwrap();
        assert!(!text.contains(&bare), "{read}: {text}");
    }
    daemon.stop();
    let mut dirs = vec![shell.path("")];
    let (mut files, needle) = (0, bare.as_bytes());
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let Ok(bytes) = std::fs::read(&path) else { continue };
            files += 1;
            let found = bytes.windows(needle.len()).any(|part| part == needle);
            assert!(!found, "{}", path.display());
        }
    }
    assert!(files >= 3, "the database, the log and the keys were read");
}
