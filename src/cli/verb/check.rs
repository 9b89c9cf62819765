//! `check`: everything that is wrong with blueprints, without running them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use clap::{Args, ValueEnum};
use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource, Report,
};

use serde_json::json;

use crate::{
    blueprint::{MAX_FILE_BYTES, code},
    cli::{
        compile::{self, Found, Severity},
        context::Context,
        exit::{Exit, Stop},
    },
    door::percent_encoded,
    host,
    protocol::plain::{self, indented, one_line},
};

/// Check blueprints without running anything
#[derive(Debug, Args)]
pub struct Check {
    /// Lua files, flows as JSON, or directories (with main.lua, or with blueprints)
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Exit with 3 also for findings that are no errors
    #[arg(long, value_enum, value_name = "WHAT")]
    deny: Option<Deny>,
    /// Format of the findings
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// The findings that count as errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Deny {
    Warnings,
    /// Notes, and warnings as well
    Notes,
}

impl Deny {
    fn denies(self, severity: Severity) -> bool {
        match severity {
            Severity::Error => true,
            Severity::Warning => matches!(self, Self::Warnings | Self::Notes),
            Severity::Note => self == Self::Notes,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Human,
    Json,
    /// For code scanning
    Sarif,
    /// Annotations of a workflow run
    Github,
}

impl Check {
    /// Runs the command.
    ///
    /// # Errors
    /// A path that cannot be read.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        let mut all: Vec<Placed<'_>> = Vec::new();
        let mut invalid = false;
        let colors = console::colors_enabled();
        let mut paths = Vec::new();
        for path in &self.paths {
            // A directory that is no blueprint itself holds some.
            match path.is_dir() && host::main_file(path).is_none() {
                true => paths.extend(sources_in(path)),
                false => {
                    paths.push((host::main_file(path).unwrap_or_else(|| path.clone()), true));
                }
            }
        }
        if !paths.iter().any(|(_, is_read)| *is_read) {
            let stop = Stop::new(Exit::NotFound, "there are no blueprints here");
            let next = match paths.first() {
                Some((path, _)) => format!(
                    "{} is a link out of the directory, or no regular file: check it where it is",
                    path.display()
                ),
                None => "`moonswarm init` makes one to begin with".to_owned(),
            };
            return Err(stop.next(next).into());
        }
        for (path, is_read) in &paths {
            let read = match is_read {
                true => compile::read(path)?,
                false => Err(compile::left_out(path)),
            };
            let (bundle, mut findings) = match read {
                Ok(bundle) => {
                    let compiled = compile::compile(&bundle, &cx.beside.config_of(path)?);
                    let findings = compiled.findings.into_iter().chain(compiled.notes);
                    (Some(bundle), findings.collect::<Vec<Found>>())
                }
                Err(found) => (None, vec![found]),
            };
            compile::name_declarations(&mut findings, path);
            invalid |= findings.iter().any(|finding| {
                finding.severity == Severity::Error
                    || self.deny.is_some_and(|deny| deny.denies(finding.severity))
            });
            if self.format != Format::Human || cx.terminal.json {
                all.extend(
                    findings
                        .into_iter()
                        .map(|finding| (beside(path, &finding.file), path.as_path(), finding)),
                );
                continue;
            }
            for finding in &findings {
                let text = bundle.as_ref().and_then(|it| compile::text(it, &finding.file));
                cx.terminal.print_painted(&render(finding, text, colors))?;
            }
            match findings.iter().filter(|it| it.severity != Severity::Note).count() {
                0 => cx.terminal.say(&format!("{}: no findings", path.display())),
                n => cx.terminal.say(&format!("{}: {n} finding(s)", path.display())),
            }
        }
        match self.format {
            Format::Sarif => cx.terminal.print_json(&sarif(&all))?,
            Format::Github => {
                for (place, _, finding) in &all {
                    cx.terminal.print(&github(place, finding))?;
                }
            }
            Format::Json => print_all(cx, all)?,
            Format::Human if cx.terminal.json => print_all(cx, all)?,
            Format::Human => {}
        }
        Ok(if invalid { Exit::Invalid } else { Exit::Ok })
    }
}

/// Returns the blueprints in a directory, and the Lua files there that are too large to be read:
/// nobody knows which of them are blueprints. With false, files that are left out.
fn sources_in(dir: &Path) -> Vec<(PathBuf, bool)> {
    let mut found = host::blueprints_in(dir);
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sources = entries.map(|entry| entry.path()).filter(|path| {
        path.extension().is_some_and(|it| it == "lua" || it == "luau")
            // A link may lead anywhere.
            && fs::symlink_metadata(path)
                .is_ok_and(|it| it.is_file() && it.len() > MAX_FILE_BYTES as u64)
    });
    found.extend(sources);
    found.sort();
    found.dedup();
    let left_out = host::left_out_of(dir).into_iter().map(|path| (path, false));
    let mut found: Vec<_> = found.into_iter().map(|path| (path, true)).chain(left_out).collect();
    found.sort();
    found
}

/// A finding with the path of its file from here, and of its bundle.
type Placed<'a> = (String, &'a Path, Found);

