//! A rolling upgrade: from when on the nodes write what releases of older formats cannot read.

use super::{
    failed::Failed,
    format::{known, release},
    hosts,
    session::Session,
    value::get,
};

/// The time for which no older node may have been alive, before the nodes raise the format by themselves.
const QUIET: &str = "10 minutes";

/// Raises the format up to which is written to that of this program, for the host `node` that has the runs: if
/// nobody holds it, and no older node was alive for ten minutes. Returns true if it has come to that. Does
/// nothing while others have the lock.
///
/// # Errors
/// Returns the error of the database.
pub fn raise(session: &Session, node: i64) -> Result<bool, Failed> {
    let is_due = "SELECT 1 FROM cluster WHERE feature < $1";
    if !session.exists(is_due, &[&known()])? {
        return Ok(true);
    }
    session.batch("BEGIN")?;
    let raised = || -> Result<bool, Failed> {
        let lock = "SELECT 1 FROM cluster WHERE NOT held FOR UPDATE SKIP LOCKED";
        let allowed = session.exists(lock, &[])?
            && session.exists("SELECT 1 FROM nodes WHERE node = $1 AND state = 'up'", &[&node])?;
        let sql = format!(
            "SELECT 1 FROM nodes WHERE format < $1
             AND lease_until > clock_timestamp() - interval '{QUIET}'"
        );
        if !allowed || session.exists(&sql, &[&known()])? {
            return Ok(false);
        }
        write(session, known(), &release())?;
        tracing::info!(
            format = known(),
            "no node of an older release was alive for {QUIET}: none is admitted any more"
        );
        Ok(true)
    };
    let raised = raised()?;
    session.batch("COMMIT")?;
    Ok(raised)
}

/// Writes a format, within a transaction that has the lock, and ends what is left of older nodes.
pub fn write(session: &Session, to: i32, release: &str) -> Result<(), Failed> {
    let old = "SELECT node FROM nodes WHERE format < $1 AND state <> 'gone'";
    let old = session.query(old, &[&to])?;
    let old = old.iter().map(|row| get(row, 0)).collect::<Result<Vec<i64>, _>>()?;
    if !old.is_empty() {
        hosts::fence(session, &old)?;
    }
    session.execute(
        "UPDATE cluster SET feature = $1, oldest = greatest(oldest, $1), release = $2, held = false",
        &[&to, &release],
    )?;
    Ok(())
}
