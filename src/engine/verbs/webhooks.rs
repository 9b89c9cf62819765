//! Posts opened tasks to the webhooks of the host.
//!
//! A receiver that is away gets them once it is back, for a day: the pauses grow up to ten minutes.
//! The posted body has no link that answers, so it is of no use to whoever may not answer anyway.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde_json::json;

use crate::{
    engine::{
        Engine, rfc3339,
        shared::{
            announcements::{Announcement, GIVEN_UP_MS, MOST, WebhookQueue, id, layer},
            shards::Shared,
        },
    },
    fault,
    operator::{Posted, Prompt, inquiry_of},
    store::{KeptRow, StoreError, TaskRow, Write, commit},
};

/// The rows that are read at once.
const PAGE: usize = 64;
/// The first pause before an announcement is posted again, and the longest.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(600);
/// The pause before the database is asked again.
const STORAGE: Duration = Duration::from_secs(1);
const STORAGE_MS: u64 = 1_000;
/// The longest text of a prompt in an announcement, in characters.
const TEXT: usize = 4_000;

/// The time at which an announcement that was not taken is posted again.
#[derive(Clone, Copy)]
struct Later {
    at_ms: u64,
    pause: Duration,
}

/// The fate of an announcement.
enum Fate {
    /// The announcement is not posted again.
    Over,
    /// The announcement is posted again after a pause.
    Again(Option<Duration>),
}

impl Engine {
    /// Starts to post to the webhooks.
    pub(crate) fn announce(&self) {
        for (name, _) in self.shared().announcements.iter() {
            let (shared, name) = (Arc::clone(&self.inner.shared), name.clone());
            self.shared().tasks.spawn(async move {
                let stopping = shared.tasks.stopping().clone();
                // What is not posted now is posted by the next host.
                tokio::select! {
                    () = stopping.cancelled() => {}
                    () = post_all(&shared, &name) => {}
                }
            });
        }
    }
}

/// Posts what waits for a webhook, as long as the host runs.
async fn post_all(shared: &Arc<Shared>, name: &str) {
    let Some(queue) = shared.announcements.queue(name) else { return };
    let client = match queue.webhook.client() {
        Ok(client) => client,
        Err(error) => {
            tracing::error!(webhook = name, %error, "no task is announced");
            *queue.trouble.lock() = Some(error.to_string());
            return;
        }
    };
    let mut later: HashMap<String, Later> = HashMap::new();
    loop {
        let (mut after, mut waiting, mut next_ms) = (String::new(), 0, u64::MAX);
        let mut known: HashMap<String, Later> = HashMap::new();
        loop {
            let rows = match page(shared, name, &after).await {
                Ok(rows) => rows,
                Err(error) => {
                    tracing::error!(webhook = name, %error, "could not read what waits for it");
                    // Nothing would wake it for what is there already.
                    next_ms = next_ms.min(shared.clock.now_ms() + STORAGE_MS);
                    break;
                }
            };
            let Some(last) = rows.last() else { break };
            after.clone_from(&last.key);
            for row in rows {
                let now_ms = shared.clock.now_ms();
                let due = later.get(&row.key).copied();
                if let Some(wait) = due.filter(|wait| wait.at_ms > now_ms) {
                    next_ms = next_ms.min(wait.at_ms);
                    known.insert(row.key, wait);
                    waiting += 1;
                    continue;
                }
                match post(shared, queue, name, &client, &row).await {
                    Fate::Over => remove(shared, name, row.key).await,
                    Fate::Again(asked) => {
                        let pause = due.map_or(FIRST, |wait| (wait.pause * 2).min(LONGEST));
                        let wait = asked.unwrap_or(pause).max(FIRST);
                        let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                        let at_ms = shared.clock.now_ms().saturating_add(ms);
                        next_ms = next_ms.min(at_ms);
                        known.insert(row.key, Later { at_ms, pause });
                        waiting += 1;
                    }
                }
            }
            if waiting > MOST {
                break;
            }
        }
        later = known;
        queue.waiting.store(waiting, Ordering::Relaxed);
        let pause_ms = next_ms.saturating_sub(shared.clock.now_ms());
        tokio::select! {
            () = queue.wake.notified() => {}
            () = shared.clock.sleep(pause_ms), if next_ms < u64::MAX => {}
        }
    }
}

