//! The place of a run and of its steps in a distributed trace, as W3C Trace Context writes it.
//!
//! The ids of a run follow from its number and its nonce, so that they are the same after a restart,
//! and nothing needs to be stored for them.

use std::fmt;

use data_encoding::HEXLOWER;

/// A span of a trace: `00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    /// The id of the trace; never zero.
    pub trace: [u8; 16],
    /// The id of the span; never zero.
    pub span: [u8; 8],
    /// True if the trace is recorded.
    pub sampled: bool,
}

impl TraceParent {
    /// Parses a `traceparent` header. A version that is not known is read as far as it is known.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let mut next = |len: usize| parts.next().filter(|part| part.len() == len);
        let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        if version == "ff" || version == "00" && parts.next().is_some() {
            return None;
        }
        let decode = |hex: &str| HEXLOWER.decode(hex.as_bytes()).ok();
        decode(version)?;
        let trace: [u8; 16] = decode(trace)?.try_into().ok()?;
        let span: [u8; 8] = decode(span)?.try_into().ok()?;
        let flags = decode(flags)?;
        let is_valid = trace != [0; 16] && span != [0; 8];
        is_valid.then(|| Self { trace, span, sampled: flags[0] & 1 == 1 })
    }

    /// Returns the span of a step of a run; step 0 is the run itself. A run that was started within
    /// a trace belongs to that trace and follows its decision whether it is recorded; any other run
    /// begins a trace of its own.
    pub fn of_step(run: u64, nonce: u64, started_in: Option<Self>, step: u32) -> Self {
        let own = id("moonswarm trace", (run, nonce), 0);
        let trace = started_in.map_or_else(|| first(&own), |it| it.trace);
        let sampled = started_in.is_none_or(|it| it.sampled);
        Self { trace, span: first(&id("moonswarm span", (run, nonce), step)), sampled }
    }

    /// Returns the span of a request with an id of its own, which no other request has. It belongs to
    /// the trace of its client, if that has one.
    pub fn of_request(request: [u8; 16], within: Option<Self>) -> Self {
        let hash = |what: &str| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(what.as_bytes()).update(&request);
            *hasher.finalize().as_bytes()
        };
        let trace = within.map_or_else(|| first(&hash("moonswarm request")), |it| it.trace);
        let span = first(&hash("moonswarm request span"));
        Self { trace, span, sampled: within.is_none_or(|it| it.sampled) }
    }

    /// Returns the span of the trigger that started a run by itself. It is a trace of its own.
    pub fn of_trigger(run: u64, nonce: u64) -> Self {
        let hash = id("moonswarm trigger", (run, nonce), 0);
        let span = first(&id("moonswarm trigger span", (run, nonce), 0));
        Self { trace: first(&hash), span, sampled: true }
    }
}

/// The traces that are recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// The fraction of traces, from 0 to 1.
    pub ratio: f64,
    /// True if a run that was started within a trace is recorded exactly if that trace is.
    pub by_parent: bool,
}

impl Sampling {
    /// Every trace that is not excluded by the one that started it.
    pub const ALL: Self = Self { ratio: 1.0, by_parent: true };

    /// Returns a span of a run with the decision whether its trace is recorded. All spans of a trace
    /// get the same decision, in this process and in the next.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "53 bits are what a double has")]
    pub fn of(self, span: TraceParent, started_in: Option<TraceParent>) -> TraceParent {
        if let Some(parent) = started_in.filter(|_| self.by_parent) {
            return TraceParent { sampled: parent.sampled, ..span };
        }
        let low = u64::from_be_bytes(std::array::from_fn(|at| span.trace[at + 8])) >> 11;
        let share = low as f64 / (1_u64 << 53) as f64;
        TraceParent { sampled: share < self.ratio, ..span }
    }
}

/// Hashes a number of a run.
fn id(what: &str, (run, nonce): (u64, u64), number: u32) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(what.as_bytes());
    for number in [run, nonce, number.into()] {
        hasher.update(&number.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// Returns the first bytes of a hash.
fn first<const N: usize>(hash: &[u8; 32]) -> [u8; N] {
    std::array::from_fn(|at| hash[at])
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (HEXLOWER.encode(&self.trace), HEXLOWER.encode(&self.span));
        write!(f, "00-{trace}-{span}-0{}", u8::from(self.sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_span_is_read_back_and_nothing_else_is_one() {
        assert_eq!(TraceParent::parse(GIVEN).unwrap().to_string(), GIVEN);
        assert!(!TraceParent::parse(&GIVEN.replace("-01", "-02")).unwrap().sampled);
        let newer = GIVEN.replace("00-", "cc-") + "-more";
        assert!(TraceParent::parse(&newer).is_some());
        for wrong in [
            "",
            "00",
            &GIVEN.replace("00-", "ff-"),
            &GIVEN.to_uppercase(),
            &format!("{GIVEN}-more"),
            &GIVEN.replace("b7ad6b7169203331", "0000000000000000"),
            &GIVEN.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
        ] {
            assert_eq!(TraceParent::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_ids_of_a_run_are_its_own_and_always_the_same() {
        let run = TraceParent::of_step(7, 99, None, 0);
        assert_eq!(run, TraceParent::of_step(7, 99, None, 0));
        let step = TraceParent::of_step(7, 99, None, 1);
        assert!(step.trace == run.trace && step.span != run.span);
        assert_ne!(TraceParent::of_step(7, 98, None, 0).trace, run.trace);
        let within = TraceParent::parse(GIVEN).unwrap();
        let step = TraceParent::of_step(7, 99, Some(within), 1);
        assert!(step.trace == within.trace && step.span != within.span);
        let trigger = TraceParent::of_trigger(7, 99);
        assert!(trigger.trace != run.trace && trigger.span != run.span);
    }

    #[test]
    fn a_request_belongs_to_the_trace_of_its_client_and_has_a_span_of_its_own() {
        let within = TraceParent::parse(GIVEN).unwrap();
        let (one, other) = ([1; 16], [2; 16]);
        let span = TraceParent::of_request(one, Some(within));
        assert!(span.trace == within.trace && span.span != within.span && span.sampled);
        assert_ne!(TraceParent::of_request(other, Some(within)).span, span.span);
        let root = TraceParent::of_request(one, None);
        assert!(root.trace != TraceParent::of_request(other, None).trace && root.sampled);
    }

    #[test]
    fn a_share_of_the_traces_is_recorded_and_a_parent_decides_for_its_own() {
        let half = Sampling { ratio: 0.5, by_parent: true };
        let is_recorded = |run, started_in| {
            half.of(TraceParent::of_step(run, 1, started_in, 0), started_in).sampled
        };
        let recorded = (0..1_000).filter(|run| is_recorded(*run, None)).count();
        assert!((400..600).contains(&recorded), "{recorded}");
        let parent = |sampled| Some(TraceParent { sampled, ..TraceParent::parse(GIVEN).unwrap() });
        assert!(is_recorded(1, parent(true)) && !is_recorded(1, parent(false)));
        let none = Sampling { ratio: 0.0, by_parent: false };
        assert!(!none.of(TraceParent::of_step(1, 1, parent(true), 0), parent(true)).sampled);
        let span = TraceParent::of_step(1, 1, None, 0);
        assert!(Sampling::ALL.of(span, None).sampled);
    }
}
