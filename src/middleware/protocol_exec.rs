//! An exec middleware of the protocol, as a layer of a host.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use serde_json::json;

use super::{
    Dispatched, ExecCall, ExecLayer, ExecNext, PROGRAMS, message_of, protocol_layer::answer, taken,
    value_of,
};
use crate::protocol::{
    Content, EnvError, ExitReason, Failure, OperatorError, OperatorInput, OperatorOutput,
    TriggerType,
    environment::EnvironmentSpec,
    failure::kind,
    middleware::{ExecMiddleware, ExecNext as ProtocolNext},
};

/// An exec middleware that is written against the protocol alone, around the programs of a host. The message is
/// the program with its arguments, as a JSON list; the metadata has the names of its environment variables. It may
/// change the arguments, answer itself, change the answer, or refuse; what an agent's `environment` says is for
/// the host, and the specification is empty.
///
/// Around operators of other kinds, which [`ProtocolExec::around`] names, the message is the input of the operator,
/// which it may change too.
pub struct ProtocolExec {
    name: String,
    kinds: Vec<String>,
    middleware: Arc<dyn ExecMiddleware>,
}

impl ProtocolExec {
    /// A layer under a name, which logs use.
    pub fn new(name: impl Into<String>, middleware: Arc<dyn ExecMiddleware>) -> Self {
        Self { name: name.into(), kinds: vec![PROGRAMS.to_owned()], middleware }
    }

    /// The same, around operators of these kinds: `process` for programs, `lua`, `llm`, `custom` for
    /// operators in code.
    #[must_use]
    pub fn around<K: Into<String>>(self, kinds: impl IntoIterator<Item = K>) -> Self {
        Self { kinds: kinds.into_iter().map(Into::into).collect(), ..self }
    }
}

#[async_trait]
impl ExecLayer for ProtocolExec {
    fn name(&self) -> &str {
        &self.name
    }

    fn stands_around(&self, kind: &str) -> bool {
        self.kinds.iter().any(|it| it == kind)
    }

    async fn exec(&self, call: ExecCall, next: ExecNext<'_>) -> Result<Dispatched, Failure> {
        let message = match call.kind {
            PROGRAMS => {
                let words: Vec<&str> =
                    std::iter::once(&call.program).chain(&call.args).map(String::as_str).collect();
                Content::text(json!(words).to_string())
            }
            _ => message_of(&call.input),
        };
        let metadata = json!({ "moonswarm": {
            "run": call.run, "task": call.task, "attempt": call.attempt,
            "agent": &*call.agent, "operator": &*call.operator, "kind": call.kind,
            "env": call.env,
        }});
        let input = OperatorInput::new(message, TriggerType::Task).with_metadata(metadata);
        let rest = Rest { call, next, passed: AtomicBool::new(false), came: Mutex::default() };
        let answered = self.middleware.run(input, &EnvironmentSpec::default(), &rest).await;
        let came = rest.came.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (came, answered) {
            (Some((Ok(Dispatched::Parked), _)), _) => Ok(Dispatched::Parked),
            // What it leaves as it was keeps what the protocol has no words for.
            (Some((Ok(came), said)), Ok(answer)) if said == Ok(answer.clone()) => Ok(came),
            (Some((Err(failure), said)), Err(error)) if said == Err(error.to_string()) => {
                Err(failure)
            }
            (_, Ok(answer)) => Ok(match taken(answer, false) {
                Ok(done) => Dispatched::Done(done),
                Err(short) => Dispatched::Short(short),
            }),
            (_, Err(error)) => Err(Failure::new(kind::REFUSED, error.to_string())),
        }
    }
}

/// The outcome of a program, and the outcome that the middleware received.
type Came = (Result<Dispatched, Failure>, Result<OperatorOutput, String>);

/// The rest of the stack, as a middleware of the protocol passes on to it.
struct Rest<'a> {
    call: ExecCall,
    next: ExecNext<'a>,
    /// True from when a call is passed on, whether or not it comes to an end.
    passed: AtomicBool,
    came: Mutex<Option<Came>>,
}

