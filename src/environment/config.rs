//! The sections `[secrets]`, `[vault]` and `[environments]` of the configuration file.

use std::{collections::BTreeMap, path::PathBuf};

use reqwest::Url;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::json;

use super::{Declaration, Text, provider};
use crate::protocol::SecretSource;

/// The settings for environments on this host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    /// The sources of secrets, by the name used in blueprints.
    pub secrets: BTreeMap<String, SecretSource>,
    /// Environments that agents refer to by name.
    pub environments: BTreeMap<String, Declaration>,
    /// The vault.
    pub vault: Option<Vault>,
    /// True if children may see the data directory, including keys and tokens.
    pub show_data: bool,
}

/// A Vault server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vault {
    /// The server's URL.
    #[serde(deserialize_with = "address")]
    pub address: Url,
    /// The token with which the host authenticates.
    pub token: Text,
    /// The namespace, if the server uses namespaces.
    pub namespace: Option<String>,
}

/// The source of a secret, as written in `[secrets.NAME]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretDeclaration {
    env: Option<String>,
    file: Option<PathBuf>,
    command: Option<Vec<String>>,
    #[serde(default)]
    inherit: Vec<String>,
    vault: Option<KeptInVault>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptInVault {
    mount: String,
    path: String,
    field: Option<String>,
}

/// The source of a secret, parsed from the configuration file.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptSecret(pub SecretSource);

impl<'de> Deserialize<'de> for KeptSecret {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        SecretDeclaration::deserialize(from)?.source().map(Self).map_err(D::Error::custom)
    }
}

impl SecretDeclaration {
    fn source(self) -> Result<SecretSource, String> {
        let custom =
            |provider: &str, config| SecretSource::Custom { provider: provider.to_owned(), config };
        let Self { env, file, command, inherit, vault } = self;
        if command.is_none() && !inherit.is_empty() {
            return Err("`inherit` is only for a `command`".to_owned());
        }
        match (env, file, command, vault) {
            (Some(name), None, None, None) => {
                if name.is_empty() || name.contains(['=', '\0']) {
                    return Err(format!("{name:?} is not a variable's name"));
                }
                Ok(custom(provider::ENV, json!({ "variable": name })))
            }
            (None, Some(path), None, None) => {
                Ok(custom(provider::FILE, json!({ "path": path.to_string_lossy() })))
            }
            (None, None, Some(argv), None) => {
                if argv.first().is_none_or(String::is_empty) {
                    return Err("`command` has no program".to_owned());
                }
                Ok(custom(provider::COMMAND, json!({ "argv": argv, "inherit": inherit })))
            }
            (None, None, None, Some(KeptInVault { mount, path, field })) => {
                let path = match field {
                    Some(field) => format!("{path}#{field}"),
                    None => path,
                };
                Ok(SecretSource::Vault { mount, path })
            }
            _ => Err("give one of `env`, `file`, `command` and `vault`".to_owned()),
        }
    }
}

fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Url, D::Error> {
    let text = String::deserialize(from)?;
    let url: Url = text.parse().map_err(|error| D::Error::custom(format!("{text:?}: {error}")))?;
    let plain = url.username().is_empty() && url.password().is_none();
    // Plain HTTP would expose the token on the network. It is allowed only within this machine.
    let near = matches!(url.host_str(), Some("127.0.0.1" | "localhost" | "[::1]"));
    match url.scheme() {
        "https" if plain => Ok(url),
        "http" if plain && near => Ok(url),
        "http" => Err(D::Error::custom("a vault elsewhere is reached by https")),
        _ => Err(D::Error::custom("it must be an https address without a password")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(toml: &str) -> Result<SecretSource, String> {
        toml::from_str::<KeptSecret>(toml)
            .map(|it| it.0)
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_secret_is_kept_in_one_place() {
        let env = kept("env = \"TOKEN\"").unwrap();
        let config = json!({ "variable": "TOKEN" });
        assert_eq!(env, SecretSource::Custom { provider: "env".into(), config });
        let vault = kept("vault = { mount = \"kv\", path = \"data/ci\", field = \"pw\" }").unwrap();
        let path = "data/ci#pw".to_owned();
        assert_eq!(vault, SecretSource::Vault { mount: "kv".into(), path });
        for (toml, part) in [
            ("", "give one of"),
            ("env = \"A\"\nfile = \"b\"", "give one of"),
            ("env = \"A=B\"", "not a variable's name"),
            ("command = []", "no program"),
            ("env = \"A\"\ninherit = [\"B\"]", "only for a `command`"),
            ("aws = \"x\"", "unknown field `aws`"),
        ] {
            let error = kept(toml).unwrap_err();
            assert!(error.contains(part), "{toml}: {error}");
        }
    }

    #[test]
    fn a_vault_elsewhere_is_not_reached_over_plain_http() {
        let vault = |address: &str| {
            toml::from_str::<Vault>(&format!("address = \"{address}\"\ntoken = \"t\"")).is_ok()
        };
        assert!(vault("https://vault.example.com") && vault("http://127.0.0.1:8200"));
        assert!(!vault("http://vault.example.com") && !vault("https://a:b@vault.example.com"));
    }
}
