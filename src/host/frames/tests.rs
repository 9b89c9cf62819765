use std::time::Duration;

use futures::poll;
use tokio::{
    io::{DuplexStream, duplex},
    time::timeout,
};

use super::*;

const LONG: Duration = Duration::from_secs(60);
/// Longer than anything that these tests write without a reader.
const SPACE: usize = 1 << 20;

fn clock() -> Clock {
    Clock::manual(1_000_000)
}

fn reader(stream: DuplexStream, clock: &Clock) -> FrameReader<DuplexStream> {
    FrameReader::new(stream, clock.clone())
}

/// The frames that the tests cut: a hello, a ping, messages of which one is empty.
fn frames() -> (Vec<u8>, Vec<(Kind, Vec<u8>)>) {
    let frames = vec![
        (Kind::Hello, b"{}".to_vec()),
        (Kind::Ping, Vec::new()),
        (Kind::Message, b"one".to_vec()),
        (Kind::Message, Vec::new()),
        (Kind::Message, vec![7; 300]),
        (Kind::Bye, b"enough".to_vec()),
    ];
    let mut bytes = Vec::new();
    for (kind, payload) in &frames {
        put(&mut bytes, *kind, payload).unwrap();
    }
    (bytes, frames)
}

/// Reads frames until the end of the connection.
async fn read_all(mut read: FrameReader<DuplexStream>) -> (Vec<(Kind, Vec<u8>)>, LinkError) {
    let mut all = Vec::new();
    loop {
        match read.frame().await {
            Ok((kind, length)) => {
                all.push((kind, read.payload(length).to_vec()));
                read.pass(length);
            }
            Err(error) => return (all, error),
        }
    }
}

#[tokio::test]
async fn frames_are_the_same_wherever_they_are_cut() {
    let (bytes, expected) = frames();
    for cut in 0..=bytes.len() {
        let (near, mut far) = duplex(SPACE);
        let clock = clock();
        let mut reading = Box::pin(read_all(reader(near, &clock)));
        far.write_all(&bytes[..cut]).await.unwrap();
        assert!(poll!(&mut reading).is_pending());
        far.write_all(&bytes[cut..]).await.unwrap();
        drop(far);
        let (read, error) = timeout(LONG, reading).await.unwrap();
        assert_eq!(read, expected, "cut at {cut}");
        assert!(matches!(error, LinkError::Closed), "{error}");
    }
}

#[tokio::test]
async fn a_connection_that_ends_within_a_frame_has_no_more_of_it() {
    let (bytes, expected) = frames();
    for end in 0..bytes.len() {
        let (near, mut far) = duplex(SPACE);
        far.write_all(&bytes[..end]).await.unwrap();
        drop(far);
        let (read, error) = timeout(LONG, read_all(reader(near, &clock()))).await.unwrap();
        assert!(matches!(error, LinkError::Closed), "{error}");
        assert_eq!(read, expected[..read.len()], "ended at {end}");
        assert!(read.len() < expected.len());
    }
}

#[tokio::test]
async fn a_frame_that_is_too_long_or_of_no_kind_ends_the_link() {
    for (head, expected) in [
        ([0xff, 0xff, 0xff, 0xff, 3], "too long"),
        ([0x10, 0, 0, 1, 3], "too long"),
        ([0, 0, 0x10, 1, 1], "too long"),
        ([0, 0, 0, 1, 2], "too long"),
        ([0, 0, 0, 0, 0], "kind 0"),
        ([0, 0, 0, 0, 5], "kind 5"),
    ] {
        let (near, mut far) = duplex(SPACE);
        far.write_all(&head).await.unwrap();
        let error = reader(near, &clock()).frame().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = put(&mut Vec::new(), Kind::Ping, b"x").unwrap_err();
    assert!(matches!(error, LinkError::TooLong(1)), "{error}");
}

#[tokio::test]
async fn an_announced_length_takes_no_space() {
    let (near, mut far) = duplex(SPACE);
    let clock = clock();
    let mut read = reader(near, &clock);
    // Nearly 256 MiB.
    far.write_all(&[0x0f, 0xff, 0xff, 0xff, 3, 1, 2]).await.unwrap();
    assert!(poll!(Box::pin(read.frame())).is_pending());
    assert!(read.came.capacity() <= 4 * CHUNK, "{}", read.came.capacity());
    far.write_all(&vec![0; 3 * CHUNK]).await.unwrap();
    assert!(poll!(Box::pin(read.frame())).is_pending());
    assert!(read.came.capacity() <= 16 * CHUNK, "{}", read.came.capacity());
}

#[tokio::test]
async fn a_link_without_a_byte_for_long_is_broken() {
    let (near, mut far) = duplex(SPACE);
    let clock = clock();
    let mut read = reader(near, &clock);
    let mut waits = Box::pin(read.frame());
    // A byte each four seconds is no silence, though it is no frame.
    for byte in [0, 0, 0, 0] {
        assert!(poll!(&mut waits).is_pending());
        clock.advance(Duration::from_secs(4));
        far.write_all(&[byte]).await.unwrap();
    }
    assert!(poll!(&mut waits).is_pending());
    clock.advance(Duration::from_secs(5));
    let error = timeout(LONG, waits).await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Silent), "{error}");
}

