//! Iteration in an order that follows from the keys alone: edition 2 of the language.
//!
//! The order is: the list `1..n` up to the first hole, then the other numbers, then strings by their
//! bytes, then false, true and null. Keys whose place would depend on an address raise an error. A
//! table that is only a list is left to Luau's own iteration, which has the same order.

use std::{
    cell::UnsafeCell,
    cmp::Ordering,
    ffi::{CStr, c_int},
    ptr,
};

use mlua::ffi::{self, lua_State};

use super::encode;

/// The error for a key that has no place in the order.
pub(super) const NO_ORDER: &CStr =
    c"a table with tables or functions as keys has no fixed order; keep a list of its keys";

/// The stack slots that one turn over a table needs.
const SLOTS: c_int = 8;

/// The groups of keys, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    List,
    Number,
    Text,
    Boolean,
    Null,
}

/// A key of a table: its place in the order, and where the table has it.
#[derive(Clone, Copy)]
struct Key {
    rank: Rank,
    number: f64,
    bytes: *const [u8],
    /// The argument of `lua_rawiter` that finds the entry again.
    at: c_int,
}

impl Key {
    /// # Safety
    /// The strings of both are alive.
    unsafe fn order(&self, other: &Self) -> Ordering {
        self.rank.cmp(&other.rank).then_with(|| match self.rank {
            // SAFETY: the caller's promise.
            Rank::Text => unsafe { (*self.bytes).cmp(&*other.bytes) },
            Rank::List | Rank::Number | Rank::Boolean | Rank::Null => {
                self.number.total_cmp(&other.number)
            }
        })
    }
}

thread_local! {
    /// The keys of the table that is being sorted. It is here because what raises owns nothing.
    static KEYS: UnsafeCell<Vec<Key>> = const { UnsafeCell::new(Vec::new()) };
}

/// The key at `index`, if it has a place in the order.
///
/// # Safety
/// Called within a C function, with `index` in use.
unsafe fn key_at(l: *mut lua_State, index: c_int, at: c_int) -> Option<Key> {
    let none: *const [u8] = ptr::slice_from_raw_parts(ptr::null(), 0);
    // SAFETY: the caller's promise; a number is read as one and a string as one.
    let (rank, number, bytes) = unsafe {
        match ffi::lua_type(l, index) {
            ffi::LUA_TNUMBER => (Rank::Number, ffi::lua_tonumber(l, index), none),
            ffi::LUA_TSTRING => (Rank::Text, 0.0, encode::bytes_at(l, index)),
            ffi::LUA_TBOOLEAN => (Rank::Boolean, f64::from(ffi::lua_toboolean(l, index)), none),
            ffi::LUA_TLIGHTUSERDATA => (Rank::Null, 0.0, none),
            _ => return None,
        }
    };
    Some(Key { rank, number, bytes, at })
}

unsafe fn refuse(l: *mut lua_State) -> ! {
    // SAFETY: the callers have a free slot, and own nothing.
    unsafe {
        ffi::lua_pushstring_(l, NO_ORDER.as_ptr());
        ffi::lua_error(l)
    }
}

/// Returns true if the own iteration of a table covers exactly `1..n`. Raises if a key has no order.
///
/// # Safety
/// Called within a C function, with a table at `table` and free slots.
unsafe fn is_list(l: *mut lua_State, table: c_int) -> bool {
    let mut expected = 1.0;
    // SAFETY: every turn pops what it pushed.
    unsafe {
        let mut at = ffi::lua_rawiter(l, table, 0);
        while at >= 0 {
            let fits =
                ffi::lua_type(l, -2) == ffi::LUA_TNUMBER && ffi::lua_tonumber(l, -2) == expected;
            ffi::lua_pop(l, 2);
            if !fits {
                return false;
            }
            expected += 1.0;
            at = ffi::lua_rawiter(l, table, at);
        }
    }
    true
}

