//! The places of connections: a total, and the part of it that one address may have.
//!
//! The stream of a connection holds its place: a WebSocket has one as long as it is open, although
//! its request was answered.

use std::{net::IpAddr, sync::Arc};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::shares::{Share, Shares};
use crate::metrics::Gauge;

/// One address may have this fraction of the places: one half.
const ADDRESS_SHARE: usize = 2;

/// The places of the connections of a listener.
pub(super) struct Connections {
    free: Arc<Semaphore>,
    shares: Shares,
    open: Arc<Gauge>,
}

/// The place of a connection, until it is dropped.
pub(super) struct ConnectionPlace {
    _free: OwnedSemaphorePermit,
    _share: Option<Share>,
    open: Arc<Gauge>,
}

impl Connections {
    /// Creates a number of places. Those that are taken are counted in `open`.
    pub(super) fn new(most: usize, open: &Arc<Gauge>) -> Self {
        Self {
            free: Arc::new(Semaphore::new(most)),
            shares: Shares::new(most, (most / ADDRESS_SHARE).max(1)),
            open: Arc::clone(open),
        }
    }

    /// Takes a place of the share of an address, or of the total where there is no address. Returns
    /// `None` if as many are taken as may be.
    pub(super) fn take(&self, address: Option<IpAddr>) -> Option<ConnectionPlace> {
        let free = Arc::clone(&self.free).try_acquire_owned().ok()?;
        let share = match address {
            Some(_) => Some(self.shares.take(address, 1)?),
            None => None,
        };
        self.open.add(1);
        Some(ConnectionPlace { _free: free, _share: share, open: Arc::clone(&self.open) })
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.open.add(-1);
    }
}
