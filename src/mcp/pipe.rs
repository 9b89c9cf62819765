//! The server of one client, over a pair of pipes.

use std::{
    borrow::Cow,
    convert::Infallible,
    future::pending,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::http::Request;
use rmcp::{
    ErrorData, RoleServer, Service, ServiceExt as _,
    model::{ClientNotification, ClientRequest, ProtocolVersion, ServerConfig, ServerResult},
    service::{NotificationContext, RequestContext},
    transport::async_rw::AsyncRwTransport,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::timeout,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{desk::Desk, notices::connection, transport::Transport};

/// The maximum size of a message, in bytes.
const LONGEST: usize = 8 << 20;
/// The time that subscriptions have to end at a stop.
const LAST_NOTICES: Duration = Duration::from_secs(1);

/// Serves one client over a pair of pipes, until it closes them or `stop` is canceled. Calls in
/// progress then get their answers, if they take no longer than 2 s, and subscriptions end with
/// their result.
///
/// # Errors
/// Fails when the client does not speak the protocol.
pub async fn serve_stdio(
    transport: Arc<dyn Transport>,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    stop: CancellationToken,
) -> Result<(), String> {
    let over = stop.child_token();
    let input = Input { pipe: input, _over: over.clone().drop_guard(), over: over.clone() };
    let pipes = AsyncRwTransport::new(input, output).with_max_line_length(LONGEST);
    let (subscribed, watcher) = connection::channel();
    let desk = Desk::fixed(Arc::clone(&transport), subscribed, over);
    let (listening, cut) = (TaskTracker::new(), CancellationToken::new());
    let piped = Piped { desk, listening: listening.clone() };
    let serving = async {
        let running = match piped.serve_with_ct(pipes, cut.clone()).await {
            Ok(running) => running,
            Err(_) if stop.is_cancelled() => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let peer = running.peer().clone();
        tokio::select! {
            ended = running.waiting() => ended.map(drop).map_err(|error| error.to_string()),
            never = watcher.run(transport, peer) => match never {},
        }
    };
    // A server that is cut off confirms no notice any more, and a subscription that waits for that
    // would never end. So the subscriptions end first.
    let stopping = async {
        stop.cancelled().await;
        listening.close();
        drop(timeout(LAST_NOTICES, listening.wait()).await);
        cut.cancel();
        pending::<Infallible>().await
    };
    tokio::select! {
        served = serving => served,
        never = stopping => match never {},
    }
}

/// The server, which begins a subscription before it is confirmed.
struct Piped {
    desk: Desk,
    /// The subscriptions that are served.
    listening: TaskTracker,
}

impl Service<RoleServer> for Piped {
    async fn handle_request(
        &self,
        mut request: ClientRequest,
        mut context: RequestContext<RoleServer>,
    ) -> Result<ServerResult, ErrorData> {
        if let ClientRequest::SubscriptionsListenRequest(listen) = &mut request {
            let (parts, ()) = Request::new(()).into_parts();
            let begun = self.desk.begin(&parts, &listen.params.notifications).await?;
            listen.params.notifications = begun.accepted.clone();
            context.extensions.insert(begun);
            let listened = self.desk.handle_request(request, context);
            return self.listening.track_future(listened).await;
        }
        self.desk.handle_request(request, context).await
    }

    async fn handle_notification(
        &self,
        notification: ClientNotification,
        context: NotificationContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.desk.handle_notification(notification, context).await
    }

    fn get_info(&self) -> ServerConfig {
        Service::get_info(&self.desk)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Service::supported_protocol_versions(&self.desk)
    }
}

/// A pipe whose end is the end of every subscription, so that nothing waits for those.
struct Input<R> {
    pipe: R,
    over: CancellationToken,
    _over: DropGuard,
}

impl<R: AsyncRead + Unpin> AsyncRead for Input<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.pipe).poll_read(context, buffer);
        let is_end = match &read {
            Poll::Ready(Ok(())) => buffer.filled().len() == before && buffer.remaining() > 0,
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        };
        if is_end {
            self.over.cancel();
        }
        read
    }
}
