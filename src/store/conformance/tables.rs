//! Tests of the tables beside runs.

use std::sync::Arc;

use super::fixture::{append, begin, commit, header, put, resumed, started};
use crate::{
    protocol::StoreOptions,
    store::{
        ArtifactRow, AuditRow, ChargeRow, ChargeSum, Check, Errand, EvidenceRow, Expiring,
        FrameRow, IdempotencyRow, KeptRow, OpenTasksRow, OutboxRow, QueuedRow, RunStatus,
        SessionRow, Store, StoreError, TaskFilter, TaskHold, TaskPhase, TaskRow, TokenRow, Trace,
        UNSTORED, Write,
    },
};

pub(super) fn task(run: u64, step: u32) -> TaskRow {
    TaskRow {
        run,
        step,
        attempt: 2,
        epoch: 3,
        agent: "coder".to_owned(),
        operator: "desk".to_owned(),
        kind: "human".to_owned(),
        queue: Some("q".to_owned()),
        phase: TaskPhase::Pending,
        scheduled_ms: 10,
        opened_ms: 11,
        worker: None,
        deadline_ms: Some(12),
        lease_ms: None,
        graces: 0,
        summary: Some("write it".to_owned()),
        prompt: "{}".to_owned(),
        question: None,
    }
}

fn put_task(store: &dyn Store, task: &TaskRow) {
    put(store, vec![Write::PutTask(Box::new(task.clone()))]);
}

fn artifact(run: u64, n: u32, text: &str) -> ArtifactRow {
    ArtifactRow {
        run,
        n,
        name: "report.md".to_owned(),
        hash: hash(text),
        size: 5,
        created_ms: 6,
        step: n,
        attempt: 1,
        published: false,
    }
}

fn blob(text: &str) -> Write {
    Write::PutBlob { hash: hash(text), data: Arc::from(text.as_bytes()) }
}

fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

pub fn a_blob_is_given_as_what_was_stored_or_not_at_all(store: &dyn Store) {
    let data: Arc<[u8]> = Arc::from(&b"right, and then some"[..]);
    let mut flipped = data.to_vec();
    flipped[3] ^= 1;
    let hash = hash("right, and then some");
    put(store, vec![Write::PutBlob { hash: hash.clone(), data: Arc::from(flipped) }]);
    let error = store.blob(&hash).unwrap_err();
    assert!(
        matches!(&error, StoreError::Damaged { what, .. } if *what == format!("blob {hash}")),
        "{error}"
    );
    // Storing the blob again repairs it.
    put(store, vec![Write::PutBlob { hash: hash.clone(), data: Arc::clone(&data) }]);
    assert_eq!(store.blob(&hash).unwrap().as_deref(), Some(&*data));
}

pub fn a_task_is_replaced_and_closed(store: &dyn Store) {
    put_task(store, &task(1, 1));
    let taken = TaskRow {
        phase: TaskPhase::Delivered,
        worker: Some("bob".to_owned()),
        lease_ms: Some(99),
        graces: 2,
        ..task(1, 1)
    };
    put_task(store, &taken);
    assert_eq!(store.task(1, 1).unwrap(), Some(taken.clone()));
    let kept = TaskRow { worker: None, lease_ms: Some(199), deadline_ms: None, graces: 0, ..taken };
    put(store, vec![Write::HoldTask(Box::new(kept.hold()))]);
    assert_eq!(store.task(1, 1).unwrap(), Some(kept.clone()));
    put(store, vec![Write::HoldTask(Box::new(TaskHold { step: 2, ..kept.hold() }))]);
    assert_eq!(store.task(1, 2).unwrap(), None, "there is none");
    put(store, vec![Write::CloseTask { run: 1, step: 1 }]);
    assert_eq!(store.task(1, 1).unwrap(), None);
}

