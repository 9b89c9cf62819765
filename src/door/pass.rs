//! The checks that every request passes, in order, before its handler.
//!
//! Host → Origin → bearer → rate → verb → a place → (in the handler) body. A refusal reveals
//! nothing about later checks. A request without a valid bearer takes no place, no rate and no
//! memory for a body from others.

use std::{panic::AssertUnwindSafe, sync::Arc};

use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures::{FutureExt, StreamExt as _};

use super::{
    Code, DoorConfig, Limits, answers,
    arrival::{Arrival, Proxies},
    away::{self, Away},
    cors,
    entered::{Credential, Entered, Rule, Who, expired},
    length::announced,
    origin::Site,
    people::Tokens,
    places::{Place, Places},
    problem::{self, Problem, Shape},
    proof::unproven,
    rate::Rates,
    shares::Shares,
};
use crate::{
    clock::{Clock, Stopwatch},
    engine::{Bearer, Caller, Engine, EngineError, Holder},
    metrics::{Gauge, HttpCounts, OTHER, Requested},
    token::{Refusal, Verb},
};

/// The maximum length of a bearer in bytes. A longer one is refused.
const MOST_BEARER_BYTES: usize = 8 * 1_024;
/// The maximum size of all bodies of requests without a place (forms for signing in), and of those of
/// one client.
const STRANGERS: usize = 32 << 20;
const STRANGERS_EACH: usize = STRANGERS / 8;

/// The checks before a handler, and their counters.
#[derive(Debug)]
pub struct Door {
    site: Site,
    rates: Rates,
    places: Arc<Places>,
    /// The places of large answers.
    answers: Arc<Places>,
    away: Away,
    /// The space for bodies of requests without a place.
    pub(super) strangers: Shares,
    /// The limits.
    pub(crate) limits: Limits,
    /// The clock.
    pub(crate) clock: Clock,
    /// The proxies before this server.
    pub(super) proxies: Arc<Proxies>,
    /// The tokens of people whom a proxy names.
    people: Option<Tokens>,
    /// The open connections, for the metrics.
    pub(crate) connections: Arc<Gauge>,
}

impl Door {
    /// Creates the door of a server on `listens_on`.
    pub fn new(config: &DoorConfig, listens_on: std::net::SocketAddr) -> Self {
        let limits = config.limits.clone();
        Self {
            site: Site::new(listens_on, &config.hosts, &config.origins),
            rates: Rates::new(config.clock.clone(), limits.rate, limits.burst),
            places: Places::new(limits.in_flight, limits.body_bytes),
            // So that one token can download two of the largest files at a time.
            answers: Places::new(limits.in_flight, limits.body_bytes.saturating_mul(2)),
            away: Away::new(),
            strangers: Shares::new(STRANGERS, STRANGERS_EACH),
            limits,
            clock: config.clock.clone(),
            proxies: Arc::new(Proxies::of(config)),
            people: config.people.clone().map(|it| Tokens::new(it, config.clock.clone())),
            connections: Arc::default(),
        }
    }

    /// Counts the open connections in `gauge`.
    #[must_use]
    pub fn counting(self, gauge: Arc<Gauge>) -> Self {
        Self { connections: gauge, ..self }
    }

    /// Takes a place for a request that has another proof of its caller than a bearer.
    ///
    /// # Errors
    /// Fails when the share of the caller or of its account is used up, or the total is.
    pub(crate) fn place_of(&self, caller: &Caller) -> Result<Arc<Place>, Problem> {
        self.places.take(&Bearer::Caller(caller.clone()))
    }

    /// Counts a call over a socket as a request of its token.
    ///
    /// # Errors
    /// Fails when the rate limit of the token is exceeded.
    pub(crate) fn take_turn(&self, caller: &Caller) -> Result<(), Problem> {
        self.rates.take(&caller.jti).map_err(too_often)
    }

