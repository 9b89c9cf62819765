//! The way of a node that helps to the one that drives: a request between nodes that goes on as a connection
//! with a protocol of their own. The host gives it one; here is only who gets through.

use std::{io, sync::Arc};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};
use hyper::{
    client::conn::http1::SendRequest,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;

/// The path at which a node that helps asks for runs.
pub(super) const HELP: &str = "/peer/help";
/// The name of the protocol.
const PROTOCOL: HeaderValue = HeaderValue::from_static("moonswarm-help/1");
/// The word for a connection that goes on with another protocol.
const UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");

/// A connection between a node that drives and one that helps it.
pub type HelpStream = TokioIo<Upgraded>;

/// Takes a node that wants to help.
pub type OnHelp = Arc<dyn Fn(HelpRequest) + Send + Sync>;

/// The request of a node that wants to help.
pub struct HelpRequest(OnUpgrade);

impl HelpRequest {
    /// Waits until the connection goes on with the protocol of helpers.
    ///
    /// # Errors
    /// Fails when the connection breaks before that.
    pub async fn accept(self) -> io::Result<HelpStream> {
        Ok(TokioIo::new(self.0.await.map_err(io::Error::other)?))
    }
}

/// Answers a node that wants to help.
pub(super) fn answer(mut request: Request, on_help: Option<&OnHelp>) -> Response {
    let Some(on_help) = on_help else { return StatusCode::NOT_FOUND.into_response() };
    let speaks = request.headers().get(header::UPGRADE) == Some(&PROTOCOL);
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    match upgrade.filter(|_| speaks && request.method() == Method::GET) {
        Some(upgrade) => {
            on_help(HelpRequest(upgrade));
            let head = [(header::CONNECTION, UPGRADE), (header::UPGRADE, PROTOCOL)];
            (StatusCode::SWITCHING_PROTOCOLS, head).into_response()
        }
        None => (StatusCode::UPGRADE_REQUIRED, [(header::UPGRADE, PROTOCOL)]).into_response(),
    }
}

/// Asks a node that drives, over a connection to it.
///
/// # Errors
/// Returns [`io::ErrorKind::Unsupported`] if that node lends no runs. Fails when it does not drive, or the
/// connection breaks.
pub(super) async fn ask(mut sender: SendRequest<Body>) -> io::Result<HelpStream> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = Uri::from_static(HELP);
    let head = request.headers_mut();
    head.insert(header::HOST, HeaderValue::from_static("node"));
    head.insert(header::CONNECTION, UPGRADE);
    head.insert(header::UPGRADE, PROTOCOL);
    let mut answer = sender.send_request(request).await.map_err(io::Error::other)?;
    match answer.status() {
        StatusCode::SWITCHING_PROTOCOLS => {
            let upgraded = hyper::upgrade::on(&mut answer).await.map_err(io::Error::other)?;
            Ok(TokioIo::new(upgraded))
        }
        StatusCode::NOT_FOUND => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "the node lends no runs"))
        }
        status => Err(io::Error::other(format!("the node answers {status}"))),
    }
}
