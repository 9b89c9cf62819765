//! The health of the store, from which the host decides whether it accepts work.

use tokio::sync::watch;

use super::StoreError;

/// The health of the store.
#[derive(Debug, Clone, Default)]
pub enum Health {
    /// The last write succeeded.
    #[default]
    Well,
    /// Writes fail for now. The store retries until one succeeds.
    Waiting(StoreError),
    /// This process can no longer write, because the content of the disk is no longer certain.
    Lost(StoreError),
}

impl Health {
    /// Waits until the store is lost, and returns the reason; [`StoreError::Closed`] if it is closed
    /// first.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub(super) async fn lost(mut health: watch::Receiver<Self>) -> StoreError {
        match health.wait_for(|health| matches!(health, Self::Lost(_))).await.as_deref() {
            Ok(Self::Lost(error)) => error.clone(),
            Ok(Self::Well | Self::Waiting(_)) | Err(_) => StoreError::Closed,
        }
    }
}
