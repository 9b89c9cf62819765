//! One VM: the frozen base environment and the author library over it.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{Arc, OnceLock},
};

use mlua::{Function, Lua, LuaOptions, StdLib, Table, Value, chunk::ChunkMode};

use super::{
    call::with_operations,
    desk::{Desk, compiler, host_functions},
    raw::Machine,
    source::Source,
};
use crate::memory::Share;

/// Memory categories of a VM: 0 is the library's own.
const CATEGORIES: u8 = u8::MAX;
/// The memory that a script may allocate beyond its limit before it is stopped: garbage and
/// temporary values.
const PASSING: usize = 16 << 20;

/// The parts of the library, in the order in which they are built on each other.
const LIBRARY: [(&str, &str); 8] = [
    ("sandbox", include_str!("../../lua/sandbox.luau")),
    ("failure", include_str!("../../lua/failure.luau")),
    ("schema", include_str!("../../lua/schema.luau")),
    ("nodes", include_str!("../../lua/nodes.luau")),
    ("swarm", include_str!("../../lua/swarm.luau")),
    ("ctx", include_str!("../../lua/ctx.luau")),
    ("test", include_str!("../../lua/test.luau")),
    ("run", include_str!("../../lua/run.luau")),
];

/// The entry points of the library.
pub(crate) struct Entries {
    pub(crate) flow: Function,
    pub(crate) evaluate: Function,
    pub(crate) agent: Function,
    pub(crate) tests: Function,
    pub(crate) test: Function,
    pub(crate) answer: Function,
    /// The value that `require("swarm")` returns.
    pub(crate) swarm: Table,
}

/// One VM for one version of a blueprint.
pub(crate) struct Vm {
    pub(crate) machine: Rc<Machine>,
    pub(crate) desk: Rc<Desk>,
    pub(crate) entries: Entries,
    key: Arc<str>,
    free: RefCell<Vec<u8>>,
    runs: usize,
    memory: Cell<usize>,
    /// Branches of its live flows.
    pub(crate) branches: Cell<usize>,
    /// True if it ran out of memory: its flows must be replayed in another VM.
    pub(crate) condemned: Cell<bool>,
    /// True if it belongs to one run.
    pub(crate) solo: bool,
    /// A flow has left since its garbage was last collected.
    pub(crate) left: Cell<bool>,
    /// Its share of the memory account.
    share: RefCell<Option<Share>>,
}

impl Vm {
    /// Opens a VM of at most `memory` bytes for `runs` flows at a time.
    pub(crate) fn open(
        source: &Source,
        memory: usize,
        runs: usize,
        solo: bool,
    ) -> mlua::Result<Self> {
        let libraries = StdLib::TABLE
            | StdLib::STRING
            | StdLib::UTF8
            | StdLib::BIT
            | StdLib::MATH
            | StdLib::COROUTINE
            | StdLib::DEBUG;
        let lua = Lua::new_with(libraries, LuaOptions::new())?;
        let desk = Rc::new(Desk::new(source.clone()));
        let machine = Machine::new(lua)?;
        *desk.machine.borrow_mut() = Rc::downgrade(&machine);
        let entries = library(&machine, &desk)?;
        let runs = runs.clamp(1, usize::from(CATEGORIES));
        let last = u8::try_from(runs).unwrap_or(CATEGORIES);
        let vm = Self {
            machine,
            desk,
            entries,
            key: source.key().into(),
            free: RefCell::new((1..=last).rev().collect()),
            runs,
            memory: Cell::new(memory),
            branches: Cell::new(0),
            condemned: Cell::new(false),
            solo,
            left: Cell::new(false),
            share: RefCell::default(),
        };
        vm.bound(memory);
        Ok(vm)
    }

    /// Lets the VM grow by at most `more` bytes from now on, and never over its limit.
    pub(crate) fn let_grow(&self, more: usize) {
        let most = self.machine.memory().saturating_add(more.saturating_add(PASSING));
        let set = self.machine.lua().set_memory_limit(most.min(self.memory.get()));
        debug_assert!(set.is_ok(), "a VM of ours always has a limit");
    }

    /// Counts it as what it holds now.
    pub(crate) fn weigh(&self) {
        if let Some(share) = &mut *self.share.borrow_mut() {
            share.set(self.machine.memory());
        }
    }

    /// Counts it from now on.
    pub(crate) fn count_in(&self, share: Share) {
        *self.share.borrow_mut() = Some(share);
        self.weigh();
    }

    /// Collects its garbage.
    pub(crate) fn collect(&self) {
        self.left.set(false);
        // A finalizer cannot fail: the sandbox has none.
        drop(self.machine.lua().gc_collect());
        self.weigh();
    }

    /// Returns true if it is so full that new flows should use another VM.
    pub(crate) fn is_full(&self) -> bool {
        self.machine.memory() > self.memory.get() / 2
    }

    /// Sets the most memory that it may use.
    pub(crate) fn bound(&self, memory: usize) {
        self.memory.set(memory);
        self.let_grow(memory);
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Flows that live here.
    pub(crate) fn live(&self) -> usize {
        self.runs - self.free.borrow().len()
    }

    /// A memory category for one more flow.
    pub(crate) fn admit(&self) -> Option<u8> {
        self.free.borrow_mut().pop()
    }

    /// Gives a category back.
    pub(crate) fn release(&self, category: u8) {
        self.free.borrow_mut().push(category);
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.desk.leave_coverage();
    }
}

/// The library's own code, compiled once for the process: most of what opening a VM would cost.
fn compiled() -> mlua::Result<&'static [Vec<u8>]> {
    static COMPILED: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    if let Some(compiled) = COMPILED.get() {
        return Ok(compiled);
    }
    let fresh: mlua::Result<Vec<Vec<u8>>> =
        LIBRARY.iter().map(|(_, text)| compiler().compile(with_operations(text))).collect();
    let fresh = fresh?;
    // Another thread may have been faster, with the same.
    Ok(COMPILED.get_or_init(|| fresh))
}

/// Loads the library, then freezes what every run shares.
fn library(machine: &Rc<Machine>, desk: &Rc<Desk>) -> mlua::Result<Entries> {
    let lua = machine.lua();
    let base = lua.globals();
    let info: Function = base.get::<Table>("debug")?.get("info")?;
    let host = host_functions(machine, desk)?;
    let mut entries = None;
    for (name, code) in LIBRARY.iter().map(|(name, _)| name).zip(compiled()?) {
        let chunk = lua.load(code.as_slice()).set_name(format!("=swarm/{name}"));
        let args = (host.clone(), base.clone(), info.clone());
        let value: Value = chunk.set_mode(ChunkMode::Binary).call(args)?;
        match *name {
            "sandbox" => {}
            "run" => entries = Some(value),
            _ => host.raw_set(*name, value)?,
        }
    }
    let Some(Value::Table(run)) = entries else {
        return Err(mlua::Error::runtime("the library returns its entries as a table"));
    };
    let nulls = lua.create_table()?;
    nulls.raw_set("__tostring", lua.create_function(|_, _: Value| Ok("null"))?)?;
    nulls.raw_set("__metatable", false)?;
    nulls.set_readonly(true);
    lua.set_type_metatable::<mlua::LightUserData>(Some(nulls));
    lua.sandbox(true)?;
    Ok(Entries {
        flow: run.get("flow")?,
        evaluate: run.get("evaluate")?,
        agent: run.get("agent")?,
        tests: run.get("tests")?,
        test: run.get("test")?,
        answer: run.get("answer")?,
        swarm: host.raw_get("swarm")?,
    })
}
