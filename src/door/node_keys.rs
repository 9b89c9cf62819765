//! TLS between the nodes of a cluster. Each start of a node makes a key pair; its fingerprint stands, sealed
//! with the key of the cluster, in the table of nodes. Both ends of a connection prove their key and accept
//! only one of the table, so there is no authority that signs certificates.

use std::sync::Arc;

use ring::{
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair as _},
};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring as provider, verify_tls13_signature_with_raw_key},
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
        UnixTime,
    },
    server::{
        AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use tokio::sync::watch;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::store::{ClusterView, PeerAddress};

/// The name that a client of a node asks for. It proves nothing: the key does.
const NAME: &str = "node.moonswarm.internal";
/// The beginning of an Ed25519 public key in its DER form.
const ED25519_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The key pair of this node, and the keys of the others.
#[derive(Clone)]
pub struct NodeKeys {
    own: Arc<CertifiedKey>,
    fingerprint: [u8; 32],
    view: watch::Receiver<ClusterView>,
}

impl NodeKeys {
    /// Makes a key pair for a node that sees the others in `view`; `None` if the system has no randomness.
    pub fn generate(view: watch::Receiver<ClusterView>) -> Option<Self> {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).ok()?;
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).ok()?;
        let public = [&ED25519_PREFIX[..], pair.public_key().as_ref()].concat();
        let secret = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8.as_ref().to_vec()));
        let signer = provider::sign::any_supported_type(&secret).ok()?;
        let fingerprint = fingerprint(&public);
        let own = Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], signer));
        Some(Self { own, fingerprint, view })
    }

    /// Returns the SHA-256 of the public key.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Returns what accepts handshakes of other nodes.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let allowed = Pinned { keys: Keys::OfNodes(self.view.clone()), provider: crypto() };
        let config = ServerConfig::builder_with_provider(crypto())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has TLS 1.3")
            .with_client_cert_verifier(Arc::new(allowed));
        let resolver = AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&self.own));
        let mut config = config.with_cert_resolver(Arc::new(resolver));
        // A connection that goes on with an earlier one would not prove its key again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        TlsAcceptor::from(Arc::new(config))
    }

    /// Returns what begins handshakes with one node, and the name to ask for.
    pub(super) fn connector(&self, peer: &PeerAddress) -> (TlsConnector, ServerName<'static>) {
        let pinned = Pinned { keys: Keys::One(peer.fingerprint), provider: crypto() };
        let config = ClientConfig::builder_with_provider(crypto())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned));
        let resolver = AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&self.own));
        let mut config = config.with_client_cert_resolver(Arc::new(resolver));
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from(NAME).expect("the name is a host name");
        (TlsConnector::from(Arc::new(config)), name)
    }
}

fn crypto() -> Arc<CryptoProvider> {
    Arc::new(provider::default_provider())
}

fn fingerprint(public: &[u8]) -> [u8; 32] {
    let hash = ::ring::digest::digest(&::ring::digest::SHA256, public);
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The keys that the other end may have.
#[derive(Debug)]
enum Keys {
    /// This one.
    One([u8; 32]),
    /// The key of any living node is accepted.
    OfNodes(watch::Receiver<ClusterView>),
}

/// Accepts keys of the table of nodes, and nothing else.
#[derive(Debug)]
struct Pinned {
    keys: Keys,
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    fn check(&self, public: &CertificateDer<'_>) -> Result<(), Error> {
        let offered = fingerprint(public);
        let is_known = match &self.keys {
            Keys::One(pinned) => *pinned == offered,
            Keys::OfNodes(view) => {
                let view = view.borrow();
                let mut keys = view.others().filter_map(|node| node.peer.as_ref());
                keys.any(|peer| peer.fingerprint == offered)
            }
        };
        match is_known {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn signature(
        &self,
        message: &[u8],
        public: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        let key = SubjectPublicKeyInfoDer::from(public.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The error of a handshake with TLS 1.2, which nodes do not speak.
fn too_old() -> Error {
    Error::General("nodes speak TLS 1.3".to_owned())
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        public: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(public).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        public: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, public, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        public: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(public).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        public: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, public, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::store::{NodeRow, NodeState};

    fn node(number: i64, fingerprint: [u8; 32]) -> NodeRow {
        NodeRow {
            node: number,
            name: number.to_string(),
            version: String::new(),
            state: NodeState::Standby,
            url: String::new(),
            peer: Some(PeerAddress { at: String::new(), fingerprint }),
            lease_ms: 5_000,
            started_ms: 0,
            format: 1,
            clock_ms: None,
        }
    }

    fn peer(fingerprint: [u8; 32]) -> PeerAddress {
        PeerAddress { at: String::new(), fingerprint }
    }

    /// Returns what a client says to a server, if both accept the other.
    async fn said(client: &NodeKeys, to: [u8; 32], server: &NodeKeys) -> Result<String, String> {
        let (near, far) = duplex(16_384);
        let (connector, name) = client.connector(&peer(to));
        let accepted = async {
            let mut stream = server.acceptor().accept(far).await.map_err(|it| it.to_string())?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await.map_err(|it| it.to_string())?;
            Ok(text)
        };
        let connected = async {
            let mut stream = connector.connect(name, near).await.map_err(|it| it.to_string())?;
            stream.write_all(b"hello").await.map_err(|it| it.to_string())?;
            stream.shutdown().await.map_err(|it| it.to_string())
        };
        let (accepted, connected) = tokio::join!(accepted, connected);
        connected.and(accepted)
    }

    #[tokio::test]
    async fn only_nodes_of_the_table_reach_each_other() {
        let (sender, view) = watch::channel(ClusterView::default());
        let [a, b, stranger] =
            [(); 3].map(|()| NodeKeys::generate(view.clone()).expect("randomness"));
        let nodes = vec![node(1, a.fingerprint()), node(2, b.fingerprint())];
        sender.send_replace(ClusterView { nodes, ..ClusterView::default() });
        assert_eq!(said(&a, b.fingerprint(), &b).await, Ok("hello".to_owned()));
        assert!(said(&a, a.fingerprint(), &b).await.is_err(), "another node answers");
        assert!(said(&stranger, b.fingerprint(), &b).await.is_err(), "a key of no node");
        assert!(said(&a, b.fingerprint(), &stranger).await.is_err(), "a server of no node");
        let ended = NodeRow { lease_ms: -5_000, ..node(1, a.fingerprint()) };
        sender.send_replace(ClusterView { nodes: vec![ended], ..ClusterView::default() });
        assert!(said(&a, b.fingerprint(), &b).await.is_err(), "a node that has ended");
    }
}
