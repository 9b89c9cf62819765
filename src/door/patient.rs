//! A stream with a write timeout: a connection whose peer reads nothing for a while is closed, so
//! that no response is buffered for it forever.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use super::connections::ConnectionPlace;

/// A stream that fails when its peer has read nothing for too long.
pub(super) struct Patient<S> {
    stream: S,
    patience: Duration,
    /// Armed while a write is pending.
    waits: Option<Pin<Box<Sleep>>>,
    /// The place of the connection. It is given back after the stream is closed.
    _place: Option<ConnectionPlace>,
}

impl<S> Patient<S> {
    /// Wraps a stream. Whenever a write is pending, the peer must read something within `patience`.
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, waits: None, _place: None }
    }

    /// Keeps the place of the connection as long as the stream.
    pub(super) fn with_place(self, place: Option<ConnectionPlace>) -> Self {
        Self { _place: place, ..self }
    }

    fn heed<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = None;
            return written;
        }
        let patience = self.patience;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(patience)));
        match waits.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.heed(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.heed(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn who_takes_nothing_is_given_up_and_who_takes_a_little_is_not() {
        let (mine, mut peer) = tokio::io::duplex(16);
        let mut stream = Patient::new(mine, Duration::from_millis(200));
        let slow = tokio::join!(stream.write_all(&[0; 64]), async {
            for _ in 0..6 {
                sleep(Duration::from_millis(60)).await;
                peer.read_exact(&mut [0; 8]).await.unwrap();
            }
        });
        // Takes 360 ms in total: any progress restarts the timeout.
        slow.0.unwrap();
        let error = stream.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(peer);
    }
}
