//! Placement, numbering and release of attempts, without a store.

use std::sync::Arc;

use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    protocol::{SessionId, TaskId, Ticket},
    store::{FrameRow, SessionRow, Write},
    token::HandleKey,
};

fn row(id: &str, operator: &str) -> SessionRow {
    SessionRow {
        id: id.to_owned(),
        operator: operator.to_owned(),
        principal: "ada".to_owned(),
        jti: format!("jti-{id}"),
        until_ms: u64::MAX,
        created_ms: 1,
        expires_ms: 1_000,
        direct: false,
        last_seq: 0,
        acked_seq: 0,
        closed_ms: None,
        reason: None,
    }
}

fn ticket(step: u32) -> Ticket {
    Ticket { run: 1, step, attempt: 1 }
}

fn spawn(step: u32, seat: Seat) -> Spawn {
    Spawn {
        ticket: ticket(step),
        task: TaskId::new(1, step, 5),
        epoch: 1,
        nonce: 9,
        operator: "main-ai".into(),
        seat,
        timeout_ms: Some(60_000),
        thin: r#"{"road":"thin"}"#.into(),
        full: Some(r#"{"road":"full"}"#.into()),
        direct: false,
    }
}

fn give(hub: &Hub, steps: impl IntoIterator<Item = u32>, seat: &Seat) {
    for step in steps {
        hub.spawn(spawn(step, seat.clone()), &CancellationToken::new());
    }
}

/// Completes one write, successful if `durable`. Returns the number of frames.
fn write(hub: &Hub, durable: bool) -> usize {
    let (sessions, writes) = hub.write_out();
    hub.written(&sessions, &writes, durable);
    writes.iter().filter(|write| matches!(write, Write::PutFrame(_))).count()
}

/// Completes one write, and returns its frames as they are stored.
fn stored(hub: &Hub) -> Vec<FrameRow> {
    let (sessions, writes) = hub.write_out();
    hub.written(&sessions, &writes, true);
    let frames = writes.into_iter().filter_map(|write| match write {
        Write::PutFrame(frame) => Some(*frame),
        _ => None,
    });
    frames.collect()
}

/// A hub that has read sessions and frames from the store.
fn loaded(sessions: Vec<SessionRow>, frames: Vec<FrameRow>) -> Hub {
    let hub = Hub::default();
    hub.load(sessions, frames);
    hub
}

fn numbers(hub: &Hub, link: &Arc<Link>) -> Vec<(u64, u32)> {
    std::iter::from_fn(|| hub.next(link)).map(|f| (f.seq, f.note.ticket.step)).collect()
}

fn id(text: &str) -> SessionId {
    text.into()
}

fn holder(session: &str) -> Seat {
    Seat { holder: Some(id(session)), ..Seat::default() }
}

#[test]
fn a_frame_gets_its_number_when_it_is_durable_and_a_failed_write_leaves_no_gap() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    let link = hub.connect(&id("a"), None).unwrap();
    give(&hub, 1..=2, &Seat::default());
    assert_eq!(numbers(&hub, &link), [], "nothing leaves before it is durable");
    assert_eq!(write(&hub, false), 2);
    assert_eq!(numbers(&hub, &link), []);
    give(&hub, 3..=3, &Seat::default());
    assert_eq!(write(&hub, true), 3);
    assert_eq!(numbers(&hub, &link), [(1, 1), (2, 2), (3, 3)]);
    assert_eq!(numbers(&hub, &link), [], "once a connection");
    assert_eq!(write(&hub, true), 0);
}

#[test]
fn what_was_not_said_is_taken_back_and_what_was_is_canceled() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    give(&hub, 1..=2, &Seat::default());
    hub.retire(ticket(1), Some("over"));
    assert_eq!(write(&hub, true), 1);
    hub.retire(ticket(2), Some("over"));
    assert_eq!(write(&hub, true), 1);
    let link = hub.connect(&id("a"), None).unwrap();
    let methods: Vec<_> = std::iter::from_fn(|| hub.next(&link)).map(|f| f.note.method).collect();
    assert_eq!(methods, [Method::Spawn, Method::Cancel]);
    assert_eq!(
        hub.attempt_of(&id("a"), (1, 2), false).map(|(it, _)| it),
        Some(ticket(2)),
        "it had it"
    );
    give(&hub, 3..=3, &Seat::default());
    write(&hub, true);
    hub.retire(ticket(3), None);
    assert_eq!(write(&hub, true), 0, "who reported needs no cancel");
}

