//! Findings that the author of a file allows, each with a reason.
//!
//! A comment `-- allow MS-B081: the reason` allows the warnings and notes with that code in its own line, or,
//! where nothing else stands in its line, in the next one. Errors cannot be allowed: the blueprint does not run.

use std::collections::HashMap;

use super::{bundle::Bundle, diagnostics::Finding};

/// The word before the code.
const WORD: &str = "allow";

/// The length of a code, in bytes.
const CODE_BYTES: usize = "MS-B081".len();

/// The allowances of one file, each with whether it has a reason.
#[derive(Default)]
pub(super) struct Allowances<'t> {
    /// Those of each line and code.
    own: HashMap<(usize, &'t str), bool>,
    /// Those at the beginning of each line, for the next one.
    next: HashMap<(usize, &'t str), bool>,
}

impl<'t> Allowances<'t> {
    /// Reads a file.
    pub fn of(text: &'t str) -> Self {
        let mut read = Self::default();
        if !text.contains(WORD) {
            return read;
        }
        for (at, line) in text.lines().enumerate() {
            // The first `--` may stand in a string.
            for (dashes, _) in line.match_indices("--") {
                if let Some((code, has_reason)) = allowance(&line[dashes + 2..]) {
                    read.own.entry((at, code)).or_insert(has_reason);
                }
            }
            if let Some(comment) = line.trim_start().strip_prefix("--")
                && let Some((code, has_reason)) = allowance(comment)
            {
                read.next.insert((at + 1, code), has_reason);
            }
        }
        read
    }

    /// Returns true if a finding in this file is no error and is allowed, with a reason.
    pub fn allow(&self, finding: &Finding) -> bool {
        !finding.is_error() && self.allowed(finding.line, finding.code) == Some(true)
    }

    /// Returns true if a line allows a code and gives a reason.
    fn allowed(&self, line: u32, code: &str) -> Option<bool> {
        let at = usize::try_from(line).ok()?.checked_sub(1)?;
        self.own.get(&(at, code)).or_else(|| self.next.get(&(at, code))).copied()
    }
}

/// Removes what the files allow. Findings that an allowance without a reason names stay, and say so.
pub(super) fn apply(findings: &mut Vec<Finding>, bundle: &Bundle) {
    let mut read: HashMap<&str, Allowances<'_>> = HashMap::new();
    findings.retain_mut(|finding| {
        let file = bundle.files().get_key_value(&finding.file);
        let Some((path, text)) = file.filter(|_| !finding.is_error()) else { return true };
        let file = read.entry(path).or_insert_with(|| Allowances::of(text));
        match file.allowed(finding.line, finding.code) {
            Some(true) => false,
            Some(false) => {
                finding.hint = Some(format!(
                    "an allowance has a reason: `-- {WORD} {}: why it is meant`",
                    finding.code
                ));
                true
            }
            None => true,
        }
    });
}

/// The code that a comment allows, and whether it has a reason.
fn allowance(comment: &str) -> Option<(&str, bool)> {
    let rest = comment.trim_start().strip_prefix(WORD)?.trim_start();
    let (code, rest) = rest.split_at_checked(CODE_BYTES)?;
    let rest = rest.trim_start();
    match rest.strip_prefix(':') {
        Some(why) => Some((code, !why.trim_start().is_empty())),
        None => rest.is_empty().then_some((code, false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_stands_in_the_line_or_above_it_and_has_a_reason() {
        let code = "MS-B081";
        for (text, expected) in [
            ("x = 1 -- allow MS-B081: it is for later", Some(true)),
            ("-- allow MS-B081: it is for later\nx = 1", Some(true)),
            ("  --  allow MS-B081:for later\n  x = 1", Some(true)),
            ("x = { 'ls', '--all' } -- allow MS-B081: it is for later", Some(true)),
            ("x = 1 -- allow MS-B081", Some(false)),
            ("x = 1 -- allow MS-B081:  ", Some(false)),
            ("x = 1 -- allow MS-B0811: no", None),
            ("x = 1 -- allow MS-B082: no", None),
            ("y = 2 -- allow MS-B081: it is for y\nx = 1", None),
            ("-- allow MS-B081: too far\n\nx = 1", None),
            ("x = 1", None),
        ] {
            let line = u32::try_from(text.lines().count()).unwrap();
            assert_eq!(Allowances::of(text).allowed(line, code), expected, "{text}");
        }
        let one = Allowances::of("-- allow MS-B081: it is for later");
        assert_eq!((one.allowed(0, code), one.allowed(9, code)), (None, None));
    }
}
