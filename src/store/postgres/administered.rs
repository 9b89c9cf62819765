//! Acts of an administrator through the database, also when no node answers: nodes are ended, an upgrade
//! ends, and a database that was restored begins anew.

use super::{
    failed::Failed, format, hosts, member::look, open::PostgresOptions, progress::begin_anew,
    session::Session, upgrade, value::get, wire::Wire,
};
use crate::store::{ClusterKey, Finalized, NodeRow, NodeState, Restored, StoreError};

/// The name of an administrator's connection.
const NAME: &str = "moonswarm/administrator";

/// Asks a node that has the runs to hand them over. Returns the node.
///
/// # Errors
/// Returns [`StoreError::Unfit`] if there is no such node, it has no runs, or no other node stands by. Fails
/// when the database cannot be reached.
pub fn drain_node(
    options: &PostgresOptions,
    key: &ClusterKey,
    name: &str,
) -> Result<NodeRow, StoreError> {
    change_node(options, key, "drain a node", |session, nodes| {
        let node = named(options, nodes, name)?;
        if !node.has_runs() {
            let reason = format!("the node {name} has no runs: it stands by, and may be stopped");
            return Err(unfit(options, reason));
        }
        let takes = |it: &NodeRow| it.state == NodeState::Standby && it.is_alive();
        if !nodes.iter().any(takes) {
            let reason = "no other node stands by that could take the runs over; start one first";
            return Err(unfit(options, reason.to_owned()));
        }
        session.execute("UPDATE nodes SET state = 'draining' WHERE node = $1", &[&node.node])?;
        Ok(node)
    })
}

/// Ends a node at once: what it has not committed yet, it never will. Returns the node.
///
/// # Errors
/// Returns [`StoreError::Unfit`] if there is no such node. Fails when the database cannot be reached.
pub fn fence_node(
    options: &PostgresOptions,
    key: &ClusterKey,
    name: &str,
) -> Result<NodeRow, StoreError> {
    change_node(options, key, "end a node", |session, nodes| {
        let node = named(options, nodes, name)?;
        hosts::fence(session, &[node.node])?;
        Ok(node)
    })
}

/// Lets the runs of a database go on that was restored to an earlier time: handles from before are no longer
/// valid, and attempts of workers are tried again.
///
/// # Errors
/// Returns [`StoreError::Taken`] while a host has the database, and [`StoreError::Unfit`] if it has no runs of
/// this format. Fails when the database cannot be reached.
pub fn begin_after_restore(options: &PostgresOptions) -> Result<Restored, StoreError> {
    let long = |wire: &Wire| wire.long_writer(NAME);
    alone_over(options, long, "begin anew after a restore", |session, format| {
        if format < format::known() {
            return Err(unstarted(options));
        }
        if let Some(node) = hosts::living(session, "")? {
            let database = options.address.to_string();
            return Err(Failed::Store(StoreError::Taken { database, node }));
        }
        let dead = session.query("SELECT node FROM nodes WHERE state <> 'gone'", &[])?;
        let dead = dead.iter().map(|row| get(row, 0)).collect::<Result<Vec<i64>, _>>()?;
        hosts::fence(session, &dead)?;
        begin_anew(session)
    })
}

/// Ends a rolling upgrade at once: nodes of older releases are not admitted any more.
///
/// # Errors
/// Returns [`StoreError::Unfit`] while a node of an older release is alive, or if the database has no runs.
/// Fails when the database cannot be reached.
pub fn finalize(options: &PostgresOptions) -> Result<Finalized, StoreError> {
    change_format(options, "end the upgrade", |session, to| {
        let living = session.query(
            "SELECT name, version, format FROM nodes
             WHERE state <> 'gone' AND lease_until > clock_timestamp() - interval '1 second'
             ORDER BY node",
            &[],
        )?;
        let mut older = Vec::new();
        let mut newest = (0, format::release());
        for row in &living {
            let (name, version, of): (&str, &str, i32) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
            if of < to {
                older.push(format!("{name} ({version})"));
            }
            if of > newest.0 {
                newest = (of, version.to_owned());
            }
        }
        if !older.is_empty() {
            let reason = format!(
                "nodes of an older release are alive: {}; upgrade or stop them first",
                older.join(", ")
            );
            return Err(unfit(options, reason));
        }
        if living.is_empty() && to > format::known() {
            let reason = "no node is alive, and this program is older than the format: use the newer release";
            return Err(unfit(options, reason.to_owned()));
        }
        upgrade::write(session, to, &newest.1)
    })
}

