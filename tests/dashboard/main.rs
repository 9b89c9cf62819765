//! The dashboard as a browser sees it: a daemon in a process of its own, pages and forms over real
//! HTTP, and a walk in a real Chromium where there is one.

#[path = "../support/mod.rs"]
mod support;

mod browser;
mod bulk;
mod commands;
mod graph;
mod hostile;
mod live;
mod many;
mod pages;
mod person;
mod pictures;
#[path = "../faults/shim.rs"]
#[expect(dead_code, reason = "every test program uses its own part of it")]
mod shim;
mod sign_in;
mod source;
mod tabs;
mod talk;
mod things;