pub fn queued_tasks_are_counted_by_queue_and_holder(store: &dyn Store) {
    let queued = |run, step, queue: &str| TaskRow {
        queue: Some(queue.to_owned()),
        scheduled_ms: 100 - run,
        ..task(run, step)
    };
    let held = |row: TaskRow, worker: &str| TaskRow {
        phase: TaskPhase::Delivered,
        worker: Some(worker.to_owned()),
        ..row
    };
    for row in [
        TaskRow { queue: None, ..task(1, 1) },
        queued(2, 1, "b"),
        queued(3, 1, "b"),
        held(queued(4, 1, "b"), "ann"),
        held(queued(5, 1, "a"), "bob"),
    ] {
        put_task(store, &row);
    }
    let row = |queue: &str, worker: Option<&str>, tasks, oldest_ms| QueuedRow {
        queue: queue.to_owned(),
        worker: worker.map(str::to_owned),
        tasks,
        oldest_ms,
    };
    let (bob, waiting) = (row("a", Some("bob"), 1, 95), row("b", None, 2, 97));
    let ann = row("b", Some("ann"), 1, 96);
    assert_eq!(store.queued(9).unwrap(), [bob.clone(), waiting, ann]);
    assert_eq!(store.queued(1).unwrap(), [bob]);
}

pub fn open_tasks_are_counted_by_operator_and_kind(store: &dyn Store) {
    for (run, operator, kind) in [(1, "b", "human"), (2, "b", "human"), (3, "a", "queue")] {
        let (operator, kind) = (operator.to_owned(), kind.to_owned());
        put_task(store, &TaskRow { operator, kind, scheduled_ms: 100 - run, ..task(run, 1) });
    }
    let row = |operator: &str, kind: &str, tasks, oldest_ms| OpenTasksRow {
        operator: operator.to_owned(),
        kind: kind.to_owned(),
        tasks,
        oldest_ms,
    };
    let (a, b) = (row("a", "queue", 1, 97), row("b", "human", 2, 98));
    assert_eq!(store.open_tasks(9).unwrap(), [a.clone(), b]);
    assert_eq!(store.open_tasks(1).unwrap(), [a]);
}

pub(super) fn session(id: &str, created_ms: u64) -> SessionRow {
    SessionRow {
        id: id.to_owned(),
        operator: "main-ai".to_owned(),
        principal: "ada".to_owned(),
        jti: "j".to_owned(),
        until_ms: 900,
        created_ms,
        expires_ms: 100,
        direct: true,
        last_seq: 0,
        acked_seq: 0,
        closed_ms: None,
        reason: None,
    }
}

pub(super) fn frame(session: &str, seq: u64) -> FrameRow {
    FrameRow {
        session: session.to_owned(),
        seq,
        method: "task/spawn".to_owned(),
        run: 1,
        step: 2,
        attempt: 3,
        scheduled_ms: 4,
        epoch: 5,
        nonce: u64::MAX - 7,
        timeout_ms: Some(6),
        params: "{}".to_owned(),
    }
}

pub fn a_session_keeps_its_frames_until_they_are_acknowledged_or_it_is_closed(store: &dyn Store) {
    let frames = |store: &dyn Store| {
        let frames = store.frames().unwrap();
        frames.into_iter().map(|frame| (frame.session, frame.seq)).collect::<Vec<_>>()
    };
    put(store, ["b", "a"].map(|id| Write::PutSession(Box::new(session(id, 7)))).to_vec());
    let of = [frame("a", 1), frame("a", 2), frame("b", 1), frame("nobody", 1)];
    put(store, of.map(|frame| Write::PutFrame(Box::new(frame))).to_vec());
    assert_eq!(frames(store), [("a".into(), 1), ("a".into(), 2), ("b".into(), 1)]);
    assert_eq!(store.frames().unwrap()[0], frame("a", 1));

    let extend = Write::ExtendSession { session: "a".into(), expires_ms: 200 };
    put(store, vec![Write::AckFrames { session: "a".into(), seq: 1 }, extend]);
    let kept = SessionRow { last_seq: 2, acked_seq: 1, expires_ms: 200, ..session("a", 7) };
    assert_eq!(store.session("a").unwrap(), Some(kept.clone()));
    assert_eq!(frames(store), [("a".into(), 2), ("b".into(), 1)]);

    let close = |at_ms, reason: &str| Write::CloseSession {
        session: "b".into(),
        at_ms,
        reason: reason.to_owned(),
    };
    put(store, vec![close(50, "done"), close(60, "again")]);
    put(store, vec![Write::PutFrame(Box::new(frame("b", 2)))]);
    assert_eq!(store.sessions().unwrap(), [kept]);
    assert_eq!(frames(store), [("a".into(), 2)]);
    let closed = store.session("b").unwrap().unwrap();
    assert_eq!((closed.closed_ms, closed.reason.as_deref()), (Some(50), Some("done")));
    put(store, vec![Write::ForgetSessions { before_ms: 51, rows: 9 }]);
    assert_eq!(store.session("b").unwrap(), None);
}

