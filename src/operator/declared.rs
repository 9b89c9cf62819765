//! The operators that a configuration file declares: `[operators.NAME]`, `kind = "…"`.
//!
//! Owns the table of kinds, the parser of the section with the position of every mistake, and
//! [`Settings`], the settings of a kind and the operator that they build. Refuses unknown kinds,
//! unknown keys, and the names of built-in operators of another kind. A new kind is one file with
//! its settings and one line in the table. `config` reads it, the host builds from it, `doctor`
//! inspects it.

mod kinds;
mod read;
mod settings;
mod shown;
mod value;

pub(super) use kinds::lines_of;
pub use read::{Declared, Mistake};
pub use settings::Settings;
pub use shown::ShownSettings;
pub(super) use value::{HeaderNameText, duration, maybe_url, url, variables};
