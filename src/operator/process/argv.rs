//! The templates of a command: its arguments and its environment.

use std::{
    borrow::Cow,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use minijinja::{Environment, ErrorKind, Value, value::ValueKind};
use serde_json::{Map, json};

use crate::{
    blueprint::{begin_bounded, bounded_environment, bounded_template, charge, required_names},
    environment::{INHERITED, own_file},
    operator::Task,
    protocol::{Failure, Json, failure::kind},
};

/// The maximum length of an argument or variable, in bytes: the limit of Linux.
const MAX_LEN: usize = 128 * 1024 - 1;
/// The maximum cost of rendering one template, in minijinja's units.
const FUEL: u64 = 100_000;

/// Renders the templates of one attempt. Most have none, so that what they need is made with the first.
pub(super) struct Templates<'a> {
    task: &'a Task,
    input: &'a Json,
    bundle: &'a Path,
    made: OnceLock<Made>,
}

/// The environment of the templates, and the values of their slots.
struct Made {
    environment: Environment<'static>,
    slots: Value,
}

impl<'a> Templates<'a> {
    /// Creates templates over `input`, `run.id`, `agent`, `attempt`, `bundle` (the directory of the
    /// blueprint's files), `moonswarm` (the host's own program) and the top-level keys of an object
    /// input; any other input is also available as `directive`.
    pub(super) fn new(task: &'a Task, input: &'a Json, bundle: &'a Path) -> Self {
        Self { task, input, bundle, made: OnceLock::new() }
    }

    fn made(&self) -> &Made {
        self.made.get_or_init(|| Made::of(self.task, self.input, self.bundle))
    }

    /// Renders one template; `place` names it in the failure.
    pub(super) fn render(&self, template: &str, place: &str) -> Result<String, Failure> {
        if !template.contains('{') {
            return Ok(template.to_owned());
        }
        let failure = |reason: String| {
            Failure::new(
                kind::TEMPLATE,
                format!("failed to render {place} ({template:?}): {reason}"),
            )
        };
        let made = self.made();
        let mut out = Capped(Vec::new());
        let rendered = bounded_template(template).and_then(|source| {
            begin_bounded();
            let parsed = made.environment.template_from_str(&source)?;
            parsed.render_captured_to(made.slots.clone(), &mut out).map(drop)
        });
        match rendered {
            Ok(()) => String::from_utf8(out.0).map_err(|error| failure(error.to_string())),
            Err(_) if out.0.len() > MAX_LEN => Err(failure(format!(
                "it is longer than the {} KiB that a system takes; the input is on stdin as well",
                MAX_LEN.div_ceil(1024)
            ))),
            Err(error) => Err(failure(self.reason(template, &error))),
        }
    }

    /// Returns the reason why a template was not rendered; a name that is not defined is named.
    fn reason(&self, template: &str, error: &minijinja::Error) -> String {
        let parsed = self.made().environment.template_from_str(template);
        let missing = parsed.ok().filter(|_| error.kind() == ErrorKind::UndefinedError);
        let missing = missing.and_then(|parsed| {
            let names = required_names(template, parsed.undeclared_variables(true)).ok()?;
            names.into_keys().find(|name| self.is_missing(name))
        });
        let Some(name) = missing else { return error.to_string() };
        let known =
            self.made().slots.try_iter().map(|it| it.map(|slot| slot.to_string()).collect());
        let mut known: Vec<String> = known.unwrap_or_default();
        known.sort_unstable();
        format!("`{name}` is not defined; there are: {}", known.join(", "))
    }

    fn is_missing(&self, name: &str) -> bool {
        let mut value = self.made().slots.clone();
        for part in name.split('.') {
            match value.get_attr(part) {
                Ok(inner) if !inner.is_undefined() => value = inner,
                _ => return true,
            }
        }
        false
    }

    /// Returns the command: the program and its arguments.
    pub(super) fn argv(&self, task: &Task) -> Result<(String, Vec<String>), Failure> {
        let mut argv = Vec::with_capacity(task.agent.command.len());
        for (index, template) in task.agent.command.iter().enumerate() {
            argv.push(self.render(template, &format!("element {} of `command`", index + 1))?);
        }
        if argv.first().is_none_or(String::is_empty) {
            return Err(Failure::new(
                kind::PROCESS,
                format!("agent {} has no program to run: its `command` is empty", task.agent_name),
            ));
        }
        let program = argv.remove(0);
        Ok((program, argv))
    }

    /// Returns the whole environment of the child except secrets; the agent's variables override
    /// its surroundings.
    pub(super) fn variables(
        &self,
        task: &Task,
        bundle: &Path,
        surroundings: Vec<(String, OsString)>,
    ) -> Result<Vec<(String, OsString)>, Failure> {
        let mut variables: Vec<_> = INHERITED
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)))
            .chain(surroundings)
            .collect();
        for (name, template) in &task.agent.env {
            let value = self.render(template, &format!("`env.{name}`"))?;
            variables.push((name.clone(), value.into()));
        }
        if let Some(url) = &task.url {
            variables.push(("MOONSWARM_URL".to_owned(), (&**url).into()));
        }
        variables.push(("MOONSWARM_HANDLE".to_owned(), (&task.handle).into()));
        variables.push(("MOONSWARM_BUNDLE".to_owned(), bundle.into()));
        if let Some(trace) = task.trace {
            variables.push(("TRACEPARENT".to_owned(), trace.to_string().into()));
        }
        Ok(variables)
    }
}

