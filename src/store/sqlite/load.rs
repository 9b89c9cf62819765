//! Loads everything of a run in one transaction.

use rusqlite::Connection;

use super::{
    artifacts, charges,
    error::database,
    header,
    journal::{self, Reach},
    state, tasks,
};
use crate::{
    protocol::RunId,
    store::{Loaded, LoadedRows, StateRow, StoreError, TaskFilter, Want},
};

pub fn load(conn: &Connection, run: u64, want: &Want<'_>) -> Result<Option<Loaded>, StoreError> {
    let failed = || database("read a run");
    let moment = conn.unchecked_transaction().map_err(failed())?;
    let Some(header) = header::one(&moment, run).map_err(failed())? else { return Ok(None) };
    if !(want.rows)(&header) {
        return Ok(Some(Loaded { header, rows: None }));
    }
    let most = want.most;
    // The header counts all histories and the files; most runs are far below with all of that.
    if header.bytes > most {
        let bytes = journal::history_bytes(&moment, run).map_err(failed())?;
        if bytes > most {
            return Err(StoreError::TooLarge { run, bytes, most });
        }
    }
    let entries = journal::entries_at(&moment, run, 0, Reach::Current)?;
    let filter = TaskFilter { run: Some(run), limit: usize::MAX, ..TaskFilter::default() };
    let scope = format!("run:{}", RunId::new(run, header.created_ms));
    let rows = LoadedRows {
        entries,
        tasks: tasks::list(&moment, &filter).map_err(failed())?,
        files: artifacts::list(&moment, run).map_err(failed())?,
        charge: charges::one(&moment, run).map_err(failed())?,
        state: LoadedRows::state(state_of(&moment, run, &scope, most))?,
    };
    Ok(Some(Loaded { header, rows: Some(rows) }))
}

fn state_of(
    conn: &Connection,
    run: u64,
    scope: &str,
    most: u64,
) -> Result<Vec<StateRow>, StoreError> {
    let failed = || database("read state");
    let bytes = state::bytes(conn, scope).map_err(failed())?;
    if bytes > most {
        return Err(StoreError::TooLarge { run, bytes, most });
    }
    state::list(conn, scope).map_err(failed())
}
