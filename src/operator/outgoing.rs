//! The common parts of operators that make requests: headers, and refusals to send.

use std::collections::BTreeMap;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::{Task, declared::HeaderNameText};
use crate::{
    environment::{EgressError, Secret, Text},
    protocol::{Failure, failure::kind},
};

/// Returns the configured headers, with the current values of their secrets. Calls `asked` for
/// each: the header, and its secret or the reason why it is missing.
pub(super) fn headers(
    configured: &BTreeMap<HeaderNameText, Text>,
    mut asked: impl FnMut(&str, &Text, Result<&Secret, &str>),
) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for (name, text) in configured {
        let failed = |why: String| {
            let message = format!("failed to set the header {}: {why}", name.0);
            Failure::new(kind::OPERATOR_UNAVAILABLE, message).retryable()
        };
        let got = text.resolve().map_err(|error| format!("failed to {error}"));
        asked(&name.0, text, got.as_ref().map_err(String::as_str));
        let secret = got.map_err(failed)?;
        let mut value = HeaderValue::from_str(secret.expose())
            .map_err(|_| failed("it has characters that no header takes".to_owned()))?;
        value.set_sensitive(true);
        let name: HeaderName = name.0.parse().expect("it was read as a header's name");
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Adds the span that an attempt is a part of.
pub(super) fn trace(headers: &mut HeaderMap, task: &Task) {
    let value = task.trace.and_then(|trace| HeaderValue::from_str(&trace.to_string()).ok());
    if let Some(value) = value {
        headers.insert("traceparent", value);
    }
}

/// Returns the failure of a request that must not be sent, or cannot be sent yet.
pub(super) fn refused(error: &EgressError) -> Failure {
    let message = format!("failed to {error}");
    match error {
        EgressError::Resolve { .. } => {
            Failure::new(kind::OPERATOR_UNAVAILABLE, message).retryable()
        }
        EgressError::NotHttp { .. }
        | EgressError::Plain { .. }
        | EgressError::Private { .. }
        | EgressError::Client { .. } => Failure::new(kind::REFUSED, message),
    }
}
