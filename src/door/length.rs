//! The lengths of bodies.

use axum::http::{HeaderMap, header};
use hyper::body::SizeHint;

/// Returns the number of bytes that a request announces for its body.
pub(super) fn announced(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Returns the size of a body of which `before` bytes were taken out, and come before the rest.
pub(super) fn longer(rest: &SizeHint, before: usize) -> SizeHint {
    let before = before as u64;
    let mut all = SizeHint::new();
    all.set_lower(rest.lower() + before);
    if let Some(upper) = rest.upper() {
        all.set_upper(upper + before);
    }
    all
}
