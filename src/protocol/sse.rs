//! A parser of server-sent events, for the streams of providers and of the host itself.
//!
//! A chunk may end within a character: a line is decoded once it is complete, and a line that is
//! not UTF-8 is an error. Lines and events are limited in size.

/// The maximum size of a line, and of the data of an event, in bytes. A finished response is one
/// event with all of its items.
const LONGEST: usize = 16 * 1024 * 1024;

/// The reason why bytes are not a valid stream of events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// A line or an event is over its limit.
    #[error("read {what} of events: it has more than {most} bytes")]
    TooLong {
        /// The part of the stream.
        what: &'static str,
        /// The limit, in bytes.
        most: usize,
    },
    /// A line is not UTF-8.
    #[error("read a line of events: it is not UTF-8")]
    NotText(Vec<u8>),
}

/// An event.
#[derive(Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// The name; empty if absent.
    pub name: String,
    /// The data, with its lines joined.
    pub data: String,
}

/// Splits bytes into events.
#[derive(Debug, Default)]
pub struct Cutter {
    line: Vec<u8>,
    name: String,
    data: String,
    has_data: bool,
    after_cr: bool,
    begun: bool,
}

impl Cutter {
    /// Consumes the next bytes and passes each event that is complete to `out`.
    ///
    /// # Errors
    /// Fails when a line or an event is too long or not UTF-8, and with the errors of `out`.
    pub fn feed<E: From<SseError>>(
        &mut self,
        mut bytes: &[u8],
        mut out: impl FnMut(SseEvent) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) else {
                return Ok(self.keep(bytes)?);
            };
            self.keep(&bytes[..end])?;
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if let Some(event) = self.end_line()? {
                out(event)?;
            }
        }
        Ok(())
    }

    /// Returns true if there are bytes that do not form a complete event.
    pub fn has_rest(&self) -> bool {
        self.has_data || !self.line.is_empty()
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if self.line.len() + bytes.len() > LONGEST {
            return Err(SseError::TooLong { what: "a line", most: LONGEST });
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self) -> Result<Option<SseEvent>, SseError> {
        let bytes = std::mem::take(&mut self.line);
        let Ok(mut line) = std::str::from_utf8(&bytes) else {
            return Err(SseError::NotText(bytes.clone()));
        };
        if !std::mem::replace(&mut self.begun, true) {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        let event = self.take(line);
        // The allocation is reused for the next line.
        self.line = bytes;
        self.line.clear();
        event
    }

    fn take(&mut self, line: &str) -> Result<Option<SseEvent>, SseError> {
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            let data = std::mem::take(&mut self.data);
            return Ok(std::mem::take(&mut self.has_data).then_some(SseEvent { name, data }));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.data.len() + value.len() > LONGEST {
                    return Err(SseError::TooLong { what: "an event", most: LONGEST });
                }
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            "event" => value.clone_into(&mut self.name),
            // Comments are keep-alives; `id` and `retry` are for clients that reconnect.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(chunks: &[&[u8]]) -> Result<Vec<(String, String)>, SseError> {
        let (mut cutter, mut out) = (Cutter::default(), Vec::new());
        for chunk in chunks {
            cutter.feed(chunk, |event| {
                out.push((event.name, event.data));
                Ok::<_, SseError>(())
            })?;
        }
        Ok(out)
    }

    #[test]
    fn events_are_the_same_wherever_the_bytes_are_cut() {
        let text = "\u{feff}event: a\ndata: {\"x\":\"ü→🌙\"}\n\n: ping\n\ndata:1\r\ndata: 2\r\n\r\n\
                    id: 7\ndata\n\nevent: lost\n\n";
        let pair = |name: &str, data: &str| (name.to_owned(), data.to_owned());
        let expected = [pair("a", "{\"x\":\"ü→🌙\"}"), pair("", "1\n2"), pair("", "")];
        assert_eq!(cut(&[text.as_bytes()]).unwrap(), expected);
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(cut(&bytes).unwrap(), expected);
        let threes: Vec<&[u8]> = text.as_bytes().chunks(3).collect();
        assert_eq!(cut(&threes).unwrap(), expected);
    }

    #[test]
    fn half_a_character_is_an_error_once_its_line_ends() {
        assert!(cut(&[b"data: \xf0\x9f"]).unwrap().is_empty());
        let error = cut(&[b"data: \xf0\x9f", b"\n\n"]).unwrap_err();
        assert!(error.to_string().contains("not UTF-8"), "{error}");
    }

    #[test]
    fn a_line_without_an_end_is_cut_off() {
        let chunk = vec![b'x'; 1 << 20];
        let mut cutter = Cutter::default();
        let error =
            (0..17).find_map(|_| cutter.feed(&chunk, |_| Ok::<_, SseError>(())).err()).unwrap();
        assert!(matches!(error, SseError::TooLong { what: "a line", .. }), "{error}");
    }

    #[test]
    fn an_event_that_was_not_ended_is_a_rest() {
        let mut cutter = Cutter::default();
        cutter.feed::<SseError>(b"data: 1\n", |_| panic!("it has not ended")).unwrap();
        assert!(cutter.has_rest());
        cutter.feed(b"\n", |_| Ok::<_, SseError>(())).unwrap();
        assert!(!cutter.has_rest());
    }
}
