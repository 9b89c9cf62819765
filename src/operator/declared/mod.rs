//! The operators that a configuration file declares: `[operators.NAME]`, `kind = "…"`.
//!
//! Owns the table of kinds, the reading of the section with the place of every mistake, and
//! [`Settings`], what a kind's keys are and what they make. Refuses unknown kinds, unknown keys and
//! names that a built-in operator of another kind has. A new kind is one file with its settings and
//! one line in the table. `config` reads it, the host builds from it, `doctor` inspects it.

mod kinds;
mod read;
mod settings;
mod value;

pub(super) use kinds::is_kind;
pub use read::{Declared, Mistake};
pub use settings::Settings;
pub(super) use value::{HeaderNameText, duration, maybe_url, url, variables};
