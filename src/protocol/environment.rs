//! The environment of an operator: isolation, credentials, resources, network.
//!
//! A spec is plain data, so that a configuration file can hold it. A part that a machine cannot
//! provide is refused with an [`EnvError`], never left out silently.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{DurationMs, EnvError, OperatorInput, OperatorOutput, secret::SecretSource};

/// Runs an operator in the environment that a spec describes.
#[async_trait]
pub trait Environment: Send + Sync {
    /// Provisions, injects, limits, executes, captures and tears down; tears down after an error
    /// too.
    ///
    /// # Errors
    /// Fails when a part of the spec cannot be provided, a limit is exceeded, or the operator
    /// fails.
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
    ) -> Result<OperatorOutput, EnvError>;
}

/// The description of an environment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EnvironmentSpec {
    /// The boundaries, the outermost first; if empty, the operator runs as the host's own process
    /// or user.
    #[serde(default)]
    pub isolation: Vec<IsolationBoundary>,
    /// The credentials of the operator.
    #[serde(default)]
    pub credentials: Vec<CredentialRef>,
    /// The limits on resources.
    pub resources: Option<ResourceLimits>,
    /// The network that is reachable.
    pub network: Option<NetworkPolicy>,
}

impl EnvironmentSpec {
    /// Creates a spec without boundaries, credentials or limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the boundaries.
    #[must_use]
    pub fn with_isolation(self, isolation: Vec<IsolationBoundary>) -> Self {
        Self { isolation, ..self }
    }

    /// Sets the credentials.
    #[must_use]
    pub fn with_credentials(self, credentials: Vec<CredentialRef>) -> Self {
        Self { credentials, ..self }
    }

    /// Sets the limits on resources.
    #[must_use]
    pub fn with_resources(self, resources: ResourceLimits) -> Self {
        Self { resources: Some(resources), ..self }
    }

    /// Sets the policy of the network.
    #[must_use]
    pub fn with_network(self, network: NetworkPolicy) -> Self {
        Self { network: Some(network), ..self }
    }
}

/// One isolation boundary; several compose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum IsolationBoundary {
    /// A separate process.
    Process,
    /// A container.
    Container {
        /// The image.
        image: Option<String>,
    },
    /// A kernel in user space.
    Gvisor,
    /// A virtual machine.
    MicroVm,
    /// A WebAssembly sandbox.
    Wasm {
        /// The WebAssembly runtime.
        runtime: Option<String>,
    },
    /// A network filter.
    NetworkPolicy {
        /// The rules of the filter.
        rules: Vec<NetworkRule>,
    },
    /// Any other boundary.
    Custom {
        /// The type of boundary.
        boundary_type: String,
        /// The configuration.
        config: Value,
    },
}

/// A reference to a credential: its source and its destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CredentialRef {
    /// The display name; not part of the secret.
    pub name: String,
    /// The source of the secret.
    pub source: SecretSource,
    /// The way in which the credential is injected.
    pub injection: CredentialInjection,
}

impl CredentialRef {
    /// Creates a reference to a credential.
    pub fn new(
        name: impl Into<String>,
        source: SecretSource,
        injection: CredentialInjection,
    ) -> Self {
        Self { name: name.into(), source, injection }
    }
}

/// The way in which a credential reaches the code inside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CredentialInjection {
    /// As an environment variable.
    EnvVar {
        /// The name of the variable.
        var_name: String,
    },
    /// As a file.
    File {
        /// The path.
        path: String,
    },
    /// Through a sidecar, which uses the credential on behalf of the operator.
    Sidecar,
}

/// Limits on resources; absent means unlimited.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ResourceLimits {
    /// CPU cores: `"0.5"`, `"500m"`.
    pub cpu: Option<String>,
    /// Memory: `"512Mi"`, `"2Gi"`.
    pub memory: Option<String>,
    /// Disk space: `"1Gi"`.
    pub disk: Option<String>,
    /// GPUs: `"1"`.
    pub gpu: Option<String>,
    /// The number of processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// Wall-clock time, from start to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<DurationMs>,
}

/// The network policy: a default and its exceptions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NetworkPolicy {
    /// The action where no rule matches.
    pub default: NetworkAction,
    /// The exceptions.
    pub rules: Vec<NetworkRule>,
}

impl NetworkPolicy {
    /// Creates a policy.
    pub fn new(default: NetworkAction, rules: Vec<NetworkRule>) -> Self {
        Self { default, rules }
    }
}

/// One exception.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NetworkRule {
    /// A domain or a CIDR block.
    pub destination: String,
    /// The port; every port if absent.
    pub port: Option<u16>,
    /// The action.
    pub action: NetworkAction,
}

impl NetworkRule {
    /// Creates a rule for every port of a destination.
    pub fn new(destination: impl Into<String>, action: NetworkAction) -> Self {
        Self { destination: destination.into(), port: None, action }
    }
}

/// The action for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NetworkAction {
    /// Allows the connection.
    Allow,
    /// Denies the connection.
    Deny,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_spec_has_the_vocabularys_shape() {
        let source = SecretSource::Vault { mount: "secret".into(), path: "data/ci".into() };
        let injection = CredentialInjection::EnvVar { var_name: "TOKEN".into() };
        let spec = EnvironmentSpec::new()
            .with_isolation(vec![
                IsolationBoundary::Process,
                IsolationBoundary::Custom { boundary_type: "paths".into(), config: json!({}) },
            ])
            .with_credentials(vec![CredentialRef::new("ci", source, injection)])
            .with_resources(ResourceLimits { memory: Some("1Gi".into()), ..Default::default() })
            .with_network(NetworkPolicy::new(
                NetworkAction::Deny,
                vec![NetworkRule::new("10.0.0.0/8", NetworkAction::Allow)],
            ));
        let shape = json!({
            "isolation": [
                { "type": "process" },
                { "type": "custom", "boundary_type": "paths", "config": {} },
            ],
            "credentials": [{
                "name": "ci",
                "source": { "type": "vault", "mount": "secret", "path": "data/ci" },
                "injection": { "env_var": { "var_name": "TOKEN" } },
            }],
            "resources": { "cpu": null, "memory": "1Gi", "disk": null, "gpu": null },
            "network": {
                "default": "deny",
                "rules": [{ "destination": "10.0.0.0/8", "port": null, "action": "allow" }],
            },
        });
        assert_eq!(serde_json::to_value(&spec).unwrap(), shape);
        assert_eq!(serde_json::from_value::<EnvironmentSpec>(shape).unwrap(), spec);
    }

    #[test]
    fn what_a_spec_leaves_out_is_nothing() {
        assert_eq!(serde_json::from_str::<EnvironmentSpec>("{}").unwrap(), EnvironmentSpec::new());
        let sidecar = serde_json::to_value(CredentialInjection::Sidecar).unwrap();
        assert_eq!(sidecar, json!("sidecar"));
    }

    #[test]
    fn every_boundary_has_its_word() {
        let words = [
            (IsolationBoundary::Container { image: None }, "container"),
            (IsolationBoundary::Gvisor, "gvisor"),
            (IsolationBoundary::MicroVm, "micro_vm"),
            (IsolationBoundary::Wasm { runtime: None }, "wasm"),
            (IsolationBoundary::NetworkPolicy { rules: Vec::new() }, "network_policy"),
        ];
        for (boundary, word) in words {
            let json = serde_json::to_value(&boundary).unwrap();
            assert_eq!(json["type"], word);
            assert_eq!(serde_json::from_value::<IsolationBoundary>(json).unwrap(), boundary);
        }
    }
}
