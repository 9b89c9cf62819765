//! Frames between a node that drives and one that helps it.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | the length of the payload, big-endian |
//! | 1 | the kind: 1 hello, 2 ping, 3 message, 4 bye |
//! | length | the payload |
//!
//! Both ends begin with a hello, and go on only if the other one has the same release. A bye has the reason
//! for a refusal. An end that has nothing to send pings, so that silence means a broken link. The link
//! owns no messages: who opens it passes channels, and functions for their bytes.

use std::{collections::VecDeque, convert::Infallible, io};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf},
    sync::mpsc,
};

use crate::{clock::Clock, store::StoreError};

/// The version of the frames, and of what is agreed on with them.
const PROTOCOL: u32 = 1;
/// The longest message, in bytes: a batch has at most one file of 64 MiB beside what a turn of a run writes,
/// and text can take twice its length as JSON.
const LONGEST: usize = 256 << 20;
/// The longest hello and the longest reason of a refusal, in bytes.
const LONGEST_WORDS: usize = 4 << 10;
/// The bytes before a payload.
const HEAD: usize = 5;
/// The space for a read, in bytes.
const CHUNK: usize = 64 << 10;
/// The space that is kept when nothing is there, in bytes.
const KEPT: usize = 1 << 20;
/// Frames of so many bytes are written at once.
const COALESCED: usize = 256 << 10;
/// Received messages of so many bytes may wait for their reader before the link stops reading. More than a
/// helper may have on its way: an end that does not read looks broken to the other one.
const WAITING: usize = 32 << 20;
/// The time without a frame after which an end pings, in milliseconds.
const PING_MS: u64 = 1_000;
/// The time without a byte after which a link counts as broken, in milliseconds.
const SILENCE_MS: u64 = 5_000;

/// The kinds of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Hello,
    Ping,
    Message,
    Bye,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let kinds = [Self::Hello, Self::Ping, Self::Message, Self::Bye];
        kinds.into_iter().find(|kind| kind.byte() == byte)
    }

    fn byte(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Ping => 2,
            Self::Message => 3,
            Self::Bye => 4,
        }
    }

    /// Returns the maximum length of a payload.
    fn longest(self) -> usize {
        match self {
            Self::Hello | Self::Bye => LONGEST_WORDS,
            Self::Ping => 0,
            Self::Message => LONGEST,
        }
    }
}

/// The reason why a link cannot be opened, or has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    /// This end has nothing more to send, or nobody who receives.
    #[error("keep the link: this end has ended it")]
    Over,
    /// The other end closed the connection.
    #[error("read from the link: the other end closed it")]
    Closed,
    /// The connection failed.
    #[error("use the link: {0}")]
    Io(#[from] io::Error),
    /// Nothing came for too long.
    #[error("read from the link: nothing came for {} seconds", SILENCE_MS / 1_000)]
    Silent,
    /// Nothing was taken for too long.
    #[error("write to the link: nothing was taken for {} seconds", SILENCE_MS / 1_000)]
    Stuck,
    /// A frame that is longer than its kind allows.
    #[error("pass a frame of {0} bytes: it is too long")]
    TooLong(usize),
    /// A frame that makes no sense here.
    #[error("read a frame of kind {0}: it is not expected")]
    Unexpected(u8),
    /// A hello that cannot be read.
    #[error("read the hello of the other end: {0}")]
    Hello(#[from] serde_json::Error),
    /// One of both ends refuses the other.
    #[error("agree with the other end: {0}")]
    Refused(String),
    /// A message that cannot be encoded or decoded.
    #[error(transparent)]
    Message(StoreError),
}

/// The first words of an end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    protocol: u32,
    release: String,
    /// The number of the node.
    pub(super) node: i64,
    /// Its name, for people.
    pub(super) name: String,
}

impl Hello {
    /// Returns the first words of a node of this release.
    pub(super) fn new(node: i64, name: &str) -> Self {
        let release = env!("CARGO_PKG_VERSION").to_owned();
        Self { protocol: PROTOCOL, release, node, name: name.to_owned() }
    }

    /// Returns the reason why an end with these words does not go on with another one.
    fn refusal(&self, theirs: &Self) -> Option<String> {
        let words = |it: &Self| format!("release {} (protocol {})", it.release, it.protocol);
        let is_same = self.protocol == theirs.protocol && self.release == theirs.release;
        (!is_same).then(|| {
            let (mine, others) = (words(self), words(theirs));
            format!("node {} has {mine}, and node {} has {others}", self.node, theirs.node)
        })
    }
}

