#![doc = "moonswarm"]
pub mod blueprint;
pub mod flow;
pub mod journal;
pub mod lua;
pub mod protocol;
pub mod store;