#[async_trait]
impl ProtocolNext for Rest<'_> {
    async fn run(
        &self,
        input: OperatorInput,
        _: &EnvironmentSpec,
    ) -> Result<OperatorOutput, EnvError> {
        if self.call.kind != PROGRAMS {
            let changed = input.message != message_of(&self.call.input);
            let given = if changed { value_of(&input.message) } else { self.call.input.clone() };
            return self.pass(ExecCall { input: given, ..self.call.clone() }).await;
        }
        let words: Vec<String> =
            input.message.as_text().and_then(|text| serde_json::from_str(text).ok()).ok_or_else(
                || EnvError::ProvisionFailed("the message is no list of words".into()),
            )?;
        let mut words = words.into_iter();
        let program = words.next().unwrap_or_default();
        if program != self.call.program {
            let message = "a layer may not put another program in its place".to_owned();
            return Err(EnvError::IsolationViolation(message));
        }
        self.pass(ExecCall { args: words.collect(), ..self.call.clone() }).await
    }
}

impl Rest<'_> {
    /// Passes a call on, and keeps what came of it.
    async fn pass(&self, call: ExecCall) -> Result<OperatorOutput, EnvError> {
        if self.passed.swap(true, Ordering::Relaxed) {
            return Err(EnvError::ProvisionFailed("a program is passed on once".to_owned()));
        }
        let came = self.next.run(call).await;
        let said = match &came {
            Ok(Dispatched::Parked) => {
                Ok(OperatorOutput::new(Content::text(""), ExitReason::custom("parked")))
            }
            Ok(Dispatched::Done(done)) => {
                let (usage, effects) = (done.usage.clone(), done.effects.clone());
                Ok(answer(message_of(&done.output), ExitReason::Complete, usage, effects))
            }
            Ok(Dispatched::Short(short)) => {
                let text = Content::text(&*short.failure.message);
                let (usage, effects) = (short.usage.clone(), short.effects.clone());
                Ok(answer(text, ExitReason::Error, usage, effects))
            }
            Err(failure) => Err(failure.message.clone()),
        };
        let given = match said.clone() {
            Ok(output) => Ok(output),
            Err(message) => Err(EnvError::OperatorError(OperatorError::NonRetryable(message))),
        };
        let known = said.map_err(|_| match &given {
            Err(error) => error.to_string(),
            Ok(_) => String::new(),
        });
        *self.came.lock().unwrap_or_else(PoisonError::into_inner) = Some((came, known));
        given
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::FutureExt as _;

    use super::*;
    use crate::{
        journal::Usage,
        middleware::{ExecStack, ExecTerminal, TaskDone},
        protocol::{Json, RunId, TaskId},
    };

    enum Own {
        Adds,
        Answers,
        Refuses,
        Swaps,
        Nothing,
        Changes,
        AtOnce,
        GivesUp,
    }

    #[async_trait]
    impl ExecMiddleware for Own {
        async fn run(
            &self,
            mut input: OperatorInput,
            spec: &EnvironmentSpec,
            next: &dyn ProtocolNext,
        ) -> Result<OperatorOutput, EnvError> {
            let words: Vec<String> =
                serde_json::from_str(input.message.as_text().unwrap()).expect("a list of words");
            match self {
                Self::Adds => {
                    let words = [words, vec!["--more".to_owned()]].concat();
                    input.message = Content::text(json!(words).to_string());
                    next.run(input, spec).await
                }
                Self::Answers => {
                    Ok(OperatorOutput::new(Content::text("kept"), ExitReason::Complete))
                }
                Self::Refuses => Err(EnvError::IsolationViolation("no programs".into())),
                Self::Swaps => {
                    input.message = Content::text(json!(["rm"]).to_string());
                    next.run(input, spec).await
                }
                Self::Nothing => next.run(input, spec).await,
                Self::Changes => {
                    let answer = next.run(input, spec).await?;
                    Ok(OperatorOutput { message: Content::text("changed"), ..answer })
                }
                Self::AtOnce => {
                    let (one, other) =
                        tokio::join!(next.run(input.clone(), spec), next.run(input, spec));
                    assert!(other.unwrap_err().to_string().contains("passed on once"));
                    one
                }
                Self::GivesUp => {
                    assert!(next.run(input.clone(), spec).now_or_never().is_none(), "it waits");
                    next.run(input, spec).await
                }
            }
        }
    }

    /// Says its arguments, after it has waited a little; without any it fails.
    #[derive(Default)]
    struct Program {
        starts: AtomicUsize,
    }

    #[async_trait]
    impl ExecTerminal for Program {
        async fn exec(&self, call: ExecCall) -> Result<Dispatched, Failure> {
            self.starts.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            if call.args.is_empty() {
                return Err(Failure::new(kind::PROCESS, "no arguments"));
            }
            Ok(Dispatched::Done(TaskDone::new(Json::from(json!(call.args)))))
        }
    }

    async fn through(own: Own, args: &[&str]) -> Result<String, (String, String)> {
        around(own, args, &Program::default()).await
    }

    async fn around(
        own: Own,
        args: &[&str],
        program: &Program,
    ) -> Result<String, (String, String)> {
        match stack(own).run(call(args), program).await {
            Ok(Dispatched::Done(done)) => Ok(done.output.as_str().to_owned()),
            Ok(other) => panic!("{other:?}"),
            Err(failure) => Err((failure.kind, failure.message)),
        }
    }

    fn stack(own: Own) -> ExecStack {
        ExecStack::builder().guard(ProtocolExec::new("own", Arc::new(own))).build()
    }

    fn call(args: &[&str]) -> ExecCall {
        ExecCall {
            run: RunId::new(1, 0),
            task: TaskId::new(1, 1, 0),
            attempt: 1,
            agent: "a".into(),
            operator: "process".into(),
            kind: PROGRAMS,
            input: Json::null(),
            program: "ls".into(),
            args: args.iter().map(|it| (*it).to_owned()).collect(),
            env: Vec::new(),
        }
    }

    /// Reports what it used.
    struct Costs;

    #[async_trait]
    impl ExecTerminal for Costs {
        async fn exec(&self, _: ExecCall) -> Result<Dispatched, Failure> {
            let usage = Usage { input_tokens: Some(7), ..Usage::default() };
            Ok(Dispatched::Done(TaskDone { usage: Some(usage), ..TaskDone::new(Json::null()) }))
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_changed_keeps_its_usage() {
        let outcome = stack(Own::Changes).run(call(&["x"]), &Costs).await;
        let Ok(Dispatched::Done(done)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(done.output.as_str(), "\"changed\"");
        assert_eq!(done.usage.unwrap().input_tokens, Some(7));
    }

    #[tokio::test]
    async fn an_exec_middleware_of_the_protocol_stands_around_programs() {
        assert_eq!(through(Own::Nothing, &["x"]).await.unwrap(), r#"["x"]"#);
        assert_eq!(through(Own::Adds, &["x"]).await.unwrap(), r#"["x","--more"]"#);
        assert_eq!(through(Own::Answers, &["x"]).await.unwrap(), "\"kept\"");
        let (kind, message) = through(Own::Refuses, &["x"]).await.unwrap_err();
        assert!(kind == kind::REFUSED && message.contains("no programs"), "{kind} {message}");
        let (_, message) = through(Own::Swaps, &["x"]).await.unwrap_err();
        assert!(message.contains("another program"), "{message}");
        let (kind, message) = through(Own::Nothing, &[]).await.unwrap_err();
        assert_eq!((kind.as_str(), message.as_str()), (kind::PROCESS, "no arguments"));
    }

    #[tokio::test]
    async fn a_program_is_started_once_also_by_calls_at_once_and_after_one_that_was_dropped() {
        let program = Program::default();
        assert_eq!(around(Own::AtOnce, &["x"], &program).await.unwrap(), r#"["x"]"#);
        assert_eq!(program.starts.into_inner(), 1);
        let program = Program::default();
        let (kind, message) = around(Own::GivesUp, &["x"], &program).await.unwrap_err();
        assert!(kind == kind::REFUSED && message.contains("passed on once"), "{kind} {message}");
        assert_eq!(program.starts.into_inner(), 1);
    }
}
