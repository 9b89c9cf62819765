//! Parses the section of a file into settings, or reports a mistake with its position.

use std::{collections::BTreeMap, fmt, ops::Range, path::Path, sync::Arc};

use toml::{
    Spanned,
    de::{DeTable, DeValue, Error, ValueDeserializer},
};

use super::{Settings, kinds::KINDS};
use crate::{
    blueprint::did_you_mean,
    operator::{GraphError, MAIN_AI, composite, kind_of},
};

/// The maximum length of an operator's name, in bytes.
const NAME_LEN: usize = 64;
/// The maximum number of operators in a file.
const MOST: usize = 1_000;
/// The names that always exist, each with its kind.
const BUILT_IN: [(&str, &str); 6] = [
    ("echo", "echo"),
    ("human", "human"),
    ("lua", "lua"),
    (MAIN_AI, "main_ai"),
    ("process", "process"),
    ("queue", "queue"),
];

/// The operators that a file declares, by name.
#[derive(Debug, Clone, Default)]
pub struct Declared(BTreeMap<String, Arc<dyn Settings>>);

/// A mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The position, in bytes of the file.
    pub span: Option<Range<usize>>,
    /// The error message.
    pub message: String,
    /// A suggestion.
    pub hint: Option<String>,
}

impl Declared {
    /// Parses the value of the key `operators`.
    ///
    /// # Errors
    /// Returns the first mistake: not a table, an invalid name, a missing or unknown kind, or
    /// invalid settings.
    pub fn read(section: Spanned<DeValue<'_>>) -> Result<Self, Mistake> {
        let span = section.span();
        let DeValue::Table(section) = section.into_inner() else {
            return Err(Mistake::new(span, "`operators` must be a table: [operators.NAME]"));
        };
        if section.len() > MOST {
            return Err(Mistake::new(span, format!("there are more than {MOST} operators")));
        }
        let (mut declared, mut places) = (BTreeMap::new(), BTreeMap::new());
        for (name, keys) in section {
            places.insert(name.get_ref().clone().into_owned(), name.span());
            let settings = operator(&name, keys).map_err(|mistake| Mistake {
                message: format!("operator `{}`: {}", name.get_ref(), mistake.message),
                ..mistake
            })?;
            declared.insert(name.into_inner().into_owned(), settings);
        }
        let declared = Self(declared);
        declared.check().map_err(|error| {
            let at = places.get(error.operator()).cloned().unwrap_or(span);
            Mistake::new(at, format!("operator `{}`: {error}", error.operator()))
        })?;
        Ok(declared)
    }

    /// Verifies that the members of every composite exist and that none contains itself.
    fn check(&self) -> Result<(), GraphError> {
        let composites = self
            .iter()
            .filter_map(|(name, settings)| Some((name.to_owned(), settings.composite()?.clone())));
        let simple = self.iter().filter(|(_, settings)| settings.composite().is_none());
        let built_in = BUILT_IN.iter().map(|(name, _)| *name);
        let others: Vec<&str> = built_in.chain(simple.map(|(name, _)| name)).collect();
        composite::check(&composites.collect(), &others)
    }

    /// Resolves relative paths against the directory of the configuration file.
    #[must_use]
    pub fn beside(self, dir: &Path) -> Self {
        let placed = |settings: Arc<dyn Settings>| settings.beside(dir).unwrap_or(settings);
        Self(self.0.into_iter().map(|(name, settings)| (name, placed(settings))).collect())
    }

    /// Returns each name with its settings, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<dyn Settings>)> {
        self.0.iter().map(|(name, settings)| (name.as_str(), settings))
    }
}

