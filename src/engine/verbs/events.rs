//! Entries as events, and subscriptions without gaps in the durable ones.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot};

use crate::{
    engine::{
        Caller, Engine, EngineError, EventView, Page,
        run::readers::{Live, PageMemory, Room, Subscriber},
        settings::{ROOM_MS, STORAGE_RETRY_MS},
        shared::{message::Internal, shards::Shared},
        view::events::{SYNC, view},
    },
    memory::Level,
    protocol::RunId,
    store::{PAGES, PageMark, StoreError},
    token::Verb,
};

/// A live subscription: durable events from a number on without a gap, and lossy ones in between.
///
/// The history is read page by page, each after the one before it was consumed. The subscription to
/// the run is made before the last page is returned, so that a reader that has seen the history
/// receives all that follows; there is none for a run that has ended.
pub struct Events {
    shared: Arc<Shared>,
    run: RunId,
    room: Room,
    live: Option<mpsc::Receiver<Live>>,
    /// The pages to read from the store, the next first.
    pages: VecDeque<PageMark>,
    ready: VecDeque<EventView>,
    /// The memory of the events that are ready.
    held: Option<Arc<PageMemory>>,
    after: u32,
    /// True if the store must be checked for more.
    behind: bool,
    /// True if the store has more pages than `pages`.
    more: bool,
    /// True if the run had ended when the store was checked.
    ended: bool,
    over: bool,
}

/// The number of entries that a page of the past reads at a time.
const CHUNK: u32 = 16;
/// The size of a page of the past in bytes, unless a chunk is larger.
const PAGE: u64 = 4 << 20;

impl Engine {
    /// Returns a page of a run's past events in their order: the last ones before number `before`, or
    /// the last of all. Large ones make the page shorter than `limit`. Its cursor is the `before` of the
    /// page before it.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such run.
    pub async fn events_page(
        &self,
        caller: &Caller,
        run: RunId,
        before: Option<u32>,
        limit: usize,
    ) -> Result<Page<EventView>, EngineError> {
        caller.may(Verb::RunRead, run)?;
        let header = self.header(run).await?;
        let upto = before.map_or(header.seq, |before| before.saturating_sub(1)).min(header.seq);
        let floor = upto.saturating_sub(u32::try_from(limit).unwrap_or(u32::MAX));
        let (items, after) = self
            .read(move |store| {
                let (mut items, mut after, mut size) = (VecDeque::new(), upto, 0);
                while after > floor && size < PAGE {
                    let from = after.saturating_sub(CHUNK).max(floor);
                    let entries = store.window(run.num(), from, after)?;
                    for entry in entries.iter().rev() {
                        let event = view(run.num(), entry);
                        size += event.data.len() as u64;
                        items.push_front(event);
                    }
                    after = from;
                }
                Ok((items, after))
            })
            .await?;
        let next_cursor = (after > 0).then(|| (after + 1).to_string());
        Ok(Page { items: items.into(), next_cursor })
    }
}

impl Events {
    pub(crate) fn new(shared: Arc<Shared>, run: RunId, after: u32, jti: &str) -> Self {
        let room = shared.readers.room(jti);
        Self {
            shared,
            run,
            room,
            live: None,
            pages: VecDeque::new(),
            ready: VecDeque::new(),
            held: None,
            after,
            behind: true,
            more: false,
            ended: false,
            over: false,
        }
    }

    /// Returns a subscriber for a run that is about to start, and the constructor of its
    /// subscription.
    pub(crate) fn from_the_first(
        shared: Arc<Shared>,
        jti: &str,
    ) -> (Subscriber, impl FnOnce(RunId) -> Self) {
        let jti = jti.to_owned();
        let (subscriber, live) = Subscriber::new(shared.readers.room(&jti));
        let open =
            move |run| Self { live: Some(live), behind: false, ..Self::new(shared, run, 0, &jti) };
        (subscriber, open)
    }

