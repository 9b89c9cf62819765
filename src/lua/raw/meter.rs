//! The allowance of the running script of a thread, and the interrupt that enforces it.
//!
//! Luau calls the interrupt at loop edges, calls, returns and inside pattern matching, in every
//! coroutine. It reads two cells and a flag; a clock is read only once the flag is raised.

use std::{
    cell::{Cell, RefCell},
    ffi::CStr,
    marker::PhantomData,
    ptr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use mlua::ffi::{self, lua_State};

/// The number of interrupts between two reads of its own clock.
const CLOCK_EVERY: u32 = 512;
/// The maximum number of calls that are searched for the author's line.
const DEEPEST: i32 = 64;

/// Which allowance ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Breach {
    /// Too long without an await.
    Cpu,
    /// Too much memory.
    Memory,
    /// The flow was canceled.
    Canceled,
}

/// The source of the time limit.
#[derive(Clone, Copy)]
pub(crate) enum Clock<'a> {
    /// A watchdog writes `ticket` into `flag` after half of `limit`, and from then on every tick.
    Watched {
        /// The flag that the watchdog raises.
        flag: &'a AtomicU64,
        /// The number of this slice.
        ticket: u64,
        /// CPU time in all.
        limit: Duration,
    },
    /// The script's own thread looks at its CPU clock now and then.
    Own {
        /// CPU time in all.
        limit: Duration,
        /// Set by the thread that wants it to stop.
        cancel: Option<&'a AtomicBool>,
    },
}

/// The allowance of a script from now on.
#[derive(Clone, Copy)]
pub(crate) struct Allowance<'a> {
    /// The memory category that its allocations are counted in.
    pub(crate) category: u8,
    /// Bytes that this category may hold.
    pub(crate) memory: usize,
    /// Its time.
    pub(crate) clock: Clock<'a>,
}

#[derive(Clone, Copy)]
enum Timer {
    Off,
    Watched { flag: *const AtomicU64, ticket: u64, half: Duration, probed: Option<Duration> },
    Own { left: u32, end: Duration, cancel: *const AtomicBool },
}

/// The value that the continuation of a `ctx` call returns to the script.
#[derive(Clone, Copy)]
pub(super) enum Parcel {
    Pushed(i32),
    Value(*const [u8]),
    Failure(*const [u8]),
    Usage(*const [u8]),
    Number(f64),
}

pub(super) struct Meter {
    category: Cell<i32>,
    memory: Cell<usize>,
    timer: Cell<Timer>,
    breach: Cell<Option<Breach>>,
    /// The author's line that ran then: `file:line`.
    place: RefCell<Option<String>>,
    /// The coroutine that may call `ctx`.
    pub(super) branch: Cell<*mut lua_State>,
    pub(super) parcel: Cell<Option<Parcel>>,
}

thread_local! {
    pub(super) static METER: Meter = const {
        Meter {
            category: Cell::new(0),
            memory: Cell::new(usize::MAX),
            timer: Cell::new(Timer::Off),
            breach: Cell::new(None),
            place: RefCell::new(None),
            branch: Cell::new(ptr::null_mut()),
            parcel: Cell::new(None),
        }
    };
}

/// An allowance in force on this thread; dropping it ends it.
pub(crate) struct Armed<'a> {
    borrowed: PhantomData<&'a AtomicU64>,
    /// Keeps it on its thread.
    local: PhantomData<*const ()>,
}

impl<'a> Armed<'a> {
    /// Puts `allowance` in force.
    pub(crate) fn new(allowance: Allowance<'a>) -> Self {
        METER.with(|meter| {
            meter.category.set(i32::from(allowance.category));
            meter.memory.set(allowance.memory);
            meter.breach.set(None);
            meter.place.replace(None);
            meter.timer.set(match allowance.clock {
                Clock::Watched { flag, ticket, limit } => {
                    Timer::Watched { flag, ticket, half: limit / 2, probed: None }
                }
                Clock::Own { limit, cancel } => Timer::Own {
                    left: CLOCK_EVERY,
                    end: thread_cpu() + limit,
                    cancel: cancel.map_or(ptr::null(), ptr::from_ref),
                },
            });
        });
        Self { borrowed: PhantomData, local: PhantomData }
    }

    /// Returns the exhausted allowance, if one is. The script cannot undo it.
    pub(crate) fn breach(&self) -> Option<Breach> {
        METER.with(|meter| meter.breach.get())
    }

    /// Returns the place of the script when an allowance ran out: `file:line`, if it was in the
    /// author's code.
    pub(crate) fn place(&self) -> Option<String> {
        METER.with(|meter| meter.place.borrow().clone())
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        METER.with(|meter| {
            meter.timer.set(Timer::Off);
            meter.memory.set(usize::MAX);
            meter.breach.set(None);
            meter.branch.set(ptr::null_mut());
        });
    }
}

