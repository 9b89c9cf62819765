//! `check`: everything that is wrong with blueprints, without running them.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource, Report,
};

use crate::cli::{
    compile::{self, Found, Severity},
    context::Context,
    exit::Exit,
};

/// Check blueprints without running anything
#[derive(Debug, Args)]
pub struct Check {
    /// Lua files or directories
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// How findings look
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Human,
    Json,
}

impl Check {
    /// Does it.
    ///
    /// # Errors
    /// A path that cannot be read.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        let mut all = Vec::new();
        let mut invalid = false;
        let colors = console::colors_enabled();
        for path in &self.paths {
            let bundle = compile::load(path)?;
            let findings = compile::compile(&bundle, &cx.config).findings;
            invalid |= findings.iter().any(|finding| finding.severity == Severity::Error);
            if self.format == Format::Json || cx.terminal.json {
                all.extend(findings.into_iter().map(|finding| at(path, finding)));
                continue;
            }
            for finding in &findings {
                let text = compile::text(&bundle, &finding.file);
                cx.terminal.print(&render(finding, text, colors))?;
            }
            match findings.len() {
                0 => cx.terminal.say(&format!("{}: no findings", path.display())),
                n => cx.terminal.say(&format!("{}: {n} finding(s)", path.display())),
            }
        }
        if self.format == Format::Json || cx.terminal.json {
            cx.terminal.print_json(&all)?;
        }
        Ok(if invalid { Exit::Invalid } else { Exit::Ok })
    }
}

/// Findings of several bundles say whose they are.
fn at(path: &std::path::Path, finding: Found) -> BTreeMap<&'static str, serde_json::Value> {
    let value = |value| serde_json::Value::from(value);
    BTreeMap::from([
        ("path", value(path.display().to_string())),
        ("file", value(finding.file)),
        ("line", finding.line.into()),
        ("column", finding.column.into()),
        ("code", value(finding.code)),
        ("severity", value(finding.severity.as_str().to_owned())),
        ("message", value(finding.message)),
        ("hint", finding.hint.into()),
    ])
}

/// A finding with the line that it is about.
fn render(finding: &Found, text: Option<&str>, colors: bool) -> String {
    let severity = match finding.severity {
        Severity::Error => miette::Severity::Error,
        Severity::Warning => miette::Severity::Warning,
    };
    let mut shown =
        MietteDiagnostic::new(&finding.message).with_code(&finding.code).with_severity(severity);
    if let Some(hint) = &finding.hint {
        shown = shown.with_help(hint);
    }
    let report = match text {
        Some(text) => {
            shown =
                shown.with_label(LabeledSpan::underline(span(text, finding.line, finding.column)));
            Report::new(shown).with_source_code(NamedSource::new(&finding.file, text.to_owned()))
        }
        None => Report::new(shown),
    };
    let theme = match colors {
        true => GraphicalTheme::unicode(),
        false => GraphicalTheme::unicode_nocolor(),
    };
    let mut out = String::new();
    let handler = GraphicalReportHandler::new_themed(theme).with_width(100);
    match handler.render_report(&mut out, report.as_ref()) {
        Ok(()) => out,
        Err(_) => {
            format!("{}:{}:{}: {}", finding.file, finding.line, finding.column, finding.message)
        }
    }
}

/// The bytes of the word at a line and column, both from 1, columns in characters.
fn span(text: &str, line: u32, column: u32) -> std::ops::Range<usize> {
    let skip = |n: u32| usize::try_from(n.saturating_sub(1)).unwrap_or(usize::MAX);
    let before: usize = text.split_inclusive('\n').take(skip(line)).map(str::len).sum();
    let rest = &text[before..];
    let row = rest.lines().next().unwrap_or("");
    let from = row.char_indices().nth(skip(column)).map_or(row.len(), |(at, _)| at);
    let word = row[from..].chars().take_while(|c| c.is_alphanumeric() || *c == '_');
    let len: usize = word.map(char::len_utf8).sum();
    let start = before + from;
    start..start + len.max(usize::from(from < row.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_the_word_at_the_place() {
        let text = "local ü = 1\n  agents = {}\n";
        assert_eq!(&text[span(text, 2, 3)], "agents");
        assert_eq!(&text[span(text, 1, 7)], "ü");
        assert_eq!(span(text, 9, 9), text.len()..text.len());
    }

    #[test]
    fn a_finding_is_shown_in_its_line() {
        let finding = Found {
            file: "review.lua".into(),
            line: 2,
            column: 3,
            code: "MS-B010".into(),
            severity: Severity::Error,
            message: "unknown key `agnts`".into(),
            hint: Some("did you mean `agents`?".into()),
        };
        let shown = render(&finding, Some("return swarm.blueprint {\n  agnts = {},\n}\n"), false);
        for part in ["MS-B010", "unknown key `agnts`", "review.lua:2:3", "did you mean"] {
            assert!(shown.contains(part), "{part} is missing in:\n{shown}");
        }
    }
}