#[tokio::test]
async fn an_end_that_takes_nothing_for_long_is_broken() {
    let (mut near, mut far) = duplex(16);
    let clock = clock();
    let mut writes = Box::pin(write_all(&mut near, &[1; 64], &clock));
    for _ in 0..2 {
        assert!(poll!(&mut writes).is_pending());
        clock.advance(Duration::from_secs(4));
        far.read_exact(&mut [0; 8]).await.unwrap();
    }
    assert!(poll!(&mut writes).is_pending());
    clock.advance(Duration::from_secs(5));
    let error = timeout(LONG, writes).await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Stuck), "{error}");
}

type Opened = Result<(FrameLink<DuplexStream>, Hello), LinkError>;

async fn opened(near: &Hello, far: &Hello, clock: &Clock) -> (Opened, Opened) {
    let (one, other) = duplex(SPACE);
    tokio::join!(
        FrameLink::open(one, near, clock.clone()),
        FrameLink::open(other, far, clock.clone())
    )
}

#[tokio::test]
async fn ends_of_different_releases_refuse_each_other_with_the_reason() {
    let clock = clock();
    let mine = Hello::new(1, "a");
    for theirs in [
        Hello { release: "0.0.0-other".to_owned(), ..Hello::new(2, "b") },
        Hello { protocol: PROTOCOL + 1, ..Hello::new(2, "b") },
    ] {
        let (near, far) = opened(&mine, &theirs, &clock).await;
        for ended in [near, far] {
            let Err(LinkError::Refused(reason)) = ended else { panic!("they agree") };
            assert!(reason.contains("node 1 has release"), "{reason}");
            assert!(reason.contains("node 2 has release"), "{reason}");
        }
    }
    let (near, mut far) = duplex(SPACE);
    let mut bytes = Vec::new();
    put(&mut bytes, Kind::Bye, b"not you").unwrap();
    far.write_all(&bytes).await.unwrap();
    let error = FrameLink::open(near, &mine, clock).await.err().unwrap();
    assert!(matches!(&error, LinkError::Refused(reason) if reason == "not you"), "{error}");
}

#[tokio::test]
async fn who_does_not_begin_with_a_hello_is_refused() {
    for (kind, payload) in [(Kind::Message, "{}"), (Kind::Ping, ""), (Kind::Hello, "{")] {
        let (near, mut far) = duplex(SPACE);
        let mut bytes = Vec::new();
        put(&mut bytes, kind, payload.as_bytes()).unwrap();
        far.write_all(&bytes).await.unwrap();
        let opened = FrameLink::open(near, &Hello::new(1, "a"), clock()).await;
        assert!(matches!(opened, Err(LinkError::Unexpected(_) | LinkError::Hello(_))), "{kind:?}");
    }
}

/// One end of a link whose messages are texts.
struct End {
    says: mpsc::UnboundedSender<String>,
    told: mpsc::Receiver<String>,
    carries: futures::future::BoxFuture<'static, LinkError>,
}

fn end(link: FrameLink<DuplexStream>) -> End {
    let (says, outgoing) = mpsc::unbounded_channel();
    let (incoming, told) = mpsc::channel(1);
    let decode = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => {
            Err(StoreError::Damaged { what: "a text".to_owned(), reason: error.to_string() })
        }
    };
    let encode = |text: &String| Ok(text.clone().into_bytes());
    let carries = Box::pin(link.carry(LinkEnds { outgoing, incoming }, encode, decode));
    End { says, told, carries }
}

