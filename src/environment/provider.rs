//! The providers of [`SecretSource::Custom`](crate::protocol::SecretSource::Custom) that this host has.

/// `{"variable": …}`.
pub(super) const ENV: &str = "env";
/// `{"path": …}`.
pub(super) const FILE: &str = "file";
/// `{"argv": […], "inherit": […]}`.
pub(super) const COMMAND: &str = "command";