/// Pushes the sorted keys of a table as a list. Raises if a key has no order.
///
/// # Safety
/// Called within a C function, with a table at `table` and free slots.
unsafe fn push_keys(l: *mut lua_State, table: c_int) {
    // SAFETY: no other reference to the keys exists while one is used here, and none is kept over a
    // call that may raise; their strings are anchored by the table, which nothing changes meanwhile.
    unsafe {
        let keys = KEYS.with(UnsafeCell::get);
        (*keys).clear();
        let mut at = 0;
        loop {
            let next = ffi::lua_rawiter(l, table, at);
            if next < 0 {
                break;
            }
            let Some(key) = key_at(l, ffi::lua_gettop(l) - 1, at) else { refuse(l) };
            ffi::lua_pop(l, 2);
            (*keys).push(key);
            at = next;
        }
        sort(&mut *keys);
        let count = (*keys).len();
        let size = c_int::try_from(count).unwrap_or(c_int::MAX);
        ffi::lua_createtable(l, size, 0);
        for n in 0..count {
            let at = (&(*keys))[n].at;
            ffi::lua_rawiter(l, table, at);
            ffi::lua_pop(l, 1);
            ffi::lua_rawseti_(l, -2, c_int::try_from(n + 1).unwrap_or(c_int::MAX));
        }
    }
}

/// # Safety
/// The strings of the keys are alive.
unsafe fn sort(keys: &mut [Key]) {
    // SAFETY: the caller's promise.
    keys.sort_unstable_by(|a, b| unsafe { a.order(b) });
    let mut expected = 1.0;
    for key in keys.iter_mut().take_while(|key| key.rank == Rank::Number) {
        if key.number == expected {
            key.rank = Rank::List;
            expected += 1.0;
        }
    }
    // SAFETY: the caller's promise.
    keys.sort_by(|a, b| unsafe { a.order(b) });
}

/// Returns true if a `for` over the table at `index` would use Luau's own iteration.
///
/// # Safety
/// Called within a C function, with a table at `index` and free slots.
unsafe fn is_plain(l: *mut lua_State, index: c_int) -> bool {
    // SAFETY: the caller's promise; what is pushed is popped.
    unsafe {
        for name in [c"__iter", c"__call"] {
            if ffi::luaL_getmetafield_(l, index, name.as_ptr()) != 0 {
                ffi::lua_pop(l, 1);
                return false;
            }
        }
    }
    true
}

/// Wraps the values of every `for … in` of edition 2, so that a table is iterated in order.
///
/// # Safety
/// Called by Lua.
pub(super) unsafe extern "C-unwind" fn each(l: *mut lua_State) -> c_int {
    // SAFETY: slots are made first; nothing here needs dropping.
    unsafe {
        let count = ffi::lua_gettop(l);
        if ffi::lua_checkstack(l, SLOTS) == 0 || count == 0 {
            return count;
        }
        let table = match ffi::lua_type(l, 1) {
            ffi::LUA_TTABLE if is_plain(l, 1) => 1,
            // What `pairs` gives, or `next, t` written out.
            ffi::LUA_TFUNCTION
                if count >= 2
                    && ffi::lua_tocfunction(l, 1)
                        .is_some_and(|it| ptr::fn_addr_eq(it, next as ffi::lua_CFunction))
                    && ffi::lua_type(l, 2) == ffi::LUA_TTABLE
                    && ffi::lua_type(l, 3) <= ffi::LUA_TNIL =>
            {
                2
            }
            _ => return count,
        };
        if is_list(l, table) && (table == 1 || is_plain(l, table)) {
            ffi::lua_pushvalue(l, table);
            return 1;
        }
        ffi::lua_pushvalue(l, table);
        push_keys(l, table);
        ffi::lua_pushnumber(l, 0.0);
        ffi::lua_pushcclosurek(l, step, c"each".as_ptr(), 3, None);
    }
    1
}

