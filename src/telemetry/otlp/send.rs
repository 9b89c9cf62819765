//! Sends messages to a collector.

use std::time::Duration;

use jiff::fmt::rfc2822::DateTimeParser;
use prost::{Message as _, bytes::Bytes};
use reqwest::{
    Client, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
    redirect,
};

use super::{message::Answer, settings::Endpoint};
use crate::{
    clock::Clock,
    environment::{BodyLimit, http_client, read_body, with_causes},
};

/// The longest pause that a collector may ask for.
const LONGEST: Duration = Duration::from_secs(60);
/// The maximum size of an answer that is read, in bytes.
const ANSWER: usize = 64 << 10;

/// The reason why a message was not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// The collector may take the message later.
    #[error("export to the collector: {reason}; the request is repeated until it succeeds")]
    Later {
        /// The reason.
        reason: String,
        /// The pause that the collector asks for.
        after: Option<Duration>,
    },
    /// The collector never takes the message.
    #[error("export to the collector: {reason}; the items of this request are lost")]
    Never {
        /// The reason.
        reason: String,
    },
}

/// The items of a message that the collector refused although it took the message.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Their number.
    pub(super) items: u64,
    /// The reason, as the collector words it.
    pub(super) reason: String,
}

/// A client of a collector, for one signal.
#[derive(Clone)]
pub(super) struct Sender {
    client: Client,
    url: String,
    headers: HeaderMap,
}

impl Sender {
    /// Creates a client. A header that cannot be sent, which no variable but a program can set, is
    /// logged and left out.
    pub(super) fn new(endpoint: &Endpoint) -> Result<Self, reqwest::Error> {
        let mut headers = HeaderMap::new();
        for (name, value) in &endpoint.headers {
            match (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                (Ok(name), Ok(mut value)) => {
                    value.set_sensitive(true);
                    headers.insert(name, value);
                }
                _ => {
                    tracing::warn!(name, "a header for the collector is not valid; it is not sent");
                }
            }
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let mut client = http_client().timeout(endpoint.timeout).redirect(redirect::Policy::none());
        if endpoint.url.starts_with("http:") {
            // The machine's certificates are of no use then, and take time to read.
            client = client.tls_certs_only([]);
        }
        Ok(Self { client: client.build()?, url: endpoint.url.clone(), headers })
    }

    /// Sends a message; returns what the collector refused of it.
    ///
    /// # Errors
    /// Fails when the collector cannot be reached, or does not take the message.
    pub(super) async fn send(&self, body: Bytes) -> Result<Refused, Trouble> {
        let request = self.client.post(&self.url).headers(self.headers.clone()).body(body);
        let answer = request.send().await.map_err(|error| Trouble::Later {
            // The URL may contain a key.
            reason: with_causes(&error.without_url()),
            after: None,
        })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(refused(answer).await);
        }
        let reason = format!("it answered {status}");
        let after = answer.headers().get(RETRY_AFTER).and_then(|it| it.to_str().ok());
        let after = after.and_then(|it| asked(it, Clock::system().now_ms()));
        Err(match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
            // Nothing is lost while a key or a path is corrected.
            | StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::NOT_FOUND => Trouble::Later { reason, after },
            _ if status.is_redirection() => Trouble::Later { reason, after },
            _ => Trouble::Never { reason },
        })
    }
}

/// Returns the pause that a collector asks for, in seconds or up to a date; `None` if it is neither.
fn asked(after: &str, now_ms: u64) -> Option<Duration> {
    let after = after.trim();
    let pause = match after.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = DateTimeParser::new().parse_timestamp(after).ok()?.as_millisecond();
            Duration::from_millis(u64::try_from(at).ok()?.saturating_sub(now_ms))
        }
    };
    Some(pause.min(LONGEST))
}

/// Reads what a collector refused of a message that it took. An answer that cannot be read refuses
/// nothing.
async fn refused(answer: Response) -> Refused {
    let mut body = Vec::new();
    let limit = BodyLimit { bytes: ANSWER, silence: None };
    if read_body(answer, limit, &mut body).await.is_err() {
        return Refused::default();
    }
    let partial = Answer::decode(&*body).ok().and_then(|it| it.partial_success).unwrap_or_default();
    let items = u64::try_from(partial.rejected).unwrap_or(0);
    Refused { items, reason: partial.error_message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_asks_for_a_pause_in_seconds_or_up_to_a_date() {
        let now_ms = 784_111_777_000;
        for (after, seconds) in [
            ("0", Some(0)),
            (" 7 ", Some(7)),
            ("86400", Some(60)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sun, 06 Nov 1994 08:49:27 GMT", Some(0)),
            ("Mon, 06 Nov 1995 08:49:37 GMT", Some(60)),
            ("-1", None),
            ("1.5", None),
            ("99999999999999999999999", None),
            ("soon", None),
        ] {
            assert_eq!(asked(after, now_ms), seconds.map(Duration::from_secs), "{after}");
        }
    }
}
