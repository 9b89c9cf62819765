//! The settings of the export: the variables that OpenTelemetry specifies for all programs.

use std::{collections::HashSet, time::Duration};

use percent_encoding::percent_decode_str;
use reqwest::{
    Url,
    header::{HeaderName, HeaderValue},
};
use serde_json::json;

use crate::{engine::ConfigItem, protocol::Sampling};

/// The number of journal entries behind which the export of traces does not catch up.
const MOST_BEHIND: u64 = 1_000_000;
/// The text in place of what may be a key.
const HIDDEN: &str = "[redacted]";

/// A variable that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("use {name}={value:?}: {reason}")]
pub struct BadSetting {
    /// The variable.
    pub name: String,
    /// Its value, without what may be a key.
    pub value: String,
    /// The reason, and what to set instead.
    pub reason: &'static str,
}

/// A signal that is exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The URL of the requests.
    pub url: String,
    /// Headers of each request.
    pub headers: Vec<(String, String)>,
    /// The time that a request may take.
    pub timeout: Duration,
}

/// The export of traces and metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The endpoint for traces, if they are exported.
    pub traces: Option<Endpoint>,
    /// The endpoint for metrics, if they are exported.
    pub metrics: Option<Endpoint>,
    /// The pause between exports of spans.
    pub delay: Duration,
    /// The interval of exports of metrics.
    pub interval: Duration,
    /// The attributes of the resource.
    pub resource: Vec<(String, String)>,
    /// The traces that are exported.
    pub sampling: Sampling,
    /// True if names of older GenAI conventions are left out.
    pub latest_only: bool,
    /// True if inputs, outputs and messages of failures are exported.
    pub contents: bool,
    /// The number of journal entries behind which the export of traces does not catch up.
    pub most_behind: u64,
}

impl Settings {
    /// Reads the variables; returns `None` if nothing is to be exported.
    ///
    /// # Errors
    /// Fails when a variable has a value that cannot be used.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, BadSetting> {
        let get = |name: &str| get(name).map(|it| it.trim().to_owned()).filter(|it| !it.is_empty());
        if get("OTEL_SDK_DISABLED").is_some_and(|it| it.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let variables = Variables { get: &get };
        let traces = variables.endpoint("TRACES", "v1/traces")?;
        let metrics = variables.endpoint("METRICS", "v1/metrics")?;
        if traces.is_none() && metrics.is_none() {
            return Ok(None);
        }
        let opt_in = get("OTEL_SEMCONV_STABILITY_OPT_IN").unwrap_or_default();
        Ok(Some(Self {
            traces,
            metrics,
            delay: variables.millis("OTEL_BSP_SCHEDULE_DELAY", 5_000)?,
            interval: variables.millis("OTEL_METRIC_EXPORT_INTERVAL", 60_000)?,
            resource: variables.resource()?,
            sampling: variables.sampling()?,
            latest_only: opt_in.split(',').any(|it| it.trim() == "gen_ai_latest_experimental"),
            contents: variables.contents()?,
            most_behind: MOST_BEHIND,
        }))
    }

    /// Returns the settings as items of the effective configuration. A header may be a key, so headers
    /// are names.
    pub fn shown(settings: Option<&Self>) -> Vec<ConfigItem> {
        let endpoint = |it: &Endpoint| {
            let headers: Vec<&str> = it.headers.iter().map(|(name, _)| name.as_str()).collect();
            json!({ "url": bare(&it.url), "headers": headers })
        };
        let of = |pick: fn(&Self) -> Option<&Endpoint>| settings.and_then(pick).map(endpoint);
        let is_set = settings.is_some();
        let contents = settings.is_some_and(|it| it.contents);
        [
            ("otlp.traces", json!(of(|it| it.traces.as_ref())), is_set),
            ("otlp.metrics", json!(of(|it| it.metrics.as_ref())), is_set),
            ("otlp.contents", json!(contents), contents),
        ]
        .into_iter()
        .map(|(key, value, is_set)| ConfigItem {
            key: key.to_owned(),
            value,
            origin: if is_set { "flag" } else { "default" }.to_owned(),
        })
        .collect()
    }
}

