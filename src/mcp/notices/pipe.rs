//! The subscriptions of a client of a pipe that speaks an older revision: they belong to the
//! connection, and not to a request.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use futures::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use rmcp::{ErrorData, model::ResourceUpdatedNotificationParam};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    Peer, RESOURCES,
    topic::{Subject, Topic},
};
use crate::mcp::{answer::Trouble, transport::Transport};

/// A topic that begins, with what ends it.
type Begins = (Topic, CancellationToken);

/// The open subscriptions.
#[derive(Debug)]
pub(in crate::mcp) struct Subscribed {
    /// The token that ends a subscription, by its resource.
    open: Mutex<BTreeMap<String, CancellationToken>>,
    begins: mpsc::Sender<Begins>,
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
    /// Begins to watch the list of tools. To be called before the client is greeted: what it lists
    /// then is the same, or a notice follows.
    pub(in crate::mcp) async fn greet(&self, transport: &dyn Transport) {
        if let Ok(Some(topic)) = Topic::begin(transport, Subject::Tools).await {
            // There is room: nothing was subscribed before.
            let _ = self.begins.try_send((topic, CancellationToken::new()));
        }
    }

    /// Begins to watch a resource. To be called before the subscription is confirmed.
    pub(in crate::mcp) async fn add(
        &self,
        transport: &dyn Transport,
        uri: &str,
    ) -> Result<(), ErrorData> {
        let is_full = {
            let open = self.open.lock();
            open.len() >= RESOURCES && !open.contains_key(uri)
        };
        if is_full {
            let message = format!("{RESOURCES} resources are subscribed; unsubscribe one first");
            return Err(ErrorData::invalid_request(message, None));
        }
        let begun = Topic::begin(transport, Subject::Resource(uri.to_owned())).await;
        let Some(topic) = begun.map_err(Trouble::into_error)? else {
            let message =
                format!("there is no resource {uri:?} that this token may read; check the id");
            return Err(ErrorData::resource_not_found(message, None));
        };
        let end = CancellationToken::new();
        if self.begins.try_send((topic, end.clone())).is_err() {
            let message = "subscriptions come faster than they begin; try again";
            return Err(ErrorData::internal_error(message, None));
        }
        if let Some(before) = self.open.lock().insert(uri.to_owned(), end) {
            before.cancel();
        }
        Ok(())
    }

    /// Stops to watch a resource. One that is not watched is none either afterwards.
    pub(in crate::mcp) fn remove(&self, uri: &str) {
        if let Some(end) = self.open.lock().remove(uri) {
            end.cancel();
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
            // A client that has gone is noticed where its pipe is read.
            let _ = match subject {
                Subject::Tools => peer.notify_tool_list_changed().await,
                Subject::Resource(uri) if self.subscribed.open.lock().contains_key(&uri) => {
                    let update = ResourceUpdatedNotificationParam::new(uri);
                    peer.notify_resource_updated(update).await
                }
                Subject::Resource(_) => continue,
            };
        }
    }
}
