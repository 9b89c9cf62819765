//! The providers that this host has for
//! [`SecretSource::Custom`](crate::protocol::SecretSource::Custom).

/// `{"variable": …}`.
pub(super) const ENV: &str = "env";
/// `{"path": …}`.
pub(super) const FILE: &str = "file";
/// `{"argv": […], "inherit": […]}`.
pub(super) const COMMAND: &str = "command";
