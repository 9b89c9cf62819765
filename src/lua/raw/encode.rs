//! From a Lua value on the stack to JSON text: strict, with sorted keys, without allocating in Lua.

use std::{
    cell::RefCell,
    ffi::{CStr, c_int, c_void},
    fmt::Write as _,
    ptr,
};

use mlua::ffi::{self, lua_State};

use super::plain::plain;

/// The deepest nesting of tables.
pub(super) const DEPTH: usize = 100;
/// The steps of a path that is too deep which are shown.
const SHOWN: usize = 8;
/// Stack slots of one level: a key and its value.
const LEVEL: c_int = 2;
/// Integers up to here are exact in a double.
pub(super) const EXACT: f64 = 9_007_199_254_740_992.0;

/// The reason why a value has no JSON form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EncodeError {
    /// Something in it cannot be said in JSON.
    #[error("{path} {problem}")]
    Value {
        /// The path: `$.a[3].b`.
        path: String,
        /// The message.
        problem: String,
    },
    /// Its text is too long.
    #[error("a value is larger than {limit} bytes of JSON")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
}

/// The encoding of values that JSON cannot express.
#[derive(Clone, Copy)]
pub(super) struct Style {
    /// The metatable that marks arrays.
    pub(super) array: *const c_void,
    /// The longest text.
    pub(super) limit: usize,
    /// True if a function is encoded as `{"$function":{"file":…,"line":…}}`.
    pub(super) functions: bool,
}

thread_local! {
    static BUFFER: RefCell<Buffer> = const { RefCell::new(Buffer { text: String::new(), keys: Vec::new() }) };
}

struct Buffer {
    text: String,
    keys: Vec<Key>,
}

/// A key of the table that is being written: its bytes, and where the table's iteration finds it.
#[derive(Clone, Copy)]
struct Key {
    bytes: *const [u8],
    at: c_int,
}

enum EncodeStop {
    Large,
    At {
        path: Vec<String>,
        problem: String,
    },
    /// Nested too deep: the table that was too deep. What holds it is on the way back to the top.
    Deep {
        path: Vec<String>,
        table: *const c_void,
        holds: bool,
    },
}

fn stop<T>(problem: impl Into<String>) -> Result<T, EncodeStop> {
    Err(EncodeStop::At { path: Vec::new(), problem: problem.into() })
}

/// Writes the value at `index` and hands its text to `take`.
///
/// # Safety
/// `l` is a live state that runs nothing, or whose running function is the caller; `index` is
/// absolute and in use.
pub(super) unsafe fn encode<T>(
    l: *mut lua_State,
    index: c_int,
    style: Style,
    take: impl FnOnce(&str) -> T,
) -> Result<T, EncodeError> {
    BUFFER.with_borrow_mut(|buffer| {
        buffer.text.clear();
        buffer.keys.clear();
        let mut writer = Writer { l, style, out: buffer };
        // SAFETY: the caller's promise.
        let written = unsafe { writer.value(index, 0) };
        let done = match written {
            Ok(()) if buffer.text.len() <= style.limit => Ok(take(&buffer.text)),
            Ok(()) | Err(EncodeStop::Large) => Err(EncodeError::TooLarge { limit: style.limit }),
            Err(EncodeStop::At { path, problem }) => {
                let parts: Vec<String> = path.into_iter().rev().collect();
                let (kept, problem) = match cycle(&parts) {
                    Some(kept) => (kept, "contains itself".to_owned()),
                    None => (parts.len(), problem),
                };
                Err(EncodeError::Value { path: format!("${}", parts[..kept].concat()), problem })
            }
            Err(EncodeStop::Deep { path, holds, .. }) => {
                let problem = match holds {
                    true => "contains itself".to_owned(),
                    false => format!("is nested more than {DEPTH} deep"),
                };
                let parts = path.into_iter().rev().take(if holds { DEPTH } else { SHOWN });
                let path = parts.fold("$".to_owned(), |whole, part| whole + &part);
                Err(EncodeError::Value { path: if holds { path } else { path + "…" }, problem })
            }
        };
        if buffer.text.capacity() > 1 << 20 {
            buffer.text = String::new();
        }
        done
    })
}

struct Writer<'a> {
    l: *mut lua_State,
    style: Style,
    out: &'a mut Buffer,
}

