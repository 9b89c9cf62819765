//! The address of a database, which is read once and shown without its secrets.

use std::{fmt, net::IpAddr, path::PathBuf, time::Duration};

use tokio_postgres::config::{Config, Host, SslMode, TargetSessionAttrs};

use super::lane::MOST_LANES;
use crate::store::StoreError;

/// The maximum time to connect, for each host of the address.
const CONNECT: Duration = Duration::from_secs(5);
/// The time after which data that the network does not confirm ends a connection.
const UNCONFIRMED: Duration = Duration::from_secs(5);

/// The address of a PostgreSQL database: `postgres://user@host:5432/name`. Neither `Debug` nor
/// `Display` shows the password.
#[derive(Clone)]
pub struct DatabaseAddress {
    pub(super) config: Config,
    /// The same for each host, in their order.
    pub(super) hosts: Vec<Config>,
    /// A file of certificates that are trusted beside the machine's.
    pub(super) roots: Option<PathBuf>,
    /// The number of connections that commit transitions of runs, if the address names it.
    pub(super) writers: Option<usize>,
    /// True if the database is on this machine.
    pub(super) is_local: bool,
    shown: String,
}

impl DatabaseAddress {
    /// Returns true if a text begins like an address.
    pub fn is_address(text: &str) -> bool {
        text.starts_with("postgres://") || text.starts_with("postgresql://")
    }

    /// Parses an address.
    ///
    /// Encryption is required and the server's certificate is checked, except for a server on this
    /// machine and with `sslmode=disable`.
    ///
    /// # Errors
    /// Returns [`StoreError::Unfit`] for anything else. The error names no part of the address.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let refused = |reason: String| StoreError::Unfit {
            database: "the PostgreSQL database".to_owned(),
            reason,
        };
        if !Self::is_address(url) {
            return Err(refused("its address begins with postgres://".to_owned()));
        }
        let (url, Own { roots, writers }) = without_own(url);
        let writers = writers.map(|text| match text.parse() {
            Ok(number @ 1..=MOST_LANES) => Ok(number),
            _ => Err(refused(format!(
                "writers= in its address is a number from 1 to {MOST_LANES}: the connections that \
                 commit transitions of runs"
            ))),
        });
        let writers = writers.transpose()?;
        // The parser's message may name a part of the address, and so of a password.
        let mut config: Config = url.parse().map_err(|_| {
            refused(
                "its address cannot be read; it is like postgres://user@host:5432/name, and in a \
                 password each character other than letters and digits is written as %xx"
                    .to_owned(),
            )
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(refused("its address names no host".to_owned()));
        }
        if config.get_dbname().is_none_or(str::is_empty) {
            return Err(refused("its address names no database: postgres://host/name".to_owned()));
        }
        let is_local = config.get_hosts().iter().all(is_local);
        let asks = url.contains("sslmode=");
        config.ssl_mode(match (config.get_ssl_mode(), asks) {
            (SslMode::Disable, _) => SslMode::Disable,
            (_, false) if is_local => SslMode::Disable,
            _ => SslMode::Require,
        });
        config
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .connect_timeout(CONNECT)
            .tcp_user_timeout(UNCONFIRMED)
            .keepalives_idle(Duration::from_secs(3))
            .keepalives_interval(Duration::from_secs(2))
            .keepalives_retries(2);
        let (shown, hosts) = (shown(&config), hosts(&config));
        Ok(Self { config, hosts, roots, writers, is_local, shown })
    }

    /// Returns true if the address has a password.
    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }
}

impl fmt::Display for DatabaseAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for DatabaseAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatabaseAddress").field(&self.shown).finish()
    }
}

/// The parameters of an address that the client library does not know.
#[derive(Default)]
struct Own {
    roots: Option<PathBuf>,
    writers: Option<String>,
}

/// Takes them out of an address.
fn without_own(url: &str) -> (String, Own) {
    let mut own = Own::default();
    let Some((base, query)) = url.split_once('?') else { return (url.to_owned(), own) };
    let mut rest = Vec::new();
    for part in query.split('&') {
        match part.split_once('=') {
            Some(("sslrootcert", path)) => own.roots = Some(PathBuf::from(path)),
            Some(("writers", number)) => own.writers = Some(number.to_owned()),
            _ => rest.push(part),
        }
    }
    let url = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
    (url, own)
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|it| it.is_loopback())
        }
        #[cfg(unix)]
        Host::Unix(_) => true,
    }
}

