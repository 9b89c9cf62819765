//! The settings of the door: host names, allowed origins and all limits.

use std::time::Duration;

use ipnet::IpNet;

use super::{people::People, tls::TlsFiles};
use crate::clock::Clock;

/// The settings of the door.
#[derive(Debug, Clone)]
pub struct DoorConfig {
    /// Host names, in addition to the loopback ones, under which the API is reachable. Without a
    /// port.
    pub hosts: Vec<String>,
    /// Origins (`https://desk.example`) whose pages may call the API, in addition to its own.
    pub origins: Vec<String>,
    /// Addresses of proxies, whose headers about a client are believed.
    pub proxies: Vec<IpNet>,
    /// The headers or tokens by which people are identified, and their roles.
    pub people: Option<People>,
    /// True if other machines may send tokens in plain text.
    pub insecure: bool,
    /// The certificate of the listener; without one it speaks plain HTTP.
    pub tls: Option<TlsFiles>,
    /// The limits.
    pub limits: Limits,
    /// The clock for the rates.
    pub clock: Clock,
}

impl Default for DoorConfig {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            origins: Vec::new(),
            proxies: Vec::new(),
            people: None,
            insecure: false,
            tls: None,
            limits: Limits::default(),
            clock: Clock::system(),
        }
    }
}

/// The limits of the door. A breach causes a typed error or closes the connection.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open connections, including WebSocket sessions.
    pub connections: usize,
    /// Concurrent requests over all connections; fewer than connections. One token may use a
    /// quarter.
    pub in_flight: usize,
    /// Total bytes of all request bodies in memory. One token may use a quarter. Large answers that
    /// were not read yet may have twice as many.
    pub body_bytes: usize,
    /// Requests per second for one token.
    pub rate: u32,
    /// The burst of requests for one token.
    pub burst: u32,
    /// The timeout for a request's head, and the idle timeout of a connection.
    pub head_time: Duration,
    /// The timeout for a request's body.
    pub body_time: Duration,
    /// The size limit of a request's head, in bytes.
    pub head_bytes: usize,
    /// The maximum number of headers in a request.
    pub headers: usize,
    /// The interval of keep-alive messages on an idle event stream.
    pub keep_alive: Duration,
    /// The interval of pings on a WebSocket. Two without an answer end it.
    pub ping: Duration,
    /// The timeout for sending one message over a WebSocket.
    pub send_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self::for_connections(8_192)
    }
}

/// The heads of forwarded requests may have this multiple of the bytes of a client's.
const FORWARDED_HEAD: usize = 4;
/// The least number of bytes that a header counts in the head of a client, and the number of headers that a
/// node adds.
const LEAST_HEADER: usize = 32;
const ADDED_HEADERS: usize = 16;

impl Limits {
    /// Returns the limits of the listener for other nodes. The node that forwards a request has judged its
    /// head, possibly by the rules of another protocol, and adds to it how it arrived.
    pub(super) fn of_nodes(&self) -> Self {
        Self {
            head_bytes: self.head_bytes.saturating_mul(FORWARDED_HEAD),
            headers: self.headers.max(self.head_bytes / LEAST_HEADER) + ADDED_HEADERS,
            ..self.clone()
        }
    }

    /// Returns the limits for a number of connections. Half of them may carry requests at the same
    /// time, so that one token's share never fills them all.
    pub fn for_connections(connections: usize) -> Self {
        Self {
            connections,
            in_flight: (connections / 2).max(1),
            body_bytes: 256 << 20,
            rate: 5_000,
            burst: 10_000,
            head_time: Duration::from_secs(10),
            body_time: Duration::from_secs(60),
            head_bytes: 32 * 1_024,
            headers: 64,
            keep_alive: Duration::from_secs(15),
            ping: Duration::from_secs(20),
            send_time: Duration::from_secs(20),
        }
    }
}