pub fn tasks_are_filtered_and_paged(store: &dyn Store) {
    for (run, step) in [(1, 1), (1, 2), (2, 1)] {
        put_task(store, &task(run, step));
    }
    put_task(
        store,
        &TaskRow { operator: "gpt".to_owned(), kind: "model".to_owned(), ..task(2, 2) },
    );
    let list = |filter: TaskFilter| {
        let tasks = store.tasks(&TaskFilter { limit: filter.limit.max(1), ..filter }).unwrap();
        tasks.iter().map(|task| (task.run, task.step)).collect::<Vec<_>>()
    };
    let all = || TaskFilter { limit: 9, ..TaskFilter::default() };
    assert_eq!(list(all()), [(1, 1), (1, 2), (2, 1), (2, 2)]);
    assert_eq!(list(TaskFilter { after: Some((1, 2)), limit: 1, ..all() }), [(2, 1)]);
    assert_eq!(list(TaskFilter { run: Some(1), after: Some((1, 1)), ..all() }), [(1, 2)]);
    assert_eq!(list(TaskFilter { kind: Some("model".to_owned()), ..all() }), [(2, 2)]);
    assert_eq!(list(TaskFilter { operator: Some("desk".to_owned()), ..all() }).len(), 3);
    put(store, vec![Write::CloseTasks { run: 1 }]);
    assert_eq!(list(all()), [(2, 1), (2, 2)]);
}

pub fn a_value_of_state_counts_its_revisions(store: &dyn Store) {
    let write = |key: &str, value: &str, at_ms| Write::PutState {
        scope: "s".to_owned(),
        key: key.to_owned(),
        value: value.to_owned(),
        hints: StoreOptions::default(),
        expires_ms: None,
        at_ms,
    };
    put(store, vec![write("b", "1", 5), write("a", "2", 6), write("b", "3", 7)]);
    let rows = store.state("s").unwrap();
    let seen: Vec<_> =
        rows.iter().map(|r| (r.key.as_str(), r.value.as_str(), r.revision, r.updated_ms)).collect();
    assert_eq!(seen, [("a", "2", 1, 6), ("b", "3", 2, 7)]);
    put(store, vec![Write::DeleteState { scope: "s".to_owned(), key: "a".to_owned() }]);
    assert_eq!(store.state("s").unwrap().len(), 1);
    assert_eq!(store.state("other").unwrap(), []);
}

pub fn files_are_staged_and_then_published_with_their_attempt(store: &dyn Store) {
    let second = ArtifactRow { attempt: 2, ..artifact(1, 1, "h2") };
    let second = ArtifactRow { n: 2, ..second };
    let files = [artifact(1, 1, "h1"), second].map(Write::PutArtifact);
    put(store, [vec![blob("h1"), blob("h1"), blob("h2")], files.to_vec()].concat());
    put(store, vec![Write::PublishArtifacts { run: 1, step: 1, attempt: 2 }]);
    let published: Vec<_> =
        store.artifacts(1).unwrap().iter().map(|file| (file.n, file.published)).collect();
    assert_eq!(published, [(1, false), (2, true)]);
    assert_eq!(store.artifacts(1).unwrap()[0], artifact(1, 1, "h1"));
    assert_eq!(store.blob(&hash("h1")).unwrap().as_deref(), Some(&b"h1"[..]));
    assert_eq!(store.blob(&hash("none")).unwrap(), None);
}

