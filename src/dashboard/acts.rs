//! The acts of forms: signing in and out, the colors, and the acts on a run.

use axum::{
    Json as JsonBody,
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use serde::{Deserialize, Serialize};

use maud::html;

use super::{
    desk::Desk,
    fields::Fields,
    headers,
    layout::document,
    page::login,
    sign_in::{CODE_MS, LONGEST_MS},
    visitor::{Theme, Visitor, id},
};
use crate::{
    door::{Arrival, Code, Entered, Problem},
    engine::{Bearer, RerunVersion, rfc3339},
    protocol::{ArtifactId, Json, RunId},
    token::Role,
};

/// The path of the cookies: they are sent to pages only.
const PATH: &str = "/ui";
/// The lifetime of the choice of colors, in seconds.
const THEME_S: u64 = 365 * 24 * 3_600;
/// The maximum length of a token in the login form.
const MOST_TOKEN: usize = 8 * 1_024;

/// Signs in with a token or a code.
pub(super) async fn login(State(desk): State<Desk>, request: Request) -> Result<Response, Problem> {
    headers::own_origin(request.headers())?;
    let (mut parts, body) = request.into_parts();
    let fields = Fields::read(&mut parts, body, &desk).await?;
    let next = login::next(fields.text("next"));
    let secret = fields.text("token").trim();
    let theme = headers::cookie(&parts.headers, "theme").map(Theme::of).unwrap_or_default();
    if secret.len() > MOST_TOKEN {
        let detail = format!("a token has at most {MOST_TOKEN} bytes");
        return Err(Problem::new(Code::TooLarge, detail));
    }
    match desk.sign_ins.open(secret).await {
        Ok(cookie) => {
            let arrival = parts.extensions.get().cloned().unwrap_or_default();
            let secure = headers::is_secure(&arrival, &parts.headers);
            let cookie = cookie_of(desk.site.cookie(), &cookie, LONGEST_MS / 1_000, secure);
            Ok((set(cookie), Redirect::to(next)).into_response())
        }
        Err(problem) if problem.status().is_client_error() => {
            let wrong = problem.body().detail().to_owned();
            Ok(login::form(&desk, theme, next, Some(&wrong), problem.status()))
        }
        Err(problem) => Err(problem),
    }
}

/// Signs out: the token behind the sign-in is revoked. Whoever signed in with a provider is then
/// sent there, by the page and not by a redirect: forms lead to this origin only.
pub(super) async fn logout(
    State(desk): State<Desk>,
    visitor: Visitor,
    arrival: Arrival,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let own = headers::cookie(&headers, desk.site.cookie()).unwrap_or_default();
    let foreign = desk.sign_ins.end(&visitor.signed_in, &visitor.caller, own).await?;
    let secure = headers::is_secure(&arrival, &headers);
    let cookie = cookie_of(desk.site.cookie(), "", 0, secure);
    let farewell = match (foreign, desk.door.people()) {
        (Some(id_token), Some(people)) => people.farewell(&id_token).await,
        _ => None,
    };
    let onward =
        farewell.as_ref().and_then(|to| HeaderValue::try_from(format!("0; url={to}")).ok());
    let (Some(to), Some(onward)) = (farewell, onward) else {
        return Ok((set(cookie), Redirect::to("/ui/login")).into_response());
    };
    let body = html! {
        main #main { div.card.narrow {
            p { "You are signed out of moonswarm. " a href=(to) { "Sign out of the provider as well" } }
            p.dim.small { a href="/ui/login" { "Stay signed in there" } }
        } }
    };
    let page = document("Signed out", visitor.theme, &[], StatusCode::OK, &body);
    let mut page = (set(cookie), page).into_response();
    page.headers_mut().insert(header::REFRESH, onward);
    Ok(page)
}

/// Keeps the choice of colors.
pub(super) async fn theme(arrival: Arrival, headers: HeaderMap, fields: Fields) -> Response {
    let theme = Theme::of(fields.text("theme"));
    let secure = headers::is_secure(&arrival, &headers);
    let cookie = cookie_of("theme", theme.as_str(), THEME_S, secure);
    (set(cookie), Redirect::to(login::next(fields.text("next")))).into_response()
}

