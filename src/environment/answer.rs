//! The responses of HTTP requests: reading a body up to a limit, the pause that one asks for, and the
//! causes of an error.

use std::{error::Error, time::Duration};

use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::{
    Response,
    header::{HeaderMap, RETRY_AFTER},
};
use tokio::time::timeout;

/// The longest pause that a response may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 60 * 60);

/// The limits of reading the body of a response.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimit {
    /// The maximum size, in bytes.
    pub bytes: usize,
    /// The maximum time between two pieces; `None` if the whole request has a time limit.
    pub silence: Option<Duration>,
}

/// The reason why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body is larger than the limit.
    #[error("read the body: it is larger than the limit")]
    TooLarge,
    /// No piece arrived for too long.
    #[error("read the body: nothing arrived for too long")]
    Silent,
    /// The connection failed.
    #[error(transparent)]
    Failed(reqwest::Error),
}

/// Reads the body of a response, and appends it to `body`.
///
/// # Errors
/// Fails when the body exceeds the limit, and when the connection fails or stalls. `body` then has
/// what was read before.
pub async fn read_body(
    mut answer: Response,
    limit: BodyLimit,
    body: &mut Vec<u8>,
) -> Result<(), BodyError> {
    let announced = answer.content_length().and_then(|length| usize::try_from(length).ok());
    if announced.is_some_and(|length| length > limit.bytes) {
        return Err(BodyError::TooLarge);
    }
    loop {
        let chunk = match limit.silence {
            Some(silence) => {
                timeout(silence, answer.chunk()).await.map_err(|_| BodyError::Silent)?
            }
            None => answer.chunk().await,
        };
        let Some(chunk) = chunk.map_err(BodyError::Failed)? else { return Ok(()) };
        if body.len() + chunk.len() > limit.bytes {
            return Err(BodyError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
}

/// Returns the pause that a response asks for in `Retry-After`, in seconds or up to a date, a day at
/// most; `None` if it is neither.
pub fn retry_after(headers: &HeaderMap, now_ms: u64) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match text.parse::<f64>() {
        Ok(seconds) if seconds >= 0.0 => {
            Duration::from_secs_f64(seconds.min(LONGEST_PAUSE.as_secs_f64()))
        }
        Ok(_) => return None,
        Err(_) => {
            let at = DateTimeParser::new().parse_timestamp(text).ok()?.as_millisecond();
            Duration::from_millis(u64::try_from(at).ok()?.saturating_sub(now_ms))
        }
    };
    Some(pause.min(LONGEST_PAUSE))
}

/// Returns the innermost cause of an error of a request, which has the reason; the outer error
/// repeats the address.
pub fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    causes(error).last().unwrap_or(error)
}

/// Returns the text of an error and of all its causes, from the outermost to the innermost.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Iterates over an error and its causes.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::TcpListener,
    };

    use reqwest::header::HeaderValue;

    use super::{super::http_client, *};

    #[test]
    fn a_pause_is_asked_for_in_seconds_or_up_to_a_date_and_is_a_day_at_most() {
        let now_ms = 784_111_777_000;
        let asked = |text: &'static str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]);
            retry_after(&headers, now_ms)
        };
        for (text, ms) in [
            ("0", Some(0)),
            (" 7 ", Some(7_000)),
            ("0.25", Some(250)),
            ("86401", Some(86_400_000)),
            ("99999999999999999999999", Some(86_400_000)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10_000)),
            ("Sun, 06 Nov 1994 08:49:27 GMT", Some(0)),
            ("Mon, 06 Nov 1995 08:49:37 GMT", Some(86_400_000)),
            ("-1", None),
            ("nan", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(asked(text), ms.map(Duration::from_millis), "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now_ms), None);
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Link(&'static str, #[source] Option<Box<Link>>);

    #[test]
    fn the_causes_of_an_error_are_joined_and_the_innermost_is_found() {
        let error = Link("a", Some(Box::new(Link("b", Some(Box::new(Link("c", None)))))));
        assert_eq!(innermost(&error).to_string(), "c");
        assert_eq!(with_causes(&error), "a: b: c");
        assert_eq!(innermost(&Link("alone", None)).to_string(), "alone");
    }

    /// Returns the response of a server that answers once.
    async fn answered(rest: &str) -> Response {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let answer = format!("HTTP/1.1 200 OK\r\n{rest}");
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
            while head.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            stream.write_all(answer.as_bytes()).unwrap();
        };
        std::thread::Builder::new().name("answer".into()).spawn(serve).unwrap();
        http_client().no_proxy().build().unwrap().get(address).send().await.unwrap()
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_its_limit_whether_its_length_is_announced_or_not() {
        let limit = BodyLimit { bytes: 4, silence: None };
        for (rest, expected) in [
            ("content-length: 4\r\n\r\nfour", Some("four")),
            ("content-length: 5\r\n\r\nfives", None),
            ("connection: close\r\n\r\nfour", Some("four")),
            ("connection: close\r\n\r\nfives", None),
        ] {
            let mut body = Vec::new();
            match (read_body(answered(rest).await, limit, &mut body).await, expected) {
                (Ok(()), Some(expected)) => assert_eq!(body, expected.as_bytes()),
                (Err(BodyError::TooLarge), None) => {}
                (other, _) => panic!("{rest:?}: {other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_body_that_is_cut_off_is_an_error() {
        let limit = BodyLimit { bytes: 9, silence: Some(Duration::from_secs(30)) };
        let cut = answered("content-length: 9\r\n\r\nfour").await;
        let error = read_body(cut, limit, &mut Vec::new()).await.unwrap_err();
        assert!(matches!(error, BodyError::Failed(_)), "{error}");
    }
}
