use std::{os::unix::fs::PermissionsExt as _, time::Duration};

use super::*;

/// In 2026, when the certificates of the tests are valid.
const NOW_MS: u64 = 1_800_000_000_000;

fn files(cert: &str, key: &str) -> TlsFiles {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/tls");
    TlsFiles { cert: dir.join(cert), key: dir.join(key) }
}

fn refused(files: &TlsFiles, now_ms: u64) -> String {
    Certificate::read(files, now_ms).unwrap_err().to_string()
}

#[test]
fn a_certificate_is_read_with_its_validity() {
    let read = Certificate::read(&files("first.pem", "first.key"), NOW_MS).unwrap();
    let Validity { from_ms, until_ms } = read.validity();
    assert_eq!(shown(from_ms), "2026-01-01T00:00:00.000Z");
    assert_eq!(shown(until_ms), "2125-12-31T23:59:59.000Z");
    assert_eq!(read.fingerprint().len(), 64);
}

#[test]
fn what_cannot_be_served_is_refused_with_the_file_and_the_remedy() {
    let good = files("first.pem", "first.key");
    let mixed = refused(&files("first.pem", "second.key"), NOW_MS);
    assert!(mixed.contains("the key is not the one of the certificate"), "{mixed}");
    let old = refused(&files("expired.pem", "expired.key"), NOW_MS);
    assert!(old.contains("expired at 2025-01-01T00:00:00.000Z; renew it"), "{old}");
    let young = refused(&good, 1_000);
    assert!(young.contains("is valid from 2026-01-01"), "{young}");
    let missing = refused(&files("none.pem", "first.key"), NOW_MS);
    assert!(missing.contains("none.pem: No such file"), "{missing}");
    let swapped = refused(&files("first.key", "first.pem"), NOW_MS);
    assert!(swapped.contains("first.key: it has no certificate in PEM"), "{swapped}");
    let keyless = refused(&files("first.pem", "second.pem"), NOW_MS);
    assert!(keyless.contains("second.pem: it has no private key in PEM"), "{keyless}");
    let dir = tempfile::tempdir().unwrap();
    let locked = dir.path().join("locked.key");
    let text = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    fs::write(&locked, text).unwrap();
    let locked = refused(&TlsFiles { key: locked, ..good.clone() }, NOW_MS);
    assert!(locked.contains("openssl pkey"), "{locked}");
    let large = dir.path().join("large.pem");
    fs::File::create(&large).unwrap().set_len(LARGEST + 1).unwrap();
    let large = refused(&TlsFiles { cert: large, ..good }, NOW_MS);
    assert!(large.contains("no file of at most 1024 KiB"), "{large}");
}

#[test]
fn changed_files_are_served_once_they_belong_together() {
    let dir = tempfile::tempdir().unwrap();
    let own = TlsFiles { cert: dir.path().join("c.pem"), key: dir.path().join("k.pem") };
    let put = |from: &Path, to: &Path| {
        // As a renewal does it: whole files, one after the other.
        let draft = dir.path().join("draft");
        fs::copy(from, &draft).unwrap();
        fs::rename(draft, to).unwrap();
    };
    let (first, second) = (files("first.pem", "first.key"), files("second.pem", "second.key"));
    put(&first.cert, &own.cert);
    put(&first.key, &own.key);
    let (tls, before) = Tls::open(own.clone(), Clock::manual(NOW_MS)).unwrap();
    let served = || tls.current.0.read().cert[0].clone();
    assert!(matches!(tls.look(), Looked::Same));
    put(&second.cert, &own.cert);
    assert!(matches!(tls.look(), Looked::Refused(TlsError::Mismatch { .. })));
    assert!(matches!(tls.look(), Looked::Same), "a refusal is reported once");
    assert_eq!(served(), before.served.cert[0]);
    put(&second.key, &own.key);
    let Looked::Replaced { fingerprint, .. } = tls.look() else { panic!("it is not served") };
    assert_ne!(fingerprint, before.fingerprint());
    assert_ne!(served(), before.served.cert[0]);
    fs::remove_file(&own.key).unwrap();
    assert!(matches!(tls.look(), Looked::Refused(TlsError::File { .. })));
    assert!(matches!(tls.look(), Looked::Same));
}