    /// Returns the next event; `None` after the run's last.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    ///
    /// # Cancel safety
    /// May be dropped between two events; what was read is kept.
    pub async fn next(&mut self) -> Result<Option<EventView>, EngineError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                if let Some(seq) = event.seq {
                    self.after = seq;
                    self.over = event.kind == "run.ended";
                }
                return Ok(Some(event));
            }
            self.held = None;
            if self.over {
                return Ok(None);
            }
            let is_last = self.pages.len() <= 1 && !self.more;
            if self.behind {
                self.look().await?;
            } else if self.live.is_none() && is_last && !self.ended {
                self.subscribe().await;
            } else if let Some(page) = self.pages.front().copied() {
                self.read(page).await?;
            } else if self.more {
                self.behind = true;
            } else {
                self.hear().await;
            }
        }
    }

    /// Handles an event of the run.
    async fn hear(&mut self) {
        let live = match &mut self.live {
            Some(live) => live.recv().await,
            None => None,
        };
        match live {
            None => (self.live, self.behind) = (None, true),
            Some(Live { event, held }) => match event.seq {
                None if event.kind == SYNC => self.behind = true,
                Some(seq) if seq <= self.after => {}
                Some(seq) if seq > self.after + 1 => self.behind = true,
                None | Some(_) => {
                    self.ready.push_back(event);
                    self.held = Some(Arc::new(held));
                }
            },
        }
    }

    /// Returns the memory of the last event, for a caller that keeps the event while it waits for
    /// the next.
    pub fn held(&self) -> Option<Arc<PageMemory>> {
        self.held.clone()
    }

    async fn subscribe(&mut self) {
        let (subscriber, live) = Subscriber::new(self.room.clone());
        subscribe(&self.shared, self.run, subscriber).await;
        self.live = Some(live);
        self.behind = true;
    }

    /// Finds the pages of the remaining history.
    async fn look(&mut self) -> Result<(), EngineError> {
        let (shared, run, after) = (Arc::clone(&self.shared), self.run.num(), self.after);
        let look = self.shared.tasks.spawn_blocking(move || {
            // Read before the entries: if it has ended, nothing can follow them.
            let ended = shared.store.header(run)?.is_none_or(|header| header.status.is_ended());
            Ok::<_, StoreError>((ended, shared.store.pages(run, after)?))
        });
        let (ended, pages) = look.await.map_err(|_| EngineError::Stopping)??;
        // A reader that has already seen the end must not wait for more.
        self.over = ended && pages.is_empty();
        (self.behind, self.ended, self.more) = (false, ended, pages.len() == PAGES);
        self.pages = pages.into();
        Ok(())
    }

    async fn read(&mut self, page: PageMark) -> Result<(), EngineError> {
        let held = self.room.page(page.bytes).await;
        let (shared, run) = (Arc::clone(&self.shared), self.run.num());
        let read = self.shared.tasks.spawn_blocking(move || {
            let entries = shared.store.page(run, &page)?;
            let events = entries.iter().map(|entry| view(run, entry)).collect();
            Ok::<_, StoreError>(events)
        });
        self.ready = read.await.map_err(|_| EngineError::Stopping)??;
        self.held = Some(Arc::new(held));
        self.pages.pop_front();
        Ok(())
    }
}

/// Subscribes to a run; a subscriber whom the run does not have sees the end of its events.
pub(super) async fn subscribe(shared: &Arc<Shared>, run: RunId, subscriber: Subscriber) {
    let (reply, subscribed) = oneshot::channel();
    shared.tell(run.num(), Internal::Subscribe(subscriber, reply));
    if subscribed.await.is_ok() {
        return;
    }
    // A run without subscriptions has ended, and the store has all of it; or it cannot be read, and
    // must not be read again at once.
    let host = Arc::clone(shared);
    let header = shared.tasks.spawn_blocking(move || host.store.header(run.num())).await;
    if let Ok(Ok(Some(header))) = header
        && !header.status.is_ended()
    {
        let is_full = shared.memory.level() == Level::Full;
        let pause_ms = if is_full { ROOM_MS } else { STORAGE_RETRY_MS };
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    }
}
