//! From JSON text to a Lua value on top of the stack.
//!
//! Lua calls here may raise (there is no memory), which leaves these frames without running
//! destructors or returning: so nothing in them owns anything.

use std::{
    cell::UnsafeCell,
    ffi::{CStr, c_int},
    ptr,
};

use mlua::ffi::{self, lua_State};

use super::{
    encode::{DEPTH, EXACT},
    plain::plain,
};

/// Stack slots that decoding is given; what nests takes more as it goes, since most values do not,
/// and a branch that waits keeps its stack.
pub(super) const SLOTS: c_int = 8;
/// Slots of one level: a table, a key, a value.
const LEVEL: c_int = 3;

/// An error of decoding.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodeError {
    /// The message.
    pub(super) problem: &'static CStr,
    /// At which byte.
    pub(super) at: usize,
}

thread_local! {
    /// The buffer for strings with escapes.
    static SCRATCH: UnsafeCell<Vec<u8>> = const { UnsafeCell::new(Vec::new()) };
}

/// Pushes the value that `text` says. On an error the stack is as it was or higher.
///
/// # Safety
/// `l` runs in protected mode and has [`SLOTS`] free slots; the metatable that marks arrays is at
/// the absolute index `array`.
pub(super) unsafe fn decode(
    l: *mut lua_State,
    text: *const [u8],
    array: c_int,
) -> Result<(), DecodeError> {
    // SAFETY: the caller keeps the text alive.
    let mut reader = Decoder { l, text: unsafe { &*text }, at: 0, array };
    // SAFETY: the caller's promise.
    let read = unsafe { reader.value(0) };
    reader.space();
    match read {
        Err(problem) => Err(DecodeError { problem, at: reader.at }),
        Ok(_) if reader.at < reader.text.len() => {
            Err(DecodeError { problem: c"text after the value", at: reader.at })
        }
        Ok(()) => Ok(()),
    }
}

struct Decoder<'a> {
    l: *mut lua_State,
    text: &'a [u8],
    at: usize,
    array: c_int,
}

type Read = Result<(), &'static CStr>;

