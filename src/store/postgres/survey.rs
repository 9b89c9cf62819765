//! The doctor's look at a database: its settings, and what could slow it down or fill it.

use std::fmt::Display;

use super::{
    failed::Failed,
    format,
    open::PostgresOptions,
    server::{self, Server},
    session::Session,
    standbys::Standbys,
    value::{get, uint},
    wire::Wire,
};
use crate::{
    clock::Clock,
    store::{Durability, StoreError},
};

/// The connections of a daemon beside those for reads and for transitions of runs: other commits, the
/// lease, a start, a long read.
const OTHERS: u64 = 4;
/// The difference of the clocks from which on it is mentioned, in milliseconds.
pub const SKEW_MS: i64 = 500;
/// The age of a transaction from which on it keeps too much, in seconds.
const OLD_SECONDS: u64 = 3_600;
/// The bytes of log that a slot may keep.
const KEPT_BYTES: u64 = 1 << 30;
/// The number of dead rows that are no matter.
const FEW_DEAD: u64 = 50_000;

/// A finding about one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseFinding {
    /// The severity of the finding.
    pub level: FindingLevel,
    /// The text of the finding, for people.
    pub says: String,
    /// The remedy.
    pub next: Option<String>,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingLevel {
    /// Nothing to do.
    Fine,
    /// The database works, with a risk.
    Risk,
    /// The database does not work.
    Fails,
}

fn fine(says: impl Display) -> DatabaseFinding {
    DatabaseFinding { level: FindingLevel::Fine, says: says.to_string(), next: None }
}

fn risk(says: impl Display, next: impl Display) -> DatabaseFinding {
    let (says, next) = (says.to_string(), Some(next.to_string()));
    DatabaseFinding { level: FindingLevel::Risk, says, next }
}

fn fails(says: impl Display, next: impl Display) -> DatabaseFinding {
    DatabaseFinding { level: FindingLevel::Fails, ..risk(says, next) }
}

/// Looks at a database, which may be in use. Changes nothing.
///
/// # Errors
/// Returns [`StoreError::Away`] for one that cannot be reached, and refusals of the login.
pub fn survey(options: &PostgresOptions) -> Result<Vec<DatabaseFinding>, StoreError> {
    let context = format!("open {}", options.address);
    let look = || {
        let wire = Wire::new(options.address.clone())?;
        let session = wire.long()?;
        examine(&wire, &session, options)
    };
    look().map_err(|error: Failed| error.explained(&context))
}

/// Looks at a database over an open connection.
///
/// # Errors
/// Returns the error of the database.
pub fn examine(
    wire: &Wire,
    session: &Session,
    options: &PostgresOptions,
) -> Result<Vec<DatabaseFinding>, Failed> {
    let server = Server::of(session)?;
    let mut found = vec![of_server(session, &server)?];
    if server.refusal().is_some() {
        return Ok(found);
    }
    found.push(of_format(session, options)?);
    found.push(of_settings(session, &server)?);
    found.push(of_standbys(session, options.durability)?);
    found.push(of_pooler(session, wire)?);
    found.push(of_clock(session)?);
    found.push(of_connections(session, options)?);
    let retained = Retained::of(session)?;
    found.push(of_transactions(&retained));
    found.push(of_slots(&retained));
    found.push(of_vacuum(session)?);
    Ok(found)
}

fn row(session: &Session, sql: &str) -> Result<tokio_postgres::Row, Failed> {
    session.one(sql, &[])?.ok_or(Failed::Silent)
}

fn of_server(session: &Session, server: &Server) -> Result<DatabaseFinding, Failed> {
    if let Some(reason) = server.refusal() {
        return Ok(fails(reason, "a daemon is refused at its start"));
    }
    let ssl = "SELECT coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)";
    let way = if get(&row(session, ssl)?, 0)? { "over TLS" } else { "in plain text" };
    let name = server.name.split(" on ").next().unwrap_or_default();
    Ok(fine(format!("{name}, reached {way}")))
}