impl Writer<'_> {
    unsafe fn value(&mut self, index: c_int, depth: usize) -> Result<(), EncodeStop> {
        if self.out.text.len() > self.style.limit {
            return Err(EncodeStop::Large);
        }
        // SAFETY: `index` is in use (the caller's promise); none of these calls allocates.
        unsafe {
            match ffi::lua_type(self.l, index) {
                ffi::LUA_TNIL | ffi::LUA_TNONE => self.out.text.push_str("null"),
                ffi::LUA_TBOOLEAN => {
                    let word =
                        if ffi::lua_toboolean(self.l, index) == 0 { "false" } else { "true" };
                    self.out.text.push_str(word);
                }
                ffi::LUA_TNUMBER => self.number(ffi::lua_tonumber(self.l, index))?,
                ffi::LUA_TSTRING => {
                    let bytes = bytes_at(self.l, index);
                    self.string(&*bytes)?;
                }
                ffi::LUA_TLIGHTUSERDATA if ffi::lua_touserdata(self.l, index).is_null() => {
                    self.out.text.push_str("null");
                }
                ffi::LUA_TTABLE => self.table(index, depth)?,
                ffi::LUA_TFUNCTION if self.style.functions => self.function(index)?,
                other => {
                    let name = CStr::from_ptr(ffi::lua_typename(self.l, other)).to_string_lossy();
                    return stop(format!("is a {name}, which has no JSON form"));
                }
            }
        }
        Ok(())
    }

    fn number(&mut self, number: f64) -> Result<(), EncodeStop> {
        if !number.is_finite() {
            return stop(format!("is {number}, which has no JSON form"));
        }
        let written = if number.fract() == 0.0 && number.abs() <= EXACT {
            #[expect(clippy::cast_possible_truncation, reason = "it was just checked to be exact")]
            let whole = number as i64;
            write!(self.out.text, "{whole}")
        } else {
            write!(self.out.text, "{number:?}")
        };
        written.map_err(|_| EncodeStop::Large)
    }

    fn string(&mut self, bytes: &[u8]) -> Result<(), EncodeStop> {
        let Ok(text) = str::from_utf8(bytes) else {
            return stop("is a string that is not UTF-8");
        };
        self.quoted(text);
        Ok(())
    }

    fn quoted(&mut self, text: &str) {
        let out = &mut self.out.text;
        out.push('"');
        let mut rest = text;
        loop {
            let (as_it_is, from) = rest.split_at(plain(rest.as_bytes()));
            out.push_str(as_it_is);
            let Some(special) = from.bytes().next() else { break };
            rest = &from[1..];
            match special {
                b'"' => out.push_str("\\\""),
                b'\\' => out.push_str("\\\\"),
                b'\n' => out.push_str("\\n"),
                b'\r' => out.push_str("\\r"),
                b'\t' => out.push_str("\\t"),
                other => {
                    let hex = b"0123456789abcdef";
                    out.push_str("\\u00");
                    out.push(char::from(hex[usize::from(other >> 4)]));
                    out.push(char::from(hex[usize::from(other & 15)]));
                }
            }
        }
        out.push('"');
    }

    unsafe fn function(&mut self, index: c_int) -> Result<(), EncodeStop> {
        // SAFETY: a zeroed `lua_Debug` is a valid one, and `lua_getinfo` fills what it is asked for.
        let (file, line) = unsafe {
            if ffi::lua_checkstack(self.l, 1) == 0 {
                return stop("cannot be read: no memory");
            }
            let mut about: ffi::lua_Debug = std::mem::zeroed();
            ffi::lua_pushvalue(self.l, index);
            ffi::lua_getinfo(self.l, -1, c"s".as_ptr(), &raw mut about);
            ffi::lua_pop(self.l, 1);
            let file = if about.source.is_null() {
                String::new()
            } else {
                CStr::from_ptr(about.source).to_string_lossy().into_owned()
            };
            (file, about.linedefined)
        };
        self.out.text.push_str("{\"$function\":{\"file\":");
        self.quoted(file.strip_prefix('=').unwrap_or(&file));
        // A string takes any text.
        let _ = write!(self.out.text, ",\"line\":{line}}}}}");
        Ok(())
    }

    unsafe fn table(&mut self, index: c_int, depth: usize) -> Result<(), EncodeStop> {
        if depth == DEPTH {
            // SAFETY: `index` is a table, whose address is read and nothing else.
            let table = unsafe { ffi::lua_topointer(self.l, index) };
            return Err(EncodeStop::Deep { path: Vec::new(), table, holds: false });
        }
        let first = self.out.keys.len();
        // SAFETY: `index` is a table; `lua_checkstack` catches its own allocation failure.
        let written = unsafe {
            if ffi::lua_checkstack(self.l, LEVEL) == 0 {
                return stop("cannot be read: no memory");
            }
            match self.shape(index) {
                Ok(Shape::Array(len)) => self.array(index, len, depth),
                Ok(Shape::Object) => self.object(index, first, depth),
                Err(stop) => Err(stop),
            }
        };
        self.out.keys.truncate(first);
        match written {
            // The table that was too deep is this one: the way from here to there is a circle, of
            // which the first step is enough.
            Err(EncodeStop::Deep { mut path, table, .. })
                // SAFETY: as above.
                if table == unsafe { ffi::lua_topointer(self.l, index) } =>
            {
                let first = path.pop();
                Err(EncodeStop::Deep { path: first.into_iter().collect(), table, holds: true })
            }
            other => other,
        }
    }

    /// Looks at every key; the keys of an object are left at the end of `keys`.
    unsafe fn shape(&mut self, index: c_int) -> Result<Shape, EncodeStop> {
        let first = self.out.keys.len();
        let (mut count, mut largest, mut at) = (0_u32, 0.0_f64, 0);
        // SAFETY: each turn pushes a key and a value and pops them; the table is not changed.
        unsafe {
            let marked =
                std::ptr::eq(ffi::lua_getmetatablepointer(self.l, index), self.style.array);
            loop {
                let next = ffi::lua_rawiter(self.l, index, at);
                if next < 0 {
                    break;
                }
                match ffi::lua_type(self.l, -2) {
                    ffi::LUA_TSTRING => {
                        let top = ffi::lua_gettop(self.l);
                        self.out.keys.push(Key { bytes: bytes_at(self.l, top - 1), at });
                    }
                    ffi::LUA_TNUMBER => {
                        let key = ffi::lua_tonumber(self.l, -2);
                        if key < 1.0 || key.fract() != 0.0 {
                            return stop(format!("has the key {key}: arrays count from 1"));
                        }
                        count += 1;
                        largest = largest.max(key);
                    }
                    other => {
                        let name = CStr::from_ptr(ffi::lua_typename(self.l, other));
                        return stop(format!("has a {} as a key", name.to_string_lossy()));
                    }
                }
                ffi::lua_pop(self.l, 2);
                at = next;
            }
            let strings = self.out.keys.len() > first;
            match (count > 0, strings) {
                (true, true) => stop("has both numbers and names as keys"),
                (false, true) if marked => stop("is an array with names as keys"),
                (false, true) => Ok(Shape::Object),
                (false, false) if marked => Ok(Shape::Array(0)),
                (false, false) => Ok(Shape::Object),
                (true, false) if largest > f64::from(count) => stop(format!(
                    "has {count} elements but the key {largest}: an array has no holes"
                )),
                (true, false) => Ok(Shape::Array(count)),
            }
        }
    }

    unsafe fn array(&mut self, index: c_int, len: u32, depth: usize) -> Result<(), EncodeStop> {
        self.out.text.push('[');
        for n in 1..=len {
            if n > 1 {
                self.out.text.push(',');
            }
            // SAFETY: one slot, popped again; `len` came from the table itself.
            let written = unsafe {
                ffi::lua_rawgeti_(self.l, index, n.cast_signed());
                let written = self.value(ffi::lua_gettop(self.l), depth + 1);
                ffi::lua_pop(self.l, 1);
                written
            };
            written.map_err(|stop| within(stop, || format!("[{n}]")))?;
        }
        self.out.text.push(']');
        Ok(())
    }

    unsafe fn object(
        &mut self,
        index: c_int,
        first: usize,
        depth: usize,
    ) -> Result<(), EncodeStop> {
        // SAFETY: the strings are anchored by the table that holds them.
        self.out.keys[first..].sort_unstable_by(|a, b| unsafe { (*a.bytes).cmp(&*b.bytes) });
        self.out.text.push('{');
        for n in first..self.out.keys.len() {
            if n > first {
                self.out.text.push(',');
            }
            let Key { bytes, at } = self.out.keys[n];
            // SAFETY: as above; the iteration finds the same entry at the same place.
            let written = unsafe {
                self.string(&*bytes).and_then(|()| {
                    self.out.text.push(':');
                    ffi::lua_rawiter(self.l, index, at);
                    let written = self.value(ffi::lua_gettop(self.l), depth + 1);
                    ffi::lua_pop(self.l, 2);
                    written
                })
            };
            // SAFETY: as above.
            written.map_err(|stop| within(stop, || unsafe { step_name(&*bytes) }))?;
        }
        self.out.text.push('}');
        Ok(())
    }
}

