//! A host as a node of a cluster: it listens all the time, forwards requests while another node has the
//! runs, and takes them over when nobody alive has them.
//!
//! | this node | and then | it |
//! |---|---|---|
//! | stands by | another node drives | helps it with its runs, unless that is turned off |
//! | stands by | nobody alive has the runs | claims them, opens the engine, answers itself |
//! | stands by | was ended, because its lease had lapsed | joins again, after a pause |
//! | took the runs over | does not reach the database while it opens them | joins again, after a pause; ends after 20 times in a row |
//! | drives | was asked to hand over | the same, and joins again; for a while it leaves the runs to others |
//! | drives | is to stop | announces that, stops the engine, gives the runs up |
//! | drives | cannot renew its lease, and others reach the database, or none answers | stops the engine |
//! | drives | was ended | stops the engine and joins again as a standby |
//! | stands by | finds that the database works with newer releases only | ends |

use std::{net::SocketAddr, sync::Arc, time::Duration};

use super::{
    Host, HostConfig, HostError, cluster_keys,
    doctor::NodeFacts,
    files::DataFiles,
    frames::Hello,
    helping::{HelpCounts, HelpParts, Helping},
    lending,
    listen::{self, Ports},
    socket,
};
use crate::{
    api::{self, NodeMeasures},
    clock::boot_ms,
    door::{Door, Forwarder, Front, IsTrusted, Listener, NodeKeys, OnHelp, PeersSay, Routes},
    engine::{Engine, Lend},
    metrics::Scrape,
    store::{
        ClusterKey, ClusterView, Joining, LeaseTimes, Member, NodeRow, NodeState, PeerAddress,
        Postgres, Seat, SeatOptions, StoreError, Upkeep as _,
    },
    tasks::Tasks,
};

/// The interval at which a node that drives looks at its own lease.
const LOOK: Duration = Duration::from_millis(250);
/// The pause before a node joins or claims again after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// The time for which a node that was asked to hand over leaves the runs to others, in milliseconds.
const YIELD_MS: u64 = 15_000;
/// The number of times in a row that a node fails to open what it took over for a reason that may pass.
const OPENINGS: u32 = 20;
/// The maximum time that the engine of a node that was ended has to stop.
const FENCED: Duration = Duration::from_secs(5);

/// The settings of a node.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// The key that all nodes have.
    pub key: ClusterKey,
    /// The name of the node, for people; that of the machine and the process if absent.
    pub name: Option<String>,
    /// The address to listen on for other nodes.
    pub peer_listen: SocketAddr,
    /// The host and port at which others reach it, if that is another.
    pub peer_address: Option<String>,
    /// The address of the cluster for workers, such as that of its load balancer.
    pub url: Option<String>,
    /// The times of the lease.
    pub times: LeaseTimes,
    /// The rule by which this node lends runs while it drives. Unless it is off, the node helps another one
    /// while it stands by.
    pub lend: Lend,
}

/// The parts of a node that its host uses.
pub(super) struct Joined {
    pub(super) member: Arc<Member>,
    pub(super) front: Front,
    pub(super) metrics: Option<(Front, SocketAddr)>,
    pub(super) facts: NodeFacts,
    pub(super) url: String,
    pub(super) address: SocketAddr,
    /// The name of the node, for people.
    pub(super) name: String,
    pub(super) lend: Lend,
}

impl Joined {
    /// Sends requests to `routes`, those of the metrics to what `metrics` makes, and nodes that want to help
    /// to `on_help`, from now on.
    pub(super) fn drive(
        &self,
        routes: Routes,
        metrics: impl FnOnce(SocketAddr) -> Routes,
        on_help: Option<OnHelp>,
    ) -> Option<SocketAddr> {
        let member = Arc::clone(&self.member);
        let is_trusted: IsTrusted = Arc::new(move || member.is_trusted());
        self.front.drive(routes, Arc::clone(&is_trusted), on_help);
        let (front, at) = self.metrics.as_ref()?;
        front.drive(metrics(*at), is_trusted, None);
        Some(*at)
    }

    /// Returns what takes nodes that want to help, if this one lends runs.
    pub(super) fn on_help(&self, engine: &Engine, tasks: &Tasks) -> Option<OnHelp> {
        let me = Hello::new(self.member.node(), &self.name);
        (self.lend != Lend::Off).then(|| lending::on_help(engine, me, tasks))
    }
}

