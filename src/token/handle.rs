//! The handle: a task token short enough for a language model to copy.
//!
//! It names run, step and attempt, and proves itself by a keyed hash over them, the run's epoch
//! and the data directory's incarnation. It is computed again whenever it is needed, and stored
//! nowhere.

use std::fmt;

use data_encoding::BASE32_NOPAD;
use zeroize::Zeroizing;

/// What every handle begins with.
const PREFIX: &str = "wh_";
/// The bytes of the proof.
const MAC_LEN: usize = 16;
/// The longest number: a `u64` at seven bits a byte.
const VARINT_LEN: usize = 10;

/// The secret that handles are proved with.
#[derive(Clone)]
pub struct HandleKey {
    secret: Zeroizing<[u8; 32]>,
    incarnation: u64,
}

/// Names one attempt at one task, and proves that this host named it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    run: u64,
    step: u32,
    attempt: u32,
    mac: [u8; MAC_LEN],
}

/// Why a handle is not good; each is a 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// It is not a handle's text: a character is missing, was added or changed.
    #[error("read the handle: expected `wh_` and about 40 letters and digits, copied exactly")]
    Malformed,
    /// It does not prove itself: it was changed, or belongs to an earlier epoch or another host.
    #[error("verify the handle: it was not given out for this attempt")]
    Forged,
}

impl HandleError {
    /// A word that never changes.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Malformed => "handle_malformed",
            Self::Forged => "handle_forged",
        }
    }
}

impl HandleKey {
    /// The key of one incarnation of a data directory; another one's handles are not good in it.
    pub fn new(secret: [u8; 32], incarnation: u64) -> Self {
        Self { secret: Zeroizing::new(secret), incarnation }
    }

    fn mac(&self, run: u64, step: u32, attempt: u32, epoch: u32) -> [u8; MAC_LEN] {
        let mut message = [0; 28];
        message[..8].copy_from_slice(&self.incarnation.to_le_bytes());
        message[8..16].copy_from_slice(&run.to_le_bytes());
        message[16..20].copy_from_slice(&step.to_le_bytes());
        message[20..24].copy_from_slice(&attempt.to_le_bytes());
        message[24..].copy_from_slice(&epoch.to_le_bytes());
        let hash = blake3::keyed_hash(&self.secret, &message);
        *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
    }
}

impl fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandleKey").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

impl Handle {
    /// The handle of an attempt that was opened in `epoch`.
    pub fn mint(key: &HandleKey, run: u64, step: u32, attempt: u32, epoch: u32) -> Self {
        Self { run, step, attempt, mac: key.mac(run, step, attempt, epoch) }
    }

    /// Reads a handle's text; what it says is worth nothing before [`Handle::verify`].
    ///
    /// # Errors
    /// When it is not exactly what [`Handle::expose`] writes.
    pub fn parse(text: &str) -> Result<Self, HandleError> {
        Self::decode(text).ok_or(HandleError::Malformed)
    }

    /// Whether this host gave it out for an attempt of `epoch`; takes the same time either way.
    ///
    /// # Errors
    /// When it did not.
    pub fn verify(&self, key: &HandleKey, epoch: u32) -> Result<(), HandleError> {
        let expected = key.mac(self.run, self.step, self.attempt, epoch);
        if same(&self.mac, &expected) { Ok(()) } else { Err(HandleError::Forged) }
    }

    /// The text to hand out; whoever has it may work on the task.
    pub fn expose(&self) -> String {
        let mut bytes = Vec::with_capacity(3 * VARINT_LEN + MAC_LEN);
        write_varint(&mut bytes, self.run);
        write_varint(&mut bytes, self.step.into());
        write_varint(&mut bytes, self.attempt.into());
        bytes.extend_from_slice(&self.mac);
        let mut text = String::with_capacity(PREFIX.len() + BASE32_NOPAD.encode_len(bytes.len()));
        text.push_str(PREFIX);
        BASE32_NOPAD.encode_append(&bytes, &mut text);
        text.make_ascii_lowercase();
        text
    }

    /// The run's number.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// The step's number within its run.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// The attempt's number.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    fn decode(text: &str) -> Option<Self> {
        let body = text.strip_prefix(PREFIX)?;
        let longest = BASE32_NOPAD.encode_len(3 * VARINT_LEN + MAC_LEN);
        // One spelling only: an upper-case letter is a changed character.
        if body.len() > longest || body.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return None;
        }
        let bytes = BASE32_NOPAD.decode(body.to_ascii_uppercase().as_bytes()).ok()?;
        let mut rest = bytes.as_slice();
        let run = read_varint(&mut rest)?;
        let step = read_varint(&mut rest)?.try_into().ok()?;
        let attempt = read_varint(&mut rest)?.try_into().ok()?;
        Some(Self { run, step, attempt, mac: rest.try_into().ok()? })
    }
}

