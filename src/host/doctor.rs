//! The problems that could keep a host from running well: `moonswarm doctor` and `/v1/host` show
//! them.

mod database;
mod network;

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::future::{BoxFuture, join_all};
use tokio::sync::watch;

pub use self::{database::database, network::network};
use super::HostConfig;
pub use crate::engine::{DoctorLine as Line, DoctorVerdict};
use crate::{
    clock::Clock,
    door::DoorConfig,
    engine::{ConfigItem, HostFacts, NodeView, Retention, rfc3339},
    environment::{self, Environments},
    metrics::{ClusterCounts, Scrape},
    operator::{Builtin, Declared, ShownSettings, TaskWebhook},
    protocol::text::counted,
    store::{ClusterView, NodeRow, NodeState},
};

/// Facts about a host.
pub(super) struct Facts {
    data: PathBuf,
    listen: SocketAddr,
    door: DoorConfig,
    shown: Vec<ConfigItem>,
    retention: Retention,
    operators: Declared,
    webhooks: BTreeMap<String, TaskWebhook>,
    environments: environment::Config,
    watch: BTreeMap<String, PathBuf>,
    clock: Clock,
    /// The nodes as this node of a cluster sees them, and its counters.
    cluster: Option<NodeFacts>,
}

/// The nodes as a node of a cluster sees them, and its counters.
#[derive(Clone)]
pub(super) struct NodeFacts {
    pub(super) view: watch::Receiver<ClusterView>,
    pub(super) counts: Arc<ClusterCounts>,
}

impl NodeFacts {
    /// Adds the numbers of the node to a reading.
    pub(super) fn measure(&self, scrape: &mut Scrape) {
        let view = self.view.borrow();
        self.counts.collect(view.trusted_ms(), scrape);
        let states = [NodeState::Up, NodeState::Draining, NodeState::Standby];
        for state in states {
            let nodes = view.nodes.iter().filter(|it| it.state == state).count() as u64;
            scrape.count("moonswarm_nodes", &[state.as_str()], nodes);
        }
    }
}

impl Facts {
    /// Takes them from a configuration, and from what the node of the host sees.
    pub(super) fn of(config: &HostConfig, cluster: Option<NodeFacts>) -> Self {
        Self {
            cluster,
            data: config.data.clone(),
            listen: config.listen,
            door: config.door.clone(),
            shown: config.shown.clone(),
            retention: config.retention.unwrap_or_default(),
            operators: config.operators.clone(),
            webhooks: config.webhooks.clone(),
            environments: config.environments.clone(),
            watch: config.watch.clone(),
            clock: Clock::system(),
        }
    }
}

impl HostFacts for Facts {
    fn data(&self) -> PathBuf {
        self.data.clone()
    }

    fn config(&self) -> Vec<ConfigItem> {
        self.shown.clone()
    }

    fn operators(&self) -> BTreeMap<String, ShownSettings> {
        self.operators.iter().map(|(name, it)| (name.to_owned(), it.shown())).collect()
    }

    fn nodes(&self) -> Vec<NodeView> {
        let view = self.cluster.as_ref().map(|it| it.view.borrow().clone()).unwrap_or_default();
        let shown = |it: NodeRow| NodeView {
            node: it.node,
            name: it.name,
            state: it.state.as_str().to_owned(),
            runs: 0,
            version: it.version,
            url: it.url,
            lease_ms: it.lease_ms,
            started_at: rfc3339(it.started_ms),
        };
        view.nodes.into_iter().map(shown).collect()
    }

    fn measure(&self, scrape: &mut Scrape) {
        if let Some(node) = &self.cluster {
            node.measure(scrape);
        }
    }

    fn examine(&self) -> BoxFuture<'_, Vec<Line>> {
        let Self { data, clock, .. } = self;
        Box::pin(async move {
            let environments = Environments::new(self.environments.clone(), data, clock.clone());
            let environments = Arc::new(environments);
            let mut lines = vec![directory(data)];
            lines.extend(own_secrets(data));
            lines.extend([disk(data), retention(data, self.retention)]);
            lines.extend(network(self.listen, &self.door, &self.data, clock));
            lines.extend(operators(&self.operators, &environments).await);
            lines.extend(webhooks(&self.webhooks).await);
            lines.extend(enforces(&environments));
            lines.extend(secrets(&environments).await);
            lines.extend(watched(&self.watch));
            lines.extend(self.cluster.as_ref().map(|it| cluster(&it.view.borrow())));
            lines
        })
    }
}

