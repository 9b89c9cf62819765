//! Layers as data: `[[middleware]]` in a file, `middleware = { … }` in a blueprint.

use std::{collections::HashSet, fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{
    Boundary, Class, DispatchStack, ExecStack, StoreStack, Tracing,
    layers::{
        Audit, AuditSettings, BreakerSettings, Budget, BudgetSettings, Cache, CacheSettings,
        CircuitBreaker, Guard, GuardSettings, Idempotency, IdempotencySettings, Means, RateLimit,
        RateSettings, Redact, RedactSettings, Unusable,
    },
};
use crate::protocol::Json;

/// The kinds of layers, sorted.
pub const KINDS: [&str; 9] = [
    "audit",
    "budget",
    "cache",
    "circuit_breaker",
    "guard",
    "idempotency",
    "rate_limit",
    "redact",
    "tracing",
];

/// The maximum number of layers in a file or a blueprint.
pub const MOST: usize = 100;

/// The maximum length of a layer's name, in bytes.
const NAME_BYTES: usize = 64;

/// The settings of one layer, parsed and validated.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Settings {
    /// Tracing spans.
    Tracing(TracingSettings),
    /// The audit log.
    Audit(AuditSettings),
    /// Limits on money, tokens and time.
    Budget(BudgetSettings),
    /// Results cached by input.
    Cache(CacheSettings),
    /// A pause for an operator that fails repeatedly.
    CircuitBreaker(BreakerSettings),
    /// Allow-lists.
    Guard(GuardSettings),
    /// Results remembered by key.
    Idempotency(IdempotencySettings),
    /// Limits on the rate of dispatches.
    RateLimit(RateSettings),
    /// Redaction by pattern and key.
    Redact(RedactSettings),
}

/// The settings of `kind = "tracing"`, which has none.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracingSettings {}

impl Settings {
    /// Deserializes the settings of a kind; returns `None` if the kind does not exist.
    ///
    /// # Errors
    /// Fails when the settings are invalid.
    pub fn read<'de, D: Deserializer<'de>>(kind: &str, keys: D) -> Option<Result<Self, D::Error>> {
        Some(match kind {
            "tracing" => TracingSettings::deserialize(keys).map(Self::Tracing),
            "audit" => AuditSettings::deserialize(keys).map(Self::Audit),
            "budget" => BudgetSettings::deserialize(keys).map(Self::Budget),
            "cache" => CacheSettings::deserialize(keys).map(Self::Cache),
            "circuit_breaker" => BreakerSettings::deserialize(keys).map(Self::CircuitBreaker),
            "guard" => GuardSettings::deserialize(keys).map(Self::Guard),
            "idempotency" => IdempotencySettings::deserialize(keys).map(Self::Idempotency),
            "rate_limit" => RateSettings::deserialize(keys).map(Self::RateLimit),
            "redact" => RedactSettings::deserialize(keys).map(Self::Redact),
            _ => return None,
        })
    }

    /// Returns the name of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tracing(_) => "tracing",
            Self::Audit(_) => "audit",
            Self::Budget(_) => "budget",
            Self::Cache(_) => "cache",
            Self::CircuitBreaker(_) => "circuit_breaker",
            Self::Guard(_) => "guard",
            Self::Idempotency(_) => "idempotency",
            Self::RateLimit(_) => "rate_limit",
            Self::Redact(_) => "redact",
        }
    }

    /// Returns the reason why the settings cannot be used, if there is one.
    pub fn fault(&self) -> Option<String> {
        match self {
            Self::Tracing(_) | Self::Audit(_) | Self::Cache(_) | Self::Idempotency(_) => None,
            Self::Budget(it) => it.fault(),
            Self::CircuitBreaker(it) => it.fault(),
            Self::Guard(it) => it.fault(),
            Self::RateLimit(it) => it.fault(),
            Self::Redact(it) => it.fault(),
        }
    }
}

