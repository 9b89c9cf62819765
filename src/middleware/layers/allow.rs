//! The layer that allows only what is listed, or what a predicate accepts.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Means;
use crate::{
    blueprint::Bundle,
    lua::{Host, Limits, Source, TaskLimits, call_agent, evaluate},
    middleware::{
        Dispatch, DispatchLayer, Dispatched, ExecCall, ExecLayer, ExecNext, Next, StoreCall,
        StoreLayer, StoreNext, Stored,
    },
    protocol::{Failure, Json, failure::kind},
};

/// The maximum length of a predicate, in bytes.
const PREDICATE_BYTES: usize = 16 << 10;

/// The settings of `kind = "guard"`. An absent list allows everything; a name may contain `*`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuardSettings {
    /// The agents whose tasks may be dispatched.
    #[serde(default)]
    pub agents: Option<Vec<String>>,
    /// The operators that may be dispatched to.
    #[serde(default)]
    pub operators: Option<Vec<String>>,
    /// The tools that agents may use.
    #[serde(default)]
    pub tools: Option<Vec<String>>,
    /// Agents, operators and tools that are denied, even if they are allowed elsewhere.
    #[serde(default)]
    pub deny: Vec<String>,
    /// The scopes of state that may be accessed.
    #[serde(default)]
    pub scopes: Option<Vec<String>>,
    /// The programs that may be started, by path or by name.
    #[serde(default)]
    pub programs: Option<Vec<String>>,
    /// A Lua expression over `task` = `{agent, operator, blueprint, principal, attempt, tools,
    /// input}`; the dispatch is refused unless the result is `true`. A result that is neither a
    /// boolean nor nil is an error.
    #[serde(default)]
    pub predicate: Option<String>,
}

impl GuardSettings {
    /// Returns the reason why the settings cannot be used, if there is one.
    pub(in crate::middleware) fn fault(&self) -> Option<String> {
        let predicate = self.predicate.as_deref()?;
        if predicate.len() > PREDICATE_BYTES {
            return Some(format!("`predicate` has more than {PREDICATE_BYTES} bytes"));
        }
        match Predicate::new(predicate).map(|it| evaluate(&it.source, &Limits::default())) {
            Err(fault) => Some(fault),
            Ok(Ok(_)) => None,
            Ok(Err(errors)) => {
                let first = errors.first().map_or("", |error| error.message.as_str());
                Some(format!("`predicate`: {first}"))
            }
        }
    }

    /// Returns true if the settings concern dispatches.
    pub(in crate::middleware) fn guards_dispatches(&self) -> bool {
        self.agents.is_some()
            || self.operators.is_some()
            || self.tools.is_some()
            || !self.deny.is_empty()
            || self.predicate.is_some()
    }
}

/// Returns true if a name matches a pattern, in which each `*` stands for anything.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    let inner = name.strip_prefix(start).and_then(|name| name.strip_suffix(end));
    let found = inner.and_then(|inner| {
        middle.split('*').try_fold(inner, |left, part| left.split_once(part).map(|(_, it)| it))
    });
    found.is_some()
}

/// Returns true if a name matches one of some patterns.
pub(super) fn any_fits(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| fits(pattern, name))
}

/// Returns true if a program may be started. A bare name permits programs that are looked up by
/// name; a path must be listed itself, and one that leads out of a directory is within none.
fn permits(programs: &[String], program: &str) -> bool {
    match program.split('/').any(|part| part == "..") {
        true => programs.iter().any(|it| it == program),
        false => any_fits(programs, program),
    }
}

/// A task, as a predicate gets it. The input is passed on as it was written: not every document has
/// a tree of values.
#[derive(Serialize)]
struct Shown<'a> {
    agent: &'a str,
    operator: &'a str,
    blueprint: &'a str,
    principal: &'a str,
    attempt: u32,
    tools: &'a [String],
    input: &'a Json,
}

/// A Lua expression, as a source for the sandbox. Its agent returns true, false, or the type of
/// another result.
struct Predicate {
    source: Arc<Source>,
}

