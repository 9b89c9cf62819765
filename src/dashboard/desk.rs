//! The state of the dashboard's handlers.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{sign_in::SignIns, site::Site};
use crate::{door::Door, engine::Engine};

/// The dependencies of every handler.
#[derive(Clone)]
pub(super) struct Desk {
    /// The engine, which does the work.
    pub engine: Engine,
    /// The checks before each request.
    pub door: Arc<Door>,
    /// Canceled when the host begins to stop; streams then end.
    pub stopping: CancellationToken,
    /// The sign-ins, and the codes for new ones.
    pub sign_ins: Arc<SignIns>,
    /// The names of this host.
    pub site: Arc<Site>,
}
