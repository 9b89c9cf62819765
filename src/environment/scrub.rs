//! The removal of secrets from the output of a child, before anything stores it.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
};

use data_encoding::{BASE64, BASE64URL, HEXLOWER, HEXUPPER};
use memchr::memmem;
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

use super::Secret;
use crate::protocol::{Failure, Json, Ticket};

/// The minimum length of a secret in bytes. A shorter one cannot be distinguished from other text.
pub(super) const SHORTEST: usize = 6;
/// The minimum length of a line of a multi-line secret that is searched on its own.
const LINE: usize = 16;
/// The number of ended attempts whose secrets are still scrubbed from late output.
const LATE: usize = 1_024;

/// Replaces the secrets of one child by their names.
///
/// Finds each secret verbatim, as JSON, in base64, in hexadecimal, percent-encoded, and line by
/// line if it has several lines. This is no protection against a child that hides a secret on
/// purpose.
#[derive(Default)]
pub struct Scrubber {
    marks: Vec<Mark>,
}

struct Mark {
    pattern: Zeroizing<Vec<u8>>,
    shown: Arc<str>,
}

impl Scrubber {
    /// Adds a secret with its name.
    pub fn add(&mut self, name: &str, secret: &Secret) {
        let shown: Arc<str> = format!("[secret {name}]").into();
        let text = secret.bare();
        let mut patterns = forms(text.as_bytes());
        let lines = text.lines().map(str::trim);
        // The header and footer lines of a PEM key are the same for all keys.
        let telling = lines.filter(|line| line.len() >= LINE && !line.starts_with("-----"));
        patterns.extend(telling.flat_map(|line| forms(line.as_bytes())));
        for pattern in patterns {
            if pattern.len() >= SHORTEST && !self.marks.iter().any(|it| it.pattern == pattern) {
                self.marks.push(Mark { pattern, shown: Arc::clone(&shown) });
            }
        }
        // Longest first: one pattern may contain another.
        self.marks.sort_by_key(|mark| std::cmp::Reverse(mark.pattern.len()));
    }

    /// Returns true if there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Returns the length of the longest pattern, in bytes.
    pub fn longest(&self) -> usize {
        self.marks.first().map_or(0, |mark| mark.pattern.len())
    }

    /// Returns the bytes without the secrets.
    pub fn scrub(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        for mark in &self.marks {
            let places: Vec<usize> = memmem::find_iter(&bytes, &mark.pattern[..]).collect();
            if places.is_empty() {
                continue;
            }
            let mut clean = Vec::with_capacity(bytes.len());
            let mut from = 0;
            for place in places {
                clean.extend_from_slice(&bytes[from..place]);
                clean.extend_from_slice(mark.shown.as_bytes());
                from = place + mark.pattern.len();
            }
            clean.extend_from_slice(&bytes[from..]);
            drop(Zeroizing::new(std::mem::replace(&mut bytes, clean)));
        }
        bytes
    }

    /// Returns the bytes without the secrets, if the start of the output was cut off. Also removes
    /// the first bytes, which may contain a part of a secret.
    pub fn scrub_cut(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let mut cut = self.longest().min(bytes.len());
        // Cutting inside a whole secret would leave its other half.
        while let Some(end) = self.across(&bytes, cut) {
            cut = end;
        }
        drop(Zeroizing::new(bytes.drain(..cut).collect::<Vec<u8>>()));
        self.scrub(bytes)
    }

    /// Returns the last `tail` bytes without the secrets. If there are more, the start of the
    /// output was cut off; then [`longest`](Self::longest) bytes have to stand before the tail.
    pub fn scrub_tail(&self, bytes: Vec<u8>, tail: usize) -> Vec<u8> {
        // Half a secret may stand where it was cut off.
        let mut clean = match bytes.len() > tail {
            true => self.scrub_cut(bytes),
            false => self.scrub(bytes),
        };
        drop(clean.drain(..clean.len().saturating_sub(tail)));
        clean
    }

    /// Returns the end of a pattern that spans the given position.
    fn across(&self, bytes: &[u8], place: usize) -> Option<usize> {
        self.marks.iter().find_map(|mark| {
            let length = mark.pattern.len();
            let from = place.saturating_sub(length - 1);
            let to = (place + length - 1).min(bytes.len());
            let begin = from + memmem::find(&bytes[from..to], &mark.pattern[..])?;
            Some(begin + length).filter(|end| begin < place && *end > place)
        })
    }

