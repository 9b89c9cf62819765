//! The stored data of layers, and the audit log with its hash chain.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{
    clock::Clock,
    middleware::{AuditLine, Chained, Change, Keep},
    protocol::{Failure, Json},
    store::{Ack, AuditRow, Batch, Store, StoreError, Write},
    tasks::Tasks,
};

/// Stores the data of layers in the store.
#[derive(Clone)]
pub(crate) struct AuditLog(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    clock: Clock,
    tasks: Tasks,
    chain: Mutex<Chain>,
    posted: Arc<Mutex<Posted>>,
}

/// The values that are submitted and not committed, which a reader of the store cannot see yet.
#[derive(Default)]
struct Posted {
    /// The number of changes so far.
    last: u64,
    /// The last change of each key by layer and key, with its number; `None` if it is removed.
    values: HashMap<(String, String), (u64, Option<Kept>)>,
}

/// A value, with the time at which it expires.
type Kept = (Json, Option<u64>);

/// The end of the audit log's chain.
enum Chain {
    /// Must be read: the read at the start failed, or a line was not stored.
    Unknown,
    After(Option<Chained>),
}

impl AuditLog {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Clock, tasks: Tasks) -> Self {
        let last = store.last_audit().ok();
        let chain = last.map_or(Chain::Unknown, |last| Chain::After(last.map(chained)));
        let (chain, posted) = (Mutex::new(chain), Arc::default());
        Self(Arc::new(Inner { store, clock, tasks, chain, posted }))
    }
}

impl Inner {
    /// Submits a change to the writer; lines of the log in the order of their numbers.
    fn submit(self: &Arc<Self>, change: Change, ack: Ack) {
        let plain = |write, ack| Batch { checks: Vec::new(), run: None, writes: vec![write], ack };
        match change {
            Change::Put { layer, key, value, expires_ms } => {
                let ack = self.posting(&layer, &key, Some((value.clone(), expires_ms)), ack);
                let value = value.as_str().to_owned();
                self.store.submit(plain(Write::PutKept { layer, key, value, expires_ms }, ack));
            }
            Change::Remove { layer, key } => {
                let ack = self.posting(&layer, &key, None, ack);
                self.store.submit(plain(Write::RemoveKept { layer, key }, ack));
            }
            Change::Audit(line) => {
                if let Some(ack) = self.append(&line, ack, false) {
                    // The end of the log is read first, which must not happen on a shard's thread.
                    let inner = Arc::clone(self);
                    self.tasks.spawn_blocking(move || inner.append(&line, ack, true));
                }
            }
        }
    }

    /// Shows a change to readers until it is committed, or has failed. Returns its ack.
    fn posting(&self, layer: &str, key: &str, value: Option<Kept>, ack: Ack) -> Ack {
        let at = (layer.to_owned(), key.to_owned());
        let mut posted = self.posted.lock();
        posted.last += 1;
        let number = posted.last;
        posted.values.insert(at.clone(), (number, value));
        let all = Arc::clone(&self.posted);
        Box::new(move |result| {
            if let Entry::Occupied(entry) = all.lock().values.entry(at)
                && entry.get().0 == number
            {
                entry.remove();
            }
            ack(result);
        })
    }

    /// Appends a line. Returns its ack if the end of the log must be read first, and this thread
    /// must not (`may_read` is false).
    fn append(self: &Arc<Self>, line: &AuditLine, ack: Ack, may_read: bool) -> Option<Ack> {
        // Numbered and submitted under one lock, so that the log has no gaps.
        let mut chain = self.chain.lock();
        let last = match &*chain {
            Chain::After(last) => last.clone(),
            Chain::Unknown if !may_read => return Some(ack),
            Chain::Unknown => match self.store.last_audit() {
                Ok(last) => last.map(chained),
                Err(error) => {
                    drop(chain);
                    ack(Err(error));
                    return None;
                }
            },
        };
        let next = Chained::after(last.as_ref(), self.clock.now_ms(), line);
        let Chained { seq, at, line, hash } = next.clone();
        *chain = Chain::After(Some(next));
        let inner = Arc::clone(self);
        let ack: Ack = Box::new(move |result| {
            if result.is_err() {
                let mut chain = inner.chain.lock();
                *chain = Chain::Unknown;
            }
            ack(result);
        });
        let writes = vec![Write::AddAudit(AuditRow { seq, at, line, hash })];
        self.store.submit(Batch { checks: Vec::new(), run: None, writes, ack });
        None
    }
}

fn chained(row: AuditRow) -> Chained {
    let AuditRow { seq, at, line, hash } = row;
    Chained { seq, at, line, hash }
}

fn storage(what: &str, error: &StoreError) -> Failure {
    Failure::new("storage", format!("{what}: {error}")).retryable()
}

#[async_trait]
impl Keep for AuditLog {
    async fn read(&self, layer: &str, key: &str) -> Result<Option<Json>, Failure> {
        let inner = Arc::clone(&self.0);
        let at = (layer.to_owned(), key.to_owned());
        let posted = self.0.posted.lock().values.get(&at).map(|(_, value)| value.clone());
        let kept = match posted {
            Some(posted) => posted,
            None => {
                let read = move || inner.store.kept(&at.0, &at.1);
                let stopping = |_| Failure::new("storage", "the host is stopping").retryable();
                let kept = self.0.tasks.spawn_blocking(read).await.map_err(stopping)?;
                let kept = kept.map_err(|error| storage("read what a layer keeps", &error))?;
                kept.map(|(value, expires)| (Json::from_trusted(value), expires))
            }
        };
        let now = self.0.clock.now_ms();
        let alive = kept.filter(|(_, expires)| expires.is_none_or(|at| at > now));
        Ok(alive.map(|(value, _)| value))
    }

