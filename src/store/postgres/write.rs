//! The statements of the writes that are sent one by one. Runs, entries and open tasks are written
//! together (see `rows.rs`); what has to read first is done by the committer.

use super::{
    codes, place,
    session::Call,
    value::{bits, limit},
    words,
};
use crate::{
    protocol::{Lifetime, Scope, StoreOptions},
    store::{
        ArtifactRow, AuditRow, BlueprintRow, Errand, EvidenceRow, FrameRow, OutboxRow, SessionRow,
        TokenRow, Trace, Write, rows::MOST_EVIDENCE,
    },
};

/// Appends the statements of a write.
pub fn statements(write: &Write, calls: &mut Vec<Call>) {
    match write {
        Write::ForgetReceipt { run, step } => calls.push(
            Call::new("DELETE FROM state_receipts WHERE run = $1 AND step = $2").num(*run).num(*step),
        ),
        Write::ExpireState { now_ms, rows } => {
            calls.push(Call::new(EXPIRE_STATE).num(*now_ms).with(limit(*rows)));
        }
        Write::PutBlob { hash, data } => calls.push(
            Call::new(
                "INSERT INTO blobs (hash, data) VALUES ($1, $2) ON CONFLICT (hash)
                 DO UPDATE SET data = excluded.data WHERE blobs.data <> excluded.data",
            )
            .text(hash)
            .with(data.to_vec()),
        ),
        Write::PutArtifact(file) => {
            // A run that is deleted meanwhile, and has the same blob, sees this file or keeps the blob.
            let held = "SELECT 1 FROM blobs WHERE hash = $1 FOR UPDATE";
            calls.push(Call::new(held).text(&file.hash));
            calls.push(put_artifact(file));
        }
        Write::PublishArtifacts { run, step, attempt } => calls.push(
            Call::new(
                "UPDATE artifacts SET published = true WHERE run = $1 AND step = $2 AND attempt = $3",
            )
            .num(*run)
            .num(*step)
            .num(*attempt),
        ),
        Write::PutBlueprint(version) => calls.push(put_blueprint(version)),
        Write::NameBlueprint { name, hash, at_ms } => calls.push(
            Call::new(
                "INSERT INTO blueprint_names (name, hash, at_ms) VALUES ($1, $2, $3)
                 ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, at_ms = excluded.at_ms",
            )
            .text(name)
            .text(hash)
            .num(*at_ms),
        ),
        Write::UnnameBlueprint { name, hash } => calls.push(
            Call::new("DELETE FROM blueprint_names WHERE name = $1 AND hash = $2")
                .text(name)
                .text(hash),
        ),
        Write::DeleteBlueprint { name } => {
            calls.push(Call::new("DELETE FROM blueprint_names WHERE name = $1").text(name));
            calls.push(
                Call::new(
                    "DELETE FROM blueprints b WHERE b.name = $1 AND NOT EXISTS (
                         SELECT 1 FROM runs r
                         WHERE substring(r.blueprint from 1 for 512)
                               = substring($1::bytea from 1 for 512)
                           AND r.blueprint = $1 AND r.hash = b.hash)",
                )
                .text(name),
            );
        }
        Write::PutToken(token) => put_token(token, calls),
        Write::RevokeToken { jti, at_ms } => calls.push(revoke(jti, *at_ms)),
        Write::PutOutbox(row) => calls.push(put_outbox(row)),
        Write::DeleteOutbox { run, step } => calls.push(
            Call::new("DELETE FROM outbox WHERE run = $1 AND step = $2").num(*run).num(*step),
        ),
        Write::PutEvidence(row) => calls.push(put_evidence(row)),
        Write::PutMeta { key, value } => calls.push(put_meta(key, value)),
        Write::ExpireIdempotency { before_ms, rows } => calls.push(
            // Another lane may have taken a key anew meanwhile.
            Call::new(
                "DELETE FROM idempotency WHERE place IN (
                     SELECT place FROM idempotency WHERE created_ms < $1 ORDER BY created_ms LIMIT $2)
                   AND created_ms < $1",
            )
            .num(*before_ms)
            .with(limit(*rows)),
        ),
        Write::ForgetAnswer { principal, route, key, before_ms } => calls.push(
            Call::new("DELETE FROM idempotency WHERE place = $1 AND created_ms < $2")
                .place(&[principal, route, key])
                .num(*before_ms),
        ),
        Write::PutSession(row) => calls.push(put_session(row)),
        Write::ExtendSession { session, expires_ms } => calls.push(
            Call::new("UPDATE sessions SET expires_ms = greatest(expires_ms, $2) WHERE id = $1")
                .text(session)
                .num(*expires_ms),
        ),
        Write::CloseSession { session, at_ms, reason } => {
            close_session(session, *at_ms, reason, calls);
        }
        Write::ForgetSessions { before_ms, rows } => calls.push(
            Call::new(
                "DELETE FROM sessions WHERE id IN (
                     SELECT id FROM sessions WHERE closed_ms < $1 ORDER BY closed_ms LIMIT $2)",
            )
            .num(*before_ms)
            .with(limit(*rows)),
        ),
        Write::PutFrame(frame) => put_frame(frame, calls),
        Write::AckFrames { session, seq } => {
            calls.push(
                Call::new("DELETE FROM frames WHERE session = $1 AND seq <= $2")
                    .text(session)
                    .num(*seq),
            );
            calls.push(
                Call::new("UPDATE sessions SET acked_seq = greatest(acked_seq, $2) WHERE id = $1")
                    .text(session)
                    .num(*seq),
            );
        }
        Write::ReserveRun { num } => {
            calls.push(Call::new("UPDATE cluster SET high_run = greatest(high_run, $1)").num(*num));
        }
        Write::PutKept { layer, key, value, expires_ms } => calls.push(
            Call::new(
                "INSERT INTO kept (place, layer, key, expires_ms, value) VALUES ($1, $2, $3, $4, $5)
                 ON CONFLICT (place) DO UPDATE SET
                     expires_ms = excluded.expires_ms, value = excluded.value",
            )
            .place(&[layer, key])
            .text(layer)
            .text(key)
            .num_or_null(*expires_ms)
            .text(value),
        ),
        Write::RemoveKept { layer, key } => {
            calls.push(Call::new("DELETE FROM kept WHERE place = $1").place(&[layer, key]));
        }
        Write::ExpireKept { before_ms, rows } => calls.push(
            Call::new(
                "DELETE FROM kept WHERE place IN (
                     SELECT place FROM kept WHERE expires_ms < $1 ORDER BY expires_ms LIMIT $2)
                   AND expires_ms < $1",
            )
            .num(*before_ms)
            .with(limit(*rows)),
        ),
        Write::AddAudit(row) => calls.push(add_audit(row)),
        Write::Erase(trace) => erase(trace, calls),
        // Written with others of their kind, or done by the committer.
        Write::PutState { .. }
        | Write::DeleteState { .. }
        | Write::PutIdempotency(_)
        | Write::PutCharge(_)
        | Write::PutTask(_)
        | Write::HoldTask(_)
        | Write::CloseTask { .. }
        | Write::CloseTasks { .. }
        | Write::ChangeState(_)
        | Write::CountRun(_)
        | Write::DeleteRun { .. }
        | Write::Tidy { .. }
        | Write::Rewrite => {}
    }
}

