//! The dashboard: pages for people, in a browser.
//!
//! Owns the pages, their forms and fragments, the assets, and signing in. A request with the cookie
//! of a sign-in becomes one with the token behind it, and passes the same door as a request of the
//! API; pages read through the same engine. Everything works without JavaScript: it only swaps
//! fragments of a page that change. `host.rs` mounts the [`router`]; the command line shares the words
//! for what a run waits for.

mod acts;
mod again;
mod assets;
mod budget;
mod component;
mod delta;
mod desk;
mod fields;
mod fragment;
mod gate;
mod headers;
mod layout;
mod live;
mod mount;
mod page;
mod provider;
mod rooms;
mod said;
mod sign_in;
mod site;
mod visitor;

pub use component::move_command::move_command;
pub use mount::router;
pub use site::Site;
