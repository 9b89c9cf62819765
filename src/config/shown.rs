//! The effective configuration, for people: each value with its origin, and secrets as names.

use serde_json::{Value, json};

use super::{Config, Layer, LogFormat};
use crate::{engine::ConfigItem, session::Fallback};

/// Returns every setting. What is in neither layer is a default.
pub fn shown(config: &Config, flags: &Layer, file: &Layer) -> Vec<ConfigItem> {
    let item = |key: &str, value: Value, flag: bool, file: bool| ConfigItem {
        key: key.to_owned(),
        value,
        origin: match (flag, file) {
            (true, _) => "flag",
            (false, true) => "file",
            (false, false) => "default",
        }
        .to_owned(),
    };
    macro_rules! items {
        ($($key:ident => $value:expr),+ $(,)?) => {
            vec![$(item(stringify!($key), json!($value), flags.$key.is_some(), file.$key.is_some())),+]
        };
    }
    let mut items = items! {
        data => config.data,
        // Its address may have a secret, and the place of a secret is nobody's business.
        store => if config.store.is_some() { "postgres" } else { "sqlite" },
        durability => config.durability,
        cluster => config.cluster.is_some(),
        listen => config.listen.to_string(),
        blueprints => config.blueprints,
        shards => config.shards,
        safe_mode => config.safe_mode,
        memory => config.memory,
        run_memory => config.run_memory,
        lease => format!("{}s", config.lease.as_secs_f64()),
        fallback => config.fallback.iter().map(place).collect::<Vec<_>>(),
        connections => config.connections,
        hosts => config.hosts,
        origins => config.origins,
        proxies => config.proxies.iter().map(ToString::to_string).collect::<Vec<_>>(),
        insecure => config.insecure,
        people => config.people.is_some(),
        tls => config.tls.as_ref().map(|it| it.cert.display().to_string()),
        log => config.log,
        log_format => match config.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        },
        hide_data => !config.environments.show_data,
        watch => config.watch,
        // Where a secret is kept is nobody's business; its name is in every blueprint that uses it.
        secrets => config.environments.secrets.keys().collect::<Vec<_>>(),
        environments => config.environments.environments.keys().collect::<Vec<_>>(),
        operators => config.operators.iter().map(|(name, it)| format!("{name} ({})", it.kind())).collect::<Vec<_>>(),
        webhooks => config.webhooks.keys().collect::<Vec<_>>(),
        middleware => config.middleware.iter().map(|it| it.name.clone()).collect::<Vec<_>>(),
    };
    let retention = file.retention.as_ref();
    let kept = config.retention.unwrap_or_default();
    let of = |key: &str, value: u64, is_set: bool| item(key, json!(value), false, is_set);
    items.extend([
        of("retention.age", kept.age_ms, retention.is_some_and(|it| it.age.is_some())),
        of("retention.runs", kept.runs, retention.is_some_and(|it| it.runs.is_some())),
        of("retention.size", kept.bytes, retention.is_some_and(|it| it.size.is_some())),
        item("effects.custom", json!(config.effects), false, file.effects.is_some()),
        item(
            "metrics",
            json!(config.metrics.map(|it| it.to_string())),
            false,
            file.metrics.is_some(),
        ),
        item("vault", json!(config.environments.vault.is_some()), false, file.vault.is_some()),
    ]);
    if let Some(cluster) = &config.cluster {
        let is_set = |layer: &Layer| layer.cluster.as_ref().is_some_and(|it| it.lend.is_some());
        let rule = cluster.lend.unwrap_or_default().as_str();
        items.push(item("cluster.lend", json!(rule), is_set(flags), is_set(file)));
    }
    items
}

fn place(fallback: &Fallback) -> &'static str {
    match fallback {
        Fallback::Seat => "seat",
        Fallback::Starter => "starter",
        Fallback::Only => "only",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn each_setting_has_its_origin_and_a_secret_is_a_name() {
        let text = "shards = 3\nfallback = [\"only\"]\nlog_format = \"json\"\n[retention]\nruns = 7\n[secrets]\nkey = { env = \"HIDDEN_PLACE\" }\n\
                    [cluster]\nlend = \"even\"\n\
                    [operators.hook]\nkind = \"http\"\nurl = \"https://a.example/x\"\nheaders = { Authorization = \"Bearer hush\" }";
        let file = Layer::parse(text, Path::new("m.toml")).unwrap();
        let flags = Layer { data: Some("here".into()), ..Layer::default() };
        let config = Config::from(flags.clone().over(file.clone()));
        let items = shown(&config, &flags, &file);
        let find = |key: &str| {
            let item = items.iter().find(|it| it.key == key).unwrap();
            (item.value.clone(), item.origin.as_str())
        };
        assert_eq!(find("data"), (json!("here"), "flag"));
        assert_eq!(find("shards"), (json!(3), "file"));
        assert_eq!(find("fallback"), (json!(["only"]), "file"));
        assert_eq!(find("log_format"), (json!("json"), "file"));
        assert_eq!(find("retention.runs"), (json!(7), "file"));
        assert_eq!(find("retention.age").1, "default");
        assert_eq!(find("cluster.lend"), (json!("even"), "file"));
        assert_eq!(find("secrets"), (json!(["key"]), "file"));
        assert_eq!(find("operators"), (json!(["hook (http)"]), "file"));
        let all = serde_json::to_string(&items).unwrap();
        assert!(!all.contains("hush") && !all.contains("HIDDEN_PLACE"), "{all}");
    }
}