/// Returns the URL of a path below a URL, whose query stays behind the path.
fn below(base: &str, path: &str) -> String {
    let (front, behind) = base.split_at(base.find(['?', '#']).unwrap_or(base.len()));
    format!("{}/{path}{behind}", front.trim_end_matches('/'))
}

/// Returns a URL without what may be a key.
fn bare(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return String::new() };
    url.set_query(None);
    url.set_fragment(None);
    // Fails only for a URL without a host, which has neither.
    let _ = url.set_password(None).and_then(|()| url.set_username(""));
    url.to_string()
}

/// Returns a text that is no usable URL without a user, a password and a query, which may be keys.
fn blotted(url: &str) -> String {
    let is_scheme = |it: &str| it.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => (format!("{scheme}://"), rest),
        _ => (String::new(), url),
    };
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (Some(user), rest),
        None => (None, rest),
    };
    // An `@` behind such a mark may belong to a query, or the mark to a password.
    if user.is_some_and(|it| it.contains(['?', '#'])) {
        return HIDDEN.to_owned();
    }
    let host = rest.split(['?', '#']).next().unwrap_or_default();
    let authority = host.split('/').next().unwrap_or_default();
    let is_port = |it: &str| it.bytes().all(|byte| byte.is_ascii_digit());
    match user {
        Some(_) => format!("{scheme}{HIDDEN}@{host}"),
        // A user with a password, and no host behind them.
        None if !authority.ends_with(']')
            && authority.rsplit_once(':').is_some_and(|(_, behind)| !is_port(behind)) =>
        {
            HIDDEN.to_owned()
        }
        None => format!("{scheme}{host}"),
    }
}

/// The variables of a process.
struct Variables<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
}

