//! Which table each write goes to.

use rusqlite::Connection;

use super::{
    artifacts, blobs, blueprints, evidence, header, idempotency, journal, meta, outbox, state,
    tasks, tokens,
};
use crate::store::Write;

/// Does one write, inside the caller's transaction.
pub fn apply(conn: &Connection, write: &Write) -> rusqlite::Result<()> {
    match write {
        Write::PutTask(task) => tasks::put(conn, task),
        Write::CloseTask { run, step } => tasks::close(conn, *run, *step),
        Write::CloseTasks { run } => tasks::close_all(conn, *run),
        Write::PutState { scope, key, value, at_ms } => {
            state::put(conn, (scope, key), value, *at_ms)
        }
        Write::DeleteState { scope, key } => state::delete(conn, scope, key),
        Write::PutBlob { hash, data } => blobs::put(conn, hash, data),
        Write::PutArtifact(file) => artifacts::put(conn, file),
        Write::PublishArtifacts { run, step, attempt } => {
            artifacts::publish(conn, *run, *step, *attempt)
        }
        Write::PutBlueprint(version) => blueprints::put(conn, version),
        Write::NameBlueprint { name, hash, at_ms } => blueprints::name(conn, name, hash, *at_ms),
        Write::PutToken(token) => tokens::put(conn, token),
        Write::RevokeToken { jti, at_ms } => tokens::revoke(conn, jti, *at_ms),
        Write::PutIdempotency(row) => idempotency::put(conn, row),
        Write::PutOutbox(signal) => outbox::put(conn, signal),
        Write::DeleteOutbox { run, step } => outbox::delete(conn, *run, *step),
        Write::PutEvidence(row) => evidence::put(conn, row),
        Write::PutMeta { key, value } => meta::put(conn, key, value),
        Write::ExpireIdempotency { before_ms } => idempotency::expire(conn, *before_ms),
        Write::DeleteRun { run } => delete_run(conn, *run),
    }
}

/// The id of a token that a write revokes.
pub fn revokes(write: &Write) -> Option<&str> {
    match write {
        Write::RevokeToken { jti, .. } => Some(jti),
        Write::PutToken(token) => token.revoked_ms.map(|_| token.jti.as_str()),
        Write::PutTask(_)
        | Write::CloseTask { .. }
        | Write::CloseTasks { .. }
        | Write::PutState { .. }
        | Write::DeleteState { .. }
        | Write::PutBlob { .. }
        | Write::PutArtifact(_)
        | Write::PublishArtifacts { .. }
        | Write::PutBlueprint(_)
        | Write::NameBlueprint { .. }
        | Write::PutIdempotency(_)
        | Write::PutOutbox(_)
        | Write::DeleteOutbox { .. }
        | Write::PutEvidence(_)
        | Write::PutMeta { .. }
        | Write::ExpireIdempotency { .. }
        | Write::DeleteRun { .. } => None,
    }
}

/// About how many bytes a write adds; only what can be large is counted.
pub fn size(write: &Write) -> usize {
    match write {
        Write::PutTask(task) => task.prompt.len(),
        Write::PutState { value, .. } | Write::PutMeta { value, .. } => value.len(),
        Write::PutBlob { data, .. } => data.len(),
        Write::PutBlueprint(version) => version.bundle.len(),
        Write::PutToken(token) => token.claims.len(),
        Write::PutIdempotency(row) => row.answer.len(),
        Write::PutOutbox(signal) => signal.payload.len(),
        Write::PutEvidence(row) => row.body.len(),
        Write::CloseTask { .. }
        | Write::CloseTasks { .. }
        | Write::DeleteState { .. }
        | Write::PutArtifact(_)
        | Write::PublishArtifacts { .. }
        | Write::NameBlueprint { .. }
        | Write::RevokeToken { .. }
        | Write::DeleteOutbox { .. }
        | Write::ExpireIdempotency { .. }
        | Write::DeleteRun { .. } => 0,
    }
}

fn delete_run(conn: &Connection, run: u64) -> rusqlite::Result<()> {
    if let Some(cursor) = header::delete(conn, run)? {
        journal::delete(conn, run, cursor)?;
    }
    tasks::close_all(conn, run)?;
    blobs::delete_of(conn, run)?;
    artifacts::delete_of(conn, run)?;
    outbox::delete_of(conn, run)?;
    evidence::delete_of(conn, run)
}
