//! The configuration of the program, by precedence: flag, environment variable, file, default.
//!
//! Owns the file `moonswarm.toml` and the order of precedence. Refuses unknown keys, and reports
//! each mistake with file and line; the operators check the content of `[operators]`. Called by
//! `cli`, which passes flags and environment variables as one layer, because clap already gives a
//! flag precedence over its variable.

mod cluster;
mod shown;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de::Error as _};
use toml::{
    Spanned,
    de::{DeTable, DeValue, ValueDeserializer},
};

use crate::{
    blueprint::{parse_duration, read_text},
    door::{DoorConfig, People, TlsFiles},
    engine::{CustomEffects, Retention},
    environment::{self, Declaration, KeptSecret, Vault},
    middleware,
    operator::{Declared, Mistake, TaskWebhook},
    session::Fallback,
    store::Durability,
};

pub use cluster::ClusterLayer;
pub(crate) use cluster::parse_lend;
pub use shown::shown;

/// The file that is read by default, if it exists.
pub const DEFAULT_FILE: &str = "moonswarm.toml";

/// The maximum number of proxies.
const PROXIES: usize = 256;

/// The maximum number of webhooks.
const WEBHOOKS: usize = 32;

/// The maximum size of the file, in bytes.
const LARGEST: u64 = 4 << 20;

/// The maximum number of shards: each is a thread.
const SHARDS: usize = 256;

/// The default time for which a pull worker keeps a task without a heartbeat.
pub const LEASE: Duration = Duration::from_secs(30);

/// The longest lease: 100 years, so that a point in time plus a lease never overflows.
const LONGEST_LEASE: Duration = Duration::from_secs(36_525 * 86_400);

/// The format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// One line for a person.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The settings of one source; `None` means not set.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// The data directory.
    #[serde(default, deserialize_with = "dir")]
    pub data: Option<PathBuf>,
    /// The address of the PostgreSQL database that takes the place of the one in the data directory:
    /// `{ env = "DATABASE_URL" }`, `{ file = "/run/secrets/database" }`, or the address itself if it has
    /// no password; `"sqlite"` for none.
    pub store: Option<environment::Text>,
    /// What a failover of that database may lose: `synchronous` (nothing) or `asynchronous`.
    pub durability: Option<Durability>,
    /// The settings of this node, if it is one of several over that database.
    pub cluster: Option<ClusterLayer>,
    /// The address to listen on.
    pub listen: Option<SocketAddr>,
    /// A directory of blueprints to watch.
    #[serde(default, deserialize_with = "dir")]
    pub blueprints: Option<PathBuf>,
    /// The number of shards; 0 for one per core.
    #[serde(default, deserialize_with = "shards")]
    pub shards: Option<usize>,
    /// True if a daemon that died repeatedly at its start takes up its runs one at a time.
    pub safe_mode: Option<bool>,
    /// The limit on the memory that is held for all runs together: `2GiB`.
    #[serde(default, deserialize_with = "size")]
    pub memory: Option<u64>,
    /// The limit on the memory that is held for one run, in addition to its script's own: `64MiB`.
    #[serde(default, deserialize_with = "size")]
    pub run_memory: Option<u64>,
    /// The time for which a pull worker keeps a task without a heartbeat: `30s`.
    #[serde(default, deserialize_with = "lease")]
    pub lease: Option<Duration>,
    /// The order in which others take over the tasks of a closed session: `["seat", "starter", "only"]`.
    pub fallback: Option<Vec<Fallback>>,
    /// The maximum number of concurrent connections of the API, sockets of sessions included.
    pub connections: Option<usize>,
    /// Host names, in addition to the loopback ones, under which the API may be reached.
    pub hosts: Option<Vec<String>>,
    /// Origins whose pages may call the API.
    pub origins: Option<Vec<String>>,
    /// The certificate of the listener.
    pub tls: Option<TlsFiles>,
    /// Addresses of proxies whose headers are believed: `["10.0.0.0/8"]`.
    #[serde(default, deserialize_with = "networks")]
    pub proxies: Option<Vec<IpNet>>,
    /// True if other machines may send tokens in plain text.
    pub insecure: Option<bool>,
    /// The headers or tokens by which people are identified, and their roles.
    pub people: Option<People>,
    /// The filter of log lines: `info`, `moonswarm=debug,warn`.
    pub log: Option<String>,
    /// The format of log lines.
    pub log_format: Option<LogFormat>,
    /// The listener of the metrics.
    pub metrics: Option<MetricsLayer>,
    /// The retention of ended runs.
    pub retention: Option<RetentionLayer>,
    /// The locations of secrets, by the names that blueprints use.
    pub secrets: Option<BTreeMap<String, KeptSecret>>,
    /// The Vault server for secrets.
    pub vault: Option<Vault>,
    /// The environments that agents refer to by name.
    pub environments: Option<BTreeMap<String, Declaration>>,
    /// True if the data directory is hidden from child processes, where the system supports that.
    pub hide_data: Option<bool>,
    /// Directories, by name, whose files blueprints may watch.
    pub watch: Option<BTreeMap<String, PathBuf>>,
    /// The policy for effects.
    pub effects: Option<EffectsLayer>,
    /// The operators in addition to the built-in ones.
    #[serde(skip)]
    pub operators: Option<Declared>,
    /// The webhooks that are called when a task for people has opened, by name.
    #[serde(default, deserialize_with = "webhooks")]
    pub webhooks: Option<BTreeMap<String, TaskWebhook>>,
    /// The layers around tasks and state, in order.
    #[serde(skip)]
    pub middleware: Option<Vec<middleware::Layer>>,
}

