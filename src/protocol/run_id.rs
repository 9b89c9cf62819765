//! Ids that moonswarm itself assigns: typed, sortable, printable.
//!
//! A printed id is a prefix and a UUIDv7 in lower-case base32 (`run_…`, `task_…`). The random part
//! of the UUID carries the storage key, so that an id finds its row without an index: the number of
//! a run, or the numbers of a run and a step.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use uuid::Uuid;

/// The bits of a run's number; a data directory holds at most 2^36 runs over its lifetime.
const RUN_BITS: u32 = 36;
/// The bits of a step's number within its run.
const STEP_BITS: u32 = 26;

/// A text that is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parse {text:?} as an id: expected `{prefix}_` and 26 letters or digits")]
pub struct IdError {
    /// The text, cut to 64 characters.
    pub text: String,
    /// The expected prefix.
    pub prefix: &'static str,
}

impl IdError {
    /// Returns whether the text has the form of an id, although no id is written like this.
    pub fn is_well_formed(&self) -> bool {
        let rest = self.text.strip_prefix(self.prefix).and_then(|text| text.strip_prefix('_'));
        rest.is_some_and(|rest| {
            rest.len() == 26 && rest.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'))
        })
    }
}

/// Identifies one run permanently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(Uuid);

impl RunId {
    /// Numbers of runs stay below this one.
    pub const MOST: u64 = 1 << RUN_BITS;

    /// Builds the id of run `num`, created at `created_ms` (Unix milliseconds).
    pub fn new(num: u64, created_ms: u64) -> Self {
        debug_assert!(num < 1 << RUN_BITS, "run numbers stay under 2^36");
        Self(uuid_v7(created_ms, u64::from(num != 0), num << STEP_BITS))
    }

    /// Returns the run's number: the key of its row.
    pub fn num(self) -> u64 {
        payload(self.0) >> STEP_BITS
    }

    /// Returns the time at which the run was created, in Unix milliseconds.
    pub fn created_ms(self) -> u64 {
        millis(self.0)
    }

    /// Returns the first and the last time, in Unix milliseconds, at which a run was created whose
    /// id begins with `prefix` (`run_…`); `None` if no id begins like this.
    pub fn created_within(prefix: &str) -> Option<(u64, u64)> {
        // 10 letters of 5 bits hold the 48 bits of the time, and 2 more.
        const LETTERS: usize = 10;
        let rest = prefix.strip_prefix("run_")?.as_bytes();
        let mut bits = 0_u64;
        for letter in rest.iter().take(LETTERS) {
            let value = match letter {
                b'a'..=b'z' => letter - b'a',
                b'2'..=b'7' => letter - b'2' + 26,
                _ => return None,
            };
            bits = bits << 5 | u64::from(value);
        }
        let open = 5 * (LETTERS - rest.len().min(LETTERS));
        let (first, last) = (bits << open, (bits << open) | ((1 << open) - 1));
        Some((first >> 2, last >> 2))
    }
}

/// Identifies one task: a step of a run that an operator executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(Uuid);

impl TaskId {
    /// Builds the id of step `step` of run `run`, scheduled at `at_ms` (Unix milliseconds).
    pub fn new(run: u64, step: u32, at_ms: u64) -> Self {
        debug_assert!(step < 1 << STEP_BITS, "step numbers stay under 2^26");
        Self(uuid_v7(at_ms, 2, (run << STEP_BITS) | u64::from(step)))
    }

    /// Returns the number of the run that the task belongs to.
    pub fn run(self) -> u64 {
        payload(self.0) >> STEP_BITS
    }

    /// Returns the task's step number within its run.
    pub fn step(self) -> u32 {
        u32::try_from(payload(self.0) & ((1 << STEP_BITS) - 1)).expect("26 bits fit in 32")
    }

    /// Returns the time at which the task was scheduled, in Unix milliseconds.
    pub fn scheduled_ms(self) -> u64 {
        millis(self.0)
    }
}

/// Identifies the worker of one attempt of a task, within its data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(Uuid);

impl WorkerId {
    /// Builds the id of the worker of an attempt.
    pub fn new(run: u64, step: u32, attempt: u32) -> Self {
        Self(uuid_v7(u64::from(attempt), 4, (run << STEP_BITS) | u64::from(step)))
    }

    /// Returns the number of the run that it works for.
    pub fn run(self) -> u64 {
        payload(self.0) >> STEP_BITS
    }

    /// Returns the step that it works on.
    pub fn step(self) -> u32 {
        u32::try_from(payload(self.0) & ((1 << STEP_BITS) - 1)).expect("26 bits fit in 32")
    }

    /// Returns its attempt, from 1.
    pub fn attempt(self) -> u32 {
        u32::try_from(millis(self.0)).unwrap_or(u32::MAX)
    }
}

/// Identifies one artifact: a file of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArtifactId(Uuid);

