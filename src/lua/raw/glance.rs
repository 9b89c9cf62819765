//! Values as a person looks at them: any value of any size, within bounds, and without running
//! anything of the author's. Metamethods are never called.
//!
//! | value | shown as |
//! |---|---|
//! | a text over 2,000 bytes | `{"$text": its beginning, "bytes": its length}` |
//! | a text that is not UTF-8 | `{"$bytes": its length}` |
//! | a number that JSON does not have | `{"$number": "nan"}` |
//! | a function | `{"$function": {"name", "file", "line"}}` |
//! | an object of the library | `{"$object": "ctx"}` |
//! | a table within itself | `{"$cycle": the path of the outer one}` |
//! | a table too deep | `{"$table": "deeper"}` |
//! | the entries beyond 50 | `{"$more": their number, or a lower bound of it}` |
//! | what does not fit any more | `{"$cut": true}` |
//! | a thread, a buffer, … | `{"$type": "thread"}` |

use std::{
    collections::HashMap,
    ffi::{CStr, c_int, c_void},
    ptr,
};

use mlua::ffi::{self, lua_State};
use serde_json::{Map, Value, json};

use super::encode::{EXACT, bytes_at};
use crate::protocol::text::floor_char_boundary;

/// The stack slots that a look takes at each level, and the first one at its beginning.
pub(super) const SLOTS: c_int = 4;
/// The deepest nesting that is shown.
const DEPTH: usize = 6;
/// The entries of a table that are shown.
const ENTRIES: usize = 50;
/// The entries of a table that are looked at.
const SCANNED: usize = 2_000;
/// The number of looks at one table.
const LOOKS: u32 = 64;
/// The longest text that is shown, in bytes.
const TEXT: usize = 2_000;
/// The longest key that is shown, in bytes.
const KEY: usize = 200;
/// The bytes of a text that are searched for what must not be shown.
const SEARCHED: usize = 16 << 10;
/// The bytes of one variable.
const VARIABLE: usize = 16 << 10;
/// The bytes of everything.
const ALL: usize = 512 << 10;
/// The entries of tables that are looked at in all.
const VISITS: usize = 200_000;
/// The bytes that a value takes at least, and a table.
const LEAST: (usize, usize) = (8, 64);
/// The entries of a metatable among which its mark is searched.
const MARKS: usize = 64;
/// The marks of the library's objects.
const OBJECTS: [&[u8]; 4] = [b"ctx", b"ctx.state", b"ctx:scope", b"f"];

/// Returns a text without what must not be shown, if it has some.
pub type Clean<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The room that the values of one moment have together.
pub(crate) struct GlanceRoom<'a> {
    clean: Clean<'a>,
    /// The tables of the library, by address.
    library: &'a HashMap<*const c_void, String>,
    bytes: usize,
    visits: usize,
    looks: HashMap<*const c_void, u32>,
}

impl<'a> GlanceRoom<'a> {
    pub(crate) fn new(clean: Clean<'a>, library: &'a HashMap<*const c_void, String>) -> Self {
        Self { clean, library, bytes: ALL, visits: VISITS, looks: HashMap::new() }
    }

    /// Takes the room of a variable.
    fn begin(&mut self) -> usize {
        let part = self.bytes.min(VARIABLE);
        self.bytes -= part;
        part
    }

    /// Counts a look at a table; false if there were too many.
    fn look(&mut self, table: *const c_void) -> bool {
        let looks = self.looks.entry(table).or_default();
        *looks += 1;
        *looks <= LOOKS
    }

    /// Counts a visit of an entry; false if there were too many.
    fn visit(&mut self) -> bool {
        self.visits = self.visits.saturating_sub(1);
        self.visits > 0
    }
}

/// A look at the values of one coroutine.
pub(super) struct Glance<'a, 'r> {
    l: *mut lua_State,
    /// The metatable that marks arrays.
    arrays: *const c_void,
    room: &'a mut GlanceRoom<'r>,
    /// The bytes that are left of the variable.
    left: usize,
    /// The tables around, each with the step into it.
    around: Vec<(*const c_void, String)>,
    /// The step into the value that is read.
    step: String,
}

/// A key of a table, in the order in which keys are shown.
#[derive(Debug, Clone, PartialEq, PartialOrd)]
enum Key {
    Number(f64),
    Name(String),
    Other(String),
}

