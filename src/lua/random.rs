//! The run's own numbers: the same for ever, for a seed and a position.

/// A counter-based generator (SplitMix64): its whole state is a seed and a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.drawn += 1;
        let mut word = self.seed.wrapping_add(self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number from 0, below 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in a double")]
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A UUID of version 4.
    pub(crate) fn uuid(&mut self) -> uuid::Uuid {
        let (high, low) = (u128::from(self.bits()), u128::from(self.bits()));
        uuid::Builder::from_random_bytes(((high << 64) | low).to_be_bytes()).into_uuid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_for_ever() {
        let mut random = Random::new(7);
        assert_eq!(random.bits(), 0x63cb_e1e4_5932_0dd7);
        assert_eq!(random.uuid().get_version_num(), 4);
        assert!((0.0..1.0).contains(&random.fraction()));
        let mut again = Random::new(7);
        again.bits();
        assert_eq!(again.uuid(), Random { seed: 7, drawn: 1 }.uuid());
    }
}
