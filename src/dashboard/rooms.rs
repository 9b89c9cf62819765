//! Rooms: the viewers of one live page who may see the same. What changes is rendered once for all of
//! them.
//!
//! A room opens with its first viewer and closes after the last one has left. Each viewer takes the
//! latest rendering, so a slow one skips some and holds none back. One that has seen the rendering
//! before it gets only what changed, any other the whole fragment. Forms have a token of their reader,
//! which each viewer gets in the place of a mark.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, Weak, atomic::AtomicU32},
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{delta, fragment::Fragment};

/// A rendering that is older than this is not the first one of a viewer: times count from now.
pub(super) const FRESH: Duration = Duration::from_secs(1);

/// The identity of a room: its viewers have all of this in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// The path and query of the page.
    pub page: String,
    /// The URL of this host, as the browsers know it.
    pub url: String,
    /// The rights of the readers.
    pub rights: String,
}

/// A fragment as it was rendered.
struct Piece {
    id: &'static str,
    hash: blake3::Hash,
    html: String,
    /// All of it, as it is sent, once somebody needs it.
    whole: OnceLock<String>,
    /// The hash of the rendering before it, and what changed since, as it is sent.
    change: Option<(blake3::Hash, String)>,
}

impl Piece {
    /// Returns a new piece, and with it what changed since an earlier rendering.
    fn new(Fragment { id, html }: Fragment, before: Option<&Self>) -> Self {
        let html = html.into_string();
        let change = before.and_then(|before| {
            let parts = delta::between(&before.html, &html)?;
            let data = json!({ "id": id, "parts": parts }).to_string();
            (data.len() < html.len()).then_some((before.hash, data))
        });
        let hash = blake3::hash(html.as_bytes());
        Self { id, hash, html, whole: OnceLock::new(), change }
    }

    /// Returns the data for a viewer who has seen a rendering of it, or none.
    fn data(&self, seen: Option<blake3::Hash>) -> &str {
        match &self.change {
            Some((since, data)) if seen == Some(*since) => data,
            _ => self.whole.get_or_init(|| json!({ "id": self.id, "html": self.html }).to_string()),
        }
    }
}

/// The latest rendering of a room.
struct Shown {
    pieces: Vec<Arc<Piece>>,
    /// True if nothing will change any more.
    over: bool,
    at: Instant,
}

/// The open rooms.
pub(super) struct Rooms {
    /// The mark for the token of the reader's forms. Nobody can guess it.
    mark: String,
    fresh: Duration,
    open: Mutex<HashMap<Key, Weak<Room>>>,
    moving: Arc<AtomicU32>,
}

struct Room {
    shown: watch::Sender<Option<Arc<Shown>>>,
    /// Notified when a viewer came and the latest rendering is old.
    asked: Notify,
}

/// The place of the renderer in a room.
pub(super) struct Board {
    rooms: Arc<Rooms>,
    key: Key,
    room: Arc<Room>,
}

/// The place of a viewer in a room.
pub(super) struct Viewer {
    rooms: Arc<Rooms>,
    form: String,
    shown: watch::Receiver<Option<Arc<Shown>>>,
    first: Option<Arc<Shown>>,
    seen: HashMap<&'static str, blake3::Hash>,
}

/// The changes for one viewer: the data of each fragment.
pub(super) struct Changes {
    /// The fragments, as JSON.
    pub fragments: Vec<String>,
    /// True if nothing will change any more.
    pub over: bool,
}

impl Rooms {
    /// Returns no rooms; `mark` is a text that nobody can guess, and a rendering younger than `fresh` is
    /// good for a viewer who comes.
    pub(super) fn new(mark: String, fresh: Duration) -> Self {
        Self { mark, fresh, open: Mutex::default(), moving: Arc::default() }
    }

    /// Returns the mark that stands for the token of the reader's forms.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// Returns the number of rooms whose page moves.
    pub(super) fn moving(&self) -> &Arc<AtomicU32> {
        &self.moving
    }

