//! The requests of a loop's parts.

use serde_json::{Value, json};

use crate::{
    blueprint::Does,
    engine::run::model_loop::{APPROVE, COMPACT, FLUSH, KEEP, OpenLoop, RECALL},
    flow::{
        LoopPart, SetOpts, StateOp, TaskOpts, TaskRequest,
        response::{Begin, Call},
    },
    protocol::{Json, ModelRequest, StepKind},
};

impl OpenLoop {
    pub(crate) fn does(&self, call: &Call) -> Option<Does> {
        self.judge.call(&call.name, &call.arguments).map(|(does, _, _)| does)
    }

    /// Returns the request of the part at an index.
    pub(crate) fn request_of(&self, place: usize) -> Option<TaskRequest> {
        let agent = self.agent.name();
        let own = |kind, name: &str, request| LoopPart {
            kind,
            name: name.to_owned(),
            call_id: None,
            request,
            tool: None,
            model: false,
            allowed: None,
        };
        let model = |request: ModelRequest, kind, name: &str, kept: Value| {
            let given = &self.request.opts;
            let opts = TaskOpts {
                timeout_ms: given.timeout_ms,
                retry: given.retry.clone(),
                operator: Some(self.operator.to_string()),
                session: given.session.clone(),
                ..TaskOpts::default()
            };
            let input = Json::encode(&request).expect("a request is plain data");
            let allowed = self.given.allowed_operators.clone();
            let part = LoopPart { model: true, allowed, ..own(kind, name, kept.into()) };
            TaskRequest { part: Some(Box::new(part)), ..TaskRequest::new(&**agent, input, opts) }
        };
        Some(match self.flow.part(place)? {
            Begin::Ask { turn } => {
                let kept = json!({ "turn": turn });
                model(self.asked(*turn), StepKind::ModelCall, &self.operator, kept)
            }
            Begin::Compact { turn } => {
                let request = ModelRequest {
                    model: self.model().map(str::to_owned),
                    items: self.flow.to_sum_up(),
                    ..ModelRequest::default()
                };
                // Not a part of the answer: it is not shown to a caller that follows the model
                // calls.
                model(request, StepKind::Local, COMPACT, json!({ "turn": turn }))
            }
            Begin::Flush { turn } => {
                let kept = json!({ "turn": turn, "key": self.flow.flush_key(*turn) });
                let part = own(StepKind::Local, FLUSH, kept.into());
                let request = TaskRequest::new(&**agent, Json::null(), TaskOpts::default());
                TaskRequest { part: Some(Box::new(part)), ..request }
            }
            Begin::Recall | Begin::Keep => {
                let is_recall = self.flow.part(place) == Some(&Begin::Recall);
                let name = if is_recall { RECALL } else { KEEP };
                let key = self.flow.settings().conversation.as_ref().map(|it| it.key.clone());
                let part = own(StepKind::Local, name, json!({ "key": key }).into());
                let request = TaskRequest::new(&**agent, Json::null(), TaskOpts::default());
                TaskRequest { part: Some(Box::new(part)), ..request }
            }
            Begin::List { server } => {
                let part = own(StepKind::Local, server, Json::null());
                let request = TaskRequest::new(server, Json::null(), TaskOpts::default());
                TaskRequest { part: Some(Box::new(part)), ..request }
            }
            Begin::Approve(call) => self.approval(call, own(StepKind::Task, APPROVE, Json::null())),
            Begin::Call(call) | Begin::Refuse(call, _) => self.call(call),
        })
    }

    /// Returns the operation that writes a turn to state.
    pub(crate) fn flush_op(&self, turn: u32) -> StateOp {
        let items = self.flow.turn_items(turn);
        let value = json!({ "agent": &**self.agent.name(), "turn": turn, "items": items });
        StateOp::Set { key: self.flow.flush_key(turn), value: value.into(), opts: None }
    }

    /// Returns the operation on the conversation of the session, and its scope.
    pub(crate) fn conversation_op(&self, begin: &Begin) -> Option<(String, StateOp)> {
        let conversation = self.flow.settings().conversation.as_ref()?;
        let key = conversation.key.clone();
        let op = match begin {
            Begin::Recall => StateOp::Get { key },
            _ => StateOp::Set {
                key,
                value: Json::encode(&self.flow.remembered()).expect("items are plain data"),
                opts: Some(Box::new(SetOpts {
                    if_revision: Some(self.flow.recalled_revision()),
                    ..SetOpts::default()
                })),
            },
        };
        Some((conversation.scope.clone(), op))
    }

    /// Returns the request for a person's approval of a call.
    pub(crate) fn approval(&self, call: &Call, part: LoopPart) -> TaskRequest {
        let title = format!("Let {} call {}?", self.agent.name(), call.name);
        let input: Json = json!({
            "title": title, "agent": &**self.agent.name(), "tool": call.name,
            "call_id": call.call_id, "arguments": call.arguments,
        })
        .into();
        let opts = TaskOpts { summary: Some(title), ..TaskOpts::default() };
        let part = LoopPart { request: input.clone(), ..part };
        TaskRequest { part: Some(Box::new(part)), ..TaskRequest::new(APPROVE, input, opts) }
    }

    pub(crate) fn call(&self, call: &Call) -> TaskRequest {
        let found = self.judge.call(&call.name, &call.arguments);
        let (agent, tool, input, timeout_ms) = match found {
            Some((Does::Task { agent, tool }, input, timeout)) => (agent, tool, input, timeout),
            _ => (call.name.clone(), None, call.arguments.clone(), None),
        };
        let opts = TaskOpts {
            timeout_ms,
            summary: Some(format!("{}: {}", self.agent.name(), call.name)),
            ..TaskOpts::default()
        };
        let part = LoopPart {
            kind: StepKind::ToolCall,
            name: call.name.clone(),
            call_id: Some(call.call_id.clone()),
            request: call.arguments.clone(),
            tool,
            model: false,
            allowed: None,
        };
        TaskRequest { part: Some(Box::new(part)), ..TaskRequest::new(agent, input, opts) }
    }

    /// Returns the model of the loop: that of the call, or the agent's.
    fn model(&self) -> Option<&str> {
        self.given.model.as_deref().or(self.agent.agent().model.as_deref())
    }

    /// Returns the request of a model call.
    pub(crate) fn asked(&self, turn: u32) -> ModelRequest {
        let given = self.request.opts.ask.as_deref();
        let mut request = ModelRequest {
            model: match self.flow.downgraded() {
                Some(model) => Some(model.to_owned()),
                None => self.model().map(str::to_owned),
            },
            instructions: self.instructions.clone(),
            items: self.flow.conversation(),
            tools: self.flow.tools().cloned().collect(),
            ..ModelRequest::default()
        };
        if let Some(ask) = given {
            // Otherwise a choice that is forced once would be forced in every turn.
            request.tool_choice = ask.tool_choice.clone().filter(|_| turn == 1);
            request.parallel_tool_calls = ask.parallel_tool_calls;
            request.options = ask.options.clone();
        } else if let Some(schema) = &self.agent.agent().output {
            let format = json!({
                "type": "json_schema", "name": "answer", "schema": schema, "strict": false,
            });
            request.options.insert("text".into(), json!({ "format": format }));
        }
        if let Some(effort) = &self.agent.agent().effort {
            let given = request.options.entry("reasoning").or_insert_with(|| json!({}));
            if let Some(reasoning) = given.as_object_mut() {
                reasoning.entry("effort").or_insert_with(|| effort.as_str().into());
            }
        }
        request
    }
}
