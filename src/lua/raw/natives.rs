//! The library functions that must look at the running coroutine, at an address, or at what the
//! original would do with its arguments.

use std::{
    ffi::{CStr, c_int},
    ptr,
};

use mlua::{
    Function, Table,
    ffi::{self, lua_State},
};

use super::{
    Machine, decode, encode,
    meter::{METER, Parcel},
    ordered,
};

/// The maximum product of the lengths of a text and of the longest set in its pattern, in bytes.
const MOST_COMPARED: usize = 256_000_000;

impl Machine {
    /// Returns the library functions that are written here, by name.
    pub(crate) fn natives(&self) -> mlua::Result<[(&'static str, Function); 14]> {
        let strings: Table = self.lua.globals().get("string")?;
        let original: Function = strings.get("format")?;
        // SAFETY: in protected mode; the functions keep to the module's rules.
        let await_ = unsafe {
            self.lua.exec_raw::<Function>(&self.arrays, |l| {
                ffi::lua_pushcclosurek(l, await_step, c"ctx".as_ptr(), 1, Some(deliver));
            })?
        };
        // SAFETY: as above.
        let format = unsafe {
            self.lua.exec_raw::<Function>(original, |l| {
                ffi::lua_pushcclosurek(l, format, c"format".as_ptr(), 1, None);
            })?
        };
        let bounded = |name: &'static CStr, level: c_int| -> mlua::Result<Function> {
            let original: Function = strings.get(name.to_str().unwrap_or_default())?;
            // SAFETY: as above.
            unsafe {
                self.lua.exec_raw::<Function>((original, f64::from(level)), |l| {
                    ffi::lua_pushcclosurek(l, matching, name.as_ptr(), 2, None);
                })
            }
        };
        // A function of the library stands between the author and this `find`.
        let (find, match_) = (bounded(c"find", 2)?, bounded(c"match", 1)?);
        let (gmatch, gsub) = (bounded(c"gmatch", 1)?, bounded(c"gsub", 1)?);
        // SAFETY: as above.
        unsafe {
            Ok([
                ("await", await_),
                ("format", format),
                ("find", find),
                ("match", match_),
                ("gmatch", gmatch),
                ("gsub", gsub),
                ("tostring", self.lua.create_c_function(tostring)?),
                ("running", self.lua.create_c_function(running)?),
                ("yield", self.lua.create_c_function(author_yield)?),
                ("pairs", self.lua.create_c_function(pairs)?),
                ("next", self.lua.create_c_function(next)?),
                ("each", self.lua.create_c_function(ordered::each)?),
                ("ordered_pairs", self.lua.create_c_function(ordered::pairs)?),
                ("ordered_next", self.lua.create_c_function(ordered::next)?),
            ])
        }
    }
}

/// `ctx`'s way out: gives its arguments to the host and waits for the answer.
///
/// # Safety
/// Called by Lua.
unsafe extern "C-unwind" fn await_step(l: *mut lua_State) -> c_int {
    // SAFETY: a C function has free slots; nothing here needs dropping.
    unsafe {
        let branch = METER.with(|meter| meter.branch.get());
        let problem = if branch.is_null() {
            c"works only while a flow runs"
        } else if branch != l {
            c"does not work inside a coroutine of your own; use ctx:spawn or ctx:all"
        } else if ffi::lua_isyieldable(l) == 0 {
            c"does not work inside a metamethod, a sort comparator or a gsub callback"
        } else {
            return ffi::lua_yield(l, ffi::lua_gettop(l));
        };
        ffi::lua_pushnil(l);
        ffi::lua_pushstring_(l, problem.as_ptr());
        ffi::lua_pushboolean(l, 1);
    }
    3
}

/// Returns the result of [`await_step`] to the script, once the host has resumed it.
///
/// # Safety
/// Called by Lua, in the resumed coroutine.
unsafe extern "C-unwind" fn deliver(l: *mut lua_State, _status: c_int) -> c_int {
    let parcel =
        METER.with(|meter| if meter.branch.get() == l { meter.parcel.get() } else { None });
    let Some(parcel) = parcel else { return 0 };
    // SAFETY: the texts live until the resume returns; nothing here needs dropping. A raise leaves
    // the parcel where it is, which is how the host learns of it.
    let count = unsafe {
        if ffi::lua_checkstack(l, decode::SLOTS) == 0 {
            return 0;
        }
        match parcel {
            Parcel::Pushed(count) => count,
            Parcel::Number(number) => {
                ffi::lua_pushnumber(l, number);
                1
            }
            Parcel::Usage(text) => {
                ffi::lua_pushnil(l);
                ffi::lua_pushlstring_(l, text.cast(), text.len());
                ffi::lua_pushboolean(l, 1);
                3
            }
            Parcel::Value(text) => unpack(l, text),
            Parcel::Failure(text) => {
                ffi::lua_pushnil(l);
                unpack(l, text) + 1
            }
        }
    };
    METER.with(|meter| meter.parcel.set(None));
    count
}