/// Returns a cookie for the pages.
pub(super) fn cookie_of(name: &str, value: &str, seconds: u64, secure: bool) -> String {
    let secure = if secure { "; Secure" } else { "" };
    format!("{name}={value}; Path={PATH}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

pub(super) fn set(cookie: String) -> [(header::HeaderName, HeaderValue); 1] {
    [(header::SET_COOKIE, HeaderValue::try_from(cookie).expect("a cookie is ASCII"))]
}

/// A request for a code.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CodeBody {
    /// The role of the sign-in; by default that of the token.
    #[serde(default)]
    role: Option<Role>,
}

/// A code that signs in once.
#[derive(Debug, Serialize)]
struct CodeView {
    /// The code.
    code: String,
    /// The role of the sign-in.
    role: Role,
    /// The host name for a link to a loopback address.
    host: String,
    /// The address of this server, if it speaks TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    /// RFC 3339, UTC.
    expires_at: String,
}

/// Makes a code for `moonswarm open`.
pub(super) async fn code(State(desk): State<Desk>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let Some(Bearer::Caller(caller)) = Entered::bearer_of(&parts.extensions) else {
        return Err(Problem::new(Code::Internal, "the route's rule and its handler differ"));
    };
    let bytes = desk.door.body(&parts, body, MOST_TOKEN).await?;
    let asked: CodeBody = serde_json::from_slice(&bytes)
        .map_err(|error| Problem::new(Code::InvalidBody, error.to_string()))?;
    let role = asked.role.unwrap_or(caller.grant.role);
    let view = CodeView {
        code: desk.sign_ins.code(caller, role)?,
        role,
        host: desk.site.host().to_owned(),
        url: Some(desk.engine.url().to_owned()).filter(|url| url.starts_with("https://")),
        expires_at: rfc3339(desk.door.clock.now_ms() + CODE_MS),
    };
    Ok((StatusCode::CREATED, JsonBody(view)).into_response())
}

/// Returns to the page of a run, which shows what was done.
fn back(run: RunId, done: &str) -> Redirect {
    Redirect::to(&format!("/ui/runs/{run}?done={done}"))
}

/// Cancels a run.
pub(super) async fn cancel(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(run): Path<String>,
    fields: Fields,
) -> Result<Redirect, Problem> {
    let run = id(&run)?;
    desk.engine.cancel(&visitor.caller, run, fields.text("reason").to_owned(), None).await?;
    Ok(back(run, "cancel"))
}

/// Pauses a run.
pub(super) async fn pause(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(run): Path<String>,
    fields: Fields,
) -> Result<Redirect, Problem> {
    let run = id(&run)?;
    desk.engine.pause(&visitor.caller, run, fields.text("reason").to_owned()).await?;
    Ok(back(run, "pause"))
}

/// Resumes a run.
pub(super) async fn resume(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(run): Path<String>,
) -> Result<Redirect, Problem> {
    let run = id(&run)?;
    desk.engine.resume(&visitor.caller, run).await?;
    Ok(back(run, "resume"))
}

/// Starts a run with the input of another one.
pub(super) async fn rerun(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(run): Path<String>,
    fields: Fields,
) -> Result<Redirect, Problem> {
    let run: RunId = id(&run)?;
    let version = match fields.given("version") {
        Some("newest") => RerunVersion::Newest,
        _ => RerunVersion::Same,
    };
    let key = fields.once("dashboard rerun", &format!("{run}/{version:?}"));
    let made = desk.engine.rerun(&visitor.caller, run, version, key).await?;
    Ok(back(made.id(), "start"))
}

/// Sends a signal to a run; a form that is sent twice sends one.
pub(super) async fn signal(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(run): Path<String>,
    fields: Fields,
) -> Result<Redirect, Problem> {
    let run: RunId = id(&run)?;
    let payload =
        Json::parse(fields.given("payload").unwrap_or("null").trim()).map_err(|error| {
            Problem::new(Code::MalformedJson, format!("the payload is not JSON: {error}"))
        })?;
    let name = fields.text("name").to_owned();
    let key = fields.once("dashboard signal", &format!("{run} {name} {payload}"));
    desk.engine.signal(&visitor.caller, run, name, payload, key).await?;
    Ok(back(run, "signal"))
}

/// Downloads a file of a run, as bytes that no browser opens by itself.
pub(super) async fn download(
    State(desk): State<Desk>,
    visitor: Visitor,
    Path(artifact): Path<String>,
) -> Result<Response, Problem> {
    let artifact: ArtifactId = id(&artifact)?;
    let (artifact, data) = desk.engine.tasks().artifact(&visitor.caller, artifact).await?;
    let name = headers::escaped(&artifact.name);
    let disposition = HeaderValue::try_from(format!("attachment; filename*=UTF-8''{name}"));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_DISPOSITION, disposition.expect("it is written in ASCII")),
    ];
    Ok((headers, data).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_for_pages_alone_and_no_script_reads_it() {
        let plain = cookie_of("moonswarm_x", "secret", 60, false);
        assert_eq!(plain, "moonswarm_x=secret; Path=/ui; Max-Age=60; HttpOnly; SameSite=Strict");
        assert!(cookie_of("a", "b", 1, true).ends_with("; Secure"));
    }
}