impl Made {
    fn of(task: &Task, input: &Json, bundle: &Path) -> Self {
        let input = input.to_value();
        let mut slots = match &input {
            serde_json::Value::Object(object) => object.clone(),
            other => [("directive".to_owned(), other.clone())].into_iter().collect(),
        };
        slots.insert("input".to_owned(), input);
        slots.insert("run".to_owned(), json!({ "id": task.run }));
        slots.insert("agent".to_owned(), json!(&*task.agent_name));
        slots.insert("attempt".to_owned(), json!(task.attempt));
        slots.insert("bundle".to_owned(), json!(bundle.to_string_lossy()));
        if let Ok(program) = own_file() {
            slots.insert("moonswarm".to_owned(), json!(program.to_string_lossy()));
        }
        let mut environment = bounded_environment(FUEL);
        environment.set_formatter(|out, _state, value| {
            let text: Cow<'_, str> = match value.as_str() {
                Some(text) => text.into(),
                None if value.is_undefined() => return Err(ErrorKind::UndefinedError.into()),
                None => json_of(value)?.to_string().into(),
            };
            charge(text.len())?;
            Ok(out.write_str(&text)?)
        });
        Self { environment, slots: object_of(&slots) }
    }
}

/// Returns the directory of the run; creates it if it is the run's own.
pub(super) fn workdir(task: &Task) -> Result<PathBuf, Failure> {
    // Most steps of a run find it there.
    if task.own_workdir && !task.workdir.is_dir() {
        std::fs::create_dir_all(&task.workdir).map_err(|error| {
            let dir = task.workdir.display();
            // A disk may have space a moment later.
            Failure::new(kind::PROCESS, format!("failed to make the directory {dir}: {error}"))
                .retryable()
        })?;
    }
    enter(&task.workdir)
}

/// Resolves the `cwd` of the agent, which must be inside the run's directory.
pub(super) fn directory(task: &Task, workdir: &Path) -> Result<Option<PathBuf>, Failure> {
    let Some(cwd) = &task.agent.cwd else { return Ok(None) };
    let inside = enter(&workdir.join(cwd))?;
    if inside.starts_with(workdir) {
        Ok(Some(inside))
    } else {
        Err(Failure::new(
            kind::PROCESS,
            format!(
                "the `cwd` {cwd:?} of agent {} leads out of the run's directory {}",
                task.agent_name,
                workdir.display()
            ),
        ))
    }
}

fn enter(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| {
        Failure::new(
            kind::PROCESS,
            format!("failed to enter the directory {}: {error}", path.display()),
        )
    })
}

/// Converts a JSON value for templates.
fn value_of(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => ().into(),
        serde_json::Value::Bool(truth) => (*truth).into(),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.into(),
            (None, Some(number)) => number.into(),
            (None, None) => number.as_f64().unwrap_or(f64::NAN).into(),
        },
        serde_json::Value::String(text) => text.as_str().into(),
        serde_json::Value::Array(items) => items.iter().map(value_of).collect(),
        serde_json::Value::Object(object) => object_of(object),
    }
}

fn object_of(object: &Map<String, serde_json::Value>) -> Value {
    Value::from_pairs(object.iter().map(|(key, json)| (key.as_str(), value_of(json))))
}

/// Converts a value of a template to JSON.
fn json_of(value: &Value) -> Result<serde_json::Value, minijinja::Error> {
    let refused = || {
        let message = format!("a value of the kind {} has no JSON", value.kind());
        minijinja::Error::new(ErrorKind::BadSerialization, message)
    };
    match value.kind() {
        ValueKind::None => Ok(serde_json::Value::Null),
        ValueKind::Bool => Ok(value.is_true().into()),
        ValueKind::Number => match value.as_i64() {
            Some(number) => Ok(number.into()),
            None => value
                .to_string()
                .parse::<serde_json::Number>()
                .map(Into::into)
                .map_err(|_| refused()),
        },
        ValueKind::String => value.as_str().map(Into::into).ok_or_else(refused),
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter()?.map(|item| json_of(&item)).collect()
        }
        ValueKind::Map => {
            let mut object = Map::new();
            for key in value.try_iter()? {
                object.insert(key.to_string(), json_of(&value.get_item(&key)?)?);
            }
            Ok(object.into())
        }
        _ => Err(refused()),
    }
}

/// Fails when the text exceeds [`MAX_LEN`].
struct Capped(Vec<u8>);

impl io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(&bytes[..bytes.len().min(MAX_LEN + 1 - self.0.len())]);
        if self.0.len() > MAX_LEN {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
