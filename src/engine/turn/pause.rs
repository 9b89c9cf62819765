//! The pause between a failed attempt and the next.

use crate::{
    flow::Backoff,
    protocol::{Failure, Json},
};

/// Returns the time after which a retry may succeed, from the data of a failure.
pub(crate) fn retry_after_ms(failure: &Failure) -> u64 {
    let data = failure.data.as_ref().map(Json::to_value);
    data.and_then(|data| data.get("retry_after_ms")?.as_u64()).unwrap_or(0)
}

/// The pause before the attempt that follows `counted` failed ones, in milliseconds.
pub(crate) fn pause_ms(retry: &Backoff, counted: u32, seed: u64, step: u32) -> u64 {
    let exponent = i32::try_from(counted.saturating_sub(1)).unwrap_or(i32::MAX);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a pause of milliseconds needs no more than a double's precision; casts saturate"
    )]
    let full = ((retry.backoff_ms as f64) * retry.factor.max(1.0).powi(exponent))
        .min(retry.max_ms as f64) as u64;
    if !retry.jitter || full < 2 {
        return full;
    }
    // Spread over the second half, the same at every replay of this decision.
    let mixed = blake3::hash(
        &[seed.to_le_bytes(), u64::from(step).to_le_bytes(), u64::from(counted).to_le_bytes()]
            .concat(),
    );
    let spread = u64::from_le_bytes(mixed.as_bytes()[..8].try_into().expect("8 of 32 bytes"));
    full / 2 + spread % (full / 2 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_their_maximum() {
        let retry = Backoff { backoff_ms: 100, max_ms: 350, jitter: false, ..Backoff::default() };
        let pauses: Vec<_> = (1..=4).map(|n| pause_ms(&retry, n, 1, 1)).collect();
        assert_eq!(pauses, [100, 200, 350, 350]);
    }

    #[test]
    fn jitter_stays_in_the_second_half() {
        let retry = Backoff { backoff_ms: 1_000, ..Backoff::default() };
        let pauses: Vec<_> = (0..50).map(|step| pause_ms(&retry, 1, 9, step)).collect();
        assert!(pauses.iter().all(|pause| (500..=1_000).contains(pause)), "{pauses:?}");
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
