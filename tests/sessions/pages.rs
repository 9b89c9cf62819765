//! The tasks of a session in pages, as many as fit into one.

use std::{collections::BTreeSet, time::Duration};

use moonswarm::door::Limits;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    client::{Opened, Socket, blueprint, open},
    ends::impatient,
    support::{Daemon, Shell, refusal, send},
};

/// The maximum size of a page, with its last task.
const PAGE: usize = 9 << 20;

/// Tasks with half a megabyte of input each, which is also the prompt.
const LARGE: &str = r#"local list = {}
    for i = 1, 24 do list[i] = i end
    return #ctx:map(list, function(i) return ctx:run("coder", { n = ("x"):rep(500000) }) end)"#;

fn ids(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap();
    items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

async fn by_http(daemon: &Daemon, session: &Opened, query: &str) -> Value {
    let path = format!("/v1/sessions/{}/tasks?{query}", session.id);
    let (status, page) = send(session.http(daemon, Method::GET, &path)).await;
    assert_eq!(status, 200, "{page}");
    page
}

/// A session with tasks whose prompts are more than one page.
async fn with_tasks(daemon: &Daemon) -> (Opened, Socket, BTreeSet<String>) {
    let session = open(daemon).await;
    let mut socket = session.connect(daemon).await;
    daemon.run_source(&blueprint(LARGE), json!({})).await;
    let mut tasks = BTreeSet::new();
    while tasks.len() < 24 {
        let spawn = socket.until("task/spawn").await;
        tasks.insert(spawn["params"]["task"].as_str().unwrap().to_owned());
    }
    (session, socket, tasks)
}

#[tokio::test]
async fn a_list_of_large_tasks_has_pages_over_the_socket_and_over_http() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (session, mut socket, tasks) = with_tasks(&daemon).await;
    let (mut ask, mut query) = (json!({}), String::new());
    let (mut listed, mut pages) = (Vec::new(), 0);
    loop {
        let page = socket.ask("tasks/list", ask).await;
        assert!(page.to_string().len() < PAGE && !ids(&page).is_empty());
        assert_eq!(ids(&by_http(&daemon, &session, &query).await), ids(&page));
        listed.extend(ids(&page));
        pages += 1;
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        ask = json!({ "cursor": cursor });
        query = format!("cursor={cursor}");
    }
    assert!(pages > 1, "{pages}");
    assert_eq!(listed.len(), tasks.len(), "none comes twice");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), tasks);
}

#[tokio::test]
async fn a_page_has_a_limit_and_a_cursor_is_one_of_the_list() {
    let shell = Shell::new();
    let daemon = Daemon::start(&shell.path("data"));
    let (session, mut socket, tasks) = with_tasks(&daemon).await;
    let first = socket.ask("tasks/list", json!({"limit": 2})).await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = by_http(&daemon, &session, &format!("limit=2&cursor={cursor}")).await;
    let both: BTreeSet<String> = ids(&first).into_iter().chain(ids(&second)).collect();
    assert!(both.len() == 4 && both.is_subset(&tasks), "{both:?}");
    let one = by_http(&daemon, &session, &format!("task={}", ids(&second)[0])).await;
    assert_eq!((ids(&one), &one["next_cursor"]), (vec![ids(&second)[0].clone()], &Value::Null));
    assert_eq!(socket.refused("tasks/list", json!({"cursor": "x"})).await, "bad_query");
    let path = format!("/v1/sessions/{}/tasks?cursor=x", session.id);
    let bad = session.http(&daemon, Method::GET, &path);
    assert_eq!(refusal(bad).await, (400, "bad_query".to_owned()));
}

#[tokio::test]
async fn an_answer_that_its_client_does_not_read_keeps_no_memory_for_long() {
    let shell = Shell::new();
    let limits = Limits { send_time: Duration::from_millis(500), ..Limits::default() };
    let host = impatient(&shell, limits).await;
    let daemon = Daemon::of(host.url(), host.admin_token());
    let (session, socket, _) = with_tasks(&daemon).await;
    let url = format!("{}/v1/sessions/{}/tasks", host.url(), session.id);
    // Two answers take the memory of the token. Over HTTP/2 a connection lives on with one that is not
    // read.
    let mut unread = Vec::new();
    for _ in 0..3 {
        let client = moonswarm::environment::http_client().no_proxy().http2_prior_knowledge();
        let client = client.build().unwrap();
        let answer = client.get(&url).bearer_auth(&session.token).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        unread.push((client, answer));
    }
    let (_client, first) = unread.remove(0);
    assert!(first.bytes().await.is_err(), "the rest of it was given up");
    drop((unread, socket));
    host.stop(Duration::from_secs(5)).await;
}
