//! An environment as authors write it, and its conversion to a spec.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Value, json};

use super::Refusal;
use crate::{
    blueprint::parse_duration,
    protocol::{
        CredentialInjection, CredentialRef, DurationMs, EnvironmentSpec, IsolationBoundary,
        NetworkAction, NetworkPolicy, ResourceLimits, SecretSource,
    },
};

/// The name of the custom boundary that lists paths.
pub(super) const PATHS: &str = "paths";

/// The environment of an agent, or a named one in a configuration file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declaration {
    #[serde(default)]
    isolation: Isolation,
    #[serde(default)]
    paths: Paths,
    network: Option<NetworkAction>,
    #[serde(default)]
    resources: Resources,
    #[serde(default)]
    credentials: BTreeMap<String, Injection>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Isolation {
    Local,
    #[default]
    Process,
}

/// The paths that a child may read and write, in addition to the default ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Paths {
    /// Paths that may be read and executed.
    #[serde(default, deserialize_with = "texts")]
    pub(super) read: Vec<String>,
    /// Paths that may be read, executed and written.
    #[serde(default, deserialize_with = "texts")]
    pub(super) write: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resources {
    #[serde(default, deserialize_with = "quantity")]
    cpu: Option<String>,
    #[serde(default, deserialize_with = "quantity")]
    memory: Option<String>,
    #[serde(default, deserialize_with = "quantity")]
    disk: Option<String>,
    #[serde(default, deserialize_with = "quantity")]
    gpu: Option<String>,
    pids: Option<u32>,
    #[serde(default, deserialize_with = "span")]
    wall: Option<DurationMs>,
}

/// The place where a secret is injected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Injection {
    env: Option<String>,
    file: Option<String>,
}

impl Declaration {
    /// Parses the environment of an agent.
    ///
    /// # Errors
    /// Returns the invalid key and the reason.
    pub fn read(declared: &Value) -> Result<Self, Refusal> {
        serde_path_to_error::deserialize(declared).map_err(|error| {
            let path = error.path().to_string();
            let what = if path == "." { "environment".to_owned() } else { path };
            Refusal::new(what, error.inner().to_string(), "docs/environments.md has every key")
        })
    }

    /// Converts the declaration to a spec. `kept` has the sources of the secrets.
    ///
    /// # Errors
    /// Returns the secrets that are not configured, and those without an injection.
    pub fn spec(
        &self,
        kept: &BTreeMap<String, SecretSource>,
    ) -> Result<EnvironmentSpec, Vec<Refusal>> {
        let mut refused = Vec::new();
        let mut credentials = Vec::new();
        for (name, injection) in &self.credentials {
            let what = format!("credentials.{name}");
            let Some(source) = kept.get(name) else {
                let known: Vec<&str> = kept.keys().map(String::as_str).collect();
                let reason = match known.is_empty() {
                    true => "the host has no secrets".to_owned(),
                    false => format!("the host's secrets are {}", known.join(", ")),
                };
                let helps = format!("add [secrets.{name}] to the host's moonswarm.toml");
                refused.push(Refusal::new(what, reason, helps));
                continue;
            };
            let Injection { env, file } = injection;
            if env.is_none() && file.is_none() {
                let helps = "say `env = \"NAME\"` or `file = \"NAME\"`";
                refused.push(Refusal::new(what, "it goes nowhere", helps));
            }
            let env = env.iter().map(|name| CredentialInjection::EnvVar { var_name: name.clone() });
            let file = file.iter().map(|path| CredentialInjection::File { path: path.clone() });
            credentials.extend(
                env.chain(file).map(|goes| CredentialRef::new(name.clone(), source.clone(), goes)),
            );
        }
        if !refused.is_empty() {
            return Err(refused);
        }
        let mut isolation = Vec::new();
        if self.isolation == Isolation::Process {
            isolation.push(IsolationBoundary::Process);
        }
        if self.paths != Paths::default() {
            let config = json!(self.paths);
            isolation.push(IsolationBoundary::Custom { boundary_type: PATHS.to_owned(), config });
        }
        let Resources { cpu, memory, disk, gpu, pids, wall } = self.resources.clone();
        let limits = ResourceLimits { cpu, memory, disk, gpu, pids, wall };
        let limited = limits != ResourceLimits::default();
        Ok(EnvironmentSpec {
            isolation,
            credentials,
            resources: limited.then_some(limits),
            network: self.network.map(|default| NetworkPolicy::new(default, Vec::new())),
        })
    }
}

