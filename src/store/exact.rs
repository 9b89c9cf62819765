//! Values of a batch that JSON alone would not carry as they are.
//!
//! A number that is no integer is carried as its bits, because its digits may be read as the number
//! beside it. Counts are carried as the database stores them: their keys are no texts.

/// A number that is no integer, as its bits.
pub mod number {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Serializes the bits.
    pub fn serialize<S: Serializer>(number: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        number.map(f64::to_bits).serialize(to)
    }

    /// Deserializes the bits.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(f64::from_bits))
    }
}

/// Hints, with the bits of their salience in place of its digits.
pub mod hints {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::protocol::StoreOptions;

    /// Serializes the hints, and the bits.
    pub fn serialize<S: Serializer>(hints: &StoreOptions, to: S) -> Result<S::Ok, S::Error> {
        let plain = StoreOptions { salience: None, ..hints.clone() };
        (plain, hints.salience.map(f64::to_bits)).serialize(to)
    }

    /// Deserializes the hints, and the bits.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<StoreOptions, D::Error> {
        let (hints, salience) = <(StoreOptions, Option<u64>)>::deserialize(from)?;
        Ok(StoreOptions { salience: salience.map(f64::from_bits), ..hints })
    }
}

/// The counts of a run, in postcard and Base64.
pub mod counted {
    use data_encoding::BASE64;
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _, ser::Error as _};

    use crate::store::CountedRun;

    /// Serializes the text.
    pub fn serialize<S: Serializer>(counted: &CountedRun, to: S) -> Result<S::Ok, S::Error> {
        let bytes = postcard::to_stdvec(counted).map_err(S::Error::custom)?;
        to.serialize_str(&BASE64.encode(&bytes))
    }

    /// Deserializes the text.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Box<CountedRun>, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = BASE64.decode(text.as_bytes()).map_err(D::Error::custom)?;
        match postcard::take_from_bytes(&bytes).map_err(D::Error::custom)? {
            (counted, []) => Ok(Box::new(counted)),
            (_, rest) => Err(D::Error::custom(format!("{} bytes follow the counts", rest.len()))),
        }
    }
}
