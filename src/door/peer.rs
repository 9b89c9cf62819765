//! The other end of a connection: its listeners, and the stream to it.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{connections::ConnectionPlace, node_keys::NodeKeys, patient::Patient, tls::Tls};

/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;

/// The reply to plain HTTP on a port with TLS.
const SPEAKS_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
content-length: 43\r\nconnection: close\r\n\r\nthis port speaks TLS: use an https address\n";

/// The socket that accepts connections: a port, or a file of the data directory.
pub struct Listener(Socket);

enum Socket {
    /// A port.
    Port(TcpListener, Option<Arc<Tls>>),
    /// A port for the other nodes of the cluster.
    Nodes(TcpListener, TlsAcceptor),
    /// A socket in the file system, for processes of this user.
    Local(UnixListener),
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Somebody on the network.
    Remote {
        /// Its address.
        address: IpAddr,
        /// True if the connection is encrypted.
        tls: bool,
        /// True if it came from the address that it reached, or from a loopback address: any program
        /// of this machine may be there.
        own: bool,
    },
    /// A process of this user, over the socket in the data directory.
    Local,
    /// Another node of the cluster, which has proved its key.
    Node,
}

impl Listener {
    /// Accepts connections from `socket`, with TLS if it is given.
    pub fn new(socket: TcpListener, tls: Option<Arc<Tls>>) -> Self {
        Self(Socket::Port(socket, tls))
    }

    /// Accepts connections of other nodes of the cluster from `socket`.
    pub fn of_nodes(socket: TcpListener, keys: &NodeKeys) -> Self {
        Self(Socket::Nodes(socket, keys.acceptor()))
    }

    /// Accepts connections of this user, and of root, from a socket in the file system.
    pub fn local(socket: UnixListener) -> Self {
        Self(Socket::Local(socket))
    }

    /// Returns true if it accepts other nodes, and nobody else.
    pub(super) fn is_of_nodes(&self) -> bool {
        matches!(self.0, Socket::Nodes(..))
    }

    /// Waits for a connection.
    pub(super) async fn accept(&self) -> io::Result<Incoming> {
        let listener = match &self.0 {
            Socket::Port(socket, tls) => {
                let (stream, address) = socket.accept().await?;
                return Ok(Incoming::Port(stream, address, tls.clone()));
            }
            Socket::Nodes(socket, acceptor) => {
                return Ok(Incoming::Node(socket.accept().await?.0, acceptor.clone()));
            }
            Socket::Local(listener) => listener,
        };
        loop {
            let (stream, _) = listener.accept().await?;
            let uid = stream.peer_cred()?.uid();
            if uid == rustix::process::geteuid().as_raw() || uid == 0 {
                return Ok(Incoming::Local(stream));
            }
            tracing::warn!(uid, "another user connected to the socket of the data directory");
        }
    }
}

/// An accepted connection.
pub(super) enum Incoming {
    Port(TcpStream, SocketAddr, Option<Arc<Tls>>),
    Node(TcpStream, TlsAcceptor),
    Local(UnixStream),
}

impl Incoming {
    /// Returns the other end.
    pub(super) fn peer(&self) -> Peer {
        match self {
            Self::Port(stream, address, tls) => {
                let address = address.ip().to_canonical();
                // If the address that it reached is unknown, it may be one of this machine.
                let reached = stream.local_addr().ok().map(|it| it.ip().to_canonical());
                let own = address.is_loopback() || reached.is_none_or(|it| it == address);
                Peer::Remote { address, tls: tls.is_some(), own }
            }
            Self::Node(..) => Peer::Node,
            Self::Local(_) => Peer::Local,
        }
    }

    /// Sends a refusal as far as the system takes it, and closes the connection.
    pub(super) fn turn_away(self, text: &str) {
        // Best effort: the server does not wait for a client that it cannot serve.
        let _ = match self {
            Self::Port(_, _, Some(_)) | Self::Node(..) => return,
            Self::Port(stream, ..) => stream.try_write(text.as_bytes()),
            Self::Local(stream) => stream.try_write(text.as_bytes()),
        };
    }

    /// Completes the handshake. The peer must read what is written to it within `patience`. The
    /// stream keeps the place of the connection.
    ///
    /// # Errors
    /// Fails when the peer speaks something else.
    pub(super) async fn open(
        self,
        patience: Duration,
        place: Option<ConnectionPlace>,
    ) -> io::Result<Stream> {
        let (stream, tls) = match self {
            Self::Port(stream, _, tls) => (stream, tls),
            Self::Node(stream, acceptor) => {
                let _ = stream.set_nodelay(true);
                let stream = Patient::new(stream, patience).with_place(place);
                return Ok(Stream::Tls(Box::new(acceptor.accept(stream).await?)));
            }
            Self::Local(stream) => {
                return Ok(Stream::Local(Patient::new(stream, patience).with_place(place)));
            }
        };
        // Responses are small. With Nagle's algorithm they would be delayed.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else {
            return Ok(Stream::Plain(Patient::new(stream, patience).with_place(place)));
        };
        let mut first = [0];
        let peeked = stream.peek(&mut first).await?;
        let mut stream = Patient::new(stream, patience).with_place(place);
        if peeked == 1 && first[0] != HANDSHAKE {
            stream.write_all(SPEAKS_TLS).await?;
            stream.shutdown().await?;
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Stream::Tls(Box::new(tls.acceptor().accept(stream).await?)))
    }
}

/// A connection on which requests come.
pub(super) enum Stream {
    /// As it is.
    Plain(Patient<TcpStream>),
    /// With TLS. The write timeout is below it: what TLS holds back is bounded as well.
    Tls(Box<TlsStream<Patient<TcpStream>>>),
    /// From a socket in the file system.
    Local(Patient<UnixStream>),
}

/// Does the same with each kind of stream.
macro_rules! each {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            Stream::Plain($inner) => {
                let $inner = Pin::new($inner);
                $call
            }
            Stream::Tls($inner) => {
                let $inner = Pin::new($inner);
                $call
            }
            Stream::Local($inner) => {
                let $inner = Pin::new($inner);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_read(cx, into))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, inner => inner.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, inner => inner.poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(inner) => inner.is_write_vectored(),
            Self::Tls(inner) => inner.is_write_vectored(),
            Self::Local(inner) => inner.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => inner.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_from_the_address_that_it_reached_is_of_this_machine() {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let reached = socket.local_addr().unwrap();
        let listener = Listener::new(socket, None);
        let _client = TcpStream::connect(reached).await.unwrap();
        let peer = listener.accept().await.unwrap().peer();
        assert_eq!(peer, Peer::Remote { address: reached.ip(), tls: false, own: true });
    }
}
