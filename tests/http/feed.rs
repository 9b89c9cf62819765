//! The events of a run, as they come.

use reqwest::Response;
use serde_json::Value;
use tokio::time::timeout;

use crate::support::PATIENCE;

/// A stream of server-sent events under way.
pub struct Feed {
    answer: Response,
    text: String,
}

impl Feed {
    pub fn of(answer: Response) -> Self {
        Self { answer, text: String::new() }
    }

    /// The data of the next event that has some; none once the stream ends or breaks off.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                let data = data.map(|data| serde_json::from_str(data).unwrap());
                self.text = rest.to_owned();
                if data.is_some() {
                    return data;
                }
            }
            let chunk = timeout(PATIENCE, self.answer.chunk()).await.expect("an event");
            let chunk = chunk.ok()??;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}