    /// Enters a room with the form token of the viewer. The first viewer gets the place of its
    /// renderer as well.
    pub(super) fn enter(self: &Arc<Self>, key: Key, form: String) -> (Viewer, Option<Board>) {
        let viewer = |shown, first| Viewer {
            rooms: Arc::clone(self),
            form,
            shown,
            first,
            seen: HashMap::new(),
        };
        let mut open = self.open.lock();
        if let Some(room) = open.get(&key).and_then(Weak::upgrade) {
            let shown = room.shown.subscribe();
            let latest = shown.borrow().clone();
            match latest {
                Some(latest) if latest.over => {}
                Some(latest) if latest.at.elapsed() < self.fresh => {
                    return (viewer(shown, Some(latest)), None);
                }
                Some(_) => {
                    room.asked.notify_one();
                    return (viewer(shown, None), None);
                }
                None => return (viewer(shown, None), None),
            }
        }
        let (sender, shown) = watch::channel(None);
        let room = Arc::new(Room { shown: sender, asked: Notify::new() });
        open.insert(key.clone(), Arc::downgrade(&room));
        (viewer(shown, None), Some(Board { rooms: Arc::clone(self), key, room }))
    }
}

impl Board {
    /// Shows a rendering to all viewers; a fragment that it leaves out stays as it was. Returns about how
    /// many bytes are sent to them.
    pub(super) fn show(&self, fragments: Vec<Fragment>, over: bool) -> usize {
        let before = self.room.shown.borrow().clone();
        let mut pieces = before.map(|it| it.pieces.clone()).unwrap_or_default();
        let mut changed = 0;
        for fragment in fragments {
            let place = pieces.iter().position(|it| it.id == fragment.id);
            let before = place.map(|place| &*pieces[place]);
            if before.is_some_and(|before| before.html == fragment.html.0) {
                continue;
            }
            let piece = Arc::new(Piece::new(fragment, before));
            changed += piece.change.as_ref().map_or(piece.html.len(), |(_, data)| data.len());
            match place {
                Some(place) => pieces[place] = piece,
                None => pieces.push(piece),
            }
        }
        self.room.shown.send_replace(Some(Arc::new(Shown { pieces, over, at: Instant::now() })));
        changed * self.room.shown.receiver_count()
    }

    /// Waits until a viewer came who needs a new rendering.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub(super) async fn asked(&self) {
        self.room.asked.notified().await;
    }

    /// Waits until no viewer is left.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub(super) async fn left(&self) {
        self.room.shown.closed().await;
    }

    /// Closes the room, unless a viewer is in it.
    pub(super) fn close(&self) -> bool {
        let mut open = self.rooms.open.lock();
        if self.room.shown.receiver_count() > 0 {
            return false;
        }
        self.forget(&mut open);
        true
    }

    fn forget(&self, open: &mut HashMap<Key, Weak<Room>>) {
        let is_own = |it: &Weak<Room>| std::ptr::eq(it.as_ptr(), Arc::as_ptr(&self.room));
        if open.get(&self.key).is_some_and(is_own) {
            open.remove(&self.key);
        }
    }
}

impl Drop for Board {
    /// Without a renderer a room is closed; its viewers see the end of their streams.
    fn drop(&mut self) {
        let rooms = Arc::clone(&self.rooms);
        self.forget(&mut rooms.open.lock());
    }
}

impl Viewer {
    /// Waits for a rendering, and returns what it changed for this viewer; `None` if the room was closed.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub(super) async fn next(&mut self) -> Option<Changes> {
        let shown = match self.first.take() {
            Some(first) => first,
            None => loop {
                self.shown.changed().await.ok()?;
                if let Some(shown) = self.shown.borrow_and_update().clone() {
                    break shown;
                }
            },
        };
        let mut fragments = Vec::new();
        for piece in &shown.pieces {
            let seen = self.seen.insert(piece.id, piece.hash);
            if seen != Some(piece.hash) {
                fragments.push(piece.data(seen).replace(&self.rooms.mark, &self.form));
            }
        }
        Some(Changes { fragments, over: shown.over })
    }
}

#[cfg(test)]
mod tests {
    use maud::html;

    use super::*;

    const FOR_LONG: Duration = Duration::from_secs(3_600);

