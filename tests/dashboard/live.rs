//! Live fragments: sent when something changed, and no longer than the sign-in lasts.

use std::collections::HashMap;

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
    buffer: Vec<u8>,
    /// The text of each fragment, cut before each tag.
    held: HashMap<String, Vec<String>>,
    /// The bytes of the data of fragments that came so far.
    came: usize,
}

impl Live {
    pub async fn of(daemon: &Daemon, person: &Person<'_>, path: &str) -> Self {
        let answer =
            daemon.bare(Method::GET, path).header(COOKIE, &person.cookie).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Self { answer, buffer: Vec::new(), held: HashMap::new(), came: 0 }
    }

    /// The next event and its data; none at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            // A character may come in two chunks, an event is whole.
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let event = String::from_utf8(event).unwrap();
                let line = |name: &str| {
                    event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
                };
                let Some(kind) = line("event: ") else { continue };
                let data = serde_json::from_str(&line("data: ").unwrap()).unwrap();
                return Some((kind, data));
            }
            let chunk = timeout(PATIENCE, self.answer.chunk()).await.expect("something comes");
            self.buffer.extend_from_slice(&chunk.ok()??);
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
            let html = self.hold(&data);
            if data["id"] == id && html.contains(text) {
                return html;
            }
        }
    }

    /// Keeps a fragment, and returns its text: all of it came, or what changed.
    fn hold(&mut self, data: &Value) -> String {
        self.came += data.to_string().len();
        let before = self.held.remove(data["id"].as_str().unwrap()).unwrap_or_default();
        let whole = vec![data["html"].clone()];
        let parts = data["parts"].as_array().unwrap_or(&whole);
        let texts = parts.iter().flat_map(|part| match part {
            Value::String(text) => pieces(text),
            part => {
                let at = |n: usize| usize::try_from(part[n].as_u64().unwrap()).unwrap();
                before[at(0)..at(0) + at(1)].to_vec()
            }
        });
        let texts: Vec<String> = texts.collect();
        let html = texts.concat();
        self.held.insert(data["id"].as_str().unwrap().to_owned(), texts);
        html
    }
}

fn pieces(text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.get(1..).and_then(|it| it.find('<')) {
        let (piece, after) = rest.split_at(at + 1);
        pieces.push(piece.to_owned());
        rest = after;
    }
    pieces.push(rest.to_owned());
    pieces
}

#[tokio::test]
async fn a_change_of_a_long_page_sends_little_and_makes_what_a_new_viewer_gets() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path()).await;
    let desk = Person::of_role(&daemon, "admin").await;
    let source = r#"return require("swarm").blueprint { name = "ticks",
        agents = { echo = { operator = "echo" } },
        flow = function(ctx)
            for i = 1, 150 do ctx:run("echo", i) end
            for i = 0, 9 do ctx:status("tick " .. i .. ".") ctx:wait("go") end
        end }"#;
    let run = daemon.run_source(source, Value::Null).await;
    daemon.waits(&run, "signal").await;
    let path = format!("/ui/live/runs/{run}?tab=steps");
    let mut live = Live::of(&daemon, &desk, &path).await;
    live.shows("run-head", "tick 0.").await;
    live.shows("run-tab", "/steps/151").await;
    let (whole, mut least) = (live.came, usize::MAX);
    for tick in 1..=6 {
        let (before, text) = (live.came, format!("tick {tick}."));
        let signal = daemon.post(&format!("/v1/runs/{run}/signals/go"), &serde_json::json!(1));
        assert!(signal.send().await.unwrap().status().is_success());
        live.shows("run-head", &text).await;
        live.shows("run-tab", &format!("/steps/{}", 151 + tick)).await;
        least = least.min(live.came - before);
    }
    // When the axis of times grows a step, all bars are sent again, which a slow machine sees more often.
    assert!(least * 3 < whole, "{least} of {whole} bytes");
    // What was put together of the parts is what a viewer who comes now gets.
    let mut other = Live::of(&daemon, &desk, &path).await;
    let fresh = other.shows("run-tab", "/steps/157").await;
    let step = |html: &str| html.split("<tr ").nth(120).map(str::to_owned);
    let held = live.held["run-tab"].concat();
    assert_eq!(held.matches("<tr ").count(), 157);
    let names = |row: Option<String>| row.and_then(|it| Some(it.split_once("<svg")?.0.to_owned()));
    assert_eq!(names(step(&held)), names(step(&fresh)));
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
