//! The table `runs`: the header of each run, with checksums that reveal damage.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    error::{Unreadable, in_row},
    prepared::Prepared,
    value::{bits, from_bits, int, json_or_null, limit, uint, uint_or_null, word},
};
use crate::{
    protocol::Tags,
    store::{Header, Partition, Retired, RunStatus, RunWrite},
};

/// The columns, in the order of [`read`].
macro_rules! columns {
    () => {
        "num, cursor, seq, steps, steps_done, updated_ms, created_ms, status, wake_at_ms, epoch, \
         parent_run, parent_step, ended_ms, progress, blueprint, hash, principal, status_text, \
         error, waiting_on, nonce, bytes, tags, used, count_sum, rest_sum"
    };
}
pub(super) use columns;

/// The condition of the index `runs_open_children`. The planner needs it verbatim.
macro_rules! is_open {
    () => {
        "status NOT IN ('completed', 'failed', 'canceled')"
    };
}

const INSERT: &str = concat!(
    "INSERT INTO runs (",
    columns!(),
    ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, \
     ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26) ON CONFLICT (num) DO NOTHING"
);

/// Changes what most transitions change. Names no indexed column, so that no index is updated.
const ADVANCE: &str = "
    UPDATE runs SET cursor = ?3, seq = ?4, steps = ?5, steps_done = ?6, updated_ms = ?7,
        bytes = ?8, count_sum = ?9
    WHERE num = ?1 AND cursor = ?2";

/// Changes everything that can change. Number, creation, nonce, parent, principal, blueprint and
/// tags never do.
const REPLACE: &str = "
    UPDATE runs SET cursor = ?3, seq = ?4, steps = ?5, steps_done = ?6, updated_ms = ?7,
        status = ?8, wake_at_ms = ?9, epoch = ?10, ended_ms = ?11, progress = ?12,
        hash = ?13, status_text = ?14, error = ?15, waiting_on = ?16, bytes = ?17,
        used = ?18, count_sum = ?19, rest_sum = ?20
    WHERE num = ?1 AND cursor = ?2";

/// Writes headers for the batches of a group.
pub struct HeaderWriter<'c> {
    insert: Prepared<'c>,
    advance: Prepared<'c>,
    replace: Prepared<'c>,
    is_at: Prepared<'c>,
}

impl<'c> HeaderWriter<'c> {
    /// Creates a writer over the connection of the group.
    pub fn new(conn: &'c Connection) -> Self {
        Self {
            insert: Prepared::new(conn, INSERT),
            advance: Prepared::new(conn, ADVANCE),
            replace: Prepared::new(conn, REPLACE),
            is_at: Prepared::new(conn, "SELECT 1 FROM runs WHERE num = ?1 AND cursor = ?2"),
        }
    }

    /// Returns true if a run's journal ends with the given row.
    pub fn is_at(&mut self, run: u64, cursor: u64) -> rusqlite::Result<bool> {
        self.is_at.get()?.exists([int(run), int(cursor)])
    }

    /// Writes a header if the stored one has the expected cursor. Returns true if it did.
    pub fn write(&mut self, write: &RunWrite) -> rusqlite::Result<bool> {
        let header = &write.header;
        let changed = match (write.expected, write.whole) {
            (None, _) => self.insert(header)?,
            (Some(expected), true) => self.replace(header, expected)?,
            (Some(expected), false) => self.advance(header, expected)?,
        };
        Ok(changed == 1)
    }

    fn insert(&mut self, header: &Header) -> rusqlite::Result<usize> {
        self.insert.get()?.execute(params![
            int(header.num),
            int(header.cursor),
            header.seq,
            header.steps,
            header.steps_done,
            int(header.updated_ms),
            int(header.created_ms),
            header.status.as_str(),
            header.wake_at_ms.map(int),
            header.epoch,
            header.parent.map(|(run, _)| int(run)),
            header.parent.map(|(_, step)| step),
            header.ended_ms.map(int),
            header.progress,
            header.blueprint,
            header.hash,
            header.principal,
            header.status_text,
            header.error,
            header.waiting_on,
            bits(header.nonce),
            int(header.bytes),
            tags_text(header),
            header.used,
            count_sum(header),
            rest_sum(header),
        ])
    }

    fn advance(&mut self, header: &Header, expected: u64) -> rusqlite::Result<usize> {
        self.advance.get()?.execute(params![
            int(header.num),
            int(expected),
            int(header.cursor),
            header.seq,
            header.steps,
            header.steps_done,
            int(header.updated_ms),
            int(header.bytes),
            count_sum(header),
        ])
    }