/// Puts a certificate and its key into a directory, in place of those that are there.
fn put(dir: &Path, (cert, key): (&str, &str)) -> TlsFiles {
    let own = TlsFiles { cert: dir.join("c.pem"), key: dir.join("k.pem") };
    let from = files(cert, key);
    for (from, to) in [(&from.cert, &own.cert), (&from.key, &own.key)] {
        // As a renewal does it: another file, beside the one before.
        let draft = dir.join("draft");
        fs::copy(from, &draft).unwrap();
        fs::rename(draft, to).unwrap();
    }
    own
}

#[test]
fn files_that_somebody_else_may_read_now_are_other_files() {
    let dir = tempfile::tempdir().unwrap();
    let own = put(dir.path(), ("first.pem", "first.key"));
    let before = marks(&own);
    // Several changes within a tick of the clock have the same time.
    let is_changed = (0..1_000_000_u32).any(|nth| {
        let mode = fs::Permissions::from_mode(if nth % 2 == 0 { 0o640 } else { 0o600 });
        fs::set_permissions(&own.key, mode).unwrap();
        marks(&own) != before
    });
    assert!(is_changed);
    // The same certificate is no news, unless it was refused in between.
    let (tls, _) = Tls::open(own.clone(), Clock::manual(NOW_MS)).unwrap();
    fs::write(&own.key, "cut off").unwrap();
    assert!(matches!(tls.look(), Looked::Refused(TlsError::File { .. })));
    put(dir.path(), ("first.pem", "first.key"));
    assert!(matches!(tls.look(), Looked::Replaced { .. }));
    put(dir.path(), ("first.pem", "first.key"));
    assert!(matches!(tls.look(), Looked::Same));
}

#[test]
fn a_certificate_that_was_not_valid_yet_is_served_once_it_is() {
    /// In 2024, and in 2025.
    const BEFORE_MS: [u64; 2] = [1_720_000_000_000, 1_750_000_000_000];
    let dir = tempfile::tempdir().unwrap();
    let own = put(dir.path(), ("expired.pem", "expired.key"));
    let clock = Clock::manual(BEFORE_MS[0]);
    let (tls, before) = Tls::open(own, clock.clone()).unwrap();
    put(dir.path(), ("first.pem", "first.key"));
    let Looked::Refused(error) = tls.look() else { panic!("it is not valid yet") };
    assert!(error.to_string().contains("is valid from 2026-01-01"), "{error}");
    clock.advance(Duration::from_millis(AGAIN_MS));
    assert!(matches!(tls.look(), Looked::Same), "the same refusal is reported once");
    clock.set(BEFORE_MS[1]);
    clock.advance(Duration::from_millis(AGAIN_MS - 1));
    clock.set(NOW_MS);
    assert!(matches!(tls.look(), Looked::Same), "it is not read all the time");
    clock.advance(Duration::from_millis(1));
    let Looked::Replaced { fingerprint, .. } = tls.look() else { panic!("it is valid now") };
    assert_ne!(fingerprint, before.fingerprint());
    clock.advance(Duration::from_millis(AGAIN_MS));
    assert!(matches!(tls.look(), Looked::Same));
}

#[test]
fn what_is_no_certificate_has_no_validity() {
    let pem = fs::read(files("first.pem", "first.key").cert).unwrap();
    let der = CertificateDer::pem_slice_iter(&pem).next().unwrap().unwrap();
    assert!(Validity::of(&der).is_some());
    for cut in 0..100 {
        assert_eq!(Validity::of(&der[..cut]), None, "{cut}");
    }
    for bytes in [&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff][..], &[0x30, 0x80], &[0x30, 0x89]] {
        assert_eq!(Validity::of(bytes), None);
    }
}
