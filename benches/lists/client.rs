//! The host that is measured, in a process of its own, and the clients that ask it.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use moonswarm::host::{Host, HostConfig};

/// The argument that makes this program the host over a directory.
pub const SERVE: &str = "--serve";

/// Opens a host over a directory, prints where it listens, and stops when its input ends.
pub async fn serve(data: &Path) {
    let config = HostConfig {
        retention: Some(moonswarm::engine::Retention::FOR_EVER),
        // The waiting runs have no program; they are only listed.
        recover: false,
        ..HostConfig::new(data)
    };
    let host = Host::open(config).await.expect("a host");
    println!("{} {}", host.url(), host.admin_token());
    std::io::stdout().flush().expect("the bench reads");
    let end = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    let _ = end.await.expect("the input is read");
    host.stop(Duration::from_secs(5)).await;
}

/// The host, in a process of its own, so that its processor time is not that of the clients.
pub struct Daemon {
    child: Child,
    url: String,
    token: String,
    client: reqwest::Client,
}

impl Daemon {
    pub fn start(data: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .arg(SERVE)
            .arg(data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the host starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("the host says where it listens");
        let (url, token) = line.trim().split_once(' ').expect("the host says where it listens");
        let client = moonswarm::environment::http_client().build().expect("a client");
        Self { child, url: url.to_owned(), token: token.to_owned(), client }
    }

    /// Returns the processor time of all threads of the host, where the system says it.
    pub fn cpu(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        // The name in parentheses may hold spaces; user and system time are fields 14 and 15.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        // Linux counts a hundred ticks a second wherever programs look.
        Some(Duration::from_millis(ticks * 10))
    }

    /// Sends a request, and returns the time to the end of its answer.
    pub async fn asked(&self, path: &str) -> (Duration, serde_json::Value) {
        let request = self.client.get(format!("{}{path}", self.url)).bearer_auth(&self.token);
        let since = Instant::now();
        let answer = request.send().await.expect("an answer");
        let (status, body) = (answer.status(), answer.text().await.expect("a body"));
        let took = since.elapsed();
        assert!(status.is_success(), "{path}: {status} {body}");
        (took, serde_json::from_str(&body).expect("JSON"))
    }

    /// Starts a run of a blueprint, and returns its id.
    pub async fn started(&self, source: &str) -> String {
        let view = self.posted("/v1/runs", &serde_json::json!({ "source": source })).await;
        view["id"].as_str().unwrap_or_else(|| panic!("{view}")).to_owned()
    }

    /// Sends a run the signal `go`.
    pub async fn go(&self, run: &str) {
        self.posted(&format!("/v1/runs/{run}/signals/go"), &1.into()).await;
    }

    /// Cancels a run.
    pub async fn cancel(&self, run: &str) {
        self.posted(&format!("/v1/runs/{run}/cancel"), &serde_json::json!({})).await;
    }

    async fn posted(&self, path: &str, body: &serde_json::Value) -> serde_json::Value {
        let request = self.client.post(format!("{}{path}", self.url)).bearer_auth(&self.token);
        let answer = request.json(body).send().await.expect("an answer");
        let status = answer.status();
        let body = answer.text().await.expect("a body");
        assert!(status.is_success(), "{path}: {status} {body}");
        // The answer to a signal has no body.
        serde_json::from_str(&body).unwrap_or_default()
    }

    /// Waits until a run has ended, and returns the number of its steps.
    ///
    /// # Panics
    /// Panics if it did not complete.
    pub async fn completed(&self, run: &str) -> u64 {
        loop {
            let (_, view) = self.asked(&format!("/v1/runs/{run}?wait=60s")).await;
            if !view["ended_at"].is_null() {
                assert_eq!(view["status"], "completed", "{view}");
                return view["steps"].as_u64().expect("a number of steps");
            }
        }
    }

    /// Ends the host.
    pub fn stop(mut self) {
        // Its input ends with this.
        drop(self.child.stdin.take());
        self.child.wait().expect("the host ends");
    }
}

impl Drop for Daemon {
    /// A bench that fails leaves no host behind.
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A browser that is signed in.
pub struct Browser {
    client: reqwest::Client,
    url: String,
    cookie: String,
}

impl Browser {
    pub async fn of(daemon: &Daemon) -> Self {
        let client = moonswarm::environment::http_client()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .expect("a client");
        let url = daemon.url.clone();
        let login = client.post(format!("{url}/ui/login")).header("origin", &url);
        let login = login
            .header("content-type", "application/x-www-form-urlencoded")
            .body(format!("next=%2Fui&token={}", daemon.token));
        let answer = login.send().await.expect("an answer");
        let cookie = answer.headers()["set-cookie"].to_str().expect("a cookie");
        let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        Self { client, url, cookie }
    }

    pub async fn get(&self, path: &str) -> reqwest::Response {
        let request = self.client.get(format!("{}{path}", self.url)).header("cookie", &self.cookie);
        let answer = request.send().await.expect("an answer");
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        answer
    }

    /// Returns the times to the head of the answer and to its end, and the size.
    pub async fn page(&self, path: &str) -> (Duration, Duration, usize) {
        let since = Instant::now();
        let answer = self.get(path).await;
        let head = since.elapsed();
        let size = answer.bytes().await.expect("a page").len();
        (head, since.elapsed(), size)
    }
}