    fn replace(&mut self, header: &Header, expected: u64) -> rusqlite::Result<usize> {
        self.replace.get()?.execute(params![
            int(header.num),
            int(expected),
            int(header.cursor),
            header.seq,
            header.steps,
            header.steps_done,
            int(header.updated_ms),
            header.status.as_str(),
            header.wake_at_ms.map(int),
            header.epoch,
            header.ended_ms.map(int),
            header.progress,
            header.hash,
            header.status_text,
            header.error,
            header.waiting_on,
            int(header.bytes),
            header.used,
            count_sum(header),
            rest_sum(header),
        ])
    }
}

/// Returns the tags as they are stored: JSON, or null for none.
fn tags_text(header: &Header) -> Option<String> {
    let there = !header.tags.is_empty();
    there.then(|| serde_json::to_string(&header.tags).expect("plain data"))
}

/// Writes the checksums of the headers that meet a condition, from their current content.
pub fn seal(conn: &Connection, condition: &str) -> rusqlite::Result<()> {
    seal_with(conn, columns!(), condition)
}

/// Writes the checksums of all headers of format 8, which had fewer columns. The sum of a header
/// without these is the same.
pub fn seal_format_8(conn: &Connection) -> rusqlite::Result<()> {
    seal_with(conn, &columns!().replace("tags, used", "NULL, NULL"), "1")
}

fn seal_with(conn: &Connection, columns: &str, condition: &str) -> rusqlite::Result<()> {
    let mut all = conn.prepare(&format!("SELECT {columns} FROM runs WHERE {condition}"))?;
    let mut rows = all.query([])?;
    let mut update =
        conn.prepare("UPDATE runs SET count_sum = ?2, rest_sum = ?3 WHERE num = ?1")?;
    while let Some(row) = rows.next()? {
        // An unreadable header stays as it is. Reading it reports the damage.
        if let Ok(header) = fields(row, &String::new) {
            let sums = (count_sum(&header), rest_sum(&header));
            update.execute(params![int(header.num), sums.0, sums.1])?;
        }
    }
    Ok(())
}

/// Returns the checksum of the columns that most transitions change.
fn count_sum(header: &Header) -> i64 {
    let mut sum = Sum::of(header);
    for number in [header.cursor, header.updated_ms, header.bytes] {
        sum.number(int(number));
    }
    for number in [header.seq, header.steps, header.steps_done] {
        sum.number(number.into());
    }
    sum.end()
}

/// Returns the checksum of all other columns.
fn rest_sum(header: &Header) -> i64 {
    let mut sum = Sum::of(header);
    sum.number(int(header.created_ms));
    sum.number(bits(header.nonce));
    sum.number(header.epoch.into());
    sum.number_or_null(header.wake_at_ms.map(int));
    sum.number_or_null(header.ended_ms.map(int));
    sum.number_or_null(header.parent.map(|(run, _)| int(run)));
    sum.number_or_null(header.parent.map(|(_, step)| step.into()));
    // Normalized like SQLite does: it drops the sign of zero, and stores NaN as null.
    let progress = header.progress.filter(|it| !it.is_nan()).map(|it| it + 0.0);
    sum.number_or_null(progress.map(|it| bits(it.to_bits())));
    for text in [&header.blueprint, &header.hash, &header.principal] {
        sum.text(text);
    }
    sum.text(header.status.as_str());
    for text in [&header.status_text, &header.error, &header.waiting_on] {
        sum.number(text.is_some().into());
        sum.text(text.as_deref().unwrap_or_default());
    }
    // Headers without them have the sum of the format that did not know them.
    let tags = tags_text(header);
    for (mark, text) in [("tags", &tags), ("used", &header.used)] {
        if let Some(text) = text {
            sum.text(mark);
            sum.text(text);
        }
    }
    sum.end()
}

/// The maximum size of a text in bytes that is copied to be hashed.
const COPIED: usize = 1 << 10;

/// A checksum. Values are encoded so that they cannot be confused with each other, and hashed at once
/// but for long texts: that is cheaper than a few bytes at a time.
struct Sum {
    /// The bytes that are not hashed yet.
    bytes: Vec<u8>,
    /// The hash of those before them, if there are any.
    hasher: Option<Box<blake3::Hasher>>,
}

impl Sum {
    fn of(header: &Header) -> Self {
        let mut sum = Self { bytes: Vec::with_capacity(512), hasher: None };
        sum.number(int(header.num));
        sum
    }

