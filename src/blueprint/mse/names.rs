//! Names as blueprints, agents and operators have them.

/// Returns a name that agents and blueprints may have, other than those that are taken.
pub(crate) fn name_of<'n>(given: &str, taken: impl Iterator<Item = &'n String> + Clone) -> String {
    let name: String = plain(given).chars().take(64).collect();
    let name = if name.is_empty() { "unnamed".to_owned() } else { name };
    if !taken.clone().any(|it| *it == name) {
        return name;
    }
    let short: String = name.chars().take(58).collect();
    let mut numbered = (2_u32..).map(|number| format!("{short}-{number}"));
    numbered.find(|name| !taken.clone().any(|it| it == name)).unwrap_or(name)
}

/// The letters, digits, `-`, `_` and `.` of a name; words are joined with `-`.
pub(crate) fn plain(given: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let words: Vec<_> = given.split(|c| !fits(c)).filter(|word| !word.is_empty()).collect();
    words.join("-").trim_start_matches(['-', '_', '.']).to_owned()
}

/// The name of an operator: letters in lower case, digits, `-` and `_`.
pub(crate) fn operator_of(given: &str) -> String {
    let name = plain(given).to_ascii_lowercase().replace('.', "-");
    match name.as_str() {
        "main_ai" | "" => "main-ai".to_owned(),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_and_is_taken_once() {
        let mut taken = Vec::new();
        for (given, expected) in [
            ("a b", "a-b"),
            ("a/b", "a-b-2"),
            ("../a b", "a-b-3"),
            ("..", "unnamed"),
            ("\n", "unnamed-2"),
            ("v1.x_y", "v1.x_y"),
        ] {
            let name = name_of(given, taken.iter());
            assert_eq!(name, expected, "{given}");
            taken.push(name);
        }
        assert_eq!(name_of(&"x".repeat(99), [].iter()).len(), 64);
        assert_eq!([operator_of("main_ai"), operator_of("Phase A.op")], ["main-ai", "phase-a-op"]);
    }
}
