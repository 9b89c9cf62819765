//! A reading of all families: plain data, which a text or an export is made of.

use super::{
    catalogue::{Described, FAMILIES, Kind},
    number::{Buckets, Histogram},
};

/// A reading in progress: the points of each family so far.
#[derive(Debug)]
pub struct Scrape {
    points: Vec<Points>,
}

/// The points of a family.
#[derive(Debug)]
pub struct Points {
    /// The family.
    pub of: &'static Described,
    /// The points.
    pub samples: Vec<Sample>,
}

/// A point: a number with its labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The labels, in the order of the family's table; an empty one is left out.
    pub labels: Vec<(&'static str, String)>,
    /// The number.
    pub value: Value,
}

/// The number of a point.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A count, or a whole number.
    Whole(u64),
    /// Any number.
    Number(f64),
    /// Counts by size.
    Buckets(Buckets),
}

impl Default for Scrape {
    fn default() -> Self {
        let points = |of| Points { of, samples: Vec::new() };
        Self { points: FAMILIES.iter().map(points).collect() }
    }
}

impl Scrape {
    /// Adds a sum of a counter, or a whole number of a gauge.
    pub fn count(&mut self, name: &str, labels: &[&str], value: u64) {
        self.put(name, labels, Value::Whole(value));
    }

    /// Adds a number.
    pub fn number(&mut self, name: &str, labels: &[&str], value: f64) {
        self.put(name, labels, Value::Number(value));
    }

    /// Adds a histogram, unless nothing was ever added to it and it has labels.
    pub fn histogram(&mut self, name: &str, labels: &[&str], of: &Histogram) {
        let read = of.read();
        if labels.is_empty() || read.counts.iter().any(|count| *count > 0) {
            self.put(name, labels, Value::Buckets(read));
        }
    }

    /// Adds a point to a family, which must be in the table.
    fn put(&mut self, name: &str, labels: &[&str], value: Value) {
        let points = self.points.iter_mut().find(|it| it.of.name == name);
        debug_assert!(points.is_some(), "the family {name} is not in the table");
        let Some(points) = points else { return };
        debug_assert_eq!(points.of.labels.len(), labels.len(), "labels of {name}");
        debug_assert_eq!(
            points.of.kind == Kind::Histogram,
            matches!(value, Value::Buckets(_)),
            "{name}"
        );
        let named = points.of.labels.iter().copied().zip(labels.iter().map(ToString::to_string));
        let labels = named.filter(|(_, label)| !label.is_empty()).collect();
        points.samples.push(Sample { labels, value });
    }

    /// Returns the families with their points, in the order of the table.
    pub fn families(&self) -> &[Points] {
        &self.points
    }
}
