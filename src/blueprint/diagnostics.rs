//! Findings: what is wrong with a blueprint, where, and what to do about it.
//!
//! Owns the table of codes, from which docs/findings.md takes its headings, and the order and
//! the text of a finding. Everything in this room that looks at an author's files reports here.

use std::fmt;

use serde::Serialize;

/// The codes of all findings. A code keeps its meaning for ever.
pub mod code {
    /// The source is not Luau.
    pub const SYNTAX: &str = "MS-B001";
    /// The chunk failed, or returned something else than a blueprint.
    pub const NOT_A_BLUEPRINT: &str = "MS-B002";
    /// A file that the source names is not there.
    pub const MISSING_FILE: &str = "MS-B003";
    /// A file is outside of the bundle, unreadable, or over a limit.
    pub const BUNDLE: &str = "MS-B004";
    /// A key that does not exist.
    pub const UNKNOWN_KEY: &str = "MS-B010";
    /// A value of the wrong type.
    pub const WRONG_TYPE: &str = "MS-B011";
    /// A key that must be there is not.
    pub const MISSING_KEY: &str = "MS-B012";
    /// A name with characters that names cannot have.
    pub const BAD_NAME: &str = "MS-B013";
    /// A key that this release does not support.
    pub const NOT_SUPPORTED: &str = "MS-B014";
    /// A number out of its range.
    pub const OUT_OF_RANGE: &str = "MS-B015";
    /// An edition that this release does not know, or that is not written out.
    pub const BAD_EDITION: &str = "MS-B016";
    /// A blueprint of an older edition.
    pub const OLD_EDITION: &str = "MS-B017";
    /// An operator that does not exist.
    pub const UNKNOWN_OPERATOR: &str = "MS-B020";
    /// The operator needs `worker`, and the agent has none.
    pub const WORKER_NEEDED: &str = "MS-B021";
    /// A process agent without `command`.
    pub const COMMAND_NEEDED: &str = "MS-B022";
    /// A lua agent without `fn`.
    pub const FN_NEEDED: &str = "MS-B023";
    /// A key that the agent's operator has no use for.
    pub const KEY_DOES_NOT_FIT: &str = "MS-B024";
    /// The flow runs an agent that is not declared, or an agent names one as its auditor.
    pub const UNKNOWN_AGENT: &str = "MS-B025";
    /// An agent of an MCP server names no tool, and neither does its operator.
    pub const TOOL_NEEDED: &str = "MS-B026";
    /// An environment that this host cannot give.
    pub const ENVIRONMENT: &str = "MS-B027";
    /// A layer of middleware that cannot be.
    pub const BAD_LAYER: &str = "MS-B028";
    /// A quorum compares what the agent's results do not have.
    pub const NOTHING_TO_COMPARE: &str = "MS-B029";
    /// A duration that cannot be read.
    pub const BAD_DURATION: &str = "MS-B030";
    /// A retry policy that makes no sense.
    pub const BAD_RETRY: &str = "MS-B031";
    /// A schedule that cannot be read.
    pub const BAD_SCHEDULE: &str = "MS-B032";
    /// A file watch that cannot be.
    pub const BAD_WATCH: &str = "MS-B033";
    /// A duration in a form that edition 2 refuses.
    pub const OLD_DURATION: &str = "MS-B034";
    /// A trigger whose input the blueprint refuses.
    pub const TRIGGER_INPUT: &str = "MS-B035";
    /// A JSON Schema that is not one.
    pub const BAD_SCHEMA: &str = "MS-B040";
    /// A template that does not parse.
    pub const BAD_TEMPLATE: &str = "MS-B050";
    /// A template uses a name that nothing defines.
    pub const UNDEFINED_SLOT: &str = "MS-B051";
    /// Text with the marks of a template that is none.
    pub const LITERAL_BODY: &str = "MS-B052";
    /// An agent file whose frontmatter cannot be read.
    pub const BAD_AGENT_FILE: &str = "MS-B060";
    /// An agent file with a key that is not known.
    pub const UNKNOWN_AGENT_FILE_KEY: &str = "MS-B061";
    /// An agent file with a key that is refused.
    pub const REFUSED_AGENT_FILE_KEY: &str = "MS-B062";