enum Shape {
    Array(u32),
    Object,
}

fn within(stop: EncodeStop, part: impl FnOnce() -> String) -> EncodeStop {
    match stop {
        EncodeStop::Large => EncodeStop::Large,
        EncodeStop::Deep { mut path, table, holds } => {
            path.push(part());
            EncodeStop::Deep { path, table, holds }
        }
        EncodeStop::At { mut path, problem } => {
            path.push(part());
            EncodeStop::At { path, problem }
        }
    }
}

fn step_name(key: &[u8]) -> String {
    let plain = key.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_') && !key.is_empty();
    let name = String::from_utf8_lossy(key);
    if plain { format!(".{name}") } else { format!("[{name:?}]") }
}

/// The bytes of the string at `index`, valid while something holds the string.
pub(super) unsafe fn bytes_at(l: *mut lua_State, index: c_int) -> *const [u8] {
    let mut len = 0;
    // SAFETY: the caller saw that a string is there, so nothing is converted or allocated.
    unsafe {
        let start = ffi::lua_tolstring(l, index, &raw mut len);
        ptr::slice_from_raw_parts(start.cast::<u8>(), len)
    }
}
/// Returns the number of parts of a path that is too deep after which the parts repeat: they lead to
/// the value that contains itself.
fn cycle(parts: &[String]) -> Option<usize> {
    if parts.len() < DEPTH {
        return None;
    }
    let repeats = |from: usize, period: usize| {
        parts[from + period..].iter().zip(&parts[from..]).all(|(a, b)| a == b)
    };
    // Each turn is in the path at least four times.
    let turn = |from: usize| (1..=(parts.len() - from) / 4).find(|period| repeats(from, *period));
    let found = (0..parts.len() / 2).find_map(|from| Some((from, turn(from)?)));
    found.map(|(from, period)| from + period)
}
