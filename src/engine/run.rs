//! A run in memory, as data: open steps, waiters, batches that are being written.

pub(crate) mod account;
pub(crate) mod answers;
pub(crate) mod branches;
pub(crate) mod composite;
pub(crate) mod conversations;
pub(crate) mod counted;
pub(crate) mod driver;
pub(crate) mod due;
pub(crate) mod feed;
pub(crate) mod follows;
pub(crate) mod loaded;
pub(crate) mod loan;
pub(crate) mod log_line;
pub(crate) mod lookups;
pub(crate) mod loop_request;
pub(crate) mod members;
pub(crate) mod model_loop;
pub(crate) mod open;
pub(crate) mod perform;
pub(crate) mod question;
pub(crate) mod readers;
pub(crate) mod reply;
pub(crate) mod resident;
pub(crate) mod task;
pub(crate) mod values;