    /// A node of a kind that does not exist, or something that is no node.
    pub const BAD_NODE: &str = "MS-B070";
    /// An expression that does not parse.
    pub const BAD_EXPRESSION: &str = "MS-B071";
    /// An expression looks up a name that nothing sets before.
    pub const UNDEFINED_NAME: &str = "MS-B072";
    /// A node that can never be reached.
    pub const UNREACHABLE: &str = "MS-B073";
    /// A map goes over something that is no list.
    pub const NOT_A_LIST: &str = "MS-B074";
    /// Two nodes set the same name side by side.
    pub const NAME_TWICE: &str = "MS-B075";
    /// A method that `ctx` does not have.
    pub const UNKNOWN_METHOD: &str = "MS-B080";
    /// An agent that nothing runs.
    pub const UNUSED_AGENT: &str = "MS-B081";
    /// A branch that nobody waits for.
    pub const NOT_AWAITED: &str = "MS-B082";
    /// A loop without an end.
    pub const ENDLESS_LOOP: &str = "MS-B083";
    /// Something that is not the same in a replay.
    pub const NOT_DETERMINISTIC: &str = "MS-B084";
    /// A global that nothing sets.
    pub const UNKNOWN_GLOBAL: &str = "MS-B085";
    /// An argument that a call does not take.
    pub const BAD_ARGUMENT: &str = "MS-B086";
    /// A result of the flow that is lost, or that there is not.
    pub const LOST_RESULT: &str = "MS-B087";
    /// A value of an enumeration that no case handles.
    pub const UNHANDLED_VALUE: &str = "MS-B088";
    /// A tool that does not exist.
    pub const UNKNOWN_TOOL: &str = "MS-B090";
    /// Two tools of an agent have the same name.
    pub const TOOL_TWICE: &str = "MS-B091";
    /// Tools, or limits of a loop, for an operator that is no model.
    pub const TOOLS_UNUSED: &str = "MS-B092";
    /// A tool that cannot be read.
    pub const BAD_TOOL: &str = "MS-B093";
    /// A rule of a loop that makes no sense.
    pub const BAD_RULE: &str = "MS-B094";

