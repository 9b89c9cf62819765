//! The methods of a session, each with its verb.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    calls::TasksParams,
    rpc::{Answer, Call},
    work::Work,
};
use crate::{
    api::{
        app::Api,
        body::read_json,
        events::broken,
        params,
        runs::{self, StartBody},
        sessions::{RenewBody, RenewedView, SeatTaken, ttl},
    },
    door::{Code, Problem},
    engine::{
        Caller, EngineError, EventView, IdempotencyKey, PageMemory, SpawnPage, WaitFor, rfc3339,
    },
    protocol::{Json, RunId, SessionId},
    token::Verb,
};

/// The maximum number of runs that a connection watches.
const WATCHED: usize = 64;

/// Every method with its verb.
pub(super) const METHODS: &[(&str, Verb)] = &[
    ("ack", Verb::SessionRead),
    ("session/renew", Verb::SessionRead),
    ("task/accept", Verb::WorkerPrompt),
    ("task/result", Verb::WorkerResult),
    ("task/decline", Verb::WorkerResult),
    ("task/progress", Verb::WorkerProgress),
    ("task/escalate", Verb::TaskEscalate),
    ("tasks/list", Verb::TaskList),
    ("run/start", Verb::RunStart),
    ("run/get", Verb::RunRead),
    ("run/cancel", Verb::RunCancel),
    ("run/signal", Verb::RunSignal),
    ("run/subscribe", Verb::RunRead),
    ("seat/acquire", Verb::SeatAcquire),
];

/// An event of a run that a connection watches.
pub(super) struct Watched {
    pub(super) text: String,
    /// Its share of the memory, until it is sent.
    _held: Option<Arc<PageMemory>>,
}

/// The notification about a watched run.
#[derive(Serialize)]
struct EventNotice<'a> {
    run: RunId,
    event: &'a EventView,
}

/// The runs that a connection watches.
#[derive(Clone)]
pub(super) struct Watch {
    events: mpsc::Sender<Watched>,
    gone: CancellationToken,
    count: Arc<AtomicUsize>,
}

impl Watch {
    /// Creates an empty watch; events go to `events` until `gone`.
    pub(super) fn new(events: mpsc::Sender<Watched>, gone: CancellationToken) -> Self {
        Self { events, gone, count: Arc::default() }
    }

    /// Stops watching when the connection is over.
    pub(super) fn stop(&self) {
        self.gone.cancel();
    }
}

/// Returns a call, which begins when it is first polled; [`Order`](super::order::Order) decides when.
pub(super) fn begin(
    api: &Api,
    caller: &Caller,
    watch: &Watch,
    call: Call,
) -> BoxFuture<'static, Answer> {
    let Call { id, method, params } = call;
    let asking = Asking { api: api.clone(), caller: caller.clone(), watch: watch.clone(), params };
    async move {
        let result = match (asking.permit(&method), method.as_str()) {
            (Err(problem), _) => Err(problem),
            (Ok(()), "session/renew") => match asking.renew().await {
                Err(problem) => Err(problem),
                Ok((result, token)) => {
                    return Answer::new(id, Ok(result)).with_token(token);
                }
            },
            (Ok(()), "tasks/list") => match asking.tasks().await {
                Err(problem) => Err(problem),
                Ok((result, held)) => return Answer::new(id, Ok(result)).holding(held),
            },
            (Ok(()), method) => asking.serve(method).await,
        };
        Answer::new(id, result)
    }
    .boxed()
}

