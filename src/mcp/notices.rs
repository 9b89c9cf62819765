//! Notices of changes: what a client watches, and how it learns that something has changed.
//!
//! A notice has no content: the client reads the resource or the list again, with its own rights.
//! The state to compare with is read before a subscription is confirmed, so no change is missed between
//! the two. `subscriptions/listen` is served here; [`connection`] has the subscriptions of older
//! revisions.

use std::{collections::BTreeSet, sync::Arc};

use futures::{
    FutureExt as _, StreamExt as _,
    stream::{self, FuturesUnordered},
};
use rmcp::{ErrorData, RoleServer, model::SubscriptionFilter, service::SubscriptionContext};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::{
    seats::{Seat, Seats},
    topic::{Subject, Topic, Wanted},
};
use super::{answer::Trouble, listing::List, transport::Transport};

pub(super) mod connection;
mod seats;
mod topic;

/// The maximum number of resources in one subscription, and of those of a pipe or a session.
const RESOURCES: usize = 64;
/// The number of resources that are read at the same time when a subscription begins.
const AT_ONCE: usize = 8;

/// Serves subscriptions.
#[derive(Debug, Clone)]
pub(super) struct Notices {
    seats: Arc<Seats>,
    /// Ends every subscription.
    over: CancellationToken,
}

/// The beginning of a subscription: what its client knows.
#[derive(Debug, Clone)]
pub(super) struct Begun {
    /// The part of the subscription that is served.
    pub(super) accepted: SubscriptionFilter,
    topics: Vec<Topic>,
    _seat: Arc<Seat>,
}

impl Notices {
    /// Creates the server of subscriptions; `over` ends them all.
    pub(super) fn new(over: CancellationToken) -> Self {
        Self { seats: Arc::default(), over }
    }

    /// Reads what a client knows when its subscription begins. A resource that its token may not
    /// read is not accepted. `client` counts its subscriptions.
    pub(super) async fn begin(
        &self,
        transport: &dyn Transport,
        client: [u8; 32],
        wanted: &SubscriptionFilter,
    ) -> Result<Begun, ErrorData> {
        let uris: BTreeSet<&String> = wanted.resource_subscriptions.iter().flatten().collect();
        if uris.len() > RESOURCES {
            let message = format!(
                "a subscription has at most {RESOURCES} resources, and this one has {}: watch the \
                 run instead of its steps",
                uris.len()
            );
            return Err(ErrorData::invalid_params(message, None));
        }
        let seat = self.seat(client)?;
        let mut subjects: Vec<Wanted> = uris.into_iter().cloned().map(Wanted::Resource).collect();
        let lists = [
            (wanted.tools_list_changed, List::Tools),
            (wanted.prompts_list_changed, List::Prompts),
            (wanted.resources_list_changed, List::Resources),
        ];
        let lists = lists.into_iter().filter(|(wanted, _)| *wanted == Some(true));
        let lists: BTreeSet<List> = lists.map(|(_, list)| list).collect();
        if !lists.is_empty() {
            subjects.push(Wanted::Lists(lists));
        }
        let begun = subjects.into_iter().map(|wanted| Topic::begin(transport, wanted).boxed());
        let begun: Vec<Result<Option<Topic>, Trouble>> =
            stream::iter(begun).buffered(AT_ONCE).collect().await;
        let begun: Result<Vec<_>, _> = begun.into_iter().collect();
        let topics: Vec<Topic> =
            begun.map_err(Trouble::into_error)?.into_iter().flatten().collect();
        let mut accepted = SubscriptionFilter::new();
        for subject in topics.iter().flat_map(Topic::subjects) {
            match subject {
                Subject::List(List::Tools) => accepted.tools_list_changed = Some(true),
                Subject::List(List::Prompts) => accepted.prompts_list_changed = Some(true),
                Subject::List(List::Resources) => accepted.resources_list_changed = Some(true),
                Subject::Resource(uri) => {
                    accepted.resource_subscriptions.get_or_insert_default().push(uri.clone());
                }
            }
        }
        Ok(Begun { accepted, topics, _seat: Arc::new(seat) })
    }

    /// Takes a place for a subscription of a client.
    pub(super) fn seat(&self, client: [u8; 32]) -> Result<Seat, ErrorData> {
        self.seats.take(client).ok_or_else(|| {
            let message = "too many subscriptions are open; cancel one, or put its resources into \
                           another";
            ErrorData::invalid_request(message, None)
        })
    }

    /// Serves a subscription until its client cancels it, or everything ends.
    pub(super) async fn serve(
        &self,
        transport: &Arc<dyn Transport>,
        begun: Begun,
        context: &SubscriptionContext,
    ) {
        let (tell, mut told) = mpsc::channel(1);
        let watches = begun.topics.into_iter();
        let watches = watches.map(|topic| topic.watch(Arc::clone(transport), tell.clone()));
        let mut watches: FuturesUnordered<_> = watches.collect();
        loop {
            let subject = tokio::select! {
                () = self.over.cancelled() => return,
                () = context.cancelled() => return,
                Some(subject) = told.recv() => subject,
                Some(()) = watches.next() => continue,
            };
            let sink = context.sink();
            let sent = async {
                match subject {
                    Subject::List(List::Tools) => sink.notify_tool_list_changed().await,
                    Subject::List(List::Prompts) => sink.notify_prompt_list_changed().await,
                    Subject::List(List::Resources) => sink.notify_resource_list_changed().await,
                    Subject::Resource(uri) => sink.notify_resource_updated(uri).await,
                }
            };
            // At the end of a connection nobody takes a notice any more, nor refuses it.
            tokio::select! {
                () = self.over.cancelled() => return,
                () = context.cancelled() => return,
                sent = sent => match sent {
                    Ok(()) => {}
                    Err(_) => return,
                },
            }
        }
    }
}

type Peer = rmcp::service::Peer<RoleServer>;