pub fn a_revocation_outlives_everything_said_of_its_token(store: &dyn Store) {
    let token = |jti: &str, created_ms| TokenRow {
        jti: jti.to_owned(),
        role: "worker".to_owned(),
        claims: "{}".to_owned(),
        parent: Some("root".to_owned()),
        created_ms,
        expires_ms: 99,
        revoked_ms: None,
    };
    let revoke = |at_ms| Write::RevokeToken { jti: "a".to_owned(), at_ms };
    put(store, vec![Write::PutToken(token("a", 1)), Write::PutToken(token("b", 2))]);
    assert_eq!(store.tokens().unwrap(), [token("b", 2), token("a", 1)]);
    put(store, vec![revoke(7), revoke(8), Write::PutToken(token("a", 1))]);
    let stored = store.token("a").unwrap();
    assert_eq!(stored, Some(TokenRow { revoked_ms: Some(7), ..token("a", 1) }));
    assert_eq!(store.token("b").unwrap(), Some(token("b", 2)));
}

pub fn an_expired_token_stays_while_it_is_needed_and_its_revocation_after_it(store: &dyn Store) {
    let token = |jti: &str, parent: Option<&str>, expires_ms| {
        Write::PutToken(TokenRow {
            jti: jti.to_owned(),
            role: "operator".to_owned(),
            claims: "{}".to_owned(),
            parent: parent.map(str::to_owned),
            created_ms: 1,
            expires_ms,
            revoked_ms: None,
        })
    };
    let of_session = |id: &str, jti: &str, closed_ms| {
        let jti = jti.to_owned();
        Write::PutSession(Box::new(SessionRow { jti, closed_ms, ..session(id, 1) }))
    };
    begin(store, header(1));
    let charge = |jti: &str| Write::PutCharge(ChargeRow { bytes: 1, ..ChargeRow::new(1, jti) });
    let lines = [("root", None, 3), ("over", Some("root"), 2), ("parent", None, 1)];
    let live = [("live", Some("parent"), 9), ("open", None, 2), ("closed", None, 2)];
    let tokens = lines.into_iter().chain(live).chain([("charged", None, 2)]);
    put(store, tokens.map(|(jti, parent, at_ms)| token(jti, parent, at_ms)).collect());
    put(store, vec![of_session("a", "open", None), of_session("b", "closed", Some(2))]);
    put(store, vec![charge("charged"), Write::RevokeToken { jti: "over".to_owned(), at_ms: 1 }]);
    let left = || {
        let mut left: Vec<String> = store.tokens().unwrap().into_iter().map(|it| it.jti).collect();
        left.sort();
        left.join(" ")
    };
    let expired = |most| {
        let mut found = store.upkeep().expired_tokens(5, most).unwrap();
        found.sort();
        found
    };
    let erase = |jti: String| Write::Erase(Box::new(Trace::Token(jti)));
    let expire = || put(store, expired(9).into_iter().map(erase).collect());
    assert_eq!(expired(1).len(), 1, "no more than what is asked for");
    assert_eq!(expired(9), ["closed", "over"]);
    expire();
    assert_eq!(left(), "charged live open parent root", "the parent of one that goes is next");
    assert_eq!(expired(9), ["root"]);
    expire();
    assert_eq!(left(), "charged live open parent");
    assert!(expired(9).is_empty());
    let refused = commit(store, vec![Check::TokenLive("over".to_owned())], None, vec![]);
    assert!(matches!(refused, Err(StoreError::Revoked { .. })), "{refused:?}");
    assert!(store.revoked().unwrap().contains("over"), "a host that starts again knows it");
    put(store, vec![token("over", None, 99)]);
    assert_eq!(store.token("over").unwrap().unwrap().revoked_ms, Some(1));
}

pub fn signals_wait_in_order_until_they_arrive(store: &dyn Store) {
    let signal = |run, step| {
        let errand = match step % 2 {
            0 => Errand::Cancel { by: "run_x".to_owned(), reason: "enough".to_owned() },
            _ => Errand::Signal { name: "go".to_owned(), payload: "1".to_owned() },
        };
        OutboxRow { run, step, to: 9, errand }
    };
    put(store, [signal(5, 1), signal(2, 2), signal(5, 1)].map(Write::PutOutbox).to_vec());
    assert_eq!(store.outbox().unwrap(), [signal(5, 1), signal(2, 2)]);
    put(store, vec![Write::DeleteOutbox { run: 5, step: 1 }]);
    assert_eq!(store.outbox().unwrap(), [signal(2, 2)]);
}

