//! The commands that do the same as a button.

use maud::{Markup, html};

use super::text;

/// A request of the API, for `curl`.
pub(in crate::dashboard) struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// The path.
    pub path: String,
    /// The body, if there is one.
    pub body: Option<String>,
}

/// Returns the same act as a line for `moonswarm` and one for `curl`.
pub(in crate::dashboard) fn same(url: &str, line: &str, request: &Request<'_>) -> Markup {
    let Request { method, path, body } = request;
    let mut curl = format!("curl -X {method} -H \"Authorization: Bearer $MOONSWARM_TOKEN\" ");
    if let Some(body) = body {
        curl.push_str(&format!("-H 'Content-Type: application/json' -d {} ", quoted(body)));
    }
    curl.push_str(&quoted(&format!("{url}{path}")));
    html! {
        details.command {
            summary { "as a command" }
            @for words in [line, &curl] { div.same { pre tabindex="0" { (words) } (text::copy(words)) } }
        }
    }
}

/// Returns a text as one word of a shell.
pub(in crate::dashboard) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@%+=,".contains(c);
    match !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_shell_is_one_word() {
        assert_eq!(quoted("run_x/7"), "run_x/7");
        assert_eq!(quoted("it's; rm -rf"), r"'it'\''s; rm -rf'");
        assert_eq!((quoted(""), quoted("-x")), ("''".into(), "'-x'".into()));
    }
}
