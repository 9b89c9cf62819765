//! Reports that come again: an attempt has one accepted report, and the same one is accepted as often
//! as it comes.
//!
//! The entry that ends an attempt has the mark of its report. Where no entry took the mark, and in
//! databases of earlier releases, it is in the table of idempotency keys. A decline has such a mark as
//! well, but only in the entry: where none took it, the same decline again is refused.

use std::sync::Arc;

use crate::{
    engine::{
        EngineError, Holder, Report,
        inbox::answers,
        run::{
            reply::{Answer, Answered, ReplyTo},
            resident::Run,
            task::Phase,
        },
        shared::{
            message::{Internal, Repeated, WorkerAsk},
            verified::lineage,
        },
        turn::{
            effects::{self, decode_effects},
            facts::Turn,
        },
    },
    fault::{self, Break},
    journal::ReportMark,
    protocol::Code,
    store::{Check, EvidenceRow, IdempotencyRow, Write},
};

/// The stored part of a refused body, in bytes.
const EVIDENCE_BYTES: usize = 64 << 10;

/// The route under which earlier releases stored accepted results.
const RESULT_ROUTE: &str = "worker.result";

/// The length of a mark in hexadecimal digits.
const MARK_CHARS: usize = 32;

/// The start of the hash in the mark of a decline: that of a report has only hexadecimal digits.
const DECLINED: &str = "declined ";

/// A report, compared with the one that was accepted of its attempt.
#[derive(Clone, Copy)]
struct Before {
    /// True if it is the same.
    is_same: bool,
    /// True if it came with the same key.
    has_key: bool,
}

/// Remembers an accepted report with the entry that ends its attempt, so that its repetition is
/// accepted too.
pub(crate) fn remember(turn: &mut Turn<'_>, holder: &Holder, report: &Report) {
    let checks = live_token(holder).filter(|check| !turn.run.pending.checks.contains(check));
    let checks: Vec<_> = checks.collect();
    turn.run.pending.checks.extend(checks);
    let mark = mark_of(turn.run, report);
    turn.run.accepted = Some(((holder.step, holder.attempt), mark));
}

/// Remembers a decline with the entry that ends its attempt, so that its repetition is known.
pub(crate) fn remember_decline(
    turn: &mut Turn<'_>,
    holder: &Holder,
    (reason, key): (&str, Option<&str>),
) {
    let mark = mark_of_decline(turn.run, reason, key);
    turn.run.accepted = Some(((holder.step, holder.attempt), mark));
}

/// Forgets a report that was not accepted after all, or a decline whose mark no entry took.
pub(crate) fn forget(run: &mut Run) {
    run.accepted = None;
}

/// Keeps the mark of an accepted report that no entry took with it.
pub(crate) fn keep(turn: &mut Turn<'_>, holder: &Holder) {
    let Some((_, ReportMark { hash, key })) = turn.run.accepted.take() else { return };
    turn.run.pending.writes.push(Write::PutIdempotency(IdempotencyRow {
        principal: attempt_name(turn.run, holder),
        route: RESULT_ROUTE.to_owned(),
        key: String::new(),
        body: hash,
        answer: key.unwrap_or_default(),
        created_ms: turn.now_ms,
    }));
}

/// Returns the mark of a report. It is made with the run's own random number: whoever reads the
/// history cannot try what the report may have been.
fn mark_of(run: &Run, report: &Report) -> ReportMark {
    ReportMark { hash: hash(run, &report.body_hash), key: hash_of_key(run, report.key.as_deref()) }
}

/// Returns the mark of a decline.
fn mark_of_decline(run: &Run, reason: &str, key: Option<&str>) -> ReportMark {
    ReportMark { hash: format!("{DECLINED}{}", hash(run, reason)), key: hash_of_key(run, key) }
}

fn hash_of_key(run: &Run, key: Option<&str>) -> Option<String> {
    key.filter(|key| !key.is_empty()).map(|key| hash(run, key))
}

fn hash(run: &Run, text: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&run.header.nonce.to_le_bytes());
    hasher.update(text.as_bytes());
    let hash = hasher.finalize().to_hex();
    hash[..MARK_CHARS].to_owned()
}

/// Returns true if a report or a decline of an attempt that nobody began is the one of the attempt
/// before: its client named no attempt, and the key and the body are the same. Without a key it may
/// as well be a second one in the same words.
pub(crate) fn is_of_before(run: &Run, holder: &Holder, ask: &WorkerAsk) -> bool {
    let Some(before) = holder.before else { return false };
    let mark = match ask {
        WorkerAsk::Report(report) => mark_of(run, report),
        WorkerAsk::Decline { reason, key } => mark_of_decline(run, reason, key.as_deref()),
        _ => return false,
    };
    let Some(task) = run.task(holder.step).filter(|task| task.phase == Phase::Pending) else {
        return false;
    };
    // The key of the step is in the frame of every attempt: with it, it may be a second one as well.
    let of_step = hash_of_key(run, task.request.opts.idempotency_key.as_deref());
    let before = run.chain.step(holder.step).and_then(|step| step.report(before));
    mark.key.is_some() && mark.key != of_step && before == Some(&mark)
}

