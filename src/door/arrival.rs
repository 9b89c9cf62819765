//! The way on which a request reached the host: its peer, and its transport.
//!
//! A proxy describes the client in headers, which anybody can send. They are believed from the
//! addresses in `proxies` and from nobody else, and no handler sees them: what they say is in the
//! [`Arrival`] of a request.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
};

use axum::{
    extract::FromRequestParts,
    http::{
        HeaderMap, HeaderName, HeaderValue, Request, Uri, header, request::Parts, uri::Authority,
    },
};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{
    DoorConfig,
    peer::Peer,
    people::People,
    person::Person,
    proof::{PROOF, Proof},
};

/// The header with which a node tells another how a request arrived. Only nodes are believed.
pub(super) const ARRIVAL: HeaderName = HeaderName::from_static("x-moonswarm-arrival");
/// The headers of proxies and nodes. They are removed from every request.
const FORWARDED: [HeaderName; 8] = [
    ARRIVAL,
    PROOF,
    header::FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-real-ip"),
];
/// The maximum number of addresses that are read of one header.
const MOST_HOPS: usize = 32;

/// The way on which a request reached the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Arrival {
    /// The address of the client, as far as it is known.
    pub client: Option<IpAddr>,
    /// True if the client uses TLS, also if that ends at a proxy.
    pub secure: bool,
    /// True if it came over the socket in the data directory, or from within the host: no browser is
    /// there, and Host and Origin are not checked.
    pub local: bool,
    /// The address under which the client reached the proxy: `https://swarm.example.com`.
    pub site: Option<String>,
    /// The person whom the proxy names.
    pub person: Option<Person>,
    /// True if it names a person, but without the secret of the proxy: it is refused.
    #[serde(default)]
    pub unproven: bool,
    /// True if it came in plain text from another machine that is no proxy.
    pub exposed: bool,
    /// The address of the listener that it came to, if that is one of another node.
    pub reached: Option<SocketAddr>,
}

impl Arrival {
    /// Returns the arrival of a request that the host sends to itself for one that has passed the
    /// door, with the credential of that one.
    pub(crate) fn inside(self) -> Self {
        Self { local: true, person: None, ..self }
    }

    /// Returns the header that tells another node.
    pub(super) fn to_header(&self) -> HeaderValue {
        let text = serde_json::to_vec(self).expect("an arrival is plain data");
        HeaderValue::from_bytes(&text).expect("JSON has no control characters")
    }

    /// Reads the header of a node. Without one, nothing is known of the client, and no token is taken
    /// from it. One that cannot be read, such as that of another version, is that of a client all the
    /// same: it came to some listener, and gets nothing that is for nodes.
    fn of_header(headers: &HeaderMap) -> Self {
        let exposed = Self { exposed: true, ..Self::default() };
        let Some(told) = headers.get(ARRIVAL) else { return exposed };
        let somewhere = SocketAddr::from(([0; 4], 0));
        serde_json::from_slice(told.as_bytes())
            .unwrap_or(Self { reached: Some(somewhere), ..exposed })
    }
}

/// The proxies before this host.
#[derive(Debug, Default)]
pub(super) struct Proxies {
    known: Vec<IpNet>,
    insecure: bool,
    people: Option<People>,
    proof: Proof,
}

impl Proxies {
    /// Returns the proxies of a configuration.
    pub(super) fn of(config: &DoorConfig) -> Self {
        Self {
            known: config.proxies.clone(),
            insecure: config.insecure,
            people: config.people.clone(),
            proof: config.people.as_ref().map(People::proof).unwrap_or_default(),
        }
    }

