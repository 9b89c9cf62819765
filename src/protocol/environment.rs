//! Where an operator runs: what surrounds it, what it is given, what it may use and reach.
//!
//! A spec is plain data, so that a configuration file can hold it. What a machine cannot give of it
//! is refused with an [`EnvError`], never left out in silence.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{DurationMs, EnvError, OperatorInput, OperatorOutput, secret::SecretSource};

/// Runs an operator within the surroundings that a spec asks for.
#[async_trait]
pub trait Environment: Send + Sync {
    /// Provisions, injects, limits, executes, captures and tears down; the last also after an
    /// error.
    ///
    /// # Errors
    /// When any part of the spec cannot be given, a limit was broken, or the operator failed.
    async fn run(
        &self,
        input: OperatorInput,
        spec: &EnvironmentSpec,
    ) -> Result<OperatorOutput, EnvError>;
}

/// What an environment has to be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EnvironmentSpec {
    /// The boundaries, the outermost first; none is the host's own process or user.
    #[serde(default)]
    pub isolation: Vec<IsolationBoundary>,
    /// What it is given to identify itself with.
    #[serde(default)]
    pub credentials: Vec<CredentialRef>,
    /// What it may use up.
    pub resources: Option<ResourceLimits>,
    /// What it may reach.
    pub network: Option<NetworkPolicy>,
}

impl EnvironmentSpec {
    /// No boundaries, no credentials, no limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same within boundaries.
    #[must_use]
    pub fn with_isolation(self, isolation: Vec<IsolationBoundary>) -> Self {
        Self { isolation, ..self }
    }

    /// The same with credentials.
    #[must_use]
    pub fn with_credentials(self, credentials: Vec<CredentialRef>) -> Self {
        Self { credentials, ..self }
    }

    /// The same within limits.
    #[must_use]
    pub fn with_resources(self, resources: ResourceLimits) -> Self {
        Self { resources: Some(resources), ..self }
    }

    /// The same with a rule for the network.
    #[must_use]
    pub fn with_network(self, network: NetworkPolicy) -> Self {
        Self { network: Some(network), ..self }
    }
}

/// One boundary; several compose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum IsolationBoundary {
    /// A process of its own.
    Process,
    /// A container.
    Container {
        /// Its image.
        image: Option<String>,
    },
    /// A kernel in user space.
    Gvisor,
    /// A virtual machine.
    MicroVm,
    /// A WebAssembly sandbox.
    Wasm {
        /// What runs it.
        runtime: Option<String>,
    },
    /// A filter of the network.
    NetworkPolicy {
        /// What it lets through.
        rules: Vec<NetworkRule>,
    },
    /// Something else.
    Custom {
        /// Which.
        boundary_type: String,
        /// What it goes by.
        config: Value,
    },
}

/// A credential, by where it is kept and where it goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CredentialRef {
    /// What people call it; no part of the secret.
    pub name: String,
    /// Where it is kept.
    pub source: SecretSource,
    /// Where it goes.
    pub injection: CredentialInjection,
}

impl CredentialRef {
    /// A credential.
    pub fn new(
        name: impl Into<String>,
        source: SecretSource,
        injection: CredentialInjection,
    ) -> Self {
        Self { name: name.into(), source, injection }
    }
}

/// How a credential reaches what runs inside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CredentialInjection {
    /// As a variable of its environment.
    EnvVar {
        /// The variable.
        var_name: String,
    },
    /// As a file.
    File {
        /// Where.
        path: String,
    },
    /// By somebody beside it, who uses the credential for it.
    Sidecar,
}

/// What may be used up; absent is no limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ResourceLimits {
    /// Cores: `"0.5"`, `"500m"`.
    pub cpu: Option<String>,
    /// Memory: `"512Mi"`, `"2Gi"`.
    pub memory: Option<String>,
    /// Room for files: `"1Gi"`.
    pub disk: Option<String>,
    /// Graphics processors: `"1"`.
    pub gpu: Option<String>,
    /// Processes and threads at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// Time from the start to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<DurationMs>,
}

/// What may be reached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NetworkPolicy {
    /// What holds where no rule does.
    pub default: NetworkAction,
    /// Exceptions.
    pub rules: Vec<NetworkRule>,
}

impl NetworkPolicy {
    /// A policy.
    pub fn new(default: NetworkAction, rules: Vec<NetworkRule>) -> Self {
        Self { default, rules }
    }
}

/// One exception.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NetworkRule {
    /// A domain or a block of addresses.
    pub destination: String,
    /// A port; all of them if absent.
    pub port: Option<u16>,
    /// What to do.
    pub action: NetworkAction,
}

impl NetworkRule {
    /// A rule for every port of a destination.
    pub fn new(destination: impl Into<String>, action: NetworkAction) -> Self {
        Self { destination: destination.into(), port: None, action }
    }
}

/// What happens to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NetworkAction {
    /// It is let through.
    Allow,
    /// It is not.
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