/// The retention of ended runs in one source; zero means no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionLayer {
    /// The age after its end at which a run is deleted, in milliseconds; written as `"30d"`.
    #[serde(default, deserialize_with = "age")]
    pub age: Option<u64>,
    /// The number of ended runs to keep.
    pub runs: Option<u64>,
    /// The maximum size of the database, in bytes; written as `"10GiB"`.
    #[serde(default, deserialize_with = "size")]
    pub size: Option<u64>,
}

/// The listener of the metrics in one source.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsLayer {
    /// The address on which the metrics are served without a token; a loopback address.
    #[serde(deserialize_with = "loopback")]
    pub listen: SocketAddr,
}

fn loopback<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let address = SocketAddr::deserialize(from)?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(D::Error::custom(format!(
        "{address} is no loopback address; the metrics are served there without a token. Elsewhere \
         use `/metrics` of the API, with a token of the role observer"
    )))
}

/// The policy for effects in one source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EffectsLayer {
    /// Effects that the host does not know: `"warn"` stores them with the result, `"error"` refuses
    /// the result.
    #[serde(default)]
    pub custom: CustomEffects,
}

impl From<RetentionLayer> for Retention {
    fn from(it: RetentionLayer) -> Self {
        let default = Self::default();
        Self {
            age_ms: it.age.unwrap_or(default.age_ms),
            runs: it.runs.unwrap_or(default.runs),
            bytes: it.size.unwrap_or(default.bytes),
        }
    }
}

fn age<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text).map(Some).map_err(|error| D::Error::custom(format!("failed to {error}")))
}

fn webhooks<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<BTreeMap<String, TaskWebhook>>, D::Error> {
    let webhooks = BTreeMap::<String, TaskWebhook>::deserialize(from)?;
    if webhooks.len() > WEBHOOKS {
        return Err(D::Error::custom(format!("there are more than {WEBHOOKS} webhooks")));
    }
    match webhooks.keys().find(|name| name.is_empty() || name.len() > 64) {
        Some(name) => Err(D::Error::custom(format!("{name:?} has not 1 to 64 bytes"))),
        None => Ok(Some(webhooks)),
    }
}

