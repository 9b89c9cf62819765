//! Where log lines go: to stderr, filtered, as text or JSON.
//!
//! Called once by `cli`, before anything else runs.

use std::io::{self, IsTerminal};

use tracing_subscriber::{EnvFilter, fmt, util::SubscriberInitExt};

use crate::config::LogFormat;

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("read the log filter {filter:?}: expected `info` or `moonswarm=debug,warn`")]
pub struct BadFilter {
    /// What was given.
    pub filter: String,
    source: tracing_subscriber::filter::ParseError,
}

/// Starts to write log lines. A second call changes nothing.
///
/// # Errors
/// When `filter` cannot be read.
pub fn init(filter: &str, format: LogFormat) -> Result<(), BadFilter> {
    let env = EnvFilter::try_new(filter)
        .map_err(|source| BadFilter { filter: filter.to_owned(), source })?;
    let colors = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = fmt().with_env_filter(env).with_writer(io::stderr).with_ansi(colors);
    // Only a test process initialises twice, and the first subscriber stays in place there.
    let _ = match format {
        LogFormat::Text => lines.with_target(false).finish().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_read_is_named() {
        let text = init("moonswarm=nonsense", LogFormat::Text).unwrap_err().to_string();
        assert!(text.contains("moonswarm=nonsense"), "{text}");
    }
}