impl Decoder<'_> {
    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    fn takes(&mut self, byte: u8) -> bool {
        let taken = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(taken);
        taken
    }

    unsafe fn value(&mut self, depth: usize) -> Read {
        self.space();
        // SAFETY: every push is within the slots of the caller, or of the level.
        unsafe {
            match self.text.get(self.at) {
                Some(b'"') => self.string(),
                Some(b'{') => self.object(depth),
                Some(b'[') => self.list(depth),
                Some(b'-' | b'0'..=b'9') => self.number(),
                Some(b't') => self.word(b"true", |l| ffi::lua_pushboolean(l, 1)),
                Some(b'f') => self.word(b"false", |l| ffi::lua_pushboolean(l, 0)),
                Some(b'n') => self.word(b"null", |l| ffi::lua_pushnil(l)),
                Some(_) => Err(c"not a JSON value"),
                None => Err(c"the text ends too early"),
            }
        }
    }

    fn word(&mut self, word: &[u8], push: impl FnOnce(*mut lua_State)) -> Read {
        if !self.text[self.at..].starts_with(word) {
            return Err(c"not a JSON value");
        }
        self.at += word.len();
        push(self.l);
        Ok(())
    }

    unsafe fn list(&mut self, depth: usize) -> Read {
        if depth == DEPTH {
            return Err(c"nested more than 100 deep");
        }
        self.at += 1;
        // SAFETY: the level's slots are made first; the table is ours alone.
        unsafe {
            ffi::lua_rawcheckstack(self.l, LEVEL);
            ffi::lua_createtable(self.l, 0, 0);
            let table = ffi::lua_gettop(self.l);
            ffi::lua_pushvalue(self.l, self.array);
            ffi::lua_setmetatable(self.l, table);
            self.space();
            if self.takes(b']') {
                return Ok(());
            }
            for n in 1.. {
                self.value(depth + 1)?;
                if ffi::lua_type(self.l, -1) == ffi::LUA_TNIL {
                    ffi::lua_pop(self.l, 1);
                    ffi::lua_pushlightuserdata(self.l, ptr::null_mut());
                }
                ffi::lua_rawseti_(self.l, table, n);
                self.space();
                if self.takes(b']') {
                    break;
                }
                if !self.takes(b',') {
                    return Err(c"expected , or ]");
                }
            }
        }
        Ok(())
    }

    unsafe fn object(&mut self, depth: usize) -> Read {
        if depth == DEPTH {
            return Err(c"nested more than 100 deep");
        }
        self.at += 1;
        // SAFETY: the level's slots are made first; the table is ours alone.
        unsafe {
            ffi::lua_rawcheckstack(self.l, LEVEL);
            ffi::lua_createtable(self.l, 0, 0);
            let table = ffi::lua_gettop(self.l);
            self.space();
            if self.takes(b'}') {
                return Ok(());
            }
            loop {
                self.space();
                if self.text.get(self.at) != Some(&b'"') {
                    return Err(c"expected a string as a key");
                }
                self.string()?;
                self.space();
                if !self.takes(b':') {
                    return Err(c"expected :");
                }
                self.value(depth + 1)?;
                ffi::lua_rawset(self.l, table);
                self.space();
                if self.takes(b'}') {
                    return Ok(());
                }
                if !self.takes(b',') {
                    return Err(c"expected , or }");
                }
            }
        }
    }

    unsafe fn string(&mut self) -> Read {
        self.at += 1;
        let start = self.at;
        self.at += plain(&self.text[start..]);
        match self.text.get(self.at) {
            Some(b'"') => {
                let text = &self.text[start..self.at];
                self.at += 1;
                // SAFETY: one slot.
                unsafe { push_bytes(self.l, text) };
                Ok(())
            }
            // SAFETY: as above.
            Some(b'\\') => unsafe { self.escaped(start) },
            Some(_) => Err(c"a control character in a string"),
            None => Err(c"a string without an end"),
        }
    }

    /// The rest of a string that has escapes: put together first, pushed when whole.
    unsafe fn escaped(&mut self, start: usize) -> Read {
        // SAFETY: no other reference to the scratch exists: this function calls no Lua until the
        // last one is gone, and the pointer stays good because nothing writes in between.
        let whole: *const [u8] = unsafe {
            let scratch = &mut *SCRATCH.with(UnsafeCell::get);
            scratch.clear();
            scratch.extend_from_slice(&self.text[start..self.at]);
            self.unescape(scratch)?;
            scratch.as_slice()
        };
        // SAFETY: as above; one slot.
        unsafe { push_bytes(self.l, &*whole) };
        Ok(())
    }

    fn unescape(&mut self, scratch: &mut Vec<u8>) -> Read {
        loop {
            match self.text.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.at += 1;
                    let byte = *self.text.get(self.at).ok_or(c"a string without an end")?;
                    self.at += 1;
                    match byte {
                        b'"' | b'\\' | b'/' => scratch.push(byte),
                        b'b' => scratch.push(8),
                        b'f' => scratch.push(12),
                        b'n' => scratch.push(b'\n'),
                        b'r' => scratch.push(b'\r'),
                        b't' => scratch.push(b'\t'),
                        b'u' => {
                            let letter = self.unicode()?;
                            let mut utf8 = [0; 4];
                            scratch.extend_from_slice(letter.encode_utf8(&mut utf8).as_bytes());
                        }
                        _ => return Err(c"an unknown escape in a string"),
                    }
                }
                Some(0..=0x1f) => return Err(c"a control character in a string"),
                Some(_) => {
                    let rest = &self.text[self.at..];
                    let len = plain(rest);
                    scratch.extend_from_slice(&rest[..len]);
                    self.at += len;
                }
                None => return Err(c"a string without an end"),
            }
        }
    }

    fn unicode(&mut self) -> Result<char, &'static CStr> {
        const LONE: &CStr = c"half a surrogate pair in a string";
        let first = self.hex()?;
        let code = match first {
            0xd800..=0xdbff => {
                if !(self.takes(b'\\') && self.takes(b'u')) {
                    return Err(LONE);
                }
                let second = self.hex()?;
                if !(0xdc00..=0xdfff).contains(&second) {
                    return Err(LONE);
                }
                0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            other => other,
        };
        char::from_u32(code).ok_or(LONE)
    }

    fn hex(&mut self) -> Result<u32, &'static CStr> {
        let digits = self.text.get(self.at..self.at + 4).ok_or(c"a string without an end")?;
        self.at += 4;
        digits.iter().try_fold(0, |code, digit| {
            let digit = char::from(*digit).to_digit(16).ok_or(c"a \\u without four digits")?;
            Ok(code * 16 + digit)
        })
    }

    unsafe fn number(&mut self) -> Read {
        let start = self.at;
        self.takes(b'-');
        let leading = self.text.get(self.at);
        let digits = self.digits();
        if digits == 0 || (digits > 1 && leading == Some(&b'0')) {
            return Err(c"not a JSON number");
        }
        let mut whole = true;
        if self.takes(b'.') {
            whole = false;
            if self.digits() == 0 {
                return Err(c"not a JSON number");
            }
        }
        if let Some(b'e' | b'E') = self.text.get(self.at) {
            whole = false;
            self.at += 1;
            if let Some(b'+' | b'-') = self.text.get(self.at) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(c"not a JSON number");
            }
        }
        let literal = &self.text[start..self.at];
        let number: f64 = str::from_utf8(literal)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or(c"not a JSON number")?;
        if !number.is_finite() {
            return Err(c"a number that is too large");
        }
        let exact = !whole || digits < 16 || (number.abs() <= EXACT && fits(literal));
        // SAFETY: one slot.
        unsafe {
            if exact {
                ffi::lua_pushnumber(self.l, if number == 0.0 { 0.0 } else { number });
            } else {
                push_bytes(self.l, literal);
            }
        }
        Ok(())
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.text.get(self.at) {
            self.at += 1;
        }
        self.at - start
    }
}

/// Returns true if a literal integer is at most 2^53 from zero. Its double may have been rounded to
/// that.
fn fits(literal: &[u8]) -> bool {
    let value = str::from_utf8(literal).ok().and_then(|text| text.parse::<i64>().ok());
    value.is_some_and(|value| value.unsigned_abs() <= 1 << 53)
}

unsafe fn push_bytes(l: *mut lua_State, bytes: &[u8]) {
    // SAFETY: the caller has a free slot; Lua copies the bytes.
    unsafe { ffi::lua_pushlstring_(l, bytes.as_ptr().cast(), bytes.len()) }
}