    /// Returns the text without the secrets.
    pub fn scrub_text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.scrub(text.as_bytes().to_vec())).into_owned()
    }

    /// Returns the document without the secrets, or `null` if the result is no valid document.
    pub fn scrub_json(&self, json: &Json) -> Json {
        // Normalize first, because JSON has several spellings: `\u0061` is `a`.
        let text = json.to_value().to_string();
        let clean = self.scrub_text(&text);
        if clean == text {
            return json.clone();
        }
        Json::parse(clean).unwrap_or_else(|_| Json::null())
    }

    /// Returns the value without the secrets.
    ///
    /// # Errors
    /// Fails when it is no value of its type without them.
    pub fn scrub_value<T: Serialize + DeserializeOwned>(
        &self,
        value: T,
    ) -> Result<T, serde_json::Error> {
        if self.is_empty() {
            return Ok(value);
        }
        let json = Json::encode(&value)?;
        let clean = self.scrub_json(&json);
        if clean == json { Ok(value) } else { clean.decode() }
    }

    /// Returns the failure without the secrets.
    pub fn scrub_failure(&self, failure: Failure) -> Failure {
        if self.is_empty() {
            return failure;
        }
        Failure {
            message: self.scrub_text(&failure.message),
            data: failure.data.as_ref().map(|data| self.scrub_json(data)),
            ..failure
        }
    }
}

impl fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scrubber({} forms)", self.marks.len())
    }
}

/// Returns the encodings of a secret.
fn forms(secret: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let own = |text: String| Zeroizing::new(text.into_bytes());
    let mut forms = vec![Zeroizing::new(secret.to_vec())];
    if let Ok(text) = std::str::from_utf8(secret) {
        // A message often quotes JSON, and is then quoted in JSON itself.
        let mut quoted = Zeroizing::new(text.to_owned());
        for _ in 0..2 {
            let json = Zeroizing::new(serde_json::Value::from(quoted.as_str()).to_string());
            quoted = Zeroizing::new(json[1..json.len() - 1].to_owned());
            forms.push(own(quoted.to_string()));
        }
    }
    forms.push(own(HEXLOWER.encode(secret)));
    forms.push(own(HEXUPPER.encode(secret)));
    forms.push(percent(secret));
    for shift in 0..3_usize {
        // The base64 text depends on the secret's offset. The characters that share bits with
        // adjacent text are excluded.
        let mut shifted = Zeroizing::new(vec![0_u8; shift]);
        shifted.extend_from_slice(secret);
        let whole = shifted.len() * 8 / 6;
        let skip = [0, 2, 3][shift];
        for encoding in [&BASE64, &BASE64URL] {
            let text = Zeroizing::new(encoding.encode(&shifted));
            forms.push(own(text[skip..whole].to_owned()));
        }
    }
    forms
}

/// Returns the percent-encoded form.
fn percent(secret: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut text = Zeroizing::new(Vec::with_capacity(secret.len() * 3));
    for byte in secret {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => text.push(*byte),
            other => {
                text.push(b'%');
                text.extend_from_slice(HEXUPPER.encode(&[*other]).as_bytes());
            }
        }
    }
    text
}

/// The secrets of attempts, used to scrub their reports over the worker API.
#[derive(Debug, Default)]
pub struct AttemptSecrets(Mutex<Holding>);

#[derive(Debug, Default)]
struct Holding {
    scrubbers: BTreeMap<Ticket, Arc<Scrubber>>,
    ended: VecDeque<Ticket>,
}

impl AttemptSecrets {
    /// Returns the scrubber of an attempt, if it has secrets.
    pub fn of(&self, ticket: Ticket) -> Option<Arc<Scrubber>> {
        self.lock().scrubbers.get(&ticket).cloned()
    }

