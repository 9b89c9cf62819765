//! The client that keeps to the rules.

use std::{
    error::Error,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use reqwest::{
    Client, ClientBuilder, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect,
};

use super::is_public;

/// How long a connection may take, its handshakes included.
const CONNECT: Duration = Duration::from_secs(10);
/// The most bytes of an answer's headers.
const HEADERS: u32 = 64 * 1024;
/// The most headers of an answer.
const HEADER_COUNT: usize = 100;

/// What every HTTP client of the program begins with: its TLS is `ring`'s.
pub fn http_client() -> ClientBuilder {
    // Refused when one is there already, which does as well.
    let _kept = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
}

/// Where requests may go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Egress {
    /// Whether addresses that are not public are allowed, and plain HTTP with them.
    pub allow_private: bool,
    /// Hosts whose addresses are allowed whatever they are.
    pub allow_hosts: Vec<String>,
}

/// Why a request may not leave, or cannot.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EgressError {
    /// Not an address that can be asked.
    #[error("use {url}: only http and https addresses with a host, and without a password, can be")]
    NotHttp {
        /// The address.
        url: String,
    },
    /// Plain HTTP to somebody who is not allowed by name.
    #[error("use {url}: plain http needs `allow_hosts = [{host:?}]`; https does not")]
    Plain {
        /// The address.
        url: String,
        /// Its host.
        host: String,
    },
    /// An address that is not public.
    #[error(
        "reach {host}: its address {address} is not public; `allow_hosts = [{host:?}]` allows it"
    )]
    Private {
        /// The host.
        host: String,
        /// The address that it resolved to.
        address: IpAddr,
    },
    /// A name without an address.
    #[error("resolve {host}: {reason}")]
    Resolve {
        /// The host.
        host: String,
        /// Why.
        reason: String,
    },
    /// The client could not be made.
    #[error("prepare an HTTP client: {reason}")]
    Client {
        /// Why.
        reason: String,
    },
}

impl Egress {
    /// Checks what an address says by itself, before any name is resolved.
    ///
    /// # Errors
    /// When it is no HTTP address, is plain HTTP to a host that is not allowed, or names an
    /// address that is not public.
    pub fn check(&self, url: &Url) -> Result<(), EgressError> {
        let shown = || shown(url);
        let (Some(host), false) = (url.host_str(), url.cannot_be_a_base()) else {
            return Err(EgressError::NotHttp { url: shown() });
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EgressError::NotHttp { url: shown() });
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        match url.scheme() {
            "https" => {}
            "http" if self.allows(bare) => {}
            "http" => {
                return Err(EgressError::Plain { url: shown(), host: bare.to_owned() });
            }
            _ => return Err(EgressError::NotHttp { url: shown() }),
        }
        match bare.parse() {
            // The resolver is not asked about these.
            Ok(address) => self.admit(bare, address),
            Err(_) => Ok(()),
        }
    }

    /// Checks an address and what its name resolves to now.
    ///
    /// # Errors
    /// As [`Egress::check`], and when the name does not resolve or resolves to an address that is
    /// not public.
    pub async fn probe(&self, url: &Url) -> Result<(), EgressError> {
        self.check(url)?;
        let host = url.host_str().unwrap_or_default();
        if host.starts_with('[') || host.parse::<IpAddr>().is_ok() {
            return Ok(());
        }
        self.resolve(host).await.map(drop)
    }

    /// A client that connects to admitted addresses only, follows no redirect and uses no proxy.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn client(&self) -> Result<Client, EgressError> {
        self.client_within(CONNECT)
    }

    /// The same, with a time that a connection may take.
    ///
    /// # Errors
    /// As [`Egress::client`].
    pub fn client_within(&self, connect: Duration) -> Result<Client, EgressError> {
        let failed = |error: &dyn Error| EgressError::Client { reason: error.to_string() };
        http_client()
            .dns_resolver(Resolver(Arc::new(self.clone())))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .connect_timeout(connect)
            .http1_max_headers(HEADER_COUNT)
            .http2_max_header_list_size(HEADERS)
            .user_agent(concat!("moonswarm/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| failed(error.source().unwrap_or(&error)))
    }

    fn allows(&self, host: &str) -> bool {
        self.allow_private || self.allow_hosts.iter().any(|it| it.eq_ignore_ascii_case(host))
    }

    fn admit(&self, host: &str, address: IpAddr) -> Result<(), EgressError> {
        if is_public(address) || self.allows(host) {
            return Ok(());
        }
        Err(EgressError::Private { host: host.to_owned(), address })
    }

    /// The addresses of a name, each admitted: one that is not spoils them all.
    async fn resolve(&self, host: &str) -> Result<Vec<SocketAddr>, EgressError> {
        let failed = |reason: String| EgressError::Resolve { host: host.to_owned(), reason };
        let found = tokio::net::lookup_host((host, 0)).await;
        let addresses: Vec<_> = found.map_err(|error| failed(error.to_string()))?.collect();
        if addresses.is_empty() {
            return Err(failed("it has no address".to_owned()));
        }
        for address in &addresses {
            self.admit(host, address.ip())?;
        }
        Ok(addresses)
    }
}

impl EgressError {
    /// The refusal that a failed request comes from, if it was one.
    pub fn within<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}

/// An address without what may be secret in it.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Neither matters for an address that has no room for them.
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.set_query(None);
    url.to_string()
}

struct Resolver(Arc<Egress>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let egress = Arc::clone(&self.0);
        Box::pin(async move {
            let addresses = egress.resolve(name.as_str()).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(egress: &Egress, url: &str) -> Result<(), String> {
        egress.check(&url.parse().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_is_judged_by_its_scheme_and_host() {
        let strict = Egress::default();
        assert_eq!(check(&strict, "https://example.com/hook"), Ok(()));
        for (url, part) in [
            ("http://example.com/", "plain http"),
            ("ftp://example.com/", "only http and https"),
            ("https://me:pw@example.com/", "without a password"),
            ("https://127.0.0.1/", "not public"),
            ("https://[::1]/", "not public"),
            ("https://[::ffff:10.0.0.1]/", "not public"),
            // Other spellings of loopback.
            ("https://2130706433/", "not public"),
            ("https://0x7f.1/", "not public"),
        ] {
            let error = check(&strict, url).unwrap_err();
            assert!(error.contains(part) && !error.contains("pw"), "{url}: {error}");
        }
        let named = Egress { allow_hosts: vec!["Build.lan".into(), "::1".into()], ..strict };
        assert_eq!(check(&named, "http://build.lan:8080/"), Ok(()));
        assert_eq!(check(&named, "http://[::1]/"), Ok(()));
        assert!(check(&named, "http://127.0.0.1/").is_err());
        let open = Egress { allow_private: true, ..Egress::default() };
        assert_eq!(check(&open, "http://127.0.0.1/"), Ok(()));
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_this_machine_is_refused_by_the_client_itself() {
        let client = Egress::default().client().unwrap();
        let error = client.get("https://localhost:9/").send().await.unwrap_err();
        let refusal = EgressError::within(&error).expect("it was refused");
        assert!(matches!(refusal, EgressError::Private { host, .. } if host == "localhost"));
    }

    #[tokio::test]
    async fn a_probe_resolves_the_name() {
        let url: Url = "https://localhost/".parse().unwrap();
        assert!(matches!(Egress::default().probe(&url).await, Err(EgressError::Private { .. })));
        let named = Egress { allow_hosts: vec!["localhost".into()], ..Egress::default() };
        assert!(named.probe(&url).await.is_ok());
    }
}
