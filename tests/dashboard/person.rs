//! A person at a browser without JavaScript: a cookie, pages, and forms.

use std::path::Path;

use reqwest::{
    Method,
    header::{CONTENT_TYPE, COOKIE, LOCATION, ORIGIN, SET_COOKIE},
};
use serde_json::{Value, json};

use crate::support::{Daemon, PATIENCE, send};

/// A client that shows where it is sent, and goes nowhere by itself.
fn browser(method: Method, url: &str) -> reqwest::RequestBuilder {
    let client = moonswarm::environment::http_client()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(2 * PATIENCE)
        .build()
        .unwrap();
    client.request(method, url)
}

/// Gathers, asks a person, waits for a signal; with a form for its input.
pub const DEMO: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "demo",
  description = "Gathers, asks a person, ships.",
  input = { type = "object", required = { "who" }, properties = {
    who = { type = "string", title = "Who", description = "Whom to greet", maxLength = 40 },
    times = { type = "integer", default = 3 },
    color = { enum = { "red", "green" } },
  } },
  agents = {
    echo = { operator = "echo" },
    ask = {
      operator = "human",
      prompt = "Ship {{ who }} <script>alert(1)</script>?",
      output = { type = "object", required = { "ship" }, properties = {
        ship = { type = "boolean", title = "Ship it?" }, note = { type = "string" },
      } },
    },
  },
  flow = function(ctx, input)
    for i = 1, input.times or 3 do ctx:run("echo", { i = i, who = input.who }) end
    ctx:status("asking", { progress = 0.5 })
    ctx:artifact("note <b>.txt", "hello")
    local answer = ctx:run("ask", { who = input.who })
    ctx:wait("go")
    return { answer = answer, who = input.who }
  end,
}
"#;

/// Writes markup, scripts and controls wherever a flow may write.
pub const HOSTILE: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "hostile",
  description = "<script>alert(1)</script>",
  agents = { echo = { operator = "echo" } },
  flow = function(ctx, input)
    ctx:status("<img src=x onerror=alert(1)> \u{202e}abc \u{1b}[31mred")
    ctx:log("info", "<script>alert(3)</script>")
    ctx:artifact("\"><img src=x onerror=alert(4)>.svg", "<svg onload='alert(5)'/>")
    ctx:run("echo", { text = input.text, ["<script>key</script>"] = 1 }, { summary = "<script>alert(2)</script>" })
    error("bad <b>thing</b> \u{1b}[0m")
  end,
}
"#;

/// Somebody who is signed in.
pub struct Person<'a> {
    daemon: &'a Daemon,
    pub cookie: String,
}

/// The answer to a request of a browser.
pub struct Shown {
    pub status: u16,
    pub to: String,
    pub headers: reqwest::header::HeaderMap,
    pub html: String,
}

impl Shown {
    async fn of(request: reqwest::RequestBuilder) -> Self {
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let headers = answer.headers().clone();
        let text = |name| {
            headers.get(name).map_or("", |it: &reqwest::header::HeaderValue| it.to_str().unwrap())
        };
        let to = text(LOCATION).to_owned();
        Self { status, to, html: answer.text().await.unwrap(), headers }
    }

    /// The page, which is one.
    pub fn page(self) -> String {
        assert_eq!(self.status, 200, "{}", self.html);
        self.html
    }

    /// The value of a hidden field.
    pub fn hidden(&self, name: &str) -> String {
        let (_, rest) = self
            .html
            .split_once(&format!("name=\"{name}\" value=\""))
            .unwrap_or_else(|| panic!("no field {name}: {}", self.html));
        rest.split('"').next().unwrap().to_owned()
    }
}

