//! The seam of the kinds: settings, and the operator that they build.

use std::{fmt, path::Path, sync::Arc};

use async_trait::async_trait;

use super::ShownSettings;
use crate::operator::{Backend, Builtin, Composite};

/// The validated settings of one kind.
#[async_trait]
pub trait Settings: fmt::Debug + Send + Sync {
    /// Returns the kind: `process`, `http`.
    fn kind(&self) -> &'static str;

    /// Builds the operator; starts nothing and makes no connection yet.
    fn build(&self, builtin: &Builtin) -> Arc<dyn Backend>;

    /// Resolves its relative paths against a directory; returns `None` if it has none.
    fn beside(&self, _dir: &Path) -> Option<Arc<dyn Settings>> {
        None
    }

    /// Returns the composite, if this is one.
    fn composite(&self) -> Option<&Composite> {
        None
    }

    /// Returns the effective settings, for people who may see the configuration.
    fn shown(&self) -> ShownSettings {
        ShownSettings::default()
    }

    /// Checks whether the operator could be used now, and describes the result. May start children
    /// and make connections, as the operator does.
    ///
    /// # Errors
    /// Returns the reason why it cannot be used, as a sentence for a person.
    async fn inspect(&self, builtin: &Builtin) -> Result<String, String>;
}