impl<'a, 'r> Glance<'a, 'r> {
    pub(super) fn new(
        l: *mut lua_State,
        arrays: *const c_void,
        room: &'a mut GlanceRoom<'r>,
    ) -> Self {
        Self { l, arrays, room, left: 0, around: Vec::new(), step: String::new() }
    }

    pub(super) fn state(&self) -> *mut lua_State {
        self.l
    }

    /// Returns the type and the value on top of the stack.
    ///
    /// # Safety
    /// The state has halted and stays alive; a value is on top, with [`SLOTS`] slots beyond it.
    pub(super) unsafe fn variable(&mut self) -> (String, Value) {
        self.left = self.room.begin();
        self.step.clear();
        // SAFETY: the caller's promise; a type's name is a text of Luau's own.
        let (of_type, value) = unsafe {
            let top = ffi::lua_gettop(self.l);
            let value = self.value(top, 0);
            let of_type = match ffi::lua_type(self.l, top) {
                ffi::LUA_TLIGHTUSERDATA if ffi::lua_touserdata(self.l, top).is_null() => {
                    "null".to_owned()
                }
                other => type_name(self.l, other),
            };
            (of_type, value)
        };
        self.room.bytes += self.left;
        (of_type, value)
    }

    /// Takes room for a value; false if there is none.
    fn take(&mut self, bytes: usize) -> bool {
        let has = self.left >= bytes;
        self.left = self.left.saturating_sub(bytes);
        has
    }

    /// # Safety
    /// As [`Self::variable`]; `index` is in use.
    unsafe fn value(&mut self, index: c_int, depth: usize) -> Value {
        if !self.take(LEAST.0) {
            return json!({ "$cut": true });
        }
        // SAFETY: the caller's promise; none of these calls allocates in Lua.
        unsafe {
            match ffi::lua_type(self.l, index) {
                ffi::LUA_TNIL | ffi::LUA_TNONE => Value::Null,
                ffi::LUA_TBOOLEAN => Value::Bool(ffi::lua_toboolean(self.l, index) != 0),
                ffi::LUA_TNUMBER => number(ffi::lua_tonumber(self.l, index)),
                ffi::LUA_TSTRING => {
                    let bytes = &*bytes_at(self.l, index);
                    self.string(bytes)
                }
                ffi::LUA_TLIGHTUSERDATA if ffi::lua_touserdata(self.l, index).is_null() => {
                    Value::Null
                }
                ffi::LUA_TTABLE => self.table(index, depth),
                ffi::LUA_TFUNCTION => self.function(index),
                other => json!({ "$type": type_name(self.l, other) }),
            }
        }
    }

    /// Returns the beginning of a text, without what must not be shown.
    fn cleaned(&self, bytes: &[u8], most: usize) -> Result<(String, bool), ()> {
        let part = &bytes[..bytes.len().min(SEARCHED)];
        let text = match str::from_utf8(part) {
            Ok(text) => text,
            // A character may be cut where the part ends.
            Err(error) if part.len() < bytes.len() && part.len() - error.valid_up_to() < 4 => {
                str::from_utf8(&part[..error.valid_up_to()]).unwrap_or_default()
            }
            Err(_) => return Err(()),
        };
        let mut text = (self.room.clean)(text).unwrap_or_else(|| text.to_owned());
        let end = floor_char_boundary(&text, most);
        let is_cut = end < text.len() || part.len() < bytes.len();
        text.truncate(end);
        Ok((text, is_cut))
    }

    fn string(&mut self, bytes: &[u8]) -> Value {
        let Ok((text, is_cut)) = self.cleaned(bytes, TEXT) else {
            return json!({ "$bytes": bytes.len() });
        };
        if !self.take(text.len()) {
            return json!({ "$cut": true });
        }
        match is_cut {
            true => json!({ "$text": text, "bytes": bytes.len() }),
            false => Value::String(text),
        }
    }