/// Writes fields as a browser does.
pub fn written(fields: &[(&str, &str)]) -> String {
    let escaped = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let pairs = fields.iter().map(|(name, value)| format!("{}={}", escaped(name), escaped(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// A form without a cookie.
pub async fn post_bare(daemon: &Daemon, path: &str, fields: &[(&str, &str)]) -> Shown {
    Shown::of(form(daemon, path, fields).header(ORIGIN, &daemon.url)).await
}

pub fn form(daemon: &Daemon, path: &str, fields: &[(&str, &str)]) -> reqwest::RequestBuilder {
    browser(Method::POST, &format!("{}{path}", daemon.url))
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(written(fields))
}

/// A page without a cookie.
pub async fn get_bare(daemon: &Daemon, path: &str) -> Shown {
    Shown::of(browser(Method::GET, &format!("{}{path}", daemon.url))).await
}

impl<'a> Person<'a> {
    /// Signs in with a token.
    pub async fn with(daemon: &'a Daemon, token: &str) -> Self {
        let shown = post_bare(daemon, "/ui/login", &[("token", token), ("next", "/ui")]).await;
        assert_eq!((shown.status, shown.to.as_str()), (303, "/ui"), "{}", shown.html);
        let cookie = shown.headers[SET_COOKIE].to_str().unwrap();
        Self { daemon, cookie: cookie.split(';').next().unwrap().to_owned() }
    }

    /// Signs in with a new token of a role.
    pub async fn of_role(daemon: &'a Daemon, role: &str) -> Self {
        Self::with(daemon, &mint(daemon, role, &json!({})).await).await
    }

    pub async fn get(&self, path: &str) -> Shown {
        let url = format!("{}{path}", self.daemon.url);
        Shown::of(browser(Method::GET, &url).header(COOKIE, &self.cookie)).await
    }

    /// Looks at a page as an open page does by itself.
    pub async fn head(&self, path: &str) -> Shown {
        let url = format!("{}{path}", self.daemon.url);
        Shown::of(browser(Method::HEAD, &url).header(COOKIE, &self.cookie)).await
    }

    /// Sends the form of a page: with its token, from the own origin.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Shown {
        let token = self.get("/ui").await.hidden("form");
        let mut all = vec![("form", token.as_str())];
        all.extend(fields);
        Shown::of(self.request(path, &all).header(ORIGIN, &self.daemon.url)).await
    }

    /// A form as it stands.
    pub fn request(&self, path: &str, fields: &[(&str, &str)]) -> reqwest::RequestBuilder {
        form(self.daemon, path, fields).header(COOKIE, &self.cookie)
    }

    /// Starts a run of the demo from its form, and gives its id.
    pub async fn starts(&self, who: &str) -> String {
        let input = json!({ "who": who, "times": 2 }).to_string();
        let shown = self.post("/ui/blueprints/demo/start", &[("raw", &input)]).await;
        assert_eq!(shown.status, 303, "{}", shown.html);
        let path = shown.to.split('?').next().unwrap();
        path.strip_prefix("/ui/runs/").unwrap().to_owned()
    }
}

/// Makes a token of a role.
pub async fn mint(daemon: &Daemon, role: &str, more: &Value) -> String {
    let mut body = json!({ "role": role, "ttl": "1h" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (status, minted) = send(daemon.post("/v1/tokens", &body)).await;
    assert_eq!(status, 201, "{minted}");
    minted["token"].as_str().unwrap().to_owned()
}

/// A daemon with both blueprints.
pub async fn daemon(dir: &Path) -> Daemon {
    let daemon = Daemon::start(&dir.join("data"));
    for (name, source) in [("demo", DEMO), ("hostile", HOSTILE)] {
        let (status, put) =
            send(daemon.put(&format!("/v1/blueprints/{name}"), &json!({ "source": source }))).await;
        assert!(status < 300, "{put}");
    }
    daemon
}

/// A page with a cookie.
pub async fn get_with(daemon: &Daemon, path: &str, cookie: &str) -> Shown {
    let url = format!("{}{path}", daemon.url);
    Shown::of(browser(Method::GET, &url).header(COOKIE, cookie)).await
}