/// A node of a cluster.
pub struct Node {
    config: HostConfig,
    seat: Arc<Seat>,
    joining: Joining,
    front: Front,
    forwarder: Forwarder,
    facts: NodeFacts,
    metrics: Option<(Front, SocketAddr)>,
    files: DataFiles,
    tasks: Tasks,
    url: String,
    address: SocketAddr,
    socket: Option<socket::Bound>,
    lend: Lend,
    /// The help for another node, while this one stands by.
    helping: Option<Helping>,
    help_counts: HelpCounts,
    /// The version of the keys with which the admin token was written.
    keys: Option<i64>,
    /// The number of times in a row that this node failed to open the runs that it took over.
    failures: u32,
}

/// The reason why a node no longer drives.
enum Ended {
    /// The process is to stop.
    Stopped,
    /// The node is to hand its runs over, and to stand by.
    Drained,
    /// The node can no longer write.
    Lost(StoreError),
}

impl Node {
    /// Takes ownership of the data directory, listens, and gets ready to join.
    ///
    /// # Errors
    /// Fails when the database cannot be used or belongs to a cluster with another key, when another process
    /// owns the directory, or when an address is taken.
    pub async fn open(config: HostConfig) -> Result<Self, HostError> {
        let (Some(cluster), Some(postgres)) = (config.cluster.clone(), config.postgres.clone())
        else {
            return Err(HostError::NoCluster);
        };
        config.check()?;
        let ports = Ports::bind(&config).await?;
        let (peers, peers_at) = listen::bind(cluster.peer_listen).await?;
        let at = match cluster.peer_address {
            Some(at) => at,
            None if peers_at.ip().is_unspecified() => {
                return Err(HostError::NoPeerAddress { address: peers_at });
            }
            None => peers_at.to_string(),
        };
        let tasks = Tasks::new(tokio::runtime::Handle::current());
        let options = SeatOptions {
            address: postgres.address,
            readers: postgres.readers,
            writers: postgres.writers,
            key: cluster.key,
            times: cluster.times,
            durability: postgres.durability,
        };
        let seat = blocking(&tasks, {
            let data = config.data.clone();
            move || Seat::take(&data, options)
        });
        let seat = seat.await?;
        let files = DataFiles::open(&config.data)?;
        let keys = NodeKeys::generate(seat.view()).ok_or(HostError::NoRandomness)?;
        let name = cluster.name.unwrap_or(postgres.name);
        let peer = PeerAddress { at, fingerprint: keys.fingerprint() };
        let joining = Joining { name, url: ports.url.clone(), peer };
        let (address, url) = (ports.address, ports.url.clone());
        let keyed = api::keyed_routes();
        let forwarder =
            Forwarder::new(seat.view(), keys.clone(), &config.door, address, keyed, &tasks);
        let front = Front::new(forwarder.clone());
        let door = Arc::new(Door::new(&config.door, address));

        listen::serve(Listener::of_nodes(peers, &keys), front.router_of_nodes(), &door, &tasks);
        let socket = listen::serve_local(&config.data, front.router(), &door, &tasks);
        let facts = NodeFacts { view: seat.view(), counts: forwarder.counts() };
        let help_counts = HelpCounts::default();
        let (measured, helps) = (facts.clone(), help_counts.clone());
        let measures = NodeMeasures(Arc::new(move |scrape: &mut Scrape| {
            measured.measure(scrape);
            helps.measure(scrape);
        }));
        let aside = api::node_metrics_router(measures);
        let metrics = ports.metrics_at().map(|at| (Front::of_process(aside), at));
        let of_metrics = metrics.as_ref().map(|(front, _)| front.router());
        ports.serve(front.router(), of_metrics, &door, (&files, 0), &tasks)?;
        let keys = None;
        Ok(Self {
            config,
            seat,
            joining,
            front,
            forwarder,
            facts,
            metrics,
            files,
            tasks,
            url,
            address,
            socket,
            lend: cluster.lend,
            helping: None,
            help_counts,
            keys,
            failures: 0,
        })
    }