/// Examines the nodes of the cluster.
fn cluster(view: &ClusterView) -> Line {
    const WHAT: &str = "cluster";
    let standbys = view.nodes.iter().filter(|it| it.node != view.me && it.is_alive());
    let (standbys, ours) = (standbys.collect::<Vec<_>>(), env!("CARGO_PKG_VERSION"));
    if let Some(other) = standbys.iter().find(|it| it.version != ours) {
        let says = format!("{} runs {}, and this node {ours}", other.name, other.version);
        return Line::new(DoctorVerdict::Warn, WHAT, says)
            .next("end the upgrade: one release on all");
    }
    match standbys.len() {
        0 => Line::new(DoctorVerdict::Warn, WHAT, "no node stands by")
            .next("start a second one with the same --cluster-key and --store"),
        1 => Line::new(DoctorVerdict::Ok, WHAT, "1 node stands by"),
        more => Line::new(DoctorVerdict::Ok, WHAT, format!("{more} nodes stand by")),
    }
}

const LOW_DISK: u64 = 1 << 30;
const FULL_DISK: u64 = 64 << 20;

/// Examines the data directory.
pub fn directory(data: &Path) -> Line {
    const WHAT: &str = "data directory";
    let name = data.display();
    match fs::metadata(data) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Line::new(
            DoctorVerdict::Ok,
            WHAT,
            format!("{name} is not there yet; the first run makes it"),
        ),
        Err(error) => Line::new(DoctorVerdict::Fail, WHAT, format!("{name}: {error}"))
            .next("--data DIR names another"),
        Ok(meta) if !meta.is_dir() => {
            Line::new(DoctorVerdict::Fail, WHAT, format!("{name} is not a directory"))
                .next("--data DIR names another")
        }
        Ok(meta) if meta.permissions().mode() & 0o022 != 0 => {
            Line::new(DoctorVerdict::Warn, WHAT, format!("others can write to {name}"))
                .next(format!("chmod go-w {name}"))
        }
        Ok(_) => Line::new(DoctorVerdict::Ok, WHAT, name.to_string()),
    }
}

/// Examines the files of the data directory that only its owner may read, if they are there.
pub fn own_secrets(data: &Path) -> Vec<Line> {
    super::files::SECRETS.into_iter().filter_map(|name| secret(data, name)).collect()
}

fn secret(data: &Path, name: &str) -> Option<Line> {
    let file = data.join(name);
    let mode = fs::metadata(&file).ok()?.permissions().mode() & 0o777;
    Some(match mode & 0o077 {
        0 => Line::new(DoctorVerdict::Ok, name, "only you can read it"),
        _ => Line::new(DoctorVerdict::Fail, name, format!("others can read it (mode {mode:o})"))
            .next(format!("chmod 600 {}", file.display())),
    })
}

/// Examines the space on the disk of the data directory.
pub fn disk(data: &Path) -> Line {
    const WHAT: &str = "disk";
    let dir = if data.is_dir() { data } else { Path::new(".") };
    let free = match rustix::fs::statvfs(dir) {
        Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
        Err(error) => return Line::new(DoctorVerdict::Warn, WHAT, error.to_string()),
    };
    let says = format!("{} MiB free", free >> 20);
    match free {
        0..FULL_DISK => Line::new(DoctorVerdict::Fail, WHAT, says).next("free disk space"),
        FULL_DISK..LOW_DISK => Line::new(DoctorVerdict::Warn, WHAT, says).next("free disk space"),
        _ => Line::new(DoctorVerdict::Ok, WHAT, says),
    }
}

/// Reports the retention policy of this configuration, and the size of the database.
pub fn retention(data: &Path, kept: Retention) -> Line {
    let Retention { age_ms, runs, bytes } = kept;
    let limit = |set: bool, text: String| if set { text } else { "no limit".to_owned() };
    // The database may be a server's.
    let size = fs::metadata(data.join("moonswarm.db")).ok().map(|file| file.len() >> 20);
    let size = size.map_or_else(String::new, |mib| format!("; the database has {mib} MiB"));
    Line::new(
        DoctorVerdict::Ok,
        "retention",
        format!(
            "ended runs are kept; age: {}, count: {}, size: {}{size}",
            limit(age_ms > 0, format!("{:.1} days", age_ms as f64 / 86_400_000.0)),
            limit(runs > 0, counted(runs, "run")),
            limit(bytes > 0, format!("{} MiB", bytes >> 20)),
        ),
    )
}

/// Examines the webhooks: whether they may be reached, and their secrets be read.
pub async fn webhooks(declared: &BTreeMap<String, TaskWebhook>) -> Vec<Line> {
    let inspect = async |(name, webhook): (&String, &TaskWebhook)| {
        let what = format!("webhook {name}");
        match webhook.inspect().await {
            Ok(says) => Line::new(DoctorVerdict::Ok, &what, says),
            Err(says) => Line::new(DoctorVerdict::Fail, &what, says)
                .next(format!("see [webhooks.{name}] in the configuration file")),
        }
    };
    join_all(declared.iter().map(inspect)).await
}

