//! The fragments of a page that may change, and what of them a token sees.

use maud::Markup;

use crate::{door::Problem, engine::EngineError};

/// An element of a page that may change.
pub(super) struct Fragment {
    /// The id of the element.
    pub id: &'static str,
    /// The element.
    pub html: Markup,
}

/// Leaves out what a token may not see: the page then shows less.
///
/// # Errors
/// Fails with every other error.
pub(super) fn allowed<T>(result: Result<T, EngineError>) -> Result<Option<T>, Problem> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(EngineError::Refused(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
