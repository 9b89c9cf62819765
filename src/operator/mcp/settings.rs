//! `kind = "mcp"` in a file.

use std::{collections::BTreeMap, time::Duration};

use reqwest::Url;
use serde::{Deserialize, de::Error as _};

use crate::{
    environment::{Egress, Text},
    operator::declared::{HeaderNameText, duration, maybe_url, variables},
};

/// The settings of an mcp operator.
#[derive(Debug, Clone)]
pub(in crate::operator) struct McpSettings {
    pub(super) server: Where,
    /// The tool of agents without one.
    pub(super) tool: Option<String>,
    /// The time limit until a server is ready.
    pub(super) start_within: Duration,
    /// The timeout of one attempt, if neither the call nor its agent has one.
    pub(super) timeout: Duration,
}

/// The location of a server.
#[derive(Debug, Clone)]
pub(super) enum Where {
    /// A child process, connected over its pipes.
    Command {
        /// Program and arguments.
        command: Vec<String>,
        /// The environment variables.
        env: BTreeMap<String, Text>,
    },
    /// At a URL.
    Url {
        /// The URL.
        url: Url,
        /// Headers of every request.
        headers: BTreeMap<HeaderNameText, Text>,
        /// The permitted destinations of requests.
        egress: Egress,
    },
}

/// The keys as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    command: Option<Vec<String>>,
    #[serde(default, deserialize_with = "variables")]
    env: BTreeMap<String, Text>,
    #[serde(default, deserialize_with = "maybe_url")]
    url: Option<Url>,
    #[serde(default)]
    headers: BTreeMap<HeaderNameText, Text>,
    #[serde(default)]
    allow_private: bool,
    #[serde(default)]
    allow_hosts: Vec<String>,
    tool: Option<String>,
    #[serde(default = "start_within", deserialize_with = "duration")]
    start_within: Duration,
    #[serde(default = "timeout", deserialize_with = "duration")]
    timeout: Duration,
}

impl<'de> Deserialize<'de> for McpSettings {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let keys = Keys::deserialize(deserializer)?;
        let over_http =
            !keys.headers.is_empty() || keys.allow_private || !keys.allow_hosts.is_empty();
        let server = match (keys.command, keys.url) {
            (Some(command), None) if command.first().is_none_or(String::is_empty) => {
                return Err(D::Error::custom("`command` has no program"));
            }
            (Some(_), None) if over_http => {
                let why =
                    "`headers`, `allow_private` and `allow_hosts` go with `url`, not `command`";
                return Err(D::Error::custom(why));
            }
            (Some(command), None) => Where::Command { command, env: keys.env },
            (None, Some(_)) if !keys.env.is_empty() => {
                return Err(D::Error::custom("`env` goes with `command`, not `url`"));
            }
            (None, Some(url)) => Where::Url {
                url,
                headers: keys.headers,
                egress: Egress { allow_private: keys.allow_private, allow_hosts: keys.allow_hosts },
            },
            (None, None) | (Some(_), Some(_)) => {
                return Err(D::Error::custom("it needs either `command` or `url`"));
            }
        };
        Ok(Self { server, tool: keys.tool, start_within: keys.start_within, timeout: keys.timeout })
    }
}

fn start_within() -> Duration {
    Duration::from_secs(30)
}

fn timeout() -> Duration {
    Duration::from_secs(600)
}
