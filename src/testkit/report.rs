//! Reports of tests: for a person, and as JUnit.

use std::fmt::Write as _;

use super::{FileReport, TestReport};

/// The bytes of a name in a result that is sent.
const NAME: usize = 200;
/// The bytes of a failure, a warning or a printed line in a result that is sent.
const TEXT: usize = 4 << 10;
/// The bytes of all warnings, and of all printed lines, of one test.
const LINES: usize = 20 << 10;

impl FileReport {
    /// Cuts its texts, so that all of them together have at most about `room` bytes.
    pub(super) fn trim(&mut self, room: &mut usize) {
        if let Some(broken) = &mut self.broken {
            cut(&mut broken.message, TEXT, room);
        }
        for test in &mut self.tests {
            cut(&mut test.name, NAME, room);
            if let Some(failed) = &mut test.failed {
                cut(&mut failed.kind, NAME, room);
                cut(&mut failed.message, TEXT, room);
                failed.data = None;
            }
            for lines in [&mut test.findings, &mut test.said] {
                let most = LINES.min(*room);
                let mut own = most;
                for line in &mut *lines {
                    cut(line, TEXT, &mut own);
                }
                lines.retain(|line| !line.is_empty());
                *room -= most - own;
            }
        }
    }
}

/// Cuts a text to `most` bytes and to what is left.
fn cut(text: &mut String, most: usize, room: &mut usize) {
    let most = most.min(*room);
    if text.len() > most {
        let mut end = most;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        if end > 0 {
            text.push('…');
        }
    }
    *room -= text.len().min(*room);
}

impl TestReport {
    /// Returns the place that the failure names: the file and the line.
    pub fn place(&self) -> Option<(&str, u32)> {
        let message = &self.failed.as_ref()?.message;
        let (file, rest) = message.lines().next()?.split_once(':')?;
        let line = rest.split_once(':')?.0.parse().ok()?;
        let is_file = !file.is_empty() && !file.contains(char::is_whitespace);
        is_file.then_some((file, line))
    }

    /// Returns the failure, with the crash that showed it.
    pub fn problem(&self) -> Option<String> {
        let failed = self.failed.as_ref()?;
        let mut text = match failed.kind.as_str() {
            "assertion" | "usage" => failed.message.clone(),
            kind => format!("{kind}: {}", failed.message),
        };
        if let Some(write) = self.after_crash {
            let _ = write!(text, "\n(only when the host dies after write {write} to the journal)");
        }
        Some(text)
    }
}

/// The lines of a file's report.
pub fn lines(report: &FileReport) -> Vec<String> {
    let path = report.path.display();
    let mut lines = Vec::new();
    if let Some(broken) = &report.broken {
        lines.push(format!("FAIL {path}"));
        lines.extend(broken.message.lines().map(|line| format!("       {line}")));
    }
    for test in &report.tests {
        let mark = if test.failed.is_some() { "FAIL" } else { "ok  " };
        let crashes = match test.crashes {
            0 => String::new(),
            n => format!(", {n} crashes"),
        };
        lines.push(format!("{mark} {path}: {} ({} ms{crashes})", test.name, test.took_ms));
        lines.extend(test.said.iter().map(|line| format!("       {line}")));
        lines.extend(test.findings.iter().map(|line| format!("       warning: {line}")));
        if let Some(problem) = test.problem() {
            lines.extend(problem.lines().map(|line| format!("       {line}")));
        }
    }
    lines
}

/// One line about all of it, and whether everything passed.
pub fn summary(reports: &[FileReport]) -> (String, bool) {
    let tests: Vec<_> = reports.iter().flat_map(|report| &report.tests).collect();
    let failed = tests.iter().filter(|test| test.failed.is_some()).count();
    let broken = reports.iter().filter(|report| report.broken.is_some()).count();
    let crashes: usize = tests.iter().map(|test| test.crashes).sum();
    let mut text = format!("{} passed, {failed} failed", tests.len() - failed);
    if broken > 0 {
        let _ = write!(text, ", {broken} file(s) broken");
    }
    if crashes > 0 {
        let _ = write!(text, ", {crashes} crashes");
    }
    let findings: usize = tests.iter().map(|test| test.findings.len()).sum();
    if findings > 0 {
        let _ = write!(text, ", {findings} warning(s)");
    }
    (text, failed == 0 && broken == 0)
}

/// All reports as JUnit XML.
pub fn junit(reports: &[FileReport]) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for report in reports {
        let name = escaped(&report.path.display().to_string());
        let failures = report.tests.iter().filter(|test| test.failed.is_some()).count();
        let errors = usize::from(report.broken.is_some());
        let _ = writeln!(
            out,
            "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\">",
            report.tests.len() + errors
        );
        if let Some(broken) = &report.broken {
            let text = escaped(&broken.message);
            let _ = writeln!(
                out,
                "    <testcase name=\"{name}\" classname=\"{name}\"><error message=\"{text}\"/></testcase>"
            );
        }
        for test in &report.tests {
            let (case, whole, ms) =
                (escaped(&test.name), test.took_ms / 1_000, test.took_ms % 1_000);
            let head = format!(
                "    <testcase name=\"{case}\" classname=\"{name}\" time=\"{whole}.{ms:03}\""
            );
            let _ = match test.problem() {
                None => writeln!(out, "{head}/>"),
                Some(problem) => {
                    let text = escaped(&problem);
                    let first = escaped(problem.lines().next().unwrap_or_default());
                    writeln!(out, "{head}><failure message=\"{first}\">{text}</failure></testcase>")
                }
            };
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            // XML 1.0 has no other control characters, not even as references.
            c if c.is_control() && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
