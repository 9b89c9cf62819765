//! Placement, numbering and release of attempts, without a store.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    protocol::{SessionId, TaskId, Ticket},
    store::{SessionRow, Write},
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
    let polled = |seen: Option<u64>| {
        let link = hub.connect(&id("a"), seen).unwrap();
        hub.drop_over(&id("a"), seen.is_none());
        hub.next_polled(&link).map(|frame| (frame.seq, frame.note.method))
    };
    assert_eq!(polled(None), Some((3, Method::Cancel)));
    assert_eq!(polled(Some(2)), Some((3, Method::Cancel)), "until it is acknowledged by number");
    give(&hub, [2], &Seat::default());
    write(&hub, true);
    for _ in 0..2 {
        assert_eq!(polled(None), Some((4, Method::Spawn)));
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
