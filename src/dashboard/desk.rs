//! The state of the dashboard's handlers.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{rooms::Rooms, sign_in::SignIns, site::Site};
use crate::{door::Door, engine::Engine, tasks::Tasks};

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
    /// The live pages that are open.
    pub rooms: Arc<Rooms>,
    /// Renders live pages.
    pub tasks: Tasks,
    /// The names of this host.
    pub site: Arc<Site>,
}
