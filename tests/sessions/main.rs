//! Sessions over the real program: a daemon in a process of its own, real WebSockets.

#[path = "../support/mod.rs"]
mod support;

mod client;
mod ends;
mod example;
mod lease;
mod order;
mod pages;
mod poll;
mod resume;
mod seats;
mod senior;
mod spawns;
mod storm;
mod talk;
mod tap;