#[test]
fn who_waits_is_placed_again_only_if_a_session_that_opens_or_closes_can_change_that() {
    let hub = Hub::default();
    for other in ["a", "b"] {
        hub.open(row(other, "main-ai"));
    }
    give(&hub, 1..=3, &Seat::default());
    give(&hub, 4..=4, &holder("gone"));
    let arrivals = || hub.inner.lock().waiting.arrivals();
    let before = arrivals();
    hub.open(row("c", "main-ai"));
    hub.close(&id("c"), LinkEnd::Expired);
    assert_eq!(arrivals(), before, "they stay where they are");
    give(&hub, 5..=5, &holder("d"));
    hub.open(row("d", "main-ai"));
    assert_eq!(hub.holder(ticket(5)), Some(id("d")), "one that names it goes to it");
    hub.close(&id("d"), LinkEnd::Expired);
    assert_eq!(hub.holder(ticket(1)), None, "two are left");
    hub.close(&id("b"), LinkEnd::Expired);
    for step in 1..=3 {
        assert_eq!(hub.holder(ticket(step)), Some(id("a")), "{step}: it is the only one");
    }
    assert_eq!(hub.holder(ticket(4)), None);
    hub.close(&id("a"), LinkEnd::Expired);
    give(&hub, 6..=6, &Seat::default());
    hub.open(row("e", "main-ai"));
    assert_eq!(hub.holder(ticket(6)), Some(id("e")));
}

#[test]
fn an_account_has_half_of_the_sessions() {
    let hub = Hub::default();
    let open = |name: &str, n: usize| {
        let principal = format!("{name}/operator#{}", n % 7);
        hub.open(SessionRow { principal, ..row(&format!("{name}{n}"), "main-ai") });
    };
    (0..4_999).for_each(|n| open("ada", n));
    hub.admit("ada/operator#9").unwrap();
    open("ada", 4_999);
    assert_eq!(hub.admit("ada/operator#9"), Err(SessionError::TooManyOfAccount));
    hub.admit("bob").unwrap();
    (0..5_000).for_each(|n| open("bob", n));
    assert_eq!(hub.admit("eve"), Err(SessionError::TooMany));
    hub.close(&id("ada7"), LinkEnd::Expired);
    hub.admit("ada").unwrap();
    hub.admit("eve").unwrap();
    assert_eq!(hub.admit("bob"), Err(SessionError::TooManyOfAccount));
}

#[test]
fn a_session_that_ends_with_its_time_is_not_renewed_and_one_that_was_renewed_does_not_end() {
    let hub = Hub::default();
    for other in ["a", "b"] {
        hub.open(row(other, "main-ai"));
    }
    let extend = |until_ms| hub.extend(&id("a"), until_ms).unwrap();
    assert_eq!(extend(500).until_ms, 1_000, "it is never shortened");
    assert_eq!(hub.expired(1_000).len(), 2);
    assert_eq!(extend(2_000), Extended { before_ms: 1_000, until_ms: 2_000 });
    assert!(!hub.expire(&id("a"), 1_000), "it was renewed meanwhile");
    assert!(hub.expire(&id("b"), 1_000));
    assert_eq!(hub.extend(&id("b"), 2_000), Err(SessionError::NotOpen(id("b"))));
    assert_eq!(hub.expired(1_000), [id("b")], "the next sweep ends it if this one cannot");
    hub.remains(&id("b"));
    assert!(hub.extend(&id("b"), 1_500).is_ok(), "unless it is renewed before that");
    assert!(hub.expire(&id("b"), 1_500));
    hub.close(&id("b"), LinkEnd::Expired);
    assert!(!hub.expire(&id("b"), 1_500));
}

#[test]
fn a_renewal_that_was_not_stored_is_taken_back_unless_another_followed() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    let first = hub.extend(&id("a"), 2_000).unwrap();
    hub.unextend(&id("a"), first);
    assert_eq!(hub.expiry(&id("a")), Some(1_000));
    let second = hub.extend(&id("a"), 2_000).unwrap();
    hub.extend(&id("a"), 3_000).unwrap();
    hub.unextend(&id("a"), second);
    assert_eq!(hub.expiry(&id("a")), Some(3_000));
}