const HOST: Host = Host {
    agent_md: |_, _| Err("a predicate imports no agents".to_owned()),
    names: |_, _| Err("a predicate has no nodes".to_owned()),
    evaluate: |_, _, _| Err("a predicate has no nodes".to_owned()),
};

impl Predicate {
    fn new(expression: &str) -> Result<Self, String> {
        let text = format!(
            "local swarm = require(\"swarm\")\nlocal function ask(task) return ({expression}\n) end\n\
             return swarm.blueprint {{ name = \"guard\", agents = {{ guard = {{ operator = \"lua\", \
             fn = function(task) local it = ask(task) if it == swarm.null then it = nil end \
             return if it == nil or type(it) == \"boolean\" then it == true else type(it) end }} }}, \
             flow = function() end }}"
        );
        let bundle = Bundle::from_source("predicate.lua", text)
            .map_err(|error| format!("`predicate`: {error}"))?;
        let hash = bundle.hash().to_owned();
        Ok(Self { source: Arc::new(Source::new(hash.as_str(), bundle, HOST)) })
    }
}

/// Allows only what is listed.
#[derive(Clone)]
pub struct Guard {
    name: Arc<str>,
    settings: Arc<GuardSettings>,
    predicate: Option<Arc<Predicate>>,
    means: Means,
}

/// Sets the flag that stops the predicate when its result is no longer needed.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Guard {
    /// Creates a guard from validated settings.
    pub fn new(name: &str, settings: GuardSettings, means: Means) -> Self {
        let predicate = settings.predicate.as_deref().and_then(|it| Predicate::new(it).ok());
        Self {
            name: name.into(),
            predicate: predicate.map(Arc::new),
            settings: Arc::new(settings),
            means,
        }
    }

    fn refusal(&self, what: &str, name: &str) -> Failure {
        let message = format!("{what} {name} is not allowed by the guard {}", self.name);
        let data = json!({ "code": "guarded", "layer": &*self.name, what: name });
        Failure::new(kind::REFUSED, message).with_data(Json::from(data))
    }

    fn named(&self, dispatch: &Dispatch) -> Result<(), Failure> {
        let settings = &self.settings;
        let check = |what: &str, allowed: Option<&Vec<String>>, name: &str| {
            let refused = any_fits(&settings.deny, name)
                || allowed.is_some_and(|allowed| !any_fits(allowed, name));
            if refused { Err(self.refusal(what, name)) } else { Ok(()) }
        };
        check("agent", settings.agents.as_ref(), &dispatch.agent)?;
        check("operator", settings.operators.as_ref(), &dispatch.operator)?;
        // A layer outside of this one may have another operator execute the task.
        if let Some(route) = &dispatch.route {
            check("operator", settings.operators.as_ref(), route)?;
        }
        dispatch.tools.iter().try_for_each(|tool| check("tool", settings.tools.as_ref(), tool))
    }

    async fn agrees(&self, predicate: &Predicate, dispatch: &Dispatch) -> Result<bool, Failure> {
        let fault = |text: String| {
            let data = json!({ "code": "guarded", "layer": &*self.name });
            Failure::new(kind::REFUSED, text).with_data(Json::from(data))
        };
        let task = Json::encode(&Shown {
            agent: &dispatch.agent,
            operator: dispatch.route.as_ref().unwrap_or(&dispatch.operator),
            blueprint: &dispatch.blueprint,
            principal: &dispatch.principal,
            attempt: dispatch.attempt,
            tools: &dispatch.tools,
            input: &dispatch.input,
        });
        let task = task.map_err(|error| fault(format!("show a task to {}: {error}", self.name)))?;
        let source = Arc::clone(&predicate.source);
        let over = Arc::new(AtomicBool::new(false));
        let ends = Ends(Arc::clone(&over));
        let limits = TaskLimits { cpu_ms: 100, memory: 16 << 20, value: 1 << 10 };
        let ask = move || call_agent(&source, "guard", &task, &limits, &over);
        let answer = match &self.means.tasks {
            Some(tasks) => tasks.spawn_blocking(ask).await.unwrap_or_else(|error| {
                Err(Failure::new(kind::REFUSED, format!("ask the predicate: {error}")))
            }),
            None => ask(),
        };
        drop(ends);
        // A predicate that fails refuses the dispatch.
        let answer = answer.map_err(|failure| {
            fault(format!("the predicate of {} failed: {}", self.name, failure.message))
        })?;
        match answer.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(fault(format!(
                "the predicate of {} returned a {}, and only `true` permits a task; write a \
                 comparison, such as `task.attempt < 3`",
                self.name,
                other.trim_matches('"')
            ))),
        }
    }
}