    /// Checks the credential of an attempt within the body of a request: as that of a request by
    /// itself, with the same rate. One that is not genuine counts against the rate of the caller.
    ///
    /// # Errors
    /// Fails when it is not the credential of an attempt, may not do this, or comes too often.
    pub(crate) fn admit_carried(
        &self,
        engine: &Engine,
        caller: &Caller,
        verb: Verb,
        handle: &str,
    ) -> Result<Holder, Problem> {
        let text = Some(handle).filter(|text| text.len() <= MOST_BEARER_BYTES);
        let bearer = text.map(|text| engine.authenticate(text)).transpose();
        let Ok(Some(bearer)) = bearer else {
            self.take_turn(caller)?;
            let detail = "the handle is not one of this host, or it is over";
            return Err(Problem::new(Code::Unauthenticated, detail));
        };
        let rule = Rule { who: Who::Holder(verb), body: 0, page: None, shape: Shape::Problem };
        self.admit(rule, &bearer)?;
        match bearer {
            Bearer::Holder(holder) => Ok(holder),
            Bearer::Caller(_) => Err(Problem::new(Code::ForbiddenVerb, "this is no handle")),
        }
    }

    /// Returns the tokens of people whom others identify.
    pub(crate) fn people(&self) -> Option<&Tokens> {
        self.people.as_ref()
    }

    /// Returns the token of the person whom a proxy names, if it names one.
    ///
    /// # Errors
    /// Fails when the person has no role, or the proxy has not proved that the name is its own.
    pub(crate) async fn person(
        &self,
        engine: &Engine,
        arrival: &Arrival,
    ) -> Result<Option<String>, Problem> {
        if arrival.unproven {
            return Err(unproven());
        }
        match (&self.people, &arrival.person) {
            (Some(tokens), Some(person)) => tokens.of(engine, person).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the token of the person of a foreign token, if the bearer is one of a provider.
    async fn foreign(&self, engine: &Engine, bearer: &str) -> Result<Option<Credential>, Problem> {
        let Some(people) = &self.people else { return Ok(None) };
        let Some(provider) = people.provider_of(bearer) else { return Ok(None) };
        let (person, until_ms) = provider.person(bearer).await?;
        let token = people.of(engine, &person).await?;
        Ok(Some(Credential { token, until_ms, instead: true }))
    }

    /// Returns true if the Host of a request is this server's, and its Origin may call it. The door
    /// checks this itself; what is done before, in the name of its client, has to ask.
    pub(crate) fn is_for_us(&self, arrival: &Arrival, uri: &Uri, headers: &HeaderMap) -> bool {
        self.check_site(arrival, uri, headers, true).is_ok()
    }

    fn check_site(
        &self,
        arrival: &Arrival,
        uri: &Uri,
        headers: &HeaderMap,
        without_referrer: bool,
    ) -> Result<(), Problem> {
        match arrival.local {
            true => Ok(()),
            false => self.site.check(uri, headers, without_referrer, arrival.reached),
        }
    }

    /// Checks what needs no key: Host, Origin, and the presence of a bearer.
    fn screen<'a>(
        &self,
        rule: Rule,
        arrival: &Arrival,
        uri: &Uri,
        headers: &'a HeaderMap,
    ) -> Result<Offer<'a>, Problem> {
        self.check_site(arrival, uri, headers, rule.who == Who::Linked)?;
        if arrival.unproven {
            return Err(unproven());
        }
        let is_open = match rule.who {
            Who::Anybody => true,
            Who::Welcome(_) => !headers.contains_key(header::AUTHORIZATION),
            Who::Linked | Who::AnyBearer | Who::Caller(_) | Who::Holder(_) => false,
        };
        if arrival.exposed && !is_open {
            let from = arrival.client.map_or_else(String::new, |it| format!(" from {it}"));
            let detail = format!(
                "this request came in plain text{from}, which is none of `proxies`: use https, and \
                 replace a token that was sent like this"
            );
            return Err(Problem::new(Code::TlsRequired, detail));
        }
        match rule.who {
            Who::Anybody | Who::Linked => Ok(Offer::Nothing),
            Who::Welcome(_) if is_open => Ok(Offer::Nothing),
            Who::Welcome(_) | Who::AnyBearer | Who::Caller(_) | Who::Holder(_) => {
                match key(rule, headers) {
                    Some(key) => Ok(Offer::Bearer(key)),
                    None if arrival.person.is_some() && !has_bearer(headers) => Ok(Offer::Person),
                    None => bearer(headers).map(Offer::Bearer),
                }
            }
        }
    }

