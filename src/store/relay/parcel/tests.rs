use std::{env, fs, path::Path, sync::Arc};

use super::*;
use crate::{
    journal::{Dimension, Ending, HOUR_MS, Tally},
    protocol::{ContentKind, DurationMs, Lifetime, MemoryTier, StoreOptions, Tags},
    store::{
        ArtifactRow, AuditRow, BlueprintRow, ChargeRow, CountedRun, Errand, EvidenceRow, FrameRow,
        Header, IdempotencyRow, JournalRow, OutboxRow, Reducer, SessionRow, StateAct, StateBatch,
        StateChange, TaskPhase, TaskRow, TokenRow, Trace, conformance::header,
    },
};

const ODD: &str = "\u{0} \"quoted\" \\ ü 🌙\u{7f}\n";

fn odd() -> String {
    ODD.to_owned()
}

fn hints(salience: f64) -> StoreOptions {
    StoreOptions {
        tier: Some(MemoryTier::Cold),
        lifetime: Some(Lifetime::Session),
        content_kind: Some(ContentKind::Custom("recipe".to_owned())),
        salience: Some(salience),
        ttl: Some(DurationMs::from_millis(u64::MAX)),
    }
}

fn put_state(hints: StoreOptions) -> Write {
    let (scope, key, value) = (odd(), odd(), r#"{"a":[1.50]}"#.to_owned());
    Write::PutState { scope, key, value, hints, expires_ms: Some(u64::MAX), at_ms: 9 }
}

fn change_state(hints: StoreOptions) -> Write {
    let change =
        |if_revision, act| StateChange { scope: "global".to_owned(), key: odd(), if_revision, act };
    let put = StateAct::Put { value: odd(), reducer: Reducer::Append, hints };
    let (near, metadata) = ("near".to_owned(), Some("{}".to_owned()));
    let link = StateAct::Link { to: odd(), relation: near, metadata };
    let unlink = StateAct::Unlink { to: String::new(), relation: String::new() };
    Write::ChangeState(Box::new(StateBatch {
        changes: vec![
            change(Some(u64::MAX), put),
            change(None, StateAct::Delete),
            change(None, link),
            change(Some(0), unlink),
        ],
        at_ms: 9,
        most: usize::MAX,
        receipt: Some((7, 3)),
        answers: Answers::default(),
    }))
}

fn task() -> TaskRow {
    TaskRow {
        run: 7,
        step: u32::MAX,
        attempt: 2,
        epoch: 3,
        agent: odd(),
        operator: "desk".to_owned(),
        kind: "human".to_owned(),
        queue: Some(odd()),
        phase: TaskPhase::Delivered,
        scheduled_ms: u64::MAX,
        opened_ms: 11,
        worker: Some(odd()),
        deadline_ms: Some(u64::MAX),
        lease_ms: None,
        graces: 1,
        summary: Some(String::new()),
        prompt: odd(),
        question: None,
    }
}

fn counted() -> CountedRun {
    let mut tally = Tally::default();
    let measure = tally.at(HOUR_MS + 5, Dimension::Model, "m", Ending::Completed);
    measure.end(1);
    measure.input_tokens = u64::MAX;
    CountedRun {
        run: 7,
        created_ms: 1,
        ended_ms: u64::MAX,
        blueprint: odd(),
        ending: Ending::Failed,
        tally,
    }
}

/// Returns one write or more of each sort that is carried.
fn every_write() -> Vec<Write> {
    let outbox = |step, errand| Write::PutOutbox(OutboxRow { run: 7, step, to: u64::MAX, errand });
    vec![
        Write::PutTask(Box::new(task())),
        Write::HoldTask(Box::new(task().hold())),
        Write::CloseTask { run: u64::MAX, step: 1 },
        Write::CloseTasks { run: 7 },
        put_state(hints(0.75)),
        put_state(StoreOptions::default()),
        change_state(hints(0.75)),
        Write::ForgetReceipt { run: 7, step: 3 },
        Write::DeleteState { scope: odd(), key: String::new() },
        Write::PutBlob { hash: "00".to_owned(), data: Arc::from([]) },
        Write::PutBlob { hash: odd(), data: Arc::from([0, 255, b'"']) },
        Write::PutArtifact(ArtifactRow {
            run: 7,
            n: u32::MAX,
            name: odd(),
            hash: "00".to_owned(),
            size: u64::MAX,
            created_ms: 6,
            step: 1,
            attempt: 2,
            published: true,
        }),
        Write::PublishArtifacts { run: 7, step: 1, attempt: u32::MAX },
        Write::PutCharge(ChargeRow {
            run: 7,
            jti: odd(),
            bytes: u64::MAX,
            tokens: 0,
            nano_usd: u64::MAX,
        }),
        Write::CountRun(Box::new(counted())),
        outbox(1, Errand::Signal { name: odd(), payload: odd() }),
        outbox(2, Errand::Cancel { by: odd(), reason: String::new() }),
        outbox(3, Errand::Change { scope: odd(), payload: "{}".to_owned() }),
        Write::DeleteOutbox { run: u64::MAX, step: u32::MAX },
        Write::PutEvidence(EvidenceRow {
            run: 7,
            step: 1,
            attempt: 2,
            at_ms: u64::MAX,
            code: "fenced".to_owned(),
            body: odd(),
        }),
    ]
}

/// Returns the writes of a host, one of each sort.
fn writes_of_a_host() -> Vec<Write> {
    let text = || "a".to_owned();
    vec![
        Write::ExpireState { now_ms: 1, rows: 1 },
        Write::PutBlueprint(BlueprintRow {
            hash: text(),
            name: text(),
            bundle: Vec::new(),
            created_ms: 1,
            publisher: None,
        }),
        Write::NameBlueprint { name: text(), hash: text(), at_ms: 1 },
        Write::UnnameBlueprint { name: text(), hash: text() },
        Write::DeleteBlueprint { name: text() },
        Write::PutToken(TokenRow {
            jti: text(),
            role: text(),
            claims: text(),
            parent: None,
            created_ms: 1,
            expires_ms: 2,
            revoked_ms: None,
        }),
        Write::RevokeToken { jti: text(), at_ms: 1 },
        Write::PutIdempotency(IdempotencyRow {
            principal: text(),
            route: text(),
            key: text(),
            body: text(),
            answer: text(),
            created_ms: 1,
        }),
        Write::PutMeta { key: text(), value: text() },
        Write::ExpireIdempotency { before_ms: 1, rows: 1 },
        Write::ForgetAnswer { principal: text(), route: text(), key: text(), before_ms: 1 },
        Write::PutSession(Box::new(SessionRow {
            id: text(),
            operator: text(),
            principal: text(),
            jti: text(),
            until_ms: 1,
            created_ms: 1,
            expires_ms: 1,
            direct: false,
            last_seq: 0,
            acked_seq: 0,
            closed_ms: None,
            reason: None,
        })),
        Write::ExtendSession { session: text(), expires_ms: 1 },
        Write::CloseSession { session: text(), at_ms: 1, reason: text() },
        Write::ForgetSessions { before_ms: 1, rows: 1 },
        Write::PutFrame(Box::new(FrameRow {
            session: text(),
            seq: 1,
            method: text(),
            run: 1,
            step: 1,
            attempt: 1,
            scheduled_ms: 1,
            epoch: 1,
            nonce: 1,
            timeout_ms: None,
            params: text(),
        })),
        Write::AckFrames { session: text(), seq: 1 },
        Write::ReserveRun { num: 1 },
        Write::DeleteRun { run: 1 },
        Write::PutKept { layer: text(), key: text(), value: text(), expires_ms: None },
        Write::RemoveKept { layer: text(), key: text() },
        Write::ExpireKept { before_ms: 1, rows: 1 },
        Write::AddAudit(AuditRow { seq: 1, at: text(), line: text(), hash: text() }),
        Write::Tidy { rows: 1, pages: 1 },
        Write::Erase(Box::new(Trace::Run(1))),
        Write::Rewrite,
    ]
}

fn sample() -> Parcel {
    let header = Header {
        nonce: u64::MAX,
        status_text: Some(odd()),
        progress: Some(0.1),
        wake_at_ms: Some(u64::MAX),
        tags: Tags::parse(["team=ops"]).unwrap(),
        ..header(7)
    };
    let row = |lsn, seq, before, bytes: &[u8]| JournalRow {
        lsn,
        seq,
        before,
        begins: before.is_none(),
        bytes: bytes.to_vec(),
    };
    let entries = vec![row(u64::MAX, u32::MAX, None, b""), row(0, 0, Some(u64::MAX), b"\x00\xff")];
    let (principal, route, key) = (odd(), "/v1/runs".to_owned(), String::new());
    Parcel {
        checks: vec![
            Check::TokenLive(odd()),
            Check::RunAt { run: 7, cursor: u64::MAX },
            Check::MetaIs { key: odd(), value: None },
            Check::KeyFree { principal, route, key },
        ],
        run: Some(RunWrite { header, expected: Some(u64::MAX), entries, whole: true }),
        writes: every_write(),
    }
}

fn only(writes: Vec<Write>) -> Parcel {
    Parcel { checks: Vec::new(), run: None, writes }
}

/// Returns what arrives.
fn sent(parcel: &Parcel) -> Parcel {
    Parcel::decode(&parcel.encode().unwrap()).unwrap()
}

/// Returns the encoded form of a head and of parts, with the right sum.
fn form(head: &str, parts: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; SUM];
    bytes.extend(u32::try_from(head.len()).unwrap().to_be_bytes());
    bytes.extend(head.as_bytes());
    bytes.extend(parts);
    seal(&mut bytes);
    bytes
}

