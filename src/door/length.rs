//! The length that a request announces for its body.

use axum::http::{HeaderMap, header};

/// Returns the number of bytes that a request announces for its body.
pub(super) fn announced(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
