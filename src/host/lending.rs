//! The node that drives, at its end of the link to one that helps it: lends it runs for as long as the link
//! is there.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::timeout};

use super::frames::{FrameLink, Hello, LinkEnds, LinkError};
use crate::{
    clock::Clock,
    door::{HelpRequest, HelpStream, OnHelp},
    engine::{Engine, FromHelper, LendingLink, ToHelper},
    tasks::Tasks,
};

/// The maximum time until a connection that was accepted goes on as a link.
const ACCEPTED: Duration = Duration::from_secs(5);
/// The number of messages of a helper that wait for the engine.
const WAITING: usize = 64;

/// Returns what takes nodes that want to help. `me` has the first words of this node.
pub(super) fn on_help(engine: &Engine, me: Hello, tasks: &Tasks) -> OnHelp {
    let (engine, spawning) = (engine.clone(), tasks.clone());
    Arc::new(move |asked: HelpRequest| {
        let (engine, me, tasks) = (engine.clone(), me.clone(), spawning.clone());
        spawning.spawn(async move { serve(&engine, &me, &tasks, asked).await });
    })
}

/// Lends runs over a connection until it ends, or the host stops.
async fn serve(engine: &Engine, me: &Hello, tasks: &Tasks, asked: HelpRequest) {
    let stopping = tasks.stopping();
    let opened = tokio::select! {
        opened = open(me, asked) => opened,
        () = stopping.cancelled() => return,
    };
    let (link, Hello { node, name, .. }) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            tracing::warn!(%error, "a node that wanted to help is turned away");
            return;
        }
    };
    tracing::info!(node, %name, "a node helps with the runs");
    let (to, outgoing) = mpsc::unbounded_channel();
    let (incoming, from) = mpsc::channel(WAITING);
    let carried = async {
        let ends = LinkEnds { outgoing, incoming };
        let encode = |message: &ToHelper| Ok(message.encode());
        tokio::select! {
            error = link.carry(ends, encode, FromHelper::decode) => Some(error),
            () = stopping.cancelled() => None,
        }
    };
    // It takes the runs back when the link has ended, so it is never dropped.
    let lent = engine.lending().lend_to(node, LendingLink { to, from });
    match tokio::join!(carried, lent) {
        (Some(error), ()) => {
            tracing::info!(node, %name, %error, "a node no longer helps; its runs go on here");
        }
        (None, ()) => tracing::info!(node, %name, "a node no longer helps: this one stops"),
    }
}

async fn open(me: &Hello, asked: HelpRequest) -> Result<(FrameLink<HelpStream>, Hello), LinkError> {
    let accepted = timeout(ACCEPTED, asked.accept()).await;
    let stream = accepted.map_err(|_| LinkError::Silent)??;
    FrameLink::open(stream, me, Clock::system()).await
}