    /// Every code with one line about it, in order.
    pub const ALL: &[(&str, &str)] = &[
        (SYNTAX, "the source is not valid Luau"),
        (NOT_A_BLUEPRINT, "the file fails, or returns something else than a blueprint"),
        (MISSING_FILE, "a file that the source names is not there"),
        (BUNDLE, "a file is outside of the bundle, cannot be read, or is over a limit"),
        (UNKNOWN_KEY, "a key that does not exist"),
        (WRONG_TYPE, "a value of the wrong type"),
        (MISSING_KEY, "a required key is missing"),
        (BAD_NAME, "a name with characters that names cannot have"),
        (NOT_SUPPORTED, "a key that this release does not support"),
        (OUT_OF_RANGE, "a number out of its range"),
        (BAD_EDITION, "an edition that does not exist, or is not written out"),
        (OLD_EDITION, "a blueprint of an older edition"),
        (UNKNOWN_OPERATOR, "an operator that does not exist"),
        (WORKER_NEEDED, "the operator needs `worker`, and the agent has none"),
        (COMMAND_NEEDED, "a process agent without `command`"),
        (FN_NEEDED, "a lua agent without `fn`"),
        (KEY_DOES_NOT_FIT, "a key that the agent's operator has no use for"),
        (UNKNOWN_AGENT, "an agent that is not declared"),
        (TOOL_NEEDED, "an mcp agent without `tool`"),
        (ENVIRONMENT, "an environment that this host cannot give"),
        (BAD_LAYER, "a layer of middleware that cannot be"),
        (NOTHING_TO_COMPARE, "a quorum compares what the agent's output does not have"),
        (BAD_DURATION, "a duration that cannot be read"),
        (BAD_RETRY, "an invalid retry policy"),
        (BAD_SCHEDULE, "a schedule that cannot be read"),
        (BAD_WATCH, "a file watch that cannot be"),
        (OLD_DURATION, "a duration in a form that edition 2 refuses"),
        (TRIGGER_INPUT, "a trigger whose input the blueprint refuses"),
        (BAD_SCHEMA, "a JSON Schema that is not valid"),
        (BAD_TEMPLATE, "a template that does not parse"),
        (UNDEFINED_SLOT, "a template uses a name that nothing defines"),
        (LITERAL_BODY, "literal text with the marks of a template"),
        (BAD_AGENT_FILE, "an agent file whose frontmatter cannot be read"),
        (UNKNOWN_AGENT_FILE_KEY, "an agent file with a key that is not known"),
        (REFUSED_AGENT_FILE_KEY, "an agent file with a key that is refused"),
        (BAD_NODE, "something that is not a node of a flow"),
        (BAD_EXPRESSION, "an expression that does not parse"),
        (UNDEFINED_NAME, "an expression uses a name that nothing sets before it"),
        (UNREACHABLE, "a node that can never be reached"),
        (NOT_A_LIST, "a map goes over something that is not a list"),
        (NAME_TWICE, "two branches side by side set the same name"),
        (UNKNOWN_METHOD, "a call of ctx that does not exist"),
        (UNUSED_AGENT, "an agent that nothing runs"),
        (NOT_AWAITED, "a branch that nobody waits for"),
        (ENDLESS_LOOP, "a loop that never ends"),
        (NOT_DETERMINISTIC, "something that is not the same in a replay"),
        (UNKNOWN_GLOBAL, "a global that does not exist"),
        (BAD_ARGUMENT, "an argument that a call does not take"),
        (LOST_RESULT, "a flow without a result, or with more than one"),
        (UNHANDLED_VALUE, "a value that no case handles"),
        (UNKNOWN_TOOL, "a tool that does not exist"),
        (TOOL_TWICE, "two tools of an agent have the same name"),
        (TOOLS_UNUSED, "tools or limits of a loop for an operator that is no model"),
        (BAD_TOOL, "a tool that cannot be read"),
        (BAD_RULE, "an invalid rule of a loop"),
    ];
}

/// A place in a file: line and column count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl Position {
    /// The first character of a file.
    pub const START: Self = Self { line: 1, column: 1 };

    /// The place of a byte offset in a text; its end, if the offset is beyond it.
    pub fn of_offset(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap_or("").chars().count();
        Self { line: count(line), column: count(column) }
    }
}

fn count(zero_based: usize) -> u32 {
    u32::try_from(zero_based).unwrap_or(u32::MAX - 1) + 1
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The blueprint cannot run.
    Error,
    /// The blueprint can run, but probably not as intended.
    Warning,
    /// The blueprint can run as intended; the note explains something.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// One thing that is wrong. Findings order by file, then place, then code.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Finding {
    /// The file, relative to the bundle.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1, in characters.
    pub column: u32,
    /// One of [`code`].
    pub code: &'static str,
    /// The severity.
    pub severity: Severity,
    /// The problem, in one line.
    pub message: String,
    /// The repair, in one line.
    pub hint: Option<String>,
}