#[test]
fn a_parcel_is_the_same_after_its_way() {
    assert_eq!(sent(&only(Vec::new())), only(Vec::new()));
    for write in every_write() {
        let parcel = only(vec![write]);
        assert_eq!(sent(&parcel), parcel);
    }
    let parcel = sample();
    assert_eq!(sent(&parcel), parcel);
    assert_eq!(sent(&Parcel { run: None, ..parcel.clone() }), Parcel { run: None, ..parcel });
}

#[test]
fn numbers_keep_their_last_bit() {
    let between = (0..2_000).map(|n| f64::from_bits(0x3f50_0000_0000_0000 + n * 0x1357_9bdf_0246));
    for number in between.chain([0.0, f64::MIN_POSITIVE, f64::MAX, f64::INFINITY]) {
        let header = Header { progress: Some(number), ..header(1) };
        let run = RunWrite { header, expected: None, entries: Vec::new(), whole: false };
        let writes = vec![put_state(hints(number)), change_state(hints(number))];
        let parcel = Parcel { checks: Vec::new(), run: Some(run), writes };
        assert_eq!(sent(&parcel), parcel, "{number}");
    }
}

#[test]
fn only_the_writes_of_a_run_are_carried() {
    for write in every_write() {
        assert!(only(vec![write]).refusal().is_none());
    }
    for write in writes_of_a_host() {
        let parcel = only(vec![Write::CloseTasks { run: 1 }, write]);
        assert!(parcel.refusal().is_some() && parcel.encode().is_err(), "{parcel:?}");
    }
}

