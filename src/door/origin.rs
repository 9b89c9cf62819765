//! The checks of Host and Origin: the defense against DNS rebinding and against pages of other
//! sites.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, Uri, header};

use super::{Code, problem::Problem};

/// The host names of this server and the origins that may call it.
#[derive(Debug)]
pub(super) struct Site {
    listens_on: SocketAddr,
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Site {
    /// Creates the site of a server on `listens_on`. It also accepts `hosts`, with any port, and
    /// calls from pages of `origins`.
    pub(super) fn new(listens_on: SocketAddr, hosts: &[String], origins: &[String]) -> Self {
        let lower = |all: &[String]| all.iter().map(|text| text.to_ascii_lowercase()).collect();
        Self { listens_on, hosts: lower(hosts), origins: lower(origins) }
    }

    /// Checks the host first, then the origin, if the request has one. With `without_referrer`, the
    /// origin of a form may be `null`. `reached` is the listener of another node that it came to.
    ///
    /// # Errors
    /// Returns the refusal if the host is not this server's, or the origin is not allowed.
    pub(super) fn check(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        without_referrer: bool,
        reached: Option<SocketAddr>,
    ) -> Result<(), Problem> {
        let host = self.host(uri, headers, reached.unwrap_or(self.listens_on))?;
        let null = headers.get(header::ORIGIN).is_some_and(|it| it == "null");
        if without_referrer && null && headers.get_all(header::ORIGIN).iter().count() == 1 {
            return Ok(());
        }
        self.origin(host, headers)
    }

    fn host<'a>(
        &self,
        uri: &'a Uri,
        headers: &'a HeaderMap,
        listens_on: SocketAddr,
    ) -> Result<&'a str, Problem> {
        let refuse = |host: &str| {
            let host: String = host.chars().take(120).collect();
            let detail = format!(
                "{host:?} is not a name of this server; names beside the loopback ones are configured"
            );
            Problem::new(Code::HostNotAllowed, detail)
        };
        let mut named = headers.get_all(header::HOST).iter();
        let header = match (named.next(), named.next()) {
            (None, _) => None,
            (Some(one), None) => Some(one.to_str().map_err(|_| refuse("?"))?),
            (Some(_), Some(_)) => return Err(refuse("two Host headers")),
        };
        let in_uri = uri.authority().map(axum::http::uri::Authority::as_str);
        for host in header.iter().chain(&in_uri) {
            if !self.is_ours(host, listens_on) {
                return Err(refuse(host));
            }
        }
        header.or(in_uri).ok_or_else(|| refuse(""))
    }

    fn is_ours(&self, host: &str, listens_on: SocketAddr) -> bool {
        let host = host.to_ascii_lowercase();
        let (name, port) = split_port(&host);
        if self.hosts.iter().any(|known| known == name) {
            return true;
        }
        // A browser leaves out the port of its scheme.
        let ours = match port {
            Some(port) => port == listens_on.port(),
            None => [80, 443].contains(&listens_on.port()),
        };
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let loopback = name == "localhost"
            || bare.parse().is_ok_and(|ip: IpAddr| ip.is_loopback() || ip == listens_on.ip());
        ours && loopback
    }

    /// Returns true if pages of an origin, in lower case, may call this server.
    pub(super) fn is_known(&self, origin: &str) -> bool {
        self.origins.iter().any(|known| known == origin)
    }

    fn origin(&self, host: &str, headers: &HeaderMap) -> Result<(), Problem> {
        for origin in headers.get_all(header::ORIGIN) {
            let origin = origin.to_str().unwrap_or("?").to_ascii_lowercase();
            let same = ["http://", "https://"].iter().any(|scheme| {
                origin.strip_prefix(scheme).is_some_and(|at| at.eq_ignore_ascii_case(host))
            });
            if !same && !self.is_known(&origin) {
                let origin: String = origin.chars().take(120).collect();
                let detail = format!("pages of {origin:?} may not call this server");
                return Err(Problem::new(Code::OriginNotAllowed, detail));
            }
        }
        Ok(())
    }
}

