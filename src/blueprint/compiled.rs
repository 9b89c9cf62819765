//! A blueprint that can be run: its definition with every schema and template compiled.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Map, Value};

use super::{
    Agent, Bundle, CompiledLoop, Definition, Schema, SchemaError, TaskSlots, TemplateError,
    Templates, Violation, default_prompt,
};
use crate::protocol::{Failure, Json, failure::kind};

/// One version of a blueprint.
pub struct Blueprint {
    bundle: Bundle,
    definition: Definition,
    templates: Templates,
    input: Schema,
    output: Schema,
    agents: BTreeMap<String, Arc<CompiledAgent>>,
}

/// An agent with its schemas compiled.
#[derive(Debug)]
pub struct CompiledAgent {
    name: Arc<str>,
    operator: Arc<str>,
    agent: Arc<Agent>,
    input: Schema,
    output: Schema,
    model_loop: Option<Arc<CompiledLoop>>,
}

/// The values that the templates of a task see.
#[derive(Debug, Clone, Copy)]
pub struct Slots<'a> {
    /// The task's input.
    pub input: &'a Json,
    /// The run's input.
    pub run_input: &'a Json,
    /// The run's id.
    pub run_id: &'a str,
    /// The attempt, from 1.
    pub attempt: u32,
}

/// The rendered prompts of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The system prompt, if the agent has one.
    pub system: Option<String>,
    /// The prompt.
    pub prompt: String,
}

impl Blueprint {
    /// Compiles a checked definition.
    ///
    /// # Errors
    /// Fails when a schema does not compile, which `check` finds before.
    pub fn compile(bundle: Bundle, definition: Definition) -> Result<Self, SchemaError> {
        let schema = |document: &Option<Json>, closed| match document {
            None => Ok(Schema::any()),
            Some(document) => Schema::compile(document, closed),
        };
        let mut agents = BTreeMap::new();
        for (name, agent) in &definition.agents {
            let declared = agent.model_loop.as_deref();
            let model_loop = declared.map(|it| CompiledLoop::compile(name, it, &definition));
            let compiled = CompiledAgent {
                name: Arc::from(name.as_str()),
                operator: Arc::from(agent.operator.as_str()),
                input: schema(&agent.input, true)?,
                output: schema(&agent.output, false)?,
                agent: Arc::new(agent.clone()),
                model_loop: model_loop.transpose()?.map(Arc::new),
            };
            agents.insert(name.clone(), Arc::new(compiled));
            for (tool, agent) in declared.iter().flat_map(|it| CompiledLoop::stand_ins(name, it)) {
                agents.insert(tool.clone(), Arc::new(CompiledAgent::standing_for(&tool, agent)));
            }
        }
        Ok(Self {
            templates: Templates::new(&bundle),
            input: schema(&definition.input, true)?,
            output: schema(&definition.output, false)?,
            agents,
            bundle,
            definition,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.definition.name
    }

    /// The hash of its bundle, in hex.
    pub fn hash(&self) -> &str {
        self.bundle.hash()
    }

    /// `name@hash`.
    pub fn version(&self) -> String {
        format!("{}@{}", self.name(), self.hash())
    }

    /// Its source files.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// Returns the declarations.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// The schema of its input.
    pub fn input(&self) -> &Schema {
        &self.input
    }

    /// The schema of its output.
    pub fn output(&self) -> &Schema {
        &self.output
    }

    /// An agent by its name.
    pub fn agent(&self, name: &str) -> Option<&Arc<CompiledAgent>> {
        self.agents.get(name)
    }

    /// The names of its agents, with the tools of its models.
    pub fn agent_names(&self) -> impl Iterator<Item = &str> {
        self.agents.keys().map(String::as_str)
    }

    /// Returns the message for an agent that it does not declare.
    pub fn unknown_agent(&self, name: &str) -> String {
        let names: Vec<&str> = self.definition.agents.keys().map(String::as_str).collect();
        let known = if names.is_empty() { "it declares none".to_owned() } else { names.join(", ") };
        format!("blueprint {} has no agent {name:?} (its agents: {known})", self.name())
    }
}

impl std::fmt::Debug for Blueprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Blueprint").field(&self.version()).finish()
    }
}