impl Variables<'_> {
    /// Returns a variable of one signal, or else that of all signals, with its name.
    fn of(&self, signal: &str, rest: &str) -> Option<(String, String)> {
        let names =
            [format!("OTEL_EXPORTER_OTLP_{signal}_{rest}"), format!("OTEL_EXPORTER_OTLP_{rest}")];
        names.into_iter().find_map(|name| Some((name.clone(), (self.get)(&name)?)))
    }

    fn endpoint(&self, signal: &str, path: &str) -> Result<Option<Endpoint>, BadSetting> {
        let own = format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT");
        let all = "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned();
        let (own_url, base) = ((self.get)(&own), (self.get)(&all));
        let exporter = format!("OTEL_{signal}_EXPORTER");
        let exports = match (self.get)(&exporter).as_deref() {
            Some("otlp") => true,
            Some("none") => false,
            None => own_url.is_some() || base.is_some(),
            Some(value) => return bad(exporter, value, "only `otlp` and `none` are supported"),
        };
        if !exports {
            return Ok(None);
        }
        let (name, given, url) = match (own_url, base) {
            (Some(url), _) => (own, url.clone(), url),
            (None, base) => {
                let base = base.unwrap_or_else(|| "http://localhost:4318".to_owned());
                let url = below(&base, path);
                (all, base, url)
            }
        };
        let is_http = |it: &Url| matches!(it.scheme(), "http" | "https") && it.has_host();
        if !Url::parse(&url).is_ok_and(|it| is_http(&it)) {
            let reason = "it is a URL such as `http://localhost:4318`";
            return bad(name, &blotted(&given), reason);
        }
        for (rest, usable, reason) in [
            (
                "PROTOCOL",
                "http/protobuf",
                "only `http/protobuf` is supported, usually on port 4318",
            ),
            ("COMPRESSION", "none", "messages are not compressed; only `none` is supported"),
        ] {
            match self.of(signal, rest) {
                Some((name, value)) if value != usable => return bad(name, &value, reason),
                _ => {}
            }
        }
        for rest in ["CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"] {
            if let Some((name, value)) = self.of(signal, rest) {
                let reason = "certificates are those of the system; `SSL_CERT_FILE` adds others";
                return bad(name, &value, reason);
            }
        }
        let headers = match self.of(signal, "HEADERS") {
            Some((name, value)) => headers(name, &value)?,
            None => Vec::new(),
        };
        let timeout = match self.of(signal, "TIMEOUT") {
            Some((name, _)) => self.millis(&name, 10_000)?,
            None => Duration::from_secs(10),
        };
        Ok(Some(Endpoint { url, headers, timeout }))
    }

    fn millis(&self, name: &str, default: u64) -> Result<Duration, BadSetting> {
        let Some(value) = (self.get)(name) else { return Ok(Duration::from_millis(default)) };
        match value.parse() {
            Ok(ms @ 1..=3_600_000) => Ok(Duration::from_millis(ms)),
            _ => bad(name, &value, "it is a number of milliseconds, from 1 to an hour"),
        }
    }

    fn resource(&self) -> Result<Vec<(String, String)>, BadSetting> {
        let name = "OTEL_RESOURCE_ATTRIBUTES";
        let given = (self.get)(name).unwrap_or_default();
        let Some(mut resource) = pairs(&given) else {
            return bad(name, &given, "it is a list such as `zone=a,team=b`");
        };
        let named = resource.iter().any(|(name, _)| name == "service.name");
        match (self.get)("OTEL_SERVICE_NAME") {
            Some(name) => {
                resource.retain(|(key, _)| key != "service.name");
                resource.push(("service.name".to_owned(), name));
            }
            None if !named => resource.push(("service.name".to_owned(), "moonswarm".to_owned())),
            None => {}
        }
        if !resource.iter().any(|(name, _)| name == "service.version") {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            resource.push(("service.version".to_owned(), version));
        }
        // Without it, the nodes of a cluster would export the same series.
        if !resource.iter().any(|(name, _)| name == "service.instance.id") {
            let id = uuid::Uuid::new_v4().to_string();
            resource.push(("service.instance.id".to_owned(), id));
        }
        Ok(resource)
    }

    /// Returns the traces that a sampler lets through.
    fn sampling(&self) -> Result<Sampling, BadSetting> {
        let name = "OTEL_TRACES_SAMPLER";
        let Some(sampler) = (self.get)(name) else { return Ok(Sampling::ALL) };
        let (by_parent, root) = match sampler.strip_prefix("parentbased_") {
            Some(root) => (true, root),
            None => (false, sampler.as_str()),
        };
        let ratio = match root {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => {
                let name = "OTEL_TRACES_SAMPLER_ARG";
                let value = (self.get)(name).unwrap_or_else(|| "1.0".to_owned());
                match value.parse().ok().filter(|it| (0.0..=1.0).contains(it)) {
                    Some(ratio) => ratio,
                    None => return bad(name, &value, "it is a number from 0 to 1"),
                }
            }
            _ => {
                let reason = "use `always_on`, `always_off` or `traceidratio`, or one of these after \
                              `parentbased_`";
                return bad(name, &sampler, reason);
            }
        };
        Ok(Sampling { ratio, by_parent })
    }

    fn contents(&self) -> Result<bool, BadSetting> {
        let name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";
        let Some(value) = (self.get)(name) else { return Ok(false) };
        match value.to_ascii_lowercase().as_str() {
            "true" | "span_only" => Ok(true),
            "false" | "no_content" => Ok(false),
            _ => bad(name, &value, "use `span_only` or `no_content`, or `true` or `false`"),
        }
    }
}

fn bad<T>(name: impl Into<String>, value: &str, reason: &'static str) -> Result<T, BadSetting> {
    Err(BadSetting { name: name.into(), value: value.to_owned(), reason })
}

