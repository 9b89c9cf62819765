//! The settings of the door: the names of the server, whose pages may call it, and every limit.

use std::time::Duration;

use crate::clock::Clock;

/// How the door is set up.
#[derive(Debug, Clone)]
pub struct DoorConfig {
    /// Host names, beside the loopback ones, under which the API may be reached, without a port.
    pub hosts: Vec<String>,
    /// Origins (`https://desk.example`) whose pages may call the API, beside its own.
    pub origins: Vec<String>,
    /// How much of everything.
    pub limits: Limits,
    /// What tells the time for the rates.
    pub clock: Clock,
}

impl Default for DoorConfig {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            origins: Vec::new(),
            limits: Limits::default(),
            clock: Clock::system(),
        }
    }
}

/// How much of everything; each breach is a typed answer or a closed connection.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at a time, sockets of sessions among them.
    pub connections: usize,
    /// Requests at a time, over all connections, and fewer than those; one token has a quarter of
    /// them at most.
    pub in_flight: usize,
    /// The bytes that the bodies of all requests may take at a time; those of one token a quarter.
    pub body_bytes: usize,
    /// Requests a second for one token.
    pub rate: u32,
    /// Requests that one token may make at once.
    pub burst: u32,
    /// The time for a request's head, and for which an idle connection is kept.
    pub head_time: Duration,
    /// The time for a request's body.
    pub body_time: Duration,
    /// The size of a request's head, in bytes.
    pub head_bytes: usize,
    /// How many headers a request may have.
    pub headers: usize,
    /// How often a silent stream of events says that it is alive.
    pub keep_alive: Duration,
    /// How often a socket is asked whether somebody is there; twice without an answer ends it.
    pub ping: Duration,
    /// How long a socket's peer may take for one message.
    pub send_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self::for_connections(8_192)
    }
}

impl Limits {
    /// The limits of a server with so many connections. Half of them carry requests at a time, so
    /// that what one token may have under way never fills them all.
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