fn print_all(cx: &Context, all: Vec<Placed<'_>>) -> std::io::Result<()> {
    let all: Vec<_> = all.into_iter().map(|(_, path, finding)| at(path, finding)).collect();
    cx.terminal.print_json(&all)
}

/// The path of a bundle's file from where the bundle was named.
fn beside(bundle: &Path, file: &str) -> String {
    let dir = bundle.parent().unwrap_or(Path::new(""));
    dir.join(file).display().to_string()
}

/// All findings as SARIF 2.1.0.
fn sarif(all: &[Placed<'_>]) -> serde_json::Value {
    let mut codes: Vec<&str> = all.iter().map(|(_, _, finding)| finding.code.as_str()).collect();
    codes.sort_unstable();
    codes.dedup();
    let about = |code: &str| {
        let known = code::ALL.iter().find(|(known, _)| *known == code);
        known.map_or("", |(_, meaning)| meaning)
    };
    let rules =
        codes.iter().map(|code| json!({"id": code, "shortDescription": {"text": about(code)}}));
    let results = all.iter().map(|(place, _, finding)| {
        let text = match &finding.hint {
            Some(hint) => format!("{}. {hint}", finding.message),
            None => finding.message.clone(),
        };
        let uri: Vec<_> = place.split('/').map(percent_encoded).collect();
        json!({
            "ruleId": finding.code,
            "level": finding.severity.as_str(),
            "message": {"text": text},
            "locations": [{"physicalLocation": {
                "artifactLocation": {"uri": uri.join("/")},
                "region": {"startLine": finding.line, "startColumn": finding.column},
            }}],
        })
    });
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "moonswarm",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules.collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "results": results.collect::<Vec<_>>(),
        }],
    })
}

/// A finding as a command that a workflow's log makes an annotation of.
fn github(place: &str, finding: &Found) -> String {
    let data = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
    let text = match &finding.hint {
        Some(hint) => format!("{}\n{hint}", finding.message),
        None => finding.message.clone(),
    };
    let command = match finding.severity {
        Severity::Note => "notice",
        Severity::Error | Severity::Warning => finding.severity.as_str(),
    };
    format!(
        "::{command} file={},line={},col={},title={}::{}",
        property(place),
        finding.line,
        finding.column,
        property(&finding.code),
        data(&text)
    )
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
        Severity::Note => miette::Severity::Advice,
    };
    // What the report quotes is plain before it is painted; each character stays one.
    let Found { message, hint, file, .. } = finding;
    let (mut message, file) = (indented(message, "  "), one_line(file));
    if text.is_none() {
        message = format!("{file}:{}:{}: {message}", finding.line, finding.column);
    }
    let text = text.map(plain::columns);
    let mut shown = MietteDiagnostic::new(message).with_code(&finding.code).with_severity(severity);
    if let Some(hint) = hint {
        shown = shown.with_help(indented(hint, "  "));
    }
    let report = match text {
        Some(text) => {
            let place = span(&text, finding.line, finding.column);
            shown = shown.with_label(LabeledSpan::underline(place));
            Report::new(shown).with_source_code(NamedSource::new(file, text))
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
    fn a_finding_is_an_annotation_and_a_result_of_code_scanning() {
        let finding = Found {
            file: "review.lua".into(),
            line: 2,
            column: 3,
            code: "MS-B010".into(),
            severity: Severity::Error,
            message: "unknown key `agnts`, 50% sure".into(),
            hint: Some("did you mean `agents`?".into()),
        };
        let place = beside(Path::new("flows/review.lua"), "review.lua");
        assert_eq!(
            github(&place, &finding),
            "::error file=flows/review.lua,line=2,col=3,title=MS-B010::unknown key `agnts`, 50%25 sure%0Adid you mean `agents`?"
        );
        let other = beside(Path::new("my flows/a:b.lua"), "é#1%.lua");
        let shown = sarif(&[
            (place, Path::new("flows/review.lua"), finding.clone()),
            (other, Path::new("my flows/a:b.lua"), finding),
        ]);
        let uri = |index: usize| {
            let location = &shown["runs"][0]["results"][index]["locations"][0];
            location["physicalLocation"]["artifactLocation"]["uri"].as_str()
        };
        assert_eq!(uri(0), Some("flows/review.lua"));
        assert_eq!(uri(1), Some("my%20flows/%C3%A9%231%25.lua"));
        let result = &shown["runs"][0]["results"][0];
        assert_eq!(result["ruleId"], "MS-B010");
        assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 2);
        let rule = &shown["runs"][0]["tool"]["driver"]["rules"][0];
        assert_eq!(rule["shortDescription"]["text"], "a key that does not exist");
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
