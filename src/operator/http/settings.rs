//! `kind = "http"` in a file.

use std::{collections::BTreeMap, time::Duration};

use reqwest::Url;
use serde::Deserialize;

use crate::{
    environment::{Egress, Text},
    operator::declared::{HeaderNameText, duration, maybe_url, url},
};

/// The largest answer that a file may allow, in bytes.
const LARGEST: usize = 64 * 1024 * 1024;

/// The keys of an http operator.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::operator) struct HttpSettings {
    /// Where tasks are posted.
    #[serde(deserialize_with = "url")]
    pub(super) url: Url,
    /// Headers of every request.
    #[serde(default)]
    pub(super) headers: BTreeMap<HeaderNameText, Text>,
    /// What the body of an answer is.
    #[serde(default)]
    pub(super) answer: AnswerIs,
    /// How long the webhook may take to answer.
    #[serde(default = "answer_within", deserialize_with = "duration")]
    pub(super) answer_within: Duration,
    /// How long it may be silent in the middle of its answer.
    #[serde(default = "silence", deserialize_with = "duration")]
    pub(super) silence: Duration,
    /// Time for one attempt, where neither the call nor its agent says.
    #[serde(default = "timeout", deserialize_with = "duration")]
    pub(super) timeout: Duration,
    /// The most bytes of an answer.
    #[serde(default = "max_answer")]
    max_answer: usize,
    /// Where the webhook reaches this host.
    #[serde(default, deserialize_with = "maybe_url")]
    pub(super) public_url: Option<Url>,
    /// Whether it may be at an address that is not public.
    #[serde(default)]
    allow_private: bool,
    /// Hosts that may be at any address.
    #[serde(default)]
    allow_hosts: Vec<String>,
}

/// What the body of an answer is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AnswerIs {
    /// `{output, ok?, error?, usage?, effects?}`.
    #[default]
    Report,
    /// The output itself.
    Output,
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