    /// Returns true if an address is one of a proxy.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.known.iter().any(|net| net.contains(&address))
    }

    /// Reads the person whom a proxy names, and whether the proof for the name is missing.
    fn named(&self, headers: &HeaderMap, own: bool) -> (Option<Person>, bool) {
        let Some(people) = &self.people else { return (None, false) };
        match people.is_named(headers) && !self.proof.is_given(headers, own) {
            true => (None, true),
            false => (people.of(headers), false),
        }
    }

    /// Notes how a request arrived, and removes what proxies say of it.
    pub(super) fn note<B>(&self, request: &mut Request<B>, peer: Peer) {
        let arrival = match peer {
            Peer::Local => Arrival { local: true, ..Arrival::default() },
            Peer::Node => Arrival::of_header(request.headers()),
            Peer::Remote { address, tls, own } if self.has(address) => {
                let said = ForwardedHeaders::of(request.headers(), |hop| self.has(hop));
                if let Some(host) = said.host {
                    rename(request, &host);
                }
                let secure = said.secure.unwrap_or(tls);
                let scheme = if secure { "https" } else { "http" };
                let (person, unproven) = self.named(request.headers(), own);
                Arrival {
                    client: Some(said.client.unwrap_or(address)),
                    secure,
                    site: host_of(request).map(|host| format!("{scheme}://{host}")),
                    person,
                    unproven,
                    ..Arrival::default()
                }
            }
            Peer::Remote { address, tls, .. } => Arrival {
                client: Some(address),
                secure: tls,
                exposed: !tls && !address.is_loopback() && !self.insecure,
                ..Arrival::default()
            },
        };
        for name in FORWARDED {
            request.headers_mut().remove(name);
        }
        for name in self.people.iter().flat_map(People::headers) {
            request.headers_mut().remove(name);
        }
        request.extensions_mut().insert(arrival);
    }
}

impl<S: Sync> FromRequestParts<S> for Arrival {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// Returns the host that a request names.
fn host_of<B>(request: &Request<B>) -> Option<&str> {
    let header = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    header.or_else(|| request.uri().authority().map(Authority::as_str))
}

/// Gives a request the host that its client asked for.
fn rename<B>(request: &mut Request<B>, host: &Authority) {
    let Ok(value) = HeaderValue::try_from(host.as_str()) else { return };
    request.headers_mut().insert(header::HOST, value);
    let mut parts = request.uri().clone().into_parts();
    if parts.authority.is_some() {
        parts.authority = Some(host.clone());
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
}

/// The address and scheme of a client, as a proxy forwards them.
#[derive(Debug, Default, PartialEq, Eq)]
struct ForwardedHeaders {
    client: Option<IpAddr>,
    secure: Option<bool>,
    host: Option<Authority>,
}

impl ForwardedHeaders {
    /// Reads the headers `X-Forwarded-…`, or `Forwarded` if there is none of them. Of a list, the
    /// last element counts, which the nearest proxy has added; of addresses, the last one that is no
    /// proxy itself. A client can have sent everything before.
    fn of(headers: &HeaderMap, is_proxy: impl Fn(IpAddr) -> bool) -> Self {
        let hops = list(headers, "x-forwarded-for");
        let proto = list(headers, "x-forwarded-proto").pop();
        let host = list(headers, "x-forwarded-host").pop();
        let (hops, proto, host) = match hops.is_empty() && proto.is_none() && host.is_none() {
            false => (hops, proto, host),
            true => {
                let elements = list(headers, "forwarded");
                let hops = elements.iter().filter_map(|it| pair(it, "for")).collect();
                let last = elements.last();
                let of = |name| last.and_then(|it| pair(it, name));
                (hops, of("proto"), of("host"))
            }
        };
        let mut client = None;
        for hop in hops.iter().rev().take(MOST_HOPS) {
            let Some(address) = address(hop) else { break };
            client = Some(address);
            if !is_proxy(address) {
                break;
            }
        }
        let secure =
            proto.map(|it| ["https", "wss"].iter().any(|tls| it.eq_ignore_ascii_case(tls)));
        Self { client, secure, host: host.and_then(|host| host.parse().ok()) }
    }
}

/// Returns the elements of all headers of a name.
fn list<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let all = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(',')).map(str::trim).filter(|it| !it.is_empty()).collect()
}

/// Returns the value of a name in an element of `Forwarded`.
fn pair<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let mut found = pairs.filter(|(key, _)| key.trim().eq_ignore_ascii_case(name));
    found.next().map(|(_, value)| value.trim().trim_matches('"'))
}

