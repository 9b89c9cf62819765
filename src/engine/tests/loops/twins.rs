//! The same conversations through the loop of an agent and through a loop of one's own.

use async_trait::async_trait;

use super::*;
use crate::{
    journal::Chain,
    protocol::{ChainStep, FunctionTool, ModelDelta, ModelReply, StepState},
    respond::multi_step::{
        Chains, ExecutorError, Model, MultiStepStore as _, NewResponse, RequestContext,
        ResponseLoop, ToolError, ToolExecutor, ToolKind, ToolLoop, ToolSchema, run_response_loop,
    },
};

/// A step of a chain: its kind, the call, its end, and the place of the step before it.
type Link = (StepKind, Option<String>, StepState, Option<usize>);

#[async_trait]
impl Model for Scripted {
    async fn call(
        &self,
        request: &Value,
        _: &(dyn Fn(ModelDelta) + Send + Sync),
    ) -> Result<Value, ExecutorError> {
        let request: ModelRequest = serde_json::from_value(request.clone()).unwrap();
        self.asked.lock().push(request.clone());
        let mute = |_| ExecutorError::ExecutionError("the script says so".into());
        let (items, stop) = self.answer(&request).map_err(mute)?;
        let reply = ModelReply { model: "scripted-1".into(), items, stop };
        Ok(serde_json::to_value(&reply).unwrap())
    }
}

/// The tools of the agent, for the other loop.
struct Tools(Vec<FunctionTool>);

#[async_trait]
impl ToolExecutor for Tools {
    async fn tools(&self, _: &RequestContext) -> Vec<ToolSchema> {
        let schema = |tool: &FunctionTool| ToolSchema {
            name: tool.name.clone(),
            description: tool.description.clone().unwrap_or_default(),
            parameters: tool.parameters.clone(),
            strict: false,
            kind: ToolKind::Http,
        };
        self.0.iter().map(schema).collect()
    }

    async fn execute(
        &self,
        name: &str,
        _: &str,
        arguments: &Value,
        _: &RequestContext,
    ) -> Result<Value, ToolError> {
        match name {
            "add" => Ok(json!(arguments["a"].as_i64().unwrap() + arguments["b"].as_i64().unwrap())),
            other => Err(ToolError::ExecutionError(format!("no {other}"))),
        }
    }
}

const TOOLS: &str = r#"tools = {
    { name = "add", description = "Adds.", input = s.object { a = s.integer, b = s.integer },
      fn = function(input) return input.a + input.b end },
    { name = "bad", description = "Fails.", input = s.object {},
      fn = function() error("no") end },
}"#;

/// Runs a conversation through the agent: its chain, the text at its end, what the model was asked.
async fn by_agent(script: &Value) -> (Vec<Link>, Option<String>, Vec<ModelRequest>) {
    let loops = Loops::new();
    let run = loops.begin(script, TOOLS, "").await;
    let view = loops.ended(run).await;
    let text = view.output.map(|it| it.to_value().as_str().unwrap().to_owned());
    let mut chain = Chain::full();
    loops.entries(run).iter().for_each(|entry| chain.apply(entry).unwrap());
    let parts: Vec<_> = chain.steps().iter().filter(|it| it.scheduled.parent == Some(1)).collect();
    let place = |number| parts.iter().position(|it| it.scheduled.step == number);
    let link = |it: &&crate::journal::Step| {
        let call = it.scheduled.call_id.clone();
        (it.scheduled.kind, call, it.state, it.scheduled.prev.and_then(place))
    };
    (parts.iter().map(link).collect(), text, loops.asked())
}

/// Runs it through `run_response_loop`, from the request that the agent's model was asked first.
async fn by_loop(request: &ModelRequest) -> (Vec<Link>, Option<String>, Vec<ModelRequest>) {
    let chains = Chains::in_memory(ToolLoop::default());
    let tools = Tools(request.tools.clone());
    let model = Scripted { asked: Arc::default(), gate: Arc::new(tokio::sync::Semaphore::new(0)) };
    let new = NewResponse { request: Json::encode(request).unwrap(), principal: "test".into() };
    let id = chains.begin(new).await.unwrap();
    let context = RequestContext::new();
    let answer = run_response_loop(ResponseLoop::new(&chains, &tools, &model, &context), &id).await;
    let text = answer.ok().map(|it| {
        let items = it["items"].as_array().unwrap();
        items.last().unwrap()["content"][0]["text"].as_str().unwrap().to_owned()
    });
    let steps: Vec<ChainStep> = chains.list_chain(&id, None).await.unwrap();
    let mut links = Vec::new();
    for step in &steps {
        let asked = chains.descriptor_of(&step.id).await.unwrap().unwrap();
        let prev = step.prev_step_id.as_ref();
        let prev = prev.and_then(|prev| steps.iter().position(|it| it.id == *prev));
        links.push((step.kind, asked.call_id().map(str::to_owned), step.state, prev));
    }
    let asked = model.asked.lock().clone();
    (links, text, asked)
}

/// The part that is the same in both conversations although the words of a failure differ.
fn shape(request: &ModelRequest) -> Vec<(Value, Value)> {
    request.items.iter().map(|it| (it["type"].clone(), it["call_id"].clone())).collect()
}

#[tokio::test]
async fn a_conversation_has_the_same_chain_through_both_loops() {
    let add = |a: i64, b: i64| json!(["add", { "a": a, "b": b }]);
    let conversations = [
        json!(["done"]),
        json!([[add(1, 2), add(3, 4)], "$seen"]),
        json!([[add(1, 2)], [add(3, 4), add(5, 6)], "$seen"]),
        json!([[["bad", {}], add(1, 2)], "it failed"]),
        json!([[["gone", {}]], [["add", "{"], ["add", { "a": "x", "b": 1 }]], "as they were"]),
        json!([[add(1, 2)], { "fail": "model" }]),
    ];
    for script in conversations {
        let (one, text, asked) = by_agent(&script).await;
        let (other, said, heard) = by_loop(&asked[0]).await;
        assert_eq!(one, other, "{script}");
        assert_eq!(text, said, "{script}");
        assert!(!one.is_empty());
        let shapes = |asked: &[ModelRequest]| asked.iter().map(shape).collect::<Vec<_>>();
        assert_eq!(shapes(&asked), shapes(&heard), "{script}");
        if one.iter().all(|(_, _, state, _)| *state == StepState::Completed) {
            assert_eq!(asked.last().unwrap().items, heard.last().unwrap().items, "{script}");
        }
    }
}
