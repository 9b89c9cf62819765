//! Sessions: open, show, renew and close them, and take seats.

use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::{
    clock::Clock,
    engine::{
        Caller, EngineError, IdempotencyKey, StartRun,
        inbox::seats::wrong_seat,
        rfc3339,
        shared::{
            host_log::HostFact,
            message::{ControlAsk, Internal},
            verified::denied,
        },
        turn::lineage,
        verbs::auth::{mint_claims, token_row, with_more},
        verbs::engine::SessionVerbs,
    },
    operator::Ticket,
    protocol::{Code, RunId, SessionId},
    session::{LinkEnd, Looks, SessionError},
    store::{Check, SessionRow, Write},
    token::{Claims, Grant, Need, Role, TokenKind, Verb},
};

/// The maximum lifetime of a session's token, in milliseconds; it can be renewed.
const LONGEST_MS: u64 = 7 * 24 * 3_600 * 1_000;

/// The parameters of a new session.
#[derive(Debug, Clone)]
pub struct OpenSession {
    /// The operator of the session.
    pub operator: String,
    /// The lifetime of its token, in milliseconds; it can be renewed.
    pub ttl_ms: u64,
    /// The scopes; the caller's own if absent.
    pub scopes: Option<Vec<String>>,
    /// Verbs that an operator has only if its token lists them; without them here, the session does
    /// not have them, whatever the caller has.
    pub extra_verbs: Vec<String>,
    /// True if its frames contain the prompts.
    pub direct: bool,
}

/// An opened session.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The session.
    pub session: SessionId,
    /// Its token, shown once.
    pub token: String,
    /// The expiry of the token, in Unix milliseconds.
    pub expires_ms: u64,
}

/// A session: a connected operator, or one that may come back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// Its id: `ses_…`.
    pub id: String,
    /// The operator that it is.
    pub operator: String,
    /// The subject that opened it.
    pub opened_by: String,
    /// True if a client is connected.
    pub connected: bool,
    /// True if its frames contain the prompts.
    pub direct: bool,
    /// Tasks that it has.
    pub open_tasks: usize,
    /// Frames that it has not acknowledged.
    pub unacknowledged: usize,
    /// The number of its last frame.
    pub last_seq: u64,
    /// RFC 3339, UTC.
    pub created_at: String,
    /// RFC 3339, UTC: when it ends unless its token is renewed.
    pub expires_at: String,
    /// RFC 3339, UTC: when a client of it was last there; null if none was since the host started.
    #[serde(default)]
    pub last_seen_at: Option<String>,
    /// RFC 3339, UTC: when it was closed.
    pub closed_at: Option<String>,
    /// The reason for closing it.
    pub reason: Option<String>,
}

impl From<SessionError> for EngineError {
    fn from(error: SessionError) -> Self {
        let message = error.to_string();
        match error {
            SessionError::NotOpen(id) => Self::NotFound { what: "open session", id: id.0 },
            SessionError::Ahead { .. } => Self::Conflict { code: Code::SeqAhead, message },
            SessionError::TooMany | SessionError::TooManyOfAccount => {
                Self::Busy { code: Code::TooManySessions, message, retry_after_s: 60 }
            }
        }
    }
}