/// Pushes a value, or nil and what is wrong with its text.
///
/// # Safety
/// As [`decode::decode`]; called within [`deliver`].
unsafe fn unpack(l: *mut lua_State, text: *const [u8]) -> c_int {
    // SAFETY: the caller's promise; the upvalue is the metatable of arrays.
    unsafe {
        ffi::lua_pushvalue(l, ffi::lua_upvalueindex(1));
        let arrays = ffi::lua_gettop(l);
        match decode::decode(l, text, arrays) {
            Ok(()) => {
                ffi::lua_remove(l, arrays);
                1
            }
            Err(error) => {
                ffi::lua_settop(l, arrays - 1);
                ffi::lua_pushnil(l);
                ffi::lua_pushstring_(l, error.problem.as_ptr());
                ffi::lua_pushboolean(l, 1);
                3
            }
        }
    }
}

/// `coroutine.running`, which keeps the flow's own coroutines to itself.
///
/// # Safety
/// Called by Lua.
unsafe extern "C-unwind" fn running(l: *mut lua_State) -> c_int {
    // SAFETY: a C function has free slots.
    unsafe {
        if METER.with(|meter| meter.branch.get()) == l {
            ffi::lua_pushnil(l);
        } else {
            ffi::lua_pushthread(l);
        }
    }
    1
}

/// `coroutine.yield`, which works only in an author's own coroutine.
///
/// # Safety
/// Called by Lua.
unsafe extern "C-unwind" fn author_yield(l: *mut lua_State) -> c_int {
    // SAFETY: a C function has free slots; nothing here needs dropping.
    unsafe {
        if METER.with(|meter| meter.branch.get()) == l {
            ffi::lua_pushstring_(l, c"coroutine.yield outside of a coroutine".as_ptr());
            ffi::lua_error(l);
        }
        ffi::lua_yield(l, ffi::lua_gettop(l))
    }
}

/// Puts the text of the value at `index` in its place, if its own text would show an address.
///
/// # Safety
/// Called within a C function, with `index` in use and free slots.
unsafe fn hide_address(l: *mut lua_State, index: c_int) {
    // SAFETY: the caller's promise; nothing here needs dropping.
    unsafe {
        let of = ffi::lua_type(l, index);
        if !matches!(
            of,
            ffi::LUA_TTABLE | ffi::LUA_TFUNCTION | ffi::LUA_TUSERDATA | ffi::LUA_TTHREAD
        ) {
            return;
        }
        if ffi::luaL_getmetafield_(l, index, c"__tostring".as_ptr()) != 0 {
            ffi::lua_pop(l, 1);
            return;
        }
        ffi::lua_pushstring_(l, ffi::lua_typename(l, of));
        ffi::lua_replace(l, index);
    }
}

/// `tostring`, which says `table` where the original shows an address.
///
/// # Safety
/// Called by Lua.
unsafe extern "C-unwind" fn tostring(l: *mut lua_State) -> c_int {
    // SAFETY: a C function has free slots.
    unsafe {
        ffi::luaL_checkany(l, 1);
        ffi::lua_settop(l, 1);
        hide_address(l, 1);
        ffi::luaL_tolstring(l, 1, ptr::null_mut());
    }
    1
}

/// `string.format`, which shows no addresses; the original goes on in the same frame, so that its
/// errors name the author's line.
///
/// # Safety
/// Called by Lua.
unsafe extern "C-unwind" fn format(l: *mut lua_State) -> c_int {
    // SAFETY: a C function has free slots; the upvalue is the original, which has none of its own.
    unsafe {
        for index in 2..=ffi::lua_gettop(l) {
            hide_address(l, index);
        }
        match ffi::lua_tocfunction(l, ffi::lua_upvalueindex(1)) {
            Some(original) => original(l),
            None => 0,
        }
    }
}

