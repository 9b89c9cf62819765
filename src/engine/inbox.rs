//! Handles requests to a run: from workers, from people, and from those who control it.

pub(crate) mod answers;
pub(crate) mod control;
pub(crate) mod escalate;
pub(crate) mod inquiry;
pub(crate) mod internal;
pub(crate) mod people;
pub(crate) mod receive;
pub(crate) mod repeats;
pub(crate) mod seats;
pub(crate) mod signals;
pub(crate) mod state;
pub(crate) mod worker;
pub(crate) mod worker_state;