/// Reads the headers of requests. A value may be a key, and so may a text that is no header.
fn headers(name: String, text: &str) -> Result<Vec<(String, String)>, BadSetting> {
    let is_header = |(name, value): &(String, String)| {
        HeaderName::try_from(name).is_ok() && HeaderValue::try_from(value).is_ok()
    };
    match pairs(text).filter(|headers| headers.iter().all(is_header)) {
        Some(headers) => Ok(headers),
        None => {
            let reason = "it is a list such as `authorization=Bearer%20x,tenant=a`, of headers that \
                          HTTP allows";
            bad(name, HIDDEN, reason)
        }
    }
}

/// Reads `a=1,b=2`, with percent-encoded values; `None` if a part is no pair. Empty parts are left out,
/// and of pairs with one name all but the last.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let pair = |part: &str| {
        let (name, value) = part.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8_lossy().into_owned();
        Some((name.trim().to_owned(), value)).filter(|(name, _)| !name.is_empty())
    };
    let mut pairs: Vec<_> = parts.map(pair).collect::<Option<_>>()?;
    let mut names = HashSet::new();
    pairs.reverse();
    pairs.retain(|(name, _)| names.insert(name.clone()));
    pairs.reverse();
    Some(pairs)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, BadSetting> {
        let variables: BTreeMap<_, _> = variables.iter().copied().collect();
        Settings::read(|name| variables.get(name).map(ToString::to_string))
    }

    fn url(endpoint: Option<&Endpoint>) -> Option<&str> {
        endpoint.map(|it| it.url.as_str())
    }

    #[test]
    fn nothing_is_exported_unless_a_variable_asks_for_it() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/");
        assert_eq!(read(&[base, ("OTEL_SDK_DISABLED", "true")]), Ok(None));
        let both = read(&[base]).unwrap().unwrap();
        assert_eq!(url(both.traces.as_ref()), Some("http://c:4318/v1/traces"));
        assert_eq!(url(both.metrics.as_ref()), Some("http://c:4318/v1/metrics"));
        let query = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c/otlp/?tenant=a/b");
        let below = read(&[query]).unwrap().unwrap();
        assert_eq!(url(below.traces.as_ref()), Some("http://c/otlp/v1/traces?tenant=a/b"));
        assert!(!both.contents && !both.latest_only && both.sampling == Sampling::ALL);
        let traces = read(&[("OTEL_TRACES_EXPORTER", "otlp")]).unwrap().unwrap();
        assert_eq!(url(traces.traces.as_ref()), Some("http://localhost:4318/v1/traces"));
        assert_eq!(traces.metrics, None);
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://d/x");
        assert_eq!(url(read(&[own]).unwrap().unwrap().traces.as_ref()), Some("http://d/x"));
    }

    #[test]
    fn headers_attributes_and_numbers_are_read() {
        let read = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x, b = 2,"),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "m=1"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "250"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,zone=b"),
            ("OTEL_SERVICE_NAME", "swarm"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_SEMCONV_STABILITY_OPT_IN", "http,gen_ai_latest_experimental"),
            ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY"),
        ]);
        let read = read.unwrap().unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let (traces, metrics) = (read.traces.unwrap(), read.metrics.unwrap());
        assert_eq!(traces.headers, [pair("authorization", "Bearer x"), pair("b", "2")]);
        assert_eq!(traces.timeout, Duration::from_secs(10));
        assert_eq!(metrics.headers, [pair("m", "1")]);
        assert_eq!(metrics.timeout, Duration::from_millis(250));
        assert_eq!(read.resource[..2], [pair("zone", "b"), pair("service.name", "swarm")]);
        assert_eq!(read.resource.last().unwrap().0, "service.instance.id");
        assert!(read.latest_only && read.contents && read.sampling.by_parent);
        assert!((read.sampling.ratio - 0.25).abs() < 1e-9);
    }

    #[test]
    fn the_effective_configuration_names_headers_and_has_no_key() {
        let read = read(&[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://me:secret@c/v1/traces?key=secret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret"),
        ]);
        let items = Settings::shown(read.unwrap().as_ref());
        let text = serde_json::to_string(&items).unwrap();
        assert!(text.contains("https://c/v1/traces") && text.contains("authorization"), "{text}");
        assert!(!text.contains("secret"), "{text}");
        assert!(Settings::shown(None).iter().all(|it| it.origin == "default"));
    }

    #[test]
    fn what_cannot_be_used_is_named_with_what_to_set_instead() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c");
        for (variable, expected) in [
            (("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), "only `http/protobuf`"),
            (("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json"), "only `http/protobuf`"),
            (("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"), "only `none`"),
            (("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"), "`SSL_CERT_FILE`"),
            (("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "c:4318"), "a URL such as"),
            (("OTEL_TRACES_EXPORTER", "zipkin"), "only `otlp` and `none`"),
            (("OTEL_TRACES_SAMPLER", "odd"), "use `always_on`"),
            (("OTEL_METRIC_EXPORT_INTERVAL", "0"), "a number of milliseconds"),
            (("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "x"), "use `span_only`"),
            (("OTEL_RESOURCE_ATTRIBUTES", "zone=a,nonsense"), "a list such as"),
        ] {
            let text = read(&[base, variable]).unwrap_err().to_string();
            assert!(text.contains(variable.0) && text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_refused_and_not_shown() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c");
        for value in ["s3cr3t", "a=1,s3cr3t", "a b=s3cr3t", "=s3cr3t", "a=s3cr3t%0A", "s3cr3té=1"]
        {
            for name in ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS"] {
                let text = read(&[base, (name, value)]).unwrap_err().to_string();
                assert!(text.contains(name) && text.contains("a list such as"), "{text}");
                assert!(!text.contains("s3cr3t"), "{text}");
            }
        }
    }

    #[test]
    fn a_refused_address_is_shown_without_its_keys() {
        for (value, shown) in [
            ("me:s3cr3t@host:4318", "[redacted]@host:4318"),
            ("ftp://me:s3cr3t", "[redacted]"),
            ("ftp://me:s3cr3t@host/x?key=s3cr3t", "ftp://[redacted]@host/x"),
            ("me:s3://cr3t@host", "[redacted]@host"),
            ("me:s3cr3t?@host", "[redacted]"),
            ("host:4318?key=s3cr3t", "host:4318"),
            ("host:4318", "host:4318"),
        ] {
            let error = read(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", value)]).unwrap_err();
            assert_eq!(error.value, shown);
            let error = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", value)]).unwrap_err();
            assert_eq!(error.value, shown, "as it was set");
            assert!(!error.to_string().contains("s3cr3t"), "{error}");
        }
    }

    #[test]
    fn an_attribute_that_is_named_twice_has_its_last_value() {
        let read = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
            ("OTEL_RESOURCE_ATTRIBUTES", "zone=a,team=b,service.name=x,zone=c,service.name=y"),
        ]);
        let mut resource = read.unwrap().unwrap().resource;
        resource.truncate(3);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = [pair("team", "b"), pair("zone", "c"), pair("service.name", "y")];
        assert_eq!(resource, expected, "the protocol wants each once");
    }

    #[test]
    fn each_process_is_an_instance_of_its_own_unless_the_attributes_name_one() {
        let ids = |attributes: &[(&str, &str)]| {
            let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c");
            let all: Vec<_> = [base].iter().chain(attributes).copied().collect();
            let resource = read(&all).unwrap().unwrap().resource;
            let ids = resource.into_iter().filter(|(name, _)| name == "service.instance.id");
            ids.map(|(_, value)| value).collect::<Vec<_>>()
        };
        let (one, other) = (ids(&[]), ids(&[]));
        assert!(one.len() == 1 && other.len() == 1 && one != other, "{one:?} {other:?}");
        assert_eq!(ids(&[("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=n1")]), ["n1"]);
    }
}
