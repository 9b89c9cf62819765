//! Between a client of its own kind and the daemon: passes every byte on, and keeps it, so that
//! what was said over sockets can be held against the schemas.

use std::{
    io::{self, Cursor, Read, Write},
    sync::{Arc, Mutex},
};

use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_tungstenite::tungstenite::{Message, WebSocket, protocol::Role};

use crate::support::schema::{check_call, check_frame};

/// A tap that clients connect to.
pub struct Tap {
    pub url: String,
    lines: Arc<Mutex<Vec<Arc<Line>>>>,
}

/// What went over one connection.
#[derive(Default)]
struct Line {
    up: Mutex<Vec<u8>>,
    down: Mutex<Vec<u8>>,
}

/// The messages of all sockets, checked: what clients said, and what the server said.
pub struct Heard {
    pub calls: Vec<Value>,
    pub frames: Vec<Value>,
}

impl Tap {
    /// Listens for clients of the daemon at `url`, which must take any port of 127.0.0.1.
    pub async fn of(url: &str) -> Self {
        let to = url.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let lines: Arc<Mutex<Vec<Arc<Line>>>> = Arc::default();
        let known = Arc::clone(&lines);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&to).await else { continue };
                let line = Arc::new(Line::default());
                known.lock().unwrap().push(Arc::clone(&line));
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let same = Arc::clone(&line);
                tokio::spawn(async move { pass(from_client, to_server, &same.up).await });
                tokio::spawn(async move { pass(from_server, to_client, &line.down).await });
            }
        });
        Self { url, lines }
    }

    /// Every message so far, each checked against its schema.
    pub fn heard(&self) -> Heard {
        let mut heard = Heard { calls: Vec::new(), frames: Vec::new() };
        for line in self.lines.lock().unwrap().iter() {
            let (up, down) = (line.up.lock().unwrap(), line.down.lock().unwrap());
            if !down.starts_with(b"HTTP/1.1 101") {
                continue;
            }
            heard.calls.extend(messages(&up, Role::Server));
            heard.frames.extend(messages(&down, Role::Client));
        }
        heard.calls.iter().for_each(check_call);
        heard.frames.iter().for_each(check_frame);
        heard
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    kept: &Mutex<Vec<u8>>,
) {
    let mut chunk = vec![0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut chunk).await {
        kept.lock().unwrap().extend_from_slice(&chunk[..n]);
        if to.write_all(&chunk[..n]).await.is_err() {
            return;
        }
    }
    // The other side hears that this one is done.
    let _ = to.shutdown().await;
}

/// Reads from what was kept, and forgets what is answered.
struct Tape(Cursor<Vec<u8>>);

impl Read for Tape {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut self.0, into)
    }
}

impl Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The texts of one direction, as the side that read them.
fn messages(bytes: &[u8], reader: Role) -> Vec<Value> {
    let head = bytes.windows(4).position(|it| it == b"\r\n\r\n").unwrap() + 4;
    let tape = Tape(Cursor::new(bytes[head..].to_vec()));
    let mut socket = WebSocket::from_raw_socket(tape, reader, None);
    let mut texts = Vec::new();
    while let Ok(message) = socket.read() {
        if let Message::Text(text) = message {
            texts.push(serde_json::from_str(&text).unwrap());
        }
    }
    texts
}
