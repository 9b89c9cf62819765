//! The host functions of the author library, called while a script runs.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::{Rc, Weak},
};

use mlua::{
    Function, Lua, LuaString, Table, Value,
    chunk::{ChunkMode, Compiler},
};

use super::{random::Random, raw::Machine, source::Source, time};
use crate::{
    blueprint::{
        DurationError, EACH, Edition, FlowNode, flow_nodes, old_form, order_loops, parse_duration,
        seconds_to_ms,
    },
    journal::Note,
    protocol::Json,
};

/// Notes between two awaits.
const NOTES: usize = 10_000;
/// Bytes of notes between two awaits.
const NOTE_BYTES: usize = 8 << 20;

/// The current activity of the VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Evaluating a chunk, an agent's function or a query: what a flow says and draws is refused.
    Pure,
    /// Advancing a flow.
    Flow,
    /// Running a test of a blueprint.
    Test,
}

/// The state that the host functions of the library read and write while a script runs.
pub(crate) struct Desk {
    source: Source,
    pub(crate) machine: RefCell<Weak<Machine>>,
    chunks: RefCell<HashMap<String, Function>>,
    agents: RefCell<HashMap<String, String>>,
    /// The number of executions of each node, if the flow is a table and coverage is on.
    nodes: RefCell<Vec<(FlowNode, u64)>>,
    pub(crate) mode: Cell<Mode>,
    pub(crate) now_ms: Cell<u64>,
    pub(crate) random: Cell<Random>,
    /// The largest value, in bytes of JSON.
    pub(crate) value: Cell<usize>,
    pub(crate) notes: RefCell<Vec<Note>>,
    note_room: Cell<(usize, usize)>,
    /// Too many notes.
    pub(crate) flooded: Cell<bool>,
    /// A host function found no room in the VM.
    pub(crate) starved: Cell<bool>,
}

