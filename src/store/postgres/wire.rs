//! New connections, and the runtime that moves their bytes.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::{Builder, Handle, Runtime},
};
use tokio_postgres::{
    AsyncMessage, Config, Connection, NoTls,
    config::SslMode,
    error::{DbError, SqlState},
};

use super::{
    address::DatabaseAddress,
    failed::Failed,
    session::{Session, wait},
    tls::Tls,
};
use crate::{store::StoreError, tasks::Tasks};

/// The maximum time of a connection attempt, over all hosts of the address.
const CONNECT: Duration = Duration::from_secs(12);
/// The maximum time of a writer's call.
const WRITE: Duration = Duration::from_secs(15);
/// The maximum time of a reader's call.
const READ: Duration = Duration::from_secs(35);
/// The maximum time of a call that reads everything.
const LONG: Duration = Duration::from_secs(3_600);
/// The maximum time of a renewal.
const RENEW: Duration = Duration::from_secs(2);

/// The settings with which every session begins. Those of the server may be for other programs: connections
/// wait for work, and a copy is one transaction. Older servers do not have all of them.
const SETTINGS: &str =
    "SET search_path = moonswarm; SET default_transaction_isolation = 'read committed';
    SET client_encoding = 'UTF8'; SET lock_timeout = '3s'; SET client_min_messages = 'warning';
    SET synchronous_commit = 'on'; SET idle_in_transaction_session_timeout = '20s';
    SELECT set_config(name, '0', false) FROM pg_settings
        WHERE name IN ('idle_session_timeout', 'transaction_timeout');";

/// Opens connections.
#[derive(Clone)]
pub struct Wire(Arc<Inner>);

