//! An operator in the host that does as the simulation says: in time, late, wrongly or never.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::oneshot;

use crate::{
    blueprint::Agent,
    middleware::TaskDone,
    operator::{Backend, Composite, Delivery, ModelSource, Reply, Residence, Task, ToolServer},
    protocol::{
        Effect, Failure, FunctionTool, Json, ModelDelta, ModelReply, ModelRequest, ModelStop,
    },
};

/// An attempt that the operator works on.
pub struct Job {
    pub run: u64,
    pub step: u32,
    pub attempt: u32,
    pub tell: oneshot::Sender<Result<(Json, Vec<Effect>), Failure>>,
    cancel: tokio_util::sync::CancellationToken,
    reported: tokio_util::sync::CancellationToken,
}

impl Job {
    /// Returns true if somebody still waits for it.
    pub fn is_live(&self) -> bool {
        !self.cancel.is_cancelled() && !self.reported.is_cancelled() && !self.tell.is_closed()
    }
}

/// The operator `host`.
#[derive(Clone, Default)]
pub struct Worked(Arc<Mutex<Vec<Job>>>);

impl Worked {
    /// The number of attempts in progress.
    pub fn live(&self) -> usize {
        self.0.lock().iter().filter(|job| job.is_live()).count()
    }

    /// The attempts that can be ended, by their place.
    pub fn len(&self) -> usize {
        let mut jobs = self.0.lock();
        jobs.retain(Job::is_live);
        jobs.len()
    }

    /// The runs of the attempts in progress.
    pub fn runs(&self) -> Vec<u64> {
        self.0.lock().iter().filter(|job| job.is_live()).map(|job| job.run).collect()
    }

    /// Takes a job off the list, to end it.
    pub fn take(&self, place: usize) -> Job {
        self.0.lock().remove(place)
    }

    /// Which attempt a job is: its run, step and attempt.
    pub fn attempt(&self, place: usize) -> (u64, u32, u32) {
        let jobs = self.0.lock();
        let job = &jobs[place];
        (job.run, job.step, job.attempt)
    }
}

/// The operator `model`: it calls three tools and counts those that said something, which follows
/// from what it is asked alone.
pub struct Thinker;

#[async_trait]
impl Backend for Thinker {
    fn kind(&self) -> &'static str {
        "thinker"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    fn is_model(&self) -> bool {
        true
    }

    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        task.reporter.delivered(Delivery { worker: "model".into() });
        let asked: ModelRequest = input.decode().expect("a model is asked as one");
        let outputs = asked.items.iter().filter(|item| item["type"] == "function_call_output");
        let said: Vec<&serde_json::Value> = outputs.collect();
        let (items, stop) = if said.is_empty() {
            let call = |name: &str| {
                json!({ "type": "function_call", "id": name, "call_id": format!("call_{name}"),
                    "name": name, "arguments": r#"{"input":"go"}"# })
            };
            (["q", "host", "human"].map(call).to_vec(), ModelStop::ToolCalls)
        } else {
            let good = said.iter().filter(|it| !it["output"].to_string().contains("error")).count();
            let text = format!("{{\"v\":{good}}}");
            let message = json!({ "type": "message", "role": "assistant", "id": "said",
                "content": [{ "type": "output_text", "text": text }] });
            (vec![message], ModelStop::End)
        };
        let reply = ModelReply { model: "thinker".into(), items, stop };
        let output = Json::encode(&reply).expect("a reply is plain data");
        Ok(Reply::Done(TaskDone::new(output)))
    }
}

#[async_trait]
impl Backend for Worked {
    fn kind(&self) -> &'static str {
        "host"
    }

    fn residence(&self) -> Residence {
        Residence::Host
    }

    async fn execute(&self, task: Arc<Task>, _input: Json) -> Result<Reply, Failure> {
        let (tell, told) = oneshot::channel();
        self.0.lock().push(Job {
            run: task.id.run(),
            step: task.id.step(),
            attempt: task.attempt,
            tell,
            cancel: task.cancel.clone(),
            reported: task.reported.clone(),
        });
        task.reporter.delivered(Delivery { worker: "host".into() });
        tokio::select! {
            biased;
            () = task.cancel.cancelled() => Err(Failure::new("canceled", "given up")),
            () = task.reported.cancelled() => Ok(Reply::Parked),
            told = told => match told {
                Ok(Ok((output, effects))) => {
                    Ok(Reply::Done(TaskDone { output, usage: None, effects }))
                }
                Ok(Err(failure)) => Err(failure),
                // Never: only a cancel ends it.
                Err(_) => {
                    task.cancel.cancelled().await;
                    Err(Failure::new("canceled", "given up"))
                }
            },
        }
    }
}

/// An operator that says that any node can do its work, whatever it is: its runs are lent, and must find
/// the way home by themselves.
pub struct Portable(pub Arc<dyn Backend>);

#[async_trait]
impl Backend for Portable {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn residence(&self) -> Residence {
        self.0.residence()
    }

    fn is_portable(&self) -> bool {
        true
    }

    fn requires_worker_binding(&self) -> bool {
        self.0.requires_worker_binding()
    }

    fn requires_tool(&self) -> bool {
        self.0.requires_tool()
    }

    fn timeout(&self) -> Option<Duration> {
        self.0.timeout()
    }

    fn redelivers(&self) -> bool {
        self.0.redelivers()
    }

    fn asks_people(&self) -> bool {
        self.0.asks_people()
    }

    fn is_leased(&self) -> bool {
        self.0.is_leased()
    }

    fn model_source(&self) -> Option<ModelSource> {
        self.0.model_source()
    }

    fn tool_server(&self) -> Option<ToolServer> {
        self.0.tool_server()
    }

    fn holds_session(&self) -> bool {
        self.0.holds_session()
    }

    fn queue<'a>(&'a self, agent: &'a Agent, name: &'a str) -> Option<&'a str> {
        self.0.queue(agent, name)
    }

    fn only_offers(&self) -> bool {
        self.0.only_offers()
    }

    fn composite(&self) -> Option<&Composite> {
        self.0.composite()
    }

    fn is_model(&self) -> bool {
        self.0.is_model()
    }

    async fn list_tools(&self, task: Arc<Task>) -> Result<Vec<FunctionTool>, Failure> {
        self.0.list_tools(task).await
    }

    async fn ask(
        &self,
        request: &Json,
        heard: &(dyn Fn(ModelDelta) + Send + Sync),
    ) -> Result<TaskDone, Failure> {
        self.0.ask(request, heard).await
    }

    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        self.0.execute(task, input).await
    }
}