impl Finding {
    /// An error with `code` at a place.
    pub fn error(
        file: impl Into<String>,
        at: Position,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            file: file.into(),
            line: at.line,
            column: at.column,
            code,
            severity: Severity::Error,
            message: message.into(),
            hint: None,
        }
    }

    /// Returns the finding for a source that the Lua compiler cannot read.
    pub fn syntax(
        file: impl Into<String>,
        line: u32,
        column: Option<u32>,
        message: impl Into<String>,
    ) -> Self {
        let at = Position { line: line.max(1), column: column.unwrap_or(1).max(1) };
        Self::error(file, at, code::SYNTAX, message)
    }

    /// Returns the finding for a chunk that failed.
    pub fn script(
        file: impl Into<String>,
        line: u32,
        column: Option<u32>,
        message: impl Into<String>,
    ) -> Self {
        Self { code: code::NOT_A_BLUEPRINT, ..Self::syntax(file, line, column, message) }
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same as a warning.
    #[must_use]
    pub fn warning(mut self) -> Self {
        self.severity = Severity::Warning;
        self
    }

    /// The same as a note.
    #[must_use]
    pub fn note(mut self) -> Self {
        self.severity = Severity::Note;
        self
    }

    /// Adds to the hint that others are left out.
    pub(super) fn and_more(&mut self) {
        const MORE: &str = "not all findings are shown: mend these first";
        self.hint = Some(match self.hint.take() {
            Some(hint) => format!("{hint}; {MORE}"),
            None => MORE.to_owned(),
        });
    }

    /// Returns true if the blueprint cannot run because of it.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, code, severity, message, hint } = self;
        write!(f, "{file}:{line}:{column}: {severity}[{code}]: {message}")?;
        match hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Names that a misspelling is compared with, and that a hint lists.
const CANDIDATES: usize = 500;
const LISTED: usize = 100;

/// The candidate that `given` is most likely a misspelling of, among the first ones.
pub fn did_you_mean<'a>(
    given: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // A long text is no misspelling, and the distance costs the product of both lengths.
    if given.len() > 64 {
        return None;
    }
    candidates
        .into_iter()
        .take(CANDIDATES)
        .map(|candidate| (strsim::damerau_levenshtein(given, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min()
        .map(|(_, candidate)| candidate)
}

/// A hint with the likely spelling, else the list of what there is.
pub(super) fn hint_for(given: &str, candidates: &[&str]) -> Option<String> {
    match did_you_mean(given, candidates.iter().copied()) {
        Some(likely) => Some(format!("did you mean `{likely}`?")),
        None if candidates.is_empty() => None,
        None => {
            let shown = &candidates[..candidates.len().min(LISTED)];
            let more = if shown.len() < candidates.len() { ", …" } else { "" };
            Some(format!("there are: {}{more}", shown.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_prints_as_one_line_and_its_hint() {
        let at = Position { line: 7, column: 12 };
        let finding = Finding::error(
            "review.lua",
            at,
            code::UNKNOWN_KEY,
            "unknown key `timout` in agent `coder`",
        )
        .hint("did you mean `timeout`?");
        insta::assert_snapshot!(finding.to_string(), @r"
        review.lua:7:12: error[MS-B010]: unknown key `timout` in agent `coder`
          hint: did you mean `timeout`?
        ");
        let bare = Finding { hint: None, ..finding }.warning();
        insta::assert_snapshot!(bare.to_string(), @"review.lua:7:12: warning[MS-B010]: unknown key `timout` in agent `coder`");
    }

    #[test]
    fn findings_are_in_the_order_of_their_places() {
        let at = |line, column| Finding::error("a", Position { line, column }, code::BAD_NAME, "");
        let mut all = vec![at(10, 1), at(2, 9), at(2, 3)];
        all.sort();
        assert_eq!(all, [at(2, 3), at(2, 9), at(10, 1)]);
    }

    #[test]
    fn all_codes_are_in_the_table_unique_and_sorted() {
        let lines = include_str!("diagnostics.rs").lines().map(str::trim_start);
        let codes = lines.filter(|it| it.starts_with("pub const") && it.contains("MS-B"));
        assert_eq!(codes.count(), code::ALL.len());
        assert!(code::ALL.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn every_code_has_its_section_in_the_docs() {
        let docs = include_str!("../../docs/findings.md");
        for (code, meaning) in code::ALL {
            assert!(docs.contains(&format!("## {code}: {meaning}\n")), "{code}: {meaning}");
        }
    }

    #[test]
    fn a_likely_spelling_is_found_and_a_far_one_is_not() {
        assert_eq!(did_you_mean("promt", ["prompt", "park"]), Some("prompt"));
        assert_eq!(did_you_mean("zzzzzz", ["prompt", "park"]), None);
        assert_eq!(did_you_mean(&"x".repeat(10_000), ["prompt"]), None);
        let many: Vec<String> = (0..20_000).map(|n| format!("name{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let hint = hint_for("other", &many).unwrap();
        assert!(hint.ends_with("name99, …") && hint.len() < 1_000, "{hint}");
    }

    #[test]
    fn positions_count_characters() {
        assert_eq!(Position::of_offset("äö\nüx", 7), Position { line: 2, column: 2 });
        assert_eq!(Position::of_offset("ab", 99), Position { line: 1, column: 3 });
    }
}
