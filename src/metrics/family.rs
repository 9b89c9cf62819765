//! Series by their labels, of which there is a limited number.

use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::RwLock;

/// The label of everything beyond the limit of a family.
pub const OTHER: &str = "other";
/// The longest label, in bytes; a longer one is [`OTHER`].
const LONGEST: usize = 128;
/// The separator of the labels in a key, which no label contains.
const BETWEEN: char = '\u{1f}';

/// The series of a family, each with `N` labels.
#[derive(Debug)]
pub struct Series<const N: usize, V> {
    most: usize,
    known: RwLock<HashMap<String, Arc<V>>>,
    is_full: AtomicBool,
}

impl<const N: usize, V: Default> Series<N, V> {
    /// Creates a family of at most `most` series, and one for all others.
    pub fn new(most: usize) -> Self {
        Self { most, known: RwLock::default(), is_full: AtomicBool::new(false) }
    }

    /// Returns the series with these labels; that of all others, if there are too many.
    pub fn of(&self, labels: [&str; N]) -> Arc<V> {
        thread_local! {
            /// A key, to look for. Only a new series has one of its own.
            static KEY: RefCell<String> = RefCell::default();
        }
        KEY.with_borrow_mut(|key| {
            key.clear();
            write_key(key, labels);
            if let Some(known) = self.known.read().get(key.as_str()) {
                return Arc::clone(known);
            }
            let mut known = self.known.write();
            if known.len() < self.most || known.contains_key(key.as_str()) {
                return Arc::clone(known.entry(key.clone()).or_default());
            }
            self.is_full.store(true, Ordering::Relaxed);
            key.clear();
            write_key(key, [OTHER; N]);
            Arc::clone(known.entry(key.clone()).or_default())
        })
    }

    /// Returns true if a series was counted with others.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Returns every series with its labels, sorted by them.
    pub fn all(&self) -> Vec<([String; N], Arc<V>)> {
        let labels = |key: &str| {
            let mut parts = key.split(BETWEEN);
            std::array::from_fn(|_| parts.next().unwrap_or_default().to_owned())
        };
        let known = self.known.read();
        let mut all: Vec<_> = known.iter().map(|(key, it)| (labels(key), Arc::clone(it))).collect();
        drop(known);
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

fn write_key<const N: usize>(key: &mut String, labels: [&str; N]) {
    for (at, label) in labels.into_iter().enumerate() {
        if at > 0 {
            key.push(BETWEEN);
        }
        let fits = label.len() <= LONGEST && !label.contains(BETWEEN);
        key.push_str(if fits { label } else { OTHER });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Counter;

    #[test]
    fn labels_beyond_the_limit_are_counted_together() {
        let series: Series<2, Counter> = Series::new(3);
        for n in 0..10 {
            series.of(["a", &n.to_string()]).inc();
        }
        series.of(["a", "0"]).inc();
        let all: Vec<_> =
            series.all().into_iter().map(|(it, n)| (it[1].clone(), n.get())).collect();
        let expected = [("0", 2), ("1", 1), ("2", 1), (OTHER, 7)];
        assert_eq!(all, expected.map(|(label, n)| (label.to_owned(), n)));
        assert!(series.is_full());
    }

    #[test]
    fn a_label_without_measure_is_another() {
        let series: Series<2, Counter> = Series::new(9);
        series.of([&"x".repeat(500), "a\u{1f}b"]).inc();
        assert_eq!(series.all()[0].0, [OTHER, OTHER]);
        assert!(!series.is_full());
    }
}
