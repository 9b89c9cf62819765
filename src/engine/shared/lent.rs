//! The messages between a node that drives runs and one that helps it: what is lent, what is to be
//! committed, and what comes home.
//!
//! | from | message | then |
//! |---|---|---|
//! | driver | take | the helper reads the run from the database, and drives it |
//! | helper | parcel | the driver commits the batch, and answers `settled` |
//! | driver | recall | the helper gives the run back |
//! | helper | home | the run goes on at the driver, once the batches before this are settled |
//!
//! Both ends have the same release, so these messages have no version of their own.

use serde::{Deserialize, Serialize};

use crate::{
    engine::run::loan::HomeReason,
    protocol::Json,
    store::{Delivered, Parcel, StoreError},
};

/// The rule by which a node that drives lends runs to the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Lend {
    /// While its threads or its memory have more than they can do.
    #[default]
    Auto,
    /// Always: each node gets as many as the others.
    Even,
    /// Never, and it takes none from others.
    Off,
}

impl Lend {
    /// Returns the word used in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Even => "even",
            Self::Off => "off",
        }
    }

    /// Parses the word used in the configuration.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Auto, Self::Even, Self::Off].into_iter().find(|it| it.as_str() == word)
    }
}

/// What the node that drives says to one that helps.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToHelper {
    /// Drive this run; it is stored.
    Take {
        /// The run.
        run: u64,
        /// The grant of who published its version, if anybody did.
        publisher: Option<Json>,
    },
    /// Give a run back.
    Recall {
        /// The run.
        run: u64,
        /// The time that its attempts have to end before that.
        patience: Patience,
    },
    /// The fate of a batch.
    Settled {
        /// The number that the helper gave it.
        number: u64,
        /// The answers of its changes of state, or the reason for the refusal.
        result: Delivered,
    },
}

/// The time that the attempts of a run have to end before it comes home. The shorter goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Patience {
    /// None: they are interrupted.
    None,
    /// A moment, for which somebody waits.
    Short,
    /// Until they end by themselves.
    Endless,
}

/// What a helper says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromHelper {
    /// A batch to commit. It has a form of its own.
    #[serde(skip)]
    Parcel {
        /// Its number.
        number: u64,
        /// The batch.
        parcel: Box<Parcel>,
    },
    /// It no longer has a run.
    Home {
        /// The run.
        run: u64,
        /// The reason.
        why: HomeReason,
    },
    /// How much it has to do.
    Load {
        /// The number of runs that wait for a thread.
        waiting: u32,
        /// True if its memory is nearly full.
        tight: bool,
    },
}

/// What stands before the body of a message of a helper.
const PARCEL: u8 = 1;
const WORD: u8 = 2;

impl ToHelper {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data")
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// Fails for bytes that are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        serde_json::from_slice(bytes).map_err(unreadable)
    }
}

impl FromHelper {
    /// Encodes the message.
    ///
    /// # Errors
    /// Fails for a batch with writes that no run of a helper makes.
    pub fn encode(&self) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::new();
        match self {
            Self::Parcel { number, parcel } => {
                bytes.push(PARCEL);
                bytes.extend(number.to_be_bytes());
                bytes.extend(parcel.encode()?);
            }
            Self::Home { .. } | Self::Load { .. } => {
                bytes.push(WORD);
                bytes.extend(serde_json::to_vec(self).expect("plain data"));
            }
        }
        Ok(bytes)
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// Fails for bytes that are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        match bytes.split_first() {
            Some((&PARCEL, rest)) if rest.len() >= 8 => {
                let (number, parcel) = rest.split_at(8);
                let number = u64::from_be_bytes(number.try_into().expect("eight bytes"));
                Ok(Self::Parcel { number, parcel: Box::new(Parcel::decode(parcel)?) })
            }
            Some((&WORD, rest)) => serde_json::from_slice(rest).map_err(unreadable),
            Some(_) | None => Err(unreadable("it has no kind")),
        }
    }
}

fn unreadable(reason: impl ToString) -> StoreError {
    StoreError::Damaged { what: "a message between nodes".to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_the_same_after_their_way() {
        let refused = StoreError::Revision { key: "k\u{0}".into(), expected: 1, found: u64::MAX };
        for result in [Ok(vec![Vec::new()]), Err(refused)] {
            let sent = ToHelper::Settled { number: u64::MAX, result };
            let got = ToHelper::decode(&sent.encode()).unwrap();
            assert_eq!(format!("{got:?}"), format!("{sent:?}"));
        }
        let parcel = Parcel { checks: Vec::new(), run: None, writes: Vec::new() };
        for sent in [
            FromHelper::Parcel { number: 7, parcel: Box::new(parcel) },
            FromHelper::Home { run: 9, why: HomeReason::Needs },
            FromHelper::Load { waiting: 3, tight: true },
        ] {
            let got = FromHelper::decode(&sent.encode().unwrap()).unwrap();
            assert_eq!(format!("{got:?}"), format!("{sent:?}"));
        }
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        for bytes in [&b""[..], b"\x01", b"\x01\0\0\0\0\0\0\0\x07x", b"\x02{", b"\x03", b"{}"] {
            assert!(FromHelper::decode(bytes).is_err(), "{bytes:?}");
            assert!(ToHelper::decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
