//! The limits of subscriptions.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

/// The maximum number of open subscriptions of one client.
const OF_CLIENT: usize = 16;
/// The maximum number of open subscriptions.
const ALL: usize = 1_024;

/// The open subscriptions by client: the hash of the id of its token.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<HashMap<[u8; 32], usize>>);

/// The place of one subscription. It is free again when this is dropped.
#[derive(Debug)]
pub(in crate::mcp) struct Seat {
    seats: Arc<Seats>,
    client: [u8; 32],
}

impl Seats {
    /// Takes a place for a client; none if all of its places, or all places, are taken.
    pub(super) fn take(self: &Arc<Self>, client: [u8; 32]) -> Option<Seat> {
        let mut open = self.0.lock();
        let all: usize = open.values().sum();
        let own = open.get(&client).copied().unwrap_or_default();
        if all >= ALL || own >= OF_CLIENT {
            return None;
        }
        open.insert(client, own + 1);
        Some(Seat { seats: Arc::clone(self), client })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.seats.0.lock();
        match open.get_mut(&self.client) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(open.remove(&self.client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_its_places_and_gets_them_back() {
        let seats = Arc::new(Seats::default());
        let mut own: Vec<Seat> = (0..OF_CLIENT).filter_map(|_| seats.take([1; 32])).collect();
        assert_eq!(own.len(), OF_CLIENT);
        assert!(seats.take([1; 32]).is_none());
        assert!(seats.take([2; 32]).is_some(), "another client has places of its own");
        own.pop();
        assert!(seats.take([1; 32]).is_some());
        drop(own);
        assert!(seats.0.lock().is_empty());
    }

    #[test]
    fn there_is_an_end_for_all_clients_together() {
        let seats = Arc::new(Seats::default());
        let client = |n: u16| {
            let mut client = [0; 32];
            client[..2].copy_from_slice(&n.to_le_bytes());
            client
        };
        let all: Vec<Seat> = (0..2_000).filter_map(|n| seats.take(client(n))).collect();
        assert_eq!(all.len(), ALL);
    }
}