    fn number(&mut self, number: i64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    fn number_or_null(&mut self, number: Option<i64>) {
        self.number(number.is_some().into());
        self.number(number.unwrap_or_default());
    }

    fn text(&mut self, text: &str) {
        self.number(int(text.len() as u64));
        if text.len() <= COPIED {
            self.bytes.extend_from_slice(text.as_bytes());
        } else {
            let hasher = self.hasher.get_or_insert_default();
            hasher.update(&self.bytes).update(text.as_bytes());
            self.bytes.clear();
        }
    }

    fn end(self) -> i64 {
        let hash = match self.hasher {
            None => blake3::hash(&self.bytes),
            Some(mut hasher) => hasher.update(&self.bytes).finalize(),
        };
        i64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
    }
}

/// Returns a run's header.
pub fn one(conn: &Connection, run: u64) -> rusqlite::Result<Option<Header>> {
    conn.prepare_cached(concat!("SELECT ", columns!(), " FROM runs WHERE num = ?1"))?
        .query_row([int(run)], read)
        .optional()
}

/// Partitions as a JSON list of their numbers.
fn list_of(parts: &[Partition]) -> String {
    let numbers: Vec<String> = parts.iter().map(|part| part.number().to_string()).collect();
    format!("[{}]", numbers.join(","))
}

/// Runs of some partitions that are due: (run, wake_at_ms), soonest first.
pub fn due(
    conn: &Connection,
    parts: &[Partition],
    until_ms: u64,
    at_most: usize,
) -> rusqlite::Result<Vec<(u64, u64)>> {
    conn.prepare_cached(
        "SELECT num, wake_at_ms FROM runs
         WHERE wake_at_ms IS NOT NULL AND wake_at_ms <= ?1
           AND (num & 255) IN (SELECT value FROM json_each(?2))
         ORDER BY wake_at_ms, num LIMIT ?3",
    )?
    .query_map(params![int(until_ms), list_of(parts), limit(at_most)], |row| {
        Ok((uint(row, 0)?, uint(row, 1)?))
    })?
    .collect()
}

/// Returns the open runs that `run` called, oldest first.
pub fn children(conn: &Connection, run: u64) -> rusqlite::Result<Vec<Header>> {
    conn.prepare_cached(concat!(
        "SELECT ",
        columns!(),
        " FROM runs WHERE parent_run = ?1 AND ",
        is_open!(),
        " ORDER BY num"
    ))?
    .query_map([int(run)], read)?
    .collect()
}

/// Returns the open runs that were created before nonces existed: (run, epoch).
pub fn without_nonce(conn: &Connection) -> rusqlite::Result<Vec<(u64, u32)>> {
    conn.prepare(concat!("SELECT num, epoch FROM runs WHERE nonce = 0 AND ", is_open!()))?
        .query_map([], |row| Ok((uint(row, 0)?, row.get(1)?)))?
        .collect()
}

/// Reserves a run number, so that it is never allocated again.
pub fn reserve(conn: &Connection, num: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE high_water SET run = max(run, ?1)")?.execute([int(num)]).map(drop)
}

/// A deleted header.
pub struct Deleted {
    /// When the run was created, in Unix milliseconds.
    pub created_ms: u64,
    /// The last row of its journal.
    pub cursor: u64,
    /// Its tags.
    pub tags: Tags,
}

/// Deletes a header.
pub fn delete(conn: &Connection, run: u64) -> rusqlite::Result<Option<Deleted>> {
    conn.prepare_cached(
        "UPDATE high_water SET run = max(run, (SELECT coalesce(max(num), 0) FROM runs)),
                               lsn = max(lsn, (SELECT coalesce(max(lsn), 0) FROM journal))",
    )?
    .execute([])?;
    conn.prepare_cached("DELETE FROM runs WHERE num = ?1 RETURNING created_ms, cursor, tags")?
        .query_row([int(run)], |row| {
            let tags: Option<String> = row.get(2)?;
            let tags = tags.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
            Ok(Deleted { created_ms: uint(row, 0)?, cursor: uint(row, 1)?, tags })
        })
        .optional()
}

/// Returns the number of ended runs.
pub fn ended(conn: &Connection) -> rusqlite::Result<u64> {
    let all = conn.query_row("SELECT count(*) FROM runs", [], |row| uint(row, 0))?;
    let open = conn.query_row(
        concat!("SELECT count(*) FROM runs WHERE status <> 'completed' AND ", is_open!()),
        [],
        |row| uint(row, 0),
    )?;
    Ok(all - open)
}

/// Returns ended runs with numbers over `after` that nothing open depends on, oldest first.
pub fn retired(conn: &Connection, after: u64, at_most: usize) -> rusqlite::Result<Vec<Retired>> {
    conn.prepare_cached(
        "SELECT r.num, r.created_ms, coalesce(r.ended_ms, r.updated_ms) FROM runs r
         WHERE r.num > ?1 AND r.status IN ('completed', 'failed', 'canceled')
           AND NOT EXISTS (SELECT 1 FROM runs p WHERE p.num = r.parent_run
                           AND p.status NOT IN ('completed', 'failed', 'canceled'))
           AND NOT EXISTS (SELECT 1 FROM runs c WHERE c.parent_run = r.num
                           AND c.status NOT IN ('completed', 'failed', 'canceled'))
           AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.run = r.num)
         ORDER BY r.num LIMIT ?2",
    )?
    .query_map(params![int(after), limit(at_most)], |row| {
        Ok(Retired { num: uint(row, 0)?, created_ms: uint(row, 1)?, ended_ms: uint(row, 2)? })
    })?
    .collect()
}

