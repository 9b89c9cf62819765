//! A node that stands by, as a helper of the one that drives: it drives the runs that it is lent.
//!
//! It has an engine of its own, which reads the database and writes nothing: what it would write goes over
//! the link, and the node that drives commits it. When the link ends, everything of it ends, and the node
//! that drives goes on with the runs.
//!
//! | this node | and then | it |
//! |---|---|---|
//! | stands by, with a trusted lease | sees a node of its release that drives | opens a link to it |
//! | has a link | is lent its first run | opens its engine |
//! | has a link | sees that one end, or another one drive; or the link breaks | ends its engine, and looks again |
//! | has a link | is to take over, to leave or to stop | ends its engine |
//!
//! The children of attempts are why at most one engine of this process may be at work: a new one sweeps what
//! earlier ones left in the data directory.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::RwLock;
use tokio::{
    runtime::Handle,
    sync::{Mutex, mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    HostConfig, HostError, boot,
    cluster_keys::ClusterKeys,
    files::{DataFiles, HostKeys as _},
    frames::{FrameLink, Hello, LinkEnds, LinkError},
    parts::{self, EngineBase},
};
use crate::{
    clock::Clock,
    door::{Forwarder, HelpStream},
    engine::{Engine, FromHelper, Recovery, ToHelper},
    environment::Environments,
    metrics::Scrape,
    store::{Carrier, ClusterView, Member, Parcel, PeerAddress, Postgres, Relay, StoreError},
    tasks::{Spawned, Tasks},
};

/// The pause before the next link, after one has ended.
const AGAIN: Duration = Duration::from_secs(1);
/// The pause before the next link, after the other node refused one.
const REFUSED: Duration = Duration::from_secs(5);
/// The longest pause after the engine could not be opened. The pauses begin with that after a refusal.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The interval at which the node that drives gets to know how much this one has to do, in milliseconds.
const LOAD_MS: u64 = 500;
/// The number of messages that wait for the engine.
const WAITING: usize = 64;
/// The maximum time that what the engine has spawned has to end.
const GRACE: Duration = Duration::from_secs(1);
/// The maximum time that children have to end.
const CHILDREN: Duration = Duration::from_secs(5);
/// The maximum time for which whoever ends the help waits for that.
const END: Duration = Duration::from_secs(3);

/// The parts of a node that its help uses.
pub(super) struct HelpParts {
    pub(super) config: HostConfig,
    pub(super) member: Arc<Member>,
    pub(super) forwarder: Forwarder,
    pub(super) files: DataFiles,
    pub(super) view: watch::Receiver<ClusterView>,
    /// The name of this node, for people.
    pub(super) name: String,
    /// The base URL of this node, and its address for clients.
    pub(super) reached: (String, SocketAddr),
    pub(super) counts: HelpCounts,
    pub(super) tasks: Tasks,
}

/// The counters of the engine of a node that helps, while it has one.
#[derive(Clone, Default)]
pub(super) struct HelpCounts(Arc<RwLock<Option<Engine>>>);

impl HelpCounts {
    /// Adds the numbers to a reading.
    pub(super) fn measure(&self, scrape: &mut Scrape) {
        if let Some(engine) = &*self.0.read() {
            engine.counts().collect(scrape);
        }
    }
}

/// The help of a node that stands by. Dropping it ends the help, without waiting for that.
pub(super) struct Helping {
    stop: CancellationToken,
    done: Option<Spawned<()>>,
    sweeping: Arc<Mutex<()>>,
}

impl Helping {
    /// Helps the node that drives from now on, whenever there is one.
    pub(super) fn start(parts: HelpParts) -> Self {
        let (stop, sweeping) = (CancellationToken::new(), Arc::<Mutex<()>>::default());
        let tasks = parts.tasks.clone();
        let helps = Helps { parts, stop: stop.clone(), sweeping: Arc::clone(&sweeping) };
        let helps = Arc::new(helps);
        let done = tasks.spawn(async move { helps.go_on().await });
        Self { stop, done: Some(done), sweeping }
    }

    /// Ends the help. After a few seconds, what is left ends by itself; it writes nothing any more, and what
    /// opens an engine next may sweep its children.
    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        let Some(done) = self.done.take() else { return };
        if timeout(END, done).await.is_err() {
            tracing::warn!("the runs of another node have not ended in time; they end meanwhile");
        }
        // A sweep that has begun must not meet the children of the next engine.
        drop(self.sweeping.lock().await);
    }
}

