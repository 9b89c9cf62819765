//! The program as people and scripts use it: by its command line, in an empty directory.

#[path = "../support/mod.rs"]
mod support;

mod agent_clis;
mod agents;
mod authoring;
mod data_dir;
mod endings;
mod first_hour;
mod import_mse;
mod inbox;
mod live;
mod many_runs;
mod messages;
mod newcomer;
mod operators;
mod report;
mod screen;
mod service;
mod shapes;
mod upkeep;
mod worker;
