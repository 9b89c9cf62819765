//! `kind = "http"` in a file.

use std::{collections::BTreeMap, time::Duration};

use reqwest::Url;
use serde::Deserialize;

use crate::{
    environment::{Egress, Text},
    operator::declared::{HeaderNameText, duration, maybe_url, url},
};

/// The upper bound of the limit on a response, in bytes.
const LARGEST: usize = 64 * 1024 * 1024;

/// The settings of an http operator.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::operator) struct HttpSettings {
    /// The URL that tasks are posted to.
    #[serde(deserialize_with = "url")]
    pub(super) url: Url,
    /// Headers of every request.
    #[serde(default)]
    pub(super) headers: BTreeMap<HeaderNameText, Text>,
    /// The content of a response body.
    #[serde(default)]
    pub(super) answer: AnswerIs,
    /// The maximum time until the response is complete.
    #[serde(default = "answer_within", deserialize_with = "duration")]
    pub(super) answer_within: Duration,
    /// The maximum time without data in the middle of a response.
    #[serde(default = "silence", deserialize_with = "duration")]
    pub(super) silence: Duration,
    /// The timeout of one attempt, if neither the call nor its agent has one.
    #[serde(default = "timeout", deserialize_with = "duration")]
    pub(super) timeout: Duration,
    /// The maximum size of a response, in bytes.
    #[serde(default = "max_answer")]
    max_answer: usize,
    /// The URL under which the webhook reaches this host.
    #[serde(default, deserialize_with = "maybe_url")]
    pub(super) public_url: Option<Url>,
    /// True if the webhook may have an address that is not public.
    #[serde(default)]
    allow_private: bool,
    /// Hosts that may have any address.
    #[serde(default)]
    allow_hosts: Vec<String>,
}

/// The content of a response body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AnswerIs {
    /// `{output, ok?, error?, usage?, effects?}`.
    #[default]
    Report,
    /// The output itself.
    Output,
}

impl AnswerIs {
    /// Returns the word in a file.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Output => "output",
        }
    }
}

impl HttpSettings {
    pub(super) fn egress(&self) -> Egress {
        Egress { allow_private: self.allow_private, allow_hosts: self.allow_hosts.clone() }
    }

    pub(super) fn max_answer(&self) -> usize {
        self.max_answer.min(LARGEST)
    }
}

fn answer_within() -> Duration {
    Duration::from_secs(60)
}

fn silence() -> Duration {
    Duration::from_secs(30)
}

fn timeout() -> Duration {
    Duration::from_secs(24 * 3_600)
}

fn max_answer() -> usize {
    8 * 1024 * 1024
}
