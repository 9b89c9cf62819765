//! What a layer counts by key: all of it in storage, a bounded part of it in memory.
//!
//! Those who start runs make the keys, so there is room for [`KEYS`] of them. When it is full, half
//! of it is cleared at once: a new key costs no search. Counts that mean nothing any more go first;
//! of the others, every principal keeps as many as any other, those of the highest rank first. What
//! was dropped is read from storage when its key comes again.

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};

use super::Means;
use crate::{
    middleware::Change,
    protocol::{Failure, Json},
};

/// The maximum number of keys in memory, for each name of a layer.
pub(super) const KEYS: usize = 10_000;

/// The count of one key.
pub(super) trait Count: Default + Serialize + DeserializeOwned {
    /// Returns 0 if it means the same as a new one; what has a higher rank is dropped later.
    fn rank(&self, now_ms: u64) -> u8;
}

/// The counts of a layer by key.
#[derive(Clone)]
pub(super) struct Keyed<T> {
    /// The name of the layer.
    pub(super) layer: String,
    /// The services of the host.
    pub(super) means: Means,
    known: Arc<Mutex<Known<T>>>,
}

#[derive(Default)]
struct Known<T> {
    /// The counts, each with the principal who made its key.
    counts: HashMap<String, (Arc<str>, T)>,
    /// The number of times that room was made.
    cleared: u64,
}

impl<T: Count + Send + 'static> Keyed<T> {
    /// Returns the counts of the layers of this name.
    pub(super) fn new(layer: &str, means: Means) -> Self {
        let known = means.memory(layer);
        Self { layer: layer.to_owned(), means, known }
    }

    /// Calls `act` with the count of a key, which is read from storage if it is not in memory.
    ///
    /// # Errors
    /// Fails when it cannot be read.
    pub(super) async fn with<R>(
        &self,
        key: &str,
        principal: &Arc<str>,
        act: impl FnOnce(&mut T) -> R + Send,
    ) -> Result<R, Failure> {
        loop {
            let cleared = {
                let mut known = self.known.lock();
                if let Some((_, count)) = known.counts.get_mut(key) {
                    return Ok(act(count));
                }
                known.cleared
            };
            let kept = self.means.keep.read(&self.layer, key).await?;
            let kept = kept.and_then(|it| it.decode().ok()).unwrap_or_default();
            let mut known = self.known.lock();
            // If room was made meanwhile, the key may have been counted and dropped since the read.
            if known.cleared == cleared && !known.counts.contains_key(key) {
                known.insert(key, Arc::clone(principal), kept, self.means.clock.now_ms());
            }
        }
    }

    /// Calls `act` with the count of a key, if it is in memory.
    pub(super) fn known<R>(&self, key: &str, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.known.lock().counts.get_mut(key).map(|(_, count)| act(count))
    }

    /// Stores the count of a key. Called while it is counted, so that the last stored value is the
    /// last counted one.
    pub(super) fn put(&self, key: &str, count: &T, expires_ms: Option<u64>) {
        if let Ok(value) = Json::encode(count) {
            let (layer, key) = (self.layer.clone(), key.to_owned());
            self.means.keep.post(Change::Put { layer, key, value, expires_ms });
        }
    }

    /// Removes the stored count of a key.
    pub(super) fn remove(&self, key: &str) {
        let (layer, key) = (self.layer.clone(), key.to_owned());
        self.means.keep.post(Change::Remove { layer, key });
    }

    /// Returns the number of keys in memory.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.lock().counts.len()
    }
}

impl<T: Count> Known<T> {
    fn insert(&mut self, key: &str, principal: Arc<str>, count: T, now_ms: u64) {
        if self.counts.len() >= KEYS {
            self.clear(now_ms);
        }
        self.counts.insert(key.to_owned(), (principal, count));
    }

    /// Drops what means nothing any more, and of the rest all but half of [`KEYS`].
    fn clear(&mut self, now_ms: u64) {
        self.cleared += 1;
        let ranked = self.counts.drain().map(|(key, it)| (it.1.rank(now_ms), key, it));
        let mut ranked: Vec<_> = ranked.filter(|(rank, ..)| *rank > 0).collect();
        ranked.sort_by_key(|(rank, ..)| Reverse(*rank));
        // The first of each principal come before the second of any.
        let mut of = HashMap::<Arc<str>, usize>::new();
        let turns = ranked.into_iter().map(|(_, key, it)| {
            let turn = of.entry(Arc::clone(&it.0)).or_default();
            *turn += 1;
            (*turn, key, it)
        });
        let mut turns: Vec<_> = turns.collect();
        turns.sort_by_key(|(turn, ..)| *turn);
        turns.truncate(KEYS / 2);
        self.counts.extend(turns.into_iter().map(|(_, key, it)| (key, it)));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use serde::Deserialize;

    use super::*;
    use crate::{clock::Clock, middleware::MemoryKeep};

    #[derive(Default, Serialize, Deserialize)]
    struct Rank(u8);

    impl Count for Rank {
        fn rank(&self, _: u64) -> u8 {
            self.0
        }
    }

    fn keyed() -> Keyed<Rank> {
        let clock = Clock::manual(1_000);
        Keyed::new("it", Means::of(Arc::new(MemoryKeep::new(clock.clone())), clock))
    }

    fn count(keyed: &Keyed<Rank>, principal: &str, key: &str, rank: u8) {
        let principal = principal.into();
        let counted = keyed.with(key, &principal, |count| {
            count.0 = rank;
            keyed.put(key, count, None);
        });
        counted.now_or_never().unwrap().unwrap();
    }

    #[test]
    fn keys_are_bounded_and_room_is_made_for_many_at_once() {
        let keyed = keyed();
        for key in 0..KEYS * 3 {
            count(&keyed, "a", &key.to_string(), 1);
            assert!(keyed.len() <= KEYS);
        }
        assert!(keyed.known.lock().cleared <= 4);
        let stored = keyed.with("0", &"a".into(), |count| count.0).now_or_never();
        assert_eq!(stored, Some(Ok(1)), "what is not in memory is in storage");
    }

    #[test]
    fn a_principal_with_many_keys_takes_no_room_from_others_and_what_counts_more_stays() {
        let keyed = keyed();
        count(&keyed, "few", "own", 1);
        for key in ["open 1", "open 2"] {
            count(&keyed, "many", key, 2);
        }
        for key in 0..KEYS * 2 {
            count(&keyed, "many", &key.to_string(), 1);
        }
        for key in ["own", "open 1", "open 2"] {
            assert!(keyed.known(key, |_| ()).is_some(), "{key}");
        }
    }

    #[test]
    fn what_means_nothing_any_more_is_dropped_first() {
        let keyed = keyed();
        for key in 0..KEYS {
            count(&keyed, "a", &key.to_string(), u8::from(key % 4 == 0));
        }
        count(&keyed, "a", "one more", 1);
        assert_eq!(keyed.len(), KEYS / 4 + 1);
    }
}
