//! Loads everything of a run. Call it within a snapshot.

use super::{
    artifacts, charges,
    failed::Failed,
    header,
    journal::{self, Reach},
    session::Session,
    state, tasks,
};
use crate::{
    protocol::RunId,
    store::{Loaded, LoadedRows, StateRow, StoreError, TaskFilter, Want},
};

/// Returns everything that is needed to load a run.
pub fn load(db: &Session, run: u64, want: &Want<'_>) -> Result<Option<Loaded>, Failed> {
    let Some(header) = header::one(db, run)? else { return Ok(None) };
    if !(want.rows)(&header) {
        return Ok(Some(Loaded { header, rows: None }));
    }
    let most = want.most;
    // The header counts all histories and the files; most runs are far below with all of that.
    if header.bytes > most {
        let bytes = journal::history_bytes(db, run)?;
        if bytes > most {
            return Err(StoreError::TooLarge { run, bytes, most }.into());
        }
    }
    let entries = journal::entries(db, run, 0, Reach::Current)?;
    let filter = TaskFilter { run: Some(run), limit: usize::MAX, ..TaskFilter::default() };
    let scope = format!("run:{}", RunId::new(run, header.created_ms));
    let state = match state_of(db, run, &scope, most) {
        // Only the state cannot be read: the run can continue until it needs it.
        Err(Failed::Store(error)) => LoadedRows::state(Err(error))?,
        read => Ok(read?),
    };
    let rows = LoadedRows {
        entries,
        tasks: tasks::list(db, &filter)?,
        files: artifacts::list(db, run)?,
        charge: charges::one(db, run)?,
        state,
    };
    Ok(Some(Loaded { header, rows: Some(rows) }))
}

fn state_of(db: &Session, run: u64, scope: &str, most: u64) -> Result<Vec<StateRow>, Failed> {
    let bytes = state::bytes(db, scope)?;
    match bytes > most {
        true => Err(StoreError::TooLarge { run, bytes, most }.into()),
        false => state::list(db, scope),
    }
}