/// Removes expired values, with their links.
const EXPIRE_STATE: &str = "
    WITH gone AS (
        DELETE FROM state WHERE place IN (
            SELECT place FROM state WHERE expires_ms IS NOT NULL AND expires_ms <= $1
            ORDER BY expires_ms LIMIT $2)
          -- Another lane may have replaced it meanwhile.
          AND expires_ms <= $1
        RETURNING scope, key),
    ended AS (SELECT scope, key, substring(scope from 1 for 1024) AS s, substring(key from 1 for 1024) AS k
           FROM gone),
    froms AS (
        DELETE FROM state_links l USING ended e
        WHERE substring(l.scope from 1 for 1024) = e.s AND substring(l.from_key from 1 for 1024) = e.k
          AND l.scope = e.scope AND l.from_key = e.key)
    DELETE FROM state_links l USING ended e
    WHERE substring(l.scope from 1 for 1024) = e.s AND substring(l.to_key from 1 for 1024) = e.k
      AND l.scope = e.scope AND l.to_key = e.key";

/// Begins the statement that writes a value.
macro_rules! insert_state {
    ($rest:literal) => {
        concat!(
            "INSERT INTO state (place, scope, key, revision, updated_ms, expires_ms, session_bound, hints,
                 value, words)
             VALUES ($1, $2, $3, 1, $4, $5, $6, $7, $8, $9::text::tsvector) ",
            $rest
        )
    };
}

