//! The ways to a host: its address, its certificate, the proxies before it.

use std::net::SocketAddr;

use crate::{
    clock::Clock,
    door::{Certificate, DoorConfig},
    engine::{DoctorLine as Line, DoctorVerdict, rfc3339},
};

/// A certificate that expires sooner is reported, in milliseconds.
const SOON_MS: u64 = 14 * 24 * 3_600 * 1_000;

/// Examines who reaches a host, and how.
pub fn network(listen: SocketAddr, door: &DoorConfig, clock: &Clock) -> Vec<Line> {
    let mut lines = vec![address(listen, door)];
    if !listen.ip().is_loopback() && door.hosts.is_empty() {
        let says = "`hosts` is empty: requests from elsewhere are refused, whatever name they use";
        let line = Line::new(DoctorVerdict::Warn, "hosts", says);
        lines.push(line.next("hosts = [\"swarm.example.com\"] in the configuration file"));
    }
    lines.extend(certificate(door, clock));
    lines.extend(people(door));
    lines
}

fn address(listen: SocketAddr, door: &DoorConfig) -> Line {
    const WHAT: &str = "address";
    if listen.ip().is_loopback() {
        return Line::new(DoctorVerdict::Ok, WHAT, format!("{listen}, for this machine"));
    }
    let proxies: Vec<_> = door.proxies.iter().map(ToString::to_string).collect();
    match (&door.tls, proxies.is_empty(), door.insecure) {
        (Some(_), ..) => Line::new(DoctorVerdict::Ok, WHAT, format!("{listen}, with TLS")),
        (None, _, true) => {
            let says = format!("{listen}, in plain text: tokens can be read on their way");
            Line::new(DoctorVerdict::Warn, WHAT, says).next("set `tls`, or `proxies`")
        }
        (None, false, false) => {
            let says = format!("{listen}, in plain text for the proxies {}", proxies.join(", "));
            Line::new(DoctorVerdict::Ok, WHAT, says)
        }
        (None, true, false) => {
            let says = format!("{listen} without TLS: `serve` will refuse to start");
            Line::new(DoctorVerdict::Fail, WHAT, says).next("set `tls`, or `proxies`")
        }
    }
}

fn certificate(door: &DoorConfig, clock: &Clock) -> Option<Line> {
    const WHAT: &str = "certificate";
    let files = door.tls.as_ref()?;
    let now_ms = clock.now_ms();
    Some(match Certificate::read(files, now_ms) {
        Ok(certificate) => {
            let until_ms = certificate.validity().until_ms;
            let says = format!("{} is valid until {}", files.cert.display(), rfc3339(until_ms));
            match until_ms.saturating_sub(now_ms) {
                0..SOON_MS => Line::new(DoctorVerdict::Warn, WHAT, says)
                    .next("renew it; a running daemon takes the new files by itself"),
                _ => Line::new(DoctorVerdict::Ok, WHAT, says),
            }
        }
        Err(error) => Line::new(DoctorVerdict::Fail, WHAT, format!("failed to {error}"))
            .next("see `tls` in the configuration file"),
    })
}

fn people(door: &DoorConfig) -> Option<Line> {
    const WHAT: &str = "people";
    let people = door.people.as_ref()?;
    let told = people.told();
    Some(match door.proxies.is_empty() && people.needs_proxy() {
        true => Line::new(DoctorVerdict::Fail, WHAT, format!("{told}, and there is no proxy"))
            .next("`proxies` names the addresses that may send the header"),
        false => Line::new(DoctorVerdict::Ok, WHAT, told),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::TlsFiles;

    fn verdicts(listen: &str, door: &DoorConfig) -> Vec<(String, DoctorVerdict)> {
        let lines = network(listen.parse().unwrap(), door, &Clock::manual(1_800_000_000_000));
        lines.into_iter().map(|line| (line.what, line.verdict)).collect()
    }

    #[test]
    fn an_address_beyond_this_machine_needs_a_certificate_or_a_proxy() {
        let door = DoorConfig { hosts: vec!["a.example".into()], ..DoorConfig::default() };
        let first = |listen, door: &DoorConfig| verdicts(listen, door)[0].1;
        assert_eq!(first("127.0.0.1:1", &door), DoctorVerdict::Ok);
        assert_eq!(first("0.0.0.0:1", &door), DoctorVerdict::Fail);
        let proxied = DoorConfig { proxies: vec!["10.0.0.0/8".parse().unwrap()], ..door.clone() };
        assert_eq!(first("0.0.0.0:1", &proxied), DoctorVerdict::Ok);
        let insecure = DoorConfig { insecure: true, ..door };
        assert_eq!(first("0.0.0.0:1", &insecure), DoctorVerdict::Warn);
        let nameless = verdicts("[::]:1", &DoorConfig { hosts: Vec::new(), ..proxied });
        assert_eq!(nameless[1], ("hosts".to_owned(), DoctorVerdict::Warn));
    }

    #[test]
    fn a_certificate_is_reported_before_it_expires() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/tls");
        let tls = TlsFiles { cert: dir.join("first.pem"), key: dir.join("first.key") };
        let door = DoorConfig { tls: Some(tls), ..DoorConfig::default() };
        let at = |now_ms| certificate(&door, &Clock::manual(now_ms)).unwrap().verdict;
        assert_eq!(at(1_800_000_000_000), DoctorVerdict::Ok);
        let end_ms = 4_922_899_199_000;
        assert_eq!(at(end_ms - SOON_MS + 1_000), DoctorVerdict::Warn);
        assert_eq!(at(end_ms + 1_000), DoctorVerdict::Fail);
    }
}
