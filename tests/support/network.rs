//! A network between a program and a server, for tests: it hangs, breaks, delays, and cuts a connection
//! after any number of bytes, or at the `COMMIT` or `ROLLBACK` of a transaction.
//!
//! It has threads of its own, so that a test that blocks does not stop it.
#![allow(dead_code, reason = "every test program uses its own part of it")]

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// The number of bytes that pass if nothing is to be cut.
const ALL: i64 = i64::MAX / 2;
/// The end of PostgreSQL's request to commit, and of its answer to that.
const COMMIT: &[u8] = b"COMMIT\0";
/// The end of PostgreSQL's request to roll back.
const ROLLBACK: &[u8] = b"ROLLBACK\0";

/// The treatment of the next `COMMIT`.
const PASSES: u8 = 0;
const IS_CUT: u8 = 1;
const LOSES_ITS_ANSWER: u8 = 2;

/// A network before a server of this machine.
pub struct Network {
    port: u16,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    requests: Way,
    answers: Way,
    delay_us: AtomicU64,
    refuses: AtomicBool,
    next_commit: AtomicU8,
    cuts_rollback: AtomicBool,
    end_cuts: AtomicU32,
    hangs: Mutex<bool>,
    goes_on: Condvar,
    /// Both ends of every connection.
    open: Mutex<Vec<(TcpStream, TcpStream)>>,
}

/// A direction.
struct Way {
    /// The number of bytes that pass before a connection is cut.
    left: AtomicI64,
    cuts: AtomicU32,
}

impl Default for Way {
    fn default() -> Self {
        Self { left: AtomicI64::new(ALL), cuts: AtomicU32::new(0) }
    }
}

impl Way {
    fn cut_after(&self, bytes: usize) {
        self.left.store(i64::try_from(bytes).unwrap(), Ordering::SeqCst);
    }

    /// Takes bytes that are to pass, and returns how many of them do.
    fn passes(&self, count: usize) -> usize {
        let count = i64::try_from(count).unwrap();
        let left = self.left.fetch_sub(count, Ordering::SeqCst);
        if left < count {
            self.left.store(ALL, Ordering::SeqCst);
            self.cuts.fetch_add(1, Ordering::SeqCst);
        }
        usize::try_from(left.clamp(0, count)).unwrap()
    }
}

impl Network {
    /// Listens before the server at a port of 127.0.0.1.
    pub fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let inner = Arc::<Inner>::default();
        let serving = Arc::clone(&inner);
        let serve = move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if serving.refuses.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                serving.connect(&client, &server);
            }
        };
        thread::Builder::new().spawn(serve).unwrap();
        Self { port, inner }
    }

    /// Returns the port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns an address of the server `port` as one that goes through this network.
    pub fn through(&self, url: &str, port: u16) -> String {
        let through = url.replace(&format!(":{port}/"), &format!(":{}/", self.port));
        assert_ne!(through, url, "the address has the port {port}");
        through
    }

    /// Lets nothing arrive while `hangs`: connections are accepted and stay open.
    pub fn hang(&self, hangs: bool) {
        *self.inner.hangs.lock().unwrap() = hangs;
        self.inner.goes_on.notify_all();
    }

    /// Closes every connection, and each new one at once, while `refuses`.
    pub fn refuse(&self, refuses: bool) {
        self.inner.refuses.store(refuses, Ordering::SeqCst);
        if refuses {
            self.break_all();
        }
    }

    /// Breaks every connection.
    pub fn break_all(&self) {
        for (near, far) in self.inner.open.lock().unwrap().drain(..) {
            let _ = (near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both));
        }
    }

    /// Delays each piece of data, in both directions.
    pub fn delay(&self, by: Duration) {
        self.inner.delay_us.store(u64::try_from(by.as_micros()).unwrap(), Ordering::SeqCst);
    }

    /// Cuts the connection that brings the byte after the next `bytes` of all requests.
    pub fn cut_requests_after(&self, bytes: usize) {
        self.inner.requests.cut_after(bytes);
    }

    /// Cuts the connection that brings the byte after the next `bytes` of all answers.
    pub fn cut_answers_after(&self, bytes: usize) {
        self.inner.answers.cut_after(bytes);
    }

    /// Cuts the connection of the next `COMMIT` before that arrives.
    pub fn cut_before_commit(&self) {
        self.inner.next_commit.store(IS_CUT, Ordering::SeqCst);
    }

    /// Cuts the connection of the next `COMMIT` when the server has answered it: the answer is lost.
    pub fn lose_answer_to_commit(&self) {
        self.inner.next_commit.store(LOSES_ITS_ANSWER, Ordering::SeqCst);
    }

    /// Cuts the connection of the next `ROLLBACK` before that arrives.
    pub fn cut_before_rollback(&self) {
        self.inner.cuts_rollback.store(true, Ordering::SeqCst);
    }

    /// Returns the number of connections that were cut after some bytes or at the end of a transaction.
    pub fn cuts(&self) -> u32 {
        let Inner { requests, answers, end_cuts, .. } = &*self.inner;
        [&requests.cuts, &answers.cuts, end_cuts].map(|it| it.load(Ordering::SeqCst)).iter().sum()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.hang(false);
        self.refuse(true);
    }
}