#[test]
fn an_attempt_that_found_no_room_goes_to_the_session_that_it_names_when_that_opens() {
    let hub = Hub::default();
    for other in ["a", "b"] {
        hub.open(row(other, "main-ai"));
    }
    give(&hub, 1..=10_000, &Seat::default());
    give(&hub, [10_001], &holder("c"));
    assert!(!hub.knows(ticket(10_001)), "it is only in the store");
    assert!(hub.hungry().now_or_never().is_none(), "nothing could be placed");
    hub.open(row("c", "main-ai"));
    assert!(hub.hungry().now_or_never().is_some(), "it is read again");
    give(&hub, [10_001], &holder("c"));
    assert_eq!(hub.holder(ticket(10_001)), Some(id("c")));
    hub.open(row("d", "main-ai"));
    assert!(hub.hungry().now_or_never().is_none(), "nothing was left out since");
}

#[test]
fn a_seat_decides_and_without_one_the_starter_or_the_only_session() {
    let hub = Hub::default();
    give(&hub, 1..=1, &Seat::default());
    assert_eq!(hub.outlook(ticket(1), "main-ai", &Seat::default()), Outlook::NoSession);
    hub.open(row("a", "main-ai"));
    assert_eq!(hub.holder(ticket(1)), Some(id("a")), "the only one gets what waited");
    hub.open(row("b", "main-ai"));
    hub.open(row("other", "desk"));
    give(&hub, 2..=2, &Seat::default());
    assert_eq!(hub.outlook(ticket(2), "main-ai", &Seat::default()), Outlook::Several(2));
    let starter = Seat { starter: Some(id("b")), ..Seat::default() };
    give(&hub, 3..=3, &starter);
    assert_eq!(hub.holder(ticket(3)), Some(id("b")));
    give(&hub, 4..=4, &Seat { holder: Some(id("a")), ..starter.clone() });
    assert_eq!(hub.holder(ticket(4)), Some(id("a")), "the seat goes before the starter");
    let delegate = Seat { delegate: Some(id("other")), holder: Some(id("a")), starter: None };
    give(&hub, 5..=5, &delegate);
    assert_eq!(hub.holder(ticket(5)), Some(id("other")), "the delegate before everything");
    let gone = holder("gone");
    give(&hub, 6..=6, &gone);
    assert_eq!(hub.outlook(ticket(6), "main-ai", &gone), Outlook::Vacant(id("gone")));
    let wrong = Seat { starter: Some(id("other")), ..Seat::default() };
    give(&hub, 7..=7, &wrong);
    assert_eq!(hub.holder(ticket(7)), None, "a starter of another operator has no claim");
}

#[test]
fn the_tasks_of_a_closed_session_go_to_others_in_the_order_that_is_configured() {
    let seat = Seat { delegate: Some(id("gone")), holder: Some(id("a")), starter: Some(id("b")) };
    let closed = Seat { holder: Some(id("gone too")), ..seat.clone() };
    for (order, seat, goes_to) in [
        (&[][..], &seat, None),
        (&[Fallback::Seat, Fallback::Starter], &seat, Some("a")),
        (&[Fallback::Starter, Fallback::Seat], &seat, Some("b")),
        (&[Fallback::Seat, Fallback::Starter], &closed, Some("b")),
        (&[Fallback::Only], &seat, None),
    ] {
        let hub = Hub::default().falling_back(order);
        hub.open(row("a", "main-ai"));
        hub.open(row("b", "main-ai"));
        give(&hub, 1..=1, seat);
        assert_eq!(hub.holder(ticket(1)), goes_to.map(id), "{order:?}");
        hub.close(&id("b"), LinkEnd::Expired);
        give(&hub, 2..=2, seat);
        let only = order.contains(&Fallback::Only).then(|| id("a"));
        let left = order.contains(&Fallback::Seat).then_some(seat.holder.clone()).flatten();
        assert_eq!(hub.holder(ticket(2)), only.or(left.filter(|it| *it == id("a"))), "{order:?}");
    }
}