#[test]
fn answers_stay_where_they_are_asked_for() {
    let mut parcel = only(vec![change_state(hints(0.5)), change_state(hints(0.5))]);
    let answers = parcel.take_answers();
    assert_eq!(answers.len(), 2);
    answers[0].give(vec![Changed { revision: 1, value: None }]);
    let own = parcel.take_answers();
    assert!(own.iter().chain(&sent(&parcel).take_answers()).all(|it| it.get().is_empty()));
}

#[test]
fn a_parcel_is_about_the_run_of_its_header_of_its_checks_or_of_its_writes() {
    let parcel = sample();
    assert_eq!(parcel.about(), Some(7));
    let at = vec![Check::TokenLive(odd()), Check::RunAt { run: 8, cursor: 1 }];
    assert_eq!(Parcel { checks: at, run: None, ..parcel }.about(), Some(8));
    assert_eq!(only(vec![change_state(hints(0.5))]).about(), Some(7));
    assert_eq!(only(vec![Write::ForgetReceipt { run: 9, step: 1 }]).about(), Some(9));
    assert_eq!(only(vec![put_state(hints(0.5))]).about(), None);
    assert_eq!(only(writes_of_a_host()).about(), None);
}

#[test]
fn bytes_that_were_cut_or_flipped_are_refused() {
    let bytes = sample().encode().unwrap();
    for end in 0..bytes.len() {
        assert!(Parcel::decode(&bytes[..end]).is_err(), "{end}");
    }
    for bit in 0..8 * bytes.len() {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(Parcel::decode(&flipped), Err(StoreError::Damaged { .. })), "{bit}");
    }
}