impl Inner {
    fn connect(self: &Arc<Self>, client: &TcpStream, server: &TcpStream) {
        let twin = |stream: &TcpStream| stream.try_clone().unwrap();
        self.open.lock().unwrap().push((twin(client), twin(server)));
        let loses = Arc::new(AtomicBool::new(false));
        let (inner, from, to) = (Arc::clone(self), twin(client), twin(server));
        let at_requests = Arc::clone(&loses);
        let requests = move || {
            inner.pass(&inner.requests, from, to, |bytes| inner.at_request(bytes, &at_requests));
        };
        let (inner, from, to) = (Arc::clone(self), twin(server), twin(client));
        let answers = move || {
            inner.pass(&inner.answers, from, to, |bytes| inner.at_answer(bytes, &loses));
        };
        thread::Builder::new().spawn(requests).unwrap();
        thread::Builder::new().spawn(answers).unwrap();
    }

    /// Passes bytes on, until the connection ends or is cut. `judge` returns how many of some may pass.
    fn pass(
        &self,
        way: &Way,
        mut from: TcpStream,
        mut to: TcpStream,
        judge: impl Fn(&[u8]) -> usize,
    ) {
        let mut bytes = [0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let delay = self.delay_us.load(Ordering::SeqCst);
            if delay > 0 {
                thread::park_timeout(Duration::from_micros(delay));
            }
            let mut hangs = self.hangs.lock().unwrap();
            while *hangs {
                hangs = self.goes_on.wait(hangs).unwrap();
            }
            drop(hangs);
            let passing = judge(&bytes[..count]).min(way.passes(count));
            if to.write_all(&bytes[..passing]).is_err() || passing < count {
                break;
            }
        }
        let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
    }

    fn at_request(&self, bytes: &[u8], loses: &AtomicBool) -> usize {
        if let Some(at) = position(bytes, ROLLBACK)
            && self.cuts_rollback.swap(false, Ordering::SeqCst)
        {
            self.end_cuts.fetch_add(1, Ordering::SeqCst);
            return at.saturating_sub(5);
        }
        let Some(at) = position(bytes, COMMIT) else { return bytes.len() };
        match self.next_commit.swap(PASSES, Ordering::SeqCst) {
            IS_CUT => {
                self.end_cuts.fetch_add(1, Ordering::SeqCst);
                // The type of the message, and its length.
                at.saturating_sub(5)
            }
            LOSES_ITS_ANSWER => {
                loses.store(true, Ordering::SeqCst);
                bytes.len()
            }
            _ => bytes.len(),
        }
    }

    fn at_answer(&self, bytes: &[u8], loses: &AtomicBool) -> usize {
        let Some(at) = position(bytes, COMMIT) else { return bytes.len() };
        if !loses.swap(false, Ordering::SeqCst) {
            return bytes.len();
        }
        self.end_cuts.fetch_add(1, Ordering::SeqCst);
        at.saturating_sub(5)
    }
}

fn position(bytes: &[u8], of: &[u8]) -> Option<usize> {
    bytes.windows(of.len()).position(|part| part == of)
}