fn of_format(session: &Session, options: &PostgresOptions) -> Result<DatabaseFinding, Failed> {
    let found = match format::found(session, &options.address) {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(fine("it is empty; the first start makes its tables")),
        Err(Failed::Store(StoreError::Unfit { reason, .. })) => {
            return Ok(fails(reason, "name another database with --store"));
        }
        Err(error) => return Err(error),
    };
    let (format, known) = (found.format, format::known());
    if format == format::MOVED {
        return Ok(fails(
            "its runs were copied into a data directory",
            "start the daemon without --store, or empty the database",
        ));
    }
    if let Some(StoreError::Newer { remedy, .. }) = found.refusal(&options.address) {
        let says = format!("its format is {}; this program knows {known}", found.oldest);
        return Ok(fails(says, remedy));
    }
    if format < known && !format::can_migrate(format) {
        return Ok(fails(
            format!("its format is {format}; this program knows {known}"),
            "use the release that wrote it",
        ));
    }
    let sql = "SELECT coalesce(string_agg(name, ', '), 'none') FROM nodes
               WHERE state <> 'gone' AND lease_until > clock_timestamp()";
    let who: String = get(&row(session, sql)?, 0)?;
    let then = match format < known {
        true => format!("; the next start of this release changes it to {known}"),
        false => String::new(),
    };
    Ok(fine(format!("format {format}{then}; hosts that have it: {who}")))
}

fn of_settings(session: &Session, server: &Server) -> Result<DatabaseFinding, Failed> {
    let all = row(
        session,
        "SELECT string_agg(name || ' ' || setting, ', ' ORDER BY name) FROM pg_settings
         WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'data_checksums',
                        'default_transaction_isolation')",
    )?;
    let all: String = get(&all, 0)?;
    if !server.is_durable {
        return Ok(risk(
            all,
            "set fsync and full_page_writes on: a crash of the machine loses data",
        ));
    }
    if server.encoding != "UTF8" {
        let says = format!("{all}, server_encoding {}", server.encoding);
        return Ok(risk(says, "use a database with the encoding UTF8"));
    }
    Ok(fine(all))
}

fn of_standbys(session: &Session, asked: Durability) -> Result<DatabaseFinding, Failed> {
    let found = Standbys::of(session)?;
    let Standbys { synchronous, all, waits } = found;
    Ok(match (found.refusal(asked), synchronous, waits) {
        (Some(reason), ..) => fails(reason, "a daemon is refused at its start"),
        (None, 0, true) => risk(
            "synchronous_standby_names is set, and no such standby is connected: commits wait for it",
            "start the standby, or remove it from synchronous_standby_names",
        ),
        (None, ..) if asked == Durability::Asynchronous => fine(format!(
            "{all} standbys, {synchronous} synchronous; durability is asynchronous, as configured: a \
             failover may lose the last commits"
        )),
        (None, _, false) => fine("no standbys"),
        (None, some, true) => fine(format!("{all} standbys, {some} synchronous")),
    })
}

fn of_pooler(session: &Session, wire: &Wire) -> Result<DatabaseFinding, Failed> {
    Ok(match server::is_shared(session, wire)? {
        false => fine("connections are of this program alone: no pooler, or in session mode"),
        true => fails(
            "a pooler in transaction mode is in front of it",
            "name the server itself, or switch the pooler to session mode",
        ),
    })
}

fn of_clock(session: &Session) -> Result<DatabaseFinding, Failed> {
    let ms = server::skew(session, &Clock::system())?;
    Ok(match ms.abs() {
        0..SKEW_MS => fine("its clock and this machine's agree"),
        _ => risk(
            format!("its clock is {ms} ms ahead of this machine's; over 5000 a start is refused"),
            "synchronize both clocks",
        ),
    })
}

fn of_connections(session: &Session, options: &PostgresOptions) -> Result<DatabaseFinding, Failed> {
    let Connections { used, most, ours } = Connections::of(session)?;
    let needs = (options.readers + options.writers) as u64 + OTHERS;
    let says =
        format!("{used} of {most} connections in use, {ours} by moonswarm; a daemon needs {needs}");
    let free = most.saturating_sub(used) + ours;
    Ok(match free < needs {
        false => fine(says),
        true => risk(says, "raise max_connections, or end what does not need its connection"),
    })
}

/// The connections of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// The number of those in use.
    pub used: u64,
    /// The maximum number, without those that are reserved.
    pub most: u64,
    /// The number of those of this program, over all databases of the server.
    pub ours: u64,
}

