//! The state of a cluster, as its database tells it: also when no node answers.

use super::{
    failed::Failed,
    format::{self, Found},
    kept,
    member::look,
    open::PostgresOptions,
    server,
    standbys::Standbys,
    survey::{Connections, DatabaseFinding, FindingLevel, Retained, SKEW_MS, examine},
    wire::Wire,
};
use crate::{
    clock::Clock,
    store::{Durability, NodeRow, StoreError},
};

/// The state of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterStatus {
    /// The address of the database, without secrets.
    pub database: String,
    /// The format of the database.
    pub format: i32,
    /// Releases of an older format are refused.
    pub oldest: i32,
    /// The format up to which the nodes write what older releases cannot read.
    pub feature: i32,
    /// True if the nodes do not raise it by themselves.
    pub held: bool,
    /// The newest format that this program knows.
    pub known: i32,
    /// The life of the database; `None` before its first host has started.
    pub incarnation: Option<String>,
    /// True if the database belongs to a cluster; otherwise to one host at a time.
    pub is_shared: bool,
    /// The nodes that have not ended.
    pub nodes: Vec<NodeRow>,
    /// The durability that is configured.
    pub asked: Durability,
    /// The standbys of the server.
    pub standbys: Standbys,
    /// The time of the database minus the time of this machine, in milliseconds.
    pub clock_ms: i64,
    /// The connections of the server.
    pub connections: Connections,
    /// What keeps dead rows and old log.
    pub retained: Retained,
    /// What the doctor would warn about.
    pub findings: Vec<DatabaseFinding>,
}

impl ClusterStatus {
    /// Returns the node that drives, if one is alive.
    pub fn driver(&self) -> Option<&NodeRow> {
        self.nodes.iter().find(|it| it.has_runs() && it.is_alive())
    }
}

/// Looks at a cluster through its database. Changes nothing.
///
/// # Errors
/// Returns [`StoreError::Unfit`] for a database without runs, and [`StoreError::Away`] for one that cannot be
/// reached.
pub fn cluster_status(options: &PostgresOptions) -> Result<ClusterStatus, StoreError> {
    let context = format!("open {}", options.address);
    let look = || -> Result<ClusterStatus, Failed> {
        let wire = Wire::new(options.address.clone())?;
        let session = wire.long()?;
        server::is_fit(&session, wire.address())?;
        let found = format::found(&session, wire.address())?;
        // The formats before have no column for what is read here; a start changes them.
        let Some(found) = found.filter(|it| it.format >= 12) else {
            let reason = "it has no runs of this release's format; start a host with it first";
            return Err(format::unfit(wire.address(), reason.to_owned()));
        };
        let nodes: Vec<NodeRow> =
            self::look(&session, None, None)?.into_iter().map(|it| it.row).collect();
        let is_shared = session.exists("SELECT 1 FROM keys", &[])?;
        let mut findings = examine(&wire, &session, options)?;
        findings.retain(|it| it.level != FindingLevel::Fine);
        findings.extend(of_nodes(&nodes, is_shared));
        findings.extend(of_upgrade(&nodes, &found));
        Ok(ClusterStatus {
            database: wire.address().to_string(),
            format: found.format,
            oldest: found.oldest,
            feature: found.feature,
            held: found.held,
            known: format::known(),
            incarnation: kept::meta(&session, "incarnation")?,
            is_shared,
            nodes,
            asked: options.durability,
            standbys: Standbys::of(&session)?,
            clock_ms: server::skew(&session, &Clock::system())?,
            connections: Connections::of(&session)?,
            retained: Retained::of(&session)?,
            findings,
        })
    };
    look().map_err(|error| error.explained(&context))
}

fn risk(says: String, next: &str) -> DatabaseFinding {
    DatabaseFinding { level: FindingLevel::Risk, says, next: Some(next.to_owned()) }
}