/// Calls the original of a function that takes a text and a pattern, in the same frame. A repeated
/// set is compared as a whole with each byte of the text, all within one step that nothing
/// interrupts: this function bounds beforehand what that could take.
///
/// # Safety
/// Called by Lua.
unsafe extern "C-unwind" fn matching(l: *mut lua_State) -> c_int {
    // SAFETY: a C function has free slots; the upvalues are the original, which has none of its
    // own, and the level of the author's call; nothing here needs dropping.
    unsafe {
        if ffi::lua_type(l, 1) == ffi::LUA_TSTRING && ffi::lua_type(l, 2) == ffi::LUA_TSTRING {
            let (text, pattern) = (&*encode::bytes_at(l, 1), &*encode::bytes_at(l, 2));
            let is_over = |len: usize| text.len().saturating_mul(len) > MOST_COMPARED;
            if is_over(pattern.len()) && is_over(longest_set(pattern)) {
                let level = ffi::lua_tonumber(l, ffi::lua_upvalueindex(2));
                ffi::luaL_where(l, level as c_int);
                ffi::lua_pushstring_(l, c"the pattern is too long for so long a text".as_ptr());
                ffi::lua_concat(l, 2);
                ffi::lua_error(l);
            }
        }
        match ffi::lua_tocfunction(l, ffi::lua_upvalueindex(1)) {
            Some(original) => original(l),
            None => 0,
        }
    }
}

/// Returns the length of the longest set of a pattern, such as `[a-z]`.
fn longest_set(pattern: &[u8]) -> usize {
    let (mut at, mut longest) = (0, 0);
    while let Some(byte) = pattern.get(at) {
        let from = at;
        at += match byte {
            b'%' if pattern.get(at + 1) == Some(&b'b') => 4,
            b'%' => 2,
            _ => 1,
        };
        if *byte != b'[' {
            continue;
        }
        at += usize::from(pattern.get(at) == Some(&b'^'));
        // The first byte belongs to the set, even a bracket.
        loop {
            at += if pattern.get(at) == Some(&b'%') { 2 } else { 1 };
            if pattern.get(at).is_none_or(|byte| *byte == b']') {
                break;
            }
        }
        at += 1;
        longest = longest.max(at - from);
    }
    longest
}

/// Raises if the key at `index` is one whose place in a table depends on its address.
///
/// # Safety
/// Called within a C function, with `index` in use and a free slot.
unsafe fn refuse_reference(l: *mut lua_State, index: c_int) {
    // SAFETY: the caller's promise; nothing here needs dropping.
    unsafe {
        if matches!(
            ffi::lua_type(l, index),
            ffi::LUA_TTABLE | ffi::LUA_TFUNCTION | ffi::LUA_TUSERDATA | ffi::LUA_TTHREAD
        ) {
            ffi::lua_pushstring_(l, ordered::NO_ORDER.as_ptr());
            ffi::lua_error(l);
        }
    }
}

/// `pairs`, which refuses a table whose order would differ from one process to the next.
///
/// # Safety
/// Called by Lua.
unsafe extern "C-unwind" fn pairs(l: *mut lua_State) -> c_int {
    // SAFETY: a C function has free slots; every turn pops what it pushed.
    unsafe {
        ffi::luaL_checktype(l, 1, ffi::LUA_TTABLE);
        ffi::lua_settop(l, 1);
        let mut at = ffi::lua_rawiter(l, 1, 0);
        while at >= 0 {
            refuse_reference(l, -2);
            ffi::lua_pop(l, 2);
            at = ffi::lua_rawiter(l, 1, at);
        }
        ffi::lua_pushcclosurek(l, next, c"next".as_ptr(), 0, None);
        ffi::lua_insert(l, 1);
        ffi::lua_pushnil(l);
    }
    3
}

/// `next`, with the same refusal.
///
/// # Safety
/// Called by Lua.
unsafe extern "C-unwind" fn next(l: *mut lua_State) -> c_int {
    // SAFETY: a C function has free slots; a key that is not in the table raises.
    unsafe {
        ffi::luaL_checktype(l, 1, ffi::LUA_TTABLE);
        ffi::lua_settop(l, 2);
        if ffi::lua_next(l, 1) == 0 {
            ffi::lua_pushnil(l);
            return 1;
        }
        refuse_reference(l, -2);
    }
    2
}