/// A declared layer.
#[derive(Debug, Clone, Serialize)]
pub struct Layer {
    /// The name, which is also the key of its stored data.
    pub name: String,
    /// The settings.
    pub settings: Settings,
}

/// The reason why a layer is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LayerError(pub String);

impl Layer {
    /// Parses a layer from plain data: `{kind, name?, …}`.
    ///
    /// # Errors
    /// Fails when the kind is missing or unknown, or the settings are invalid.
    pub fn of(data: &Value) -> Result<Self, LayerError> {
        let wrong = |text: String| Err(LayerError(text));
        let Value::Object(keys) = data else {
            return wrong("a layer is a table such as `swarm.middleware.budget { … }`".to_owned());
        };
        let mut keys = keys.clone();
        let Some(Value::String(kind)) = keys.remove("kind") else {
            return wrong("a layer has a `kind`".to_owned());
        };
        let name = match keys.remove("name") {
            None | Some(Value::Null) => kind.clone(),
            Some(Value::String(name)) => name,
            Some(_) => return wrong("a layer's `name` is a text".to_owned()),
        };
        let settings = match Settings::read(&kind, Value::Object(keys)) {
            None => return wrong(unknown(&kind)),
            Some(Err(error)) => return wrong(format!("{kind}: {error}")),
            Some(Ok(settings)) => settings,
        };
        Self::new(name, settings)
    }

    /// Creates a named layer.
    ///
    /// # Errors
    /// Fails when the name is invalid, or the settings cannot be used.
    pub fn new(name: String, settings: Settings) -> Result<Self, LayerError> {
        let is_name = !name.is_empty()
            && name.len() <= NAME_BYTES
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        if !is_name {
            return Err(LayerError(format!(
                "a layer's name has 1 to {NAME_BYTES} letters, digits, `-`, `_` and `.`, and \
                 {name:?} is none"
            )));
        }
        match settings.fault() {
            None => Ok(Self { name, settings }),
            Some(fault) => Err(LayerError(format!("{}: {fault}", settings.kind()))),
        }
    }
}

/// Returns the error message for an unknown kind.
pub fn unknown(kind: &str) -> String {
    let hint = crate::blueprint::did_you_mean(kind, KINDS);
    match hint {
        Some(likely) => format!("there is no layer {kind:?}; did you mean `{likely}`?"),
        None => format!("there is no layer {kind:?}; the kinds are {}", KINDS.join(", ")),
    }
}

/// Makes names unique by appending a number to repeated ones: `cache`, `cache.2`.
pub fn tell_apart(layers: &mut [Layer]) {
    let mut taken = HashSet::new();
    for layer in layers {
        let base = layer.name.clone();
        let mut n = 2;
        while !taken.insert(layer.name.clone()) {
            layer.name = format!("{base}.{n}");
            n += 1;
        }
    }
}

/// The position of a layer, for lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The boundary.
    pub boundary: Boundary,
    /// The class.
    pub class: Class,
    /// The name.
    pub name: String,
    /// The declaring party: `host`, or `blueprint`.
    pub from: &'static str,
    /// The settings with their `kind`, as JSON; absent for a layer implemented in code.
    pub settings: Option<String>,
}

/// One stack for each boundary.
#[derive(Clone, Default)]
pub struct Stacks {
    /// Around attempts.
    pub dispatch: DispatchStack,
    /// Around state.
    pub store: StoreStack,
    /// Around programs.
    pub exec: ExecStack,
    /// The declared layers: name, declaring party and settings as JSON.
    named: Vec<(String, &'static str, String)>,
    /// The declared layers that redact.
    redact: Vec<Redact>,
}

impl fmt::Debug for Stacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list().iter().map(|it| &it.name)).finish()
    }
}