impl Desk {
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            machine: RefCell::default(),
            chunks: RefCell::default(),
            agents: RefCell::default(),
            nodes: RefCell::default(),
            mode: Cell::new(Mode::Pure),
            now_ms: Cell::new(0),
            random: Cell::new(Random::new(0)),
            value: Cell::new(usize::MAX),
            notes: RefCell::default(),
            note_room: Cell::new((0, 0)),
            flooded: Cell::new(false),
            starved: Cell::new(false),
        }
    }

    /// Opens the desk for one slice.
    pub(crate) fn open(&self, mode: Mode, now_ms: u64, random: Random, value: usize) {
        self.mode.set(mode);
        self.now_ms.set(now_ms);
        self.random.set(random);
        self.value.set(value);
        self.note_room.set((NOTES, NOTE_BYTES));
        self.notes.borrow_mut().clear();
        self.flooded.set(false);
        self.starved.set(false);
    }

    fn machine(&self) -> Rc<Machine> {
        self.machine.borrow().upgrade().expect("a script runs only while its machine lives")
    }

    /// Returns the value of a JSON text, or nil and the problem.
    fn decoded(&self, text: &str) -> mlua::Result<(Value, Option<String>)> {
        Ok(match self.watch(self.machine().decode(text))? {
            Ok(value) => (value, None),
            Err(problem) => (Value::Nil, Some(problem)),
        })
    }

    /// Remembers that it was memory, since a script can catch what is raised.
    fn watch<T>(&self, result: mlua::Result<T>) -> mlua::Result<T> {
        if let Err(mlua::Error::MemoryError(_)) = &result {
            self.starved.set(true);
        }
        result
    }

    fn compile(&self, lua: &Lua, path: &str) -> mlua::Result<Option<Result<Function, String>>> {
        if let Some(function) = self.chunks.borrow().get(path) {
            return Ok(Some(Ok(function.clone())));
        }
        let text = match self.source.code(path) {
            None => return Ok(None),
            Some(Err(problem)) => return Ok(Some(Err(problem))),
            Some(Ok(text)) => text,
        };
        let function = |text: &str| {
            lua.load(text)
                .set_name(format!("={path}"))
                .set_mode(ChunkMode::Text)
                .set_compiler(
                    compiler()
                        .set_coverage_level(self.source.coverage().is_some().into())
                        .set_debug_level(1 + u8::from(self.source.has_names())),
                )
                .into_function()
        };
        let ordered = match self.source.edition() {
            Edition::One => None,
            Edition::Two => match order_loops(text) {
                Ok(ordered) => ordered,
                Err(problem) => return Ok(Some(Err(format!("{path}:{problem}")))),
            },
        };
        let compiled = match ordered {
            None => function(text),
            Some(ordered) => match function(&ordered) {
                // What is wrong is said of the text that was written.
                Err(mlua::Error::SyntaxError { .. }) if function(text).is_err() => function(text),
                other => other,
            },
        };
        match compiled {
            Ok(function) => {
                self.chunks.borrow_mut().insert(path.to_owned(), function.clone());
                Ok(Some(Ok(function)))
            }
            Err(mlua::Error::SyntaxError { message, .. }) => Ok(Some(Err(message))),
            Err(other) => Err(other),
        }
    }

    /// Leaves what was counted of the chunks, if anybody wants to know.
    pub(crate) fn leave_coverage(&self) {
        let Some(coverage) = self.source.coverage() else { return };
        for (path, chunk) in self.chunks.borrow().iter() {
            if let Some(Ok(text)) = self.source.code(path) {
                coverage.add(self.source.key(), path, text, chunk);
            }
        }
        let nodes = self.nodes.take();
        if !nodes.is_empty() {
            coverage.add_nodes(self.source.key(), self.source.entry(), nodes);
        }
    }

    /// Begins to count the nodes of the flow.
    fn count_nodes(&self, flow: Value) -> mlua::Result<()> {
        if !self.nodes.borrow().is_empty() {
            return Ok(());
        }
        // What is no data would be a finding: there is nothing to count then.
        let Ok(flow) = self.machine().encode(flow, usize::MAX)? else { return Ok(()) };
        let flow = serde_json::from_str(&flow).unwrap_or_default();
        let entry = self.source.entry();
        let nodes = flow_nodes(&flow, entry, self.source.text(entry).unwrap_or_default());
        self.nodes.replace(nodes.into_iter().map(|node| (node, 0)).collect());
        Ok(())
    }

    fn count_node(&self, at: &str) {
        if let Some((_, hits)) = self.nodes.borrow_mut().iter_mut().find(|(node, _)| node.at == at)
        {
            *hits += 1;
        }
    }

    fn load(
        &self,
        lua: &Lua,
        path: &str,
        env: &Table,
    ) -> mlua::Result<(Option<Function>, Option<String>)> {
        Ok(match self.compile(lua, path)? {
            None => (None, None),
            Some(Err(problem)) => (None, Some(problem)),
            Some(Ok(template)) => {
                let chunk = template.deep_clone()?;
                chunk.set_environment(env.clone())?;
                env.set_safeenv(true);
                (Some(chunk), None)
            }
        })
    }

    fn agent_md(&self, path: &str) -> Result<String, String> {
        if let Some(text) = self.agents.borrow().get(path) {
            return Ok(text.clone());
        }
        let text = self.source.agent_md(path)?.to_string();
        self.agents.borrow_mut().insert(path.to_owned(), text.clone());
        Ok(text)
    }

    /// Evaluates a string of a table flow.
    fn evaluate(
        &self,
        text: &str,
        reading: u32,
        slots: Value,
    ) -> mlua::Result<(Value, Option<String>)> {
        let machine = self.machine();
        let slots = match machine.encode(slots, self.value.get())? {
            Ok(slots) => slots,
            Err(problem) => return Ok((Value::Nil, Some(problem.to_string()))),
        };
        match (self.source.host().evaluate)(text, reading, &slots) {
            Err(problem) => Ok((Value::Nil, Some(problem))),
            Ok(json) => Ok(match machine.decode(&json)? {
                Ok(value) => (value, None),
                Err(problem) => (Value::Nil, Some(problem)),
            }),
        }
    }

    /// Takes a note; says what is wrong with it.
    fn note(
        &self,
        kind: &str,
        text: LuaString,
        detail: Value,
        data: Value,
    ) -> mlua::Result<Option<String>> {
        if self.mode.get() == Mode::Pure {
            return Ok(None);
        }
        let Ok(text) = text.to_str().map(|text| text.to_owned()) else {
            return Ok(Some("text must be UTF-8".to_owned()));
        };
        let data = if data.is_nil() {
            None
        } else {
            match self.machine().encode(data, self.value.get())? {
                Ok(json) => Some(Json::from_trusted(json)),
                Err(problem) => return Ok(Some(problem.to_string())),
            }
        };
        let size = text.len()
            + data.as_ref().map_or(0, Json::len)
            + detail.as_string().map_or(0, |s| s.as_bytes().len());
        let (count, bytes) = self.note_room.get();
        if count == 0 || size > bytes {
            self.flooded.set(true);
            return Ok(Some("too much was said without an await".to_owned()));
        }
        self.note_room.set((count - 1, bytes - size));
        let note = match kind {
            "status" => Note::Status { text, progress: detail.as_number() },
            "log" => {
                let Some(message) = detail.as_string() else { return Ok(None) };
                Note::Log { level: text, message: message.to_string_lossy(), data }
            }
            _ => Note::Event { topic: text, data: data.unwrap_or_else(Json::null) },
        };
        self.notes.borrow_mut().push(note);
        Ok(None)
    }

    fn draw<T>(
        &self,
        draw: impl FnOnce(&mut Random) -> T,
    ) -> (Option<T>, Option<&'static str>, Option<bool>) {
        if self.mode.get() == Mode::Pure {
            return (None, Some("works only while a flow runs"), Some(true));
        }
        let mut random = self.random.get();
        let drawn = draw(&mut random);
        self.random.set(random);
        (Some(drawn), None, None)
    }
}

