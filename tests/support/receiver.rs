//! An HTTP server of the test's own, which hands each request to the test.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::mpsc::{Receiver as Queue, channel},
};

use serde_json::Value;

use super::PATIENCE;

/// A request that waits for its answer.
#[derive(Debug)]
pub struct Received {
    /// The request line and the headers.
    pub head: String,
    /// The body.
    pub text: String,
    stream: TcpStream,
}

impl Received {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> &str {
        let header = |line: &'_ str| {
            line.split_once(": ").is_some_and(|(it, _)| it.eq_ignore_ascii_case(name))
        };
        let line = self.head.lines().find(|line| header(line));
        let line = line.unwrap_or_else(|| panic!("no {name} in {}", self.head));
        line.split_once(": ").map_or("", |(_, value)| value)
    }

    /// Returns the body, as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    /// Answers the request. A sender that was killed meanwhile does not hear it.
    pub fn answer(mut self, status: &str, body: &str) {
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        drop(self.stream.write_all((head + body).as_bytes()));
    }
}

/// The server.
#[derive(Debug)]
pub struct Receiver {
    /// Its address.
    pub address: SocketAddr,
    requests: Queue<Received>,
}

impl Receiver {
    /// Starts it on a free port.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if let Some(received) = read(stream.unwrap())
                    && sender.send(received).is_err()
                {
                    return;
                }
            }
        });
        Self { address, requests }
    }

    /// Waits for the next request.
    pub fn next(&self) -> Received {
        self.requests.recv_timeout(PATIENCE).expect("a request comes")
    }

    /// Returns true if no request waits.
    pub fn is_idle(&self) -> bool {
        self.requests.try_recv().is_err()
    }
}

/// Reads a request; none of a connection that was closed before it was complete.
fn read(stream: TcpStream) -> Option<Received> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while reader.read_line(&mut head).is_ok_and(|read| read > 2) {}
    let lines = head.to_lowercase();
    let length = lines.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).ok()?;
    Some(Received { head, text: String::from_utf8(body).unwrap(), stream })
}
