//! The outputs of the program: data on stdout, everything else on stderr.
//!
//! This is the only way to a terminal. What text from outside has in it to steer one is taken out
//! here, whatever verb it comes from; JSON has it escaped, and data that goes into a file or a
//! pipe is left as it is.

use std::io::{self, IsTerminal, Write};

use anyhow::Context as _;
use futures::{Stream, StreamExt as _};
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

use super::exit::Stop;
use crate::protocol::plain;

/// The styles of the two outputs.
#[derive(Debug, Clone, Copy)]
pub struct Terminal {
    /// Data as JSON.
    pub json: bool,
    /// True if stderr is a terminal.
    pub live: bool,
    /// True if somebody can be asked.
    pub asks: bool,
    quiet: bool,
}

impl Terminal {
    /// The terminal that this process was started in.
    pub fn of_process(json: bool) -> Self {
        let live =
            io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|t| t != "dumb");
        Self { json, live, asks: live && io::stdin().is_terminal(), quiet: false }
    }

    /// Returns a silent terminal, for tests.
    #[cfg(test)]
    pub fn quiet() -> Self {
        Self { json: false, live: false, asks: false, quiet: true }
    }

    /// Returns the number of columns of stdout, if it is a terminal.
    pub fn width(&self) -> Option<usize> {
        let size = console::Term::stdout().size_checked();
        size.filter(|_| io::stdout().is_terminal()).map(|(_, columns)| usize::from(columns))
    }

    /// Writes text for a person to stderr.
    pub fn say(&self, text: &str) {
        if !self.quiet {
            // A closed stderr leaves nobody to tell.
            let _ = writeln!(io::stderr().lock(), "{}", plain::lines(text));
        }
    }

    /// Writes a failure to stderr: for a person, or with `--json` as one line of JSON.
    pub fn complain(&self, stop: &Stop) {
        match self.json {
            false => self.say(&format!("moonswarm: {stop}")),
            true => self.say(&plain::json(&stop.to_json().to_string())),
        }
    }

    /// Writes text for a person to stdout and ends it with a newline if it has none.
    ///
    /// # Errors
    /// A closed or full stdout.
    pub fn print(&self, text: &str) -> io::Result<()> {
        Self::write(&plain::lines(text))
    }

    /// The same for text that was painted; what came from outside is on one line each, and plain.
    ///
    /// # Errors
    /// A closed or full stdout.
    pub fn print_painted(&self, text: &str) -> io::Result<()> {
        Self::write(&plain::painted(text))
    }

    fn write(text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        if !text.is_empty() && !text.ends_with('\n') {
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// Writes bytes to stdout: as they are, unless it is a terminal.
    ///
    /// # Errors
    /// A closed or full stdout.
    pub fn print_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if out.is_terminal() {
            out.write_all(plain::lines(&String::from_utf8_lossy(bytes)).as_bytes())?;
            return out.flush();
        }
        out.write_all(bytes)?;
        out.flush()
    }

    /// Writes JSON to stdout, for a person to read as well.
    ///
    /// # Errors
    /// A closed or full stdout.
    pub fn print_json<T: Serialize + ?Sized>(&self, value: &T) -> io::Result<()> {
        Self::write(&plain::json(&serde_json::to_string_pretty(value)?))
    }

    /// Writes JSON to stdout as one line.
    ///
    /// # Errors
    /// A closed or full stdout.
    pub fn print_json_line<T: Serialize + ?Sized>(&self, value: &T) -> io::Result<()> {
        Self::write(&plain::json(&serde_json::to_string(value)?))
    }

    /// Writes a value: a string as its text, everything else as JSON.
    ///
    /// # Errors
    /// A closed or full stdout.
    pub fn print_value(&self, value: &Value) -> io::Result<()> {
        match value {
            Value::String(text) if !self.json && io::stdout().is_terminal() => self.print(text),
            Value::String(text) if !self.json => Self::write(text),
            other => self.print_json(other),
        }
    }

    /// Writes to stdout what comes in parts, as it comes. `what` names it in errors.
    ///
    /// # Errors
    /// Parts that break off, a closed or full stdout.
    pub async fn print_parts<T, E>(
        &self,
        mut parts: impl Stream<Item = Result<T, E>> + Unpin,
        what: &str,
    ) -> anyhow::Result<()>
    where
        T: AsRef<[u8]>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let mut characters = Characters::default();
        while let Some(part) = parts.next().await {
            let part = part.with_context(|| format!("read {what}"))?;
            self.print_bytes(&characters.whole(part.as_ref()))?;
        }
        Ok(self.print_bytes(&characters.begun)?)
    }
}

/// The characters of bytes that come in parts. One that is split between two parts goes with the
/// second one.
#[derive(Debug, Default)]
struct Characters {
    begun: Vec<u8>,
}

impl Characters {
    /// Returns what can be written with the next part, and keeps a character that has only begun.
    fn whole(&mut self, part: &[u8]) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.begun);
        bytes.extend_from_slice(part);
        let is_begun = |at: &usize| {
            let rest = std::str::from_utf8(&bytes[*at..]);
            rest.is_err_and(|it| it.valid_up_to() == 0 && it.error_len().is_none())
        };
        // A character has at most four bytes.
        let begun = (bytes.len().saturating_sub(3)..bytes.len()).find(is_begun);
        self.begun = bytes.split_off(begun.unwrap_or(bytes.len()));
        bytes
    }
}

/// Asks somebody at the terminal. There is one for a process: stdin is read ahead.
pub struct Questions(Lines<BufReader<Stdin>>);

impl Questions {
    /// Asks nothing yet.
    pub fn new() -> Self {
        Self(BufReader::new(tokio::io::stdin()).lines())
    }

    /// Asks and waits for a line; `None` where stdin has ended.
    ///
    /// # Errors
    /// A stdin that cannot be read.
    ///
    /// # Cancel safety
    /// A line that is typed after this is dropped answers the next question.
    pub async fn ask(&mut self, question: &str) -> io::Result<Option<String>> {
        write!(io::stderr().lock(), "{} ", plain::lines(question))?;
        Ok(self.0.next_line().await?.map(|line| line.trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_is_split_between_parts_is_written_as_a_whole() {
        let text = "a é – 🌙 z".as_bytes();
        for size in 1..=text.len() {
            let mut characters = Characters::default();
            let shown: Vec<Vec<u8>> =
                text.chunks(size).map(|part| characters.whole(part)).collect();
            assert!(shown.iter().all(|part| std::str::from_utf8(part).is_ok()), "{size}");
            assert_eq!((shown.concat().as_slice(), characters.begun.len()), (text, 0), "{size}");
        }
        let mut characters = Characters::default();
        assert_eq!(characters.whole(b"\xff\xc3"), b"\xff");
        assert_eq!(characters.whole(b"\xc3\xc3"), b"\xc3\xc3");
        assert_eq!(
            characters.begun, b"\xc3",
            "what is no text is kept back no longer than it must"
        );
    }
}