    /// Returns the base URL of this node.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the address on which the metrics are served without a token, if they are.
    pub fn metrics_at(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(_, at)| *at)
    }

    /// Stands by and drives, in turn, until `stop`; hands over then. Calls `ready` once, when the admin
    /// token is in the data directory.
    ///
    /// # Errors
    /// Fails when this node cannot join at its start, cannot open the store that it took over, or when the
    /// store is lost for another reason than a take-over. The node has ended then as well.
    pub async fn run(
        mut self,
        stop: impl Future<Output = ()>,
        grace: Duration,
        ready: impl FnOnce(&Self),
    ) -> Result<(), HostError> {
        let mut joined = None;
        let result = Box::pin(self.take_turns(stop, grace, ready, &mut joined)).await;
        self.end(joined, grace).await;
        result
    }

    /// Stands by and drives until `stop` or an error. Keeps in `joined` what this node is in the
    /// cluster.
    async fn take_turns(
        &mut self,
        stop: impl Future<Output = ()>,
        grace: Duration,
        ready: impl FnOnce(&Self),
        joined: &mut Option<Arc<Member>>,
    ) -> Result<(), HostError> {
        let mut stop = std::pin::pin!(stop);
        let mut ready = Some(ready);
        let mut is_first = true;
        let mut yields_until_ms = 0;
        loop {
            let member = tokio::select! {
                member = self.join(is_first) => member?,
                () = &mut stop => return Ok(()),
            };
            *joined = Some(Arc::clone(&member));
            is_first = false;
            self.help(&member);
            let mut view = self.seat.view();
            let host = loop {
                tokio::select! {
                    () = &mut stop => return Ok(()),
                    changed = view.changed() => if changed.is_err() { return Ok(()) },
                }
                let now = view.borrow_and_update().clone();
                if now.me != member.node() {
                    continue;
                }
                if now.fenced {
                    self.facts.counts.fenced();
                    break None;
                }
                if let Some(refusal) = &now.refusal {
                    return Err(refusal.clone().into());
                }
                self.refresh_token(&now).await;
                if self.keys.is_some()
                    && let Some(ready) = ready.take()
                {
                    ready(self);
                }
                // None if another was faster, or it is too early.
                if now.is_vacant()
                    && boot_ms() >= yields_until_ms
                    && let Some(host) = self.take_over(&member).await?
                {
                    break Some(host);
                }
                if member.is_stopped() {
                    break None;
                }
            };
            let Some(host) = host else {
                tracing::warn!("this node was ended or could not take over; it joins again");
                self.stop_helping().await;
                self.stop_member(&member).await?;
                *joined = None;
                drop(member);
                tokio::select! {
                    () = tokio::time::sleep(AGAIN) => continue,
                    () = &mut stop => return Ok(()),
                }
            };
            if let Some(ready) = ready.take() {
                ready(self);
            }
            let ended = self.drive(&host, &member, &mut stop).await;
            self.front.stand_by();
            if let Some((front, _)) = &self.metrics {
                front.stand_by();
            }
            let announced = !matches!(ended, Ended::Lost(_));
            if announced {
                tracing::info!("handing the runs over");
                let announcing = Arc::clone(&member);
                if let Err(error) = blocking(&self.tasks, move || announcing.announce_end()).await {
                    tracing::warn!(%error, "the other nodes are not told that this one ends");
                }
            }
            host.stop(if announced { grace } else { grace.min(FENCED) }).await;
            match ended {
                Ended::Stopped => return Ok(()),
                Ended::Drained => {
                    tracing::info!("this node stands by, as was asked for");
                    yields_until_ms = boot_ms() + YIELD_MS;
                }
                Ended::Lost(StoreError::Fenced) => {
                    self.facts.counts.fenced();
                    tracing::warn!("another node may have the runs; this one stands by");
                }
                Ended::Lost(error) => return Err(error.into()),
            }
            self.stop_member(&member).await?;
            *joined = None;
        }
    }

    /// Joins as a standby. Only at the start of the process is a failure the end.
    async fn join(&self, is_first: bool) -> Result<Arc<Member>, HostError> {
        loop {
            let (seat, joining) = (Arc::clone(&self.seat), self.joining.clone());
            match blocking(&self.tasks, move || Member::join(&seat, &joining)).await {
                Ok(member) => return Ok(member),
                Err(error) if is_first => return Err(error),
                Err(error @ HostError::Store(StoreError::Newer { .. })) => return Err(error),
                Err(error) => tracing::warn!(%error, "failed to join the cluster; trying again"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Helps the node that drives from now on, unless that is turned off.
    fn help(&mut self, member: &Arc<Member>) {
        if self.lend == Lend::Off {
            return;
        }
        self.helping = Some(Helping::start(HelpParts {
            config: self.config.clone(),
            member: Arc::clone(member),
            forwarder: self.forwarder.clone(),
            files: self.files.clone(),
            view: self.seat.view(),
            name: self.joining.name.clone(),
            reached: (self.url.clone(), self.address),
            counts: self.help_counts.clone(),
            tasks: self.tasks.clone(),
        }));
    }

    /// Ends the help for another node: before this one has an engine for runs of its own, and before it is
    /// another member.
    async fn stop_helping(&mut self) {
        if let Some(helping) = self.helping.take() {
            helping.stop().await;
        }
    }

    /// Takes the runs over if nobody alive has them, and opens a host for them.
    async fn take_over(&mut self, member: &Arc<Member>) -> Result<Option<Host>, HostError> {
        let claiming = Arc::clone(member);
        let store = match blocking(&self.tasks, move || Postgres::take_over(&claiming)).await {
            Ok(Some(store)) => store,
            Ok(None) => return Ok(None),
            // The next look tells it too.
            Err(HostError::Store(StoreError::Newer { .. })) => return Ok(None),
            Err(error) => {
                tracing::warn!(%error, "failed to take the runs over; joining again");
                self.stop_member(member).await?;
                return Ok(None);
            }
        };
        tracing::info!(node = member.node(), "this node has the runs now");
        self.facts.counts.takeover(if store.owner_died() { "died" } else { "free" });
        // The help ends by itself when its node is gone; here is only waited for that.
        self.stop_helping().await;
        let joined = Joined {
            member: Arc::clone(member),
            front: self.front.clone(),
            metrics: self.metrics.clone(),
            facts: self.facts.clone(),
            url: self.url.clone(),
            address: self.address,
            name: self.joining.name.clone(),
            lend: self.lend,
        };
        match Host::open_joined(self.config.clone(), store, &joined).await {
            Ok(host) => {
                self.failures = 0;
                Ok(Some(host))
            }
            Err(HostError::Store(error)) if may_pass(&error) && self.failures < OPENINGS => {
                self.failures += 1;
                tracing::warn!(%error, "failed to open the runs that were taken over; joining again");
                self.stop_member(member).await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the renewals and the looks of a member before this node joins again.
    async fn stop_member(&self, member: &Arc<Member>) -> Result<(), HostError> {
        let over = Arc::clone(member);
        let stopped = blocking(&self.tasks, move || {
            over.stop();
            Ok(())
        });
        stopped.await
    }

    /// Waits until this node no longer drives.
    async fn drive(
        &self,
        host: &Host,
        member: &Arc<Member>,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> Ended {
        loop {
            tokio::select! {
                () = &mut *stop => return Ended::Stopped,
                error = host.lost() => return Ended::Lost(error),
                () = tokio::time::sleep(LOOK) => {}
            }
            if member.is_trusted() {
                let view = self.facts.view.borrow();
                let is_asked =
                    |it: &NodeRow| it.node == member.node() && it.state == NodeState::Draining;
                if view.nodes.iter().any(is_asked) {
                    return Ended::Drained;
                }
                continue;
            }
            match self.forwarder.ask().await {
                // Nobody can take over: what runs goes on until the database is back.
                PeersSay::Alone | PeersSay::Away => {}
                PeersSay::Reached | PeersSay::Nothing if member.is_trusted() => {}
                PeersSay::Reached | PeersSay::Nothing => {
                    tracing::error!(
                        "this node is cut off from the database and others may take over: it stops its work"
                    );
                    member.give_up();
                }
            }
        }
    }

    /// Writes the admin token into the data directory when it is new.
    async fn refresh_token(&mut self, view: &ClusterView) {
        if self.keys == Some(view.keys) {
            return;
        }
        let seat = Arc::clone(&self.seat);
        match blocking(&self.tasks, move || cluster_keys::admin_token(&seat)).await {
            Ok(None) => {}
            Ok(Some(token)) => match self.files.put_admin_token(&token) {
                Ok(()) => self.keys = Some(view.keys),
                Err(error) => tracing::warn!(%error, "failed to write the admin token"),
            },
            Err(error) => tracing::warn!(%error, "failed to read the admin token of the cluster"),
        }
    }

    /// Leaves the cluster and ends what this node does: requests that wait for the next driver get its
    /// answer.
    async fn end(mut self, member: Option<Arc<Member>>, grace: Duration) {
        self.stop_helping().await;
        self.files.remove_server(&self.url);
        drop(self.socket);
        if !self.tasks.stop(grace).await {
            tracing::warn!("some requests did not end within the grace");
        }
        if let Some(member) = member
            && let Err(error) = blocking(&self.tasks, move || member.leave()).await
        {
            tracing::warn!(%error, "could not leave the cluster; the lease ends by itself");
        }
        self.seat.leave();
    }
}

/// Returns true for a failure that says nothing about the database itself.
fn may_pass(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Away { .. } | StoreError::Busy | StoreError::Fenced | StoreError::Closed
    )
}

/// Calls what blocks on a thread of its own.
async fn blocking<T: Send + 'static>(
    tasks: &Tasks,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, HostError> {
    match tasks.spawn_blocking(work).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(StoreError::Closed.into()),
    }
}
