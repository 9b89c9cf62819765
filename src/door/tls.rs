//! TLS of the listener: the certificate and its key, read from files, and read again when they
//! change.
//!
//! A certificate that cannot be used is refused at the start. One that replaces another while the
//! host runs is logged instead, and the one before stays: a renewal that went wrong locks nobody
//! out.

mod validity;

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use serde::Deserialize;
use tokio_rustls::TlsAcceptor;

pub use validity::Validity;

use crate::clock::Clock;

/// The maximum size of a file, in bytes.
const LARGEST: u64 = 1 << 20;
/// The time after which files that were refused are read again, in milliseconds: a certificate that was
/// not valid yet may be valid now.
const AGAIN_MS: u64 = 60_000;
/// The maximum number of certificates in a chain.
const LONGEST: usize = 16;

/// The files of a certificate and its key, both PEM.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate, followed by those that lead to a root.
    pub cert: PathBuf,
    /// Its private key, not encrypted.
    pub key: PathBuf,
}

/// The reason why a certificate cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("read {file}: {reason}")]
    File {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// The key of another certificate.
    #[error(
        "use {cert} with {key}: the key is not the one of the certificate, which is the first one in its file"
    )]
    Mismatch {
        /// The file of the certificate.
        cert: String,
        /// The file of the key.
        key: String,
    },
    /// The certificate is too old, or too young.
    #[error("use {cert}: it {is} {at}; renew it, or correct this machine's clock")]
    Outside {
        /// The file of the certificate.
        cert: String,
        /// `expired at` or `is valid from`.
        is: &'static str,
        /// RFC 3339.
        at: String,
    },
}

/// A certificate with its key that can be served.
#[derive(Debug)]
pub struct Certificate {
    served: Arc<CertifiedKey>,
    validity: Validity,
}

impl Certificate {
    /// Reads a certificate and its key.
    ///
    /// # Errors
    /// Fails when a file is missing or of another kind, when the two do not belong together, and
    /// when the certificate is not valid now.
    pub fn read(files: &TlsFiles, now_ms: u64) -> Result<Self, TlsError> {
        let cert = files.cert.display().to_string();
        let wrong = |reason: &str| TlsError::File { file: cert.clone(), reason: reason.to_owned() };
        let pem = bytes(&files.cert)?;
        let chain =
            CertificateDer::pem_slice_iter(&pem).take(LONGEST).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| wrong(&format!("it is no PEM: {error}")))?;
        let first = chain.first().ok_or_else(|| wrong("it has no certificate in PEM"))?;
        let validity = Validity::of(first).ok_or_else(|| wrong("it is no X.509 certificate"))?;
        let key = key(&files.key)?;
        let served =
            CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    TlsError::Mismatch { cert: cert.clone(), key: files.key.display().to_string() }
                }
                error => TlsError::File {
                    file: files.key.display().to_string(),
                    reason: format!("its key cannot be used: {error}"),
                },
            })?;
        let outside = |is, at| TlsError::Outside { cert: cert.clone(), is, at: shown(at) };
        if validity.until_ms < now_ms {
            return Err(outside("expired at", validity.until_ms));
        }
        if validity.from_ms > now_ms {
            return Err(outside("is valid from", validity.from_ms));
        }
        Ok(Self { served: Arc::new(served), validity })
    }

    /// Returns the time within which it is valid.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// Returns its [`fingerprint`], by which the commands of the data directory know it.
    pub fn fingerprint(&self) -> String {
        let first = self.served.cert.first().expect("a chain that was read is not empty");
        fingerprint(first)
    }
}

/// Returns the SHA-256 of a certificate in DER, in lower-case hexadecimal.
pub fn fingerprint(certificate: &[u8]) -> String {
    let hash = ::ring::digest::digest(&::ring::digest::SHA256, certificate);
    data_encoding::HEXLOWER.encode(hash.as_ref())
}

/// The result of looking at the files again.
#[derive(Debug)]
pub enum Looked {
    /// Nothing new.
    Same,
    /// Another certificate, which is served from now on.
    Replaced {
        /// Its fingerprint.
        fingerprint: String,
        /// The end of its validity, RFC 3339.
        until: String,
    },
    /// Files that cannot be used; the certificate before stays.
    Refused(TlsError),
}