impl Drop for Helping {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The node to help.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lender {
    node: i64,
    peer: PeerAddress,
}

impl Lender {
    /// Returns the node that drives, if this one may help it: both have one release, and this one has a
    /// lease like any other standby.
    fn of(view: &ClusterView, me: i64) -> Option<Self> {
        let is_well = view.me == me
            && !view.fenced
            && view.refusal.is_none()
            && view.trusted_ms() > 0
            && view.nodes.iter().any(|it| it.node == me && !it.has_runs());
        let driver = view.driver().filter(|it| is_well && it.node != me)?;
        let peer = driver.peer.clone().filter(|_| driver.version == env!("CARGO_PKG_VERSION"))?;
        Some(Self { node: driver.node, peer })
    }
}

/// The reason why a node helps another one no more.
enum HelpEnd {
    /// The link broke, or there is no reason for it any more.
    Link(Option<LinkError>),
    /// The engine could not be opened.
    Engine(HostError),
    /// The help is to end.
    Stopped,
}

/// The task of the help.
struct Helps {
    parts: HelpParts,
    stop: CancellationToken,
    /// Held while the children of earlier engines are ended.
    sweeping: Arc<Mutex<()>>,
}

impl Helps {
    /// Helps one node after another, until the help is to end.
    async fn go_on(self: Arc<Self>) {
        let mut failures: u32 = 0;
        loop {
            let lender = tokio::select! {
                lender = self.lender() => lender,
                () = self.stop.cancelled() => return,
            };
            // Without a view, this process ends.
            let Some(lender) = lender else { return };
            let link = tokio::select! {
                link = self.connect(&lender) => link,
                () = self.stop.cancelled() => return,
            };
            let pause = match link {
                Ok(link) => {
                    tracing::info!(driver = lender.node, "this node helps the one that drives");
                    match self.help(&lender, link).await {
                        HelpEnd::Stopped => return,
                        HelpEnd::Link(error) => {
                            failures = 0;
                            let reason = error.map_or_else(
                                || "it is not the one to help any more".to_owned(),
                                |error| format!("failed to {error}"),
                            );
                            tracing::info!(driver = lender.node, %reason, "this node helps no more");
                            AGAIN
                        }
                        HelpEnd::Engine(error) => {
                            let pause = REFUSED.saturating_mul(1 << failures).min(LONGEST_PAUSE);
                            failures = (failures + 1).min(4);
                            tracing::warn!(%error, "no engine for the runs of another node");
                            pause
                        }
                    }
                }
                Err(LinkError::Refused(reason)) => {
                    tracing::warn!(driver = lender.node, %reason, "this node may not help");
                    REFUSED
                }
                Err(LinkError::Io(error)) if error.kind() == std::io::ErrorKind::Unsupported => {
                    tracing::debug!(driver = lender.node, "the node that drives wants no help");
                    REFUSED
                }
                Err(error) => {
                    tracing::debug!(driver = lender.node, %error, "no link to help over");
                    AGAIN
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    fn me(&self) -> i64 {
        self.parts.member.node()
    }

    /// Waits for a node to help.
    async fn lender(&self) -> Option<Lender> {
        let mut view = self.parts.view.clone();
        let wanted = |view: &ClusterView| view.reached && Lender::of(view, self.me()).is_some();
        let seen = view.wait_for(wanted).await.ok()?;
        Lender::of(&seen, self.me())
    }

    async fn connect(&self, lender: &Lender) -> Result<FrameLink<HelpStream>, LinkError> {
        let stream = self.parts.forwarder.open_help(&lender.peer).await?;
        let hello = Hello::new(self.me(), &self.parts.name);
        let (link, _) = FrameLink::open(stream, &hello, Clock::system()).await?;
        Ok(link)
    }

    /// Waits until a node is no longer the one to help.
    async fn is_over(&self, lender: &Lender) {
        let (clock, mut view) = (Clock::system(), self.parts.view.clone());
        while Lender::of(&view.borrow_and_update(), self.me()).as_ref() == Some(lender) {
            tokio::select! {
                changed = view.changed() => if changed.is_err() { return },
                () = clock.sleep(LOAD_MS) => {}
            }
        }
    }

    /// Drives the runs that are lent over a link, until it ends. Nothing of them is left then.
    async fn help(self: &Arc<Self>, lender: &Lender, link: FrameLink<HelpStream>) -> HelpEnd {
        let (says, outgoing) = mpsc::unbounded_channel();
        let (incoming, told) = mpsc::channel(WAITING);
        let ends = LinkEnds { outgoing, incoming };
        let mut lent = LentEngine { helps: Arc::clone(self), says, opening: None, opened: None };
        let ended = tokio::select! {
            error = link.carry(ends, FromHelper::encode, ToHelper::decode) => {
                HelpEnd::Link(Some(error))
            }
            ended = lent.attend(told) => match ended {
                Ok(never) => match never {},
                Err(error) => HelpEnd::Engine(error),
            },
            () = self.is_over(lender) => HelpEnd::Link(None),
            () = self.stop.cancelled() => HelpEnd::Stopped,
        };
        lent.close().await;
        ended
    }
}

/// The engine for the runs of another node, over one link.
struct LentEngine {
    helps: Arc<Helps>,
    says: mpsc::UnboundedSender<FromHelper>,
    /// The engine, while it is opened.
    opening: Option<Spawned<Result<Opened, HostError>>>,
    /// Absent until the first run is lent: a standby without work stays small.
    opened: Option<Opened>,
}

/// An engine that is open.
struct Opened {
    engine: Engine,
    relay: Arc<Relay>,
    store: Arc<Postgres>,
    environments: Arc<Environments>,
    tasks: Tasks,
}

impl LentEngine {
    /// Does what the node that drives says. Returns only if it fails to.
    ///
    /// # Errors
    /// Fails when the engine cannot be opened.
    async fn attend(
        &mut self,
        mut told: mpsc::Receiver<ToHelper>,
    ) -> Result<Infallible, HostError> {
        let clock = Clock::system();
        let mut next_ms = clock.steady_ms();
        loop {
            tokio::select! {
                Some(message) = told.recv() => self.take(message).await?,
                () = clock.sleep_until_either(u64::MAX, next_ms) => {
                    let idle = FromHelper::Load { waiting: 0, tight: false };
                    let load = self.opened.as_ref().map_or(idle, |it| it.engine.lending().load());
                    // The link may have ended a moment ago.
                    let _ = self.says.send(load);
                    next_ms = clock.steady_ms().saturating_add(LOAD_MS);
                }
            }
        }
    }

    async fn take(&mut self, message: ToHelper) -> Result<(), HostError> {
        match message {
            ToHelper::Take { run, publisher } => {
                self.open().await?.engine.lending().take(run, publisher.as_ref());
            }
            // Without an engine, nothing was lent.
            ToHelper::Recall { run, patience } => {
                if let Some(it) = &self.opened {
                    it.engine.lending().recall(run, patience);
                }
            }
            ToHelper::Settled { number, result } => {
                if let Some(it) = &self.opened {
                    it.relay.settled(number, result);
                }
            }
        }
        Ok(())
    }

    /// Returns the engine; opens it before that.
    ///
    /// # Cancel safety
    /// May be dropped at any time: the engine is opened meanwhile.
    async fn open(&mut self) -> Result<&Opened, HostError> {
        if self.opened.is_none() {
            let (helps, says) = (&self.helps, &self.says);
            let opening = self.opening.get_or_insert_with(|| {
                helps.parts.tasks.spawn(open(Arc::clone(helps), says.clone()))
            });
            let opened = opening.await;
            self.opening = None;
            let opened = opened.map_err(|_| StoreError::Closed)??;
            *helps.parts.counts.0.write() = Some(opened.engine.clone());
            self.opened = Some(opened);
        }
        self.opened.as_ref().ok_or_else(|| StoreError::Closed.into())
    }

    /// Ends the engine with everything of it. Nothing that it would still write is stored.
    async fn close(mut self) {
        if let Some(opening) = self.opening.take() {
            self.opened = opening.await.ok().and_then(Result::ok);
        }
        let parts = &self.helps.parts;
        *parts.counts.0.write() = None;
        let Some(Opened { engine, relay, store, environments, tasks }) = self.opened.take() else {
            return;
        };
        relay.close();
        tasks.stopping().cancel();
        engine.stop().await;
        if !tasks.stop(GRACE).await {
            tracing::warn!("some work for another node did not end within the grace");
        }
        let ended = parts.tasks.spawn_blocking(move || {
            environments.end();
            store.close()
        });
        match timeout(CHILDREN, ended).await {
            Ok(Ok(Err(error))) => tracing::warn!(%error, "could not close the database"),
            Ok(Ok(Ok(())) | Err(_)) => {}
            Err(_) => tracing::warn!("some children did not end"),
        }
    }
}

/// Takes what the engine writes to the link, in one line with what it says.
struct Parcels(mpsc::UnboundedSender<FromHelper>);

impl Carrier for Parcels {
    fn send(&self, number: u64, parcel: Parcel) {
        // After the end of the link, the relay is closed too.
        let _ = self.0.send(FromHelper::Parcel { number, parcel: Box::new(parcel) });
    }
}

/// Opens an engine for the runs of another node, which `says` leads to.
async fn open(
    helps: Arc<Helps>,
    says: mpsc::UnboundedSender<FromHelper>,
) -> Result<Opened, HostError> {
    let tasks = Tasks::new(Handle::current());
    let environments = Arc::new(parts::environments(&helps.parts.config));
    let held = Arc::clone(&helps.sweeping).lock_owned().await;
    if helps.stop.is_cancelled() {
        return Err(StoreError::Closed.into());
    }
    let sweeping = Arc::clone(&environments);
    let swept = tasks.spawn_blocking(move || {
        let _held = held;
        sweeping.sweep();
    });
    if let Err(error) = swept.await {
        tracing::warn!(%error, "what the host before has left may still be there");
    }
    let opening = tasks.clone();
    let opened = tasks.spawn_blocking(move || start(&helps.parts, says, environments, opening));
    let opened = opened.await.map_err(|_| StoreError::Closed)?;
    if opened.is_err() {
        tasks.stopping().cancel();
    }
    opened
}

/// Opens the database and starts the engine. Blocks.
fn start(
    node: &HelpParts,
    says: mpsc::UnboundedSender<FromHelper>,
    environments: Arc<Environments>,
    tasks: Tasks,
) -> Result<Opened, HostError> {
    let HelpParts { config, member, files, reached: (url, address), .. } = node;
    let relay = Relay::new(Arc::new(Parcels(says.clone())));
    let store = Postgres::reading(member, Arc::clone(&relay))?;
    // The first node that drives makes it, before anything else.
    let incarnation = parts::incarnation(&*store)?.ok_or(StoreError::Closed)?;
    let key_files = Arc::new(ClusterKeys::new(Arc::clone(member), files.clone()));
    let base = EngineBase {
        store: Arc::clone(&store) as _,
        clock: Clock::system_ahead(boot::clock_offset(&*store, &*store)?),
        tasks: tasks.clone(),
        environments: Arc::clone(&environments),
        keys: key_files.open(incarnation)?,
        key_files,
        recovery: Recovery::Asked,
        helps: Some(says),
    };
    let engine = Engine::start_up(base.parts(config))?;
    engine.set_url(&parts::url(config, url, *address));
    if let Some(export) = config.export.as_ref().filter(|export| export.traces.is_some()) {
        engine.set_traced(export.sampling);
    }
    Ok(Opened { engine, relay, store, environments, tasks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::boot_ms,
        store::{NodeRow, NodeState},
    };

    const ME: i64 = 2;

    fn node(node: i64, state: NodeState) -> NodeRow {
        NodeRow {
            node,
            name: node.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            format: 1,
            state,
            url: String::new(),
            peer: Some(PeerAddress { at: "there:1".to_owned(), fingerprint: [7; 32] }),
            lease_ms: 5_000,
            started_ms: 0,
            clock_ms: None,
        }
    }

    fn view(driver: NodeRow) -> ClusterView {
        ClusterView {
            me: ME,
            nodes: vec![driver, node(ME, NodeState::Standby)],
            reached: true,
            trusted_until_ms: boot_ms() + 60_000,
            ..ClusterView::default()
        }
    }

    #[test]
    fn a_standby_in_good_standing_helps_a_driver_of_its_release() {
        let driver = || node(1, NodeState::Up);
        let lender = Lender::of(&view(driver()), ME).unwrap();
        assert_eq!((lender.node, lender.peer.at.as_str()), (1, "there:1"));
        for (view, why) in [
            (view(NodeRow { state: NodeState::Draining, ..driver() }), "it hands over"),
            (view(NodeRow { lease_ms: -5_000, ..driver() }), "it is dead"),
            (view(NodeRow { peer: None, ..driver() }), "it has no address"),
            (view(NodeRow { version: "0.0.0".to_owned(), ..driver() }), "it has another release"),
            (view(NodeRow { state: NodeState::Standby, ..driver() }), "nobody drives"),
            (ClusterView { me: 3, ..view(driver()) }, "this node is another one now"),
            (ClusterView { fenced: true, ..view(driver()) }, "this node was ended"),
            (ClusterView { trusted_until_ms: 0, ..view(driver()) }, "its lease is over"),
            (ClusterView { nodes: vec![driver()], ..view(driver()) }, "it is not in the table"),
        ] {
            assert_eq!(Lender::of(&view, ME), None, "{why}");
        }
    }
}