/// Reads `192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:4711`.
fn address(text: &str) -> Option<IpAddr> {
    let bare = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None if text.matches(':').count() == 1 => text.split_once(':')?.0,
        None => text,
    };
    bare.parse::<IpAddr>().ok().map(|it| it.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies() -> Proxies {
        let known = ["10.0.0.0/8", "::1/128"].iter().map(|net| net.parse().unwrap()).collect();
        let people = "header = \"Remote-User\"\n[[roles]]\neverybody = true\nrole = \"observer\"";
        let people = Some(toml::from_str(people).unwrap());
        Proxies { known, insecure: false, people, proof: Proof::Needless }
    }

    /// The arrival, host and remaining headers of a request.
    fn arrived(peer: &str, headers: &[(&str, &str)]) -> (Arrival, String, HeaderMap) {
        arrived_at(&proxies(), peer, false, headers)
    }

    fn arrived_at(
        proxies: &Proxies,
        peer: &str,
        own: bool,
        headers: &[(&str, &str)],
    ) -> (Arrival, String, HeaderMap) {
        let mut request = Request::builder().uri("/x").header("host", "inner:7700");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(()).unwrap();
        let address: IpAddr = peer.parse().unwrap();
        let peer = Peer::Remote { address: address.to_canonical(), tls: false, own };
        proxies.note(&mut request, peer);
        let arrival = request.extensions().get::<Arrival>().unwrap().clone();
        let host = request.headers()["host"].to_str().unwrap().to_owned();
        (arrival, host, request.headers().clone())
    }

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn a_proxy_is_believed_and_nobody_else() {
        let said = [
            ("remote-user", "ada"),
            ("x-forwarded-for", "192.0.2.7"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "swarm.example"),
        ];
        for proxy in ["10.1.2.3", "::1", "::ffff:10.1.2.3"] {
            let (arrival, host, left) = arrived(proxy, &said);
            assert_eq!((arrival.client, arrival.secure), (ip("192.0.2.7"), true), "{proxy}");
            assert_eq!(arrival.site.as_deref(), Some("https://swarm.example"));
            assert_eq!(arrival.person.unwrap().name, "ada");
            assert_eq!((&*host, left.len()), ("swarm.example", 1));
        }
        let (arrival, host, left) = arrived("192.0.2.9", &said);
        let expected = Arrival { client: ip("192.0.2.9"), exposed: true, ..Arrival::default() };
        assert_eq!((arrival, &*host, left.len()), (expected, "inner:7700", 1));
        let (arrival, host, _) = arrived("127.0.0.1", &said);
        let expected = Arrival { client: ip("127.0.0.1"), ..Arrival::default() };
        assert_eq!((arrival, &*host), (expected, "inner:7700"), "loopback is no proxy by itself");
    }

    #[test]
    fn a_proxy_that_has_a_secret_names_nobody_without_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("proxy.secret");
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        let people = format!("header = \"Remote-User\"\nsecret = {{ file = {file:?} }}");
        let people: People = toml::from_str(&people).unwrap();
        let proxies = Proxies { proof: people.proof(), people: Some(people), ..proxies() };
        let noted_from = |peer: &str, own: bool, secret: &[&str], name: &[&str]| {
            let mut said: Vec<_> =
                secret.iter().map(|secret| ("moonswarm-proxy-secret", *secret)).collect();
            said.extend(name.iter().map(|name| ("remote-user", *name)));
            let (arrival, _, left) = arrived_at(&proxies, peer, own, &said);
            assert_eq!(left.len(), 1, "no handler sees either");
            (arrival.person.map(|person| person.name), arrival.unproven)
        };
        let noted =
            |peer: &str, secret: &[&str], name: &[&str]| noted_from(peer, false, secret, name);
        let (proxy, good) = ("10.1.2.3", "0123456789abcdef");
        assert_eq!(noted(proxy, &[good], &["ada"]), (Some("ada".to_owned()), false));
        let none: [&str; 0] = [];
        for wrong in [&none[..], &["guess"], &[good, good], &[good, "guess"]] {
            assert_eq!(noted(proxy, wrong, &["ada"]), (None, true), "{wrong:?}");
        }
        assert_eq!(noted(proxy, &[], &[]), (None, false), "it names nobody");
        let ada = Some("ada".to_owned());
        assert_eq!(noted_from(proxy, true, &[good], &["ada"]), (ada, false), "it has proved it");
        assert_eq!(noted("192.0.2.9", &[good], &["ada"]), (None, false), "it is no proxy");
    }

    #[test]
    fn a_program_at_the_hosts_own_address_names_nobody_without_a_secret() {
        let noted = |own, said: &[(&str, &str)]| {
            let (arrival, ..) = arrived_at(&proxies(), "10.1.2.3", own, said);
            (arrival.person.map(|person| person.name), arrival.unproven)
        };
        let ada = [("remote-user", "ada")];
        assert_eq!(noted(true, &ada), (None, true));
        assert_eq!(noted(false, &ada), (Some("ada".to_owned()), false));
        assert_eq!(noted(true, &[]), (None, false), "it names nobody");
    }

    #[test]
    fn what_a_client_put_before_its_proxys_own_words_does_not_count() {
        let (arrival, host, _) = arrived(
            "10.1.2.3",
            &[
                ("x-forwarded-for", "10.9.9.9, 1.1.1.1"),
                ("x-forwarded-for", "192.0.2.7:4711, 10.0.0.4"),
                ("x-forwarded-proto", "https, http"),
                ("x-forwarded-host", "evil.example, swarm.example"),
                ("forwarded", "for=1.1.1.1;host=evil.example;proto=https"),
            ],
        );
        assert_eq!((arrival.client, arrival.secure), (ip("192.0.2.7"), false));
        assert_eq!(
            (arrival.site.as_deref(), &*host),
            (Some("http://swarm.example"), "swarm.example")
        );
    }

    #[test]
    fn the_standard_header_is_read_where_the_other_is_not_sent() {
        let said =
            "for=1.2.3.4, for=\"[2001:db8::7]:4711\";proto=https;host=\"swarm.example:8443\"";
        let (arrival, host, _) = arrived("10.1.2.3", &[("forwarded", said)]);
        assert_eq!((arrival.client, arrival.secure), (ip("2001:db8::7"), true));
        assert_eq!(host, "swarm.example:8443");
        for odd in ["for=_hidden", "for=unknown", "nothing", ";;=,", "host=\"a b\""] {
            let (arrival, host, _) = arrived("10.1.2.3", &[("forwarded", odd)]);
            assert_eq!((arrival.client, &*host), (ip("10.1.2.3"), "inner:7700"), "{odd}");
        }
    }

    #[test]
    fn only_a_node_tells_how_a_request_arrived() {
        let told =
            Arrival { client: ip("192.0.2.7"), secure: true, local: true, ..Arrival::default() };
        let request = || {
            let mut request = Request::builder().uri("/x").body(()).unwrap();
            request.headers_mut().insert(ARRIVAL, told.to_header());
            request
        };
        let noted = |peer| {
            let mut request = request();
            proxies().note(&mut request, peer);
            assert!(request.headers().is_empty(), "no handler sees it");
            request.extensions().get::<Arrival>().unwrap().clone()
        };
        assert_eq!(noted(Peer::Node), told);
        let from = |address| Peer::Remote { address, tls: true, own: false };
        let remote = noted(from(ip("192.0.2.9").unwrap()));
        assert_eq!((remote.client, remote.local), (ip("192.0.2.9"), false));
        let proxy = noted(from(ip("10.0.0.1").unwrap()));
        assert_eq!((proxy.client, proxy.local), (ip("10.0.0.1"), false));
        let mut silent = Request::builder().uri("/x").body(()).unwrap();
        proxies().note(&mut silent, Peer::Node);
        assert!(silent.extensions().get::<Arrival>().unwrap().exposed);
        // The header of another version is that of a client as well.
        let mut other = Request::builder().uri("/x").body(()).unwrap();
        other.headers_mut().insert(ARRIVAL, HeaderValue::from_static("{\"client\":null}"));
        proxies().note(&mut other, Peer::Node);
        let other = other.extensions().get::<Arrival>().unwrap();
        assert!(other.exposed && other.reached.is_some(), "{other:?}");
    }

    #[test]
    fn a_request_of_http2_has_its_host_in_two_places() {
        let mut request = Request::builder().uri("https://inner:7700/x?y=z").body(()).unwrap();
        request.headers_mut().insert("x-forwarded-host", HeaderValue::from_static("swarm.example"));
        let address = "10.0.0.1".parse().unwrap();
        proxies().note(&mut request, Peer::Remote { address, tls: true, own: false });
        assert_eq!(request.uri(), "https://swarm.example/x?y=z");
        assert_eq!(request.headers()["host"], "swarm.example");
    }
}