#[test]
fn a_full_session_takes_more_as_it_acknowledges_and_finishes() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    let most = u32::try_from(MOST_OPEN).unwrap();
    give(&hub, 1..=most + 2, &Seat::default());
    assert_eq!(hub.held(&id("a")).len(), MOST_OPEN);
    assert_eq!(hub.holder(ticket(most + 1)), None);
    hub.retire(ticket(most + 1), Some("over"));
    hub.retire(ticket(1), None);
    assert_eq!(hub.holder(ticket(most + 2)), Some(id("a")), "who left the line is passed over");
    while write(&hub, true) > 0 {}
    let last = hub.looks(&id("a")).unwrap().row.last_seq;
    assert_eq!(last, u64::from(most) + 1);
    assert!(hub.arrived(&id("a"), last + 1).is_err());
    assert_eq!(hub.arrived(&id("a"), 2).unwrap().len(), 1, "the first is over, the second arrived");
    hub.acknowledge(&id("a"), last);
    assert_eq!(hub.looks(&id("a")).unwrap().unacknowledged, 0);
    let link = hub.connect(&id("a"), None).unwrap();
    assert_eq!(numbers(&hub, &link), []);
}

#[test]
fn a_closed_session_gives_back_what_it_had_and_its_line_goes_elsewhere() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    let link = hub.connect(&id("a"), None).unwrap();
    let most = u32::try_from(MOST_OPEN).unwrap();
    give(&hub, 1..=most + 1, &Seat::default());
    hub.open(row("b", "main-ai"));
    let had = hub.close(&id("a"), LinkEnd::Expired);
    assert_eq!(had.len(), MOST_OPEN);
    assert_eq!(link.ended(), Some(&LinkEnd::Expired));
    assert_eq!(hub.holder(ticket(most + 1)), Some(id("b")), "b is the only one now");
    assert_eq!(hub.holder(ticket(1)), None, "its run decides what becomes of it");
    assert!(hub.connect(&id("a"), None).is_err());
}

#[test]
fn a_newer_connection_takes_over_and_an_older_one_that_leaves_changes_nothing() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    let old = hub.connect(&id("a"), None).unwrap();
    let new = hub.connect(&id("a"), None).unwrap();
    assert_eq!(old.ended(), Some(&LinkEnd::Replaced));
    give(&hub, 1..=1, &Seat::default());
    write(&hub, true);
    assert_eq!(hub.next(&old), None);
    hub.disconnect(&old);
    assert!(hub.looks(&id("a")).unwrap().connected);
    assert_eq!(numbers(&hub, &new), [(1, 1)]);
    assert!(hub.connect(&id("a"), Some(2)).is_err(), "no frame has that number");
}

#[test]
fn what_the_store_has_is_taken_up_and_a_spawn_twice_is_one() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    give(&hub, 1..=2, &Seat::default());
    let (_, writes) = hub.write_out();
    let frames = writes.into_iter().filter_map(|write| match write {
        Write::PutFrame(frame) => Some(*frame),
        _ => None,
    });
    let again = Hub::default();
    again.load(vec![SessionRow { last_seq: 2, ..row("a", "main-ai") }], frames.collect());
    give(&again, 1..=2, &Seat::default());
    assert_eq!(write(&again, true), 0);
    let link = again.connect(&id("a"), Some(1)).unwrap();
    assert_eq!(numbers(&again, &link), [(2, 2)]);
    assert!(again.adopt(&id("a"), ticket(9), TaskId::new(1, 9, 5), 1));
    assert!(!again.adopt(&id("b"), ticket(8), TaskId::new(1, 8, 5), 1));
}

#[test]
fn a_spawn_on_the_wire_has_a_handle_and_a_deadline_that_are_stored_nowhere() {
    let hub = Hub::default();
    hub.open(SessionRow { direct: true, ..row("a", "main-ai") });
    give(&hub, 1..=1, &Seat::default());
    write(&hub, true);
    let link = hub.connect(&id("a"), None).unwrap();
    let frame = hub.next(&link).unwrap();
    assert_eq!(&*frame.note.params, r#"{"road":"full"}"#);
    let wire = frame.wire(&HandleKey::new([1; 32], 1), 0);
    let wire: serde_json::Value = serde_json::from_str(&wire).unwrap();
    assert_eq!((&wire["seq"], &wire["method"]), (&1.into(), &"task/spawn".into()));
    assert!(wire["params"]["handle"].as_str().unwrap().starts_with("wh_"));
    assert_eq!(wire["params"]["deadline"], "1970-01-01T00:01:00.000Z");
}

#[test]
fn an_attempt_that_was_given_up_is_not_spawned() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    let given_up = CancellationToken::new();
    given_up.cancel();
    hub.spawn(spawn(1, Seat::default()), &given_up);
    assert!(!hub.knows(ticket(1)));
}