/// Deserializes networks, `10.0.0.0/8`, and addresses. One that means every address is refused.
fn networks<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<IpNet>>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    if texts.len() > PROXIES {
        return Err(D::Error::custom(format!("there are more than {PROXIES} proxies")));
    }
    let read = |text: &String| {
        let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        match net {
            Ok(net) if net.prefix_len() > 0 => Ok(net.trunc()),
            Ok(_) => Err(D::Error::custom(format!(
                "{text:?} means everybody, and everybody could send the headers of a proxy; name \
                 the addresses of yours"
            ))),
            Err(_) => Err(D::Error::custom(format!(
                "{text:?} is no network such as \"10.0.0.0/8\" and no address"
            ))),
        }
    };
    texts.iter().map(read).collect::<Result<_, _>>().map(Some)
}

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(from)?;
    parse_size(&text).map(Some).ok_or_else(|| {
        D::Error::custom(format!("{text:?} is not a size such as \"10GiB\", \"500MiB\" or \"0\""))
    })
}

/// Parses `10GiB`, `500 MiB`, `64KiB` or a number of bytes.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl Layer {
    /// Merges this layer over another, which supplies the settings that this one does not have.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            data: self.data.or(below.data),
            store: self.store.or(below.store),
            durability: self.durability.or(below.durability),
            cluster: match (self.cluster, below.cluster) {
                (Some(above), Some(below)) => Some(above.over(below)),
                (above, below) => above.or(below),
            },
            listen: self.listen.or(below.listen),
            blueprints: self.blueprints.or(below.blueprints),
            shards: self.shards.or(below.shards),
            safe_mode: self.safe_mode.or(below.safe_mode),
            memory: self.memory.or(below.memory),
            run_memory: self.run_memory.or(below.run_memory),
            lease: self.lease.or(below.lease),
            fallback: self.fallback.or(below.fallback),
            connections: self.connections.or(below.connections),
            hosts: self.hosts.or(below.hosts),
            origins: self.origins.or(below.origins),
            tls: self.tls.or(below.tls),
            proxies: self.proxies.or(below.proxies),
            insecure: self.insecure.or(below.insecure),
            people: self.people.or(below.people),
            log: self.log.or(below.log),
            log_format: self.log_format.or(below.log_format),
            metrics: self.metrics.or(below.metrics),
            retention: self.retention.or(below.retention),
            secrets: self.secrets.or(below.secrets),
            vault: self.vault.or(below.vault),
            environments: self.environments.or(below.environments),
            hide_data: self.hide_data.or(below.hide_data),
            watch: self.watch.or(below.watch),
            effects: self.effects.or(below.effects),
            operators: self.operators.or(below.operators),
            webhooks: self.webhooks.or(below.webhooks),
            middleware: self.middleware.or(below.middleware),
        }
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// Fails when the text is not TOML, a key is unknown, a value has the wrong type, or an
    /// operator is invalid.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let wrong = |mistake: Mistake| {
            let (line, column) = mistake.place(text);
            ConfigError::Content { file: file.to_owned(), line, column, mistake }
        };
        let parsed = DeTable::parse(text).map_err(|error| wrong(Mistake::of(&error, 0..0)))?;
        let span = parsed.span();
        let mut table = parsed.into_inner();
        let operators = table.remove("operators").map(Declared::read).transpose().map_err(wrong)?;
        let dir = file.parent().unwrap_or(Path::new(""));
        let operators = operators.map(|declared| declared.beside(dir));
        let middleware = table.remove("middleware").map(layers).transpose().map_err(wrong)?;
        let rest = toml::de::Deserializer::from(Spanned::new(span, table));
        let layer = Self::deserialize(rest).map_err(|error| wrong(Mistake::of(&error, 0..0)))?;
        Ok(Self { operators, middleware, ..layer })
    }

    /// Reads the named file, which must exist, or the default one, if it exists.
    ///
    /// # Errors
    /// Fails as [`Layer::parse`] does, or when the file cannot be read.
    pub fn read(named: Option<&Path>) -> Result<Self, ConfigError> {
        let file = named.unwrap_or(Path::new(DEFAULT_FILE));
        match read_text(file, LARGEST) {
            Ok(text) => Self::parse(&text, file),
            Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => {
                Ok(Self::default())
            }
            Err(source) => Err(ConfigError::Read { file: file.to_owned(), source }),
        }
    }
}