fn operator(
    name: &Spanned<std::borrow::Cow<'_, str>>,
    keys: Spanned<DeValue<'_>>,
) -> Result<Arc<dyn Settings>, Mistake> {
    let (at, text) = (name.span(), name.get_ref());
    let whole = keys.span();
    let DeValue::Table(mut keys) = keys.into_inner() else {
        return Err(Mistake::new(whole, "it must be a table with a `kind`"));
    };
    if !is_name(text) {
        let message = format!(
            "a name has at most {NAME_LEN} of a-z, 0-9, `-` and `_`, and begins with a letter"
        );
        return Err(Mistake::new(at, message));
    }
    let known = || KINDS.iter().map(|(kind, _)| *kind);
    let listed = || format!("the kinds are {}", known().collect::<Vec<_>>().join(", "));
    let Some((_, kind)) = remove(&mut keys, "kind") else {
        return Err(Mistake { hint: Some(listed()), ..Mistake::new(at, "it has no `kind`") });
    };
    let kind_at = kind.span();
    let Some(kind) = kind.get_ref().as_str() else {
        return Err(Mistake::new(kind_at, "its `kind` must be a text"));
    };
    let Some((kind, read)) = KINDS.iter().find(|(word, _)| *word == kind_of(kind)) else {
        let hint = did_you_mean(kind, known()).map(|word| format!("did you mean `{word}`?"));
        return Err(Mistake {
            hint: hint.or_else(|| Some(listed())),
            ..Mistake::new(kind_at, format!("there is no kind {kind:?}"))
        });
    };
    if let Some((_, own)) = BUILT_IN.iter().find(|(name, own)| name == text && own != kind) {
        let message = format!("the name belongs to the operator of kind {own} that always exists");
        let hint = Some("give it another name".to_owned());
        return Err(Mistake { hint, ..Mistake::new(at, message) });
    }
    let keys = Spanned::new(whole, DeValue::Table(keys));
    read(ValueDeserializer::from(keys)).map_err(|error| Mistake::of(&error, at))
}

fn remove<'i>(
    table: &mut DeTable<'i>,
    key: &str,
) -> Option<(Spanned<std::borrow::Cow<'i, str>>, Spanned<DeValue<'i>>)> {
    table.remove_entry(key)
}

fn is_name(text: &str) -> bool {
    text.len() <= NAME_LEN
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_'))
}

/// Reads the sections `[operators.NAME]` of a text, as of a configuration file.
impl std::str::FromStr for Declared {
    type Err = Mistake;

    fn from_str(text: &str) -> Result<Self, Mistake> {
        let parsed = DeTable::parse(text).map_err(|error| Mistake::of(&error, 0..0))?;
        let mut table = parsed.into_inner();
        let operators = remove(&mut table, "operators").map(|(_, section)| Self::read(section));
        match table.into_iter().next() {
            Some((key, _)) => {
                let message = format!("unknown key `{}`", key.get_ref());
                Err(Mistake::new(key.span(), message))
            }
            None => operators.unwrap_or_else(|| Ok(Self::default())),
        }
    }
}

impl Mistake {
    fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span: Some(span), message: message.into(), hint: None }
    }

    /// Converts an error of the deserializer, which occurred within `within`.
    pub fn of(error: &Error, within: Range<usize>) -> Self {
        // An unknown key is reported with the known ones, each between backticks.
        let mut quoted = error.message().split('`').skip(1).step_by(2);
        let mut mistake =
            Self::new(error.span().unwrap_or(within), error.message().trim_end().to_owned());
        if error.message().starts_with("unknown field")
            && let Some(given) = quoted.next()
        {
            let known: Vec<_> = quoted.collect();
            mistake.message = format!("unknown key `{given}`");
            mistake.hint = Some(match did_you_mean(given, known.iter().copied()) {
                Some(likely) => format!("did you mean `{likely}`?"),
                None if known.is_empty() => "it has no keys".to_owned(),
                None => format!("the keys are {}", known.join(", ")),
            });
        } else if let Some(key) = error.message().strip_prefix("missing field ") {
            mistake.message = format!("it needs the key {key}");
        }
        mistake
    }

    /// Returns its line and column in the text that it was found in, both from 1.
    pub fn place(&self, text: &str) -> (usize, usize) {
        let start = self.span.as_ref().map_or(0, |span| span.start);
        let before = text.get(..start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        (line, column)
    }
}

