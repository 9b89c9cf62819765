//! The skill for coding agents: its text, and our section in a file of instructions.

use crate::blueprint::{library::FUNCTIONS, manual};

/// The beginning and the end of our section.
const BEGIN: &str = "<!-- moonswarm: begin -->\n";
const END: &str = "<!-- moonswarm: end -->\n";

/// Returns the text of the skill: SKILL.md.
pub fn skill() -> String {
    let functions: String = FUNCTIONS
        .iter()
        .map(|function| (manual::name_of(function), function.about))
        .filter(|(name, _)| name.starts_with("ctx"))
        .map(|(name, about)| format!("| `{name}` | {about} |\n"))
        .collect();
    include_str!("skill/skill.md")
        .replace("{{hello}}", include_str!("../../blueprints/hello.lua"))
        .replace("{{functions}}\n", &format!("| function | what it does |\n|---|---|\n{functions}"))
}

/// Returns a file of instructions with our section, in place of an earlier one.
pub fn with_section(text: &str) -> String {
    let section = format!("{BEGIN}{}{END}", include_str!("skill/agents.md"));
    match parts(text) {
        Some((before, after)) => format!("{before}{section}{after}"),
        None if text.is_empty() => section,
        None => format!("{}\n\n{section}", text.trim_end()),
    }
}

/// Returns a file of instructions without our section; none, if it has none.
pub fn without_section(text: &str) -> Option<String> {
    let (before, after) = parts(text)?;
    let before = before.trim_end();
    Some(match (before.is_empty(), after.trim().is_empty()) {
        (true, _) => after.trim_start().to_owned(),
        (false, true) => format!("{before}\n"),
        (false, false) => format!("{before}\n\n{}", after.trim_start()),
    })
}

/// Splits a text at our section. Without its end, it is nobody's: nothing is taken for it.
fn parts(text: &str) -> Option<(&str, &str)> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some((before, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_skill_has_the_functions_and_a_blueprint() {
        let text = skill();
        assert!(text.starts_with("---\nname: moonswarm\ndescription: "), "{text}");
        assert!(text.contains("| `ctx:run` | ") && text.contains("| `ctx.state:get` | "), "{text}");
        assert!(text.contains("return swarm.blueprint {\n  name = \"hello\","));
        assert!(!text.contains("{{"), "a place is left");
    }

    #[test]
    fn our_section_is_added_once_and_taken_back() {
        for before in ["# Mine\n\nRules.\n", "# Mine\n"] {
            let once = with_section(before);
            assert!(once.starts_with(before) && once.contains("moonswarm check"), "{once}");
            assert_eq!(with_section(&once), once, "twice is once");
            assert_eq!(without_section(&once).as_deref(), Some(before));
            assert_eq!(without_section(before), None);
        }
        assert_eq!(without_section(&with_section("")).as_deref(), Some(""));
        let between = format!("{}\nMore.\n", with_section("# Mine\n"));
        assert_eq!(without_section(&between).as_deref(), Some("# Mine\n\nMore.\n"));
        let torn = format!("# Mine\n{BEGIN}half");
        assert_eq!(without_section(&torn), None, "nothing is cut away");
    }
}
