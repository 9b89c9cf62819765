//! Renders runs, steps and tasks for a terminal: pure functions from views to text.

mod changes;
mod event;
mod live;
mod said;
mod table;
mod text;
mod time;
mod tree;
mod waits;

pub use changes::Changes;
pub use event::{Story, said_line};
pub use live::{FRAME_MS, Live};
pub use said::LiveText;
pub use table::fitted;
pub use text::{cut, printable};
pub use time::{age, elapsed, since_ms, unix_ms};
pub use tree::{Tree, used, waiting};
pub use waits::command;
