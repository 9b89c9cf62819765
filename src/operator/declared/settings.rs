//! The seam of the kinds: what the keys of one make.

use std::{fmt, path::Path, sync::Arc};

use async_trait::async_trait;

use crate::operator::{Backend, Builtin, Composite};

/// The keys of one kind, read and valid.
#[async_trait]
pub trait Settings: fmt::Debug + Send + Sync {
    /// The kind: `process`, `http`.
    fn kind(&self) -> &'static str;

    /// Makes the operator; nothing is started and nobody is asked yet.
    fn build(&self, builtin: &Builtin) -> Arc<dyn Backend>;

    /// The same with its relative paths below a directory; nothing if it has none.
    fn beside(&self, _dir: &Path) -> Option<Arc<dyn Settings>> {
        None
    }

    /// Who its members are, if it only stands for others.
    fn composite(&self) -> Option<&Composite> {
        None
    }

    /// Looks whether it could be used now, and says what was found or what is missing.
    ///
    /// # Errors
    /// Why it cannot be used, as a sentence for a person.
    async fn inspect(&self) -> Result<String, String>;
}
