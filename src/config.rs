//! What the program is told before it starts: flag over environment over file over default.
//!
//! Owns the file `moonswarm.toml` and the order of precedence. Refuses unknown keys, and keys
//! that this release does not have yet. Called by `cli`, which hands in flags and environment as
//! one layer, because clap already puts a flag before its variable.

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// The file that is read when no other one is named, if it is there.
pub const DEFAULT_FILE: &str = "moonswarm.toml";

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// One line for a person.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What one source says; absent is "says nothing".
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// The data directory.
    pub data: Option<PathBuf>,
    /// Where the daemon listens.
    pub listen: Option<SocketAddr>,
    /// A directory of blueprints to watch.
    pub blueprints: Option<PathBuf>,
    /// How many shards; 0 is one a core.
    pub shards: Option<usize>,
    /// Whether a daemon that died at its start again and again takes its runs up one at a time.
    pub safe_mode: Option<bool>,
    /// Host names, beside the loopback ones, under which the API may be reached.
    pub hosts: Option<Vec<String>>,
    /// Origins whose pages may call the API.
    pub origins: Option<Vec<String>>,
    /// Which log lines to show: `info`, `moonswarm=debug,warn`.
    pub log: Option<String>,
    /// How log lines look.
    pub log_format: Option<LogFormat>,
}

impl Layer {
    /// This layer over another: what this one does not say, the other does.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            data: self.data.or(below.data),
            listen: self.listen.or(below.listen),
            blueprints: self.blueprints.or(below.blueprints),
            shards: self.shards.or(below.shards),
            safe_mode: self.safe_mode.or(below.safe_mode),
            hosts: self.hosts.or(below.hosts),
            origins: self.origins.or(below.origins),
            log: self.log.or(below.log),
            log_format: self.log_format.or(below.log_format),
        }
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// Text that is not TOML, an unknown key, a value of the wrong type, a section for later.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let content = |source| ConfigError::Content { file: file.to_owned(), source };
        let table: toml::Table = toml::from_str(text).map_err(content)?;
        if table.contains_key("operators") {
            return Err(ConfigError::Operators { file: file.to_owned() });
        }
        toml::from_str(text).map_err(content)
    }

    /// Reads a file: the named one, which must be there, or the default one, if it is.
    ///
    /// # Errors
    /// As [`Layer::parse`], and what reading a file can run into.
    pub fn read(named: Option<&Path>) -> Result<Self, ConfigError> {
        let file = named.unwrap_or(Path::new(DEFAULT_FILE));
        match std::fs::read_to_string(file) {
            Ok(text) => Self::parse(&text, file),
            Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => {
                Ok(Self::default())
            }
            Err(source) => Err(ConfigError::Read { file: file.to_owned(), source }),
        }
    }
}

/// What the program goes by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The data directory.
    pub data: PathBuf,
    /// Where the daemon listens.
    pub listen: SocketAddr,
    /// A directory of blueprints to watch.
    pub blueprints: Option<PathBuf>,
    /// How many shards; 0 is one a core.
    pub shards: usize,
    /// Whether a daemon that died at its start again and again takes its runs up one at a time.
    pub safe_mode: bool,
    /// Host names, beside the loopback ones, under which the API may be reached.
    pub hosts: Vec<String>,
    /// Origins whose pages may call the API.
    pub origins: Vec<String>,
    /// Which log lines to show; the verb decides if absent.
    pub log: Option<String>,
    /// How log lines look.
    pub log_format: LogFormat,
}

impl From<Layer> for Config {
    fn from(it: Layer) -> Self {
        Self {
            data: it.data.unwrap_or_else(|| PathBuf::from(".moonswarm")),
            listen: it.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 7700))),
            blueprints: it.blueprints,
            shards: it.shards.unwrap_or(0),
            safe_mode: it.safe_mode.unwrap_or(true),
            hosts: it.hosts.unwrap_or_default(),
            origins: it.origins.unwrap_or_default(),
            log: it.log,
            log_format: it.log_format.unwrap_or_default(),
        }
    }
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file says something that is not understood.
    #[error("understand {}: {}", file.display(), Trimmed(source))]
    Content {
        /// The file.
        file: PathBuf,
        /// Why, with line and column.
        source: toml::de::Error,
    },
    /// The file configures operators.
    #[error(
        "use [operators] of {}: this release has no configurable operators; \
         main-ai, human, process, lua, queue and echo exist without any",
        file.display()
    )]
    Operators {
        /// The file.
        file: PathBuf,
    },
}

struct Trimmed<'a>(&'a toml::de::Error);

impl fmt::Display for Trimmed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_string().trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Layer, ConfigError> {
        Layer::parse(text, Path::new("m.toml"))
    }

    #[test]
    fn a_flag_goes_before_the_file_and_the_file_before_the_default() {
        let file = parse("data = \"/var/m\"\nshards = 3\nlog_format = \"json\"").unwrap();
        let flags = Layer { data: Some("here".into()), ..Layer::default() };
        let config = Config::from(flags.over(file));
        assert_eq!(config.data, Path::new("here"));
        assert_eq!((config.shards, config.log_format), (3, LogFormat::Json));
        assert_eq!(config.listen.to_string(), "127.0.0.1:7700");
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let text = parse("shards = 1\nlisen = \"127.0.0.1:1\"").unwrap_err().to_string();
        assert!(text.contains("line 2") && text.contains("`lisen`"), "{text}");
    }

    #[test]
    fn operators_are_refused_by_name() {
        let text = parse("[operators.x]\nkind = \"human\"").unwrap_err().to_string();
        assert!(text.contains("no configurable operators"), "{text}");
    }

    #[test]
    fn a_named_file_must_be_there() {
        let missing = Path::new("/nonexistent/m.toml");
        assert!(matches!(Layer::read(Some(missing)), Err(ConfigError::Read { .. })));
    }
}