/// Examines each operator: whether it could be used from here. What it starts for that sees no more
/// than under a host.
pub async fn operators(declared: &Declared, environments: &Arc<Environments>) -> Vec<Line> {
    let known = super::known_operators(declared, environment::Config::default());
    let alone = Builtin::alone(environment::Config::default());
    let builtin = &Builtin { environments: Arc::clone(environments), ..alone };
    let own: BTreeMap<_, _> = declared.iter().collect();
    // Each may have to ask somebody: all are asked at once.
    let lines = known.names().map(|(name, kind)| {
        let settings = own.get(name).copied();
        async move {
            let named = format!("{name} ({kind})");
            match settings {
                None => Line::new(DoctorVerdict::Ok, "operator", format!("{named} is built in")),
                Some(settings) => match settings.inspect(builtin).await {
                    Ok(says) => Line::new(DoctorVerdict::Ok, "operator", format!("{named} {says}")),
                    Err(why) => {
                        Line::new(DoctorVerdict::Fail, "operator", format!("{named}: {why}"))
                            .next(format!("see [operators.{name}] in the configuration file"))
                    }
                },
            }
        }
    });
    join_all(lines).await
}

/// Reports the features for environments on this machine, and whether those of the configuration
/// exist.
pub fn enforces(environments: &Environments) -> Vec<Line> {
    const WHAT: &str = "environment";
    let machine = environments.machine().enforces().into_iter().map(|it| match it.how {
        Ok(by) => Line::new(DoctorVerdict::Ok, WHAT, format!("{} is enforced by {by}", it.what)),
        Err(refusal) => {
            let says = format!("{} cannot be enforced: {}", it.what, refusal.reason);
            Line::new(DoctorVerdict::Warn, WHAT, says).next(refusal.helps)
        }
    });
    let declared = environments.config().environments.keys().map(|name| {
        let refused = environments.judge(&name.as_str().into());
        match refused.first() {
            None => Line::new(DoctorVerdict::Ok, WHAT, format!("{name} can be given")),
            Some(refusal) => {
                let says = format!("{name}: `{}`: {}", refusal.what, refusal.reason);
                Line::new(DoctorVerdict::Fail, WHAT, says).next(refusal.helps.clone())
            }
        }
    });
    machine.chain([hidden(environments)]).chain(declared).collect()
}

/// Reports whether children see keys and tokens.
fn hidden(environments: &Environments) -> Line {
    const WHAT: &str = "children";
    match environments.hides() {
        Ok(()) => Line::new(DoctorVerdict::Ok, WHAT, "the data directory is hidden from them"),
        Err(reason) => {
            let says = format!(
                "those of the same user can read the keys and tokens of the data directory: {reason}"
            );
            Line::new(DoctorVerdict::Warn, WHAT, says)
                .next("give agents an `environment`, or let users make namespaces")
        }
    }
}

/// Reports whether the directories that blueprints may watch are there.
pub fn watched(watch: &BTreeMap<String, PathBuf>) -> Vec<Line> {
    const WHAT: &str = "watch";
    let line = |(name, dir): (&String, &PathBuf)| {
        let says = format!("{name} is {}", dir.display());
        match std::fs::read_dir(dir) {
            Ok(_) => Line::new(DoctorVerdict::Ok, WHAT, says),
            Err(error) => Line::new(DoctorVerdict::Fail, WHAT, format!("{says}: {error}"))
                .next("make the directory readable, or change [watch] in moonswarm.toml"),
        }
    };
    watch.iter().map(line).collect()
}

/// Reports whether each secret is where the configuration says, without a word of it.
pub async fn secrets(environments: &Environments) -> Vec<Line> {
    let lines = environments.config().secrets.keys().map(|name| async move {
        match environments.look_for(name).await {
            Ok(kind) => Line::new(DoctorVerdict::Ok, "secret", format!("{name} ({kind}) is there")),
            Err(why) => Line::new(DoctorVerdict::Fail, "secret", format!("{name}: {why}"))
                .next(format!("see [secrets.{name}] in the configuration file")),
        }
    });
    join_all(lines).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_others_can_read_fails_with_the_command_that_helps() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("admin.token");
        assert_eq!(secret(dir.path(), "admin.token"), None);
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let line = secret(dir.path(), "admin.token").unwrap();
        assert_eq!(line.verdict, DoctorVerdict::Fail);
        assert!(line.next.unwrap().starts_with("chmod 600"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(secret(dir.path(), "admin.token").unwrap().verdict, DoctorVerdict::Ok);
        for name in ["signing.key", "handle.key", "retired.keys"] {
            let file = dir.path().join(name);
            fs::write(&file, "x").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        }
        let lines = own_secrets(dir.path());
        let failed = lines.iter().filter(|line| line.verdict == DoctorVerdict::Fail).count();
        assert_eq!((lines.len(), failed), (4, 3), "{lines:?}");
    }

    #[test]
    fn a_data_directory_that_is_a_file_fails() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(directory(file.path()).verdict, DoctorVerdict::Fail);
        assert_eq!(directory(Path::new("/nonexistent/x")).verdict, DoctorVerdict::Ok);
    }
}