const REPLACE_STATE: &str = insert_state!(
    "ON CONFLICT (place) DO UPDATE SET
         revision = state.revision + 1, updated_ms = excluded.updated_ms,
         expires_ms = excluded.expires_ms, session_bound = excluded.session_bound,
         hints = excluded.hints, value = excluded.value, words = excluded.words"
);
const NEW_STATE: &str = concat!(
    "WITH put AS (",
    insert_state!("ON CONFLICT (place) DO NOTHING RETURNING 1"),
    ") SELECT 1 / count(*) FROM put"
);

/// Returns the statement that writes a value. If it `is_new` and another lane was faster, the
/// statement fails, and the group is made again.
pub fn put_state(
    (scope, key): (&str, &str),
    value: &str,
    hints: &StoreOptions,
    (expires_ms, at_ms): (Option<u64>, u64),
    is_new: bool,
) -> Call {
    let said = (*hints != StoreOptions::default())
        .then(|| serde_json::to_string(hints).expect("hints are plain data"));
    Call::new(if is_new { NEW_STATE } else { REPLACE_STATE })
        .place(&[scope, key])
        .text(scope)
        .text(key)
        .num(at_ms)
        .num_or_null(expires_ms)
        .with(hints.lifetime == Some(Lifetime::Session))
        .text_or_null(said.as_deref())
        .text(value)
        .with(words::of_value(scope, key, value))
}

/// Returns the statement that removes a value.
pub fn delete_state(scope: &str, key: &str) -> Call {
    Call::new("DELETE FROM state WHERE place = $1").place(&[scope, key])
}

/// Returns the statements that remove the links of a value.
pub fn delete_links_of(scope: &str, key: &str) -> [Call; 2] {
    [
        "DELETE FROM state_links
         WHERE substring(scope from 1 for 1024) = substring($1::bytea from 1 for 1024)
           AND substring(from_key from 1 for 1024) = substring($2::bytea from 1 for 1024)
           AND scope = $1 AND from_key = $2",
        "DELETE FROM state_links
         WHERE substring(scope from 1 for 1024) = substring($1::bytea from 1 for 1024)
           AND substring(to_key from 1 for 1024) = substring($2::bytea from 1 for 1024)
           AND scope = $1 AND to_key = $2",
    ]
    .map(|sql| Call::new(sql).text(scope).text(key))
}

/// Returns the statement that writes a link.
pub fn put_link(scope: &str, link: (&str, &str, &str), metadata: Option<&str>) -> Call {
    let (from, relation, to) = link;
    Call::new(
        "INSERT INTO state_links (place, scope, from_key, relation, to_key, metadata)
         VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (place) DO UPDATE SET metadata = excluded.metadata",
    )
    .place(&[scope, from, relation, to])
    .text(scope)
    .text(from)
    .text(relation)
    .text(to)
    .text_or_null(metadata)
}

/// Returns the statement that removes a link.
pub fn delete_link(scope: &str, (from, relation, to): (&str, &str, &str)) -> Call {
    Call::new("DELETE FROM state_links WHERE place = $1").place(&[scope, from, relation, to])
}

/// Returns the statement that writes a value of the host.
pub fn put_meta(key: &str, value: &str) -> Call {
    Call::new(
        "INSERT INTO meta (key, value) VALUES ($1, $2)
         ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    )
    .text(key)
    .text(value)
}

fn put_artifact(file: &ArtifactRow) -> Call {
    Call::new(
        "INSERT INTO artifacts (run, n, name, hash, size, created_ms, step, attempt, published)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT (run, n) DO UPDATE SET name = excluded.name, hash = excluded.hash,
             size = excluded.size, created_ms = excluded.created_ms, step = excluded.step,
             attempt = excluded.attempt, published = excluded.published",
    )
    .num(file.run)
    .num(file.n)
    .text(&file.name)
    .text(&file.hash)
    .num(file.size)
    .num(file.created_ms)
    .num(file.step)
    .num(file.attempt)
    .with(file.published)
}