#[async_trait]
impl DispatchLayer for Guard {
    fn name(&self) -> &str {
        &self.name
    }

    async fn dispatch(&self, dispatch: Dispatch, next: Next<'_>) -> Result<Dispatched, Failure> {
        self.named(&dispatch)?;
        if let Some(predicate) = &self.predicate
            && !self.agrees(predicate, &dispatch).await?
        {
            let agent = &dispatch.agent;
            let message = format!("the guard {} does not agree to a task of {agent}", self.name);
            let data = json!({ "code": "guarded", "layer": &*self.name, "agent": &**agent });
            return Err(Failure::new(kind::REFUSED, message).with_data(Json::from(data)));
        }
        next.run(dispatch).await
    }
}

impl StoreLayer for Guard {
    fn name(&self) -> &str {
        &self.name
    }

    fn store(&self, call: StoreCall, next: StoreNext<'_>) -> Stored {
        match &self.settings.scopes {
            Some(scopes) if !any_fits(scopes, &call.scope) => {
                Err(self.refusal("scope", &call.scope))
            }
            Some(_) | None => next.run(call),
        }
    }
}

#[async_trait]
impl ExecLayer for Guard {
    fn name(&self) -> &str {
        &self.name
    }

    async fn exec(&self, call: ExecCall, next: ExecNext<'_>) -> Result<Dispatched, Failure> {
        match &self.settings.programs {
            Some(programs) if !permits(programs, &call.program) => {
                Err(self.refusal("program", &call.program))
            }
            Some(_) | None => next.run(call).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::{
        clock::Clock,
        middleware::{DispatchStack, MemoryKeep, fixture},
    };

    fn guard(settings: serde_json::Value) -> Guard {
        let settings: GuardSettings = serde_json::from_value(settings).unwrap();
        assert_eq!(settings.fault(), None);
        let clock = Clock::manual(0);
        Guard::new("guard", settings, Means::of(Arc::new(MemoryKeep::new(clock.clone())), clock))
    }

    fn allows(settings: serde_json::Value, dispatch: Dispatch) -> bool {
        let stack = DispatchStack::builder().guard(guard(settings)).build();
        match stack.run(dispatch, &fixture::Echo).now_or_never().unwrap() {
            Ok(_) => true,
            Err(failure) => {
                assert!(failure.is(kind::REFUSED), "{failure}");
                false
            }
        }
    }

    fn tools(tools: &[&str]) -> Dispatch {
        fixture::with("1", |about| about.tools = tools.iter().map(|it| (*it).into()).collect())
    }

    #[test]
    fn only_the_named_pass() {
        for (settings, expected) in [
            (json!({}), true),
            (json!({"agents": ["counter"]}), true),
            (json!({"agents": ["count*"], "operators": ["e*o"]}), true),
            (json!({"agents": ["other"]}), false),
            (json!({"agents": []}), false),
            (json!({"operators": ["human"]}), false),
            (json!({"deny": ["echo"]}), false),
            (json!({"agents": ["counter"], "deny": ["c*"]}), false),
            (json!({"deny": ["*ount*"]}), false),
        ] {
            assert_eq!(allows(settings.clone(), fixture::dispatch("1")), expected, "{settings}");
        }
    }

    #[test]
    fn an_operator_that_a_layer_routes_to_must_be_allowed_too() {
        for (settings, expected) in [
            (json!({"operators": ["echo"]}), false),
            (json!({"operators": ["other"]}), false),
            (json!({"operators": ["echo", "other"]}), true),
            (json!({"deny": ["other"]}), false),
            (json!({"predicate": "task.operator == 'echo'"}), false),
            (json!({"predicate": "task.operator == 'other'"}), true),
        ] {
            let dispatch = Dispatch { route: Some("other".into()), ..fixture::dispatch("1") };
            assert_eq!(allows(settings.clone(), dispatch), expected, "{settings}");
        }
    }

    #[test]
    fn every_tool_must_be_allowed() {
        let settings = || json!({"tools": ["Read", "Edit"]});
        assert!(allows(settings(), tools(&["Read"])));
        assert!(!allows(settings(), tools(&["Read", "Bash"])));
        assert!(!allows(json!({"deny": ["Bash"]}), tools(&["Bash"])));
    }

    #[test]
    fn a_predicate_sees_the_task_and_what_is_not_true_is_refused() {
        for (predicate, expected) in [
            ("task.agent == 'counter' and task.input.n > 1", true),
            ("task.input.n > 5", false),
            ("nil", false),
            ("task.input.none", false),
            ("(function() local it = task.input.n > 1 end)()", false),
            ("task.input.missing.deeper", false),
            ("(function() while true do end end)()", false),
        ] {
            let dispatch = fixture::dispatch(r#"{"n":2,"none":null}"#);
            assert_eq!(allows(json!({"predicate": predicate}), dispatch), expected, "{predicate}");
        }
    }

    #[test]
    fn a_predicate_that_returns_neither_true_nor_false_is_an_error_that_names_the_type() {
        for (predicate, returned) in [
            ("task.agent", "a string"),
            ("task.input", "a number"),
            ("0", "a number"),
            ("'true'", "a string"),
            ("task", "a table"),
            ("function() return true end", "a function"),
        ] {
            let stack =
                DispatchStack::builder().guard(guard(json!({"predicate": predicate}))).build();
            let outcome = stack.run(fixture::dispatch("1"), &fixture::Echo).now_or_never();
            let failure = outcome.unwrap().unwrap_err();
            assert!(failure.is(kind::REFUSED) && !failure.retryable, "{failure}");
            let expected = format!("the predicate of guard returned {returned}, ");
            assert!(failure.message.starts_with(&expected), "{failure}");
            assert_eq!(failure.data.unwrap().to_value()["code"], "guarded");
        }
    }

    #[test]
    fn a_predicate_refuses_an_input_that_it_cannot_see() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for input in ["1e999", &*deep] {
            for predicate in ["task.input == nil", "task.input ~= nil"] {
                let dispatch = fixture::dispatch(input);
                assert!(!allows(json!({"predicate": predicate}), dispatch), "{predicate} {input}");
            }
        }
    }

    #[test]
    fn a_predicate_that_is_no_expression_is_found_before_it_is_used() {
        let settings = GuardSettings { predicate: Some("task.".into()), ..Default::default() };
        assert!(settings.fault().unwrap().starts_with("`predicate`: "));
    }

    #[test]
    fn a_path_that_leads_out_of_a_directory_is_not_within_it() {
        let programs = ["/usr/bin/*", "cargo", "../own"].map(str::to_owned);
        for (program, expected) in [
            ("/usr/bin/env", true),
            ("/usr/bin/../../tmp/other", false),
            ("cargo", true),
            ("/tmp/cargo", false),
            ("../own", true),
        ] {
            assert_eq!(permits(&programs, program), expected, "{program}");
        }
    }

    #[test]
    fn a_star_stands_for_anything() {
        assert!(fits("a*c", "abc") && fits("a*", "a") && fits("*", "") && fits("a", "a"));
        assert!(!fits("ab*bc", "abc") && !fits("a", "ab") && !fits("*b", "a"));
        assert!(fits("*b*", "abc") && fits("a*c*e", "abcde") && fits("a**b", "ab"));
        assert!(!fits("*b*", "ac") && !fits("a*c*e", "abde") && !fits("a*a*a", "aa"));
    }
}
