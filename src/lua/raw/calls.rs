//! The calls of Luau code that were in progress where a coroutine stopped.

use std::{
    borrow::Cow,
    ffi::{CStr, c_char, c_int},
};

use mlua::ffi::{self, lua_State};

/// The maximum depth that is looked through: more than Luau allows.
const DEEPEST: c_int = 32_000;
/// The longest name that is kept, in characters.
const NAME: usize = 200;

/// A call of Luau code in progress.
pub(super) struct Call<'l> {
    /// The depth; the innermost call has 0.
    pub(super) level: c_int,
    /// The file in the bundle, or the module of the library.
    file: &'l [u8],
    /// The line in progress.
    pub(super) line: u32,
    name: *const c_char,
    arguments: u8,
    is_variadic: bool,
}

impl<'l> Call<'l> {
    /// Returns the file in the bundle, or the module of the library.
    pub(super) fn file(&self) -> Cow<'l, str> {
        String::from_utf8_lossy(self.file)
    }

    /// Returns true if the function belongs to the library and not to the author.
    pub(super) fn is_of_library(&self) -> bool {
        self.file.starts_with(b"swarm/")
    }

    /// Returns the name of the function, if it has one.
    pub(super) fn function(&self) -> Option<String> {
        // SAFETY: a name is null, or lives as long as its function, which the call holds.
        unsafe { named(self.name) }
    }

    /// Returns the number of the named arguments.
    pub(super) fn arguments(&self) -> c_int {
        c_int::from(self.arguments)
    }

    /// Returns true if the function takes arguments without names.
    pub(super) fn is_variadic(&self) -> bool {
        self.is_variadic
    }
}

/// Returns the calls in progress, the innermost first. Each is looked at when it is asked for.
///
/// # Safety
/// `state` is a coroutine that has halted. It stays alive and halted as long as the iterator and its
/// items are used.
pub(super) unsafe fn calls<'l>(state: *mut lua_State) -> impl Iterator<Item = Call<'l>> {
    // SAFETY: the caller's promise.
    let known = (0..DEEPEST).map_while(move |level| unsafe { call(state, level) });
    known.filter(|call| call.line != 0 && !call.file.starts_with(b"[C]"))
}

/// # Safety
/// As [`calls`].
unsafe fn call<'l>(state: *mut lua_State, level: c_int) -> Option<Call<'l>> {
    // SAFETY: all zeroes are a value of it; Luau fills in what it is asked for.
    let mut about: ffi::lua_Debug = unsafe { std::mem::zeroed() };
    // SAFETY: halted and anchored: its calls stay until it is let go; to ask changes nothing.
    let known = unsafe { ffi::lua_getinfo(state, level, c"slna".as_ptr(), &raw mut about) };
    if known == 0 {
        return None;
    }
    // SAFETY: the name of a chunk lives as long as its functions, which the calls hold.
    let source = unsafe { CStr::from_ptr(about.source) }.to_bytes();
    let file = source.strip_prefix(b"=").unwrap_or(source);
    let line = u32::try_from(about.currentline).unwrap_or(0);
    let (arguments, is_variadic) = (about.nparams, about.isvararg != 0);
    Some(Call { level, file, line, name: about.name, arguments, is_variadic })
}

/// Returns a name that Luau gave.
///
/// # Safety
/// `name` is null or a text that lives.
pub(super) unsafe fn named(name: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy())?;
    Some(name.chars().take(NAME).collect())
}