/// TLS of a listener.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    clock: Clock,
    current: Arc<Current>,
    config: Arc<ServerConfig>,
    seen: Mutex<Seen>,
}

/// The device, inode, size and times of a file, which change when it is replaced, or when another user
/// may read it.
type Mark = (u64, u64, u64, [i64; 4]);

/// The last look at the files.
#[derive(Debug)]
struct Seen {
    marks: Option<[Mark; 2]>,
    /// The refusal of the files, and the time of the steady clock at which they were read.
    refused: Option<(TlsError, u64)>,
}

/// The certificate that is served now.
#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

impl Tls {
    /// Reads the certificate, and returns what serves it.
    ///
    /// # Errors
    /// Fails as [`Certificate::read`] does.
    pub fn open(files: TlsFiles, clock: Clock) -> Result<(Self, Certificate), TlsError> {
        // Before the content: a change in between is seen at the next look.
        let marks = marks(&files);
        let certificate = Certificate::read(&files, clock.now_ms())?;
        let current = Arc::new(Current(RwLock::new(Arc::clone(&certificate.served))));
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has the default versions");
        let resolver: Arc<dyn ResolvesServerCert> = Arc::<Current>::clone(&current);
        let mut config = config.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let seen = Mutex::new(Seen { marks, refused: None });
        Ok((Self { files, clock, current, config: Arc::new(config), seen }, certificate))
    }

    /// Returns what accepts handshakes.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }

    /// Looks at the files, and serves the new certificate if they have changed. Files that were refused
    /// are read again each minute; the same refusal is reported once. Blocks.
    pub fn look(&self) -> Looked {
        let mut seen = self.seen.lock();
        let (marks, steady_ms) = (marks(&self.files), self.clock.steady_ms());
        let is_changed = seen.marks != marks;
        let is_due = seen.refused.as_ref().is_some_and(|(_, at_ms)| steady_ms >= at_ms + AGAIN_MS);
        if !is_changed && !is_due {
            return Looked::Same;
        }
        let before = seen.refused.take();
        seen.marks = marks;
        match Certificate::read(&self.files, self.clock.now_ms()) {
            Ok(certificate) => {
                let fingerprint = certificate.fingerprint();
                let until = shown(certificate.validity.until_ms);
                let is_same = self.current.0.read().cert == certificate.served.cert;
                *self.current.0.write() = certificate.served;
                match is_same && before.is_none() {
                    // Only its owner or its mode has changed.
                    true => Looked::Same,
                    false => Looked::Replaced { fingerprint, until },
                }
            }
            Err(error) => {
                let is_known = !is_changed && before.is_some_and(|(known, _)| known == error);
                seen.refused = Some((error.clone(), steady_ms));
                if is_known { Looked::Same } else { Looked::Refused(error) }
            }
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn marks(files: &TlsFiles) -> Option<[Mark; 2]> {
    let mark = |file: &Path| {
        let meta = fs::metadata(file).ok()?;
        let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
        Some((meta.dev(), meta.ino(), meta.len(), times))
    };
    Some([mark(&files.cert)?, mark(&files.key)?])
}

fn bytes(file: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |reason: String| TlsError::File { file: file.display().to_string(), reason };
    let meta = fs::metadata(file).map_err(|error| failed(because(&error)))?;
    if !meta.is_file() || meta.len() > LARGEST {
        return Err(failed(format!("it is no file of at most {} KiB", LARGEST >> 10)));
    }
    fs::read(file).map_err(|error| failed(because(&error)))
}

fn because(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "this user may not read it; let its group read it, or copy it with `install -m 600`"
                .into()
        }
        _ => error.to_string(),
    }
}

fn key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let pem = zeroize::Zeroizing::new(bytes(file)?);
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| {
        let is_encrypted = String::from_utf8_lossy(&pem).contains("ENCRYPTED");
        let reason = match is_encrypted {
            true => "its key is encrypted; `openssl pkey -in FILE -out PLAIN` removes the password",
            false => "it has no private key in PEM",
        };
        TlsError::File { file: file.display().to_string(), reason: reason.to_owned() }
    })
}

fn shown(at_ms: u64) -> String {
    crate::engine::rfc3339(at_ms)
}

#[cfg(test)]
mod tests;
