//! Every choice of a simulation, from its seed.

/// A stream of numbers that a seed determines.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number: a counter in golden steps, its bits mixed twice.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number under `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("a size fits");
        usize::try_from(self.next() % end).expect("it is under a size")
    }

    /// Returns true if something that happens once in `times` happens now.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of a list, if it has any.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { Some(&of[self.below(of.len())]) }
    }

    /// One of a list in which each weighs so much.
    pub fn weigh<T: Copy>(&mut self, of: &[(usize, T)]) -> Option<T> {
        let total: usize = of.iter().map(|(weight, _)| weight).sum();
        if total == 0 {
            return None;
        }
        let mut left = self.below(total);
        for (weight, one) in of {
            if left < *weight {
                return Some(*one);
            }
            left -= weight;
        }
        None
    }
}
