//! The place of a process in a cluster: its data directory, its way to the database, and the secrets that
//! all nodes share.

use std::{fs, io::Write as _, path::Path, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;
use zeroize::Zeroizing;

use super::{
    address::DatabaseAddress, failed::Failed, format, progress::ProgressFile, server,
    session::Session, value::get, wire::Wire,
};
use crate::{
    fault,
    store::{
        ClusterKey, ClusterView, Durability, LeaseTimes, StoreError,
        lock::{Lock, file, make_private_dir, open_private},
    },
};

/// The file that names a data directory to the database.
pub const HOME: &str = "node";

/// The settings of a seat.
#[derive(Debug, Clone)]
pub struct SeatOptions {
    /// The database.
    pub address: DatabaseAddress,
    /// The maximum number of concurrent reads.
    pub readers: usize,
    /// The number of connections that commit transitions of runs, while this node drives.
    pub writers: usize,
    /// The key that all nodes have.
    pub key: ClusterKey,
    /// The times of the lease.
    pub times: LeaseTimes,
    /// What a failover may lose.
    pub durability: Durability,
}

/// The place of this process in a cluster. Nodes take it one after another: each time this process becomes
/// a standby, it is a new node.
pub struct Seat {
    pub(super) options: SeatOptions,
    pub(super) wire: Wire,
    pub(super) home: String,
    pub(super) view: watch::Sender<ClusterView>,
    pub(super) progress: Arc<ProgressFile>,
    /// The lock of the data directory, held until the process leaves the cluster.
    lock: Mutex<Option<Lock>>,
}

impl Seat {
    /// Takes ownership of the data directory `dir`, and looks whether the database can be used with the key.
    /// Makes the tables in an empty database.
    ///
    /// # Errors
    /// Returns [`StoreError::Owned`] for the directory, [`StoreError::Unfit`] for a database of another
    /// cluster or one that cannot be used, and [`StoreError::Away`] for one that cannot be reached.
    pub fn take(dir: &Path, options: SeatOptions) -> Result<Arc<Self>, StoreError> {
        let (lock, home) = own(dir)?;
        let context = format!("open {}", options.address);
        let wire = Wire::new(options.address.clone())?;
        let progress = Arc::new(ProgressFile::open(dir)?);
        let prepared = wire.starter().and_then(|session| {
            server::check(&session, &wire, options.durability)?;
            format::prepare(&session, wire.address(), &home)?;
            progress.check(&session, &wire, options.durability)?;
            Ok(session)
        });
        let session = prepared.map_err(|error| error.explained(&context))?;
        let view = watch::channel(ClusterView::default()).0;
        let lock = Mutex::new(Some(lock.opened()));
        let seat = Self { options, wire, home, view, progress, lock };
        seat.open_all(&session)?;
        Ok(Arc::new(seat))
    }

    /// Returns what the nodes of this process see, one after another.
    pub fn view(&self) -> watch::Receiver<ClusterView> {
        self.view.subscribe()
    }

    /// Returns the times of the lease.
    pub fn times(&self) -> LeaseTimes {
        self.options.times
    }

    /// Returns a secret that the nodes share, if there is one of this name.
    ///
    /// # Errors
    /// Returns [`StoreError::Unfit`] if it was sealed with another key. Fails when the database cannot be
    /// reached.
    pub fn secret(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
        let read = || -> Result<Option<Vec<u8>>, Failed> {
            let session = self.wire.reader()?;
            let row = session.one("SELECT sealed FROM keys WHERE name = $1", &[&name])?;
            row.map(|row| get(&row, 0)).transpose()
        };
        let sealed = read().map_err(|error| error.into_error("read the keys of the cluster"))?;
        sealed.map(|sealed| self.unseal(name, &sealed)).transpose()
    }

    /// Tries the key on every secret.
    fn open_all(&self, session: &Session) -> Result<(), StoreError> {
        let rows = session.query("SELECT name, sealed FROM keys ORDER BY name", &[]);
        let failed = |error: Failed| error.into_error("read the keys of the cluster");
        for row in rows.map_err(failed)? {
            let (name, sealed): (String, Vec<u8>) =
                (get(&row, 0).map_err(failed)?, get(&row, 1).map_err(failed)?);
            self.unseal(&name, &sealed)?;
        }
        Ok(())
    }

    fn unseal(&self, name: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, StoreError> {
        self.options.key.open(name, sealed).ok_or_else(|| StoreError::Unfit {
            database: self.wire.address().to_string(),
            reason: "it belongs to a cluster with another key; give this node the key of the others, or \
                     name another database"
                .to_owned(),
        })
    }

    /// Gives the data directory back.
    pub fn leave(&self) {
        drop(self.lock.lock().take());
    }
}

/// Locks the data directory `dir`, and returns the name by which the database knows it. Makes one that does
/// not exist.
///
/// # Errors
/// Returns [`StoreError::Owned`] if another process has it. Fails on errors of the file system.
pub fn own(dir: &Path) -> Result<(Lock, String), StoreError> {
    make_private_dir(dir)?;
    let lock = Lock::take(dir)?;
    let home = home(dir)?;
    fault::point("store.locked");
    Ok((lock, home))
}

/// Returns the name by which the database knows a data directory: random, and made once.
pub fn home(dir: &Path) -> Result<String, StoreError> {
    let path = dir.join(HOME);
    if let Ok(known) = fs::read_to_string(&path)
        && known.len() == 36
    {
        return Ok(known);
    }
    let fresh = uuid::Uuid::new_v4().to_string();
    let mut private = open_private(&path)?;
    let written = private.set_len(0).and_then(|()| private.write_all(fresh.as_bytes()));
    written.and_then(|()| private.sync_all()).map_err(file("write", &path))?;
    Ok(fresh)
}
