//! The variables of the calls that were in progress where a coroutine stopped.

use std::ffi::{c_int, c_void};

use mlua::ffi;
use serde_json::Value;

use super::{
    calls::{Call, calls, named},
    glance::{Glance, SLOTS},
};

/// The maximum number of calls of a coroutine.
const CALLS: usize = 20;
/// The maximum number of variables of each role in a call.
const VARIABLES: c_int = 100;

/// A call of the author's that was in progress, with what it can name.
#[derive(Debug, Clone, PartialEq)]
pub struct StackFrame {
    /// The function's name, if it has one.
    pub function: Option<String>,
    /// The file in the bundle.
    pub file: String,
    /// The line that it was in.
    pub line: u32,
    /// Its arguments, its locals in the order of their declaration, and its upvalues.
    pub variables: Vec<Variable>,
}

/// A variable of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    /// The name; `...[n]` for an argument without one.
    pub name: String,
    /// The role.
    pub role: VariableRole,
    /// The type of the value in Lua; `null` for `swarm.null`.
    pub of_type: String,
    /// The value, as far as it is shown.
    pub value: Value,
}

/// The role of a variable in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariableRole {
    /// An argument.
    Argument,
    /// A local.
    Local,
    /// A local of a function around this one.
    Upvalue,
}

/// Returns the author's calls in progress, the innermost first, and the number of those that were left
/// out.
///
/// # Safety
/// The state of `glance` is a coroutine that has halted, and stays alive meanwhile.
pub(super) unsafe fn stack(glance: &mut Glance<'_, '_>) -> (Vec<StackFrame>, usize) {
    let (mut frames, mut more) = (Vec::new(), 0);
    // SAFETY: the caller's promise.
    for call in unsafe { calls(glance.state()) }.filter(|call| !call.is_of_library()) {
        if frames.len() == CALLS {
            more += 1;
            continue;
        }
        // SAFETY: the call is one of Luau code.
        let variables = unsafe { variables(glance, &call) };
        let function = call.function();
        frames.push(StackFrame {
            function,
            file: call.file().into_owned(),
            line: call.line,
            variables,
        });
    }
    (frames, more)
}

/// Reads the variables of a call.
///
/// # Safety
/// As [`stack`]; `call` is one of its calls.
unsafe fn variables(glance: &mut Glance<'_, '_>, call: &Call<'_>) -> Vec<Variable> {
    let (l, level, arguments) = (glance.state(), call.level, call.arguments());
    let mut found = Vec::new();
    // SAFETY: `lua_checkstack` catches its own allocation failure; whatever is pushed is popped.
    unsafe {
        if ffi::lua_checkstack(l, SLOTS) == 0 {
            return found;
        }
        // Luau lists the locals of inner blocks before the arguments.
        let (mut locals, mut given) = (Vec::new(), Vec::new());
        for n in 1..=arguments + VARIABLES {
            let place = argument_of(l, level, n, arguments);
            let Some(name) = named(ffi::lua_getlocal(l, level, n)) else { break };
            match place {
                Some(place) => given.push((place, taken(glance, name, VariableRole::Argument))),
                None => locals.push(taken(glance, name, VariableRole::Local)),
            }
        }
        given.sort_by_key(|(place, _)| *place);
        found.extend(given.into_iter().map(|(_, argument)| argument));
        if call.is_variadic() {
            unnamed(glance, level, arguments, &mut found);
        }
        found.extend(locals);
        let mut about: ffi::lua_Debug = std::mem::zeroed();
        if ffi::lua_getinfo(l, level, c"f".as_ptr(), &raw mut about) != 0 {
            let function = ffi::lua_gettop(l);
            for n in 1..=VARIABLES {
                let name = ffi::lua_getupvalue(l, function, n);
                let Some(name) = named(name) else { break };
                found.push(taken(glance, name, VariableRole::Upvalue));
            }
            ffi::lua_settop(l, function - 1);
        }
    }
    found
}

/// Returns the place of a local among the named arguments; none for other locals. Luau does not say
/// it, so the local holds a mark for a moment, and whichever argument then has the mark is the one.
///
/// # Safety
/// As [`variables`], with room for three values on the stack.
unsafe fn argument_of(
    l: *mut ffi::lua_State,
    level: c_int,
    n: c_int,
    arguments: c_int,
) -> Option<c_int> {
    static MARK: u8 = 0;
    let mark = (&raw const MARK).cast::<c_void>().cast_mut();
    // SAFETY: what is pushed is popped; the local has its own value again before anything runs.
    unsafe {
        if arguments == 0 || ffi::lua_getlocal(l, level, n).is_null() {
            return None;
        }
        ffi::lua_pushlightuserdata(l, mark);
        ffi::lua_setlocal(l, level, n);
        let is_marked = |place: &c_int| {
            if ffi::lua_getargument(l, level, *place) == 0 {
                return false;
            }
            let found = ffi::lua_type(l, -1) == ffi::LUA_TLIGHTUSERDATA
                && ffi::lua_touserdata(l, -1) == mark;
            ffi::lua_pop(l, 1);
            found
        };
        let place = (1..=arguments).find(is_marked);
        ffi::lua_setlocal(l, level, n);
        place
    }
}

/// Reads the arguments that have no names.
///
/// # Safety
/// As [`variables`].
unsafe fn unnamed(
    glance: &mut Glance<'_, '_>,
    level: c_int,
    arguments: c_int,
    found: &mut Vec<Variable>,
) {
    for n in 1..=VARIABLES {
        // SAFETY: it pushes a value or nothing.
        if unsafe { ffi::lua_getargument(glance.state(), level, arguments + n) } == 0 {
            break;
        }
        // SAFETY: the value is on top.
        found.push(unsafe { taken(glance, format!("...[{n}]"), VariableRole::Argument) });
    }
}

/// Reads the value on top of the stack, and pops it.
///
/// # Safety
/// As [`stack`], with a value on top.
unsafe fn taken(glance: &mut Glance<'_, '_>, name: String, role: VariableRole) -> Variable {
    // SAFETY: the caller's promise.
    unsafe {
        let (of_type, value) = glance.variable();
        ffi::lua_pop(glance.state(), 1);
        Variable { name, role, of_type, value }
    }
}
