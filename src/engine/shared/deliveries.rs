//! The work of the lanes: makes the changes that wait for stores of somebody else's.
//!
//! The order of a scope is that of the commits, also across a crash: the row of a change is gone
//! durably before the next change is made.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde_json::json;

use crate::{
    engine::{
        EngineError,
        shared::{lanes::Lane, message::Internal, shards::Shared},
    },
    fault,
    protocol::{ChangeKey, Code, DurationMs, EventSource, LifecycleEvent, ObservableEvent},
    store::{ForeignChange, OutboxRow, StoreError, Write, commit},
};

/// The rows that are read at once.
const PAGE: usize = 64;

/// The first pause before a change is made again, and the longest.
const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(60);

/// The pause before the database is asked again.
const STORAGE: Duration = Duration::from_secs(1);

/// The longest time for which somebody waits for changes to be made, before it asks again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Starts the lanes.
pub(crate) fn start(shared: &Arc<Shared>) {
    for scope in shared.lanes.scopes() {
        let host = Arc::clone(shared);
        shared.tasks.spawn(async move {
            let stopping = host.tasks.stopping().clone();
            // What is not made now is made by the next host.
            tokio::select! {
                () = stopping.cancelled() => {}
                () = deliver(&host, &scope) => {}
            }
        });
    }
}

/// Waits until the changes of a scope that a run has asked for are made, before it is read.
///
/// # Errors
/// Fails when they wait for their store.
pub(crate) async fn wait(shared: &Arc<Shared>, run: u64, scope: &str) -> Result<(), EngineError> {
    if settled(shared, run, scope).await {
        return Ok(());
    }
    let why = shared.lanes.trouble(scope).map(|it| format!(": {it}")).unwrap_or_default();
    Err(EngineError::Busy {
        code: Code::Busy,
        message: format!("read state: changes of the run wait for the store of {scope}{why}"),
        retry_after_s: 1,
    })
}

/// Waits until every change of a scope that a run has asked for is made; returns false if that
/// takes too long.
pub(crate) async fn settled(shared: &Arc<Shared>, run: u64, scope: &str) -> bool {
    let Some(lane) = shared.lanes.lane(scope) else { return true };
    let mut made = lane.made.subscribe();
    let look = async {
        loop {
            made.mark_unchanged();
            match on_their_way(shared, Some(scope), Some(run), 1).await {
                Ok(rows) if rows.is_empty() => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
            if made.changed().await.is_err() {
                return false;
            }
        }
    };
    tokio::time::timeout(PATIENCE, look).await.unwrap_or(false)
}

/// Returns changes that have not been made, oldest first.
pub(crate) async fn on_their_way(
    shared: &Arc<Shared>,
    scope: Option<&str>,
    run: Option<u64>,
    most: usize,
) -> Result<Vec<OutboxRow>, StoreError> {
    let (host, scope) = (Arc::clone(shared), scope.map(str::to_owned));
    let read = move || host.store.foreign_changes(scope.as_deref(), run, most);
    shared.tasks.spawn_blocking(read).await.map_err(|_| StoreError::Closed)?
}

/// Makes the changes of a scope, one after the other, as long as the host runs.
async fn deliver(shared: &Arc<Shared>, scope: &str) {
    let Some(lane) = shared.lanes.lane(scope) else { return };
    loop {
        match on_their_way(shared, Some(scope), None, PAGE).await {
            Ok(rows) if rows.is_empty() => {
                lane.waiting.store(0, Ordering::Relaxed);
                lane.wake.notified().await;
            }
            Ok(rows) => {
                for row in rows {
                    make(shared, lane, scope, &row).await;
                }
            }
            Err(error) => {
                tracing::error!(scope, %error, "could not read what is on its way to a store");
                tokio::time::sleep(STORAGE).await;
            }
        }
    }
}

/// Makes one change, however often it takes. Its row is gone when this returns.
async fn make(shared: &Arc<Shared>, lane: &Lane, scope: &str, row: &OutboxRow) {
    let change = row.errand.change_of().map(|(_, payload)| ForeignChange::read(payload));
    let mut pause = FIRST;
    while let Some(Ok(ForeignChange { key, change })) = &change {
        let alone = shared.state.alone_in(scope).await;
        fault::point("engine.foreign_change");
        match shared.state.change_foreign(change, Some(key)).await {
            Ok(_) => {
                fault::point("engine.foreign_changed");
                remove(shared, row).await;
                drop(alone);
                shared.lanes.succeeded(scope);
                break;
            }
            Err(error) if error.is_about_the_change() => {
                refused(shared, lane, row, key, &error.to_string());
                remove(shared, row).await;
                break;
            }
            Err(error) => {
                drop(alone);
                tracing::warn!(run = row.run, scope, %error, "a store did not take a change");
                shared.lanes.failed(scope, error.to_string());
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
    if let Some(Err(error)) = change {
        tracing::error!(run = row.run, scope, %error, "a change in the outbox cannot be read");
        remove(shared, row).await;
    }
    let one_less = |waiting: usize| Some(waiting.saturating_sub(1));
    let _ = lane.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    lane.made.send_modify(|made| *made += 1);
}

/// A store refuses a change for good: the run and the log have it, and the lane goes on.
fn refused(shared: &Shared, lane: &Lane, row: &OutboxRow, key: &ChangeKey, error: &str) {
    tracing::error!(run = row.run, %key, error, "a store refused a change; it is dropped");
    {
        let mut refused = lane.refused.lock();
        let before = refused.as_ref().map_or(0, |(count, _)| *count);
        *refused = Some((before + 1, error.to_owned()));
    }
    let data = json!({ "change": key.to_string(), "error": error });
    let event = ObservableEvent::new(EventSource::State, "change_refused", DurationMs::ZERO, data);
    let event = Box::new(LifecycleEvent::Observable(event));
    shared.tell(row.run, Internal::Tell { step: key.step, event });
}

/// Removes a row from the outbox; it is gone durably when this returns.
async fn remove(shared: &Shared, row: &OutboxRow) {
    loop {
        let gone = vec![Write::DeleteOutbox { run: row.run, step: row.step }];
        match commit(&*shared.store, Vec::new(), None, gone).await {
            Ok(()) => return,
            Err(StoreError::Closed) => {}
            Err(error) => {
                tracing::error!(run = row.run, %error, "could not remove a row of the outbox");
            }
        }
        tokio::time::sleep(STORAGE).await;
    }
}