/// Parses a list of texts. An empty Lua table also counts as one.
fn texts<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Texts {
        List(Vec<String>),
        Empty(Empty),
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Empty {}
    match Texts::deserialize(from) {
        Ok(Texts::List(list)) => Ok(list),
        Ok(Texts::Empty(Empty {})) => Ok(Vec::new()),
        Err(_) => Err(D::Error::custom("it must be a list of paths")),
    }
}

/// Parses a quantity: `"512Mi"`, `2`, `0.5`.
fn quantity<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Quantity {
        Text(String),
        Number(serde_json::Number),
    }
    match Quantity::deserialize(from) {
        Ok(Quantity::Text(text)) => Ok(Some(text)),
        Ok(Quantity::Number(number)) => Ok(Some(number.to_string())),
        Err(_) => Err(D::Error::custom("it must be a quantity such as \"512Mi\" or 2")),
    }
}

fn span<'de, D: Deserializer<'de>>(from: D) -> Result<Option<DurationMs>, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text)
        .map(|ms| Some(DurationMs::from_millis(ms)))
        .map_err(|error| D::Error::custom(format!("{text:?} is no duration: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> BTreeMap<String, SecretSource> {
        let config = json!({ "variable": "CI_TOKEN" });
        let source = SecretSource::Custom { provider: "env".into(), config };
        BTreeMap::from([("ci".to_owned(), source)])
    }

    #[test]
    fn a_declaration_stands_for_a_spec() {
        let declared = json!({
            "paths": { "read": ["/opt/tools"], "write": {} },
            "network": "deny",
            "resources": { "cpu": 0.5, "memory": "64Mi", "pids": 8, "wall": "2s" },
            "credentials": { "ci": { "env": "TOKEN", "file": "token" } },
        });
        let spec = Declaration::read(&declared).unwrap().spec(&kept()).unwrap();
        let shape = serde_json::to_value(&spec).unwrap();
        assert_eq!(
            shape["isolation"],
            json!([
                { "type": "process" },
                {
                    "type": "custom",
                    "boundary_type": "paths",
                    "config": { "read": ["/opt/tools"], "write": [] },
                },
            ])
        );
        let limits = &shape["resources"];
        assert_eq!((&limits["cpu"], &limits["memory"]), (&json!("0.5"), &json!("64Mi")));
        assert_eq!((&limits["pids"], &limits["wall"]), (&json!(8), &json!(2000)));
        assert_eq!(shape["network"], json!({ "default": "deny", "rules": [] }));
        assert_eq!(spec.credentials.len(), 2);
        let nothing = Declaration::read(&json!({})).unwrap().spec(&kept()).unwrap();
        assert_eq!(nothing.isolation, [IsolationBoundary::Process], "what nobody says is closed");
        let local = Declaration::read(&json!({ "isolation": "local" })).unwrap();
        assert_eq!(local.spec(&kept()).unwrap(), EnvironmentSpec::new());
    }

    #[test]
    fn a_mistake_names_its_key() {
        for (declared, what, part) in [
            (json!({ "netwrok": "deny" }), "netwrok", "unknown field `netwrok`"),
            (json!({ "isolation": "vm" }), "isolation", "unknown variant `vm`"),
            (json!({ "resources": { "wall": "soon" } }), "resources.wall", "no duration"),
            (json!({ "resources": { "memory": {} } }), "resources.memory", "a quantity"),
            (json!({ "paths": { "read": "x" } }), "paths.read", "a list of paths"),
        ] {
            let refusal = Declaration::read(&declared).unwrap_err();
            assert_eq!(refusal.what, what);
            assert!(refusal.reason.contains(part), "{refusal}");
        }
    }

    #[test]
    fn a_secret_that_the_host_does_not_have_is_refused_by_name() {
        let declared = json!({ "credentials": { "cj": { "env": "A" }, "ci": {} } });
        let refused = Declaration::read(&declared).unwrap().spec(&kept()).unwrap_err();
        assert_eq!(refused[0].what, "credentials.ci");
        assert!(refused[1].to_string().contains("secrets are ci"), "{}", refused[1]);
        assert!(refused[1].helps.contains("[secrets.cj]"));
    }
}