/// Returns what is wrong with the nodes.
fn of_nodes(nodes: &[NodeRow], is_shared: bool) -> Vec<DatabaseFinding> {
    let mut found = Vec::new();
    let (alive, late): (Vec<_>, Vec<_>) = nodes.iter().partition(|it| it.is_alive());
    let names = |of: &[&NodeRow]| of.iter().map(|it| &*it.name).collect::<Vec<_>>().join(", ");
    if !late.is_empty() {
        let says = format!("these nodes do not renew their leases: {}", names(&late));
        found.push(risk(
            says,
            "look at their logs; `moonswarm nodes fence NAME` ends one that hangs",
        ));
    }
    if !alive.iter().any(|it| it.has_runs()) {
        found.push(DatabaseFinding {
            level: FindingLevel::Fails,
            ..risk(
                "no living node has the runs".to_owned(),
                "start one, or look at the logs of all",
            )
        });
    } else if is_shared && alive.iter().all(|it| it.has_runs()) {
        let next = "start a second one with the same --cluster-key and --store";
        found.push(risk("no node stands by".to_owned(), next));
    }
    for it in alive {
        if let Some(ms) = it.clock_ms.filter(|ms| ms.abs() >= SKEW_MS) {
            let says = format!("the database's clock is {ms} ms ahead of that of {}", it.name);
            found.push(risk(says, "synchronize both clocks; over 5000 ms a start is refused"));
        }
    }
    found
}

/// Returns what is left of a rolling upgrade.
fn of_upgrade(nodes: &[NodeRow], found: &Found) -> Option<DatabaseFinding> {
    let alive = nodes.iter().filter(|it| it.is_alive());
    let mut versions: Vec<&str> = alive.map(|it| &*it.version).collect();
    versions.sort_unstable();
    versions.dedup();
    if versions.len() > 1 {
        let says = format!("nodes run different releases: {}", versions.join(", "));
        return Some(risk(says, "end the upgrade: one release on all"));
    }
    let Found { format, feature, held, .. } = *found;
    (held && feature < format).then(|| {
        let says = format!("the upgrade to format {format} is held at {feature}");
        risk(says, "`moonswarm cluster finalize` ends it")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::NodeState;

    fn node(name: &str, state: NodeState, lease_ms: i64) -> NodeRow {
        let (name, version, url) = (name.to_owned(), "1.0.0".to_owned(), String::new());
        let (node, format, peer, clock_ms) = (1, 12, None, None);
        NodeRow { node, name, version, format, state, url, peer, lease_ms, started_ms: 0, clock_ms }
    }

    #[test]
    fn what_is_wrong_with_nodes_is_said_with_a_remedy() {
        let says = |nodes: &[NodeRow]| {
            of_nodes(nodes, true).into_iter().map(|it| it.says).collect::<Vec<_>>()
        };
        let (up, standby) = (node("a", NodeState::Up, 9_000), node("b", NodeState::Standby, 9_000));
        assert_eq!(says(&[up.clone(), standby.clone()]), [""; 0]);
        assert_eq!(says(std::slice::from_ref(&up)), ["no node stands by"]);
        assert_eq!(
            of_nodes(std::slice::from_ref(&up), false),
            [],
            "a host without a cluster is alone"
        );
        assert_eq!(
            says(&[node("a", NodeState::Up, -5_000), standby.clone()]),
            ["these nodes do not renew their leases: a", "no living node has the runs"]
        );
        let late = NodeRow { clock_ms: Some(-700), ..standby.clone() };
        assert_eq!(
            says(&[up.clone(), late]),
            ["the database's clock is -700 ms ahead of that of b"]
        );

        let found =
            |feature, held| Found { format: 13, oldest: 12, feature, held, release: String::new() };
        let newer = NodeRow { version: "1.1.0".to_owned(), format: 13, ..standby };
        let told = of_upgrade(&[up.clone(), newer], &found(12, false)).unwrap();
        assert!(told.says.ends_with("1.0.0, 1.1.0"), "{told:?}");
        assert_eq!(of_upgrade(std::slice::from_ref(&up), &found(12, false)), None);
        assert!(
            of_upgrade(std::slice::from_ref(&up), &found(12, true))
                .unwrap()
                .says
                .contains("held at 12")
        );
        assert_eq!(of_upgrade(&[up], &found(13, true)), None);
    }
}