    fn key(rights: &str) -> Key {
        Key { page: "/ui/runs".into(), url: "http://a".into(), rights: rights.into() }
    }

    fn shown(id: &'static str, text: &str) -> Vec<Fragment> {
        vec![Fragment { id, html: html! { p { (text) } } }]
    }

    #[tokio::test]
    async fn viewers_of_the_same_rights_share_a_rendering_with_their_own_form_tokens() {
        let rooms = Arc::new(Rooms::new("the-mark".into(), FOR_LONG));
        let (mut ann, board) = rooms.enter(key("observer"), "of-ann".into());
        let board = board.expect("the first one renders");
        let (mut bob, none) = rooms.enter(key("observer"), "of-bob".into());
        assert!(none.is_none(), "the second one does not");
        assert!(rooms.enter(key("admin"), "x".into()).1.is_some(), "other rights, another room");
        board.show(shown("a", "token the-mark"), false);
        let of_ann = ann.next().await.unwrap();
        assert!(of_ann.fragments[0].contains("token of-ann") && !of_ann.over);
        assert!(bob.next().await.unwrap().fragments[0].contains("token of-bob"));
        board.show(shown("a", "token the-mark"), true);
        let last = ann.next().await.unwrap();
        assert!(last.fragments.is_empty() && last.over, "what did not change is not sent again");
    }

    #[tokio::test]
    async fn a_viewer_gets_what_changed_and_one_who_missed_a_rendering_all_of_it() {
        let rooms = Arc::new(Rooms::new("the-mark".into(), FOR_LONG));
        let list = |upto: u32| {
            let html =
                html! { table { @for n in 0..upto { tr { td { "row " (n) " the-mark" } } } } };
            vec![Fragment { id: "a", html }]
        };
        let (mut ann, board) = rooms.enter(key("observer"), "of-ann".into());
        let board = board.unwrap();
        let (mut bob, _) = rooms.enter(key("observer"), "of-bob".into());
        let whole = board.show(list(500), false);
        ann.next().await.unwrap();
        let sent = board.show(list(501), false);
        assert!(sent * 100 < whole, "{sent} of {whole} bytes");
        let of_ann = ann.next().await.unwrap().fragments;
        assert!(of_ann[0].contains("row 500 of-ann") && !of_ann[0].contains("row 499"));
        assert!(of_ann[0].contains("\"parts\":[[0,"), "{of_ann:?}");
        let of_bob = bob.next().await.unwrap().fragments;
        assert!(of_bob[0].contains("\"html\":") && of_bob[0].contains("row 0 of-bob"));
        board.show(list(502), false);
        assert!(bob.next().await.unwrap().fragments[0].contains("\"parts\":"), "he has all now");
    }

    #[tokio::test]
    async fn a_late_viewer_begins_with_the_latest_rendering_and_the_last_one_closes_the_room() {
        let rooms = Arc::new(Rooms::new("the-mark".into(), FOR_LONG));
        let (ann, board) = rooms.enter(key("observer"), "of-ann".into());
        let board = board.unwrap();
        board.show(shown("a", "one"), false);
        board.show(shown("a", "two"), false);
        let (mut bob, _) = rooms.enter(key("observer"), "of-bob".into());
        assert!(bob.next().await.unwrap().fragments[0].contains("two"));
        drop(ann);
        assert!(!board.close(), "one is left");
        drop(bob);
        board.left().await;
        assert!(board.close() && rooms.open.lock().is_empty());
    }

    #[tokio::test]
    async fn a_viewer_who_comes_to_an_old_rendering_gets_a_new_one() {
        let rooms = Arc::new(Rooms::new("the-mark".into(), Duration::ZERO));
        let (_ann, board) = rooms.enter(key("observer"), "of-ann".into());
        let board = board.unwrap();
        board.show(shown("a", "a second ago"), false);
        let (mut bob, _) = rooms.enter(key("observer"), "of-bob".into());
        board.asked().await;
        board.show(shown("a", "2 seconds ago"), false);
        assert!(bob.next().await.unwrap().fragments[0].contains("2 seconds"));
        drop(board);
        assert!(bob.next().await.is_none(), "without a renderer it ends");
    }
}
