//! An MCP client: the one of the Rust SDK, over HTTP or over the pipes of `moonswarm mcp`.

use std::{path::Path, process::Stdio, time::Duration};

use reqwest::header::{AUTHORIZATION, HeaderValue};
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        CallToolRequestParams, ClientCapabilities, ClientConfig, GetPromptRequestParams,
        Implementation, ProtocolVersion, ReadResourceRequestParams,
        ResourceUpdatedNotificationParam, SubscriptionFilter, Tool,
    },
    service::{
        ClientLifecycleMode, ClientServiceExt as _, NotificationContext, Peer, RunningService,
        Subscription,
    },
    transport::{
        StreamableHttpClientTransport, async_rw::AsyncRwTransport,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    sync::mpsc,
};

use crate::support::{Daemon, send};

/// A connected client, and its server's process, if it has one of its own.
pub struct Agent {
    service: RunningService<RoleClient, Ear>,
    child: Option<Child>,
    heard: mpsc::UnboundedReceiver<String>,
}

/// Hears the notices that belong to no request.
struct Ear(mpsc::UnboundedSender<String>);

impl ClientHandler for Ear {
    async fn on_resource_updated(
        &self,
        update: ResourceUpdatedNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        drop(self.0.send(update.uri));
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        drop(self.0.send("tools".to_owned()));
    }

    async fn on_prompt_list_changed(&self, _context: NotificationContext<RoleClient>) {
        drop(self.0.send("prompts".to_owned()));
    }

    async fn on_resource_list_changed(&self, _context: NotificationContext<RoleClient>) {
        drop(self.0.send("resources".to_owned()));
    }

    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("test", "1"))
    }
}

/// What a tool gave.
#[derive(Debug)]
pub struct Said {
    pub value: Value,
    pub text: String,
    pub is_error: bool,
}

fn me() -> (Ear, mpsc::UnboundedReceiver<String>) {
    let (said, heard) = mpsc::unbounded_channel();
    (Ear(said), heard)
}

/// The lifecycle of older revisions.
pub fn older() -> ClientLifecycleMode {
    ClientLifecycleMode::Initialize
}

fn newest() -> ClientLifecycleMode {
    ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::LATEST],
        legacy_version: None,
    }
}

impl Agent {
    /// The URIs of the resources.
    pub async fn resources(&self) -> Vec<String> {
        let all = self.service.list_all_resources().await.unwrap();
        all.into_iter().map(|it| it.uri).collect()
    }

    /// A resource as the protocol shows it, or the error.
    pub async fn read(&self, uri: &str) -> Result<Value, String> {
        let read = self.service.read_resource(ReadResourceRequestParams::new(uri)).await;
        read.map(|it| json!(it)["contents"][0].clone()).map_err(|error| error.to_string())
    }

    /// The text of a prompt, or the error.
    pub async fn prompt(&self, name: &str, arguments: Value) -> Result<String, String> {
        let mut request = GetPromptRequestParams::new(name);
        request.arguments = arguments.as_object().cloned();
        let filled = self.service.get_prompt(request).await.map_err(|error| error.to_string())?;
        Ok(json!(filled)["messages"][0]["content"]["text"].as_str().unwrap().to_owned())
    }

    /// The names of the prompts.
    pub async fn prompts(&self) -> Vec<String> {
        let all = self.service.list_all_prompts().await.unwrap();
        all.into_iter().map(|it| it.name).collect()
    }

    /// Connects over HTTP.
    pub async fn http(daemon: &Daemon, token: &str) -> Self {
        Self::speaking(daemon, token, newest()).await
    }

    /// Connects over HTTP with a lifecycle of its own.
    pub async fn speaking(daemon: &Daemon, token: &str, lifecycle: ClientLifecycleMode) -> Self {
        let client = moonswarm::environment::http_client().no_proxy().build().unwrap();
        let bearer = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        let config = StreamableHttpClientTransportConfig::with_uri(format!("{}/mcp", daemon.url))
            .custom_headers([(AUTHORIZATION, bearer)].into());
        let transport = StreamableHttpClientTransport::with_client(client, config);
        let (ear, heard) = me();
        let service = ear.serve_with_lifecycle(transport, lifecycle).await.unwrap();
        Self { service, child: None, heard }
    }

    /// Starts `moonswarm mcp` over a data directory and connects to it.
    pub async fn stdio(data: &Path, env: &[(&str, &str)]) -> Self {
        Self::piped(data, env, newest()).await
    }

