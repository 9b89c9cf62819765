//! The subscriptions of a client that speaks an older revision: they belong to its pipe or to its
//! session, and not to a request.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use rmcp::{
    ErrorData,
    model::{PingRequest, ResourceUpdatedNotificationParam, ServerRequest},
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Peer, RESOURCES,
    seats::Seat,
    topic::{Subject, Topic, Wanted},
};
use crate::{
    mcp::{answer::Trouble, listing::List, transport::Transport},
    tasks::Tasks,
};

/// The interval at which the client of a session is asked whether it is still there. A session in
/// which nothing happens for longer is closed.
const PING: Duration = Duration::from_secs(5 * 60);
/// The time in which it must answer that.
const PONG: Duration = Duration::from_secs(60);

/// A topic that begins, with what ends it.
type Begins = (Topic, CancellationToken);

/// The open subscriptions.
#[derive(Debug)]
pub(in crate::mcp) struct Subscribed {
    open: Mutex<Open>,
    begins: mpsc::Sender<Begins>,
}

#[derive(Debug, Default)]
struct Open {
    /// The token that ends a subscription, by its resource.
    resources: BTreeMap<String, CancellationToken>,
    /// The place of these among those of all clients.
    seat: Option<Seat>,
}

/// Watches what is subscribed, and sends the notices.
#[derive(Debug)]
pub(in crate::mcp) struct Watcher {
    subscribed: Arc<Subscribed>,
    begins: mpsc::Receiver<Begins>,
}

/// Creates the subscriptions of a client, and what watches them.
pub(in crate::mcp) fn channel() -> (Arc<Subscribed>, Watcher) {
    let (begins, begun) = mpsc::channel(RESOURCES);
    let subscribed = Arc::new(Subscribed { open: Mutex::default(), begins });
    (Arc::clone(&subscribed), Watcher { subscribed, begins: begun })
}

impl Subscribed {
    /// Begins to watch the lists. To be called before the client is greeted: what it lists then is
    /// the same, or a notice follows. A client that was greeted before, by a session that was closed
    /// meanwhile, is told at once.
    pub(in crate::mcp) async fn greet(&self, transport: &dyn Transport, is_again: bool) {
        let lists = [List::Tools, List::Prompts, List::Resources].into();
        if let Ok(Some(topic)) = Topic::begin(transport, Wanted::Lists(lists)).await {
            let topic = if is_again { topic.outdated() } else { topic };
            // There is room: nothing was subscribed before.
            let _ = self.begins.try_send((topic, CancellationToken::new()));
        }
    }

    /// Begins to watch a resource. To be called before the subscription is confirmed. `seat` takes
    /// the place of the first.
    pub(in crate::mcp) async fn add(
        &self,
        transport: &dyn Transport,
        uri: &str,
        seat: impl FnOnce() -> Result<Option<Seat>, ErrorData>,
    ) -> Result<(), ErrorData> {
        self.check_room(uri)?;
        let begun = Topic::begin(transport, Wanted::Resource(uri.to_owned())).await;
        let Some(topic) = begun.map_err(Trouble::into_error)? else {
            let message =
                format!("there is no resource {uri:?} that this token may read; check the id");
            return Err(ErrorData::resource_not_found(message, None));
        };
        self.check_room(uri)?;
        let mut open = self.open.lock();
        // A place that is not kept is free again.
        let seat = if open.resources.is_empty() { seat()? } else { None };
        let end = CancellationToken::new();
        if self.begins.try_send((topic, end.clone())).is_err() {
            let message = "subscriptions come faster than they begin; try again";
            return Err(ErrorData::internal_error(message, None));
        }
        open.seat = seat.or(open.seat.take());
        if let Some(before) = open.resources.insert(uri.to_owned(), end) {
            before.cancel();
        }
        Ok(())
    }

    /// Returns an error if a resource is one too many.
    fn check_room(&self, uri: &str) -> Result<(), ErrorData> {
        let open = self.open.lock();
        if open.resources.len() < RESOURCES || open.resources.contains_key(uri) {
            return Ok(());
        }
        let message = format!("{RESOURCES} resources are subscribed; unsubscribe one first");
        Err(ErrorData::invalid_request(message, None))
    }

    /// Stops to watch a resource. One that is not watched is none either afterwards.
    pub(in crate::mcp) fn remove(&self, uri: &str) {
        let mut open = self.open.lock();
        if let Some(end) = open.resources.remove(uri) {
            end.cancel();
        }
        if open.resources.is_empty() {
            open.seat = None;
        }
    }

    fn has(&self, uri: &str) -> bool {
        self.open.lock().resources.contains_key(uri)
    }
}

/// The subscriptions of a session, which end with it.
#[derive(Debug)]
pub(in crate::mcp) struct Session {
    subscribed: Arc<Subscribed>,
    /// The watcher, until the client is there.
    watcher: Mutex<Option<Watcher>>,
    tasks: Tasks,
    over: CancellationToken,
    _over: DropGuard,
}

impl Session {
    /// Creates those of a new session.
    pub(in crate::mcp) fn new(tasks: &Tasks) -> Self {
        let (subscribed, watcher) = channel();
        let over = tasks.stopping().child_token();
        Self {
            subscribed,
            watcher: Mutex::new(Some(watcher)),
            tasks: tasks.clone(),
            over: over.clone(),
            _over: over.drop_guard(),
        }
    }

    pub(in crate::mcp) fn subscribed(&self) -> &Subscribed {
        &self.subscribed
    }

    /// Begins to send notices; again, it does nothing.
    pub(in crate::mcp) fn start(&self, transport: Arc<dyn Transport>, peer: Peer) {
        let Some(watcher) = self.watcher.lock().take() else { return };
        let pinged = keep_open(peer.clone());
        let told = watcher.run(transport, peer);
        let served = async move {
            tokio::join!(told, pinged);
        };
        let over = self.over.clone();
        drop(self.tasks.spawn(over.run_until_cancelled_owned(Box::pin(served))));
    }
}

/// Keeps a session open for as long as its client answers.
async fn keep_open(peer: Peer) {
    loop {
        sleep(PING).await;
        let ping = PingRequest { method: Default::default(), extensions: Default::default() };
        let asked = peer.send_request(ServerRequest::PingRequest(ping));
        if !matches!(timeout(PONG, asked).await, Ok(Ok(_))) {
            return;
        }
    }
}

impl Watcher {
    /// Sends notices for as long as it is polled.
    pub(in crate::mcp) async fn run(
        mut self,
        transport: Arc<dyn Transport>,
        peer: Peer,
    ) -> Infallible {
        let (tell, mut told) = mpsc::channel(1);
        let mut watches = FuturesUnordered::new();
        loop {
            let subject = tokio::select! {
                Some((topic, end)) = self.begins.recv() => {
                    let watch = topic.watch(Arc::clone(&transport), tell.clone());
                    watches.push(end.run_until_cancelled_owned(watch));
                    continue;
                }
                Some(_) = watches.next() => continue,
                Some(subject) = told.recv() => subject,
            };
            // A client that has gone is noticed where its messages are read.
            let _ = match subject {
                Subject::List(List::Tools) => peer.notify_tool_list_changed().await,
                Subject::List(List::Prompts) => peer.notify_prompt_list_changed().await,
                Subject::List(List::Resources) => peer.notify_resource_list_changed().await,
                Subject::Resource(uri) if self.subscribed.has(&uri) => {
                    let update = ResourceUpdatedNotificationParam::new(uri);
                    peer.notify_resource_updated(update).await
                }
                Subject::Resource(_) => continue,
            };
        }
    }
}