/// The channels between a link and its end of the conversation.
pub(super) struct LinkEnds<Out, In> {
    /// The messages to send. The link ends with them. Unbounded, because who sends must not wait: a helper
    /// waits for room in its relay, and the node that drives answers what it was sent.
    pub(super) outgoing: mpsc::UnboundedReceiver<Out>,
    /// The messages that came.
    pub(super) incoming: mpsc::Sender<In>,
}

/// A connection on which both ends have agreed to talk.
pub(super) struct FrameLink<S> {
    read: FrameReader<ReadHalf<S>>,
    write: WriteHalf<S>,
    clock: Clock,
}

impl<S: AsyncRead + AsyncWrite + Unpin> FrameLink<S> {
    /// Exchanges the first words over a connection; returns those of the other end.
    ///
    /// # Errors
    /// Returns [`LinkError::Refused`] if the other end has another release. Fails when the connection breaks,
    /// or the other end speaks something else.
    pub(super) async fn open(
        stream: S,
        mine: &Hello,
        clock: Clock,
    ) -> Result<(Self, Hello), LinkError> {
        let (read, mut write) = tokio::io::split(stream);
        let mut read = FrameReader::new(read, clock.clone());
        let mut frames = Vec::new();
        put(&mut frames, Kind::Hello, &serde_json::to_vec(mine)?)?;
        write_all(&mut write, &frames, &clock).await?;
        let (kind, length) = read.frame().await?;
        let theirs: Hello = match kind {
            Kind::Hello => serde_json::from_slice(read.payload(length))?,
            Kind::Bye => return Err(refused(read.payload(length))),
            Kind::Ping | Kind::Message => return Err(LinkError::Unexpected(kind.byte())),
        };
        read.pass(length);
        if let Some(reason) = mine.refusal(&theirs) {
            frames.clear();
            put(&mut frames, Kind::Bye, reason.as_bytes())?;
            // The other end finds the same reason in what it was sent before.
            let _ = write_all(&mut write, &frames, &clock).await;
            return Err(LinkError::Refused(reason));
        }
        Ok((Self { read, write, clock }, theirs))
    }

    /// Carries messages both ways until the link ends. Returns the reason why it did.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection; what was not sent yet is lost.
    pub(super) async fn carry<Out, In>(
        self,
        ends: LinkEnds<Out, In>,
        encode: impl Fn(&Out) -> Result<Vec<u8>, StoreError>,
        decode: impl Fn(&[u8]) -> Result<In, StoreError>,
    ) -> LinkError {
        let Self { read, write, clock } = self;
        let LinkEnds { outgoing, incoming } = ends;
        let mut waiting = VecDeque::new();
        let ended = tokio::select! {
            ended = receive(read, (&incoming, &mut waiting), decode) => ended,
            ended = send(write, outgoing, encode, &clock) => ended,
        };
        // What had come before the end counts.
        for (message, _) in waiting {
            if incoming.send(message).await.is_err() {
                break;
            }
        }
        match ended {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }
}

/// Passes on what comes. Messages for which there is no room wait, each with its length.
async fn receive<R: AsyncRead + Unpin, In>(
    mut read: FrameReader<R>,
    (incoming, waiting): (&mpsc::Sender<In>, &mut VecDeque<(In, usize)>),
    decode: impl Fn(&[u8]) -> Result<In, StoreError>,
) -> Result<Infallible, LinkError> {
    let mut bytes = 0;
    loop {
        tokio::select! {
            biased;
            permit = incoming.reserve(), if !waiting.is_empty() => {
                let Ok(permit) = permit else { return Err(LinkError::Over) };
                if let Some((message, length)) = waiting.pop_front() {
                    bytes -= length;
                    permit.send(message);
                }
            }
            frame = read.frame(), if bytes < WAITING => {
                let (kind, length) = frame?;
                match kind {
                    Kind::Message => {
                        let message = decode(read.payload(length)).map_err(LinkError::Message)?;
                        waiting.push_back((message, length));
                        bytes += length;
                    }
                    Kind::Ping => {}
                    Kind::Bye => return Err(refused(read.payload(length))),
                    Kind::Hello => return Err(LinkError::Unexpected(kind.byte())),
                }
                read.pass(length);
            }
            () = incoming.closed() => return Err(LinkError::Over),
        }
    }
}

/// Sends what there is to send, or pings.
async fn send<W: AsyncWrite + Unpin, Out>(
    mut write: W,
    mut outgoing: mpsc::UnboundedReceiver<Out>,
    encode: impl Fn(&Out) -> Result<Vec<u8>, StoreError>,
    clock: &Clock,
) -> Result<Infallible, LinkError> {
    let add = |frames: &mut Vec<u8>, message: &Out| {
        put(frames, Kind::Message, &encode(message).map_err(LinkError::Message)?)
    };
    let mut frames = Vec::new();
    loop {
        frames.clear();
        if frames.capacity() > KEPT {
            frames = Vec::new();
        }
        tokio::select! {
            biased;
            message = outgoing.recv() => match message {
                Some(message) => add(&mut frames, &message)?,
                None => {
                    close(&mut write, clock).await;
                    return Err(LinkError::Over);
                }
            },
            () = clock.sleep(PING_MS) => put(&mut frames, Kind::Ping, &[])?,
        }
        while frames.len() < COALESCED
            && let Ok(message) = outgoing.try_recv()
        {
            add(&mut frames, &message)?;
        }
        write_all(&mut write, &frames, clock).await?;
    }
}

/// Reads frames from one half of a connection.
struct FrameReader<R> {
    half: R,
    /// The bytes that came; those before `at` were passed on.
    came: Vec<u8>,
    at: usize,
    clock: Clock,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    fn new(half: R, clock: Clock) -> Self {
        Self { half, came: Vec::new(), at: 0, clock }
    }

