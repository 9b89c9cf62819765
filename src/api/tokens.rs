//! Tokens: create narrower ones, list, revoke; the public keys.

use axum::{Json as JsonBody, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    app::Api,
    body::{Posted, object},
    params::{All, AnyBearer, Asker, At, Key},
};
use crate::{
    blueprint::parse_duration,
    door::{Code, Problem, ProblemBody},
    engine::{Bearer, MintToken, Minted, RotateKeys, Rotated, TokenView, rfc3339},
    protocol::Json,
    token::{Grant, Quotas, Role, Scopes, Verb},
};

/// A token to make; it can do no more than the one that asks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MintBody {
    /// Its role: admin, operator, worker, queue, approver, senior or observer.
    #[schema(value_type = String, pattern = "^(admin|operator|worker|queue|approver|senior|observer)$")]
    role: Role,
    /// Only these verbs of the role; all of them if absent.
    verbs: Option<Vec<String>>,
    /// Verbs beside those, which the role has only where a token names them: for an operator
    /// `run.source`, `run.workdir`, `run.inspect`, `task.answer`, `task.expire`.
    extra_verbs: Option<Vec<String>>,
    /// Its scopes; the asking token's if absent.
    scopes: Option<Vec<String>>,
    /// The lifetime of the token: `"12h"`.
    #[schema(pattern = "^([1-9][0-9]{0,2}[smh]|[1-9][0-9]?d)$")]
    ttl: String,
    /// Whose it is: people with a name each are told apart where several must answer. A token that
    /// may do everything gives a name as it is, any other puts its own subject and a slash before
    /// it.
    name: Option<String>,
    /// The quotas of this token, and of all tokens made from it: `{"open_runs":
    /// 20, "starts_per_minute": 60, "stored_bytes": 1000000000, "tokens": 5000000, "usd": "20.00"}`;
    /// bounded by the asking token's own quotas in any case.
    #[serde(default, deserialize_with = "object")]
    #[schema(value_type = Object)]
    quotas: Quotas,
}

impl MintBody {
    fn into_mint(self) -> Result<MintToken, Problem> {
        let ttl_ms = parse_duration(&self.ttl).map_err(|error| {
            Problem::new(Code::InvalidBody, format!("failed to {error}")).at("$.ttl")
        })?;
        let Self { role, verbs, extra_verbs, scopes, name, quotas, .. } = self;
        let extra_verbs = extra_verbs.unwrap_or_default();
        Ok(MintToken { role, verbs, extra_verbs, scopes, ttl_ms, name, quotas })
    }
}

/// A made token.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MintedView {
    /// The token itself; it is shown this once.
    token: String,
    /// Its id.
    jti: String,
    /// RFC 3339, UTC.
    expires_at: String,
}

impl From<Minted> for MintedView {
    fn from(minted: Minted) -> Self {
        Self { token: minted.token, jti: minted.jti, expires_at: rfc3339(minted.expires_ms) }
    }
}

/// Makes a token that can do no more than the one that asks.
#[utoipa::path(
    post, path = "/v1/tokens", operation_id = "token_mint", tag = "tokens",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition harmless for 24 hours.")),
    request_body = MintBody,
    responses(
        (status = 201, description = "The token.", body = MintedView),
        (status = 409, description = "`idempotency_mismatch`, `repeat_widens`", body = ProblemBody),
    ),
)]
pub(super) async fn mint(
    State(api): State<Api>,
    Asker(caller): Asker,
    key: Key,
    posted: Posted<MintBody>,
) -> Result<(StatusCode, JsonBody<MintedView>), Problem> {
    let key = key.of("POST /v1/tokens", &posted.raw);
    let minted = api.engine.tokens().mint(&caller, posted.body.into_mint()?, key).await?;
    Ok((StatusCode::CREATED, JsonBody(minted.into())))
}

/// Lists the tokens that were made, without their secrets.
#[utoipa::path(
    get, path = "/v1/tokens", operation_id = "token_list", tag = "tokens",
    responses((status = 200, description = "All of them.", body = All<TokenView>)),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Asker(caller): Asker,
) -> Result<JsonBody<All<TokenView>>, Problem> {
    Ok(JsonBody(All::of(api.engine.tokens().list(&caller).await?)))
}

