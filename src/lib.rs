#![doc = "moonswarm"]
pub mod protocol;
pub mod journal;
pub mod flow;
pub mod token;
pub mod blueprint;
pub mod middleware;
pub mod store;