/// Reads the value of the key `middleware`: an array of tables, each with a `kind`.
fn layers(section: Spanned<DeValue<'_>>) -> Result<Vec<middleware::Layer>, Mistake> {
    let span = section.span();
    let mistake = |span, message: String| Mistake { span: Some(span), message, hint: None };
    let DeValue::Array(items) = section.into_inner() else {
        let message = "`middleware` must be an array of tables: [[middleware]]".to_owned();
        return Err(mistake(span, message));
    };
    if items.len() > middleware::MOST {
        return Err(mistake(span, format!("there are more than {} layers", middleware::MOST)));
    }
    items.into_iter().map(layer).collect()
}

fn layer(item: Spanned<DeValue<'_>>) -> Result<middleware::Layer, Mistake> {
    let whole = item.span();
    let mistake = |span, message: String| Mistake { span: Some(span), message, hint: None };
    let DeValue::Table(mut keys) = item.into_inner() else {
        return Err(mistake(whole, "a layer must be a table: [[middleware]]".to_owned()));
    };
    let mut text = |key: &str| match keys.remove(key) {
        None => Ok(None),
        Some(value) => match value.get_ref().as_str() {
            Some(text) => Ok(Some((text.to_owned(), value.span()))),
            None => Err(mistake(value.span(), format!("a layer's `{key}` must be a text"))),
        },
    };
    let Some((kind, at)) = text("kind")? else {
        return Err(mistake(whole, "a layer has a `kind`".to_owned()));
    };
    let name = text("name")?.map_or_else(|| kind.clone(), |(name, _)| name);
    let keys = Spanned::new(whole.clone(), DeValue::Table(keys));
    let settings = match middleware::Settings::read(&kind, ValueDeserializer::from(keys)) {
        None => return Err(mistake(at, middleware::unknown(&kind))),
        Some(read) => read.map_err(|error| {
            let found = Mistake::of(&error, at.clone());
            Mistake { message: format!("layer `{name}`: {}", found.message), ..found }
        })?,
    };
    middleware::Layer::new(name, settings).map_err(|error| mistake(at, error.to_string()))
}

/// Returns a number of shards that can be started.
///
/// # Errors
/// Fails when there are too many.
pub(crate) fn check_shards(shards: usize) -> Result<usize, String> {
    match shards {
        0..=SHARDS => Ok(shards),
        _ => Err(format!("there are at most {SHARDS} shards; 0 means one per core")),
    }
}

fn dir<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    let dir = PathBuf::deserialize(from)?;
    match dir.as_os_str().is_empty() {
        true => Err(D::Error::custom("an empty text names no directory; \".\" is the current one")),
        false => Ok(Some(dir)),
    }
}

fn shards<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    check_shards(usize::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

/// Returns a lease that can be given.
///
/// # Errors
/// Fails when it is over before its worker has the task, or never.
pub(crate) fn check_lease(lease: Duration) -> Result<Duration, String> {
    if lease.as_millis() == 0 {
        return Err("a lease of 0ms leaves no time at all; leave it out for the default".to_owned());
    }
    if lease > LONGEST_LEASE {
        return Err("a lease has at most 100 years".to_owned());
    }
    Ok(lease)
}

fn lease<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    duration(from)?.map(check_lease).transpose().map_err(D::Error::custom)
}

/// Deserializes a duration in the notation of blueprints.
fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text).map(Duration::from_millis).map(Some).map_err(D::Error::custom)
}

