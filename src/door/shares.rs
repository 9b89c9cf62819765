//! Shares of what all clients use together, by the address of a client: whoever has no token yet must not
//! take all of it.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;

/// The bits of an IPv6 address that are the network of one client.
const NETWORK: u32 = 64;

/// A total, and the most that one client may have of it.
#[derive(Debug)]
pub(super) struct Shares(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    all: usize,
    each: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by: HashMap<Option<IpAddr>, usize>,
}

/// A part of the total, until it is dropped.
pub(super) struct Share {
    of: Arc<Inner>,
    client: Option<IpAddr>,
    amount: usize,
}

impl Shares {
    /// Creates a total of `all`, of which a client may have `each`.
    pub(super) fn new(all: usize, each: usize) -> Self {
        Self(Arc::new(Inner { all, each, taken: Mutex::default() }))
    }

    /// Takes a part for a client. Clients without an address share one.
    pub(super) fn take(&self, client: Option<IpAddr>, amount: usize) -> Option<Share> {
        let mut share = Share { of: Arc::clone(&self.0), client: client.map(network), amount: 0 };
        share.grow(amount).then_some(share)
    }
}

impl Share {
    /// Takes more for the same client. Returns false, and takes nothing, if there is not enough.
    pub(super) fn grow(&mut self, more: usize) -> bool {
        let mut taken = self.of.taken.lock();
        let has = taken.by.get(&self.client).copied().unwrap_or_default();
        if has + more > self.of.each || taken.all + more > self.of.all {
            return false;
        }
        if more > 0 {
            taken.all += more;
            taken.by.insert(self.client, has + more);
            self.amount += more;
        }
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        taken.all -= self.amount;
        let left = taken.by.get(&self.client).map_or(0, |has| has - self.amount);
        match left {
            0 => taken.by.remove(&self.client),
            left => taken.by.insert(self.client, left),
        };
    }
}

/// Returns what one client has of an address.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(it) => {
            let mask = u128::MAX << (Ipv6Addr::BITS - NETWORK);
            IpAddr::V6(Ipv6Addr::from_bits(it.to_bits() & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn a_client_has_its_share_and_all_have_the_total() {
        let shares = Shares::new(10, 6);
        let mut first = shares.take(at("192.0.2.1"), 2).unwrap();
        assert!(first.grow(4) && !first.grow(1), "it has its share");
        assert!(shares.take(at("192.0.2.1"), 1).is_none());
        let second = shares.take(at("192.0.2.2"), 4).unwrap();
        assert!(shares.take(None, 1).is_none(), "nothing is left");
        drop(first);
        assert!(shares.take(None, 6).is_some());
        drop(second);
        let taken = shares.0.taken.lock();
        assert_eq!((taken.all, taken.by.len()), (0, 0));
    }

    #[test]
    fn a_client_has_many_addresses_of_one_network() {
        let shares = Shares::new(2, 1);
        let _first = shares.take(at("2001:db8::1"), 1).unwrap();
        assert!(shares.take(at("2001:db8::ffff:2"), 1).is_none());
        assert!(shares.take(at("2001:db8:0:1::1"), 1).is_some());
    }
}