    /// The same, with a lifecycle of its own.
    pub async fn piped(data: &Path, env: &[(&str, &str)], lifecycle: ClientLifecycleMode) -> Self {
        let mut command = Command::from(crate::support::program());
        let mut child = command
            .args(["mcp", "--data"])
            .arg(data)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (output, input) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        let pipes = AsyncRwTransport::new(output, input);
        let (ear, heard) = me();
        let service = ear.serve_with_lifecycle(pipes, lifecycle).await.unwrap();
        Self { service, child: Some(child), heard }
    }

    /// The connection, for what has no method here.
    pub fn peer(&self) -> &Peer<RoleClient> {
        self.service.peer()
    }

    /// Opens a subscription.
    pub async fn listen(&self, wanted: SubscriptionFilter) -> Subscription {
        self.service.peer().listen(wanted).await.unwrap()
    }

    /// The next notice that belongs to no request: the URI of a resource, or the name of a list.
    pub async fn hears(&mut self) -> String {
        let heard = tokio::time::timeout(Duration::from_secs(30), self.heard.recv());
        heard.await.expect("a notice comes").expect("the connection is open")
    }

    /// What it has heard and not read yet.
    pub fn heard_more(&mut self) -> Option<String> {
        self.heard.try_recv().ok()
    }

    /// Sends a signal to its server's process.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = self.child.as_ref().and_then(Child::id).expect("it has a process");
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process has an id");
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the end of its server's process, and gives its exit code.
    pub async fn ends(&mut self) -> Option<i32> {
        self.child.as_mut().expect("it has a process").wait().await.unwrap().code()
    }

    /// The names of the tools that it sees.
    pub async fn names(&self) -> Vec<String> {
        self.tools().await.into_iter().map(|tool| tool.name.into_owned()).collect()
    }

    /// The tools that it sees.
    pub async fn tools(&self) -> Vec<Tool> {
        self.service.peer().list_all_tools().await.unwrap()
    }

    /// Calls a tool. A result without an error fits the output schema of the tool.
    pub async fn call(&self, name: &str, arguments: Value) -> Said {
        let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
        let params = CallToolRequestParams::new(name.to_owned()).with_arguments(arguments);
        let result = self.service.peer().call_tool(params).await.unwrap();
        let result = serde_json::to_value(result).unwrap();
        let text = result["content"][0]["text"].as_str().unwrap().to_owned();
        let value = result["structuredContent"].clone();
        Said { value, text, is_error: result["isError"] == true }
    }

    /// Calls a tool that succeeds, and checks its result against the tool's output schema.
    pub async fn ok(&self, name: &str, arguments: Value) -> Value {
        let said = self.call(name, arguments).await;
        assert!(!said.is_error, "{name}: {}", said.text);
        let tools = self.tools().await;
        let tool = tools.iter().find(|tool| tool.name == name).expect("it is listed");
        let schema = Value::Object((**tool.output_schema.as_ref().unwrap()).clone());
        let validator = jsonschema::validator_for(&schema).unwrap();
        if let Err(error) = validator.validate(&said.value) {
            panic!("{name}: {error} in {}", said.value);
        }
        said.value
    }

    /// Calls a tool that refuses, and gives its text.
    pub async fn refused(&self, name: &str, arguments: Value) -> String {
        let said = self.call(name, arguments).await;
        assert!(said.is_error, "{name}: {}", said.text);
        assert!(said.text.contains("Next: "), "it says what to do: {}", said.text);
        said.text
    }

    /// Ends the client, and gives what its server's process said and its exit code.
    pub async fn close(self) -> (String, Option<i32>) {
        self.service.cancel().await.unwrap();
        let Some(child) = self.child else { return (String::new(), None) };
        let done = child.wait_with_output().await.unwrap();
        (String::from_utf8_lossy(&done.stderr).into_owned(), done.status.code())
    }

    /// Ends the client and its server's process without a word.
    pub async fn kill(mut self) {
        if let Some(child) = &mut self.child {
            child.kill().await.unwrap();
        }
    }
}

/// Mints a token.
pub async fn mint(daemon: &Daemon, body: Value) -> String {
    let (status, minted) = send(daemon.post("/v1/tokens", &body)).await;
    assert_eq!(status, 201, "{minted}");
    minted["token"].as_str().unwrap().to_owned()
}

/// A token for a coding agent.
pub async fn operator(daemon: &Daemon) -> String {
    mint(daemon, json!({"role": "operator", "name": "agent", "ttl": "1h"})).await
}