/// The token that a request came with.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OwnTokenView {
    /// The token, as in the list of tokens.
    #[serde(flatten)]
    token: TokenView,
    /// The verbs that it has.
    may: Vec<&'static str>,
    /// The session, for the token of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
}

/// Returns the token of the request: its role, verbs, scopes, times and quotas.
#[utoipa::path(
    get, path = "/v1/tokens/self", operation_id = "token_self", tag = "tokens",
    responses(
        (status = 200, description = "The token.", body = OwnTokenView),
        (status = 403, description = "`forbidden_verb`: the bearer is of an attempt", body = ProblemBody),
    ),
)]
pub(super) async fn own(
    State(api): State<Api>,
    AnyBearer(bearer): AnyBearer,
) -> Result<JsonBody<OwnTokenView>, Problem> {
    let Bearer::Caller(caller) = bearer else {
        let detail = "this bearer is of an attempt; GET /v1/whoami describes it";
        return Err(Problem::new(Code::ForbiddenVerb, detail));
    };
    let token = api.engine.tokens().own(&caller).await?;
    let may = Verb::ALL.iter().filter(|verb| caller.grant.has(**verb));
    let may = may.map(|verb| verb.as_str()).collect();
    Ok(JsonBody(OwnTokenView { token, may, session: caller.session.map(|it| it.0) }))
}

/// The holder of the bearer that a request came with.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WhoView {
    /// `token`, or `attempt`: the handle or token of an attempt of a task.
    kind: &'static str,
    /// The owner; absent for a bare handle.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// Its id; a bare handle has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    jti: Option<String>,
    /// Its role.
    role: &'static str,
    /// The verbs that it has.
    verbs: Vec<&'static str>,
    /// Its scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    scopes: Option<Vec<String>>,
    /// RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// The session, for the token of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    /// The step of an attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u32>,
    /// The attempt's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
}

/// Returns the owner of the bearer of the request, and its grant.
#[utoipa::path(
    get, path = "/v1/whoami", operation_id = "whoami", tag = "tokens",
    responses((status = 200, description = "The holder.", body = WhoView)),
)]
pub(super) async fn whoami(AnyBearer(bearer): AnyBearer) -> JsonBody<WhoView> {
    let verbs = |grant: &Grant| {
        Verb::ALL.iter().filter(|verb| grant.has(**verb)).map(|verb| verb.as_str()).collect()
    };
    JsonBody(match bearer {
        Bearer::Caller(it) => WhoView {
            kind: "token",
            subject: Some(it.subject),
            jti: Some(it.jti),
            role: it.grant.role.as_str(),
            verbs: verbs(&it.grant),
            scopes: Some(it.grant.scopes.0.iter().map(ToString::to_string).collect()),
            expires_at: Some(rfc3339(it.expires_ms)),
            session: it.session.map(|session| session.0),
            step: None,
            attempt: None,
        },
        Bearer::Holder(it) => WhoView {
            kind: "attempt",
            subject: None,
            jti: it.jti,
            role: Role::Worker.as_str(),
            verbs: verbs(&it.grant.unwrap_or_else(|| Grant::new(Role::Worker, Scopes(Vec::new())))),
            scopes: None,
            expires_at: None,
            session: None,
            step: Some(it.step),
            attempt: Some(it.attempt),
        },
    })
}

/// Makes a token, and every token made from it, worthless at once. The id of a worker's token for a
/// task is taken as well.
#[utoipa::path(
    delete, path = "/v1/tokens/{jti}", operation_id = "token_revoke", tag = "tokens",
    params(("jti" = String, Path, description = "The token's id.")),
    responses(
        (status = 204, description = "It is revoked."),
        (status = 404, description = "`not_found`", body = ProblemBody),
    ),
)]
pub(super) async fn revoke(
    State(api): State<Api>,
    Asker(caller): Asker,
    At(jti): At<String>,
) -> Result<StatusCode, Problem> {
    api.engine.tokens().revoke(&caller, &jti).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which keys to change.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RotateBody {
    /// `signing` and `handles`; both if absent.
    keys: Option<Vec<KeyName>>,
    /// The time for which the earlier keys still verify their tokens: `"7d"`, which is the default.
    grace: Option<String>,
    /// True if the earlier keys are refused at once, because one of them leaked; the keys that were
    /// retired earlier end as well.
    #[serde(default)]
    now: bool,
}

/// A key of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum KeyName {
    /// The key that signs tokens.
    Signing,
    /// The secret that handles are made with.
    Handles,
}