    async fn write(&self, change: Change) -> Result<(), Failure> {
        let (tell, told) = oneshot::channel();
        // The caller may be gone; the change remains.
        let ack: Ack = Box::new(move |result| drop(tell.send(result)));
        let stopping = || Failure::new("storage", "the host is stopping").retryable();
        self.0.store.room().await;
        self.0.submit(change, ack);
        told.await
            .map_err(|_| stopping())?
            .map_err(|error| storage("keep what a layer keeps", &error))
    }

    fn post(&self, change: Change) {
        let ack: Ack = Box::new(|result| {
            if let Err(error) = result {
                tracing::error!(%error, "what a layer keeps was not stored");
            }
        });
        self.0.submit(change, ack);
    }

    fn joins_commits(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        middleware::{
            DispatchStack, Dispatched, GENESIS, Idempotency, Means, TaskDone,
            fixture::{self, Does},
        },
        protocol::TaskId,
        store::{Options, Reader as _, Sqlite},
    };

    fn line(event: &str) -> Change {
        Change::Audit(Box::new(AuditLine { event: event.into(), ..AuditLine::default() }))
    }

    #[tokio::test]
    async fn the_log_goes_on_after_a_restart_and_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..2 {
            let store = Sqlite::open(dir.path(), &Options::default()).unwrap();
            let tasks = Tasks::new(tokio::runtime::Handle::current());
            let ledger =
                AuditLog::new(Arc::clone(&store) as Arc<dyn Store>, Clock::manual(n), tasks);
            ledger.post(line("a"));
            ledger.write(line("b")).await.unwrap();
            store.close().unwrap();
        }
        let store = Sqlite::open(dir.path(), &Options::default()).unwrap();
        let rows = store.audit(0, 10).unwrap();
        assert_eq!(rows.len(), 4);
        let mut last = (0, GENESIS.to_owned());
        for row in rows {
            let line = chained(row);
            line.follows(last.0, &last.1).unwrap();
            last = (line.seq, line.hash);
        }
    }

    /// Opens a ledger whose commits take long.
    fn slow(dir: &std::path::Path) -> AuditLog {
        let delay = std::time::Duration::from_millis(100);
        let options = Options { commit_delay: delay, ..Options::default() };
        let store = Sqlite::open(dir, &options).unwrap();
        AuditLog::new(store, Clock::manual(5), Tasks::new(tokio::runtime::Handle::current()))
    }

    #[tokio::test]
    async fn what_is_posted_is_read_before_it_is_committed() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = slow(dir.path());
        let put = |value: &str, expires_ms| Change::Put {
            layer: "l".into(),
            key: "a".into(),
            value: Json::parse(value).unwrap(),
            expires_ms,
        };
        let read = async || ledger.read("l", "a").await.unwrap().map(|it| it.as_str().to_owned());
        ledger.post(put("1", None));
        assert_eq!(read().await.as_deref(), Some("1"));
        ledger.post(put("2", Some(6)));
        assert_eq!(read().await.as_deref(), Some("2"));
        ledger.post(put("3", Some(5)));
        assert_eq!(read().await, None, "it has expired");
        ledger.write(put("4", None)).await.unwrap();
        assert!(ledger.0.posted.lock().values.is_empty(), "all of it is stored");
        ledger.post(Change::Remove { layer: "l".into(), key: "a".into() });
        assert_eq!(read().await, None);
    }

    #[tokio::test]
    async fn an_answer_that_is_not_committed_yet_is_not_asked_for_again() {
        let dir = tempfile::tempdir().unwrap();
        let means = Means::of(Arc::new(slow(dir.path())), Clock::manual(5));
        let settings = serde_json::from_str("{}").unwrap();
        let once = Idempotency::new("once", settings, means);
        let stack = DispatchStack::builder().guard(once).build();
        let does = Does::new(|_| Ok(Dispatched::Done(TaskDone::new(Json::null()))));
        for step in 1..3 {
            let keyed = fixture::with("1", |about| {
                about.task = TaskId::new(7, step, 0);
                about.idempotency_key = Some("k".into());
            });
            stack.run(keyed, &does).await.unwrap();
        }
        assert_eq!(does.calls(), 1);
    }

    #[tokio::test]
    async fn what_is_kept_is_there_after_a_restart_until_it_expires() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = || Tasks::new(tokio::runtime::Handle::current());
        let open = || Sqlite::open(dir.path(), &Options::default()).unwrap();
        let put = |key: &str, expires_ms| Change::Put {
            layer: "l".into(),
            key: key.into(),
            value: Json::parse("[1]").unwrap(),
            expires_ms,
        };
        let store = open();
        let ledger = AuditLog::new(Arc::clone(&store) as _, Clock::manual(5), tasks());
        ledger.write(put("a", None)).await.unwrap();
        ledger.write(put("b", Some(10))).await.unwrap();
        ledger.write(put("c", None)).await.unwrap();
        ledger.write(Change::Remove { layer: "l".into(), key: "c".into() }).await.unwrap();
        drop(ledger);
        store.close().unwrap();
        drop(store);
        let store = open();
        for (now, there) in [(9, true), (10, false)] {
            let ledger = AuditLog::new(Arc::clone(&store) as _, Clock::manual(now), tasks());
            assert_eq!(ledger.read("l", "a").await.unwrap().unwrap().as_str(), "[1]");
            assert_eq!(ledger.read("l", "b").await.unwrap().is_some(), there);
            assert_eq!(ledger.read("l", "c").await.unwrap(), None);
        }
    }
}
