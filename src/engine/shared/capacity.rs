//! `max_concurrency`: limits the live attempts of an agent in the whole host.

use std::collections::{HashMap, HashSet, VecDeque};

use parking_lot::Mutex;

use crate::engine::run::task::AgentKey;

/// The live attempts of every agent with a limit, and the steps that wait for a place.
#[derive(Debug, Default)]
pub(crate) struct Capacity {
    agents: Mutex<HashMap<AgentKey, Slots>>,
    /// The attempts that were counted at the boot and whose runs were not loaded since: (run, step).
    unread: Mutex<HashSet<(u64, u32)>>,
}

#[derive(Debug, Default)]
struct Slots {
    live: u32,
    limit: u32,
    waiting: VecDeque<(u64, u32)>,
}

impl Capacity {
    /// Takes a place for (run, step), or queues it; then the step is notified when a place is free.
    pub(crate) fn acquire(&self, agent: &AgentKey, limit: u32, run: u64, step: u32) -> bool {
        let mut agents = self.agents.lock();
        let slots = agents.entry(agent.clone()).or_default();
        slots.limit = limit;
        if slots.live < limit {
            slots.live += 1;
            slots.waiting.retain(|waiter| *waiter != (run, step));
            true
        } else {
            if !slots.waiting.contains(&(run, step)) {
                slots.waiting.push_back((run, step));
            }
            false
        }
    }

    /// Counts an attempt that is already live: it was dispatched before the host started.
    pub(crate) fn occupy(&self, agent: &AgentKey) {
        let mut agents = self.agents.lock();
        agents.entry(agent.clone()).or_default().live += 1;
    }

    /// The same at the boot, when nobody knows whether its agent has a limit.
    pub(crate) fn occupy_unread(&self, agent: &AgentKey, run: u64, step: u32) {
        if self.unread.lock().insert((run, step)) {
            self.occupy(agent);
        }
    }

    /// Returns true if the open attempt of a step was counted at the boot, the first time that it is
    /// asked for: the attempt holds that place from then on, whether its agent has a limit or not.
    pub(crate) fn read(&self, run: u64, step: u32) -> bool {
        self.unread.lock().remove(&(run, step))
    }

    /// Releases a place; returns the next waiting step.
    #[must_use]
    pub(crate) fn release(&self, agent: &AgentKey) -> Option<(u64, u32)> {
        let mut agents = self.agents.lock();
        let slots = agents.get_mut(agent)?;
        slots.live = slots.live.saturating_sub(1);
        let next = if slots.live < slots.limit { slots.waiting.pop_front() } else { None };
        if slots.live == 0 && slots.waiting.is_empty() {
            agents.remove(agent);
        }
        next
    }

    /// Removes a waiting step; returns the next one if a place is free.
    pub(crate) fn forget(&self, agent: &AgentKey, run: u64, step: u32) -> Option<(u64, u32)> {
        let mut agents = self.agents.lock();
        let slots = agents.get_mut(agent)?;
        slots.waiting.retain(|waiter| *waiter != (run, step));
        if slots.live < slots.limit { slots.waiting.pop_front() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_goes_to_who_waited_longest() {
        let capacity = Capacity::default();
        let agent: AgentKey = ("b".into(), "a".into());
        assert!(capacity.acquire(&agent, 1, 1, 1));
        assert!(!capacity.acquire(&agent, 1, 2, 1));
        assert!(!capacity.acquire(&agent, 1, 3, 1));
        assert_eq!(capacity.release(&agent), Some((2, 1)));
        assert!(capacity.acquire(&agent, 1, 2, 1));
        assert_eq!(capacity.forget(&agent, 3, 1), None);
        assert_eq!(capacity.release(&agent), None);
    }
}