impl Meter {
    /// # Safety
    /// `l` is the state that Luau called the interrupt with.
    unsafe fn is_over(&self, l: *mut lua_State) -> bool {
        if self.breach.get().is_some() {
            return true;
        }
        let (category, limit) = (self.category.get(), self.memory.get());
        // SAFETY: reading a counter and collecting garbage are allowed in an interrupt.
        let full = unsafe {
            ffi::lua_totalbytes(l, category) > limit && {
                ffi::lua_gc(l, ffi::LUA_GCCOLLECT, 0);
                ffi::lua_totalbytes(l, category) > limit
            }
        };
        if full {
            self.breach.set(Some(Breach::Memory));
            return true;
        }
        match self.timer.get() {
            Timer::Off => false,
            Timer::Watched { flag, ticket, half, probed } => {
                // SAFETY: `Armed` borrows the flag for as long as the timer is on.
                let flag = unsafe { &*flag };
                if flag.load(Ordering::Relaxed) != ticket {
                    return false;
                }
                flag.store(0, Ordering::Relaxed);
                let now = thread_cpu();
                match probed {
                    None => {
                        let probed = Some(now);
                        self.timer.set(Timer::Watched { flag, ticket, half, probed });
                    }
                    Some(since) if now.saturating_sub(since) >= half => {
                        self.breach.set(Some(Breach::Cpu));
                    }
                    Some(_) => {}
                }
                self.breach.get().is_some()
            }
            Timer::Own { left: 0, end, cancel } => {
                self.timer.set(Timer::Own { left: CLOCK_EVERY, end, cancel });
                // SAFETY: null, or borrowed by `Armed` for as long as the timer is on.
                if unsafe { cancel.as_ref() }.is_some_and(|flag| flag.load(Ordering::Relaxed)) {
                    self.breach.set(Some(Breach::Canceled));
                } else if thread_cpu() > end {
                    self.breach.set(Some(Breach::Cpu));
                }
                self.breach.get().is_some()
            }
            Timer::Own { left, end, cancel } => {
                self.timer.set(Timer::Own { left: left - 1, end, cancel });
                false
            }
        }
    }
}

/// The innermost line of the author's that a state executes: the library's own are `swarm/…`.
///
/// # Safety
/// `l` is the state that Luau called the interrupt with.
unsafe fn place(l: *mut lua_State) -> Option<String> {
    for level in 0..DEEPEST {
        // SAFETY: all zeroes are a value of it; Luau fills in what it is asked for.
        let mut about: ffi::lua_Debug = unsafe { std::mem::zeroed() };
        // SAFETY: to ask raises nothing, and changes nothing.
        if unsafe { ffi::lua_getinfo(l, level, c"sl".as_ptr(), &raw mut about) } == 0 {
            return None;
        }
        // SAFETY: the name of a chunk lives as long as the function that runs.
        let source = unsafe { CStr::from_ptr(about.source) }.to_string_lossy();
        let file = source.strip_prefix('=').unwrap_or(&source);
        if !file.starts_with("[C]") && !file.starts_with("swarm/") && about.currentline > 0 {
            return Some(format!("{file}:{}", about.currentline));
        }
    }
    None
}

/// CPU time of the calling thread.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The interrupt of Luau: stops the running script once an allowance ran out.
///
/// If possible, it breaks out of the whole coroutine, which no script can catch. Within
/// a C function (a pattern, a comparator) it raises, and does so again at the next interrupt.
///
/// # Safety
/// Only Luau calls it.
pub(super) unsafe extern "C-unwind" fn interrupt(l: *mut lua_State, gc: i32) {
    if gc >= 0 {
        return;
    }
    // SAFETY: `l` runs; one free slot is made before it is used; nothing here needs dropping.
    unsafe {
        if !METER.with(|meter| meter.is_over(l)) {
            return;
        }
        METER.with(|meter| {
            if meter.place.borrow().is_none() {
                meter.place.replace(place(l));
            }
        });
        let mut about: ffi::lua_Debug = std::mem::zeroed();
        let known = ffi::lua_getinfo(l, 0, c"s".as_ptr(), &raw mut about) != 0;
        if known && ffi::lua_isyieldable(l) != 0 && *about.what != b'C'.cast_signed() {
            ffi::lua_break(l);
            return;
        }
        ffi::lua_rawcheckstack(l, 1);
        ffi::lua_pushlightuserdata(l, ptr::dangling_mut::<u8>().cast());
        ffi::lua_error(l);
    }
}
