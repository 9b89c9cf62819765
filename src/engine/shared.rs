//! The data that the shards of one engine share, and the messages between them.

pub(crate) mod accounts;
pub(crate) mod announcements;
pub(crate) mod archive;
pub(crate) mod capacity;
pub(crate) mod deliveries;
pub(crate) mod faces;
pub(crate) mod host_facts;
pub(crate) mod host_log;
pub(crate) mod in_flight;
pub(crate) mod key_files;
pub(crate) mod lanes;
pub(crate) mod ledger;
pub(crate) mod line_counts;
pub(crate) mod looks;
pub(crate) mod mailbox;
pub(crate) mod message;
pub(crate) mod places;
pub(crate) mod presence;
pub(crate) mod programs;
pub(crate) mod request;
pub(crate) mod shards;
pub(crate) mod stacks;
pub(crate) mod taking_up;
pub(crate) mod trigger_board;
pub(crate) mod verified;
pub(crate) mod watch_board;