    /// Waits until a whole frame is there; returns its kind and the length of its payload.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    async fn frame(&mut self) -> Result<(Kind, usize), LinkError> {
        loop {
            if let Some((kind, length)) = self.head()?
                && self.came.len() - self.at - HEAD >= length
            {
                return Ok((kind, length));
            }
            self.read().await?;
        }
    }

    /// Returns the kind and the length of the frame whose head is there.
    fn head(&self) -> Result<Option<(Kind, usize)>, LinkError> {
        let Some(&[a, b, c, d, kind]) = self.came[self.at..].first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let kind = Kind::of(kind).ok_or(LinkError::Unexpected(kind))?;
        match length <= kind.longest() {
            true => Ok(Some((kind, length))),
            false => Err(LinkError::TooLong(length)),
        }
    }

    /// Reads what is there. The space grows with what came, whatever length was announced.
    async fn read(&mut self) -> Result<(), LinkError> {
        self.came.drain(..self.at);
        self.at = 0;
        if self.came.is_empty() && self.came.capacity() > KEPT {
            self.came = Vec::new();
        }
        self.came.reserve(CHUNK);
        let read = tokio::select! {
            // After a pause of the process, what has come meanwhile counts.
            biased;
            read = self.half.read_buf(&mut self.came) => read?,
            () = self.clock.sleep(SILENCE_MS) => return Err(LinkError::Silent),
        };
        if read == 0 { Err(LinkError::Closed) } else { Ok(()) }
    }

    /// Returns the payload of the frame that is there.
    fn payload(&self, length: usize) -> &[u8] {
        &self.came[self.at + HEAD..][..length]
    }

    /// Goes on to the next frame.
    fn pass(&mut self, length: usize) {
        self.at += HEAD + length;
    }
}

/// Appends a frame.
fn put(frames: &mut Vec<u8>, kind: Kind, payload: &[u8]) -> Result<(), LinkError> {
    let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= kind.longest());
    let length = length.ok_or(LinkError::TooLong(payload.len()))?;
    frames.extend(length.to_be_bytes());
    frames.push(kind.byte());
    frames.extend_from_slice(payload);
    Ok(())
}

/// Writes bytes. The other end must take some of them within the limit, and again.
async fn write_all<W: AsyncWrite + Unpin>(
    write: &mut W,
    mut bytes: &[u8],
    clock: &Clock,
) -> Result<(), LinkError> {
    while !bytes.is_empty() {
        let written = tokio::select! {
            biased;
            written = write.write(bytes) => written?,
            () = clock.sleep(SILENCE_MS) => return Err(LinkError::Stuck),
        };
        if written == 0 {
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
        bytes = &bytes[written..];
    }
    tokio::select! {
        biased;
        flushed = write.flush() => flushed.map_err(LinkError::from),
        () = clock.sleep(SILENCE_MS) => Err(LinkError::Stuck),
    }
}

/// Tells the other end that nothing more comes.
async fn close<W: AsyncWrite + Unpin>(write: &mut W, clock: &Clock) {
    tokio::select! {
        // It may be gone already.
        _ = write.shutdown() => {}
        () = clock.sleep(PING_MS) => {}
    }
}

/// Returns the reason of a refusal by the other end.
fn refused(reason: &[u8]) -> LinkError {
    LinkError::Refused(String::from_utf8_lossy(reason).into_owned())
}

#[cfg(test)]
mod tests;
