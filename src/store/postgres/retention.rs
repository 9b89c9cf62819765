//! Deletion of runs in bounded steps.
//!
//! A long history is not deleted at once, and neither are files of many bytes: each statement must end within
//! the time of a commit. The transaction that deletes a run notes the rest in `meta`, and `Tidy` clears it.

use super::{session::Call, value::limit};

/// The number of rows of a history that are deleted together with its run.
const AT_ONCE: usize = 2_048;
/// The number of bytes of files, and of entries, after which no more are deleted by a statement. A slow disk
/// does that within a few seconds.
const BYTES: i64 = 64 << 20;
/// The prefix of the `meta` keys for what deleted runs have left, followed by the run's number.
pub const DEBRIS: &str = "debris:";

/// Appends the statements that delete a run with everything that belongs to it, except the beginning of
/// a long history; those of [`delete_around_run`] follow. `id` is the run's id.
pub fn delete_run(run: u64, id: &str, calls: &mut Vec<Call>) {
    let own = format!("run:{id}");
    let (first, last) = (format!("operator:{id}:"), format!("operator:{id};"));
    calls.push(Call::new(
        "UPDATE cluster SET high_run = greatest(high_run, (SELECT coalesce(max(num), 0) FROM runs)),
             high_lsn = greatest(high_lsn, (SELECT coalesce(max(lsn), 0) FROM journal))",
    ));
    // First, so that a batch of the run that is being committed comes either before all of this or not
    // at all.
    calls.push(Call::new("DELETE FROM runs WHERE num = $1").num(run));
    for sql in [
        "DELETE FROM state WHERE (substring(scope from 1 for 1024) = $1 AND scope = $1)
             OR (substring(scope from 1 for 1024) >= $2 AND substring(scope from 1 for 1024) < $3)",
        "DELETE FROM state_links WHERE (substring(scope from 1 for 1024) = $1 AND scope = $1)
             OR (substring(scope from 1 for 1024) >= $2 AND substring(scope from 1 for 1024) < $3)",
    ] {
        calls.push(Call::new(sql).text(&own).text(&first).text(&last));
    }
    for sql in [
        "DELETE FROM run_tags WHERE run = $1",
        "DELETE FROM run_words WHERE run = $1",
        "DELETE FROM state_receipts WHERE run = $1",
    ] {
        calls.push(Call::new(sql).num(run));
    }
    clear_journal(run, AT_ONCE, calls);
}

/// Appends the statements that delete what may belong to a run even if its header is gone, except files beyond
/// what one statement deletes in its time.
pub fn delete_around_run(run: u64, unstored: &str, calls: &mut Vec<Call>) {
    calls.push(Call::new("DELETE FROM meta WHERE key = $1").text(unstored));
    for sql in [
        "WITH gone AS (DELETE FROM charges WHERE run = $1 RETURNING jti, tokens, nano_usd)
         INSERT INTO charged (jti, tokens, nano_usd) SELECT jti, tokens, nano_usd FROM gone
         ON CONFLICT (jti) DO UPDATE SET
             tokens = least(charged.tokens::numeric + excluded.tokens, 1152921504606846976)::bigint,
             nano_usd = least(charged.nano_usd::numeric + excluded.nano_usd, 1152921504606846976)::bigint",
        "DELETE FROM tasks WHERE run = $1",
        "DELETE FROM outbox WHERE run = $1",
        "DELETE FROM evidence WHERE run = $1",
    ] {
        calls.push(Call::new(sql).num(run));
    }
    clear_files(run, calls);
    note_rest(run, calls);
}

/// Appends the statements that clear a part of what a deleted run has left.
pub fn clear(run: u64, rows: usize, calls: &mut Vec<Call>) {
    clear_files(run, calls);
    clear_journal(run, rows, calls);
    note_rest(run, calls);
}

/// Selects a column of the first files of a run: at least one, and no more after some bytes.
macro_rules! first_files {
    ($column:literal) => {
        concat!(
            "(SELECT ",
            $column,
            " FROM (SELECT n, hash, sum(size) OVER (ORDER BY n) - size AS before
                    FROM artifacts WHERE run = $1) f
              WHERE before < $2::bigint)"
        )
    };
}

/// Appends the statements that delete the first files of a deleted run.
fn clear_files(run: u64, calls: &mut Vec<Call>) {
    for sql in [
        concat!(
            "SELECT 1 FROM blobs WHERE hash IN ",
            first_files!("hash"),
            " ORDER BY hash FOR UPDATE"
        ),
        // A statement of its own sees what those have committed who had the locks before.
        concat!(
            "DELETE FROM blobs b WHERE b.hash IN ",
            first_files!("hash"),
            " AND NOT EXISTS (SELECT 1 FROM artifacts o WHERE o.hash = b.hash AND o.run <> $1)"
        ),
        concat!("DELETE FROM artifacts WHERE run = $1 AND n IN ", first_files!("n")),
    ] {
        calls.push(Call::new(sql).num(run).with(BYTES));
    }
}

/// Appends the statement that deletes the last `rows` entries of a deleted run, or fewer if they are large.
fn clear_journal(run: u64, rows: usize, calls: &mut Vec<Call>) {
    calls.push(
        Call::new(
            "DELETE FROM journal WHERE run = $1 AND seq >= (
                 SELECT min(seq) FROM (
                     SELECT seq, sum(length) OVER (ORDER BY seq DESC) - length AS before FROM (
                         SELECT seq, octet_length(entry) AS length FROM journal WHERE run = $1
                         ORDER BY seq DESC LIMIT $2) e) f
                 WHERE before < $3::bigint)",
        )
        .num(run)
        .with(limit(rows))
        .with(BYTES),
    );
}

/// Appends the statements that note whether a deleted run has left something.
fn note_rest(run: u64, calls: &mut Vec<Call>) {
    let key = format!("{DEBRIS}{run}");
    for sql in [
        "INSERT INTO meta (key, value)
         SELECT $2, ''::bytea WHERE EXISTS (SELECT 1 FROM journal WHERE run = $1)
             OR EXISTS (SELECT 1 FROM artifacts WHERE run = $1)
         ON CONFLICT (key) DO NOTHING",
        "DELETE FROM meta WHERE key = $2 AND NOT EXISTS (SELECT 1 FROM journal WHERE run = $1)
             AND NOT EXISTS (SELECT 1 FROM artifacts WHERE run = $1)",
    ] {
        calls.push(Call::new(sql).num(run).text(&key));
    }
}