/// Keeps the nodes from raising the format by themselves, until [`finalize`].
///
/// # Errors
/// Returns [`StoreError::Unfit`] if the database has no runs. Fails when it cannot be reached.
pub fn hold(options: &PostgresOptions) -> Result<Finalized, StoreError> {
    change_format(options, "hold the upgrade", |session, _| {
        session.execute("UPDATE cluster SET held = true", &[]).map(drop)
    })
}

fn change_format(
    options: &PostgresOptions,
    context: &str,
    change: impl FnOnce(&Session, i32) -> Result<(), Failed>,
) -> Result<Finalized, StoreError> {
    alone(options, context, |session, format| {
        change(session, format)?;
        let row = session.one("SELECT format, feature, held FROM cluster", &[])?;
        let Some(row) = row else { return Err(Failed::Silent) };
        Ok(Finalized { format: get(&row, 0)?, feature: get(&row, 1)?, held: get(&row, 2)? })
    })
}

fn change_node(
    options: &PostgresOptions,
    key: &ClusterKey,
    context: &str,
    change: impl FnOnce(&Session, &[NodeRow]) -> Result<NodeRow, Failed>,
) -> Result<NodeRow, StoreError> {
    alone(options, context, |session, _| {
        let nodes: Vec<_> = look(session, None, Some(key))?.into_iter().map(|it| it.row).collect();
        change(session, &nodes)
    })
}

/// Makes a short change in a transaction that no node and no other administrator makes at the same time. It
/// is told the format of the tables.
fn alone<T>(
    options: &PostgresOptions,
    context: &str,
    change: impl FnOnce(&Session, i32) -> Result<T, Failed>,
) -> Result<T, StoreError> {
    alone_over(options, |wire| wire.writer(NAME), context, change)
}

/// The same over a session of another kind.
fn alone_over<T>(
    options: &PostgresOptions,
    open: impl FnOnce(&Wire) -> Result<Session, Failed>,
    context: &str,
    change: impl FnOnce(&Session, i32) -> Result<T, Failed>,
) -> Result<T, StoreError> {
    let act = || -> Result<T, Failed> {
        let wire = Wire::new(options.address.clone())?;
        let session = open(&wire)?;
        let found = format::found(&session, wire.address())?;
        let found = found.filter(|it| it.format >= format::FIRST_WITH_FEATURES);
        let found = found.ok_or_else(|| unstarted(options))?;
        session.batch("SET lock_timeout = '8s'; BEGIN")?;
        format::lock(&session, wire.address())?;
        // What is refused ends with its connection.
        let done = change(&session, found.format)?;
        session.batch("COMMIT")?;
        Ok(done)
    };
    act().map_err(|error| error.into_error(context))
}

fn unstarted(options: &PostgresOptions) -> Failed {
    let reason = "it has no runs of this release's format; start a host with it first";
    unfit(options, reason.to_owned())
}

/// Finds a node by its name. A name is for people: two may have the same.
fn named(options: &PostgresOptions, nodes: &[NodeRow], name: &str) -> Result<NodeRow, Failed> {
    let mut found = nodes.iter().filter(|it| it.name == name || it.node.to_string() == name);
    match (found.next(), found.next()) {
        (Some(node), None) => Ok(node.clone()),
        (Some(one), Some(other)) => {
            let reason = format!(
                "{name} is the name of two nodes: say {} or {}, as `nodes show` has them",
                one.node, other.node
            );
            Err(unfit(options, reason))
        }
        (None, _) => {
            let all: Vec<_> = nodes.iter().map(|it| it.name.as_str()).collect();
            let reason = format!("it has no node {name}; its nodes: {}", all.join(", "));
            Err(unfit(options, reason))
        }
    }
}

fn unfit(options: &PostgresOptions, reason: String) -> Failed {
    Failed::Store(StoreError::Unfit { database: options.address.to_string(), reason })
}