/// Returns the largest numbers ever allocated: (run, lsn).
pub fn high_water(conn: &Connection) -> rusqlite::Result<(u64, u64)> {
    conn.prepare_cached(
        "SELECT max(run, (SELECT coalesce(max(num), 0) FROM runs)),
                max(lsn, (SELECT coalesce(max(lsn), 0) FROM journal)) FROM high_water",
    )?
    .query_row([], |row| Ok((uint(row, 0)?, uint(row, 1)?)))
}

/// Reads a header and compares it with its checksums.
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Header> {
    let what = || format!("the header of run {}", row.get(0).unwrap_or(0));
    let whole = || {
        let header = fields(row, &what)?;
        if (row.get(24)?, row.get(25)?) == (count_sum(&header), rest_sum(&header)) {
            return Ok(header);
        }
        let reason = "it is not what was written (a sum differs)".to_owned();
        Err(Unreadable { what: what(), reason }.into())
    };
    whole().map_err(in_row(what))
}

fn fields(row: &Row<'_>, what: &impl Fn() -> String) -> rusqlite::Result<Header> {
    Ok(Header {
        num: uint(row, 0)?,
        cursor: uint(row, 1)?,
        seq: row.get(2)?,
        steps: row.get(3)?,
        steps_done: row.get(4)?,
        updated_ms: uint(row, 5)?,
        created_ms: uint(row, 6)?,
        status: word(row, 7, RunStatus::parse)?,
        wake_at_ms: uint_or_null(row, 8)?,
        epoch: row.get(9)?,
        parent: uint_or_null(row, 10)?.zip(row.get(11)?),
        ended_ms: uint_or_null(row, 12)?,
        progress: row.get(13)?,
        blueprint: row.get(14)?,
        hash: row.get(15)?,
        principal: row.get(16)?,
        status_text: row.get(17)?,
        error: json_or_null(row, 18, what)?,
        waiting_on: json_or_null(row, 19, what)?,
        nonce: from_bits(row, 20)?,
        bytes: uint(row, 21)?,
        tags: json_or_null(row, 22, what)?
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default(),
        used: json_or_null(row, 23, what)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(sql: &str) -> String {
        let mut conn = Connection::open_in_memory().unwrap();
        crate::store::sqlite::format::migrate(&mut conn, 0).unwrap();
        let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let lines = statement.query_map([], |row| row.get::<_, String>(3)).unwrap();
        lines.map(Result::unwrap).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn the_sums_of_a_header_never_change() {
        let fresh = Header::fresh(7, 1_000);
        let header = Header { nonce: 9, progress: Some(0.5), used: Some("{}".to_owned()), ..fresh };
        let sums = (count_sum(&header), rest_sum(&header));
        assert_eq!(sums, (4681044208537641718, -2443331252579160916), "golden");
    }

    #[test]
    fn long_texts_are_summed_as_if_copied() {
        let texts = ["a".repeat(COPIED + 1), "b".repeat(COPIED), "c".repeat(3 * COPIED)];
        let mut sum = Sum::of(&Header::fresh(7, 1_000));
        let mut whole = 7_u64.to_le_bytes().to_vec();
        for text in &texts {
            sum.text(text);
            whole.extend_from_slice(&(text.len() as u64).to_le_bytes());
            whole.extend_from_slice(text.as_bytes());
        }
        sum.number(1);
        whole.extend_from_slice(&1_u64.to_le_bytes());
        let hash = blake3::hash(&whole);
        assert_eq!(sum.end(), i64::from_le_bytes(*hash.as_bytes().first_chunk().unwrap()));
    }

    #[test]
    fn due_runs_and_open_children_are_found_by_their_indexes_without_sorting() {
        let due = plan(
            "SELECT num, wake_at_ms FROM runs WHERE wake_at_ms IS NOT NULL AND wake_at_ms <= 9 \
             AND num % 4 = 1 ORDER BY wake_at_ms, num LIMIT 5",
        );
        assert!(due.contains("COVERING INDEX runs_wake"), "{due}");
        assert!(!due.contains("TEMP B-TREE"), "{due}");
        let old = plan(concat!("SELECT num, epoch FROM runs WHERE nonce = 0 AND ", is_open!()));
        assert!(old.contains("INDEX runs_without_nonce"), "{old}");
        let children = plan(concat!(
            "SELECT ",
            columns!(),
            " FROM runs WHERE parent_run = 1 AND ",
            is_open!(),
            " ORDER BY num"
        ));
        assert!(children.contains("INDEX runs_open_children"), "{children}");
        assert!(!children.contains("TEMP B-TREE"), "{children}");
    }
}
