//! The one place that touches Lua's stack itself, and so the only one with `unsafe`.
//!
//! Owns the conversion between Lua values and JSON text, the coroutines that the flow resumes, the
//! interrupt, and the few library functions that must look at the running coroutine. It is here,
//! and not in safe `mlua`, for three reasons: conversion is the hottest part of a step and `mlua`'s
//! own drops what it cannot say; resuming through `mlua` turns an author's error tables into text;
//! and memory can only be accounted per run by Luau's memory categories.
//!
//! The rules that keep it sound: a Lua call that may raise (whatever allocates) runs only in
//! protected mode, in a frame that owns nothing; a state is used only while something holds its
//! coroutine; a [`Machine`] outlives its coroutines, because each holds it.
#![expect(unsafe_code, reason = "what this module is for")]

mod calls;
mod decode;
mod encode;
mod glance;
mod locals;
mod meter;
mod natives;
mod ordered;
mod plain;
mod traceback;

use std::{
    ffi::{CStr, c_int, c_void},
    ptr,
    rc::Rc,
};

use mlua::{
    Function, IntoLuaMulti, Lua, Table, Value,
    ffi::{self, lua_State},
};

pub(crate) use encode::EncodeError;
pub use glance::Clean;
pub(crate) use glance::GlanceRoom;
pub use locals::{StackFrame, Variable, VariableRole};
pub(crate) use meter::{Allowance, Armed, Breach, Clock};
pub(crate) use traceback::{Frame, WaitPlace, joined};

use crate::protocol::{Failure, Json, failure::kind, text::floor_char_boundary};
use meter::{METER, Parcel};

/// The longest error message that is kept.
const MESSAGE: usize = 8 << 10;

/// There is no memory for what the host wanted to do in the VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("find room in the VM")]
pub(crate) struct NoRoom;

/// One VM.
pub(crate) struct Machine {
    lua: Lua,
    main: *mut lua_State,
    arrays: Table,
}

