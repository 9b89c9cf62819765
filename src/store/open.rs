//! Opening the store that the configuration names.

use std::{path::Path, sync::Arc};

use super::{Options, Postgres, PostgresOptions, Sqlite, Store, StoreError, Upkeep};

/// An open store, as seen from outside this room.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Its maintenance interface.
    pub upkeep: Arc<dyn Upkeep>,
}

/// Takes ownership of the data directory `dir`, and opens the store: the database in it, or the
/// PostgreSQL database of `postgres`. See [`Sqlite::open`] and [`Postgres::open`].
///
/// # Errors
/// Fails like these.
pub fn open(
    dir: &Path,
    sqlite: &Options,
    postgres: Option<&PostgresOptions>,
) -> Result<Opened, StoreError> {
    match postgres {
        None if Postgres::has(dir) && !Sqlite::is_in(dir) => Err(StoreError::Unfit {
            database: dir.display().to_string(),
            reason: "its runs are in a PostgreSQL database, which only a daemon has: start \
                     `moonswarm serve` with its --store, or name another directory with --data"
                .to_owned(),
        }),
        None => {
            let store = Sqlite::open(dir, sqlite)?;
            Ok(Opened { store: Arc::clone(&store) as Arc<dyn Store>, upkeep: store })
        }
        Some(options) => {
            let store = Postgres::open(dir, options)?;
            Ok(Opened { store: Arc::clone(&store) as Arc<dyn Store>, upkeep: store })
        }
    }
}
