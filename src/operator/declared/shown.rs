//! The settings of an operator as people may see them: secrets are names, never values.

use std::{collections::BTreeMap, fmt::Display, time::Duration};

use reqwest::Url;

use super::HeaderNameText;
use crate::environment::Text;

/// The effective settings of an operator, each with its key in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShownSettings(Vec<(&'static str, String)>);

impl ShownSettings {
    /// Returns the settings, each with its key.
    pub fn items(&self) -> &[(&'static str, String)] {
        &self.0
    }

    /// Adds a value that is no secret.
    #[must_use]
    pub(in crate::operator) fn with(mut self, key: &'static str, value: impl Display) -> Self {
        self.0.push((key, value.to_string()));
        self
    }

    /// Adds a value that is no secret, if it is set.
    #[must_use]
    pub(in crate::operator) fn maybe(self, key: &'static str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    /// Adds a duration.
    #[must_use]
    pub(in crate::operator) fn time(self, key: &'static str, time: Duration) -> Self {
        match time.subsec_millis() {
            0 => self.with(key, format!("{}s", time.as_secs())),
            _ => self.with(key, format!("{}ms", time.as_millis())),
        }
    }

    /// Adds a list, if it has members.
    #[must_use]
    pub(in crate::operator) fn list(self, key: &'static str, items: &[String]) -> Self {
        if items.is_empty() { self } else { self.with(key, items.join(", ")) }
    }

    /// Adds a URL. Its query is left out, since some services take their keys there.
    #[must_use]
    pub(in crate::operator) fn url(self, key: &'static str, url: &Url) -> Self {
        let mut shown = url.clone();
        shown.set_query(None);
        let more = if url.query().is_some() { "?…" } else { "" };
        self.with(key, format!("{shown}{more}"))
    }

    /// Adds a program. Of its arguments only the number is shown.
    #[must_use]
    pub(in crate::operator) fn command(self, key: &'static str, command: &[String]) -> Self {
        let program = command.first().map_or("", String::as_str);
        match command.len() {
            0 | 1 => self.with(key, program),
            2 => self.with(key, format!("{program} (1 argument)")),
            more => self.with(key, format!("{program} ({} arguments)", more - 1)),
        }
    }

    /// Adds variables, each with the place that its value comes from.
    #[must_use]
    pub(in crate::operator) fn variables(
        self,
        key: &'static str,
        texts: &BTreeMap<String, Text>,
    ) -> Self {
        self.texts(key, texts.iter().map(|(name, text)| (name.as_str(), text)))
    }

    /// Adds headers, each with the place that its value comes from.
    #[must_use]
    pub(in crate::operator) fn headers(
        self,
        key: &'static str,
        texts: &BTreeMap<HeaderNameText, Text>,
    ) -> Self {
        self.texts(key, texts.iter().map(|(name, text)| (name.0.as_str(), text)))
    }

    fn texts<'t>(
        self,
        key: &'static str,
        texts: impl Iterator<Item = (&'t str, &'t Text)>,
    ) -> Self {
        let place = |text: &Text| match text {
            Text::Plain(_) => "the file".to_owned(),
            Text::Env { name, .. } => format!("the variable {name}"),
            Text::File { path, .. } => path.display().to_string(),
        };
        let all: Vec<_> =
            texts.map(|(name, text)| format!("{name} from {}", place(text))).collect();
        self.list(key, &all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_names_and_queries_and_arguments_are_left_out() {
        let texts = BTreeMap::from([
            ("A".to_owned(), Text::Plain("hush".into())),
            ("B".to_owned(), Text::Env { name: "KEY".into(), prefix: "Bearer hush".into() }),
            ("C".to_owned(), Text::File { path: "/run/key".into(), prefix: String::new() }),
        ]);
        let shown = ShownSettings::default()
            .variables("env", &texts)
            .url("url", &"https://a.example/x?key=hush".parse().unwrap())
            .command("command", &["curl".into(), "-H".into(), "hush".into()])
            .time("timeout", Duration::from_millis(1_500))
            .list("allow_hosts", &[]);
        let expected = [
            ("env", "A from the file, B from the variable KEY, C from /run/key"),
            ("url", "https://a.example/x?…"),
            ("command", "curl (2 arguments)"),
            ("timeout", "1500ms"),
        ];
        let expected = expected.map(|(key, value)| (key, value.to_owned()));
        assert_eq!(shown.items(), expected);
    }
}
