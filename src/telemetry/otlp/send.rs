//! Sends messages to a collector.

use std::time::Duration;

use prost::{Message as _, bytes::Bytes};
use reqwest::{
    Client, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
    redirect,
};

use super::{message::Answer, settings::Endpoint};
use crate::{
    clock::Clock,
    environment::{BodyLimit, http_client, read_body, retry_after, with_causes},
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
        let after = retry_after(answer.headers(), Clock::system().now_ms());
        let after = after.map(|it| it.min(LONGEST));
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
