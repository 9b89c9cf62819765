//! Words of the commands that are shown, for a shell and the program that it starts.
//!
//! Signals, keys, queues and texts that are sought have names that others chose. Quotes protect a
//! word from the shell, but not from the program: it reads `'--server=…'` as a flag.

/// Returns a text as one word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@%+=,".contains(c);
    match !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Returns a text as one operand, which is never a flag. No flag may follow it.
pub(crate) fn operand(text: &str) -> String {
    let ends_flags = if text.starts_with('-') { "-- " } else { "" };
    format!("{ends_flags}{}", quoted(text))
}

/// Returns a flag with a text as its value, after a blank. The text is never a flag itself.
pub(crate) fn option(flag: &str, value: &str) -> String {
    let between = if value.starts_with('-') { '=' } else { ' ' };
    format!(" {flag}{between}{}", quoted(value))
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

    #[test]
    fn a_name_that_looks_like_a_flag_is_none() {
        assert_eq!((operand("go"), operand("")), ("go".into(), "''".into()));
        assert_eq!(operand("--server=x"), "-- '--server=x'");
        assert_eq!(option("--text", "a b"), " --text 'a b'");
        assert_eq!(option("--text", "--server=x"), " --text='--server=x'");
    }
}
