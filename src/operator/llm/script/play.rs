//! Plays a turn of a script as the response of a model.

use std::sync::Arc;

use super::{Script, ScriptedTurn, Turns, chosen, is_piece, parse, read, written};
use crate::{
    operator::{
        Delivery,
        llm::{
            asker::Asker,
            provider::{Hearing, Llm},
            wire::Wire,
        },
    },
    protocol::{Failure, Json, ModelRequest, failure::kind, sse::Cutter},
};

impl Script {
    /// Answers a conversation.
    pub(in crate::operator::llm) async fn play(
        &self,
        llm: &Llm,
        request: &ModelRequest,
        input: &Json,
        hearing: &mut Hearing<'_>,
    ) -> Result<(), Failure> {
        hearing.asker.reporter.delivered(Delivery { worker: "script".to_owned() });
        let turn = self.turn(llm, request, input, hearing.asker).await?;
        let attempt = usize::try_from(hearing.asker.attempt).unwrap_or(usize::MAX);
        if let Some(fail) = turn.fail.get(attempt - 1) {
            return Err(fail.failure());
        }
        let mut answer = Wire::Responses.answer();
        let mut cutter = Cutter::default();
        for (number, event) in turn.events().into_iter().enumerate() {
            if let (Some(pause), true) = (self.pause, number > 0 && is_piece(&event)) {
                let ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
                llm.clock.sleep(ms.max(1)).await;
            }
            let bytes = written(&event);
            let draft = &mut hearing.draft;
            let fed = cutter.feed(bytes.as_bytes(), |event| answer.event(&event, draft));
            if self.pause.is_some() {
                hearing.say();
            }
            fed.map_err(|wrong| wrong.failure())?;
        }
        hearing.say();
        Ok(())
    }

    /// Returns the turn for a conversation.
    async fn turn(
        &self,
        llm: &Llm,
        request: &ModelRequest,
        input: &Json,
        asker: &Asker<'_>,
    ) -> Result<ScriptedTurn, Failure> {
        let Some(path) = self.turns.clone() else {
            let Some(task) = asker.task.filter(|task| task.agent.has_fn) else {
                let message = format!(
                    "operator {} has no `turns`, and agent {} has no `fn`",
                    asker.operator, asker.agent
                );
                return Err(Failure::new(kind::REFUSED, message));
            };
            let said = (llm.lua)(Arc::clone(task), input.clone()).await?;
            return parse(said.to_value());
        };
        let failed = |why: String| Failure::new(kind::OPERATOR_UNAVAILABLE, why);
        let turns = match read(&path).map_err(failed)? {
            Turns::All(turns) => turns,
            Turns::Each(mut agents) => {
                let own = agents.remove(asker.agent).or_else(|| agents.remove("*"));
                own.ok_or_else(|| failed(format!("the script has no agent {}", asker.agent)))?
            }
        };
        let turns: Vec<ScriptedTurn> = turns.into_iter().map(parse).collect::<Result<_, _>>()?;
        chosen(turns, request).map_err(|number| {
            let agent = asker.agent;
            Failure::new(kind::MODEL, format!("the script has no turn {number} for {agent}"))
        })
    }
}