pub fn changes_wait_in_the_order_of_their_commits_by_scope_and_by_run(store: &dyn Store) {
    let change = |run, step, scope: &str| {
        let errand = Errand::Change { scope: scope.to_owned(), payload: format!("[{step}]") };
        OutboxRow { run, step, to: 0, errand }
    };
    let signal = Errand::Signal { name: "a".to_owned(), payload: "1".to_owned() };
    put(store, vec![Write::PutOutbox(OutboxRow { run: 5, step: 1, to: 9, errand: signal })]);
    let all = [change(5, 9, "a"), change(2, 8, "a"), change(5, 7, "b"), change(5, 6, "a")];
    for row in &all {
        put(store, vec![Write::PutOutbox(row.clone())]);
    }
    let found = |scope, run, limit| store.foreign_changes(scope, run, limit).unwrap();
    assert_eq!(found(None, None, 9), all);
    assert_eq!(found(Some("a"), None, 2), [all[0].clone(), all[1].clone()]);
    assert_eq!(found(Some("a"), Some(5), 9), [all[0].clone(), all[3].clone()]);
    put(store, vec![Write::DeleteOutbox { run: 5, step: 9 }]);
    assert_eq!(found(None, Some(5), 9), [all[2].clone(), all[3].clone()]);
    assert_eq!(store.outbox().unwrap().len(), 4);
}

pub fn evidence_and_meta_are_kept(store: &dyn Store) {
    let row = |at_ms| EvidenceRow {
        run: 1,
        step: 2,
        attempt: 3,
        at_ms,
        code: "MS-E0001".to_owned(),
        body: "{".to_owned(),
    };
    put(store, vec![Write::PutEvidence(row(9)), Write::PutEvidence(row(8))]);
    assert_eq!(store.evidence(1, None, 9).unwrap(), [row(9), row(8)]);
    assert_eq!(store.evidence(2, None, 9).unwrap(), []);
    let meta = |value: &str| Write::PutMeta { key: "k".to_owned(), value: value.to_owned() };
    put(store, vec![meta("1"), meta("2")]);
    assert_eq!(store.meta("k").unwrap().as_deref(), Some("2"));
    assert_eq!(store.meta("none").unwrap(), None);
}

pub fn of_the_refused_reports_of_an_attempt_the_first_are_kept(store: &dyn Store) {
    let refused = |attempt, at_ms: u64| {
        let (code, body) = ("MS-E0001".to_owned(), at_ms.to_string());
        Write::PutEvidence(EvidenceRow { run: 1, step: 2, attempt, at_ms, code, body })
    };
    put(store, (0..10).map(|at_ms| refused(3, at_ms)).collect());
    put(store, (10..40).map(|at_ms| refused(3, at_ms)).collect());
    put(store, vec![refused(4, 50)]);
    let rows = store.evidence(1, None, usize::MAX).unwrap();
    let found: Vec<u64> = rows.iter().map(|row| row.at_ms).collect();
    assert_eq!(found, (0..16).chain([50]).collect::<Vec<u64>>());
}

pub fn the_last_refused_reports_of_one_step_are_read_without_those_of_others(store: &dyn Store) {
    let refused = |run, step, at_ms: u64| {
        let (code, body) = ("MS-E0001".to_owned(), at_ms.to_string());
        Write::PutEvidence(EvidenceRow { run, step, attempt: 1, at_ms, code, body })
    };
    put(store, vec![refused(1, 1, 6), refused(1, 2, 5), refused(2, 2, 4)]);
    put(store, vec![refused(1, 2, 3), refused(1, 1, 2), refused(1, 2, 1)]);
    let found = |step, limit| -> Vec<u64> {
        let rows = store.evidence(1, step, limit).unwrap();
        rows.iter().map(|row| row.at_ms).collect()
    };
    assert_eq!(found(Some(2), 9), [5, 3, 1]);
    assert_eq!(found(Some(2), 2), [3, 1]);
    assert_eq!(found(Some(3), 9), [0; 0]);
    assert_eq!(found(None, usize::MAX), [6, 5, 3, 2, 1]);
    assert_eq!(found(None, 2), [2, 1]);
    assert_eq!(found(None, 0), [0; 0]);
}