fn put_blueprint(version: &BlueprintRow) -> Call {
    Call::new(
        "INSERT INTO blueprints (hash, name, created_ms, bundle, publisher)
         VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (hash) DO UPDATE SET bundle = excluded.bundle,
             publisher = coalesce(excluded.publisher, blueprints.publisher)
         WHERE blueprints.bundle <> excluded.bundle OR excluded.publisher IS NOT NULL",
    )
    .text(&version.hash)
    .text(&version.name)
    .num(version.created_ms)
    .with(version.bundle.clone())
    .text_or_null(version.publisher.as_deref())
}

/// Stores a token. An existing revocation stays.
fn put_token(token: &TokenRow, calls: &mut Vec<Call>) {
    calls.push(
        Call::new(
            "INSERT INTO tokens (jti, role, claims, parent, created_ms, expires_ms)
             VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (jti) DO UPDATE SET role = excluded.role, claims = excluded.claims,
                 parent = excluded.parent, created_ms = excluded.created_ms,
                 expires_ms = excluded.expires_ms",
        )
        .text(&token.jti)
        .text(&token.role)
        .text(&token.claims)
        .text_or_null(token.parent.as_deref())
        .num(token.created_ms)
        .num(token.expires_ms),
    );
    calls.extend(token.revoked_ms.map(|at_ms| revoke(&token.jti, at_ms)));
}

fn revoke(jti: &str, at_ms: u64) -> Call {
    Call::new("INSERT INTO revocations (jti, at_ms) VALUES ($1, $2) ON CONFLICT (jti) DO NOTHING")
        .text(jti)
        .num(at_ms)
}

fn put_outbox(row: &OutboxRow) -> Call {
    let (kind, name, payload) = match &row.errand {
        Errand::Signal { name, payload } => (codes::SIGNAL, name.as_str(), payload),
        Errand::Cancel { by, reason } => (codes::CANCEL, by.as_str(), reason),
        Errand::Change { scope, payload } => (codes::CHANGE, scope.as_str(), payload),
    };
    Call::new(
        "INSERT INTO outbox (run, step, target, kind, name, payload)
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (run, step) DO NOTHING",
    )
    .num(row.run)
    .num(row.step)
    .num(row.to)
    .with(kind)
    .text(name)
    .text(payload)
}

fn put_evidence(row: &EvidenceRow) -> Call {
    Call::new(
        "INSERT INTO evidence (run, step, attempt, at_ms, code, body)
         SELECT $1, $2, $3, $4, $5, $6
         WHERE (SELECT count(*) FROM evidence WHERE run = $1 AND step = $2 AND attempt = $3) < $7",
    )
    .num(row.run)
    .num(row.step)
    .num(row.attempt)
    .num(row.at_ms)
    .text(&row.code)
    .text(&row.body)
    .with(limit(MOST_EVIDENCE))
}

fn put_session(row: &SessionRow) -> Call {
    Call::new(
        "INSERT INTO sessions (id, operator, principal, jti, until_ms, created_ms, expires_ms, direct,
             last_seq, acked_seq, closed_ms, reason)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
         ON CONFLICT (id) DO UPDATE SET operator = excluded.operator,
             principal = excluded.principal, jti = excluded.jti, until_ms = excluded.until_ms,
             created_ms = excluded.created_ms, expires_ms = excluded.expires_ms,
             direct = excluded.direct, last_seq = excluded.last_seq,
             acked_seq = excluded.acked_seq, closed_ms = excluded.closed_ms,
             reason = excluded.reason",
    )
    .text(&row.id)
    .text(&row.operator)
    .text(&row.principal)
    .text(&row.jti)
    .num(row.until_ms)
    .num(row.created_ms)
    .num(row.expires_ms)
    .with(row.direct)
    .num(row.last_seq)
    .num(row.acked_seq)
    .num_or_null(row.closed_ms)
    .text_or_null(row.reason.as_deref())
}