    /// # Safety
    /// As [`Self::value`]; `index` is a function.
    unsafe fn function(&mut self, index: c_int) -> Value {
        // SAFETY: a zeroed `lua_Debug` is a valid one, and `lua_getinfo` fills what it is asked for;
        // the names of a chunk and of a function live as long as the function.
        let (name, source, line) = unsafe {
            if ffi::lua_checkstack(self.l, 1) == 0 {
                return json!({ "$cut": true });
            }
            let mut about: ffi::lua_Debug = std::mem::zeroed();
            ffi::lua_pushvalue(self.l, index);
            ffi::lua_getinfo(self.l, -1, c"sn".as_ptr(), &raw mut about);
            ffi::lua_pop(self.l, 1);
            (text_of(about.name), text_of(about.source), about.linedefined)
        };
        let mut about = Map::new();
        about.extend(name.map(|name| ("name".to_owned(), Value::String(name))));
        let file = source.map(|file| file.strip_prefix('=').unwrap_or(&file).to_owned());
        if let Some(file) = file.filter(|it| !it.starts_with("[C]") && !it.starts_with("swarm/")) {
            about.insert("file".to_owned(), Value::String(file));
            about.insert("line".to_owned(), line.into());
        }
        self.take(LEAST.1);
        json!({ "$function": about })
    }

    /// # Safety
    /// As [`Self::value`]; `index` is a table.
    unsafe fn table(&mut self, index: c_int, depth: usize) -> Value {
        // SAFETY: `index` is a table, whose address is read.
        let table = unsafe { ffi::lua_topointer(self.l, index) };
        if let Some(outer) = self.around.iter().position(|(it, _)| *it == table) {
            let steps = self.around[1..=outer].iter().map(|(_, step)| step.as_str());
            return json!({ "$cycle": format!("${}", steps.collect::<String>()) });
        }
        if let Some(name) = self.room.library.get(&table) {
            return json!({ "$object": name });
        }
        // SAFETY: as above; `lua_checkstack` catches its own allocation failure.
        let has_slots = unsafe { ffi::lua_checkstack(self.l, SLOTS) != 0 };
        if !has_slots || !self.take(LEAST.1) || !self.room.look(table) {
            return json!({ "$cut": true });
        }
        // SAFETY: the slots are there.
        if let Some(mark) = unsafe { self.mark(index) } {
            return json!({ "$object": mark });
        }
        if depth == DEPTH {
            return json!({ "$table": "deeper" });
        }
        self.around.push((table, std::mem::take(&mut self.step)));
        // SAFETY: the slots are there.
        let shown = unsafe {
            let (keys, is_cut) = self.keys(index);
            self.entries(index, depth, keys, is_cut)
        };
        self.around.pop();
        shown
    }

    /// Returns the mark of an object of the library.
    ///
    /// # Safety
    /// As [`Self::table`], with free slots.
    unsafe fn mark(&self, index: c_int) -> Option<String> {
        // SAFETY: whatever is pushed is popped; a raw iteration calls nothing.
        unsafe {
            if ffi::lua_getmetatable(self.l, index) == 0 {
                return None;
            }
            let metatable = ffi::lua_gettop(self.l);
            let (mut at, mut found) = (0, None);
            for _ in 0..MARKS {
                at = ffi::lua_rawiter(self.l, metatable, at);
                if at < 0 {
                    break;
                }
                let is_text = |at| ffi::lua_type(self.l, at) == ffi::LUA_TSTRING;
                if is_text(-2)
                    && is_text(-1)
                    && &*bytes_at(self.l, metatable + 1) == b"__metatable".as_slice()
                {
                    let mark = &*bytes_at(self.l, metatable + 2);
                    found = OBJECTS.iter().find(|it| **it == mark).copied();
                }
                ffi::lua_settop(self.l, metatable);
            }
            ffi::lua_settop(self.l, metatable - 1);
            let found = String::from_utf8_lossy(found?);
            Some(if found == "f" { "spawned".to_owned() } else { found.into_owned() })
        }
    }