impl std::error::Error for Mistake {}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(text: &str) -> Result<Declared, String> {
        let mut table = DeTable::parse(text).unwrap().into_inner();
        let (_, section) = remove(&mut table, "operators").unwrap();
        Declared::read(section).map_err(|mistake| {
            let (line, column) = mistake.place(text);
            format!("{line}:{column}: {mistake}")
        })
    }

    #[test]
    fn every_kind_can_be_declared() {
        let text = r#"
            [operators.repeat]
            kind = "echo"
            [operators.people]
            kind = "human"
            [operators.script]
            kind = "lua"
            [operators.process]
            kind = "process"
            env = { TOKEN = { env = "CI_TOKEN" } }
            [operators.gpu]
            kind = "queue"
            queue = "gpu"
            [operators.ci]
            kind = "http"
            url = "https://ci.example.com/hooks/swarm"
            [operators.gpt]
            kind = "llm"
            api = "responses"
            key = { env = "OPENAI_API_KEY" }
            [operators.files]
            kind = "mcp"
            command = ["mcp-files", "."]
            [operators.reviewers]
            kind = "main-ai"
            direct = true
            require_binding = false
            [operators.sure]
            kind = "composite"
            rule = "quorum"
            members = ["ci", "gpu", "quick"]
            agree = 2
            path = "verdict"
            [operators.quick]
            kind = "composite"
            rule = "fallback"
            members = ["reviewers", "main-ai", "echo"]
        "#;
        let declared = declared(text).unwrap();
        let kinds: Vec<_> = declared.iter().map(|(name, it)| (name, it.kind())).collect();
        let expected = [
            ("ci", "http"),
            ("files", "mcp"),
            ("gpt", "llm"),
            ("gpu", "queue"),
            ("people", "human"),
            ("process", "process"),
            ("quick", "composite"),
            ("repeat", "echo"),
            ("reviewers", "main_ai"),
            ("script", "lua"),
            ("sure", "composite"),
        ];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn every_mistake_says_where_it_is_and_what_was_meant() {
        for (text, expected) in [
            ("operators = 3", "1:13: `operators` must be a table"),
            ("[operators]\nx = 3", "2:5: operator `x`: it must be a table"),
            ("[operators.X]\nkind = \"echo\"", "1:12: operator `X`: a name has"),
            (
                "[operators.x]\n",
                "1:12: operator `x`: it has no `kind`; the kinds are agent_cli, composite, echo",
            ),
            ("[operators.x]\nkind = 1", "2:8: operator `x`: its `kind` must be a text"),
            (
                "[operators.x]\nkind = \"htpp\"",
                "2:8: operator `x`: there is no kind \"htpp\"; did you mean `http`?",
            ),
            ("[operators.human]\nkind = \"echo\"", "1:12: operator `human`: the name belongs"),
            (
                "[operators.x]\nkind = \"echo\"\nloud = true",
                "3:1: operator `x`: unknown key `loud`; it has no keys",
            ),
            (
                "[operators.x]\nkind = \"http\"\nulr = \"https://a.b\"",
                "3:1: operator `x`: unknown key `ulr`; did you mean `url`?",
            ),
            ("[operators.x]\nkind = \"http\"", "operator `x`: it needs the key `url`"),
            ("[operators.main-ai]\nkind = \"echo\"", "1:12: operator `main-ai`: the name belongs"),
            (
                "[operators.x]\nkind = \"composite\"\nrule = \"race\"\nmembers = [\"ehco\"]",
                "1:12: operator `x`: its member `ehco` is no operator; did you mean `echo`?",
            ),
            (
                "[operators.x]\nkind = \"composite\"\nrule = \"race\"\nmembers = [\"x\", \"echo\"]",
                "1:12: operator `x`: it is a member of itself: x > x",
            ),
            (
                "[operators.x]\nkind = \"composite\"\nrule = \"quorum\"\nmembers = [\"echo\"]\nagree = 2",
                "operator `x`: 2 of 1 members cannot agree",
            ),
            (
                "[operators.x]\nkind = \"composite\"\nrule = \"race\"\nmembers = [\"echo\"]\nagree = 1",
                "operator `x`: `agree` and `path` are only for rule = \"quorum\"",
            ),
        ] {
            let error = declared(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