/// Returns true if a decline of an attempt that is over is the one that ended it.
pub(crate) fn is_declined(run: &Run, holder: &Holder, reason: &str) -> bool {
    let step = run.chain.step(holder.step);
    let before = step.and_then(|step| step.report(holder.attempt));
    before.is_some_and(|before| before.hash == mark_of_decline(run, reason, None).hash)
}

/// Answers a report on an attempt that is over: from what the run itself has of it, or else from the
/// table of earlier releases, which is read first.
pub(crate) fn late(
    turn: &mut Turn<'_>,
    (holder, report): (Holder, Box<Report>),
    refusal: EngineError,
    reply: ReplyTo<Answer>,
) {
    let step = turn.run.chain.step(holder.step);
    let marked = step.and_then(|step| step.report(holder.attempt));
    let of_report = marked.filter(|mark| !mark.hash.starts_with(DECLINED));
    let Some(before) = of_report.cloned() else {
        look_up(turn, Repeated { holder, report, refusal, before: None, reply });
        return;
    };
    let mark = mark_of(turn.run, &report);
    let before = Before {
        is_same: mark.hash == before.hash,
        has_key: mark.key.is_some() && mark.key == before.key,
    };
    let answer = report_again(turn, &holder, &report, refusal, Some(before));
    // What was accepted may be on its way to the disk.
    answers::give(turn.run, reply, Answered::Durable(answer.map(Answer::Accepted)));
}

/// Has it read which result of an attempt was accepted, for a report that comes after it is over.
fn look_up(turn: &Turn<'_>, mut repeated: Repeated) {
    let (shared, run) = (Arc::clone(turn.shared), turn.run.num);
    let principal = attempt_name(turn.run, &repeated.holder);
    turn.shared.tasks.spawn_blocking(move || {
        match shared.store.idempotent(&principal, RESULT_ROUTE, "") {
            Ok(before) => {
                repeated.before = before;
                shared.tell(run, Internal::Repeated(Box::new(repeated)));
            }
            // Who reports may be gone.
            Err(error) => drop(repeated.reply.send(Err(error.into()))),
        }
    });
}

/// Answers a report on an attempt that is over, once it is known what was accepted of that.
pub(crate) fn repeated(turn: &mut Turn<'_>, repeated: Repeated) {
    let Repeated { holder, report, refusal, before, reply } = repeated;
    let mark = mark_of(turn.run, &report);
    let before = before.map(|row| Before {
        is_same: row.body == report.body_hash || row.body == mark.hash,
        has_key: [&report.key, &mark.key].into_iter().flatten().any(|key| *key == row.answer),
    });
    let answer = report_again(turn, &holder, &report, refusal, before).map(Answer::Accepted);
    let answered = match turn.run.has_pending() {
        // The refused body is stored before the refusal is sent.
        true => Answered::Durable(answer),
        false => Answered::Now(answer),
    };
    answers::give(turn.run, reply, answered);
}

/// A report on an attempt that is over: the same body as the accepted one is accepted again.
fn report_again(
    turn: &mut Turn<'_>,
    holder: &Holder,
    report: &Report,
    refusal: EngineError,
    before: Option<Before>,
) -> Result<bool, EngineError> {
    let refusal = match before {
        Some(_) if fault::is_broken(Break::DropDedup) => {
            effects::apply_effects(
                turn,
                holder.step,
                &decode_effects(&report.effects, turn.shared.settings.custom_effects)?,
            )?;
            return Ok(true);
        }
        Some(before) if before.is_same => return Ok(false),
        Some(before) if before.has_key => EngineError::Conflict {
            code: Code::IdempotencyMismatch,
            message: "report: another body came with this Idempotency-Key before".into(),
        },
        Some(_) => EngineError::Conflict {
            code: Code::AlreadyAccepted,
            message: "report: another result of this attempt was accepted before".into(),
        },
        None => refusal,
    };
    keep_evidence(turn, holder, report, refusal.code().as_str());
    Err(refusal)
}

pub(crate) fn keep_evidence(turn: &mut Turn<'_>, holder: &Holder, report: &Report, code: &str) {
    let mut end = report.body.len().min(EVIDENCE_BYTES);
    while !report.body.is_char_boundary(end) {
        end -= 1;
    }
    turn.run.pending.writes.push(Write::PutEvidence(EvidenceRow {
        run: turn.run.num,
        step: holder.step,
        attempt: holder.attempt,
        at_ms: turn.now_ms,
        code: code.to_owned(),
        body: report.body[..end].to_owned(),
    }));
}

/// Returns the checks that the tokens of a request are live: the bearer, and the token that carries
/// it.
pub(crate) fn live_token(holder: &Holder) -> impl Iterator<Item = Check> {
    let carrier = holder.carrier.as_ref().map(|carrier| carrier.jti.as_str());
    let line = holder.jti.as_deref().into_iter().chain(carrier).flat_map(lineage);
    line.map(|jti| Check::TokenLive(jti.to_owned()))
}

fn attempt_name(run: &Run, holder: &Holder) -> String {
    format!("{}/{}/{}", run.num, holder.step, holder.attempt)
}
