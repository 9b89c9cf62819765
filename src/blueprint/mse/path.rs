//! Paths of flow.ir: `$.a.b`, `ctx.a`, `$.a["x.y"]`. There is no index of an array.

use super::{
    lua::{quote, shown},
    report::ImportError,
};

/// Reads a path as the keys that it goes through.
pub(crate) fn keys(path: &str, at: &str) -> Result<Vec<String>, ImportError> {
    let wrong = |why: &str| ImportError::new(at, format!("{} is no path: {why}", shown(path)));
    let mut rest = path
        .strip_prefix("ctx")
        .or_else(|| path.strip_prefix('$'))
        .filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        .ok_or_else(|| wrong("it begins with `$` or `ctx`, then `.` or `[`"))?;
    let mut keys = Vec::new();
    while !rest.is_empty() {
        let dotted = rest.strip_prefix('.');
        rest = dotted.unwrap_or(rest);
        if let Some(quoted) = rest.strip_prefix("[\"") {
            let (key, after) = quoted.split_once('"').ok_or_else(|| wrong("a quote is open"))?;
            rest = after.strip_prefix(']').ok_or_else(|| wrong("`]` is missing"))?;
            if key.is_empty() || !(rest.is_empty() || rest.starts_with(['.', '['])) {
                return Err(wrong("a key in brackets is empty, or text follows it"));
            }
            keys.push(key.to_owned());
            continue;
        }
        if dotted.is_none() || rest.starts_with('[') {
            return Err(wrong("a key in brackets is a quoted text; a list has no index"));
        }
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        if end == 0 {
            return Err(wrong("a key is empty"));
        }
        keys.push(rest[..end].to_owned());
        rest = &rest[end..];
    }
    Ok(keys)
}

/// Writes keys as further arguments of a call: `, "a", "b"`.
pub(crate) fn arguments(keys: &[String]) -> String {
    keys.iter().map(|key| format!(", {}", quote(key))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_the_keys_that_it_goes_through() {
        for (path, expected) in [
            ("$", &[][..]),
            ("ctx.a", &["a"]),
            ("$.a.b_c", &["a", "b_c"]),
            ("$.a[\"p.md\"][\"x\"].y", &["a", "p.md", "x", "y"]),
            ("$[\"x.y\"]", &["x.y"]),
            ("$.results.0", &["results", "0"]),
        ] {
            assert_eq!(keys(path, "f").unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn what_flow_ir_refuses_is_refused() {
        for path in
            ["", "a", "$a", "ctxa", "$.", "$.a.", "$..a", "$.r[0]", "$[\"a", "$[\"\"]", "$[\"a\"]b"]
        {
            assert!(keys(path, "f").is_err(), "{path}");
        }
    }
}