/// The default time for which the previous keys verify: the maximum lifetime of a session.
const GRACE_MS: u64 = 7 * 86_400_000;

impl RotateBody {
    fn into_ask(self) -> Result<RotateKeys, Problem> {
        let wrong = |detail: String| Problem::new(Code::InvalidBody, detail).at("$.grace");
        let grace_ms = match (self.now, &self.grace) {
            (true, None) => 0,
            (true, Some(_)) => return Err(wrong("`now` leaves no grace; send one of them".into())),
            (false, None) => GRACE_MS,
            (false, Some(text)) => {
                parse_duration(text).map_err(|error| wrong(format!("failed to {error}")))?
            }
        };
        if grace_ms == 0 && !self.now {
            return Err(wrong("a grace is longer than nothing; `now` asks for none".into()));
        }
        let has = |key| self.keys.as_ref().is_none_or(|keys| keys.contains(&key));
        let (signing, handles) = (has(KeyName::Signing), has(KeyName::Handles));
        Ok(RotateKeys { signing, handles, grace_ms })
    }
}

/// The keys of now.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RotatedView {
    /// The id of the key that signs.
    kid: String,
    /// The token that asked, signed by that key: what it came with ends with its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// RFC 3339, UTC: when the keys before cease to verify.
    old_until: String,
}

impl From<Rotated> for RotatedView {
    fn from(rotated: Rotated) -> Self {
        let Rotated { kid, token, until_ms } = rotated;
        Self { kid, token, old_until: rfc3339(until_ms) }
    }
}

/// Changes the keys that tokens and handles are made with. The keys before go on to verify for the
/// grace, over restarts as well; the file `admin.token` has a token of the new key when this answers.
#[utoipa::path(
    post, path = "/v1/keys/rotate", operation_id = "key_rotate", tag = "tokens",
    request_body = Option<RotateBody>,
    responses((status = 200, description = "They are changed.", body = RotatedView)),
)]
pub(super) async fn rotate(
    State(api): State<Api>,
    Asker(caller): Asker,
    posted: Posted<Option<RotateBody>>,
) -> Result<JsonBody<RotatedView>, Problem> {
    let ask = posted.body.unwrap_or_default().into_ask()?;
    Ok(JsonBody(api.engine.tokens().rotate_keys(&caller, ask).await?.into()))
}

/// The public keys that tokens are verified with.
#[utoipa::path(
    get, path = "/.well-known/jwks.json", operation_id = "jwks", tag = "tokens",
    responses((status = 200, description = "A JSON Web Key Set.", body = Object)),
)]
pub(super) async fn jwks(State(api): State<Api>) -> JsonBody<Json> {
    JsonBody(api.engine.tokens().jwks())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::body::read_json;

    #[test]
    fn a_rotation_has_a_grace_or_none() {
        let read = |text: &str| {
            read_json::<RotateBody>(text.as_bytes()).and_then(RotateBody::into_ask).ok()
        };
        let both = RotateKeys { signing: true, handles: true, grace_ms: GRACE_MS };
        assert_eq!(read("{}"), Some(both));
        assert_eq!(read(r#"{"now":true}"#), Some(RotateKeys { grace_ms: 0, ..both }));
        let handles = RotateKeys { signing: false, grace_ms: 60_000, ..both };
        assert_eq!(read(r#"{"keys":["handles"],"grace":"1m"}"#), Some(handles));
        for wrong in [r#"{"now":true,"grace":"1m"}"#, r#"{"grace":"0s"}"#, r#"{"keys":["all"]}"#] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_role_and_a_life_are_needed() {
        let read = |text: &str| {
            read_json::<MintBody>(text.as_bytes())
                .and_then(MintBody::into_mint)
                .map_err(|problem| problem.path().unwrap_or_default().to_owned())
        };
        let mint = read(r#"{"role":"queue","scopes":["queue:a"],"ttl":"12h"}"#).unwrap();
        assert_eq!((mint.role, mint.ttl_ms), (Role::Queue, 43_200_000));
        assert_eq!(read(r#"{"role":"king","ttl":"1h"}"#).unwrap_err(), "$.role");
        assert_eq!(read(r#"{"role":"queue","ttl":"long"}"#).unwrap_err(), "$.ttl");
        assert_eq!(read(r#"{"role":"queue"}"#).unwrap_err(), "$");
    }
}
