//! The settings of a node of a cluster.

use std::{net::SocketAddr, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{engine::Lend, environment::Text};

/// The settings of a node in one source.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterLayer {
    /// The key that all nodes share: `{ file = "/etc/moonswarm/cluster.key" }`.
    pub key: Option<Text>,
    /// The name of this node, for people.
    pub node: Option<String>,
    /// The address to listen on for the other nodes.
    pub peer_listen: Option<SocketAddr>,
    /// The host and port at which the other nodes reach this one, if that is another.
    pub peer_address: Option<String>,
    /// The address of the cluster for workers: that of the load balancer.
    pub url: Option<String>,
    /// The time after its last renewal at which another node may take over: `10s`.
    #[serde(default, deserialize_with = "super::duration")]
    pub lease: Option<Duration>,
    /// The rule by which this node lends runs to those that stand by: `"auto"`, `"even"` or `"off"`.
    #[serde(default, deserialize_with = "lend")]
    pub lend: Option<Lend>,
}

fn lend<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Lend>, D::Error> {
    parse_lend(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

/// Parses the word of a rule.
///
/// # Errors
/// Returns the words that there are, for another one.
pub(crate) fn parse_lend(word: &str) -> Result<Lend, String> {
    Lend::parse(word)
        .ok_or_else(|| format!("{word:?} is neither \"auto\" nor \"even\" nor \"off\""))
}

impl ClusterLayer {
    /// Merges this layer over another, which supplies the settings that this one does not have.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            key: self.key.or(below.key),
            node: self.node.or(below.node),
            peer_listen: self.peer_listen.or(below.peer_listen),
            peer_address: self.peer_address.or(below.peer_address),
            url: self.url.or(below.url),
            lease: self.lease.or(below.lease),
            lend: self.lend.or(below.lend),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_one_of_three_words_and_a_flag_goes_before_the_file() {
        let parse = |text: &str| toml::from_str::<ClusterLayer>(text);
        for (word, rule) in [("auto", Lend::Auto), ("even", Lend::Even), ("off", Lend::Off)] {
            assert_eq!(parse(&format!("lend = {word:?}")).unwrap().lend, Some(rule));
            assert_eq!(parse_lend(word), Ok(rule));
        }
        let text = parse("lend = \"much\"").unwrap_err().to_string();
        assert!(text.contains("\"much\" is neither"), "{text}");
        let file = ClusterLayer { lend: Some(Lend::Even), ..ClusterLayer::default() };
        assert_eq!(ClusterLayer::default().over(file.clone()).lend, Some(Lend::Even));
        let flags = ClusterLayer { lend: Some(Lend::Off), ..ClusterLayer::default() };
        assert_eq!(flags.over(file).lend, Some(Lend::Off));
    }
}