/// A call in progress.
struct Asking {
    api: Api,
    caller: Caller,
    watch: Watch,
    params: Json,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ack {
    seq: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GetRun {
    run: String,
    wait: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelRun {
    run: String,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignalRun {
    run: String,
    name: String,
    payload: Option<Json>,
    idempotency_key: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Subscribe {
    run: String,
    #[serde(default)]
    starting_after: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Acquire {
    run: String,
    operator: Option<String>,
}

impl Asking {
    fn permit(&self, method: &str) -> Result<(), Problem> {
        let row = METHODS.iter().find(|(name, _)| *name == method);
        let Some((_, verb)) = row else {
            let shown: String = method.chars().take(80).collect();
            let names: Vec<&str> = METHODS.iter().map(|(name, _)| *name).collect();
            let detail = format!("there is no method {shown:?}; there are: {}", names.join(", "));
            return Err(Problem::new(Code::UnknownMethod, detail));
        };
        Ok(self.caller.grant.check(*verb, &[]).map_err(EngineError::Refused)?)
    }

    fn read<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        read_json(self.params.as_str().as_bytes())
    }

    async fn serve(&self, method: &str) -> Result<Json, Problem> {
        match method {
            "ack" => self.ack().await,
            "task/accept" => {
                let deadline = self.work().accept().await?;
                Ok(json(&serde_json::json!({ "deadline": deadline })))
            }
            "task/result" => {
                let first = self.work().report(None).await?;
                Ok(json(&serde_json::json!({ "accepted": true, "repeated": !first })))
            }
            "task/decline" => {
                let first = self.work().decline(None).await?;
                Ok(json(&serde_json::json!({ "declined": true, "repeated": !first })))
            }
            "task/progress" => {
                self.work().progress().await?;
                Ok(Json::from_trusted("{}"))
            }
            "task/escalate" => {
                self.work().escalate().await?;
                Ok(json(&serde_json::json!({ "waiting": true })))
            }
            "run/start" => self.start().await,
            "run/get" => self.get().await,
            "run/cancel" => self.cancel().await,
            "run/signal" => self.signal().await,
            "run/subscribe" => self.subscribe().await,
            "seat/acquire" => self.acquire().await,
            other => Err(Problem::new(Code::UnknownMethod, format!("there is no method {other}"))),
        }
    }

    fn session(&self) -> Result<SessionId, Problem> {
        let detail = "this connection's token speaks for no session";
        self.caller.session.clone().ok_or_else(|| Problem::new(Code::WrongSeat, detail))
    }

    fn key(
        &self,
        key: Option<String>,
        route: &'static str,
    ) -> Result<Option<IdempotencyKey>, Problem> {
        let Some(key) = params::framed_key(key)? else { return Ok(None) };
        let body = blake3::hash(self.params.as_str().as_bytes()).to_hex().to_string();
        Ok(Some(IdempotencyKey { route, key, body }))
    }

    async fn ack(&self) -> Result<Json, Problem> {
        let Ack { seq } = self.read()?;
        self.api.engine.sessions().acknowledge(&self.caller, &self.session()?, seq).await?;
        Ok(json(&serde_json::json!({ "acked": seq })))
    }

    fn work(&self) -> Work<'_> {
        Work { api: &self.api, caller: self.caller.clone(), params: self.params.as_str() }
    }

    async fn tasks(&self) -> Result<(Json, PageMemory), Problem> {
        let ask = self.read::<TasksParams>()?.read()?;
        let SpawnPage { page, held } =
            self.api.engine.sessions().session_tasks(&self.caller, ask).await?;
        Ok((json(&page), held))
    }

    async fn start(&self) -> Result<Json, Problem> {
        #[derive(Deserialize)]
        struct Keyed {
            idempotency_key: Option<String>,
        }
        let Keyed { idempotency_key } = self.read()?;
        let mut body = self.params.to_value();
        if let Some(fields) = body.as_object_mut() {
            fields.remove("idempotency_key");
        }
        let (start, wait) = read_json::<StartBody>(body.to_string().as_bytes())?.into_start()?;
        let key = self.key(idempotency_key, "run/start")?;
        let engine = &self.api.engine;
        let made = match wait {
            Some(wait) => {
                let patience = self.patience(wait);
                engine.start_and_wait(&self.caller, start, key, WaitFor::Ended, patience).await?
            }
            None => engine.start_seen(&self.caller, start, key).await?,
        };
        Ok(json(&made))
    }

    async fn patience(&self, wait: Duration) {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.api.stopping.cancelled() => {}
        }
    }

    fn run(run: &str) -> Result<RunId, Problem> {
        params::id(run).map_err(|problem| problem.at("$.run"))
    }

    async fn get(&self) -> Result<Json, Problem> {
        let GetRun { run, wait } = self.read()?;
        let run = Self::run(&run)?;
        let wait = params::wait(wait.as_deref())
            .map_err(|detail| Problem::new(Code::InvalidBody, detail).at("$.wait"))?;
        let view = match wait {
            Some(wait) => runs::watched(&self.api, &self.caller, run, WaitFor::Ended, wait).await?,
            None => self.api.engine.run(&self.caller, run).await?,
        };
        Ok(json(&view))
    }

    async fn cancel(&self) -> Result<Json, Problem> {
        let CancelRun { run, reason } = self.read()?;
        let reason = reason.unwrap_or_else(|| format!("canceled by {}", self.caller.subject));
        Ok(json(&self.api.engine.cancel(&self.caller, Self::run(&run)?, reason, None).await?))
    }

    async fn signal(&self) -> Result<Json, Problem> {
        let SignalRun { run, name, payload, idempotency_key } = self.read()?;
        let payload = payload.unwrap_or_else(|| Json::from_trusted("true"));
        let key = self.key(idempotency_key, "run/signal")?;
        let run = Self::run(&run)?;
        self.api.engine.signal(&self.caller, run, name, payload, key).await?;
        Ok(json(&serde_json::json!({ "queued": true })))
    }

    async fn subscribe(&self) -> Result<Json, Problem> {
        let Subscribe { run, starting_after } = self.read()?;
        let run = Self::run(&run)?;
        let mut events = self.api.engine.events(&self.caller, run, starting_after).await?;
        let Watch { events: to, gone, count } = self.watch.clone();
        if count.fetch_add(1, Ordering::Relaxed) >= WATCHED {
            count.fetch_sub(1, Ordering::Relaxed);
            let detail = format!("a connection watches at most {WATCHED} runs");
            return Err(Problem::new(Code::TooManySubscriptions, detail).retry_after(1));
        }
        self.api.tasks.spawn(async move {
            let forward = async {
                // Pulled one by one: a slow reader holds back no more than a bounded queue.
                loop {
                    let (event, is_last) = match events.next().await {
                        Ok(None) => return,
                        Ok(Some(event)) => (event, false),
                        Err(error) => (broken(error), true),
                    };
                    let said = EventNotice { run, event: &event };
                    let text = serde_json::to_string(&said).expect("an event is plain data");
                    let said = Watched { text, _held: events.held() };
                    if to.send(said).await.is_err() || is_last {
                        return;
                    }
                }
            };
            tokio::select! {
                () = forward => {}
                () = gone.cancelled() => {}
            }
            count.fetch_sub(1, Ordering::Relaxed);
        });
        Ok(json(&serde_json::json!({ "run": run, "starting_after": starting_after })))
    }

    async fn acquire(&self) -> Result<Json, Problem> {
        let Acquire { run, operator } = self.read()?;
        let session = self.session()?;
        let id = Self::run(&run)?;
        let own = match operator {
            Some(operator) => operator,
            None => self.api.engine.sessions().get(&self.caller, &session).await?.operator,
        };
        let engine = &self.api.engine;
        let epoch =
            engine.sessions().take_seat(&self.caller, id, own.clone(), session.clone()).await?;
        Ok(json(&SeatTaken::new(run, own, session.0, epoch)))
    }

    async fn renew(&self) -> Result<(Json, String), Problem> {
        let RenewBody { ttl: asked } = self.read()?;
        let renewed =
            self.api.engine.sessions().renew_session(&self.caller, ttl(asked.as_deref())?).await?;
        let expires_at = rfc3339(renewed.expires_ms);
        let view = RenewedView { token: renewed.token.clone(), expires_at };
        Ok((json(&view), renewed.token))
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> Json {
    Json::encode(value).expect("answers are plain data")
}
