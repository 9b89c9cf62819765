//! Labels: what a task asks of the worker that takes it.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

/// The most labels of a task or a worker.
const MOST: usize = 16;
/// The longest name or value, in bytes.
const LEN: usize = 64;

/// Names with values: `gpu = "true"`, `zone = "eu"`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(BTreeMap<String, String>);

/// Labels that are too many, too long, or not plain words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "use the labels: {reason}; at most {MOST}, each name and value 1 to {LEN} of letters, digits, \
     `.`, `_`, `/` and `-`"
)]
pub struct BadLabels {
    reason: String,
}

impl Labels {
    /// Labels from names with values.
    ///
    /// # Errors
    /// Too many, or a name or value that is empty, too long or not a plain word.
    pub fn new(labels: BTreeMap<String, String>) -> Result<Self, BadLabels> {
        if labels.len() > MOST {
            return Err(BadLabels { reason: format!("there are {}", labels.len()) });
        }
        let odd = labels
            .iter()
            .find_map(|(name, value)| [name, value].into_iter().find(|word| !is_word(word)));
        if let Some(word) = odd {
            let shown: String = word.chars().take(80).collect();
            return Err(BadLabels { reason: format!("{shown:?} is not a plain word") });
        }
        Ok(Self(labels))
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if all of these are among those of a worker.
    pub fn fit(&self, worker: &Self) -> bool {
        self.0.iter().all(|(name, value)| worker.0.get(name) == Some(value))
    }
}

/// As flags of the worker that has them: ` --label gpu=true`, each with a space before it.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, value)| write!(f, " --label {name}={value}"))
    }
}

fn is_word(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
    (1..=LEN).contains(&text.len()) && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Labels::new(pairs.into()).unwrap()
    }

    #[test]
    fn a_task_fits_a_worker_that_has_all_of_its_labels() {
        let worker = labels([("gpu", "true"), ("zone", "eu")]);
        assert!(labels([]).fit(&worker));
        assert!(labels([("gpu", "true")]).fit(&worker));
        assert!(!labels([("gpu", "false")]).fit(&worker));
        assert!(!labels([("arm", "true")]).fit(&worker));
        assert!(!worker.fit(&labels([])));
    }

    #[test]
    fn labels_are_few_and_plain() {
        let bad = |name: &str, value: &str| Labels::new([(name.into(), value.into())].into());
        assert!(bad("", "x").is_err() && bad("x", "").is_err() && bad("a b", "x").is_err());
        assert!(bad("x", &"y".repeat(65)).is_err());
        let many = (0..17).map(|n| (format!("l{n}"), "x".to_owned())).collect();
        assert!(Labels::new(many).unwrap_err().to_string().contains("there are 17"));
    }
}
