//! Scopes and keys of state, in the URLs of pages.

use super::pager;
use crate::{
    door::{Code, Problem},
    protocol::Scope,
};

/// Reads a scope of a query or form.
///
/// # Errors
/// Returns `bad_id`.
pub(in crate::dashboard) fn scope_of(text: &str) -> Result<Scope, Problem> {
    text.parse().map_err(|error| Problem::new(Code::BadId, format!("failed to {error}")))
}

/// Returns the path of a value's page.
pub(in crate::dashboard) fn value_path(scope: &str, key: &str) -> String {
    pager::url("/ui/state/value", &[("scope", scope), ("key", key)])
}
