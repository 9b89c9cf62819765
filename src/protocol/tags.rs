//! The tags of a run: short texts by name, given at its start.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// The maximum number of tags of a run.
const MOST: usize = 16;
/// The maximum length of a tag's name in bytes.
const NAME_BYTES: usize = 64;
/// The maximum length of a tag's value in bytes.
const VALUE_BYTES: usize = 512;

/// The tags of a run. They are set at its start and never change.
///
/// The limits are those of `metadata` in the Responses API: 16 tags, names of 64 and values of 512
/// bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Tags(BTreeMap<String, String>);

/// The reason why tags are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// There are too many.
    #[error("take {0} tags: a run has at most {MOST}")]
    TooMany(usize),
    /// A name has the wrong form.
    #[error(
        "take the tag {0:?}: a name has 1 to {NAME_BYTES} ASCII letters, digits and `_ - . : /`, \
         and begins with a letter or a digit"
    )]
    Name(String),
    /// A value is too long, or contains control characters.
    #[error(
        "take the tag {0:?}: a value has at most {VALUE_BYTES} bytes and no control characters"
    )]
    Value(String),
    /// A text is no tag.
    #[error("take the tag {0:?}: write it as NAME=VALUE")]
    Text(String),
}

impl Tags {
    /// Checks the names and values of tags.
    ///
    /// # Errors
    /// Fails when there are too many, or one breaks a rule.
    pub fn new(tags: BTreeMap<String, String>) -> Result<Self, TagError> {
        if tags.len() > MOST {
            return Err(TagError::TooMany(tags.len()));
        }
        for (name, value) in &tags {
            check_name(name)?;
            if value.len() > VALUE_BYTES || value.chars().any(char::is_control) {
                return Err(TagError::Value(name.clone()));
            }
        }
        Ok(Self(tags))
    }

    /// Parses tags of the form `name=value`.
    ///
    /// # Errors
    /// Fails when a text has another form, or breaks a rule.
    pub fn parse<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Self, TagError> {
        let mut tags = BTreeMap::new();
        for text in texts {
            let (name, value) = text.split_once('=').ok_or_else(|| TagError::Text(cut(text)))?;
            tags.insert(name.to_owned(), value.to_owned());
        }
        Self::new(tags)
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of a tag.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Iterates over all tags, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the names and values.
    pub fn as_map(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Tags {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(BTreeMap::deserialize(from)?).map_err(|error| D::Error::custom(refusal(&error)))
    }
}

/// A condition on a tag: it exists, or it has a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagIs {
    /// The name.
    pub name: String,
    /// The value; any if absent.
    pub value: Option<String>,
}

impl TagIs {
    /// Parses `name` or `name=value`.
    ///
    /// # Errors
    /// Fails when the name has the wrong form.
    pub fn parse(text: &str) -> Result<Self, TagError> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        check_name(name)?;
        Ok(Self { name: name.to_owned(), value })
    }

    /// Returns true if tags meet the condition.
    pub fn fits(&self, tags: &Tags) -> bool {
        let found = tags.get(&self.name);
        found.is_some_and(|found| self.value.as_deref().is_none_or(|value| value == found))
    }
}

/// Returns the message of an error, as a sentence of its own.
fn refusal(error: &TagError) -> String {
    format!("failed to {error}")
}

fn check_name(name: &str) -> Result<(), TagError> {
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    if begins && name.len() <= NAME_BYTES && name.bytes().all(fits) {
        return Ok(());
    }
    Err(TagError::Name(cut(name)))
}

fn cut(text: &str) -> String {
    text.chars().take(NAME_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Tags, TagError> {
        Tags::new(pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
    }

    #[test]
    fn tags_within_the_limits_are_taken_and_others_are_named() {
        let most = "é".repeat(VALUE_BYTES / 2);
        let tags = of(&[("customer", "acme"), ("a.b/c:d-e_1", ""), ("long", &most)]).unwrap();
        assert_eq!(tags.get("customer"), Some("acme"));
        assert_eq!(of(&[("long", &format!("{most}."))]), Err(TagError::Value("long".into())));
        assert_eq!(of(&[("line", "a\nb")]), Err(TagError::Value("line".into())));
        for name in ["", "_a", "a b", "ä", &"n".repeat(65)] {
            assert_eq!(of(&[(name, "")]), Err(TagError::Name(cut(name))), "{name}");
        }
        let many: Vec<String> = (0..17).map(|n| format!("t{n}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "")).collect();
        assert_eq!(of(&many), Err(TagError::TooMany(17)));
        assert!(of(&many[..16]).is_ok());
    }

    #[test]
    fn a_text_is_split_at_its_first_equals_sign() {
        assert_eq!(Tags::parse(["a=b=c"]).unwrap().get("a"), Some("b=c"));
        assert_eq!(Tags::parse(["a"]), Err(TagError::Text("a".into())));
    }

    #[test]
    fn a_condition_is_on_a_name_or_on_its_value() {
        let tags = of(&[("a", "1")]).unwrap();
        for (text, fits) in
            [("a", true), ("a=1", true), ("a=", false), ("a=2", false), ("b", false)]
        {
            assert_eq!(TagIs::parse(text).unwrap().fits(&tags), fits, "{text}");
        }
        assert!(TagIs::parse("=1").is_err());
    }

    #[test]
    fn what_is_read_is_checked() {
        let refused = serde_json::from_str::<Tags>(r#"{"a b":"c"}"#).unwrap_err();
        assert!(refused.to_string().contains("take the tag \"a b\""), "{refused}");
    }
}
