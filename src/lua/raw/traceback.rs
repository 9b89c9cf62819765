//! The calls that were in progress where a coroutine stopped.

use std::ffi::{CStr, c_int};

use mlua::ffi::{self, lua_State};
use serde::Serialize;

use super::calls::{Call, calls};

/// Frames that are kept.
pub(crate) const MOST: usize = 10;
/// The part of the library that runs flows that are tables.
const NODES: &str = "swarm/nodes";
/// The key of a node's place, as in lua/nodes.luau.
const PLACE: ffi::lua_Integer = 0;
/// The longest place of a node that is kept, in bytes.
const POINTER: usize = 2_000;

/// A call of the author's that was in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Frame {
    /// The file in the bundle.
    pub(crate) file: String,
    /// The line that it was in.
    pub(crate) line: u32,
    /// The function's name, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) function: Option<String>,
}

/// The author's calls in progress, the innermost first; the outermost always is the last.
///
/// # Safety
/// `state` is a coroutine that has halted, and stays alive meanwhile.
pub(super) unsafe fn traceback(state: *mut lua_State) -> Vec<Frame> {
    let mut frames = Vec::new();
    // SAFETY: the caller's promise.
    for call in unsafe { calls(state) }.filter(|call| !call.is_of_library()) {
        let function = call.function();
        let frame = Frame { file: call.file().into_owned(), line: call.line, function };
        match frames.len() {
            MOST => frames[MOST - 1] = frame,
            _ => frames.push(frame),
        }
    }
    frames
}

/// The place where a coroutine waits.
pub(crate) struct WaitPlace {
    /// The author's call, `file:line`; absent where no line of the author's is in progress.
    pub(crate) line: Option<String>,
    /// The innermost node of a flow that is a table: its JSON pointer.
    pub(crate) node: Option<String>,
}

/// Returns where a halted coroutine waits. Looks at as few of its calls as possible.
///
/// # Safety
/// As [`traceback`].
pub(super) unsafe fn place(state: *mut lua_State) -> WaitPlace {
    let mut found = WaitPlace { line: None, node: None };
    // SAFETY: the caller's promise.
    for call in unsafe { calls(state) } {
        if !call.is_of_library() {
            // Recorded of each step: put together without a formatter.
            found.line = Some([&*call.file(), ":", &call.line.to_string()].concat());
            break;
        }
        if found.node.is_none() && call.file() == NODES {
            // SAFETY: as above.
            found.node = unsafe { node(state, call.level) };
        }
    }
    found
}

/// Returns the name of the library's function that the author's innermost call waits in.
///
/// # Safety
/// As [`traceback`].
pub(super) unsafe fn function(state: *mut lua_State) -> Option<String> {
    // SAFETY: the caller's promise.
    let calls = unsafe { calls(state) };
    calls.take_while(Call::is_of_library).find_map(|call| call.function())
}

/// Returns the place of the node that a function of the library got as its first argument.
///
/// # Safety
/// As [`traceback`]. Nothing is allocated: the stack of a coroutine that waits in a call has room
/// for two values.
unsafe fn node(state: *mut lua_State, level: c_int) -> Option<String> {
    // SAFETY: none of these calls raises or allocates, and the stack is left as it was.
    unsafe {
        let top = ffi::lua_gettop(state);
        let mut found = None;
        if ffi::lua_getargument(state, level, 1) != 0 {
            if ffi::lua_type(state, -1) == ffi::LUA_TTABLE {
                ffi::lua_rawgeti(state, -1, PLACE);
                if ffi::lua_type(state, -1) == ffi::LUA_TSTRING {
                    let text = ffi::lua_tolstring(state, -1, std::ptr::null_mut());
                    let text = CStr::from_ptr(text).to_string_lossy();
                    found = (text.len() <= POINTER).then(|| text.into_owned());
                }
            }
            ffi::lua_settop(state, top);
        }
        found
    }
}

/// The frames of an inner coroutine and of the one that waited for it, as many as are kept.
pub(crate) fn joined(mut inner: Vec<Frame>, outer: Vec<Frame>) -> Vec<Frame> {
    inner.extend(outer);
    if inner.len() > MOST {
        let last = inner.pop();
        inner.truncate(MOST - 1);
        inner.extend(last);
    }
    inner
}
