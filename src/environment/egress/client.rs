//! The HTTP client that enforces the egress rules.

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

/// The timeout for a connection, including its handshakes.
const CONNECT: Duration = Duration::from_secs(10);
/// The size limit of a response's headers, in bytes.
const HEADERS: u32 = 64 * 1024;
/// The maximum number of headers in a response.
const HEADER_COUNT: usize = 100;

/// Returns the builder for all HTTP clients of the program, with TLS by `ring`.
pub fn http_client() -> ClientBuilder {
    // Fails if a provider is already installed, which then serves as well.
    let _kept = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
}

/// The rules for outgoing requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Egress {
    /// True if non-public addresses are allowed, and plain HTTP to every host.
    pub allow_private: bool,
    /// Hosts for which every address and plain HTTP are allowed.
    pub allow_hosts: Vec<String>,
}

/// The reason why a request is refused or cannot be sent.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EgressError {
    /// The URL is not a usable HTTP address.
    #[error("use {url}: only http and https addresses with a host, and without a password, can be")]
    NotHttp {
        /// The URL.
        url: String,
    },
    /// Plain HTTP to a host that is not in `allow_hosts`.
    #[error("use {url}: plain http needs `allow_hosts = [{host:?}]`; https does not")]
    Plain {
        /// The URL.
        url: String,
        /// Its host.
        host: String,
    },
    /// The address is not public.
    #[error(
        "reach {host}: its address {address} is not public; `allow_hosts = [{host:?}]` allows it"
    )]
    Private {
        /// The host.
        host: String,
        /// The address that it resolved to.
        address: IpAddr,
    },
    /// The name cannot be resolved.
    #[error("resolve {host}: {reason}")]
    Resolve {
        /// The host.
        host: String,
        /// The reason.
        reason: String,
    },
    /// The client could not be created.
    #[error("prepare an HTTP client: {reason}")]
    Client {
        /// The reason.
        reason: String,
    },
}

impl Egress {
    /// Checks a URL without resolving its host.
    ///
    /// # Errors
    /// Fails when it is not an HTTP URL, uses plain HTTP to a host that is not allowed, or contains
    /// an address that is not public.
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
            // Addresses are never resolved, so they must be checked here.
            Ok(address) => self.admit(bare, address),
            Err(_) => Ok(()),
        }
    }

    /// Checks a URL and the addresses that its host currently resolves to.
    ///
    /// # Errors
    /// Fails like [`Egress::check`], and when the host cannot be resolved or resolves to an address
    /// that is not public.
    pub async fn probe(&self, url: &Url) -> Result<(), EgressError> {
        self.check(url)?;
        let host = url.host_str().unwrap_or_default();
        if host.starts_with('[') || host.parse::<IpAddr>().is_ok() {
            return Ok(());
        }
        self.resolve(host).await.map(drop)
    }

    /// Creates a client that connects only to admitted addresses, follows no redirects and uses no
    /// proxy.
    ///
    /// # Errors
    /// Fails when TLS cannot be set up.
    pub fn client(&self) -> Result<Client, EgressError> {
        self.client_within(CONNECT)
    }

    /// Like [`Egress::client`], with a timeout for connections.
    ///
    /// # Errors
    /// Fails like [`Egress::client`].
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

    /// Resolves a name and checks every address. One address that is not admitted refuses the name.
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
    /// Returns the refusal that caused a request to fail, if there is one.
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

/// Returns a URL without the parts that may be secret.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Fails only for URLs that cannot have these parts.
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
            // Other spellings of loopback addresses.
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