/// Returns a configuration for each host.
fn hosts(config: &Config) -> Vec<Config> {
    let (names, addresses, ports) =
        (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let one = |place: usize| {
        let mut one = Config::new();
        one.ssl_mode(config.get_ssl_mode())
            .ssl_negotiation(config.get_ssl_negotiation())
            .channel_binding(config.get_channel_binding())
            .target_session_attrs(config.get_target_session_attrs())
            .keepalives(config.get_keepalives())
            .keepalives_idle(config.get_keepalives_idle());
        if let Some(it) = config.get_user() {
            one.user(it);
        }
        if let Some(it) = config.get_password() {
            one.password(it);
        }
        if let Some(it) = config.get_dbname() {
            one.dbname(it);
        }
        if let Some(it) = config.get_options() {
            one.options(it);
        }
        if let Some(it) = config.get_connect_timeout() {
            one.connect_timeout(*it);
        }
        if let Some(it) = config.get_tcp_user_timeout() {
            one.tcp_user_timeout(*it);
        }
        if let Some(it) = config.get_keepalives_interval() {
            one.keepalives_interval(it);
        }
        if let Some(it) = config.get_keepalives_retries() {
            one.keepalives_retries(it);
        }
        match names.get(place) {
            Some(Host::Tcp(name)) => one.host(name),
            #[cfg(unix)]
            Some(Host::Unix(path)) => one.host_path(path),
            None => &mut one,
        };
        if let Some(it) = addresses.get(place) {
            one.hostaddr(*it);
        }
        if let Some(it) = ports.get(place).or(ports.first()) {
            one.port(*it);
        }
        one
    };
    (0..names.len().max(addresses.len())).map(one).collect()
}

fn shown(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |place: usize| ports.get(place).or(ports.first()).copied().unwrap_or(5432);
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .enumerate()
        .map(|(place, host)| match host {
            Host::Tcp(name) => format!("{name}:{}", port(place)),
            #[cfg(unix)]
            Host::Unix(path) => format!("{}:{}", path.display(), port(place)),
        })
        .collect();
    format!("postgres://{}/{}", hosts.join(","), config.get_dbname().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<DatabaseAddress, StoreError> {
        DatabaseAddress::parse(url)
    }

    #[test]
    fn an_address_is_shown_without_its_user_and_password() {
        let address = parse("postgres://ann:s3cret@db.example:6000/swarm").unwrap();
        assert_eq!(address.to_string(), "postgres://db.example:6000/swarm");
        assert!(!format!("{address:?}").contains("s3cret"));
        assert!(!format!("{address:?}").contains("ann"));
    }

    #[test]
    fn what_is_no_address_is_refused_without_being_repeated() {
        for url in [
            "mysql://s3cret@host/db",
            "postgres://ann:s3cret@host:port/db",
            "postgres://ann:s3cret@host",
            "postgres:///s3cret",
            "postgres://host/db?s3cret=1",
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(!error.contains("s3cret") && error.contains("address"), "{url}: {error}");
        }
    }

    #[test]
    fn a_server_elsewhere_is_spoken_to_in_secret_unless_the_address_says_otherwise() {
        let mode = |url: &str| parse(url).unwrap().config.get_ssl_mode();
        assert_eq!(mode("postgres://localhost/db"), SslMode::Disable);
        assert_eq!(mode("postgres://127.0.0.1/db"), SslMode::Disable);
        assert_eq!(mode("postgres://%2Frun%2Fpostgresql/db"), SslMode::Disable);
        assert_eq!(mode("postgres://localhost/db?sslmode=require"), SslMode::Require);
        assert_eq!(mode("postgres://db.example/db"), SslMode::Require);
        assert_eq!(mode("postgres://db.example/db?sslmode=prefer"), SslMode::Require);
        assert_eq!(mode("postgres://db.example/db?sslmode=disable"), SslMode::Disable);
    }

    #[test]
    fn each_host_of_an_address_has_a_configuration_of_its_own() {
        let address = parse("postgres://ann:s3cret@a.example:1,b.example:2/db").unwrap();
        let shown: Vec<String> = address.hosts.iter().map(shown).collect();
        assert_eq!(shown, ["postgres://a.example:1/db", "postgres://b.example:2/db"]);
        for host in &address.hosts {
            let known = (host.get_user(), host.get_password(), host.get_ssl_mode());
            assert_eq!(known, (Some("ann"), Some(b"s3cret".as_slice()), SslMode::Require));
            assert_eq!(host.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
            assert_eq!(host.get_connect_timeout(), Some(&CONNECT));
        }
    }

    #[test]
    fn a_file_of_certificates_is_taken_and_a_password_is_known() {
        let url = "postgres://ann@db.example/db?sslrootcert=/etc/ca.pem&sslmode=require";
        let address = parse(url).unwrap();
        assert_eq!(address.roots, Some(PathBuf::from("/etc/ca.pem")));
        assert!(!address.has_password());
        assert!(parse("postgres://ann:s3cret@localhost/db").unwrap().has_password());
    }

    #[test]
    fn a_number_of_writers_is_taken_if_there_can_be_so_many() {
        let writers = |url: &str| parse(url).map(|address| address.writers);
        assert_eq!(writers("postgres://localhost/db").unwrap(), None);
        let url = "postgres://localhost/db?writers=4&sslmode=disable";
        assert_eq!(writers(url).unwrap(), Some(4));
        for number in ["0", "17", "-1", "many", ""] {
            let error = writers(&format!("postgres://localhost/db?writers={number}")).unwrap_err();
            assert!(error.to_string().contains("from 1 to 16"), "{error}");
        }
    }
}