/// Never the whole handle: a log line must not let its reader work on the task.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("run", &self.run)
            .field("step", &self.step)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// Compares in constant time, as the hash's own type does.
fn same(a: &[u8; MAC_LEN], b: &[u8; MAC_LEN]) -> bool {
    let widen = |mac: &[u8; MAC_LEN]| {
        let mut bytes = [0; 32];
        bytes[..MAC_LEN].copy_from_slice(mac);
        blake3::Hash::from_bytes(bytes)
    };
    widen(a) == widen(b)
}

fn write_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Reads the shortest form only, so that a number has one spelling.
fn read_varint(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for place in 0..VARINT_LEN {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << (7 * place);
        if shifted >> (7 * place) != bits {
            return None;
        }
        value |= shifted;
        if byte & 0x80 == 0 {
            return (bits != 0 || place == 0).then_some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> HandleKey {
        HandleKey::new([7; 32], 42)
    }

    #[test]
    fn the_text_of_a_handle_never_changes() {
        let handle = Handle::mint(&key(), 123_456, 17, 2, 3);
        assert_eq!(handle.expose(), "wh_ydcaoeicpv4nt2bjbjap6nf4epxoq63744");
    }

    #[test]
    fn it_is_about_forty_characters() {
        assert_eq!(Handle::mint(&key(), 1, 1, 1, 1).expose().len(), 34);
        let long = Handle::mint(&key(), (1 << 36) - 1, (1 << 20) - 1, 99, 1).expose();
        assert_eq!(long.len(), 45);
    }

    #[test]
    fn a_changed_character_is_refused_wherever_it_stands() {
        let text = Handle::mint(&key(), 123_456, 17, 2, 3).expose();
        for place in 0..text.len() {
            for with in "abcdefghijklmnopqrstuvwxyz234567_AZ019-".chars() {
                let mut changed = text.clone();
                changed.replace_range(place..=place, with.encode_utf8(&mut [0; 4]));
                let good = Handle::parse(&changed).and_then(|handle| handle.verify(&key(), 3));
                assert_eq!(good.is_ok(), changed == text, "{changed}");
            }
        }
    }

    #[test]
    fn a_cut_or_lengthened_handle_is_malformed() {
        let text = Handle::mint(&key(), 123_456, 17, 2, 3).expose();
        for end in 0..text.len() {
            assert_eq!(Handle::parse(&text[..end]), Err(HandleError::Malformed));
        }
        for more in ["a", " ", "\n", "aaaaaaaa"] {
            assert_eq!(Handle::parse(&format!("{text}{more}")), Err(HandleError::Malformed));
        }
        assert_eq!(
            Handle::parse(&format!("wh_{}", "a".repeat(1 << 20))).unwrap_err().code(),
            "handle_malformed"
        );
    }

    #[test]
    fn it_is_good_for_one_epoch_of_one_incarnation_under_one_key() {
        let handle = Handle::mint(&key(), 7, 1, 1, 3);
        assert_eq!(handle.verify(&key(), 3), Ok(()));
        let forged = Err(HandleError::Forged);
        assert_eq!(handle.verify(&key(), 4), forged);
        assert_eq!(handle.verify(&HandleKey::new([7; 32], 43), 3), forged);
        assert_eq!(handle.verify(&HandleKey::new([8; 32], 42), 3), forged);
    }

    #[test]
    fn debug_never_prints_what_opens_the_task() {
        let handle = Handle::mint(&key(), 123_456, 17, 2, 3);
        let debug = format!("{handle:?} {:?}", key());
        assert_eq!(
            debug,
            "Handle { run: 123456, step: 17, attempt: 2, .. } HandleKey { incarnation: 42, .. }"
        );
    }

    proptest! {
        #[test]
        fn every_handle_is_read_back(run: u64, step: u32, attempt: u32, epoch: u32) {
            let handle = Handle::mint(&key(), run, step, attempt, epoch);
            prop_assert_eq!(Handle::parse(&handle.expose()), Ok(handle));
            prop_assert_eq!(handle.verify(&key(), epoch), Ok(()));
        }

        #[test]
        fn no_text_makes_parsing_panic(text in "(wh_)?[a-z2-7]{0,80}|.{0,40}") {
            if let Ok(handle) = Handle::parse(&text) {
                prop_assert_eq!(handle.expose(), text);
            }
        }
    }
}