    /// Checks the rate of the bearer, and that it is of the right kind and has the verb.
    fn admit(&self, rule: Rule, bearer: &Bearer) -> Result<(), Problem> {
        let taken = match bearer {
            Bearer::Caller(caller) => self.rates.take(&caller.jti),
            Bearer::Holder(holder) => self.rates.take((holder.run, holder.step, holder.attempt)),
        };
        taken.map_err(too_often)?;
        match (rule.who, bearer) {
            (Who::Anybody | Who::Linked | Who::AnyBearer, _) => Ok(()),
            (Who::Welcome(verb) | Who::Caller(verb), Bearer::Caller(caller)) => {
                caller.grant.check(verb, &[]).map_err(refused)
            }
            (Who::Holder(verb), Bearer::Holder(holder)) => holder.check(verb).map_err(refused),
            (Who::Caller(Verb::TaskAnswer | Verb::TaskExpire), Bearer::Holder(_)) => {
                Err(Problem::new(
                    Code::SelfApproval,
                    "this bearer is of an attempt: who works on a task does not answer for people",
                ))
            }
            (Who::Welcome(verb) | Who::Caller(verb), Bearer::Holder(_)) => Err(Problem::new(
                Code::ForbiddenVerb,
                format!("{verb} takes a token for the API; this bearer is for one task"),
            )),
            (Who::Holder(verb), Bearer::Caller(_)) => Err(Problem::new(
                Code::ForbiddenVerb,
                format!("{verb} takes the handle or token of a task; this bearer is for the API"),
            )),
        }
    }
}

/// The credential that a request presents.
#[derive(Debug, PartialEq, Eq)]
enum Offer<'a> {
    /// Nothing, where nothing is needed.
    Nothing,
    /// A bearer.
    Bearer(&'a str),
    /// The word of a proxy.
    Person,
}

/// Returns true if a request has a bearer of its own. A proxy may pass on with what a person has
/// signed in at itself, such as `Basic`.
fn has_bearer(headers: &HeaderMap) -> bool {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let is_bearer = |value: &HeaderValue| {
        value.as_bytes().get(..7).is_some_and(|word| word.eq_ignore_ascii_case(b"bearer "))
    };
    given.any(is_bearer) || offered(headers).is_some()
}

fn too_often(seconds: u64) -> Problem {
    Problem::new(Code::RateLimited, "rate limit for this token exceeded").retry_after(seconds)
}

fn refused(refusal: Refusal) -> Problem {
    EngineError::Refused(refusal).into()
}

/// Returns the token in `x-api-key`, where clients of the Messages API send it. An `Authorization`
/// header goes first: such a client may send the key of another service beside it.
fn key(rule: Rule, headers: &HeaderMap) -> Option<&str> {
    if rule.shape == Shape::Problem || headers.contains_key(header::AUTHORIZATION) {
        return None;
    }
    let mut given = headers.get_all("x-api-key").iter();
    let (Some(key), None) = (given.next(), given.next()) else { return None };
    let key = key.to_str().ok()?.trim();
    (!key.is_empty() && key.len() <= MOST_BEARER_BYTES).then_some(key)
}

/// Returns the bearer of a request.
///
/// # Errors
/// Fails when there is none, or it is malformed.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let missing = |detail: &str| Problem::unauthenticated(Code::Unauthenticated, detail);
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let value = match (given.next(), given.next(), offered(headers)) {
        (Some(value), None, None) => value,
        (None, None, Some(token)) if token.len() <= MOST_BEARER_BYTES => return Ok(token),
        _ => return Err(missing("send one header `Authorization: Bearer <token>`")),
    };
    value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim())
        .filter(|token| !token.is_empty() && token.len() <= MOST_BEARER_BYTES)
        .ok_or_else(|| missing("the Authorization header is not `Bearer <token>`"))
}

/// Returns the bearer that a WebSocket client offers as a subprotocol, `bearer.<token>`. Browsers
/// cannot send an `Authorization` header with a WebSocket.
fn offered(headers: &HeaderMap) -> Option<&str> {
    let upgrade = headers.get(header::UPGRADE)?;
    if !upgrade.as_bytes().eq_ignore_ascii_case(b"websocket") {
        return None;
    }
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let mut names = offered.filter_map(|value| value.to_str().ok()).flat_map(|it| it.split(','));
    names.find_map(|name| name.trim().strip_prefix("bearer.")).filter(|token| !token.is_empty())
}