    /// Registers the secrets of an attempt, until some time after the guard is dropped.
    pub fn hold(self: &Arc<Self>, ticket: Ticket, scrubber: Arc<Scrubber>) -> Holds {
        self.lock().scrubbers.insert(ticket, scrubber);
        Holds { held: Arc::clone(self), ticket }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Holding> {
        self.0.lock()
    }
}

/// Keeps an attempt's secrets registered.
#[derive(Debug)]
pub struct Holds {
    held: Arc<AttemptSecrets>,
    ticket: Ticket,
}

impl Drop for Holds {
    fn drop(&mut self) {
        let mut holding = self.held.lock();
        holding.ended.push_back(self.ticket);
        if holding.ended.len() > LATE
            && let Some(oldest) = holding.ended.pop_front()
        {
            holding.scrubbers.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::environment::Text;

    const CANARY: &str = "ca\"nary/+7f&ÿ-long-enough";

    fn scrubber(secret: &str) -> Scrubber {
        let mut scrubber = Scrubber::default();
        scrubber.add("it", &Text::Plain(secret.to_owned()).resolve().unwrap());
        scrubber
    }

    #[test]
    fn every_known_form_of_a_secret_is_replaced() {
        let scrubber = scrubber(CANARY);
        let encoded: Vec<String> = (0..4)
            .flat_map(|shift| {
                let text = format!("{}{CANARY} tail", "x".repeat(shift));
                [BASE64.encode(text.as_bytes()), BASE64URL.encode(text.as_bytes())]
            })
            .collect();
        let mut said = vec![
            CANARY.to_owned(),
            serde_json::Value::from(CANARY).to_string(),
            serde_json::Value::from(serde_json::Value::from(CANARY).to_string()).to_string(),
            HEXLOWER.encode(CANARY.as_bytes()),
            HEXUPPER.encode(CANARY.as_bytes()),
            "ca%22nary%2F%2B7f%26%C3%BF-long-enough".to_owned(),
        ];
        said.extend(encoded);
        for text in said {
            let clean = scrubber.scrub_text(&format!("before {text} after"));
            assert!(clean.starts_with("before ") && clean.ends_with(" after"), "{clean}");
            assert!(clean.contains("[secret it]"), "{text}: {clean}");
            assert!(!clean.contains("nary"), "{clean}");
        }
    }

    #[test]
    fn other_text_stays_and_documents_stay_documents() {
        let scrubber = scrubber("hunter22");
        assert_eq!(scrubber.scrub_text("hunter2 hunts 22"), "hunter2 hunts 22");
        let json = Json::parse(r#"{"a": ["\u0068unter22", 1.50]}"#).unwrap();
        let clean = scrubber.scrub_json(&json).to_value();
        assert_eq!(clean["a"][0], "[secret it]");
        let other = Json::parse(r#"{"a":  1.50}"#).unwrap();
        assert_eq!(scrubber.scrub_json(&other), other, "not even its spaces change");
        let number = scrubber_of_number().scrub_json(&Json::parse("[1234567]").unwrap());
        assert!(!number.as_str().contains("1234567"));
    }

    #[test]
    fn a_value_and_a_failure_come_back_without_the_secret() {
        let scrubber = scrubber("hunter22");
        let value = BTreeMap::from([("a", 1)]);
        let value: BTreeMap<String, i32> =
            value.into_iter().map(|(key, it)| (key.to_owned(), it)).collect();
        assert_eq!(scrubber.scrub_value(value.clone()).unwrap(), value);
        assert_eq!(scrubber.scrub_value("hunter22!".to_owned()).unwrap(), "[secret it]!");
        assert!(scrubber_of_number().scrub_value(1_234_567).is_err());
        let failure =
            Failure::new("x", "no hunter22").with_data(Json::from(Value::from("hunter22")));
        let clean = scrubber.scrub_failure(failure.retryable());
        assert_eq!(clean.message, "no [secret it]");
        assert_eq!(clean.data.unwrap().as_str(), "\"[secret it]\"");
        assert!(clean.retryable);
    }

    fn scrubber_of_number() -> Scrubber {
        scrubber("1234567")
    }

    #[test]
    fn the_lines_of_a_key_are_looked_for_one_by_one() {
        let key = "-----BEGIN KEY-----\nMIIBVgIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----";
        let clean = scrubber(key).scrub_text("line 2: hkiG9w0BAQEFAASC; -----BEGIN KEY-----");
        assert_eq!(clean, "line 2: [secret it]; -----BEGIN KEY-----");
    }

    #[test]
    fn what_is_written_before_a_secret_is_no_part_of_it() {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), "canary-12").unwrap();
        let text = Text::File { path: path.path().to_owned(), prefix: "Bearer ".to_owned() };
        let mut scrubber = Scrubber::default();
        scrubber.add("it", &text.resolve().unwrap());
        assert_eq!(scrubber.scrub_text("Bearer canary-12"), "Bearer [secret it]");
        assert_eq!(scrubber.scrub_text("x=canary-12"), "x=[secret it]");
    }

    #[test]
    fn a_secret_across_the_cut_goes_as_a_whole() {
        let scrubber = scrubber("canary-12");
        let text = format!("ary-12 {} end", "canary-12 ".repeat(9));
        for begin in 0..20 {
            let clean = scrubber.scrub_cut(text.as_bytes()[begin..].to_vec());
            let clean = String::from_utf8(clean).unwrap();
            assert!(clean.ends_with("[secret it]  end"), "{clean}");
            assert!(!clean.contains("ary") && !clean.contains("-12"), "{begin}: {clean}");
        }
    }

    #[test]
    fn what_comes_late_is_still_known() {
        let held = Arc::new(AttemptSecrets::default());
        let ticket = Ticket { run: 1, step: 2, attempt: 3 };
        drop(held.hold(ticket, Arc::new(scrubber(CANARY))));
        assert!(held.of(ticket).is_some());
        for run in 2..2 + u64::try_from(LATE).unwrap() {
            drop(held.hold(Ticket { run, step: 1, attempt: 1 }, Arc::default()));
        }
        assert!(held.of(ticket).is_none(), "but not for ever");
        assert!(!format!("{:?}", scrubber(CANARY)).contains("nary"));
    }
}