    /// Returns the keys with the places where the iteration finds them, and whether there are more.
    ///
    /// # Safety
    /// As [`Self::table`], with free slots.
    unsafe fn keys(&mut self, index: c_int) -> (Vec<(Key, c_int)>, bool) {
        let (mut keys, mut at, mut others) = (Vec::new(), 0, 0);
        // SAFETY: each turn pushes a key and a value and pops them; the table is not changed.
        unsafe {
            loop {
                let next = ffi::lua_rawiter(self.l, index, at);
                if next < 0 {
                    return (keys, false);
                }
                if keys.len() == SCANNED || !self.room.visit() {
                    ffi::lua_pop(self.l, 2);
                    return (keys, true);
                }
                let top = ffi::lua_gettop(self.l);
                let key = match ffi::lua_type(self.l, top - 1) {
                    ffi::LUA_TNUMBER => Key::Number(ffi::lua_tonumber(self.l, top - 1)),
                    ffi::LUA_TSTRING => {
                        let bytes = &*bytes_at(self.l, top - 1);
                        match self.cleaned(bytes, KEY) {
                            Ok((text, true)) => Key::Name(format!("{text}…")),
                            Ok((text, false)) => Key::Name(text),
                            Err(()) => Key::Other(format!("{} bytes", bytes.len())),
                        }
                    }
                    ffi::LUA_TBOOLEAN => {
                        Key::Other((ffi::lua_toboolean(self.l, top - 1) != 0).to_string())
                    }
                    other => {
                        others += 1;
                        Key::Other(format!("{} {others}", type_name(self.l, other)))
                    }
                };
                keys.push((key, at));
                ffi::lua_pop(self.l, 2);
                at = next;
            }
        }
    }

    /// # Safety
    /// As [`Self::table`], with free slots; `keys` are its own.
    unsafe fn entries(
        &mut self,
        index: c_int,
        depth: usize,
        mut keys: Vec<(Key, c_int)>,
        is_cut: bool,
    ) -> Value {
        keys.sort_by(|(a, _), (b, _)| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
        let numbers = (1_u32..).map(|n| Key::Number(f64::from(n)));
        // SAFETY: `index` is a table: neither call runs a metamethod.
        let (length, is_marked) = unsafe {
            let metatable = ffi::lua_getmetatablepointer(self.l, index);
            (ffi::lua_objlen(self.l, index), ptr::eq(metatable, self.arrays))
        };
        let counts = keys.iter().zip(numbers).all(|((key, _), n)| *key == n);
        let is_array = counts && (is_marked || !keys.is_empty());
        let all = if is_cut { keys.len().max(length) } else { keys.len() };
        let mut shown = Vec::new();
        for (key, at) in keys.into_iter().take(ENTRIES) {
            if self.left == 0 {
                break;
            }
            let name = match key {
                Key::Number(n) => format!("[{n}]"),
                Key::Name(name) if name.starts_with(['[', '$']) => format!("[{name:?}]"),
                Key::Name(name) => name,
                Key::Other(what) => format!("[{what}]"),
            };
            self.step = match name.starts_with('[') {
                true => name.clone(),
                false => format!(".{name}"),
            };
            self.take(name.len());
            // SAFETY: the iteration finds the same entry at the same place.
            let value = unsafe {
                ffi::lua_rawiter(self.l, index, at);
                let value = self.value(ffi::lua_gettop(self.l), depth + 1);
                ffi::lua_pop(self.l, 2);
                value
            };
            shown.push((name, value));
        }
        let more = all - shown.len();
        let more = (more > 0).then(|| json!(more));
        if is_array {
            let items = shown.into_iter().map(|(_, value)| value);
            return items.chain(more.map(|more| json!({ "$more": more }))).collect();
        }
        let mut members = Map::new();
        for (name, value) in shown {
            // Two names may be the same once they were cleaned.
            let mut own = name;
            while members.contains_key(&own) {
                own.push('\'');
            }
            members.insert(own, value);
        }
        members.extend(more.map(|more| ("$more".to_owned(), more)));
        Value::Object(members)
    }
}

fn number(number: f64) -> Value {
    if !number.is_finite() {
        let word = if number.is_nan() { "nan".to_owned() } else { number.to_string() };
        return json!({ "$number": word });
    }
    if number.fract() == 0.0 && number.abs() <= EXACT {
        #[expect(clippy::cast_possible_truncation, reason = "it was just checked to be exact")]
        return json!(number as i64);
    }
    json!(number)
}

/// # Safety
/// `of` is a type of a value.
unsafe fn type_name(l: *mut lua_State, of: c_int) -> String {
    // SAFETY: a type's name is a text of Luau's own.
    unsafe { CStr::from_ptr(ffi::lua_typename(l, of)) }.to_string_lossy().into_owned()
}

/// # Safety
/// `text` is null or a text that lives.
unsafe fn text_of(text: *const std::ffi::c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())?;
    Some(text.chars().take(KEY).collect())
}
