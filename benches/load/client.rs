//! Just enough HTTP/1.1 over one kept connection: the client shares the daemon's cores, so that
//! whatever it costs is missing from the figures.

use anyhow::{Context as _, Result, bail, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// One connection.
pub struct Client {
    stream: TcpStream,
    head: String,
    bearer: String,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Client {
    /// Connects with a bearer token.
    pub async fn connect(address: &str, token: &str) -> Result<Self> {
        let stream =
            TcpStream::connect(address).await.with_context(|| format!("connect {address}"))?;
        stream.set_nodelay(true)?;
        let head = format!(
            "host: {address}\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\n"
        );
        let (request, answer) = (Vec::new(), Vec::with_capacity(4_096));
        Ok(Self { stream, head, bearer: token.to_owned(), request, answer })
    }

    /// Sends one request and gives the answer's status and body.
    pub async fn send(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, &[u8])> {
        let bearer = std::mem::take(&mut self.bearer);
        let sent = self.write(&bearer, method, path, body).await;
        self.bearer = bearer;
        sent?;
        self.read().await
    }

    /// As [`Client::send`], as somebody else: with another token, or with a handle.
    pub async fn send_as(
        &mut self,
        bearer: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<(u16, &[u8])> {
        self.write(bearer, method, path, body).await?;
        self.read().await
    }

    async fn write(&mut self, bearer: &str, method: &str, path: &str, body: &str) -> Result<()> {
        self.request.clear();
        let line = format!("{method} {path} HTTP/1.1\r\nauthorization: Bearer {bearer}\r\n");
        self.request.extend_from_slice(line.as_bytes());
        self.request.extend_from_slice(self.head.as_bytes());
        self.request
            .extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        self.request.extend_from_slice(body.as_bytes());
        Ok(self.stream.write_all(&self.request).await?)
    }

    async fn read(&mut self) -> Result<(u16, &[u8])> {
        self.answer.clear();
        let (mut body_at, mut end) = (0, usize::MAX);
        while self.answer.len() < end {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                bail!("the daemon closed the connection");
            }
            if body_at == 0
                && let Some(at) = find(&self.answer, b"\r\n\r\n")
            {
                body_at = at + 4;
                end = body_at + content_length(&self.answer[..at])?;
            }
        }
        let status = self.answer.get(9..12).context("a status line")?;
        let status = std::str::from_utf8(status)?.parse()?;
        Ok((status, &self.answer[body_at..end]))
    }
}

/// The JSON of an answer that has to be a success.
pub fn json(answer: (u16, &[u8])) -> Result<serde_json::Value> {
    let (status, body) = answer;
    ensure!(status < 300, "{status} {}", String::from_utf8_lossy(body));
    Ok(if body.is_empty() { serde_json::Value::Null } else { serde_json::from_slice(body)? })
}

/// Returns the offset of `needle`.
pub fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|window| window == needle)
}

fn content_length(head: &[u8]) -> Result<usize> {
    for line in std::str::from_utf8(head)?.split("\r\n").skip(1) {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            return Ok(value.trim().parse()?);
        }
    }
    // An answer without a body, such as 204, may leave it out.
    Ok(0)
}