pub fn a_deleted_run_leaves_nothing_and_takes_nothing_of_others(store: &dyn Store) {
    let mut run = begin(store, header(1));
    let continues = started(Some(run.seq.into()));
    let fresh = append(store, &mut run, vec![continues, resumed()]);
    commit(store, vec![], Some(fresh), vec![]).unwrap();
    begin(store, header(2));
    let files = [artifact(1, 1, "mine"), artifact(1, 2, "shared"), artifact(2, 1, "shared")];
    put(store, vec![blob("mine"), blob("shared")]);
    put(store, files.map(Write::PutArtifact).to_vec());
    put_task(store, &task(1, 1));
    put_task(store, &task(2, 1));
    put(store, vec![Write::PutMeta { key: format!("{UNSTORED}1"), value: "1".into() }]);
    assert_eq!(store.unstored().unwrap(), [1]);
    put(store, vec![Write::DeleteRun { run: 1 }]);
    assert_eq!(store.unstored().unwrap(), [0_u64; 0]);
    assert_eq!(store.header(1).unwrap(), None);
    assert_eq!((store.artifacts(1).unwrap(), store.task(1, 1).unwrap()), (vec![], None));
    assert_eq!(store.blob(&hash("mine")).unwrap(), None);
    assert!(store.blob(&hash("shared")).unwrap().is_some());
    assert!(store.task(2, 1).unwrap().is_some());
    assert_eq!(store.entries(2, 0).unwrap().len(), 1);
    put(store, vec![Write::DeleteRun { run: 1 }]);
}

pub fn what_layers_keep_expires_and_audit_lines_stay_in_order(store: &dyn Store) {
    let keep = |key: &str, value: &str, expires_ms| Write::PutKept {
        layer: "l".to_owned(),
        key: key.to_owned(),
        value: value.to_owned(),
        expires_ms,
    };
    put(store, vec![keep("a", "1", None), keep("b", "2", Some(5)), keep("c", "3", Some(6))]);
    put(store, vec![keep("a", "9", None), Write::ExpireKept { before_ms: 6, rows: 9 }]);
    assert_eq!(store.kept("l", "a").unwrap(), Some(("9".to_owned(), None)));
    assert_eq!(store.kept("l", "b").unwrap(), None);
    assert_eq!(store.kept("l", "c").unwrap(), Some(("3".to_owned(), Some(6))));
    assert_eq!(store.kept("other", "a").unwrap(), None);
    let row = |key: &str, value: &str, expires_ms| KeptRow {
        key: key.to_owned(),
        value: value.to_owned(),
        expires_ms,
    };
    assert_eq!(store.kept_by("l", "", 9).unwrap(), [row("a", "9", None), row("c", "3", Some(6))]);
    assert_eq!(store.kept_by("l", "", 1).unwrap(), [row("a", "9", None)]);
    assert_eq!(store.kept_by("l", "a", 9).unwrap(), [row("c", "3", Some(6))]);
    put(store, vec![Write::RemoveKept { layer: "l".to_owned(), key: "a".to_owned() }]);
    assert_eq!(store.kept("l", "a").unwrap(), None);
    let line = |seq| AuditRow {
        seq,
        at: "2026-11-21T00:00:00.000Z".to_owned(),
        line: "{}".to_owned(),
        hash: seq.to_string(),
    };
    assert_eq!(store.last_audit().unwrap(), None);
    put(store, [1, 2, 3].map(|seq| Write::AddAudit(line(seq))).to_vec());
    assert_eq!(store.audit(1, 1).unwrap(), [line(2)]);
    assert_eq!(store.audit(0, 9).unwrap().len(), 3);
    assert_eq!(store.last_audit().unwrap(), Some(line(3)));
}