impl SessionVerbs<'_> {
    /// Opens a session of an operator; it is durable when this returns.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such operator, or it has no sessions.
    pub async fn open_session(
        self,
        caller: &Caller,
        mut open: OpenSession,
        key: Option<IdempotencyKey>,
    ) -> Result<Opened, EngineError> {
        open.operator = self.engine.shared().registry.name_of(&open.operator).to_owned();
        caller.grant.check(Verb::SessionOpen, &[Need::Operator(&open.operator)])?;
        if let Some(id) = self.engine.repeated(caller, key.as_ref()).await? {
            return self.opened_again(caller, id).await;
        }
        let shared = self.engine.shared();
        self.check_operator(&open.operator)?;
        shared.sessions.admit(&caller.subject)?;
        let session = SessionId::new(format!(
            "ses_{}",
            data_encoding::BASE32_NOPAD
                .encode(uuid::Uuid::now_v7().as_bytes())
                .to_ascii_lowercase()
        ));
        let now_ms = shared.clock.now_ms();
        if !(1_000..=LONGEST_MS).contains(&open.ttl_ms) {
            let message = "open a session: its ttl is between 1 s and 7 days; it can be renewed";
            return Err(EngineError::BadRequest(message.into()));
        }
        let expires_ms = (now_ms + open.ttl_ms).min(caller.expires_ms);
        let claims = self.session_claims(caller, &session, &open, now_ms, expires_ms)?;
        let row = SessionRow {
            id: session.to_string(),
            operator: open.operator,
            principal: caller.subject.clone(),
            jti: claims.jti.clone(),
            until_ms: caller.expires_ms,
            created_ms: now_ms,
            expires_ms,
            direct: open.direct,
            last_seq: 0,
            acked_seq: 0,
            closed_ms: None,
            reason: None,
        };
        let mut checks = vec![Check::TokenLive(caller.jti.clone())];
        let mut writes = vec![
            Write::PutToken(token_row(&claims, now_ms, expires_ms)),
            Write::PutSession(Box::new(row.clone())),
        ];
        let kept = key.map(|key| key.keep(&caller.subject, session.to_string(), now_ms));
        let (check, write) = kept.unzip();
        checks.extend(check);
        writes.extend(write);
        let token = self.engine.inner.auth.sign(&claims)?;
        let engine = self.engine.clone();
        // The caller may be gone in the meantime; the store and the memory must agree.
        shared.accounts.add(&claims, now_ms);
        let data = json!({ "session": row.id, "operator": row.operator, "by": row.principal });
        let fact = HostFact::new("session.opened", now_ms, data);
        let opening = shared.tasks.spawn(async move {
            engine.write_logged(checks, writes, vec![fact], |_| {}).await?;
            let SessionRow { id, operator, principal, .. } = &row;
            tracing::info!(session = id, operator, by = principal, "session opened");
            engine.shared().sessions.open(row);
            Ok::<_, EngineError>(())
        });
        opening.await.map_err(|_| EngineError::Stopping)??;
        Ok(Opened { session, token, expires_ms })
    }

    /// Refuses an operator that has no sessions.
    fn check_operator(self, name: &str) -> Result<(), EngineError> {
        let Some(operator) = self.engine.shared().registry.get(name) else {
            return Err(EngineError::NotFound { what: "operator", id: name.to_owned() });
        };
        if operator.holds_session() {
            return Ok(());
        }
        let message = format!(
            "open a session: the operator {name} is of kind {}, and only main_ai has sessions",
            operator.kind()
        );
        Err(EngineError::Conflict { code: Code::NoSessions, message })
    }

    fn session_claims(
        self,
        caller: &Caller,
        session: &SessionId,
        open: &OpenSession,
        now_ms: u64,
        expires_ms: u64,
    ) -> Result<Claims, EngineError> {
        let scopes = match &open.scopes {
            None => caller.grant.scopes.clone(),
            Some(scopes) => self.engine.tokens().scopes_of(scopes)?,
        };
        let mut grant = Grant::new(Role::Operator, scopes);
        grant.verbs.clone_from(&caller.grant.verbs);
        let grant = with_more(grant.by_default(), &open.extra_verbs)?;
        let parent = self.engine.tokens().claims_of(caller);
        let subject = lineage::session_of(&caller.subject, session);
        let mut claims = mint_claims(&subject, grant, now_ms, expires_ms).child_of(&parent);
        TokenKind::Session.audience().clone_into(&mut claims.aud);
        claims.check_narrower(&parent).map_err(|widening| EngineError::Conflict {
            code: widening.code(),
            message: widening.to_string(),
        })?;
        Ok(claims)
    }

    /// Returns the session of a repeated request: the claims of its token are stored, and signing
    /// them again gives the token.
    async fn opened_again(self, caller: &Caller, id: String) -> Result<Opened, EngineError> {
        let missing = EngineError::NotFound { what: "session", id: id.clone() };
        let row = self.engine.read(move |store| store.session(&id)).await?.ok_or(missing)?;
        let claims = self.stored_claims(row.jti).await?;
        self.engine.tokens().check_repeatable(caller, &claims)?;
        let token = self.engine.inner.auth.sign(&claims)?;
        Ok(Opened { session: row.id.into(), token, expires_ms: row.expires_ms })
    }

    pub(crate) async fn stored_claims(self, jti: String) -> Result<Claims, EngineError> {
        let missing = EngineError::NotFound { what: "token", id: jti.clone() };
        let row = self.engine.read(move |store| store.token(&jti)).await?.ok_or(missing)?;
        Ok(serde_json::from_str(&row.claims).expect("stored claims were written by this program"))
    }

    /// Returns the session of a token, if it is a session's.
    ///
    /// # Errors
    /// Fails when the session is closed.
    pub(crate) fn session_of(self, claims: &Claims) -> Result<Option<SessionId>, EngineError> {
        if claims.kind() != Some(TokenKind::Session) {
            return Ok(None);
        }
        let session = SessionId::from(lineage::session_in(&claims.sub).unwrap_or_default());
        match self.engine.shared().sessions.operator_of(&session) {
            Some(_) => Ok(Some(session)),
            None => Err(denied(format!("session {session} is closed; open another"))),
        }
    }

    /// Returns every open session, oldest first.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub fn list(self, caller: &Caller) -> Result<Vec<SessionView>, EngineError> {
        caller.grant.check(Verb::OperatorRead, &[])?;
        let (all, clock) = (self.engine.shared().sessions.all(), &self.engine.shared().clock);
        let may = |row: &SessionRow| caller.grant.scopes.cover(&Need::Operator(&row.operator));
        Ok(all.iter().filter(|looks| may(&looks.row)).map(|looks| shown(looks, clock)).collect())
    }

    /// Returns one session, up to a day after its end.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such session.
    pub async fn get(
        self,
        caller: &Caller,
        session: &SessionId,
    ) -> Result<SessionView, EngineError> {
        let looks = self.look_at(session).await?;
        caller.grant.check(Verb::SessionRead, &[Need::Operator(&looks.row.operator)])?;
        Ok(shown(&looks, &self.engine.shared().clock))
    }

    async fn look_at(self, session: &SessionId) -> Result<Looks, EngineError> {
        if let Some(looks) = self.engine.shared().sessions.looks(session) {
            return Ok(looks);
        }
        let id = session.to_string();
        let row = self.engine.read(move |store| store.session(&id)).await?;
        let row =
            row.ok_or_else(|| EngineError::NotFound { what: "session", id: session.0.clone() })?;
        Ok(Looks { row, connected: false, open_tasks: 0, unacknowledged: 0, seen_ms: None })
    }

    /// Closes a session: its tasks are placed anew, and its connection is notified.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such session.
    pub async fn close_session(
        self,
        caller: &Caller,
        session: &SessionId,
    ) -> Result<(), EngineError> {
        let looks = self.look_at(session).await?;
        caller.grant.check(Verb::SessionClose, &[Need::Operator(&looks.row.operator)])?;
        self.end_session(session, LinkEnd::Closed(format!("closed by {}", caller.subject))).await
    }

    /// Ends a session; this is durable before it takes effect.
    pub(crate) async fn end_session(
        self,
        session: &SessionId,
        why: LinkEnd,
    ) -> Result<(), EngineError> {
        let reason = why.reason().to_owned();
        let at_ms = self.engine.shared().clock.now_ms();
        let close =
            Write::CloseSession { session: session.to_string(), at_ms, reason: reason.clone() };
        let operator = self.engine.shared().sessions.operator_of(session);
        let data = json!({ "session": session, "operator": operator, "reason": reason });
        // One that was closed before has its event.
        let fact = operator.map(|_| HostFact::new("session.closed", at_ms, data));
        let facts = fact.into_iter().collect();
        let (engine, session) = (self.engine.clone(), session.clone());
        let closing = self.engine.shared().tasks.spawn(async move {
            engine.shared().presence.closing(session.as_str());
            let closed = engine.write_logged(Vec::new(), vec![close], facts, |_| {}).await;
            if let Err(error) = closed {
                engine.shared().presence.stays(session.as_str());
                return Err(error);
            }
            tracing::info!(%session, reason, "session closed");
            let held = engine.shared().sessions.close(&session, why);
            engine.shared().presence.closed(session.as_str());
            for ticket in held {
                let Ticket { run, step, attempt } = ticket;
                let reason = format!("session {session} ended: {reason}");
                engine.shared().tell(run, Internal::Unseat { step, attempt, reason });
            }
            Ok(())
        });
        closing.await.map_err(|_| EngineError::Stopping)?
    }

    /// Assigns an operator's seat in a run to a session; returns the epoch of the seat.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, the run has ended, or the session is not of that
    /// operator.
    pub async fn take_seat(
        self,
        caller: &Caller,
        run: RunId,
        operator: String,
        session: SessionId,
    ) -> Result<u32, EngineError> {
        caller.may(Verb::SeatAcquire, run)?;
        let operator = self.engine.shared().registry.name_of(&operator).to_owned();
        caller.grant.check(Verb::SeatAcquire, &[Need::Operator(&operator)])?;
        self.check_seat(&operator, &session)?;
        self.engine.header(run).await?;
        let (by, jti) = (caller.subject.clone(), Some(caller.jti.clone()));
        self.engine.ask(run.num(), ControlAsk::TakeSeat { operator, session, by, jti }).await
    }

    /// Checks that the seats and the delegate of a start are available.
    pub(crate) fn check_seats(self, caller: &Caller, start: &StartRun) -> Result<(), EngineError> {
        for (operator, session) in &start.seats {
            let operator = self.engine.shared().registry.name_of(operator);
            caller.grant.check(Verb::SeatAcquire, &[Need::Operator(operator)])?;
            self.check_seat(operator, session)?;
        }
        if let Some(session) = &start.delegate {
            let operator = self.engine.shared().sessions.operator_of(session);
            let operator = operator.ok_or_else(|| SessionError::NotOpen(session.clone()))?;
            caller.grant.check(Verb::SeatAcquire, &[Need::Operator(&operator)])?;
        }
        Ok(())
    }

    fn check_seat(self, operator: &str, session: &SessionId) -> Result<(), EngineError> {
        match self.engine.shared().sessions.operator_of(session) {
            None => Err(SessionError::NotOpen(session.clone()).into()),
            Some(own) if own == operator => Ok(()),
            Some(own) => {
                let message = format!("seat session {session} as {operator}: it is a {own}");
                Err(wrong_seat(message))
            }
        }
    }

    /// Returns the time when an open session ends, in Unix milliseconds; `None` once it is closed.
    pub fn expiry(self, session: &SessionId) -> Option<u64> {
        self.engine.shared().sessions.expiry(session)
    }

    /// Returns the token of a session as of its last renewal.
    ///
    /// # Errors
    /// Fails when there is no such session, or the store cannot be read.
    pub(crate) async fn newest_token(self, session: &SessionId) -> Result<String, EngineError> {
        let looks = self.look_at(session).await?;
        let claims = self.stored_claims(looks.row.jti).await?;
        self.engine.inner.auth.sign(&claims)
    }

    /// Renews a session's token; it keeps its id, and never ends sooner than before.
    ///
    /// # Errors
    /// Fails when the caller is not a session.
    pub async fn renew_session(self, caller: &Caller, ttl_ms: u64) -> Result<Opened, EngineError> {
        let Some(session) = caller.session.clone() else {
            return Err(wrong_seat("renew a session: use its own token".into()));
        };
        let engine = self.engine.clone();
        // The caller may be gone in the meantime; the store and the memory must agree.
        let renewing = async move { engine.sessions().renew(session, ttl_ms).await };
        let renewed = self.engine.shared().tasks.spawn(renewing).await;
        renewed.map_err(|_| EngineError::Stopping)?
    }

    async fn renew(self, session: SessionId, ttl_ms: u64) -> Result<Opened, EngineError> {
        let sessions = &self.engine.shared().sessions;
        // The token that is stored last is the one with the latest end.
        let renewal = sessions.renewal(&session)?;
        let _held = renewal.lock().await;
        let looks = self.look_at(&session).await?;
        let now_ms = self.engine.shared().clock.now_ms();
        let asked_ms = now_ms + ttl_ms.clamp(1_000, LONGEST_MS);
        let mut claims = self.stored_claims(looks.row.jti).await?;
        // First, so that the sweep does not end a session whose renewal is about to be acknowledged.
        let extended = sessions.extend(&session, asked_ms.min(looks.row.until_ms))?;
        let expires_ms = extended.until_ms;
        claims.iat = now_ms / 1_000;
        claims.nbf = claims.iat;
        claims.exp = expires_ms / 1_000;
        let writes = vec![
            Write::PutToken(token_row(&claims, now_ms, expires_ms)),
            Write::ExtendSession { session: session.to_string(), expires_ms },
        ];
        let checks = vec![Check::TokenLive(claims.jti.clone())];
        if let Err(error) = self.engine.write(checks, writes).await {
            sessions.unextend(&session, extended);
            return Err(error);
        }
        let token = self.engine.inner.auth.sign(&claims)?;
        Ok(Opened { session, token, expires_ms })
    }
}

fn shown(looks: &Looks, clock: &Clock) -> SessionView {
    let Looks { row, connected, open_tasks, unacknowledged, seen_ms } = looks;
    SessionView {
        id: row.id.clone(),
        operator: row.operator.clone(),
        opened_by: row.principal.clone(),
        connected: *connected,
        direct: row.direct,
        open_tasks: *open_tasks,
        unacknowledged: *unacknowledged,
        last_seq: row.last_seq,
        created_at: rfc3339(row.created_ms),
        expires_at: rfc3339(row.expires_ms),
        last_seen_at: seen_ms.map(|seen_ms| rfc3339(clock.wall_of(seen_ms))),
        closed_at: row.closed_ms.map(rfc3339),
        reason: row.reason.clone(),
    }
}
