//! The ways to a host: its address, its certificate, the proxies before it.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt as _, path::Path};

use crate::{
    clock::Clock,
    door::{Certificate, DoorConfig},
    engine::{DoctorLine as Line, DoctorVerdict, rfc3339},
};

/// A certificate that expires sooner is reported, in milliseconds.
const SOON_MS: u64 = 14 * 24 * 3_600 * 1_000;

/// Examines who reaches a host, and how.
pub fn network(listen: SocketAddr, door: &DoorConfig, data: &Path, clock: &Clock) -> Vec<Line> {
    let mut lines = vec![address(listen, door)];
    if !listen.ip().is_loopback() && door.hosts.is_empty() {
        let says = "`hosts` is empty: requests from elsewhere are refused, whatever name they use";
        let line = Line::new(DoctorVerdict::Warn, "hosts", says);
        lines.push(line.next("hosts = [\"swarm.example.com\"] in the configuration file"));
    }
    lines.extend(certificate(door, clock));
    lines.extend(people(door, data));
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

fn people(door: &DoorConfig, data: &Path) -> Option<Line> {
    const WHAT: &str = "people";
    let people = door.people.as_ref()?;
    let told = people.told();
    if door.proxies.is_empty() && people.needs_proxy() {
        let says = format!("{told}, and there is no proxy");
        let line = Line::new(DoctorVerdict::Fail, WHAT, says);
        return Some(line.next("`proxies` names the addresses that may send the header"));
    }
    if let Err(error) = people.check(&door.proxies) {
        let says = format!("failed to {error}: `serve` will refuse to start");
        let line = Line::new(DoctorVerdict::Fail, WHAT, says);
        return Some(line.next("people.secret = { file = \"PATH\" }, or { env = \"NAME\" }"));
    }
    if people.lacks_secret() && !door.proxies.is_empty() {
        let says = format!("{told}; whoever has an address in `proxies` can name anybody");
        let line = Line::new(DoctorVerdict::Warn, WHAT, says);
        return Some(line.next("set `people.secret`, which the proxy sends with each request"));
    }
    if let Some(exposed) = people.secret_file().and_then(|file| exposed(file, data)) {
        let line = Line::new(DoctorVerdict::Warn, WHAT, exposed);
        return Some(line.next("move it into the data directory, with mode 600"));
    }
    Some(Line::new(DoctorVerdict::Ok, WHAT, told))
}

/// Returns who else can read the secret of a proxy, if anybody can.
fn exposed(file: &Path, data: &Path) -> Option<String> {
    let shown = file.display();
    let mode = fs::metadata(file).ok()?.permissions().mode();
    if mode & 0o007 != 0 {
        return Some(format!(
            "every user of this machine can use {shown} (mode {:o})",
            mode & 0o777
        ));
    }
    let is_hidden = match (file.canonicalize(), data.canonicalize()) {
        (Ok(file), Ok(data)) => file.starts_with(data),
        _ => false,
    };
    let says =
        format!("child processes without an `environment` can read {shown}, and name anybody");
    (!is_hidden).then_some(says)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::TlsFiles;

    fn verdicts(listen: &str, door: &DoorConfig) -> Vec<(String, DoctorVerdict)> {
        let clock = Clock::manual(1_800_000_000_000);
        let lines = network(listen.parse().unwrap(), door, Path::new("data"), &clock);
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
    fn a_header_that_others_can_send_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        fs::create_dir(&data).unwrap();
        let say = |text: &str, proxies: &[&str]| {
            let door = DoorConfig {
                proxies: proxies.iter().map(|net| net.parse().unwrap()).collect(),
                people: Some(toml::from_str(text).unwrap()),
                ..DoorConfig::default()
            };
            let line = people(&door, &data).unwrap();
            (line.verdict, line.says)
        };
        let header = "header = \"Remote-User\"";
        assert_eq!(say(header, &[]).0, DoctorVerdict::Fail, "there is no proxy");
        let local = say(header, &["10.0.0.0/8", "127.0.0.1/32"]);
        assert_eq!(local.0, DoctorVerdict::Fail);
        assert!(local.1.contains("set `people.secret`"), "{}", local.1);
        assert_eq!(say(header, &["10.0.0.0/8"]).0, DoctorVerdict::Warn);
        let put = |file: &Path, mode| {
            fs::write(file, "0123456789abcdef").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
            say(&format!("{header}\nsecret = {{ file = {file:?} }}"), &["127.0.0.1/32"])
        };
        let beside = put(&dir.path().join("beside"), 0o600);
        assert_eq!(beside.0, DoctorVerdict::Warn);
        assert!(beside.1.contains("child processes"), "{}", beside.1);
        assert_eq!(put(&data.join("open"), 0o644).0, DoctorVerdict::Warn);
        let (verdict, says) = put(&data.join("secret"), 0o600);
        assert_eq!(verdict, DoctorVerdict::Ok, "{says}");
        assert!(!says.contains("0123"), "{says}");
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