/// Passes a request to its handler, or refuses it.
pub(crate) async fn pass(
    State((engine, door, rule)): State<(Engine, Arc<Door>, Rule)>,
    mut request: Request,
    next: Next,
) -> Response {
    let (method, uri) = (request.method(), request.uri());
    let reached = request.extensions().get::<Arrival>().and_then(|arrival| arrival.reached);
    if let Some(answer) = door.site.preflight(method, uri, request.headers(), reached) {
        return hardened(answer);
    }
    let counts = engine.clone();
    let mut measured = Measured::begin(&counts.counts().http, &request);
    let origin = door.site.caller_of(uri, request.headers());
    let client = request.extensions().get::<Arrival>().and_then(|arrival| arrival.client);
    let handled = async {
        let (bearer, [_waits, place]) = enter(&engine, &door, rule, &mut request).await?;
        let method = request.method().clone();
        // A read may wait for what happens: a token that ends meanwhile hears nothing of it. What
        // changes something is handled to its end.
        let reader = Entered::bearer_of(request.extensions()).filter(|_| method.is_safe()).cloned();
        let until_ms = bearer.as_ref().map_or(u64::MAX, |it| it.until_ms);
        let answer = away::bounded(&engine, &method, next.run(request));
        let response = match &reader {
            Some(reader) => tokio::select! {
                biased;
                response = answer => {
                    reader.check_token(&engine)?;
                    response?
                }
                error = reader.token_over(&engine) => return Err(error.into()),
                () = door.clock.sleep_until(until_ms) => return Err(expired().into()),
            },
            None => answer.await?,
        };
        let response = answers::counted(&door.answers, place.as_deref(), &method, response)?;
        Ok(match bearer {
            Some(given) if is_of_events(&response) => {
                while_good(engine, given, door.clock.clone(), response)
            }
            Some(_) | None => response,
        })
    };
    let handled = AssertUnwindSafe(handled).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!("a request ended in a panic");
        Err(Problem::new(Code::Internal, "this is a defect of the server; its log has the details"))
    });
    let refused =
        handled.as_ref().map_or_else(|problem| Some(problem.code().as_str()), problem::code_of);
    if let Some(code) = refused {
        counts.counts().http.refuse(code);
        if let Some(client) = client {
            tracing::debug!(target: "moonswarm::door", %client, %code, "refused a request");
        }
    }
    let response = match (handled, rule.page) {
        (Ok(response), _) => response,
        (Err(problem), Some(page)) if problem.status() == StatusCode::UNAUTHORIZED => {
            page(problem.status())
        }
        (Err(problem), _) => problem.into_response(),
    };
    let mut response = hardened(match rule.shape {
        Shape::Problem => response,
        Shape::Models | Shape::Messages => problem::for_models(response, rule.shape),
    });
    if let Some(origin) = origin {
        cors::shared(response.headers_mut(), origin);
    }
    measured.answer(response.status());
    response
}

/// Counts a request, from its arrival to its answer or until its client is gone.
struct Measured<'a> {
    counts: &'a HttpCounts,
    watch: Stopwatch,
    method: &'static str,
    route: Option<MatchedPath>,
    status: Option<StatusCode>,
}

impl<'a> Measured<'a> {
    fn begin(counts: &'a HttpCounts, request: &Request) -> Self {
        counts.begin();
        let known = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"];
        let method = request.method().as_str();
        Self {
            counts,
            watch: Stopwatch::start(),
            method: known.into_iter().find(|it| *it == method).unwrap_or(OTHER),
            route: request.extensions().get::<MatchedPath>().cloned(),
            status: None,
        }
    }

    fn answer(&mut self, status: StatusCode) {
        self.status = Some(status);
    }
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        self.counts.end();
        let Some(status) = self.status else { return };
        self.counts.answer(Requested {
            method: self.method,
            route: self.route.as_ref().map_or(OTHER, MatchedPath::as_str),
            status: status.as_u16(),
            took_us: self.watch.micros(),
        });
    }
}

