//! Dispatches each write to its table.

use rusqlite::Connection;

use super::{
    artifacts, blobs, blueprints, charges, erase, evidence, frames, header, idempotency, kept,
    meta, outbox, retention, sessions, state, stats,
    tasks::{self, TaskWriter},
    tokens,
};
use crate::store::Write;

/// Applies one write, inside the caller's transaction.
pub fn apply(conn: &Connection, tasks: &mut TaskWriter<'_>, write: &Write) -> rusqlite::Result<()> {
    match write {
        Write::PutTask(task) => tasks.put(task),
        Write::HoldTask(hold) => tasks.hold(hold),
        Write::CloseTask { run, step } => tasks.close(*run, *step),
        Write::CloseTasks { run } => tasks::close_all(conn, *run),
        Write::PutState { scope, key, value, hints, expires_ms, at_ms } => {
            state::put(conn, (scope, key), value, hints, *expires_ms, *at_ms)
        }
        // Planned by the group, before anything of its batch is written.
        Write::ChangeState(_) => Ok(()),
        Write::ForgetReceipt { run, step } => state::forget_receipt(conn, *run, *step),
        Write::ExpireState { now_ms, rows } => state::expire(conn, *now_ms, *rows),
        Write::DeleteState { scope, key } => state::delete(conn, scope, key),
        Write::PutBlob { hash, data } => blobs::put(conn, hash, data),
        Write::PutArtifact(file) => artifacts::put(conn, file),
        Write::PublishArtifacts { run, step, attempt } => {
            artifacts::publish(conn, *run, *step, *attempt)
        }
        Write::PutBlueprint(version) => blueprints::put(conn, version),
        Write::NameBlueprint { name, hash, at_ms } => blueprints::name(conn, name, hash, *at_ms),
        Write::UnnameBlueprint { name, hash } => blueprints::unname(conn, name, hash),
        Write::DeleteBlueprint { name } => blueprints::delete(conn, name),
        Write::PutCharge(row) => charges::put(conn, row),
        Write::CountRun(counted) => stats::add(conn, counted),
        Write::PutToken(token) => tokens::put(conn, token),
        Write::RevokeToken { jti, at_ms } => tokens::revoke(conn, jti, *at_ms),
        Write::PutIdempotency(row) => idempotency::put(conn, row),
        Write::PutOutbox(signal) => outbox::put(conn, signal),
        Write::DeleteOutbox { run, step } => outbox::delete(conn, *run, *step),
        Write::PutEvidence(row) => evidence::put(conn, row),
        Write::PutMeta { key, value } => meta::put(conn, key, value),
        Write::ExpireIdempotency { before_ms, rows } => {
            idempotency::expire(conn, *before_ms, *rows)
        }
        Write::ForgetAnswer { principal, route, key, before_ms } => {
            idempotency::forget(conn, [principal, route, key], *before_ms)
        }
        Write::PutSession(row) => sessions::put(conn, row),
        Write::ExtendSession { session, expires_ms } => {
            sessions::extend(conn, session, *expires_ms)
        }
        Write::CloseSession { session, at_ms, reason } => {
            sessions::close(conn, session, *at_ms, reason)?;
            state::end_session(conn, session)
        }
        Write::ForgetSessions { before_ms, rows } => sessions::forget(conn, *before_ms, *rows),
        Write::PutFrame(frame) => {
            frames::put(conn, frame)?;
            sessions::count(conn, &frame.session, frame.seq)
        }
        Write::AckFrames { session, seq } => {
            frames::acknowledge(conn, session, *seq)?;
            sessions::acknowledge(conn, session, *seq)
        }
        Write::ReserveRun { num } => header::reserve(conn, *num),
        Write::DeleteRun { run } => retention::delete_run(conn, *run),
        Write::Tidy { rows, pages } => retention::tidy(conn, *rows, *pages),
        Write::PutKept { layer, key, value, expires_ms } => {
            kept::put(conn, (layer, key), value, *expires_ms)
        }
        Write::RemoveKept { layer, key } => kept::remove(conn, layer, key),
        Write::ExpireKept { before_ms, rows } => kept::expire(conn, *before_ms, *rows),
        Write::AddAudit(row) => kept::add_line(conn, row),
        Write::Erase(trace) => erase::apply(conn, trace),
        // Done by the committer, after the transaction.
        Write::Rewrite => Ok(()),
    }
}

/// The effect of a write on more than its own table.
enum Effect<'a> {
    /// It revokes the token with this id.
    Revokes(&'a str),
    /// It reads the journal, or deletes from it.
    TouchesJournal,
    /// It has none.
    None,
}

/// Returns the id of the token that a write revokes.
pub fn revokes(write: &Write) -> Option<&str> {
    match effect(write) {
        Effect::Revokes(jti) => Some(jti),
        Effect::TouchesJournal | Effect::None => None,
    }
}

/// Returns true if a write reads the journal or deletes from it: all rows before it must be there.
pub fn needs_rows(write: &Write) -> bool {
    matches!(effect(write), Effect::TouchesJournal)
}

fn effect(write: &Write) -> Effect<'_> {
    match write {
        Write::RevokeToken { jti, .. } => Effect::Revokes(jti),
        Write::PutToken(token) if token.revoked_ms.is_some() => Effect::Revokes(&token.jti),
        Write::DeleteRun { .. } | Write::Tidy { .. } | Write::Erase(_) => Effect::TouchesJournal,
        Write::PutTask(_)
        | Write::HoldTask(_)
        | Write::CloseTask { .. }
        | Write::CloseTasks { .. }
        | Write::PutState { .. }
        | Write::ChangeState(_)
        | Write::ForgetReceipt { .. }
        | Write::ExpireState { .. }
        | Write::DeleteState { .. }
        | Write::PutBlob { .. }
        | Write::PutArtifact(_)
        | Write::PublishArtifacts { .. }
        | Write::PutBlueprint(_)
        | Write::NameBlueprint { .. }
        | Write::UnnameBlueprint { .. }
        | Write::DeleteBlueprint { .. }
        | Write::PutCharge(_)
        | Write::CountRun(_)
        | Write::PutToken(_)
        | Write::PutIdempotency(_)
        | Write::PutOutbox(_)
        | Write::DeleteOutbox { .. }
        | Write::PutEvidence(_)
        | Write::PutMeta { .. }
        | Write::ExpireIdempotency { .. }
        | Write::ForgetAnswer { .. }
        | Write::PutSession(_)
        | Write::ExtendSession { .. }
        | Write::CloseSession { .. }
        | Write::ForgetSessions { .. }
        | Write::PutFrame(_)
        | Write::AckFrames { .. }
        | Write::ReserveRun { .. }
        | Write::PutKept { .. }
        | Write::RemoveKept { .. }
        | Write::ExpireKept { .. }
        | Write::AddAudit(_)
        | Write::Rewrite => Effect::None,
    }
}
