//! Live fragments: sent when something changed, and no longer than the sign-in lasts.

use reqwest::{Method, Response, header::COOKIE};
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    person::{Person, daemon},
    support::{Daemon, PATIENCE, send},
};

/// A stream of fragments.
pub struct Live {
    answer: Response,
    buffer: String,
}

impl Live {
    pub async fn of(daemon: &Daemon, person: &Person<'_>, path: &str) -> Self {
        let answer =
            daemon.bare(Method::GET, path).header(COOKIE, &person.cookie).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Self { answer, buffer: String::new() }
    }

    /// The next event and its data; none at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.buffer = rest;
                let line = |name: &str| {
                    event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
                };
                let Some(kind) = line("event: ") else { continue };
                let data = serde_json::from_str(&line("data: ").unwrap()).unwrap();
                return Some((kind, data));
            }
            let chunk = timeout(PATIENCE, self.answer.chunk()).await.expect("something comes");
            self.buffer.push_str(std::str::from_utf8(&chunk.ok()??).unwrap());
        }
    }

    /// Reads to the end, which is announced.
    pub async fn ends(&mut self) {
        loop {
            match self.next().await {
                Some((kind, _)) if kind == "end" => break,
                Some(_) => {}
                None => panic!("it ended without a word"),
            }
        }
        assert!(self.next().await.is_none());
    }

    /// Reads until a fragment has a text.
    pub async fn shows(&mut self, id: &str, text: &str) -> String {
        loop {
            let (_, data) = self.next().await.unwrap_or_else(|| panic!("{id} never has {text:?}"));
            let html = data["html"].as_str().unwrap_or_default();
            if data["id"] == id && html.contains(text) {
                return html.to_owned();
            }
        }
    }
}

#[tokio::test]
async fn a_run_is_followed_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let run = desk.starts("moon").await;
    daemon.waits(&run, "task").await;
    let mut live = Live::of(&daemon, &desk, &format!("/ui/live/runs/{run}?tab=steps")).await;
    let html = live.shows("run-waits", "ask (human)").await;
    assert!(html.starts_with("<div id=\"run-waits\">"), "{html}");
    // What the page shows is what the stream sends.
    let page = desk.get(&format!("/ui/runs/{run}")).await.page();
    assert!(page.contains("<div id=\"run-tab\">") && page.contains("<div id=\"run-head\">"));
    let (status, view) =
        send(daemon.post(&format!("/v1/runs/{run}/cancel"), &serde_json::json!({}))).await;
    assert_eq!(status, 200, "{view}");
    live.shows("run-head", "canceled").await;
    live.ends().await;
}

#[tokio::test]
async fn viewers_of_one_page_have_the_tokens_of_their_own_forms_and_see_what_they_may() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let run = desk.starts("moon").await;
    daemon.waits(&run, "task").await;
    let path = format!("/ui/live/runs/{run}?tab=steps");
    let other = Person::of_role(&daemon, "operator").await;
    let observer = Person::of_role(&daemon, "observer").await;
    let mut streams = Vec::new();
    for person in [&desk, &other] {
        let own = person.get("/ui").await.hidden("form");
        let mut live = Live::of(&daemon, person, &path).await;
        let acts = live.shows("run-acts", "Cancel").await;
        assert!(acts.contains(&format!("name=\"form\" value=\"{own}\"")), "{acts}");
        streams.push(live);
    }
    let mut live = Live::of(&daemon, &observer, &path).await;
    let acts = live.shows("run-acts", "").await;
    assert!(!acts.contains("name=\"form\""), "{acts}");
    streams.push(live);
    // The first viewer leaves, and the others still see what changes.
    drop(streams.remove(0));
    let (status, view) =
        send(daemon.post(&format!("/v1/runs/{run}/cancel"), &serde_json::json!({}))).await;
    assert_eq!(status, 200, "{view}");
    for mut live in streams {
        live.shows("run-head", "canceled").await;
        live.ends().await;
    }
}

#[tokio::test]
async fn lists_send_what_changed() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let mut runs = Live::of(&daemon, &desk, "/ui/live/runs?blueprint=demo").await;
    runs.shows("runs", "No run matches").await;
    let mut inbox = Live::of(&daemon, &desk, "/ui/live/inbox").await;
    inbox.shows("inbox", "Nothing waits").await;
    let mut overview = Live::of(&daemon, &desk, "/ui/live/overview").await;
    overview.shows("overview", "Nothing ran yet").await;
    let run = desk.starts("moon").await;
    runs.shows("runs", &run).await;
    inbox.shows("inbox", "/ui/inbox/task_").await;
    overview.shows("overview", &run).await;
}

#[tokio::test]
async fn a_stream_ends_with_its_sign_in() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "operator").await;
    let mut live = Live::of(&daemon, &desk, "/ui/live/overview").await;
    live.shows("overview", "Nothing ran yet").await;
    let other = Person::of_role(&daemon, "operator").await;
    assert_eq!(desk.post("/ui/logout", &[]).await.status, 303);
    other.starts("moon").await;
    assert!(live.next().await.is_none(), "nothing comes after the sign-out");
}