/// Posts one announcement.
async fn post(
    shared: &Arc<Shared>,
    queue: &WebhookQueue,
    name: &str,
    client: &reqwest::Client,
    row: &KeptRow,
) -> Fate {
    let Ok(it) = serde_json::from_str::<Announcement>(&row.value) else { return Fate::Over };
    let now_ms = shared.clock.now_ms();
    if now_ms.saturating_sub(it.at_ms) > GIVEN_UP_MS {
        queue.lost.fetch_add(1, Ordering::Relaxed);
        tracing::error!(webhook = name, task = %it.task, "a task was never announced");
        return Fate::Over;
    }
    let (host, task) = (Arc::clone(shared), it.task);
    let read = move || host.store.task(task.run(), task.step());
    let Ok(Ok(open)) = shared.tasks.spawn_blocking(read).await else { return Fate::Again(None) };
    // Of a task that has ended, or is asked again, there is nothing to say any more.
    let Some(open) = open.filter(|row| row.attempt == it.attempt) else { return Fate::Over };
    let Some(body) = body(shared, &it, &open) else { return Fate::Over };
    fault::point("engine.webhook");
    match queue.webhook.post(client, &id(&it), &body, now_ms).await {
        Posted::Taken => {
            fault::point("engine.webhook_taken");
            *queue.trouble.lock() = None;
            Fate::Over
        }
        Posted::Unwanted => {
            tracing::warn!(webhook = name, task = %it.task, "it wants no more of a task (410)");
            Fate::Over
        }
        Posted::NotYet { reason, pause } => {
            tracing::warn!(webhook = name, task = %it.task, reason, "it did not take a task");
            *queue.trouble.lock() = Some(reason);
            Fate::Again(pause)
        }
    }
}

/// Returns what is posted.
fn body(shared: &Shared, it: &Announcement, row: &TaskRow) -> Option<String> {
    let inquiry = inquiry_of(row)?;
    let prompt = serde_json::from_str::<Prompt>(&row.prompt).ok()?;
    let text: String = prompt.prompt.chars().take(TEXT).collect();
    let expires = row.deadline_ms.map(|at| rfc3339(shared.clock.wall_of(at)));
    let url =
        shared.url.get().map(|url| format!("{}/ui/inbox/{}", url.trim_end_matches('/'), it.task));
    let body = json!({
        "type": "task.opened",
        "at": rfc3339(it.at_ms),
        "task": it.task,
        "run": it.run,
        "blueprint": it.blueprint,
        "agent": row.agent,
        "step": row.step,
        "attempt": row.attempt,
        "summary": row.summary,
        "prompt": text,
        "by": inquiry.by,
        "required": inquiry.required,
        "revision": inquiry.revision,
        "expires_at": expires,
        "url": url,
    });
    Some(body.to_string())
}

async fn page(shared: &Arc<Shared>, name: &str, after: &str) -> Result<Vec<KeptRow>, StoreError> {
    let (host, layer, after) = (Arc::clone(shared), layer(name), after.to_owned());
    let read = move || host.store.kept_by(&layer, &after, PAGE);
    shared.tasks.spawn_blocking(read).await.map_err(|_| StoreError::Closed)?
}

/// Removes a row; it is gone durably when this returns.
async fn remove(shared: &Shared, name: &str, key: String) {
    loop {
        let taken = vec![Write::RemoveKept { layer: layer(name), key: key.clone() }];
        match commit(&*shared.store, Vec::new(), None, taken).await {
            Ok(()) => return,
            Err(StoreError::Closed) => {}
            Err(error) => {
                tracing::error!(webhook = name, %error, "could not remove what it has taken");
            }
        }
        tokio::time::sleep(STORAGE).await;
    }
}