/// Closes a session: only the first call has an effect on its row. Its frames go, and the values that
/// end with it.
fn close_session(session: &str, at_ms: u64, reason: &str, calls: &mut Vec<Call>) {
    calls.push(
        Call::new(
            "UPDATE sessions SET closed_ms = $2, reason = $3 WHERE id = $1 AND closed_ms IS NULL",
        )
        .text(session)
        .num(at_ms)
        .text(reason),
    );
    calls.push(Call::new("DELETE FROM frames WHERE session = $1").text(session));
    let scope = Scope::Session(session.into()).to_string();
    calls.push(
        Call::new(
            // The ends of links are looked for one after the other: no join answers an OR.
            "WITH gone AS (
                 DELETE FROM state
                 WHERE substring(scope from 1 for 1024) = substring($1::bytea from 1 for 1024)
                   AND scope = $1 AND session_bound
                 RETURNING key, substring(key from 1 for 1024) AS k),
             froms AS (
                 DELETE FROM state_links l USING gone
                 WHERE substring(l.scope from 1 for 1024) = substring($1::bytea from 1 for 1024)
                   AND l.scope = $1 AND substring(l.from_key from 1 for 1024) = gone.k
                   AND l.from_key = gone.key)
             DELETE FROM state_links l USING gone
             WHERE substring(l.scope from 1 for 1024) = substring($1::bytea from 1 for 1024)
               AND l.scope = $1 AND substring(l.to_key from 1 for 1024) = gone.k
               AND l.to_key = gone.key",
        )
        .text(&scope),
    );
}

/// Stores a frame of an open session, and the number of the session's last one.
fn put_frame(frame: &FrameRow, calls: &mut Vec<Call>) {
    calls.push(
        Call::new(
            "INSERT INTO frames (session, seq, method, run, step, attempt, epoch, timeout_ms, params,
                 scheduled_ms, nonce)
             SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11
             WHERE EXISTS (SELECT 1 FROM sessions WHERE id = $1 AND closed_ms IS NULL)",
        )
        .text(&frame.session)
        .num(frame.seq)
        .text(&frame.method)
        .num(frame.run)
        .num(frame.step)
        .num(frame.attempt)
        .num(frame.epoch)
        .num_or_null(frame.timeout_ms)
        .text(&frame.params)
        .num(frame.scheduled_ms)
        .with(bits(frame.nonce)),
    );
    calls.push(
        Call::new("UPDATE sessions SET last_seq = greatest(last_seq, $2) WHERE id = $1")
            .text(&frame.session)
            .num(frame.seq),
    );
}

fn add_audit(row: &AuditRow) -> Call {
    Call::new("INSERT INTO audit (seq, at, line, hash) VALUES ($1, $2, $3, $4)")
        .num(row.seq)
        .text(&row.at)
        .text(&row.line)
        .text(&row.hash)
}

/// Removes a row that an erasure found. Runs, sums and state are the group's.
fn erase(trace: &Trace, calls: &mut Vec<Call>) {
    match trace {
        Trace::Run(_) | Trace::Sums(_) | Trace::State { .. } | Trace::Link { .. } => {}
        Trace::Kept { layer, key } => {
            calls.push(Call::new("DELETE FROM kept WHERE place = $1").place(&[layer, key]));
        }
        Trace::Answer { principal, route, key } => calls.push(
            Call::new("DELETE FROM idempotency WHERE place = $1")
                .with(place::of(&[principal, route, key]).to_vec()),
        ),
        Trace::Session(id) => {
            calls.push(Call::new("DELETE FROM frames WHERE session = $1").text(id));
            calls.push(Call::new("DELETE FROM sessions WHERE id = $1").text(id));
        }
        Trace::Token(jti) => calls.push(Call::new("DELETE FROM tokens WHERE jti = $1").text(jti)),
        Trace::Blueprint { name, hash } => calls.push(
            Call::new(
                "DELETE FROM blueprints b WHERE b.hash = $2 AND b.publisher IS NULL
                   AND NOT EXISTS (SELECT 1 FROM blueprint_names n WHERE n.hash = b.hash)
                   AND NOT EXISTS (
                         SELECT 1 FROM runs r
                         WHERE substring(r.blueprint from 1 for 512)
                               = substring($1::bytea from 1 for 512)
                           AND r.blueprint = $1 AND r.hash = b.hash)",
            )
            .text(name)
            .text(hash),
        ),
    }
}