/// Runs the checks. The places are released when the returned value is dropped.
async fn enter(
    engine: &Engine,
    door: &Door,
    rule: Rule,
    request: &mut Request,
) -> Result<(Option<Arc<Credential>>, [Option<Arc<Place>>; 2]), Problem> {
    let arrival: Arrival = request.extensions().get().cloned().unwrap_or_default();
    let given = match door.screen(rule, &arrival, request.uri(), request.headers())? {
        Offer::Nothing => None,
        Offer::Bearer(text) => {
            let token = text.to_owned();
            // Boxed, so that the futures of requests without such people stay small.
            let foreign = match door.people {
                Some(_) => Box::pin(door.foreign(engine, &token)).await?,
                None => None,
            };
            foreign.or(Some(Credential { token, until_ms: u64::MAX, instead: false }))
        }
        Offer::Person => {
            let token = Box::pin(door.person(engine, &arrival)).await?;
            token.map(|token| Credential { token, until_ms: u64::MAX, instead: true })
        }
    };
    let given = given.map(Arc::new);
    let mut entered = Entered { rule, bearer: None, place: None, given: given.clone() };
    let mut waits = None;
    if let Some(given) = &given {
        let bearer = engine.authenticate(&given.token)?;
        if given.instead
            && let Ok(value) = HeaderValue::try_from(format!("Bearer {}", given.token))
        {
            // What a handler asks for in the name of its caller carries the same token.
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        door.admit(rule, &bearer)?;
        entered.place = Some(door.places.take(&bearer)?);
        let bytes = announced(request.headers()).unwrap_or_default();
        let is_away = engine.is_storage_away();
        waits = door.away.enter(is_away, request.method(), &bearer, bytes)?;
        entered.bearer = Some(bearer);
    }
    let places = [waits, entered.place.clone()];
    request.extensions_mut().insert(entered);
    Ok((given, places))
}

fn is_of_events(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Ends a stream when the bearer that opened it becomes invalid. The bearer is checked before each
/// chunk, and keep-alive chunks come at least every [`Limits::keep_alive`].
fn while_good(
    engine: Engine,
    given: Arc<Credential>,
    clock: Clock,
    response: Response,
) -> Response {
    let stream = Streaming::begin(engine);
    let is_good = move || given.bearer(&stream.0, clock.now_ms()).is_ok();
    response.map(|body| {
        let pieces = body.into_data_stream();
        Body::from_stream(pieces.take_while(move |_| std::future::ready(is_good())))
    })
}

/// Counts a stream of events, as long as it is read.
struct Streaming(Engine);

impl Streaming {
    fn begin(engine: Engine) -> Self {
        engine.counts().http.stream();
        Self(engine)
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.0.counts().http.stream_ended();
    }
}

/// Adds security headers for browsers. A header set by the handler wins.
fn hardened(mut response: Response) -> Response {
    const HEADERS: [(HeaderName, &str); 6] = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let headers = response.headers_mut();
    headers.reserve(HEADERS.len());
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::Holder,
        token::{Grant, Role, Scopes},
    };

    fn door() -> Door {
        let limits = Limits { rate: 1, burst: 2, ..Limits::default() };
        let config = DoorConfig { limits, clock: Clock::manual(0), ..DoorConfig::default() };
        Door::new(&config, "127.0.0.1:7700".parse().unwrap())
    }

    fn rule(who: Who) -> Rule {
        Rule { who, body: 0, page: None, shape: Shape::Problem }
    }

    fn screen(rule: Rule, headers: &[(HeaderName, &'static str)]) -> Result<bool, &'static str> {
        let headers =
            headers.iter().map(|(n, v)| (n.clone(), HeaderValue::from_static(v))).collect();
        let given = door().screen(rule, &Arrival::default(), &Uri::from_static("/"), &headers);
        let given = given.map(|offer| offer != Offer::Nothing);
        given.map_err(|problem| problem.code().as_str())
    }

    fn caller(role: Role) -> Bearer {
        Bearer::Caller(Caller {
            subject: "ada".to_owned(),
            grant: Grant::new(role, Scopes::all()).into(),
            jti: role.to_string(),
            expires_ms: u64::MAX,
            session: None,
            trace: None,
        })
    }

    fn holder(grant: Option<Grant>) -> Bearer {
        Bearer::Holder(Holder { grant, ..Holder::of_first(1, 2) })
    }

    #[test]
    fn host_comes_before_origin_and_origin_before_the_bearer() {
        let read = rule(Who::Caller(Verb::RunRead));
        let mut headers =
            vec![(header::HOST, "evil.example"), (header::ORIGIN, "http://evil.example")];
        assert_eq!(screen(read, &headers), Err("host_not_allowed"));
        headers[0].1 = "localhost:7700";
        assert_eq!(screen(read, &headers), Err("origin_not_allowed"));
        headers.pop();
        assert_eq!(screen(read, &headers), Err("unauthenticated"));
        headers.push((header::AUTHORIZATION, "bearer x"));
        assert_eq!(screen(read, &headers), Ok(true));
    }

    #[test]
    fn what_is_open_is_open_to_our_own_names_only() {
        let open = rule(Who::Anybody);
        assert_eq!(screen(open, &[(header::HOST, "localhost:7700")]), Ok(false));
        assert_eq!(screen(open, &[(header::HOST, "evil.example")]), Err("host_not_allowed"));
    }

    #[test]
    fn a_bearer_has_one_form() {
        let read = rule(Who::AnyBearer);
        for value in ["Basic x", "Bearer", "Bearer ", "x", ""] {
            let headers = [(header::HOST, "localhost:7700"), (header::AUTHORIZATION, value)];
            assert_eq!(screen(read, &headers), Err("unauthenticated"), "{value}");
        }
    }

    #[test]
    fn a_socket_may_offer_its_bearer_as_a_protocol_and_nothing_else_may() {
        let read = rule(Who::AnyBearer);
        let offer = (header::SEC_WEBSOCKET_PROTOCOL, "moonswarm.v1, bearer.x.y-z");
        let upgrade = (header::UPGRADE, "WebSocket");
        let host = (header::HOST, "localhost:7700");
        assert_eq!(screen(read, &[host.clone(), upgrade.clone(), offer.clone()]), Ok(true));
        assert_eq!(screen(read, &[host.clone(), offer.clone()]), Err("unauthenticated"));
        let both = [host.clone(), upgrade.clone(), offer, (header::AUTHORIZATION, "Bearer x")];
        assert_eq!(screen(read, &both), Err("unauthenticated"));
        let none = (header::SEC_WEBSOCKET_PROTOCOL, "moonswarm.v1, bearer.");
        assert_eq!(screen(read, &[host, upgrade, none]), Err("unauthenticated"));
    }

    #[test]
    fn a_verb_is_asked_of_the_sort_of_bearer_that_has_it() {
        let cases = [
            (Who::Caller(Verb::RunStart), caller(Role::Operator), true),
            (Who::Caller(Verb::RunStart), caller(Role::Observer), false),
            (Who::Caller(Verb::RunStart), holder(None), false),
            (Who::Holder(Verb::WorkerResult), holder(None), true),
            (Who::Holder(Verb::WorkerResult), caller(Role::Admin), false),
            (
                Who::Holder(Verb::WorkerResult),
                holder(Some(Grant::new(Role::Worker, Scopes::all()).only([Verb::WorkerPrompt]))),
                false,
            ),
            (Who::AnyBearer, holder(None), true),
        ];
        for (who, bearer, passes) in cases {
            let admitted =
                door().admit(rule(who), &bearer).map_err(|problem| problem.code().as_str());
            let expected = if passes { Ok(()) } else { Err("forbidden_verb") };
            assert_eq!(admitted, expected, "{who:?} {bearer:?}");
        }
    }

    #[test]
    fn the_bearer_of_an_attempt_answers_no_task_for_people() {
        for verb in [Verb::TaskAnswer, Verb::TaskExpire] {
            let refused = door().admit(rule(Who::Caller(verb)), &holder(None)).unwrap_err();
            assert_eq!(refused.code(), "self_approval");
        }
    }

    #[test]
    fn a_bearer_that_asks_too_often_is_told_when_to_come_back() {
        let (door, read) = (door(), rule(Who::Caller(Verb::RunRead)));
        assert!(door.admit(read, &caller(Role::Admin)).is_ok());
        assert!(door.admit(read, &caller(Role::Admin)).is_ok());
        let problem = door.admit(read, &caller(Role::Admin)).unwrap_err();
        assert_eq!(problem.code(), "rate_limited");
        assert_eq!(problem.into_response().headers()[header::RETRY_AFTER], "1");
        assert!(door.admit(read, &caller(Role::Observer)).is_ok());
    }
}