/// Splits a host and its port. A port that is not a number stays part of the name, which then
/// matches no host.
fn split_port(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        Some((name, port)) if name.ends_with(']') || !name.contains(':') => match port.parse() {
            Ok(port) => (name, Some(port)),
            Err(_) => (host, None),
        },
        _ => (host, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> Site {
        let names = ["Swarm.example".to_owned()];
        let origins = ["https://desk.example".to_owned()];
        Site::new("127.0.0.1:7700".parse().unwrap(), &names, &origins)
    }

    fn check(uri: &str, headers: &[(header::HeaderName, &str)]) -> Result<(), &'static str> {
        let headers =
            headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        site()
            .check(&uri.parse().unwrap(), &headers, false, None)
            .map_err(|problem| problem.code().as_str())
    }

    #[test]
    fn loopback_names_with_our_port_and_configured_names_are_ours() {
        for host in [
            "127.0.0.1:7700",
            "localhost:7700",
            "LOCALHOST:7700",
            "[::1]:7700",
            "127.9.9.9:7700",
            "swarm.example",
            "swarm.example:443",
        ] {
            assert_eq!(check("/", &[(header::HOST, host)]), Ok(()), "{host}");
        }
    }

    #[test]
    fn every_other_name_is_refused() {
        for host in [
            "evil.example",
            "evil.example:7700",
            "127.0.0.1",
            "localhost",
            "127.0.0.1:7701",
            "",
            "localhost.evil.example:7700",
            "10.0.0.1:7700",
            "127.0.0.1:7700:7700",
            "localhost:x",
            "[::1]",
            "user@localhost:7700",
        ] {
            assert_eq!(check("/", &[(header::HOST, host)]), Err("host_not_allowed"), "{host}");
        }
        assert_eq!(check("/", &[]), Err("host_not_allowed"));
        let twice = [(header::HOST, "localhost:7700"), (header::HOST, "localhost:7700")];
        let mut headers = HeaderMap::new();
        for (name, value) in twice {
            headers.append(name, value.parse().unwrap());
        }
        assert!(site().check(&"/".parse().unwrap(), &headers, false, None).is_err());
    }

    #[test]
    fn a_name_without_a_port_is_ours_at_the_ports_of_http_and_https() {
        for (port, is_ours) in [(80, true), (443, true), (7700, false)] {
            let site = Site::new(SocketAddr::from(([127, 0, 0, 1], port)), &[], &[]);
            let check = |name: &str| {
                let mut headers = HeaderMap::new();
                headers.insert(header::HOST, name.parse().unwrap());
                site.check(&Uri::from_static("/"), &headers, false, None).is_ok()
            };
            assert_eq!(check("localhost"), is_ours, "{port}");
            assert_eq!(check("[::1]"), is_ours, "{port}");
            assert!(!check("evil.example"), "{port}");
        }
    }

    #[test]
    fn an_absolute_target_must_be_ours_as_well() {
        let ours = [(header::HOST, "localhost:7700")];
        assert_eq!(check("http://localhost:7700/x", &[]), Ok(()));
        assert_eq!(check("http://evil.example/x", &ours), Err("host_not_allowed"));
    }

    #[test]
    fn pages_of_our_own_and_of_listed_origins_may_call() {
        for origin in ["http://localhost:7700", "https://desk.example"] {
            let headers = [(header::HOST, "localhost:7700"), (header::ORIGIN, origin)];
            assert_eq!(check("/", &headers), Ok(()), "{origin}");
        }
        for origin in [
            "null",
            "http://evil.example",
            "http://localhost:1",
            "https://desk.example.evil",
            "http://127.0.0.1:7700",
        ] {
            let headers = [(header::HOST, "localhost:7700"), (header::ORIGIN, origin)];
            assert_eq!(check("/", &headers), Err("origin_not_allowed"), "{origin}");
        }
    }

    #[test]
    fn the_host_is_looked_at_before_the_origin() {
        let headers = [(header::HOST, "evil.example"), (header::ORIGIN, "http://evil.example")];
        assert_eq!(check("/", &headers), Err("host_not_allowed"));
    }
}