/// The answer to a `ctx` call.
#[derive(Clone, Copy)]
pub(crate) enum Delivery<'a> {
    /// Nothing: the coroutine begins, or the call has no value.
    Nothing,
    /// The value that this JSON text says.
    Value(&'a str),
    /// `nil` and the error that this JSON text says.
    Failure(&'a str),
    /// `nil` and a message about how the call was made.
    Usage(&'a str),
    /// A number.
    Number(f64),
    /// `nil` and the error that another coroutine ended with.
    RaisedBy(&'a Coroutine),
}

/// The reason why a coroutine halted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Halt {
    /// In a `ctx` call.
    Called,
    /// At its end.
    Returned,
    /// By an error.
    Raised,
    /// There was no memory in the VM for what it did.
    OutOfMemory,
    /// There was no memory in the VM for what it was to be given.
    Undelivered,
}

impl Machine {
    /// Takes over a new VM and sets the interrupt.
    pub(crate) fn new(lua: Lua) -> mlua::Result<Rc<Self>> {
        let mut main = ptr::null_mut();
        // SAFETY: nothing runs in the VM; `mlua` does not set the interrupt itself.
        unsafe {
            lua.exec_raw::<()>((), |l| {
                main = l;
                (*ffi::lua_callbacks(l)).interrupt = Some(meter::interrupt);
            })?;
        }
        let arrays = lua.create_table()?;
        arrays.set_readonly(true);
        Ok(Rc::new(Self { lua, main, arrays }))
    }

    /// The VM as `mlua` sees it.
    pub(crate) fn lua(&self) -> &Lua {
        &self.lua
    }

    /// The metatable that marks arrays.
    pub(crate) fn arrays(&self) -> &Table {
        &self.arrays
    }

    /// Bytes that the VM holds.
    pub(crate) fn memory(&self) -> usize {
        self.lua.used_memory()
    }

    /// Writes `value` as JSON, `limit` bytes at most.
    pub(crate) fn encode(
        &self,
        value: Value,
        limit: usize,
    ) -> mlua::Result<Result<String, EncodeError>> {
        let style = self.style(limit);
        let mut written = Ok(String::new());
        let out = &raw mut written;
        // SAFETY: the value is the only thing on the closure's stack; encoding raises nothing.
        unsafe {
            self.lua.exec_raw::<()>(value, |l| {
                *out = encode::encode(l, 1, style, str::to_owned);
                ffi::lua_settop(l, 0);
            })?;
        }
        Ok(written)
    }

    /// Reads JSON text.
    pub(crate) fn decode(&self, text: &str) -> mlua::Result<Result<Value, String>> {
        let mut problem = None;
        let bytes: *const [u8] = text.as_bytes();
        let value = {
            let problem = &raw mut problem;
            // SAFETY: in protected mode; the closure's captures own nothing; `problem` outlives it.
            unsafe {
                self.lua.exec_raw::<Value>(&self.arrays, |l| {
                    let room = ffi::lua_checkstack(l, decode::SLOTS) != 0;
                    match room.then(|| decode::decode(l, bytes, 1)) {
                        Some(Ok(())) => ffi::lua_remove(l, 1),
                        Some(Err(error)) => {
                            *problem = Some(error);
                            ffi::lua_settop(l, 0);
                        }
                        None => ffi::lua_settop(l, 0),
                    }
                })?
            }
        };
        Ok(match problem {
            None => Ok(value),
            Some(error) => {
                Err(format!("{} at byte {}", error.problem.to_string_lossy(), error.at + 1))
            }
        })
    }

    /// Makes a coroutine whose allocations count in `category`.
    pub(crate) fn coroutine(
        self: &Rc<Self>,
        category: u8,
        body: &Function,
        args: impl IntoLuaMulti,
    ) -> Result<Coroutine, NoRoom> {
        let mut args = args.into_lua_multi(&self.lua).map_err(|_| NoRoom)?;
        args.push_front(Value::Function(body.clone()));
        let (mut state, mut anchor) = (ptr::null_mut(), ffi::LUA_NOREF);
        let (state_out, anchor_out) = (&raw mut state, &raw mut anchor);
        // SAFETY: in protected mode; the captures are pointers to locals that outlive the call.
        let made = unsafe {
            let made = self.lua.exec_raw::<()>(args, |l| {
                let count = ffi::lua_gettop(l);
                ffi::lua_setmemcat(l, c_int::from(category));
                let co = ffi::lua_newthread(l);
                ffi::lua_setmemcat(l, 0);
                *anchor_out = ffi::lua_ref(l, -1);
                *state_out = co;
                ffi::lua_pop(l, 1);
                ffi::lua_xmove(l, co, count);
            });
            ffi::lua_setmemcat(self.main, 0);
            made
        };
        made.map_err(|_| NoRoom)?;
        Ok(Coroutine { machine: Rc::clone(self), state, anchor })
    }

    fn style(&self, limit: usize) -> encode::Style {
        encode::Style { array: self.arrays.to_pointer(), limit, functions: false }
    }
}

/// A coroutine that the host resumes; dropping it releases it.
pub(crate) struct Coroutine {
    machine: Rc<Machine>,
    state: *mut lua_State,
    anchor: c_int,
}

impl Coroutine {
    /// Returns the author's calls in progress, the innermost first; the outermost is always the last.
    pub(crate) fn traceback(&self) -> Vec<Frame> {
        // SAFETY: halted and anchored: its calls stay until it is dropped; to ask changes nothing.
        unsafe { traceback::traceback(self.state) }
    }

    /// Returns the author's calls in progress with their variables, the innermost first, and the
    /// number of those that were left out.
    pub(crate) fn stack(&self, room: &mut GlanceRoom<'_>) -> (Vec<StackFrame>, usize) {
        let arrays = self.machine.arrays.to_pointer();
        let mut glance = glance::Glance::new(self.state, arrays, room);
        // SAFETY: as above; what is pushed to look at it is popped, and nothing of it is run.
        unsafe { locals::stack(&mut glance) }
    }

    /// Returns the call that it waits in.
    pub(crate) fn place(&self) -> WaitPlace {
        // SAFETY: as above.
        unsafe { traceback::place(self.state) }
    }

    /// Returns the name of the library's function that it waits in.
    pub(crate) fn called(&self) -> Option<String> {
        // SAFETY: as above.
        unsafe { traceback::function(self.state) }
    }
}

impl Drop for Coroutine {
    fn drop(&mut self) {
        // SAFETY: the anchor is ours, and giving it back allocates nothing.
        unsafe { ffi::lua_unref(self.machine.main, self.anchor) };
    }
}

/// The arguments of [`spawn`].
struct Birth {
    parent: *mut lua_State,
    at: c_int,
    number: f64,
    state: *mut lua_State,
    anchor: c_int,
}

/// Makes a coroutine from a function and its first argument on the parent's stack.
///
/// # Safety
/// Called by `lua_cpcall` with a [`Birth`].
unsafe extern "C-unwind" fn spawn(l: *mut lua_State) -> c_int {
    // SAFETY: protected mode; a new thread and a C function have the slots that are used here.
    unsafe {
        let birth = ffi::lua_touserdata(l, 1).cast::<Birth>();
        let co = ffi::lua_newthread(l);
        (*birth).anchor = ffi::lua_ref(l, -1);
        (*birth).state = co;
        ffi::lua_xpush((*birth).parent, co, (*birth).at);
        ffi::lua_xpush((*birth).parent, co, (*birth).at + 1);
        ffi::lua_pushnumber(co, (*birth).number);
    }
    0
}

impl Coroutine {
    /// Runs it until it halts.
    pub(crate) fn resume(&self, _armed: &Armed<'_>, delivery: Delivery<'_>) -> Halt {
        let l = self.state;
        // SAFETY: the coroutine is anchored and suspended; `lua_resume` is protected mode of its
        // own; texts live until it returns, and the parcel is taken back then.
        unsafe {
            let started = ffi::lua_status(l) == ffi::LUA_YIELD;
            let (count, parcel) = match delivery {
                Delivery::Nothing if started => (0, Parcel::Pushed(0)),
                Delivery::Nothing => (ffi::lua_gettop(l) - 1, Parcel::Pushed(0)),
                Delivery::Value(text) => (0, Parcel::Value(text.as_bytes())),
                Delivery::Failure(text) => (0, Parcel::Failure(text.as_bytes())),
                Delivery::Usage(text) => (0, Parcel::Usage(text.as_bytes())),
                Delivery::Number(number) => (0, Parcel::Number(number)),
                Delivery::RaisedBy(other) => {
                    if ffi::lua_checkstack(l, 2) == 0 {
                        return Halt::Undelivered;
                    }
                    ffi::lua_pushnil(l);
                    ffi::lua_xmove(other.state, l, 1);
                    (2, Parcel::Pushed(2))
                }
            };
            METER.with(|meter| {
                meter.branch.set(l);
                meter.parcel.set(started.then_some(parcel));
            });
            let status = ffi::lua_resume_(l, self.machine.main, count);
            let undelivered = METER.with(|meter| {
                meter.branch.set(ptr::null_mut());
                meter.parcel.take().is_some()
            });
            match status {
                _ if undelivered => Halt::Undelivered,
                ffi::LUA_OK => Halt::Returned,
                ffi::LUA_YIELD | ffi::LUA_BREAK => Halt::Called,
                ffi::LUA_ERRMEM => Halt::OutOfMemory,
                _ => Halt::Raised,
            }
        }
    }

    /// Makes a coroutine of the function at `at` of this halted one's call, which gets the
    /// argument after it and `number`.
    pub(crate) fn child(&self, at: c_int, number: u32, category: u8) -> Result<Self, NoRoom> {
        let mut birth = Birth {
            parent: self.state,
            at,
            number: f64::from(number),
            state: ptr::null_mut(),
            anchor: ffi::LUA_NOREF,
        };
        let main = self.machine.main;
        // SAFETY: `spawn` gets the birth that it expects; an error value is popped.
        let status = unsafe {
            ffi::lua_setmemcat(main, c_int::from(category));
            let status = ffi::lua_cpcall(main, spawn, (&raw mut birth).cast::<c_void>());
            ffi::lua_setmemcat(main, 0);
            if status != ffi::LUA_OK {
                ffi::lua_pop(main, 1);
            }
            status
        };
        if status != ffi::LUA_OK {
            return Err(NoRoom);
        }
        Ok(Self { machine: Rc::clone(&self.machine), state: birth.state, anchor: birth.anchor })
    }

    /// The number at `at` of its call or its results.
    pub(crate) fn number(&self, at: c_int) -> Option<f64> {
        // SAFETY: halted and anchored; reading a number converts nothing.
        unsafe {
            (ffi::lua_type(self.state, at) == ffi::LUA_TNUMBER)
                .then(|| ffi::lua_tonumber(self.state, at))
        }
    }

    /// The bytes of the string at `at`.
    pub(crate) fn bytes(&self, at: c_int) -> Option<Vec<u8>> {
        // SAFETY: halted and anchored; the bytes are copied before anything else happens.
        unsafe {
            (ffi::lua_type(self.state, at) == ffi::LUA_TSTRING)
                .then(|| (*encode::bytes_at(self.state, at)).to_vec())
        }
    }

    /// The text at `at`, with what is not UTF-8 replaced.
    pub(crate) fn text(&self, at: c_int) -> Option<String> {
        self.bytes(at).map(|bytes| match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// Returns true if `at` holds nil or nothing.
    pub(crate) fn is_nil(&self, at: c_int) -> bool {
        // SAFETY: halted and anchored.
        unsafe { ffi::lua_type(self.state, at) <= ffi::LUA_TNIL }
    }

    /// The value at `at` as JSON of at most `limit` bytes.
    pub(crate) fn json(&self, at: c_int, limit: usize) -> Result<Json, EncodeError> {
        if self.is_nil(at) {
            return Ok(Json::null());
        }
        // SAFETY: halted and anchored; `at` is in use.
        unsafe {
            encode::encode(self.state, at, self.machine.style(limit), |text| {
                Json::from_trusted(text)
            })
        }
    }

    /// The same, with each function as `{"$function":{"file":…,"line":…}}`.
    pub(crate) fn described(&self, at: c_int, limit: usize) -> Result<Json, EncodeError> {
        let style = encode::Style { functions: true, ..self.machine.style(limit) };
        // SAFETY: halted and anchored; the machine keeps slots free for `at`, which may be unused.
        unsafe { encode::encode(self.state, at, style, |text| Json::from_trusted(text)) }
    }

    /// The function at `at`, to be called later.
    pub(crate) fn function(&self, at: c_int) -> Result<Function, NoRoom> {
        let state = self.state;
        // SAFETY: in protected mode; the coroutine is halted and anchored.
        let function =
            unsafe { self.machine.lua.exec_raw::<Function>((), |l| ffi::lua_xpush(state, l, at)) };
        function.map_err(|_| NoRoom)
    }

    /// The error that it ended with.
    pub(crate) fn raised(&self) -> Failure {
        let main = self.machine.main;
        // SAFETY: halted by an error, so that its value is on top; moved to where there is room,
        // read there without running anything of the author's, and popped.
        unsafe {
            ffi::lua_xmove(self.state, main, 1);
            let at = ffi::lua_gettop(main);
            let failure = match ffi::lua_type(main, at) {
                ffi::LUA_TSTRING => {
                    let bytes = &*encode::bytes_at(main, at);
                    Failure::new(kind::SCRIPT, clipped(&String::from_utf8_lossy(bytes)))
                }
                ffi::LUA_TTABLE => {
                    match encode::encode(main, at, self.machine.style(1 << 20), str::to_owned) {
                        Ok(text) => failure_in(&text),
                        Err(error) => Failure::new(
                            kind::SCRIPT,
                            format!("raised a table that cannot be shown: {error}"),
                        ),
                    }
                }
                other => {
                    let name = CStr::from_ptr(ffi::lua_typename(main, other)).to_string_lossy();
                    Failure::new(kind::SCRIPT, format!("raised a {name} as its error"))
                }
            };
            ffi::lua_settop(main, at - 1);
            failure
        }
    }
}

/// Reads an error table; what it lacks is filled in.
fn failure_in(text: &str) -> Failure {
    let table: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let word = |name: &str| table.get(name).and_then(serde_json::Value::as_str);
    let count = |name: &str| {
        table.get(name).and_then(serde_json::Value::as_u64).and_then(|n| u32::try_from(n).ok())
    };
    Failure {
        kind: word("kind").unwrap_or(kind::SCRIPT).to_owned(),
        message: clipped(word("message").unwrap_or(text)),
        step: count("step"),
        agent: word("agent").map(str::to_owned),
        attempt: count("attempt"),
        retryable: table.get("retryable") == Some(&serde_json::Value::Bool(true)),
        data: table.get("data").map(Json::from),
    }
}

/// Returns the beginning of an error's text, at most 8 KiB.
pub(crate) fn clipped(text: &str) -> String {
    let end = floor_char_boundary(text, MESSAGE);
    if end < text.len() { format!("{}…", &text[..end]) } else { text.to_owned() }
}