impl Stacks {
    /// Returns these stacks with the layers of `with` inside, class by class.
    #[must_use]
    pub fn and(&self, with: &Self) -> Self {
        Self {
            dispatch: DispatchStack::builder().with(&self.dispatch).with(&with.dispatch).build(),
            store: StoreStack::builder().with(&self.store).with(&with.store).build(),
            exec: ExecStack::builder().with(&self.exec).with(&with.exec).build(),
            named: self.named.iter().chain(&with.named).cloned().collect(),
            redact: self.redact.iter().chain(&with.redact).cloned().collect(),
        }
    }

    /// Returns a text without what the declared layers redact anywhere, if they match.
    pub fn redacted(&self, text: &str) -> Option<String> {
        self.redact
            .iter()
            .fold(None, |clean, layer| layer.text(clean.as_deref().unwrap_or(text)).or(clean))
    }

    /// Returns a named value without what the declared layers redact anywhere.
    pub fn redacted_value(&self, name: &str, mut value: Value) -> Value {
        for layer in &self.redact {
            layer.named(name, &mut value);
        }
        value
    }

    /// Returns a result without what the declared layers redact in results.
    pub(crate) fn redacted_output(&self, output: Json) -> Json {
        self.redact.iter().rev().fold(output, |output, layer| layer.output(output))
    }

    /// Returns the text that replaces the values of a key, if a declared layer redacts it.
    pub fn instead_of(&self, key: &str) -> Option<&str> {
        // The last layer has the last word.
        self.redact.iter().rev().find_map(|layer| layer.instead_of(key))
    }

    /// Creates stacks of declared layers, in order; `from` is the declaring party, `prefix` is
    /// prepended to the names.
    pub fn of(layers: &[Layer], from: &'static str, prefix: &str, means: &Means) -> Self {
        let mut stacks = Self::default();
        for layer in layers {
            let name = format!("{prefix}{}", layer.name);
            let mut settings = serde_json::to_value(&layer.settings).unwrap_or_default();
            if let Some(keys) = settings.as_object_mut() {
                keys.shift_insert(0, "kind".to_owned(), layer.settings.kind().into());
            }
            let settings = settings.to_string();
            stacks = stacks.and(&Self::one(&name, &layer.settings, means));
            stacks.named.push((name, from, settings));
        }
        stacks
    }

    /// Returns stacks that refuse everything and show no text, in place of a layer that was
    /// accepted once and cannot be read any more.
    pub(crate) fn unusable(
        name: &str,
        from: &'static str,
        data: &Value,
        error: &LayerError,
    ) -> Self {
        let layer = Unusable::new(name, &error.0);
        Self {
            dispatch: guard(layer.clone()),
            store: StoreStack::builder().guard(layer.clone()).build(),
            exec: ExecStack::builder().guard(layer).build(),
            named: vec![(name.to_owned(), from, data.to_string())],
            redact: vec![Redact::of_all_text(name)],
        }
    }

    fn one(name: &str, settings: &Settings, means: &Means) -> Self {
        let mut one = Self::default();
        let means = || means.clone();
        match settings.clone() {
            Settings::Tracing(_) => {
                one.dispatch = DispatchStack::builder().observe(Tracing).build();
                one.store = StoreStack::builder().observe(Tracing).build();
                one.exec = ExecStack::builder().observe(Tracing).build();
            }
            Settings::Audit(it) => {
                let audit = || Audit::new(name, Arc::clone(&means().keep));
                for boundary in it.at {
                    match boundary {
                        Boundary::Dispatch => {
                            one.dispatch = DispatchStack::builder().observe(audit()).build();
                        }
                        Boundary::Store => {
                            one.store = StoreStack::builder().observe(audit()).build();
                        }
                        Boundary::Exec => {
                            one.exec = ExecStack::builder().observe(audit()).build();
                        }
                    }
                }
            }
            Settings::Redact(it) => {
                let state = it.state;
                let redact = Redact::new(name, it);
                one.redact.push(redact.clone());
                if state {
                    one.store = StoreStack::builder().transform(redact.clone()).build();
                }
                one.dispatch = DispatchStack::builder().transform(redact).build();
            }
            Settings::Guard(it) => {
                let (dispatches, scopes, programs) =
                    (it.guards_dispatches(), it.scopes.is_some(), it.programs.is_some());
                let guard = Guard::new(name, it, means());
                if scopes {
                    one.store = StoreStack::builder().guard(guard.clone()).build();
                }
                if programs {
                    one.exec = ExecStack::builder().guard(guard.clone()).build();
                }
                if dispatches {
                    one.dispatch = DispatchStack::builder().guard(guard).build();
                }
            }
            Settings::Budget(it) => one.dispatch = guard(Budget::new(name, it, means())),
            Settings::Cache(it) => one.dispatch = guard(Cache::new(name, it, means())),
            Settings::CircuitBreaker(it) => {
                one.dispatch = guard(CircuitBreaker::new(name, it, means()));
            }
            Settings::Idempotency(it) => one.dispatch = guard(Idempotency::new(name, it, means())),
            Settings::RateLimit(it) => one.dispatch = guard(RateLimit::new(name, it, means())),
        }
        one
    }

