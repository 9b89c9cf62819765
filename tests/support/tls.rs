//! The certificates of the tests, and clients that trust their authority.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use reqwest::{Certificate, Client, ClientBuilder};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::repository;

/// Returns the path of a certificate, a key or the authority.
pub fn file(name: &str) -> PathBuf {
    repository("tests/support/tls").join(name)
}

/// Returns a client that trusts nothing but the authority, and uses no proxy.
pub fn trusting(builder: ClientBuilder) -> Client {
    let ca = Certificate::from_pem(&std::fs::read(file("ca.pem")).unwrap()).unwrap();
    builder.no_proxy().tls_certs_only([ca]).build().unwrap()
}

/// Connects with TLS to a server that has a certificate for this name.
pub async fn handshake(at: SocketAddr, name: &'static str) -> TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    let pem = std::fs::read(file("ca.pem")).unwrap();
    roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(at).await.unwrap();
    let name = ServerName::try_from(name).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}