pub fn charges_are_summed_by_token_and_stay_used_when_their_run_is_deleted(store: &dyn Store) {
    let row = |run, jti, bytes, tokens| ChargeRow {
        bytes,
        tokens,
        nano_usd: tokens * 3,
        ..ChargeRow::new(run, jti)
    };
    assert_eq!(store.charge(1).unwrap(), None);
    assert_eq!(store.charges(0).unwrap(), (vec![], vec![]));
    for num in [1, 2, 3] {
        let mut run = header(num);
        if num == 2 {
            run.status = RunStatus::Completed;
        }
        begin(store, run);
    }
    put(store, vec![Write::PutCharge(row(1, "a", 5, 1))]);
    put(store, vec![Write::PutCharge(row(1, "a", 10, 2)), Write::PutCharge(row(2, "a", 20, 4))]);
    put(store, vec![Write::PutCharge(row(3, "b", 1, 1 << 60))]);
    assert_eq!(store.charge(1).unwrap(), Some(row(1, "a", 10, 2)));
    let (open, sums) = store.charges(1_002).unwrap();
    assert_eq!(open, [row(1, "a", 10, 2), row(3, "b", 1, 1 << 60)]);
    let sum = |jti: &str, bytes, tokens, starts| ChargeSum {
        jti: jti.to_owned(),
        bytes,
        tokens,
        nano_usd: tokens * 3,
        starts,
    };
    assert_eq!(sums, [sum("a", 30, 6, 1), sum("b", 1, 1 << 60, 1)]);
    put(store, vec![Write::DeleteRun { run: 1 }, Write::DeleteRun { run: 2 }]);
    assert_eq!(store.charge(2).unwrap(), None);
    let (open, sums) = store.charges(0).unwrap();
    assert_eq!((open.len(), sums), (1, vec![sum("a", 0, 6, 0), sum("b", 1, 1 << 60, 1)]));
}

pub fn records_expire_a_part_at_a_time_the_oldest_first(store: &dyn Store) {
    for (key, at_ms) in [("b", 2), ("c", 3), ("a", 1), ("d", 9)] {
        let [principal, route, body, answer] = ["p", "r", "", ""].map(str::to_owned);
        let key = key.to_owned();
        let row =
            IdempotencyRow { principal, route, key: key.clone(), body, answer, created_ms: at_ms };
        let (layer, value) = ("l".to_owned(), "1".to_owned());
        let kept = Write::PutKept { layer, key: key.clone(), value, expires_ms: Some(at_ms) };
        let closed = SessionRow { closed_ms: Some(at_ms), ..session(&key, 1) };
        put(store, vec![Write::PutIdempotency(row), kept, Write::PutSession(Box::new(closed))]);
    }
    let is_there = |what, key: &str| match what {
        Expiring::Answers => store.idempotent("p", "r", key).unwrap().is_some(),
        Expiring::Kept => store.kept("l", key).unwrap().is_some(),
        Expiring::Sessions => store.session(key).unwrap().is_some(),
    };
    for what in [Expiring::Answers, Expiring::Kept, Expiring::Sessions] {
        for (left, more) in [("cd", true), ("d", false), ("d", false)] {
            put(store, vec![what.removal(4, 2)]);
            let keys = ["a", "b", "c", "d"].into_iter();
            let found: String = keys.filter(|key| is_there(what, key)).collect();
            let has_more = store.upkeep().has_expired(what, 4).unwrap();
            assert_eq!((&*found, has_more), (left, more), "{what:?}");
        }
    }
}

pub fn one_old_answer_is_forgotten_and_a_newer_one_under_its_key_is_not(store: &dyn Store) {
    let answer = |key: &str, created_ms| {
        let [principal, route, body, answer] = ["p", "r", "", ""].map(str::to_owned);
        let key = key.to_owned();
        Write::PutIdempotency(IdempotencyRow { principal, route, key, body, answer, created_ms })
    };
    let forget = |key: &str| {
        let [principal, route, key] = ["p", "r", key].map(str::to_owned);
        Write::ForgetAnswer { principal, route, key, before_ms: 5 }
    };
    let is_there = |key: &str| store.idempotent("p", "r", key).unwrap().is_some();
    put(store, vec![answer("a", 1), answer("b", 1)]);
    put(store, vec![forget("a"), forget("none")]);
    assert_eq!((is_there("a"), is_there("b")), (false, true));
    // Another request has taken the key anew.
    put(store, vec![answer("a", 5)]);
    put(store, vec![forget("a")]);
    assert_eq!((is_there("a"), is_there("b")), (true, true));
}
