//! The way to a daemon: what its certificate is checked against.

use std::{fs, net::IpAddr, path::PathBuf, sync::Arc};

use anyhow::{Context as _, Result};
use reqwest::{Certificate, ClientBuilder, Url};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use crate::{cli::exit::Stop, door::fingerprint, host::Socket};

/// The way to a daemon.
#[derive(Debug, Clone, Default)]
pub struct Way {
    /// A file of certificates that are trusted beside the machine's.
    pub ca: Option<PathBuf>,
    /// The SHA-256 of the daemon's certificate. No other is trusted then, and its names do not
    /// matter.
    pub certificate: Option<String>,
    /// The socket in the data directory, if there is one: then nothing else is used.
    pub socket: Option<Socket>,
}

impl Way {
    /// Returns the address to ask. The host of a socket speaks plain HTTP, whatever its port does.
    pub(super) fn wire(&self, url: &Url) -> Url {
        let mut url = url.clone();
        if self.socket.is_some() {
            let port = url.port_or_known_default();
            // Fails for addresses without a host, which are none of HTTP.
            let _ = url.set_scheme("http").and_then(|()| url.set_port(port));
        }
        url
    }

    /// Prepares a client for an address.
    ///
    /// # Errors
    /// Fails when the address is no HTTP one, or the file of certificates cannot be used.
    pub(super) fn prepare(&self, url: &Url, http: ClientBuilder) -> Result<ClientBuilder> {
        if let Some(socket) = &self.socket {
            return Ok(http.tls_certs_only([]).unix_socket(socket.path()));
        }
        match (url.scheme(), &self.certificate, &self.ca) {
            // The machine's certificates are of no use then, and take time to read.
            ("http", ..) => Ok(http.tls_certs_only([])),
            ("https", Some(known), _) => Ok(http.tls_backend_preconfigured(only(known.clone()))),
            ("https", None, Some(file)) => {
                let pem = fs::read(file).with_context(|| format!("read {}", file.display()))?;
                let found = Certificate::from_pem_bundle(&pem).unwrap_or_default();
                if found.is_empty() {
                    let message = format!("{} has no certificate in PEM", file.display());
                    return Err(Stop::usage(message).into());
                }
                Ok(http.tls_certs_merge(found))
            }
            ("https", None, None) => Ok(http),
            _ => {
                let message = format!("{url}: only http:// and https:// are supported");
                Err(Stop::usage(message).into())
            }
        }
    }
}

/// Returns the reason why a certificate was not trusted, if that is what an error says.
pub(super) fn distrusted(error: &reqwest::Error) -> Option<String> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(Error::InvalidCertificate(why)) = error.downcast_ref::<Error>() {
            return Some(why.to_string());
        }
        next = match error.downcast_ref::<std::io::Error>() {
            // It returns the source of what it wraps, and not that itself.
            Some(io) => io.get_ref().map(|it| it as _),
            None => error.source(),
        };
    }
    None
}

/// Returns true if an address is on this machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    url.host_str().is_some_and(|host| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    })
}

/// Returns the configuration of a client that trusts one certificate.
fn only(known: String) -> ClientConfig {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Pinned { known, provider: Arc::clone(&provider) });
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth()
}

/// Accepts the certificate with one fingerprint, whose key the peer must have.
#[derive(Debug)]
struct Pinned {
    known: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match fingerprint(certificate) == self.known {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