#[test]
fn an_attempt_that_is_over_leaves_its_queue() {
    let hub = Hub::default();
    for step in 1..=1_000 {
        give(&hub, [step], &Seat::default());
        hub.retire(ticket(step), Some("over"));
    }
    assert_eq!(hub.inner.lock().waiting.sizes(), (0, 0, 0));
    give(&hub, 1..=1_000, &Seat::default());
    for step in (1..=1_000).rev() {
        hub.retire(ticket(step), Some("over"));
    }
    assert_eq!(hub.inner.lock().waiting.sizes(), (0, 0, 0));
}

#[test]
fn an_attempt_that_waits_again_waits_for_its_new_seat() {
    let hub = Hub::default();
    for other in ["a", "b"] {
        hub.open(row(other, "main-ai"));
    }
    let seat = |starter: &str| Seat { starter: Some(id(starter)), ..Seat::default() };
    give(&hub, [1], &seat("old"));
    hub.retire(ticket(1), None);
    give(&hub, [1], &seat("new"));
    hub.open(row("old", "main-ai"));
    assert_eq!(hub.holder(ticket(1)), None);
    hub.open(row("new", "main-ai"));
    assert_eq!(hub.holder(ticket(1)), Some(id("new")));
}

#[test]
fn a_call_without_a_number_is_about_what_the_client_was_told() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    let link = hub.connect(&id("a"), None).unwrap();
    give(&hub, [1], &Seat::default());
    write(&hub, true);
    assert_eq!(numbers(&hub, &link), [(1, 1)]);
    hub.retire(ticket(1), None);
    let second = Ticket { attempt: 2, ..ticket(1) };
    let again = Spawn { ticket: second, ..spawn(1, Seat::default()) };
    hub.spawn(again, &CancellationToken::new());
    write(&hub, true);
    let meant = |untold| hub.attempt_of(&id("a"), (1, 1), untold).map(|(it, _)| it);
    assert_eq!((meant(false), meant(true)), (Some(ticket(1)), Some(second)));
    assert_eq!(numbers(&hub, &link), [(2, 1)]);
    assert_eq!(meant(false), Some(second));
}

#[test]
fn who_reads_one_task_is_not_told_of_another() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    give(&hub, 1..=2, &Seat::default());
    let meant = |step| hub.attempt_of(&id("a"), (1, step), false).map(|(it, _)| it);
    assert_eq!(hub.held(&id("a")), [ticket(1), ticket(2)]);
    assert_eq!((meant(1), meant(2)), (None, None), "to look at them tells its client nothing");
    hub.told(&id("a"), [ticket(2), ticket(3)]);
    assert_eq!((meant(1), meant(2), meant(3)), (None, Some(ticket(2)), None));
}

/// The answer to a question of the first attempt.
fn answer_to_first() -> Note {
    let (method, ticket, task) = (Method::Answer, ticket(1), TaskId::new(1, 1, 5));
    Note { method, ticket, task, epoch: 1, nonce: 0, timeout_ms: None, params: "{}".into() }
}

#[test]
fn a_client_that_polls_without_numbers_is_sent_a_cancel_once_and_no_answer_that_is_too_late() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    give(&hub, [1], &Seat::default());
    write(&hub, true);
    assert!(hub.tell(answer_to_first()));
    write(&hub, true);
    hub.retire(ticket(1), Some("over"));
    write(&hub, true);
    assert_eq!(polled(&hub, None), Some((3, Method::Cancel)));
    let again = polled(&hub, Some(2));
    assert_eq!(again, Some((3, Method::Cancel)), "until it is acknowledged by number");
    give(&hub, [2], &Seat::default());
    write(&hub, true);
    for _ in 0..2 {
        assert_eq!(polled(&hub, None), Some((4, Method::Spawn)));
    }
}

#[test]
fn an_answer_that_waits_does_not_keep_its_client_from_hearing_of_the_end() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    give(&hub, [1], &Seat::default());
    write(&hub, true);
    assert!(hub.tell(answer_to_first()));
    hub.retire(ticket(1), Some("over"));
    write(&hub, true);
    let link = hub.connect(&id("a"), None).unwrap();
    let methods: Vec<_> =
        std::iter::from_fn(|| hub.next(&link)).map(|frame| frame.note.method).collect();
    assert_eq!(methods, [Method::Spawn, Method::Answer, Method::Cancel]);
}

/// Polls once, for one frame.
fn polled(hub: &Hub, seen: Option<u64>) -> Option<(u64, Method)> {
    let link = hub.connect(&id("a"), seen).unwrap();
    hub.drop_over(&id("a"), seen.is_none());
    hub.next_polled(&link, seen.is_none()).map(|frame| (frame.seq, frame.note.method))
}