#[tokio::test]
async fn messages_come_in_their_order_and_the_end_of_one_side_ends_both() {
    let clock = clock();
    let (near, far) = opened(&Hello::new(1, "a"), &Hello::new(2, "b"), &clock).await;
    let ((near, theirs), (far, _)) = (near.unwrap(), far.unwrap());
    assert_eq!((theirs.node, theirs.name.as_str()), (2, "b"));
    let End { says, carries: mut sends, told: _told } = end(near);
    let End { mut told, carries: mut receives, says: _open } = end(far);
    // More than the channel of the other end has room for, and a frame of several writes.
    for nth in 0..100 {
        says.send(format!("{nth}")).unwrap();
    }
    says.send("x".repeat(3 * SPACE)).unwrap();
    drop(says);
    let heard = async {
        for nth in 0..100 {
            assert_eq!(told.recv().await.unwrap(), nth.to_string());
        }
        assert_eq!(told.recv().await.unwrap().len(), 3 * SPACE);
        told.recv().await
    };
    let all = async { tokio::join!(&mut sends, &mut receives, heard) };
    let (one, other, after) = timeout(LONG, all).await.unwrap();
    assert!(matches!(one, LinkError::Over), "{one}");
    assert!(matches!(other, LinkError::Closed), "{other}");
    assert_eq!(after, None);
}

#[tokio::test]
async fn an_end_without_messages_pings_and_one_that_hears_pings_goes_on() {
    let clock = clock();
    let (near, mut far) = duplex(SPACE);
    let mut hello = Vec::new();
    put(&mut hello, Kind::Hello, &serde_json::to_vec(&Hello::new(2, "b")).unwrap()).unwrap();
    far.write_all(&hello).await.unwrap();
    let (link, _) = FrameLink::open(near, &Hello::new(1, "a"), clock.clone()).await.unwrap();
    let mut near = end(link);
    let mut read = reader(far, &clock);
    let (kind, length) = read.frame().await.unwrap();
    assert_eq!(kind, Kind::Hello);
    read.pass(length);
    for _ in 0..12 {
        assert!(poll!(&mut near.carries).is_pending());
        clock.advance(Duration::from_secs(1));
        assert!(poll!(&mut near.carries).is_pending());
        assert_eq!(read.frame().await.unwrap(), (Kind::Ping, 0));
        read.pass(0);
        let mut ping = Vec::new();
        put(&mut ping, Kind::Ping, &[]).unwrap();
        read.half.write_all(&ping).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(poll!(&mut near.carries).is_pending());
    clock.advance(Duration::from_secs(5));
    let error = timeout(LONG, &mut near.carries).await.unwrap();
    assert!(matches!(error, LinkError::Silent), "{error}");
}

#[tokio::test]
async fn a_message_that_makes_no_sense_ends_the_link() {
    let clock = clock();
    let (near, mut far) = duplex(SPACE);
    let mut bytes = Vec::new();
    put(&mut bytes, Kind::Hello, &serde_json::to_vec(&Hello::new(2, "b")).unwrap()).unwrap();
    put(&mut bytes, Kind::Message, b"fine").unwrap();
    put(&mut bytes, Kind::Message, &[0xff]).unwrap();
    far.write_all(&bytes).await.unwrap();
    let (link, _) = FrameLink::open(near, &Hello::new(1, "a"), clock).await.unwrap();
    let mut near = end(link);
    let error = timeout(LONG, &mut near.carries).await.unwrap();
    assert!(matches!(error, LinkError::Message(_)), "{error}");
    assert_eq!(near.told.try_recv().ok(), Some("fine".to_owned()), "what came before is there");
}

#[tokio::test]
async fn a_reader_that_is_slow_holds_up_nothing_until_much_waits() {
    let clock = clock();
    let (near, far) = opened(&Hello::new(1, "a"), &Hello::new(2, "b"), &clock).await;
    let (near, far) = (end(near.unwrap().0), end(far.unwrap().0));
    for _ in 0..8 {
        near.says.send("x".repeat(SPACE)).unwrap();
    }
    let (mut sends, mut receives) = (near.carries, far.carries);
    // Nobody takes them, and nobody is broken: eight times as much as the connection has space for.
    for _ in 0..200 {
        assert!(poll!(&mut sends).is_pending() && poll!(&mut receives).is_pending());
        // Who never pauses is not polled any further after a while.
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(1));
    // Both ends ping, and hear the other one.
    for _ in 0..10 {
        assert!(poll!(&mut sends).is_pending() && poll!(&mut receives).is_pending());
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(4));
    assert!(poll!(&mut sends).is_pending(), "all was taken");
}
