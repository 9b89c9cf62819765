//! Findings that the author of a file allows, each with a reason.
//!
//! A comment `-- allow MS-B081: the reason` allows the warnings and notes with that code in its own line, or,
//! where nothing else stands in its line, in the next one. Errors cannot be allowed: the blueprint does not run.

use super::{
    bundle::Bundle,
    diagnostics::{Finding, Severity},
};

/// The word before the code.
const WORD: &str = "allow";

/// Removes what the files allow. Findings that an allowance without a reason names stay, and say so.
pub(super) fn apply(findings: &mut Vec<Finding>, bundle: &Bundle) {
    let files = bundle.files();
    findings.retain_mut(|finding| {
        if finding.severity == Severity::Error {
            return true;
        }
        let Some(text) =
            files.iter().find_map(|(path, text)| (*path == finding.file).then_some(text))
        else {
            return true;
        };
        match allowed(text, finding.line, finding.code) {
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

/// Whether a line allows a code, and has a reason for it.
fn allowed(text: &str, line: u32, code: &str) -> Option<bool> {
    let at = usize::try_from(line).ok()?.checked_sub(1)?;
    let own = text.lines().nth(at).and_then(|line| line.split_once("--"));
    let before = at.checked_sub(1).and_then(|before| text.lines().nth(before));
    let before = before.and_then(|line| line.trim_start().strip_prefix("--"));
    own.map(|(_, comment)| comment).into_iter().chain(before).find_map(|it| reason(it, code))
}

fn reason(comment: &str, code: &str) -> Option<bool> {
    let rest = comment.trim_start().strip_prefix(WORD)?.trim_start().strip_prefix(code)?;
    match rest.trim_start().strip_prefix(':') {
        Some(why) => Some(!why.trim().is_empty()),
        None => rest.trim().is_empty().then_some(false),
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
            ("x = 1 -- allow MS-B081", Some(false)),
            ("x = 1 -- allow MS-B081:  ", Some(false)),
            ("x = 1 -- allow MS-B0811: no", None),
            ("x = 1 -- allow MS-B082: no", None),
            ("y = 2 -- allow MS-B081: it is for y\nx = 1", None),
            ("-- allow MS-B081: too far\n\nx = 1", None),
            ("x = 1", None),
        ] {
            let line = u32::try_from(text.lines().count()).unwrap();
            assert_eq!(allowed(text, line, code), expected, "{text}");
        }
        assert_eq!(allowed("x", 0, code), None);
        assert_eq!(allowed("x", 9, code), None);
    }
}
