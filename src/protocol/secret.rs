//! Sources of secrets, and the events of their use. No type here holds a secret.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The source of a secret, independent of its delivery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "host", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SecretSource {
    /// HashiCorp Vault.
    Vault {
        /// The mount: `secret`.
        mount: String,
        /// The path within it: `data/ci`.
        path: String,
    },
    /// AWS Secrets Manager.
    AwsSecretsManager {
        /// Its id or ARN.
        secret_id: String,
        /// The region.
        region: Option<String>,
    },
    /// GCP Secret Manager.
    GcpSecretManager {
        /// The project.
        project: String,
        /// Its id.
        secret_id: String,
    },
    /// Azure Key Vault.
    AzureKeyVault {
        /// The vault's address.
        vault_url: String,
        /// Its name.
        secret_name: String,
    },
    /// The keystore of the operating system.
    OsKeystore {
        /// The service.
        service: String,
    },
    /// A secret of Kubernetes.
    Kubernetes {
        /// The namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The key in it.
        key: String,
    },
    /// A token of hardware.
    Hardware {
        /// The slot.
        slot: String,
    },
    /// Something else.
    Custom {
        /// Which.
        provider: String,
        /// The criterion.
        config: Value,
    },
}

impl SecretSource {
    /// Returns the name of the kind, which may be logged.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Vault { .. } => "vault",
            Self::AwsSecretsManager { .. } => "aws",
            Self::GcpSecretManager { .. } => "gcp",
            Self::AzureKeyVault { .. } => "azure",
            Self::OsKeystore { .. } => "os_keystore",
            Self::Kubernetes { .. } => "kubernetes",
            Self::Hardware { .. } => "hardware",
            Self::Custom { .. } => "custom",
        }
    }
}

/// The result of a request for a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "host", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SecretAccessOutcome {
    /// The secret was read.
    Resolved,
    /// A rule forbids it.
    Denied,
    /// The secret could not be read.
    Failed,
    /// Its lease goes on.
    Renewed,
    /// Its lease was given back.
    Released,
}

/// That somebody asked for a secret, without anything of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "host", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct SecretAccessEvent {
    /// The credential's name.
    pub credential_name: String,
    /// The place that was searched.
    pub source: SecretSource,
    /// The result.
    pub outcome: SecretAccessOutcome,
    /// The time, in Unix milliseconds.
    pub timestamp_ms: u64,
    /// The id of its lease.
    pub lease_id: Option<String>,
    /// The duration of the lease, in seconds.
    pub lease_ttl_secs: Option<u64>,
    /// The reason, in words that contain no part of it.
    pub reason: Option<String>,
    /// The run.
    pub workflow_id: Option<String>,
    /// The subject that asked.
    pub operator_id: Option<String>,
    /// The trace.
    pub trace_id: Option<String>,
}

impl SecretAccessEvent {
    /// Creates an event with the fields that every event has.
    pub fn new(
        credential_name: impl Into<String>,
        source: SecretSource,
        outcome: SecretAccessOutcome,
        timestamp_ms: u64,
    ) -> Self {
        Self {
            credential_name: credential_name.into(),
            source,
            outcome,
            timestamp_ms,
            lease_id: None,
            lease_ttl_secs: None,
            reason: None,
            workflow_id: None,
            operator_id: None,
            trace_id: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_source_has_its_tag_and_its_kind() {
        let text = String::new;
        let sources = [
            (SecretSource::Vault { mount: text(), path: text() }, "vault", "vault"),
            (
                SecretSource::AwsSecretsManager { secret_id: text(), region: None },
                "aws_secrets_manager",
                "aws",
            ),
            (
                SecretSource::GcpSecretManager { project: text(), secret_id: text() },
                "gcp_secret_manager",
                "gcp",
            ),
            (
                SecretSource::AzureKeyVault { vault_url: text(), secret_name: text() },
                "azure_key_vault",
                "azure",
            ),
            (SecretSource::OsKeystore { service: text() }, "os_keystore", "os_keystore"),
            (
                SecretSource::Kubernetes { namespace: text(), name: text(), key: text() },
                "kubernetes",
                "kubernetes",
            ),
            (SecretSource::Hardware { slot: text() }, "hardware", "hardware"),
            (SecretSource::Custom { provider: text(), config: json!({}) }, "custom", "custom"),
        ];
        for (source, tag, kind) in sources {
            let json = serde_json::to_value(&source).unwrap();
            assert_eq!((json["type"].as_str(), source.kind()), (Some(tag), kind));
            assert_eq!(serde_json::from_value::<SecretSource>(json).unwrap(), source);
        }
    }

    #[test]
    fn an_event_has_the_vocabularys_shape() {
        let source = SecretSource::Hardware { slot: "9a".into() };
        let event = SecretAccessEvent::new("key", source, SecretAccessOutcome::Denied, 7);
        let shape = json!({
            "credential_name": "key",
            "source": { "type": "hardware", "slot": "9a" },
            "outcome": "denied",
            "timestamp_ms": 7,
            "lease_id": null,
            "lease_ttl_secs": null,
            "reason": null,
            "workflow_id": null,
            "operator_id": null,
            "trace_id": null,
        });
        assert_eq!(serde_json::to_value(&event).unwrap(), shape);
        assert_eq!(serde_json::from_value::<SecretAccessEvent>(shape).unwrap(), event);
    }
}