impl ArtifactId {
    /// Builds the id of the `n`-th artifact of run `run`, created at `at_ms` (Unix milliseconds).
    pub fn new(run: u64, n: u32, at_ms: u64) -> Self {
        Self(uuid_v7(at_ms, 3, (run << STEP_BITS) | u64::from(n)))
    }

    /// Returns the number of the run that the artifact belongs to.
    pub fn run(self) -> u64 {
        payload(self.0) >> STEP_BITS
    }

    /// Returns the artifact's number within its run.
    pub fn number(self) -> u32 {
        u32::try_from(payload(self.0) & ((1 << STEP_BITS) - 1)).expect("26 bits fit in 32")
    }
}

fn uuid_v7(ms: u64, tag: u64, payload: u64) -> Uuid {
    let high = (ms << 16) | 0x7000 | (tag & 0x0fff);
    let low = (0b10 << 62) | (payload & ((1 << 62) - 1));
    Uuid::from_u64_pair(high, low)
}

fn payload(uuid: Uuid) -> u64 {
    uuid.as_u64_pair().1 & ((1 << 62) - 1)
}

fn millis(uuid: Uuid) -> u64 {
    uuid.as_u64_pair().0 >> 16
}

fn print(f: &mut fmt::Formatter<'_>, prefix: &str, uuid: Uuid) -> fmt::Result {
    let mut text = [0; 26];
    data_encoding::BASE32_NOPAD.encode_mut(uuid.as_bytes(), &mut text);
    text.make_ascii_lowercase();
    f.write_str(prefix)?;
    f.write_str("_")?;
    f.write_str(std::str::from_utf8(&text).expect("base 32 is ASCII"))
}

fn parse(text: &str, prefix: &'static str, tag: impl Fn(u64) -> bool) -> Result<Uuid, IdError> {
    let error = || IdError { text: text.chars().take(64).collect(), prefix };
    let rest = text.strip_prefix(prefix).and_then(|t| t.strip_prefix('_')).ok_or_else(error)?;
    let bytes = data_encoding::BASE32_NOPAD
        .decode(rest.to_ascii_uppercase().as_bytes())
        .map_err(|_| error())?;
    let uuid = Uuid::from_slice(&bytes).map_err(|_| error())?;
    let high = uuid.as_u64_pair().0;
    if high & 0xf000 == 0x7000 && tag(high & 0x0fff) { Ok(uuid) } else { Err(error()) }
}

macro_rules! printed_id {
    ($name:ident, $prefix:literal, $tag:expr) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                print(f, $prefix, self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                parse(text, $prefix, $tag).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    };
}

printed_id!(RunId, "run", |tag| tag <= 1);
printed_id!(TaskId, "task", |tag| tag == 2);
printed_id!(ArtifactId, "art", |tag| tag == 3);
printed_id!(WorkerId, "wrk", |tag| tag == 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_being_printed_and_read() {
        let run = RunId::new(77, 1_700_000_000_123);
        let task = TaskId::new(77, 9, 1_700_000_000_500);
        let read: RunId = run.to_string().parse().unwrap();
        assert_eq!((read.num(), read.created_ms()), (77, 1_700_000_000_123));
        let read: TaskId = task.to_string().parse().unwrap();
        assert_eq!((read.run(), read.step(), read.scheduled_ms()), (77, 9, 1_700_000_000_500));
    }

    #[test]
    fn the_beginning_of_an_id_is_a_range_of_times() {
        let id = RunId::new(77, 1_700_000_000_123).to_string();
        assert_eq!(RunId::created_within("run_"), Some((0, (1 << 48) - 1)));
        for length in 4..id.len() {
            let (first, last) = RunId::created_within(&id[..length]).unwrap();
            assert!((first..=last).contains(&1_700_000_000_123), "{length}");
        }
        assert_eq!(RunId::created_within(&id), Some((1_700_000_000_123, 1_700_000_000_123)));
        assert_eq!(RunId::created_within("run_1"), None);
        assert_eq!(RunId::created_within("task_a"), None);
    }

    #[test]
    fn a_workers_id_has_its_task_and_its_attempt() {
        let worker = WorkerId::new(77, 9, 12);
        let read: WorkerId = worker.to_string().parse().unwrap();
        assert_eq!((read.run(), read.step(), read.attempt()), (77, 9, 12));
        assert_ne!(worker, WorkerId::new(77, 9, 13));
        assert!(
            TaskId::new(77, 9, 12).to_string().replace("task", "wrk").parse::<WorkerId>().is_err()
        );
    }

    #[test]
    fn ids_sort_by_the_time_of_their_making() {
        let early = RunId::new(9, 1_000).to_string();
        let late = RunId::new(2, 2_000).to_string();
        assert!(early < late);
    }

    #[test]
    fn an_id_of_another_kind_is_refused() {
        let task = TaskId::new(1, 1, 5).to_string().replace("task_", "run_");
        for text in ["", "run_", "run_zz", "task_abc", task.as_str()] {
            assert!(text.parse::<RunId>().is_err(), "{text}");
        }
    }
}
