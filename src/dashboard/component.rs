//! The parts that pages are made of: pure functions from views to markup.

pub(super) mod attempts;
pub(super) mod bytes;
pub(super) mod command;
pub(super) mod fold;
pub(super) mod form;
mod form_list;
pub(super) mod graph;
pub(super) mod json;
pub(super) mod markdown;
pub(super) mod move_command;
pub(super) mod pager;
pub(super) mod run_table;
pub(super) mod sparkline;
pub(super) mod state_path;
pub(super) mod status;
pub(super) mod talk;
pub(super) mod text;
pub(super) mod time;
pub(super) mod timeline;
pub(super) mod usage;
pub(super) mod waiting;
