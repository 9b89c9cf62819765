//! The pages, one file each.

pub(super) mod answer_link;
pub(super) mod archive;
pub(super) mod blueprint;
pub(super) mod blueprints;
pub(super) mod bulk;
pub(super) mod compare;
pub(super) mod fork;
pub(super) mod gallery;
pub(super) mod inbox;
pub(super) mod keys;
pub(super) mod login;
pub(super) mod operators;
pub(super) mod overview;
pub(super) mod problem;
pub(super) mod run;
pub(super) mod runs;
pub(super) mod source;
mod source_links;
mod source_locals;
pub(super) mod state;
pub(super) mod state_value;
pub(super) mod step;
pub(super) mod system;
pub(super) mod task;
pub(super) mod tokens;
pub(super) mod triggers;
pub(super) mod usage;