/// The effective configuration of the program.
#[derive(Debug, Clone)]
pub struct Config {
    /// The data directory.
    pub data: PathBuf,
    /// The address of the PostgreSQL database, if there is one.
    pub store: Option<environment::Text>,
    /// What a failover of that database may lose.
    pub durability: Durability,
    /// The settings of this node, if it is one of a cluster.
    pub cluster: Option<ClusterLayer>,
    /// The address to listen on.
    pub listen: SocketAddr,
    /// A directory of blueprints to watch.
    pub blueprints: Option<PathBuf>,
    /// The number of shards; 0 for one per core.
    pub shards: usize,
    /// True if a daemon that died repeatedly at its start takes up its runs one at a time.
    pub safe_mode: bool,
    /// The limit on the memory that is held for all runs together, in bytes; derived from the
    /// machine if absent.
    pub memory: Option<u64>,
    /// The limit on the memory that is held for one run, in bytes; 64 MiB if absent.
    pub run_memory: Option<u64>,
    /// The time for which a pull worker keeps a task without a heartbeat.
    pub lease: Duration,
    /// The order in which others take over the tasks of a closed session. If empty, they wait.
    pub fallback: Vec<Fallback>,
    /// The maximum number of concurrent connections of the API; the API's own default if absent.
    pub connections: Option<usize>,
    /// Host names, in addition to the loopback ones, under which the API may be reached.
    pub hosts: Vec<String>,
    /// Origins whose pages may call the API.
    pub origins: Vec<String>,
    /// The certificate of the listener; without one it speaks plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Addresses of proxies, whose headers about a client are believed.
    pub proxies: Vec<IpNet>,
    /// True if other machines may send tokens in plain text.
    pub insecure: bool,
    /// The headers or tokens by which people are identified, and their roles.
    pub people: Option<People>,
    /// The filter of log lines; the command decides if absent.
    pub log: Option<String>,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// The address on which the metrics are served without a token, if they are.
    pub metrics: Option<SocketAddr>,
    /// The retention of ended runs, if one is set.
    pub retention: Option<Retention>,
    /// The policy for effects that the host does not know.
    pub effects: CustomEffects,
    /// The operators in addition to the built-in ones.
    pub operators: Declared,
    /// The webhooks that are called when a task for people has opened, by name.
    pub webhooks: BTreeMap<String, TaskWebhook>,
    /// Secrets, and named environments.
    pub environments: environment::Config,
    /// Directories, by name, whose files blueprints may watch.
    pub watch: BTreeMap<String, PathBuf>,
    /// The layers around tasks and state, in order.
    pub middleware: Vec<middleware::Layer>,
}

impl Config {
    /// Returns the settings of the door, with the default limits.
    pub fn door(&self) -> DoorConfig {
        DoorConfig {
            hosts: self.hosts.clone(),
            origins: self.origins.clone(),
            tls: self.tls.clone(),
            proxies: self.proxies.clone(),
            insecure: self.insecure,
            people: self.people.clone(),
            ..DoorConfig::default()
        }
    }
}

impl From<Layer> for Config {
    fn from(it: Layer) -> Self {
        Self {
            data: it.data.unwrap_or_else(|| PathBuf::from(".moonswarm")),
            store: it.store.filter(|it| *it != environment::Text::Plain("sqlite".to_owned())),
            durability: it.durability.unwrap_or_default(),
            cluster: it.cluster,
            listen: it.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 7700))),
            blueprints: it.blueprints,
            shards: it.shards.unwrap_or(0),
            safe_mode: it.safe_mode.unwrap_or(true),
            memory: it.memory.filter(|bytes| *bytes > 0),
            run_memory: it.run_memory.filter(|bytes| *bytes > 0),
            lease: it.lease.unwrap_or(LEASE),
            fallback: it.fallback.unwrap_or_default(),
            connections: it.connections.filter(|most| *most > 0),
            hosts: it.hosts.unwrap_or_default(),
            origins: it.origins.unwrap_or_default(),
            tls: it.tls,
            proxies: it.proxies.unwrap_or_default(),
            insecure: it.insecure.unwrap_or(false),
            people: it.people,
            log: it.log,
            log_format: it.log_format.unwrap_or_default(),
            metrics: it.metrics.map(|it| it.listen),
            retention: it.retention.map(Retention::from),
            effects: it.effects.unwrap_or_default().custom,
            operators: it.operators.unwrap_or_default(),
            webhooks: it.webhooks.unwrap_or_default(),
            environments: environment::Config {
                secrets: it
                    .secrets
                    .unwrap_or_default()
                    .into_iter()
                    .map(|(name, KeptSecret(source))| (name, source))
                    .collect(),
                environments: it.environments.unwrap_or_default(),
                vault: it.vault,
                show_data: it.hide_data == Some(false),
            },
            watch: it.watch.unwrap_or_default(),
            middleware: it.middleware.unwrap_or_default(),
        }
    }
}

