//! `[webhooks.NAME]` in a file: where the host posts that a task for people has opened.
//!
//! Owns the settings, the signature, and the meaning of a response. Refuses addresses that
//! [`Egress`] does not admit, and redirects. It never retries: the engine decides.
//!
//! The signature is that of Standard Webhooks: `webhook-signature: v1,` and the HMAC-SHA256 of
//! `id.timestamp.body` in Base64.

use std::{collections::BTreeMap, time::Duration};

use data_encoding::BASE64;
use reqwest::{
    Client, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderValue},
};
use ring::hmac;
use serde::Deserialize;

use super::{
    declared::{HeaderNameText, duration, url},
    outgoing,
};
use crate::environment::{Egress, EgressError, Text, innermost, retry_after};

/// The longest pause that a response may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

/// A receiver of opened tasks.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskWebhook {
    /// The URL that is posted to.
    #[serde(deserialize_with = "url")]
    url: Url,
    /// The key of the signature; without one, nothing is signed.
    #[serde(default)]
    secret: Option<Text>,
    /// Headers of every request.
    #[serde(default)]
    headers: BTreeMap<HeaderNameText, Text>,
    /// Only tasks of runs of these blueprints; of all if empty.
    #[serde(default)]
    blueprints: Vec<String>,
    /// Only tasks of these agents; of all if empty.
    #[serde(default)]
    agents: Vec<String>,
    /// Only tasks that ask one of these people or roles; all if empty.
    #[serde(default)]
    people: Vec<String>,
    /// The maximum time until the response.
    #[serde(default = "answer_within", deserialize_with = "duration")]
    answer_within: Duration,
    /// True if the receiver may have an address that is not public.
    #[serde(default)]
    allow_private: bool,
    /// Hosts that may have any address.
    #[serde(default)]
    allow_hosts: Vec<String>,
}

/// The outcome of a request to a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Posted {
    /// The receiver took the task.
    Taken,
    /// The receiver wants no more posts of this task (410).
    Unwanted,
    /// The receiver did not take the task yet, and may have asked for a pause.
    NotYet {
        /// The reason.
        reason: String,
        /// The pause.
        pause: Option<Duration>,
    },
}

impl TaskWebhook {
    /// Returns true if the receiver wants a task. One that asks nobody by name asks everybody.
    pub fn wants(&self, blueprint: &str, agent: &str, by: &[String]) -> bool {
        let has = |list: &[String], name: &str| list.is_empty() || list.iter().any(|it| it == name);
        let asks = by.is_empty()
            || self.people.is_empty()
            || by.iter().any(|who| self.people.contains(who));
        has(&self.blueprints, blueprint) && has(&self.agents, agent) && asks
    }

    /// Creates the client for the receiver.
    ///
    /// # Errors
    /// Fails when TLS cannot be set up.
    pub fn client(&self) -> Result<Client, EgressError> {
        self.egress().client()
    }

    /// Checks that the receiver may be reached and that its secrets can be read.
    ///
    /// # Errors
    /// Returns the reason.
    pub async fn inspect(&self) -> Result<String, String> {
        self.egress().probe(&self.url).await.map_err(|error| format!("failed to {error}"))?;
        for text in self.headers.values().chain(&self.secret) {
            text.resolve().map_err(|error| format!("failed to {error}"))?;
        }
        Ok(format!("posts to {}", self.url.host_str().unwrap_or_default()))
    }

    /// Posts a body under an id, which stays the same when it is posted again.
    pub async fn post(&self, client: &Client, id: &str, body: &str, now_ms: u64) -> Posted {
        let sent = async {
            self.egress().check(&self.url).map_err(|error| format!("failed to {error}"))?;
            let headers = self.headers(id, body, now_ms)?;
            let request = client.post(self.url.clone()).headers(headers).body(body.to_owned());
            match tokio::time::timeout(self.answer_within, request.send()).await {
                Ok(Ok(answer)) => Ok(answer),
                Ok(Err(error)) => Err(reason(&error)),
                Err(_) => Err(format!("it did not answer within {:?}", self.answer_within)),
            }
        };
        let answer = match sent.await {
            Ok(answer) => answer,
            Err(reason) => return Posted::NotYet { reason, pause: None },
        };
        match answer.status() {
            status if status.is_success() => Posted::Taken,
            StatusCode::GONE => Posted::Unwanted,
            status => {
                let pause = retry_after(answer.headers(), now_ms).map(|it| it.min(LONGEST_PAUSE));
                Posted::NotYet { reason: format!("it answered {}", status.as_u16()), pause }
            }
        }
    }

    fn egress(&self) -> Egress {
        Egress { allow_private: self.allow_private, allow_hosts: self.allow_hosts.clone() }
    }

    fn headers(&self, id: &str, body: &str, now_ms: u64) -> Result<HeaderMap, String> {
        let mut headers = outgoing::headers(&self.headers, |_, _, _| {})
            .map_err(|failure| failure.message.clone())?;
        let at = (now_ms / 1_000).to_string();
        let plain = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("webhook-id", plain(id)?);
        headers.insert("webhook-timestamp", plain(&at)?);
        if let Some(secret) = &self.secret {
            let secret = secret.resolve().map_err(|error| format!("failed to {error}"))?;
            let signature = signature(secret.expose().as_bytes(), &format!("{id}.{at}.{body}"));
            headers.insert("webhook-signature", plain(&signature)?);
        }
        Ok(headers)
    }
}

fn signature(secret: &[u8], text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    format!("v1,{}", BASE64.encode(hmac::sign(&key, text.as_bytes()).as_ref()))
}

/// Returns the reason of an error.
fn reason(error: &reqwest::Error) -> String {
    if let Some(refused) = EgressError::within(error) {
        return format!("failed to {refused}");
    }
    innermost(error).to_string()
}

fn answer_within() -> Duration {
    Duration::from_secs(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(more: &str) -> TaskWebhook {
        toml::from_str(&format!("url = \"https://desk.example/x\"\n{more}")).unwrap()
    }

    #[test]
    fn a_receiver_gets_the_tasks_that_fit_all_of_its_filters() {
        let ann = ["ann".to_owned()];
        assert!(webhook("").wants("b", "a", &ann));
        let narrow =
            webhook("blueprints = [\"b\"]\nagents = [\"a\"]\npeople = [\"ann\", \"approver\"]");
        assert!(narrow.wants("b", "a", &ann));
        assert!(narrow.wants("b", "a", &[]), "a task that asks everybody asks ann");
        assert!(!narrow.wants("c", "a", &ann) && !narrow.wants("b", "c", &ann));
        assert!(!narrow.wants("b", "a", &["bob".to_owned()]));
        assert!(narrow.wants("b", "a", &["bob".to_owned(), "approver".to_owned()]));
    }

    #[test]
    fn a_signature_is_that_of_the_standard() {
        // From the specification's reference implementation: id, timestamp and body with dots.
        let key = BASE64.decode(b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let text = "msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{\"test\": 2432232314}";
        assert_eq!(signature(&key, text), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn wrong_settings_are_refused() {
        for wrong in ["url = \"ftp://x.example\"", "url = \"https://u:p@x.example\"", "", "url = 3"]
        {
            assert!(toml::from_str::<TaskWebhook>(wrong).is_err(), "{wrong}");
        }
        assert!(toml::from_str::<TaskWebhook>("url = \"https://x.example\"\nmoon = 1").is_err());
    }
}