    /// Returns every layer in its position, boundary by boundary, each from the outermost to the
    /// innermost.
    pub fn list(&self) -> Vec<Listed> {
        let dispatch = self.dispatch.layers().map(|it| (Boundary::Dispatch, it));
        let store = self.store.layers().map(|it| (Boundary::Store, it));
        let exec = self.exec.layers().map(|it| (Boundary::Exec, it));
        let every = dispatch.chain(store).chain(exec);
        every
            .map(|(boundary, (class, name))| {
                let known = self.named.iter().find(|(it, _, _)| it == name);
                Listed {
                    boundary,
                    class,
                    name: name.to_owned(),
                    from: known.map_or("host", |(_, from, _)| from),
                    settings: known.map(|(_, _, settings)| settings.clone()),
                }
            })
            .collect()
    }
}

fn guard(layer: impl super::DispatchLayer + 'static) -> DispatchStack {
    DispatchStack::builder().guard(layer).build()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use serde_json::json;

    use super::*;
    use crate::{
        clock::Clock,
        middleware::{Dispatch, MemoryKeep, StoreCall, StoreOp, TaskDone, fixture},
        protocol::failure::kind,
    };

    fn layer(data: Value) -> Layer {
        Layer::of(&data).unwrap()
    }

    fn means() -> Means {
        let clock = Clock::manual(0);
        Means::of(Arc::new(MemoryKeep::new(clock.clone())), clock)
    }

    #[test]
    fn every_kind_can_be_named_and_stands_in_its_class() {
        let layers = [
            layer(json!({"kind": "tracing"})),
            layer(json!({"kind": "audit"})),
            layer(json!({"kind": "redact", "keys": ["password"], "state": true})),
            layer(json!({"kind": "guard", "operators": ["echo"], "scopes": ["run:*"],
                "programs": ["cargo"]})),
            layer(json!({"kind": "budget", "usd": "1.50"})),
            layer(json!({"kind": "rate_limit", "rate": "5/s"})),
            layer(json!({"kind": "circuit_breaker"})),
            layer(json!({"kind": "cache", "ttl": "1h", "name": "answers"})),
            layer(json!({"kind": "idempotency"})),
        ];
        let mut kinds: Vec<_> = layers.iter().map(|it| it.settings.kind()).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, KINDS);
        let stacks = Stacks::of(&layers, "host", "", &means());
        let listed: Vec<_> = stacks
            .list()
            .into_iter()
            .map(|it| format!("{} {} {}", it.boundary.as_str(), it.class.as_str(), it.name))
            .collect();
        assert_eq!(
            listed,
            [
                "dispatch observer tracing",
                "dispatch observer audit",
                "dispatch transformer redact",
                "dispatch guard guard",
                "dispatch guard budget",
                "dispatch guard rate_limit",
                "dispatch guard circuit_breaker",
                "dispatch guard answers",
                "dispatch guard idempotency",
                "store observer tracing",
                "store observer audit",
                "store transformer redact",
                "store guard guard",
                "exec observer tracing",
                "exec observer audit",
                "exec guard guard",
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (data, expected) in [
            (json!([]), "a layer is a table"),
            (json!({}), "a layer has a `kind`"),
            (json!({"kind": "budgt"}), "did you mean `budget`?"),
            (json!({"kind": "budget", "usd": "1", "size": 1}), "budget: unknown field `size`"),
            (json!({"kind": "budget"}), "budget: it needs `usd`, `tokens` or `wall`"),
            (json!({"kind": "rate_limit", "rate": "many"}), "is not a rate"),
            (json!({"kind": "redact", "patterns": ["("]}), "redact: \"(\""),
            (json!({"kind": "cache", "name": "a b"}), "a layer's name has"),
        ] {
            let error = Layer::of(&data).unwrap_err().to_string();
            assert!(error.contains(expected), "{data}: {error}");
        }
    }

    #[test]
    fn settings_can_be_declared_as_they_are_shown() {
        let shown = |data: &Value| {
            let stacks = Stacks::of(&[layer(data.clone())], "host", "", &means());
            stacks.named[0].2.clone()
        };
        for data in [
            json!({"kind": "cache", "ttl": "1h30m"}),
            json!({"kind": "idempotency", "ttl": 0.25}),
            json!({"kind": "budget", "usd": "1.50", "wall": 90}),
            json!({"kind": "rate_limit", "rate": "5/s", "wait": "0s"}),
            json!({"kind": "circuit_breaker"}),
            json!({"kind": "redact", "patterns": ["a+"]}),
            json!({"kind": "guard", "operators": ["echo"]}),
            json!({"kind": "audit", "at": ["store"]}),
            json!({"kind": "tracing"}),
        ] {
            let once = shown(&data);
            assert_eq!(shown(&serde_json::from_str(&once).unwrap()), once);
        }
        let ttl = shown(&json!({"kind": "cache", "ttl": 5_400}));
        assert!(ttl.contains(r#""ttl":"1h30m""#), "{ttl}");
    }

    #[test]
    fn in_place_of_a_layer_that_cannot_be_read_everything_is_refused() {
        let data = json!({"kind": "redact", "patterns": ["("]});
        let stacks =
            Stacks::unusable("b/redact", "blueprint", &data, &Layer::of(&data).unwrap_err());
        let Dispatch { about, input, .. } = fixture::dispatch("1");
        let run = stacks.dispatch.run(fixture::dispatch("1"), &fixture::Echo).now_or_never();
        let refused = run.unwrap().unwrap_err();
        assert!(refused.is(kind::REFUSED), "{refused}");
        assert!(refused.message.starts_with("the layer b/redact cannot be used"), "{refused}");
        assert!(refused.message.contains(r#"redact: "(""#), "{refused}");
        let settled = stacks.dispatch.settle(&about, &input, Ok(TaskDone::new(input.clone())));
        assert_eq!(settled.unwrap_err().failure, refused);
        let call = StoreCall {
            op: StoreOp::Read,
            run: None,
            principal: "root".into(),
            scope: "global".into(),
            key: "k".into(),
            value: None,
        };
        assert_eq!(stacks.store.run(call, &mut |_| Ok(Json::null())).unwrap_err(), refused);
        assert_eq!(stacks.redacted("sk-1\nsk-2").as_deref(), Some("[redacted]"));
        assert_eq!(stacks.list().len(), 3);
    }

    #[test]
    fn layers_of_one_name_are_told_apart() {
        let mut layers = vec![layer(json!({"kind": "cache"})), layer(json!({"kind": "cache"}))];
        tell_apart(&mut layers);
        assert_eq!(layers.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["cache", "cache.2"]);
    }
}