impl CompiledAgent {
    /// The agent behind `ctx:approve`: a person, asked by a form.
    ///
    /// # Errors
    /// Fails when the form is not a JSON Schema.
    pub fn approval(form: Option<&Json>) -> Result<Self, Failure> {
        let document = match form {
            Some(form) => form.clone(),
            None => serde_json::json!({
                "type": "object",
                "properties": {
                    "approved": { "type": "boolean" },
                    "note": { "type": "string" },
                },
                "required": ["approved"],
            })
            .into(),
        };
        let output = Schema::compile(&document, false).map_err(|error| {
            Failure::new(kind::INVALID_INPUT, format!("ctx:approve: the form: {error}"))
        })?;
        let agent = Agent {
            operator: "human".into(),
            output: Some(document),
            check: true,
            ..Agent::default()
        };
        Ok(Self {
            name: Arc::from("approve"),
            operator: Arc::from("human"),
            agent: Arc::new(agent),
            input: Schema::any(),
            output,
            model_loop: None,
        })
    }

    /// An agent that declares nothing, for a task that an operator is given by itself.
    pub fn bare(name: &str, operator: Option<&str>) -> Self {
        let operator = operator.unwrap_or_default();
        let agent = Agent { operator: operator.to_owned(), check: true, ..Agent::default() };
        Self::standing_for(name, agent)
    }

    /// An agent that takes and gives anything.
    fn standing_for(name: &str, agent: Agent) -> Self {
        Self {
            name: Arc::from(name),
            operator: Arc::from(agent.operator.as_str()),
            agent: Arc::new(agent),
            input: Schema::any(),
            output: Schema::any(),
            model_loop: None,
        }
    }

    /// The same agent for a single call of its model: what goes in and comes out is the model's.
    #[must_use]
    pub fn for_model(&self) -> Self {
        Self {
            name: Arc::clone(&self.name),
            operator: Arc::clone(&self.operator),
            agent: Arc::clone(&self.agent),
            input: Schema::any(),
            output: Schema::any(),
            model_loop: None,
        }
    }

    /// The same agent, calling one tool of its server.
    #[must_use]
    pub fn with_tool(&self, tool: &str) -> Self {
        let agent = Agent { tool: Some(tool.to_owned()), ..(*self.agent).clone() };
        Self { agent: Arc::new(agent), ..self.for_model() }
    }

    /// The settings of its model's loop, if its operator is a model.
    pub fn model_loop(&self) -> Option<&Arc<CompiledLoop>> {
        self.model_loop.as_ref()
    }

    /// The same agent, standing in for another operator: it takes any input, has no prompts of
    /// its own and keeps the schema of its output.
    pub fn stand_in(&self, operator: &str) -> Self {
        let agent = Agent {
            operator: operator.to_owned(),
            system: None,
            prompt: None,
            input: None,
            ..(*self.agent).clone()
        };
        Self { operator: Arc::from(operator), agent: Arc::new(agent), ..self.for_model() }
    }

    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The operator that it names.
    pub fn operator(&self) -> &Arc<str> {
        &self.operator
    }

    /// Returns the declarations.
    pub fn agent(&self) -> &Arc<Agent> {
        &self.agent
    }

    /// The schema of its input.
    pub fn input(&self) -> &Schema {
        &self.input
    }

    /// The schema of its output.
    pub fn output(&self) -> &Schema {
        &self.output
    }

    /// Returns the maximum number of its live attempts.
    pub fn limit(&self) -> Option<u32> {
        self.agent.max_concurrency
    }

    /// Renders its prompts.
    ///
    /// # Errors
    /// Fails when a template uses what is not there, or breaks a limit.
    pub fn render(
        &self,
        blueprint: &Blueprint,
        slots: &Slots<'_>,
    ) -> Result<Rendered, TemplateError> {
        let input = slots.input.to_value();
        let mut rendered = Rendered { system: None, prompt: String::new() };
        let literal = self.agent.literal || self.agent.system.is_none();
        if literal && self.agent.prompt.is_none() {
            rendered.system.clone_from(&self.agent.system);
            rendered.prompt = default_prompt(&input);
            return Ok(rendered);
        }
        let map: Map<String, Value> = TaskSlots {
            input: &input,
            run_input: &slots.run_input.to_value(),
            run_id: slots.run_id,
            agent: &self.name,
            attempt: slots.attempt,
        }
        .to_map();
        if let Some(system) = &self.agent.system {
            rendered.system = Some(match literal {
                true => system.clone(),
                false => blueprint.templates.render(system, &map)?,
            });
        }
        rendered.prompt = match &self.agent.prompt {
            Some(prompt) => blueprint.templates.render(prompt, &map)?,
            None => default_prompt(&input),
        };
        Ok(rendered)
    }
}

impl Schema {
    /// Accepts a JSON document; without a schema it is passed on as it is.
    ///
    /// # Errors
    /// Every breach that was found, up to a bound.
    pub fn accept_json(&self, document: &Json) -> Result<Json, Vec<Violation>> {
        if self.is_any() {
            return Ok(document.clone());
        }
        self.accept(document.to_value()).map(Json::from)
    }
}
