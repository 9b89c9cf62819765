//! The final report of a worker, parsed leniently: it comes from a program in any language, or from
//! a language model. Invalid usage is ignored; anything else that is invalid is refused.

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{
    api::tasks::present,
    door::{Code, Problem},
    engine::Verdict,
    journal::Usage,
    middleware::SKIP,
    operator::read_usage,
    protocol::Json,
};

/// The result of a task. Unknown fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::api) struct ResultBody {
    /// The output; null is one. Needed unless the task failed or was skipped.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    output: Option<Json>,
    /// The reason why the task does not apply: its step is done without a value, and no schema
    /// holds for it.
    #[schema(max_length = 1024)]
    skip: Option<String>,
    /// True if the task is done; by default true, unless there is an `error`.
    ok: Option<bool>,
    /// The error: a text, or `{message, retryable, data}`.
    #[schema(value_type = Option<serde_json::Value>)]
    error: Option<Json>,
    /// The usage: `{input, output, cached, reasoning, cost}`, tokens as numbers and the cost in
    /// US dollars as a decimal string. What is missing counts as not reported.
    #[schema(value_type = Option<serde_json::Value>)]
    usage: Option<Json>,
    /// The effects to apply together with the acceptance.
    #[schema(value_type = Option<Vec<Object>>)]
    effects: Option<Vec<Value>>,
}

impl ResultBody {
    /// Returns the verdict, the usage and the effects.
    ///
    /// # Errors
    /// Fails when the report has neither an output nor a failure.
    pub(in crate::api) fn into_parts(
        self,
    ) -> Result<(Verdict, Option<Usage>, Vec<Value>), Problem> {
        let usage = self.usage.and_then(|usage| read_usage(&usage.to_value()));
        let mut effects = self.effects.unwrap_or_default();
        if let Some(reason) = self.skip {
            if self.ok == Some(false) || self.error.is_some() || self.output.is_some() {
                let detail = "a task that is skipped has no `output` and no `error`";
                return Err(Problem::new(Code::InvalidBody, detail).at("$.skip"));
            }
            effects.push(skip(&reason));
            return Ok((Verdict::Done(Json::null()), usage, effects));
        }
        let verdict = match (self.ok, self.error, self.output) {
            (Some(true) | None, None, Some(output)) | (Some(true), Some(_), Some(output)) => {
                Verdict::Done(output)
            }
            (Some(true) | None, None, None) | (Some(true), Some(_), None) => {
                let detail = "give `output`, or `ok: false` with an `error`";
                return Err(Problem::new(Code::InvalidBody, detail).at("$.output"));
            }
            (Some(false), None, output) => Verdict::Failed {
                message: "the worker says that it failed".to_owned(),
                retryable: false,
                data: output,
            },
            (Some(false) | None, Some(error), output) => failed(&error, output),
        };
        Ok((verdict, usage, effects))
    }
}

/// Returns the effect of a task that does not apply.
pub(in crate::api) fn skip(reason: &str) -> Value {
    json!({ "type": "custom", "effect_type": SKIP, "data": { "reason": reason } })
}

fn failed(error: &Json, output: Option<Json>) -> Verdict {
    let error = error.to_value();
    let message = match &error {
        Value::String(text) => text.clone(),
        Value::Object(fields) => match fields.get("message") {
            Some(Value::String(text)) => text.clone(),
            Some(_) | None => error.to_string(),
        },
        other => other.to_string(),
    };
    let retryable = error.get("retryable").and_then(Value::as_bool).unwrap_or(false);
    let data = error.get("data").map(Json::from).or(output);
    Verdict::Failed { message, retryable, data }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::body::read_json;

    fn parts(text: &str) -> Result<(Verdict, Option<Usage>, Vec<Value>), &'static str> {
        read_json::<ResultBody>(text.as_bytes())
            .and_then(ResultBody::into_parts)
            .map_err(|problem| problem.code().as_str())
    }

    fn outcome(text: &str) -> String {
        match parts(text).unwrap().0 {
            Verdict::Done(output) => format!("done {output}"),
            Verdict::Failed { message, retryable, data } => {
                format!("failed {message:?} {retryable} {}", data.unwrap_or_else(Json::null))
            }
        }
    }

    #[test]
    fn an_output_is_done_unless_the_worker_says_otherwise() {
        let cases = [
            (r#"{"output":{"a": 1}}"#, r#"done {"a": 1}"#),
            (r#"{"output":null}"#, "done null"),
            (r#"{"output":1,"error":null,"new":true}"#, "done 1"),
            (r#"{"output":1,"ok":true,"error":"a warning"}"#, "done 1"),
            (r#"{"ok":false}"#, r#"failed "the worker says that it failed" false null"#),
            (r#"{"output":7,"error":"no disk"}"#, r#"failed "no disk" false 7"#),
            (
                r#"{"ok":false,"error":{"message":"busy","retryable":true,"data":[1]}}"#,
                r#"failed "busy" true [1]"#,
            ),
            (r#"{"error":{"code":5}}"#, r#"failed "{\"code\":5}" false null"#),
            (r#"{"skip":"nothing to do"}"#, "done null"),
        ];
        for (text, expected) in cases {
            assert_eq!(outcome(text), expected, "{text}");
        }
    }

    #[test]
    fn a_report_that_says_nothing_is_refused() {
        for text in [
            "{}",
            r#"{"result":1}"#,
            r#"{"ok":true}"#,
            r#"{"ok":"yes","output":1}"#,
            "1",
            r#"{"skip":"x","output":1}"#,
            r#"{"skip":"x","error":"y"}"#,
            r#"{"skip":true}"#,
        ] {
            assert_eq!(parts(text).unwrap_err(), "invalid_body", "{text}");
        }
    }

    #[test]
    fn of_the_usage_what_can_be_understood_is_kept() {
        let usage = |text: &str| parts(&format!(r#"{{"output":1,"usage":{text}}}"#)).unwrap().1;
        let full = usage(
            r#"{"input":10,"output_tokens":"5","cached":2.0,"reasoning":-1,"cost":0.0125,"x":1}"#,
        );
        let expected = Usage {
            input_tokens: Some(10),
            output_tokens: Some(5),
            cached_tokens: Some(2),
            reasoning_tokens: None,
            cost: Some("0.0125".to_owned()),
        };
        assert_eq!(full, Some(expected));
        assert_eq!(usage(r#"{"cost":"$1.50"}"#).unwrap().cost.as_deref(), Some("1.5"));
        assert_eq!(usage(r#"{"cost":1e-7}"#).unwrap().cost.as_deref(), Some("0.0000001"));
        for nothing in ["null", "[]", "7", r#"{"input":"many","cost":-1}"#, "{}"] {
            assert_eq!(usage(nothing), None, "{nothing}");
        }
    }
}
