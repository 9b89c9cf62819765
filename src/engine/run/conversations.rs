//! The conversations that loops of this process are in: one loop at a time, the others in a line.
//!
//! The cache only saves work: the revision of the stored conversation decides which write counts, also
//! after a restart, where a loop that was open may be without its place here.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;

/// A loop: its run and its step.
type LoopId = (u64, u32);

/// Wakes a loop whose turn has come.
type Wake = Arc<dyn Fn(LoopId) + Send + Sync>;

/// The loops of every conversation, in the order in which they came; the first is in it.
#[derive(Default)]
pub(crate) struct Conversations {
    lines: Mutex<HashMap<String, VecDeque<LoopId>>>,
}

impl Conversations {
    /// Joins the line of a conversation. The place is left when the returned value is dropped.
    pub(crate) fn join(self: &Arc<Self>, key: String, place: LoopId, wake: Wake) -> InLine {
        self.lines.lock().entry(key.clone()).or_default().push_back(place);
        InLine { of: Arc::clone(self), key, place, wake }
    }
}

/// The place of a loop in the line of its conversation.
pub(crate) struct InLine {
    of: Arc<Conversations>,
    key: String,
    place: LoopId,
    wake: Wake,
}

impl InLine {
    /// Returns true if nobody is before it.
    pub(crate) fn is_first(&self) -> bool {
        let lines = self.of.lines.lock();
        lines.get(&self.key).and_then(VecDeque::front) == Some(&self.place)
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        let mut lines = self.of.lines.lock();
        let Some(line) = lines.get_mut(&self.key) else { return };
        let was_first = line.front() == Some(&self.place);
        // A run that is read again joins anew before its former life is dropped, perhaps.
        if let Some(own) = line.iter().position(|place| *place == self.place) {
            line.remove(own);
        }
        let next = line.front().copied().filter(|_| was_first);
        if line.is_empty() {
            lines.remove(&self.key);
        }
        drop(lines);
        if let Some(next) = next {
            (self.wake)(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_whoever_leaves_lets_the_next_one_in() {
        let conversations = Arc::new(Conversations::default());
        let woken: Arc<Mutex<Vec<LoopId>>> = Arc::default();
        let wake: Wake = {
            let woken = Arc::clone(&woken);
            Arc::new(move |place| woken.lock().push(place))
        };
        let join = |key: &str, place| conversations.join(key.into(), place, Arc::clone(&wake));
        let (first, second, third) = (join("c", (1, 1)), join("c", (2, 1)), join("c", (3, 1)));
        let other = join("d", (4, 1));
        assert!(first.is_first() && other.is_first());
        assert!(!second.is_first() && !third.is_first());
        drop(second);
        assert!(woken.lock().is_empty(), "it was not in it");
        drop(first);
        assert_eq!(*woken.lock(), [(3, 1)]);
        assert!(third.is_first());
        drop((third, other));
        assert!(conversations.lines.lock().is_empty());
    }
}