/// Returns the compiler for all code: without the shortcuts past the functions that the sandbox
/// replaces, and without inlining, which would shift the levels that errors name.
pub(crate) fn compiler() -> Compiler {
    Compiler::new()
        .set_optimization_level(1)
        .set_debug_level(1)
        .add_disabled_builtin("setmetatable")
        .add_disabled_builtin("tostring")
}

/// The functions and values that the library is given.
pub(crate) fn host_functions(machine: &Rc<Machine>, desk: &Rc<Desk>) -> mlua::Result<Table> {
    let lua = machine.lua();
    let host = lua.create_table()?;
    for (name, function) in machine.natives()? {
        host.raw_set(name, function)?;
    }
    host.raw_set("arrays", machine.arrays())?;
    host.raw_set("null", Value::NULL)?;
    host.raw_set("entry", desk.source.entry())?;
    host.raw_set("edition", desk.source.edition().number())?;
    host.raw_set("each_name", EACH)?;

    let at = Rc::clone(desk);
    host.raw_set(
        "encode",
        lua.create_function(move |_, value: Value| {
            let limit = at.value.get();
            Ok(match at.watch(at.machine().encode(value, limit))? {
                Ok(text) => (Some(text), None),
                Err(problem) => (None, Some(problem.to_string())),
            })
        })?,
    )?;
    let at = Rc::clone(desk);
    host.raw_set(
        "decode",
        lua.create_function(move |_, text: LuaString| {
            let Ok(text) = text.to_str() else {
                return Ok((Value::Nil, Some("the text is not UTF-8".to_owned())));
            };
            at.decoded(&text)
        })?,
    )?;
    let at = Rc::clone(desk);
    host.raw_set(
        "agent_md",
        lua.create_function(move |_, path: String| match at.agent_md(&path) {
            Err(problem) => Ok((Value::Nil, Some(problem))),
            Ok(text) => at.decoded(&text),
        })?,
    )?;
    let at = Rc::clone(desk);
    host.raw_set(
        "load",
        lua.create_function(move |lua, (path, env): (String, Table)| {
            at.watch(at.load(lua, &path, &env))
        })?,
    )?;
    let at = Rc::clone(desk);
    host.raw_set(
        "has",
        lua.create_function(move |_, path: String| Ok(at.source.text(&path).is_some()))?,
    )?;
    let at = Rc::clone(desk);
    host.raw_set("testing", lua.create_function(move |_, ()| Ok(at.mode.get() == Mode::Test))?)?;
    host.raw_set("counting", desk.source.coverage().is_some())?;
    let at = Rc::clone(desk);
    host.raw_set(
        "count_nodes",
        lua.create_function(move |_, flow: Value| at.watch(at.count_nodes(flow)))?,
    )?;
    let at = Rc::clone(desk);
    host.raw_set(
        "count_node",
        lua.create_function(move |_, place: String| {
            at.count_node(&place);
            Ok(())
        })?,
    )?;
    let at = Rc::clone(desk);
    host.raw_set("flows", lua.create_function(move |_, ()| Ok(at.mode.get() == Mode::Flow))?)?;
    let at = Rc::clone(desk);
    host.raw_set(
        "text",
        lua.create_function(move |_, path: String| Ok(at.source.text(&path).map(str::to_owned)))?,
    )?;
    let at = Rc::clone(desk);
    host.raw_set(
        "names",
        lua.create_function(move |_, (text, reading): (String, u32)| {
            Ok(pair((at.source.host().names)(&text, reading)))
        })?,
    )?;
    let at = Rc::clone(desk);
    host.raw_set(
        "evaluate",
        lua.create_function(move |_, (text, reading, slots): (String, u32, Value)| {
            at.watch(at.evaluate(&text, reading, slots))
        })?,
    )?;
    let at = Rc::clone(desk);
    host.raw_set(
        "note",
        lua.create_function(
            move |_, (kind, text, detail, data): (String, LuaString, Value, Value)| {
                at.watch(at.note(&kind, text, detail, data))
            },
        )?,
    )?;
    let at = Rc::clone(desk);
    #[expect(
        clippy::cast_precision_loss,
        reason = "milliseconds of any date are exact in a double"
    )]
    host.raw_set("now", lua.create_function(move |_, ()| Ok(at.now_ms.get() as f64 / 1000.0))?)?;
    let at = Rc::clone(desk);
    host.raw_set("random", lua.create_function(move |_, ()| Ok(at.draw(Random::fraction)))?)?;
    let at = Rc::clone(desk);
    host.raw_set(
        "uuid",
        lua.create_function(move |_, ()| Ok(at.draw(|random| random.uuid().to_string())))?,
    )?;
    let edition = desk.source.edition();
    host.raw_set(
        "duration",
        lua.create_function(move |_, value: Value| Ok(milliseconds(&value, edition)))?,
    )?;
    host.raw_set(
        "freeze",
        lua.create_function(|_, table: Table| {
            table.set_readonly(true);
            Ok(table)
        })?,
    )?;
    host.raw_set(
        "time_format",
        lua.create_function(|_, seconds: f64| Ok(pair(time::format(seconds))))?,
    )?;
    host.raw_set(
        "time_parse",
        lua.create_function(|_, text: String| Ok(pair(time::parse(&text))))?,
    )?;
    Ok(host)
}

/// Reads a duration, which is a text or a number of seconds; else whether it has the shape of one.
#[expect(clippy::cast_precision_loss, reason = "a hundred years of milliseconds are exact")]
fn milliseconds(value: &Value, edition: Edition) -> (Option<f64>, bool) {
    let loose = |text: &str| edition >= Edition::Two && old_form(text).is_some();
    let read = match value {
        Value::String(text) => {
            match text.to_str().map(|text| (loose(&text), parse_duration(&text))) {
                Ok((true, _)) => return (None, false),
                Ok((false, Ok(ms))) => Some(ms),
                Ok((false, Err(DurationError::TooLong(_)))) => None,
                Ok((false, Err(DurationError::Shape(_)))) | Err(_) => return (None, false),
            }
        }
        // A whole number comes as an integer.
        Value::Integer(seconds) => seconds_to_ms(*seconds as f64),
        _ => value.as_number().and_then(seconds_to_ms),
    };
    (read.map(|ms| ms as f64), read.is_none())
}

fn pair<T>(result: Result<T, String>) -> (Option<T>, Option<String>) {
    match result {
        Ok(value) => (Some(value), None),
        Err(problem) => (None, Some(problem)),
    }
}
