//! The client of models.

use async_trait::async_trait;

/// Sends a request to a model.
#[async_trait]
pub trait HttpClient {
    /// Posts a document, and returns the text of the answer.
    async fn post(&self, url: &str, key: Option<&str>, body: String) -> Result<String, String>;
}

/// A client; the numbers of its pool are of no use here.
pub fn create_hyper_client(_: usize, _: u64) -> impl HttpClient + Send + Sync {
    reqwest::Client::new()
}

#[async_trait]
impl HttpClient for reqwest::Client {
    async fn post(&self, url: &str, key: Option<&str>, body: String) -> Result<String, String> {
        let mut request = reqwest::Client::post(self, url).body(body);
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let answer = request.send().await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let text = answer.text().await.map_err(|error| error.to_string())?;
        if status.is_success() { Ok(text) } else { Err(format!("HTTP {status}: {text}")) }
    }
}