#[test]
fn changed_bytes_with_a_right_sum_do_no_harm() {
    let bytes = sample().encode().unwrap();
    for place in SUM..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[place] ^= 1 << (place % 8);
        seal(&mut flipped);
        // It may be another parcel.
        drop(Parcel::decode(&flipped));
        let mut cut = bytes[..place].to_vec();
        seal(&mut cut);
        assert!(Parcel::decode(&cut).is_err(), "{place}");
    }
    let mut longer = [&bytes[..], b"\0"].concat();
    seal(&mut longer);
    assert!(Parcel::decode(&longer).is_err());
}

#[test]
fn unknown_words_and_parts_that_are_not_there_are_refused() {
    let empty = r#"{"version":1,"checks":[],"run":null,"writes":[],"parts":[]}"#;
    assert_eq!(Parcel::decode(&form(empty, b"")).unwrap(), only(Vec::new()));
    let deep = format!(r#""writes":{}"#, "[".repeat(100_000));
    for (before, after) in [
        (r#""version":1"#, r#""version":2"#),
        (r#""version":1,"#, ""),
        (r#""parts":[]"#, r#""parts":[0]"#),
        (r#""parts":[]"#, r#""parts":[18446744073709551615]"#),
        (r#""parts":[]"#, r#""parts":[],"more":0"#),
        (r#""checks":[]"#, r#""checks":[{"token_lives":"a"}]"#),
        (r#""checks":[]"#, r#""checks":[{"run_at":{"run":1,"cursor":2,"more":3}}]"#),
        (r#""writes":[]"#, r#""writes":[{"put_meta":{"key":"k","value":"v"}}]"#),
        (r#""writes":[]"#, r#""writes":[{"reserve_run":{"num":1}}]"#),
        (r#""writes":[]"#, r#""writes":["rewrite"]"#),
        (r#""writes":[]"#, r#""writes":[{"put_blob":{"hash":"h"}}]"#),
        (r#""writes":[]"#, r#""writes":[{"put_blob":{"hash":"h","data":[1]}}]"#),
        (r#""writes":[]"#, r#""writes":[{"count_run":"AAAA"}]"#),
        (r#""writes":[]"#, r#""writes":[{"close_tasks":{"run":-1}}]"#),
        (r#""writes":[]"#, deep.as_str()),
    ] {
        let head = empty.replacen(before, after, 1);
        assert_ne!(head, empty);
        assert!(Parcel::decode(&form(&head, b"")).is_err(), "{after:.80}");
    }
}

#[test]
fn version_1_is_written_and_read_as_it_always_was() {
    let bytes = sample().encode().unwrap();
    let length = u32::from_be_bytes(bytes[SUM..SUM + 4].try_into().unwrap());
    let (head, parts) = bytes[SUM + 4..].split_at(usize::try_from(length).unwrap());
    let file = "src/store/relay/parcel/head_v1.json";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, [head, b"\n"].concat()).unwrap();
    }
    let golden = fs::read_to_string(&file).unwrap();
    assert_eq!(String::from_utf8_lossy(head), golden.trim_end());
    assert_eq!(parts, b"\x00\xff\x00\xff\"");
    assert_eq!(Parcel::decode(&form(golden.trim_end(), parts)).unwrap(), sample());
}