/// Goes on to the next key of a loop that still has a value. Its upvalues are the table, its sorted
/// keys, and how many of them are behind.
///
/// # Safety
/// Called by Lua.
unsafe extern "C-unwind" fn step(l: *mut lua_State) -> c_int {
    // SAFETY: a C function has free slots; the upvalues are those that `each` made.
    unsafe {
        ffi::lua_settop(l, 0);
        let (table, keys) = (ffi::lua_upvalueindex(1), ffi::lua_upvalueindex(2));
        let mut done = ffi::lua_tonumber(l, ffi::lua_upvalueindex(3));
        loop {
            done += 1.0;
            ffi::lua_rawgeti_(l, keys, done as c_int);
            if ffi::lua_type(l, 1) <= ffi::LUA_TNIL {
                return 1;
            }
            ffi::lua_pushvalue(l, 1);
            ffi::lua_rawget(l, table);
            if ffi::lua_type(l, 2) > ffi::LUA_TNIL {
                break;
            }
            ffi::lua_settop(l, 0);
        }
        ffi::lua_pushnumber(l, done);
        ffi::lua_replace(l, ffi::lua_upvalueindex(3));
    }
    2
}

/// `pairs` of edition 2.
///
/// # Safety
/// Called by Lua.
pub(super) unsafe extern "C-unwind" fn pairs(l: *mut lua_State) -> c_int {
    // SAFETY: a C function has free slots.
    unsafe {
        ffi::luaL_checktype(l, 1, ffi::LUA_TTABLE);
        ffi::lua_settop(l, 1);
        ffi::lua_pushcclosurek(l, next, c"next".as_ptr(), 0, None);
        ffi::lua_insert(l, 1);
        ffi::lua_pushnil(l);
    }
    3
}

/// `next` of edition 2: the first key in the order that comes after the one that it is given.
///
/// # Safety
/// Called by Lua.
pub(super) unsafe extern "C-unwind" fn next(l: *mut lua_State) -> c_int {
    // SAFETY: a C function has free slots; every turn pops what it pushed.
    unsafe {
        ffi::luaL_checktype(l, 1, ffi::LUA_TTABLE);
        ffi::lua_settop(l, 2);
        let list = length(l);
        let ranked = |mut key: Key| {
            let listed = key.number >= 1.0 && key.number <= list && key.number.fract() == 0.0;
            if key.rank == Rank::Number && listed {
                key.rank = Rank::List;
            }
            key
        };
        let after = match ffi::lua_type(l, 2) {
            ffi::LUA_TNIL => None,
            _ => match key_at(l, 2, 0) {
                Some(key) => Some(ranked(key)),
                None => refuse(l),
            },
        };
        let (mut at, mut best) = (0, None::<Key>);
        loop {
            let following = ffi::lua_rawiter(l, 1, at);
            if following < 0 {
                break;
            }
            let Some(key) = key_at(l, ffi::lua_gettop(l) - 1, at) else { refuse(l) };
            ffi::lua_pop(l, 2);
            let key = ranked(key);
            at = following;
            let later = after.as_ref().is_none_or(|it| it.order(&key).is_lt());
            if later && best.as_ref().is_none_or(|it| key.order(it).is_lt()) {
                best = Some(key);
            }
        }
        let Some(best) = best else {
            ffi::lua_pushnil(l);
            return 1;
        };
        ffi::lua_rawiter(l, 1, best.at);
    }
    2
}

/// Returns the length of the list `1..n` of the table at 1, up to its first hole.
///
/// # Safety
/// Called within a C function, with a table at 1 and a free slot.
unsafe fn length(l: *mut lua_State) -> f64 {
    let mut n = 0;
    // SAFETY: what is pushed is popped.
    unsafe {
        loop {
            let found = ffi::lua_rawgeti_(l, 1, n + 1) > ffi::LUA_TNIL;
            ffi::lua_pop(l, 1);
            if !found || n == c_int::MAX - 1 {
                return f64::from(n);
            }
            n += 1;
        }
    }
}
