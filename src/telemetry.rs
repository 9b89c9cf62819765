//! Log lines: written to stderr, filtered, as text or JSON, without terminal control.
//!
//! Called once by `cli`, before anything else runs.

pub mod otlp;

use std::io::{self, IsTerminal, Write};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{Directive, LevelFilter, ParseError},
    fmt::{self, MakeWriter},
    layer::{Context, SubscriberExt},
    util::SubscriberInitExt,
};

use crate::{config::LogFormat, metrics::log_lines, protocol::plain};

/// The error for an invalid filter.
#[derive(Debug, thiserror::Error)]
#[error("read the log filter {filter:?}: expected `info` or `moonswarm=debug,warn`")]
pub struct BadFilter {
    /// The filter.
    pub filter: String,
    source: ParseError,
}

/// A library that logs every message of a client at `info`. A filter that names it shows that.
const TALKATIVE: &str = "rmcp";

/// Starts logging. A second call has no effect.
///
/// # Errors
/// Fails when `filter` is invalid.
pub fn init(filter: &str, format: LogFormat) -> Result<(), BadFilter> {
    let env = env_of(filter).map_err(|source| BadFilter { filter: filter.to_owned(), source })?;
    let colors = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = fmt::layer().with_writer(Clean(format, colors)).with_ansi(colors);
    let counted = tracing_subscriber::registry().with(Counted.with_filter(LevelFilter::WARN));
    // Only a test process initializes twice; the first subscriber stays in place.
    let _ = match format {
        LogFormat::Text => counted.with(lines.with_target(false).with_filter(env)).try_init(),
        LogFormat::Json => {
            counted.with(lines.json().flatten_event(true).with_filter(env)).try_init()
        }
    };
    Ok(())
}

/// Reads a filter.
fn env_of(filter: &str) -> Result<EnvFilter, ParseError> {
    let env = EnvFilter::try_new(filter)?;
    let shows_info = env.max_level_hint().is_none_or(|level| level >= LevelFilter::INFO);
    if filter.contains(TALKATIVE) || !shows_info {
        return Ok(env);
    }
    let quiet: Directive = format!("{TALKATIVE}=warn").parse()?;
    Ok(env.add_directive(quiet))
}

/// Counts warnings and errors, whether the filter shows them or not.
struct Counted;

impl<S: Subscriber> Layer<S> for Counted {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        log_lines::count(*event.metadata().level() == Level::ERROR);
    }
}

/// Removes terminal control from each log line: fields contain untrusted text.
#[derive(Debug, Clone, Copy)]
struct Clean(LogFormat, bool);

impl<'a> MakeWriter<'a> for Clean {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }
}

impl Clean {
    /// Returns true if a line consists of what cannot control a terminal, as most do.
    fn is_plain(line: &[u8]) -> bool {
        let Some(text) = line.strip_suffix(b"\n") else { return false };
        text.iter().all(|byte| matches!(byte, b' '..=b'~')) && !text.ends_with(b" ")
    }

    fn clean(self, line: &str) -> String {
        let text = line.trim_end_matches('\n');
        let mut clean = match self {
            Self(LogFormat::Json, _) => plain::json(text),
            // The formatter has already escaped everything except its own colors.
            Self(LogFormat::Text, true) => plain::painted(text).replace('\n', "\n    "),
            Self(LogFormat::Text, false) => plain::indented(text, "    "),
        };
        clean.push('\n');
        clean
    }
}

impl Write for Clean {
    /// Writes one whole line; the caller always passes whole lines.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match Self::is_plain(line) {
            true => log_lines::write(line)?,
            false => log_lines::write(self.clean(&String::from_utf8_lossy(line)).as_bytes())?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_read_is_named() {
        let text = init("moonswarm=nonsense", LogFormat::Text).unwrap_err().to_string();
        assert!(text.contains("moonswarm=nonsense"), "{text}");
    }

    #[test]
    fn a_library_that_logs_each_message_is_shown_only_where_the_filter_names_it() {
        let read = |filter: &str| env_of(filter).unwrap().to_string();
        assert!(read("info").contains("rmcp=warn"), "{}", read("info"));
        assert!(read("moonswarm=debug,warn").contains("rmcp=warn"));
        assert!(read("info,rmcp=debug").contains("rmcp=debug"));
        assert_eq!((read("warn"), read("off")), ("warn".to_owned(), "off".to_owned()));
    }

    #[test]
    fn a_log_line_is_one_line_without_escapes() {
        let evil = "WARN a file x=\u{1b}[2J\u{9b}8m\u{202e}\nERROR forged\n";
        let shown = Clean(LogFormat::Text, false).clean(evil);
        assert_eq!(shown, "WARN a file x= [2J 8m \n    ERROR forged\n");
        let json = Clean(LogFormat::Json, false).clean("{\"x\":\"\u{202e}\"}\n");
        assert_eq!(json, "{\"x\":\"\\u202e\"}\n");
    }
}