/// The reason why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The content of the file is invalid.
    #[error("understand {}:{line}:{column}: {mistake}", file.display())]
    Content {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1, in characters.
        column: usize,
        /// The mistake.
        mistake: Mistake,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Layer, ConfigError> {
        Layer::parse(text, Path::new("m.toml"))
    }

    #[test]
    fn a_flag_goes_before_the_file_and_the_file_before_the_default() {
        let file = "data = \"/var/m\"\nshards = 3\nlog_format = \"json\"\nlease = \"2s\"\n\
                    fallback = [\"only\"]";
        let file = parse(file).unwrap();
        let flags = Layer { data: Some("here".into()), ..Layer::default() };
        let config = Config::from(flags.over(file));
        assert_eq!(config.data, Path::new("here"));
        assert_eq!((config.shards, config.log_format), (3, LogFormat::Json));
        assert_eq!(config.lease, Duration::from_secs(2));
        assert!(parse("lease = \"soon\"").is_err());
        for key in ["data", "blueprints"] {
            let text = parse(&format!("shards = 3\n{key} = \"\"")).unwrap_err().to_string();
            assert!(text.contains("m.toml:2:") && text.contains("no directory"), "{text}");
        }
        let text = parse("shards = 3\nlease = \"0s\"").unwrap_err().to_string();
        assert!(text.contains("m.toml:2:") && text.contains("no time at all"), "{text}");
        let text = parse("lease = \"2s\"\nshards = 257").unwrap_err().to_string();
        assert!(text.contains("m.toml:2:") && text.contains("at most 256 shards"), "{text}");
        assert_eq!(parse("shards = 256").unwrap().shards, Some(256));
        assert_eq!(config.fallback, [Fallback::Only]);
        assert!(parse("fallback = [\"anybody\"]").is_err());
        assert_eq!(config.listen.to_string(), "127.0.0.1:7700");
    }

    #[test]
    fn the_metrics_are_served_without_a_token_on_a_loopback_address_alone() {
        let config = Config::from(parse("metrics = { listen = \"[::1]:9464\" }").unwrap());
        assert_eq!(config.metrics.unwrap().to_string(), "[::1]:9464");
        let text = parse("[metrics]\nlisten = \"0.0.0.0:9464\"").unwrap_err().to_string();
        assert!(text.contains("m.toml:2:10: 0.0.0.0:9464 is no loopback address"), "{text}");
    }

    #[test]
    fn proxies_are_networks_and_never_everybody() {
        let text = "proxies = [\"10.1.2.3/8\", \"127.0.0.1\", \"fd00::/8\"]";
        let nets = Config::from(parse(text).unwrap()).proxies;
        let nets: Vec<_> = nets.iter().map(ToString::to_string).collect();
        assert_eq!(nets, ["10.0.0.0/8", "127.0.0.1/32", "fd00::/8"]);
        for (net, expected) in [("0.0.0.0/0", "means everybody"), ("caddy", "is no network")] {
            let text = parse(&format!("proxies = [{net:?}]")).unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
        let text =
            "[people]\nheader = \"Remote-User\"\n[[people.roles]]\nname = \"ada\"\nrole = \"adm\"";
        assert!(parse(text).unwrap_err().to_string().contains("m.toml:5:8: "));
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let text = parse("shards = 1\nlisen = \"127.0.0.1:1\"").unwrap_err().to_string();
        assert!(text.contains("m.toml:2:1: unknown key `lisen`; did you mean `listen`?"), "{text}");
        let text = parse("shards = \n").unwrap_err().to_string();
        assert!(text.contains("m.toml:1:"), "{text}");
    }

    #[test]
    fn layers_are_read_in_their_order_and_a_mistake_has_its_place() {
        let text = "[[middleware]]\nkind = \"audit\"\n[[middleware]]\nkind = \"rate_limit\"\n\
                    name = \"slow\"\nrate = \"5/s\"\nwait = \"2s\"";
        let layers = Config::from(parse(text).unwrap()).middleware;
        let names: Vec<_> = layers.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["audit", "slow"]);
        for (text, expected) in [
            ("middleware = 1", "m.toml:1:14: `middleware` must be an array"),
            ("[[middleware]]\nkind = \"adit\"", "m.toml:2:8: there is no layer \"adit\"; did you"),
            ("[[middleware]]\nname = \"x\"", "a layer has a `kind`"),
            ("[[middleware]]\nkind = \"budget\"", "m.toml:2:8: budget: it needs `usd`"),
            (
                "[[middleware]]\nkind = \"cache\"\ntll = \"1h\"",
                "m.toml:3:1: layer `cache`: unknown key `tll`; did you mean `ttl`?",
            ),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn what_retention_does_not_say_is_the_default_and_zero_is_no_limit() {
        let said = parse("[retention]\nage = \"2d\"\nsize = \"64 MiB\"").unwrap();
        let kept = Config::from(said).retention.unwrap();
        assert_eq!((kept.age_ms, kept.bytes), (2 * 86_400_000, 64 << 20));
        assert_eq!(kept.runs, Retention::default().runs);
        let none = parse("[retention]\nage = \"0s\"\nruns = 0\nsize = \"0\"").unwrap();
        assert_eq!(Config::from(none).retention, Some(Retention::FOR_EVER));
        for (key, wrong) in [("size", "10 GB"), ("size", "much"), ("age", "old")] {
            let text = parse(&format!("[retention]\n{key} = \"{wrong}\"")).unwrap_err().to_string();
            assert!(text.contains(wrong), "{text}");
        }
    }

    #[test]
    fn operators_are_read_and_their_mistakes_placed() {
        let layer = parse("shards = 2\n[operators.repeat]\nkind = \"echo\"").unwrap();
        assert_eq!(layer.shards, Some(2));
        let config = Config::from(layer);
        let names: Vec<_> = config.operators.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["repeat"]);
        let text = parse("shards = 2\n[operators.x]\nkind = \"ecko\"").unwrap_err().to_string();
        assert!(text.contains("m.toml:3:8: operator `x`: there is no kind \"ecko\""), "{text}");
    }

    #[tokio::test]
    async fn what_an_operator_reads_lies_beside_the_file_that_declares_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("said")).unwrap();
        std::fs::write(dir.path().join("said/turns.json"), "[\"yes\"]").unwrap();
        let inspect = async |turns: String| {
            let text =
                format!("[operators.m]\nkind = \"llm\"\napi = \"script\"\nturns = {turns:?}");
            let layer = Layer::parse(&text, &dir.path().join("m.toml")).unwrap();
            let operators = Config::from(layer).operators;
            let (_, settings) = operators.iter().next().unwrap();
            let builtin = crate::operator::Builtin::alone(crate::environment::Config::default());
            settings.inspect(&builtin).await
        };
        let found = inspect("said/turns.json".to_owned()).await.unwrap();
        assert!(found.starts_with("answers with the 1 turns of"), "{found}");
        let whole = dir.path().join("said/turns.json").display().to_string();
        assert_eq!(inspect(whole).await.unwrap(), found);
        assert!(inspect("turns.json".to_owned()).await.unwrap_err().contains("turns.json"));
    }

    #[test]
    fn a_named_file_must_be_there() {
        let missing = Path::new("/nonexistent/m.toml");
        assert!(matches!(Layer::read(Some(missing)), Err(ConfigError::Read { .. })));
    }
}