#[test]
fn a_client_that_polls_without_numbers_is_sent_the_answer_to_its_question() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    give(&hub, [1], &Seat::default());
    write(&hub, true);
    assert_eq!(polled(&hub, None), Some((1, Method::Spawn)));
    assert!(hub.tell(answer_to_first()));
    write(&hub, true);
    for _ in 0..2 {
        assert_eq!(polled(&hub, None), Some((2, Method::Answer)));
    }
    assert_eq!(polled(&hub, Some(0)), Some((1, Method::Spawn)), "by number, all come in order");
    hub.retire(ticket(1), None);
    assert_eq!(polled(&hub, None), None);
}

#[test]
fn an_attempt_is_undelivered_until_it_is_acknowledged_and_a_former_one_if_its_client_was_told() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    give(&hub, 1..=2, &Seat::default());
    write(&hub, true);
    assert_eq!(polled(&hub, None), Some((1, Method::Spawn)));
    assert_eq!(polled(&hub, None), Some((1, Method::Spawn)));
    assert!(hub.is_undelivered(&id("a"), ticket(1)), "that it was sent says nothing");
    hub.delivered(&id("a"), ticket(1));
    assert!(!hub.is_undelivered(&id("a"), ticket(1)));
    assert!(hub.is_undelivered(&id("a"), ticket(2)));
    assert_eq!(hub.former(&id("a"), (1, 1)), None, "it is held");
    hub.retire(ticket(1), None);
    assert!(!hub.is_undelivered(&id("a"), ticket(1)));
    assert_eq!(hub.former(&id("a"), (1, 1)), Some(1));
    hub.retire(ticket(2), Some("over"));
    assert_eq!(hub.former(&id("a"), (1, 2)), None, "no client knows of it");
    let link = hub.connect(&id("a"), None).unwrap();
    assert_eq!(numbers(&hub, &link), [(1, 1), (2, 2)]);
    assert_eq!(hub.former(&id("a"), (1, 2)), Some(1), "its frame was sent after its end");
}

#[test]
fn an_attempt_whose_cancel_is_stored_stays_over_after_a_restart() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    give(&hub, 1..=2, &Seat::default());
    let mut frames = stored(&hub);
    hub.retire(ticket(1), Some("over"));
    frames.extend(stored(&hub));
    assert_eq!(frames.len(), 3);
    let sessions = vec![SessionRow { last_seq: 3, ..row("a", "main-ai") }];
    let hub = loaded(sessions, frames);
    assert_eq!(hub.placed(), [ticket(2)], "nobody has to be told of the other again");
    assert_eq!(hub.held(&id("a")), [ticket(2)]);
    assert_eq!(hub.former(&id("a"), (1, 1)), Some(1), "its client had it");
    assert_eq!(polled(&hub, None), Some((2, Method::Spawn)));
}

#[test]
fn an_answer_that_was_lost_with_the_memory_is_sent_again_and_one_that_was_not_is_not() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    give(&hub, [1], &Seat::default());
    let frames = stored(&hub);
    let hub = loaded(vec![SessionRow { last_seq: 1, ..row("a", "main-ai") }], frames);
    hub.tell_again(answer_to_first());
    hub.tell_again(answer_to_first());
    assert_eq!(write(&hub, true), 1);
    hub.tell_again(answer_to_first());
    assert_eq!(write(&hub, true), 0);
    hub.retire(ticket(1), None);
    hub.tell_again(answer_to_first());
    assert_eq!(write(&hub, true), 0, "nobody asks any more");
}

#[test]
fn the_answer_to_a_second_question_that_was_lost_is_sent_although_the_first_is_still_there() {
    let hub = Hub::default();
    hub.open(row("a", "main-ai"));
    give(&hub, [1], &Seat::default());
    let mut frames = stored(&hub);
    assert!(hub.tell(answer_to_first()));
    frames.extend(stored(&hub));
    let hub = loaded(vec![SessionRow { last_seq: 2, ..row("a", "main-ai") }], frames);
    let second = Note { params: r#"{"answer":2}"#.into(), ..answer_to_first() };
    hub.tell_again(second.clone());
    assert_eq!(write(&hub, true), 1);
    hub.tell_again(second);
    hub.tell_again(answer_to_first());
    assert_eq!(write(&hub, true), 0, "both are there");
}
