//! Partitions of runs.

/// One of the 256 partitions of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(u8);

impl Partition {
    /// The number of partitions.
    pub const COUNT: u64 = 256;

    /// The partition that a run belongs to: its number modulo 256, for ever.
    pub fn of(run: u64) -> Self {
        Self(run.to_le_bytes()[0])
    }

    /// Every partition, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_belongs_to_the_partition_of_its_number_modulo_256() {
        for run in [0, 1, 255, 256, 257, u64::MAX] {
            assert_eq!(u64::from(Partition::of(run).number()), run % Partition::COUNT);
        }
        assert_eq!(Partition::all().count() as u64, Partition::COUNT);
    }
}