struct Inner {
    address: DatabaseAddress,
    /// The place of the host that was connected last.
    known: AtomicUsize,
    /// Absent if the address is spoken to in plain text.
    tls: Option<Tls>,
    /// Dropped in the background: the last owner may be on a thread of a runtime.
    runtime: Option<Runtime>,
    tasks: Tasks,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Wire {
    /// Creates the runtime. Does not connect yet.
    ///
    /// # Errors
    /// Fails when the system cannot create threads, or certificates cannot be read.
    pub fn new(address: DatabaseAddress) -> Result<Self, StoreError> {
        let unfit = |reason| StoreError::Unfit { database: address.to_string(), reason };
        let tls = match address.config.get_ssl_mode() {
            SslMode::Disable => None,
            _ => Some(Tls::new(address.roots.as_deref()).map_err(unfit)?),
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("store-postgres")
            .enable_all()
            .build()
            .map_err(|error| StoreError::Database {
                context: "start the threads of the database's connections".to_owned(),
                reason: error.to_string(),
            })?;
        let tasks = Tasks::new(runtime.handle().clone());
        let (known, runtime) = (AtomicUsize::new(0), Some(runtime));
        Ok(Self(Arc::new(Inner { address, known, tls, runtime, tasks })))
    }

    /// Returns the address.
    pub fn address(&self) -> &DatabaseAddress {
        &self.0.address
    }

    /// Opens a connection of a writer. `name` is what the server shows as its application.
    pub fn writer(&self, name: &str) -> Result<Session, Failed> {
        let session = self.connect(name, WRITE)?;
        session.batch(
            "SET statement_timeout = '10s'; SET idle_in_transaction_session_timeout = '2s';",
        )?;
        // Where the server's system has it: a query whose client is gone ends.
        let _unsupported = session.batch("SET client_connection_check_interval = '2s'");
        Ok(session)
    }

    /// Opens a connection of a writer for the groups of a lane, which may have large values: as
    /// long as one arrives, the server counts the transaction as idle. Whoever takes over ends what
    /// it has left open.
    pub fn lane(&self, name: &str) -> Result<Session, Failed> {
        let session = self.writer(name)?;
        session.batch("SET idle_in_transaction_session_timeout = '10s'")?;
        Ok(session)
    }

    /// Opens a connection for the renewal of the lease.
    pub fn renewer(&self, name: &str) -> Result<Session, Failed> {
        let session = self.connect(name, RENEW)?;
        session.batch("SET statement_timeout = '2s'; SET lock_timeout = '1s';")?;
        Ok(session)
    }

    /// Opens a connection for reads.
    pub fn reader(&self) -> Result<Session, Failed> {
        let session = self.connect("moonswarm/reader", READ)?;
        session.batch(
            "SET statement_timeout = '30s'; SET default_transaction_read_only = on; SET jit = off;",
        )?;
        Ok(session)
    }

    /// Opens a connection for something that takes long: a check, a search of everything.
    pub fn long(&self) -> Result<Session, Failed> {
        let session = self.connect("moonswarm/long", LONG)?;
        session.batch(
            "SET statement_timeout = '1h'; SET idle_in_transaction_session_timeout = '10min';",
        )?;
        Ok(session)
    }

    /// Opens a connection of a writer for a transaction that may take long.
    pub fn long_writer(&self, name: &str) -> Result<Session, Failed> {
        let session = self.connect(name, LONG)?;
        session.batch("SET statement_timeout = '1h';")?;
        Ok(session)
    }

    /// Opens a connection for the start, which may change large tables.
    pub fn starter(&self) -> Result<Session, Failed> {
        self.long_writer("moonswarm/start")
    }

    /// Opens a connection for a copy: its transaction stays open while the other side is read, however long
    /// that takes.
    pub fn copier(&self) -> Result<Session, Failed> {
        let session = self.long()?;
        session.batch("SET idle_in_transaction_session_timeout = 0")?;
        Ok(session)
    }

    /// Connects to the host of the address that was connected last, or else to the next that takes writes.
    fn connect(&self, name: &str, patience: Duration) -> Result<Session, Failed> {
        let (hosts, known) = (&self.0.address.hosts, self.0.known.load(Ordering::Relaxed));
        // Each has a time of its own: one that is off, or hangs, must not take that of the others.
        let share = u32::try_from(hosts.len()).unwrap_or(u32::MAX).max(1);
        let in_time = (CONNECT / share).min(patience);
        let mut failure = None;
        for place in (0..hosts.len()).map(|place| (known + place) % hosts.len()) {
            match self.connect_to(&hosts[place], name, in_time, patience) {
                Ok(session) => {
                    self.0.known.store(place, Ordering::Relaxed);
                    return Ok(session);
                }
                // That one of them is a standby is not why the primary cannot be reached.
                Err(error) if failure.is_some() && error.is_read_only() => {}
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or(Failed::Silent))
    }

    fn connect_to(
        &self,
        host: &Config,
        name: &str,
        in_time: Duration,
        patience: Duration,
    ) -> Result<Session, Failed> {
        let mut config = host.clone();
        config.application_name(name);
        let handle = self.handle();
        let at_risk = Arc::new(AtomicBool::new(false));
        let of_connection = Arc::clone(&at_risk);
        let client = match self.0.tls.clone() {
            None => {
                let (client, connection) = wait(&handle, in_time, config.connect(NoTls))??;
                self.0.tasks.spawn(attend(connection, of_connection));
                client
            }
            Some(tls) => {
                let (client, connection) = wait(&handle, in_time, config.connect(tls))??;
                self.0.tasks.spawn(attend(connection, of_connection));
                client
            }
        };
        let session = Session::new(client, handle, patience, at_risk);
        session.batch(SETTINGS)?;
        Ok(session)
    }

    fn handle(&self) -> Handle {
        let runtime = self.0.runtime.as_ref().expect("it is there until it is dropped");
        runtime.handle().clone()
    }
}

/// Moves the bytes of a connection until it ends, which its client notices. Sets `at_risk` when a commit no
/// longer waits for a standby.
async fn attend<S, T>(mut connection: Connection<S, T>, at_risk: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        let AsyncMessage::Notice(notice) = message else { continue };
        // A commit that failed has ended its transaction, before that is rolled back.
        if *notice.code() == SqlState::NO_ACTIVE_SQL_TRANSACTION {
            continue;
        }
        if is_risk(&notice) {
            at_risk.store(true, Ordering::Release);
        }
        tracing::warn!(code = notice.code().code(), notice = notice.message(), "the database says");
    }
}

/// Returns true for the notice that a commit is on no synchronous standby yet, though it waited for one. It is
/// known by the routine of the server, because its text is in the server's language.
fn is_risk(notice: &DbError) -> bool {
    notice.routine() == Some("SyncRepWaitForLSN")
}
