//! Fixtures of this room's tests: views with plain values, and a scripted HTTP server.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Handle,
};

use crate::{
    engine::{RunView, StepView},
    protocol::RunId,
    store::RunStatus,
    tasks::Tasks,
};

const AT: &str = "2026-01-01T00:00:00.000Z";
/// [`AT`] as the `Date` of answers.
const DATE: &str = "Thu, 01 Jan 2026 00:00:00 GMT";

/// The id of [`run`].
pub fn run_id() -> RunId {
    RunId::new(7, 1_767_225_600_000)
}

pub fn run(status: RunStatus) -> RunView {
    RunView {
        id: run_id(),
        blueprint: "review".into(),
        hash: "ab12cd34ef".into(),
        status,
        status_text: None,
        progress: None,
        input: None,
        output: None,
        error: None,
        waiting_on: Vec::new(),
        steps: 0,
        steps_done: 0,
        attempts: None,
        parent: None,
        copied_from: None,
        tags: Default::default(),
        trigger: None,
        children: Vec::new(),
        undelivered: Vec::new(),
        limits: Vec::new(),
        can: Vec::new(),
        seats: Default::default(),
        delegate: None,
        usage: None,
        stored_bytes: 0,
        started_by: "admin".into(),
        last_event: 0,
        created_at: AT.into(),
        updated_at: AT.into(),
        ended_at: None,
        duration_ms: None,
    }
}

pub fn step(seq: u32, scope: &str, index: u32, state: &str) -> StepView {
    StepView {
        id: format!("run_x/{seq}"),
        seq,
        scope: scope.into(),
        branch: None,
        line: None,
        index,
        prev: None,
        kind: "task".into(),
        name: format!("agent{seq}"),
        summary: None,
        state: state.into(),
        composite: None,
        parent: None,
        call_id: None,
        operator: None,
        attempts: 1,
        worker_id: None,
        task: None,
        scheduled_at: AT.into(),
        started_at: None,
        ended_at: (state == "completed").then(|| AT.into()),
        duration_ms: (state == "completed").then_some(800),
        queued_ms: None,
        ran_ms: None,
        usage: None,
        error: None,
        request: None,
        response: None,
        effects: Vec::new(),
        spans: Vec::new(),
    }
}

pub struct Server {
    pub url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// The requests so far: head and body as they came.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }
}

/// Answers one request after the other with (status, JSON body).
pub async fn serve(answers: Vec<(u16, String)>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    Tasks::new(Handle::current()).spawn(async move {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = read(&mut stream).await;
            log.lock().push(request);
            let head = format!(
                "HTTP/1.1 {status} x\r\ndate: {DATE}\r\nconnection: close\r\n\
                 content-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all((head + &body).as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    Server { url, asked }
}

async fn read(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .filter_map(|line| line.split_once(": "))
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .map_or(0, |(_, length)| length.parse().unwrap());
            if body.len() >= length {
                return text;
            }
        }
        let n = stream.read(&mut chunk).await.unwrap();
        assert!(n > 0, "the request ends early: {text}");
        bytes.extend_from_slice(&chunk[..n]);
    }
}