impl Connections {
    /// Asks the server.
    ///
    /// # Errors
    /// Returns the error of the database.
    pub fn of(session: &Session) -> Result<Self, Failed> {
        let found = row(
            session,
            "SELECT current_setting('max_connections')::bigint
                        - current_setting('superuser_reserved_connections')::bigint,
                    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
                    (SELECT count(*) FROM pg_stat_activity
                     WHERE application_name LIKE 'moonswarm/%')",
        )?;
        Ok(Self { most: uint(&found, 0)?, used: uint(&found, 1)?, ours: uint(&found, 2)? })
    }
}

/// What keeps dead rows and old log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retained {
    /// The age of the oldest transaction, in seconds.
    pub transaction_s: u64,
    /// The age of the oldest snapshot, in transactions.
    pub snapshot: u64,
    /// The number of prepared transactions.
    pub prepared: u64,
    /// The number of replication slots.
    pub slots: u64,
    /// The number of those that nobody uses.
    pub idle_slots: u64,
    /// The bytes of log that these keep.
    pub kept_bytes: u64,
}

impl Retained {
    /// Asks the server.
    ///
    /// # Errors
    /// Returns the error of the database.
    pub fn of(session: &Session) -> Result<Self, Failed> {
        let found = row(
            session,
            "SELECT coalesce(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)::bigint,
                    coalesce(max(age(backend_xmin)), 0)::bigint,
                    (SELECT count(*) FROM pg_prepared_xacts)
             FROM pg_stat_activity
             WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
        )?;
        let slots = row(
            session,
            "SELECT count(*), count(*) FILTER (WHERE NOT active),
                    coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn))
                        FILTER (WHERE NOT active), 0)::bigint
             FROM pg_replication_slots",
        )?;
        Ok(Self {
            transaction_s: uint(&found, 0)?,
            snapshot: uint(&found, 1)?,
            prepared: uint(&found, 2)?,
            slots: uint(&slots, 0)?,
            idle_slots: uint(&slots, 1)?,
            kept_bytes: uint(&slots, 2)?,
        })
    }
}

fn of_transactions(retained: &Retained) -> DatabaseFinding {
    let Retained { transaction_s: seconds, snapshot: age, prepared, .. } = *retained;
    let says = format!(
        "the oldest transaction has run for {seconds} s, the oldest snapshot is {age} transactions \
         old; {prepared} prepared"
    );
    match seconds > OLD_SECONDS || prepared > 0 {
        false => fine(says),
        true => risk(
            says,
            "end old transactions (pg_stat_activity, pg_prepared_xacts): dead rows stay as long",
        ),
    }
}

fn of_slots(retained: &Retained) -> DatabaseFinding {
    let Retained { slots: all, idle_slots: idle, kept_bytes: kept, .. } = *retained;
    let says =
        format!("{all} replication slots, {idle} idle, which keep {} MiB of log", kept >> 20);
    match kept > KEPT_BYTES {
        false => fine(says),
        true => risk(says, "drop a slot that nobody uses: pg_drop_replication_slot(NAME)"),
    }
}

fn of_vacuum(session: &Session) -> Result<DatabaseFinding, Failed> {
    let found = row(
        session,
        "SELECT current_setting('autovacuum') = 'on', coalesce(sum(n_dead_tup), 0)::bigint,
                coalesce(sum(n_live_tup), 0)::bigint,
                coalesce(max(age(c.relfrozenxid)), 0)::bigint
         FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
         WHERE s.schemaname = 'moonswarm'",
    )?;
    let (dead, live, age): (u64, u64, u64) = (uint(&found, 1)?, uint(&found, 2)?, uint(&found, 3)?);
    let says = format!("{dead} dead rows of {}, the oldest {age} transactions old", dead + live);
    if !get::<bool>(&found, 0)? {
        return Ok(risk(says, "switch autovacuum on: nothing else removes dead rows"));
    }
    Ok(match dead > FEW_DEAD && dead > live {
        false => fine(says),
        true => {
            risk(says, "let autovacuum do more (autovacuum_vacuum_cost_limit), or VACUUM by hand")
        }
    })
}
