//! Programs: argv templates of the foreign kind as commands here.
//!
//! A foreign template has a closed set of placeholders, `{prompt}` and so on. Here a command is a
//! list of minijinja templates, so its other braces are escaped.

use super::{
    fields::Fields,
    lua::{braces, key, quote, shown, strings},
    report::{ImportError, Report},
};

/// The values of the placeholders.
pub(crate) struct Vars<'a> {
    /// The system prompt, itself a template.
    pub system: &'a str,
    /// The path of the system prompt, if it is a file of the blueprint.
    pub system_file: &'a str,
    pub model: Option<&'a str>,
    pub tools: &'a [String],
}

/// A program as an agent has it.
#[derive(Debug, Default)]
pub(crate) struct Program {
    /// The keys of the agent, as lines of Lua.
    pub lines: Vec<String>,
    /// True if it reads the system prompt from a file.
    pub system_file: bool,
    /// The reader of its output: the arguments after the result.
    pub printed: String,
}

/// Reads a program that is written out in `spec`.
pub(crate) fn of_spec(spec: &Fields<'_>, report: &mut Report) -> Result<Program, ImportError> {
    let mut argv = vec![spec.need_text("program")?.to_owned()];
    argv.extend(spec.texts("args")?);
    let mut command: Vec<_> = argv.iter().map(|it| escaped(it)).collect();
    let mut program = Program::default();
    if spec.truth("use_stdin")?.unwrap_or(true) {
        program.lines.push(env(&[("MSE_STDIN".to_owned(), "{{ input }}".to_owned())]));
        command = piped(command);
    } else {
        command.push("{{ input }}".to_owned());
    }
    streams(spec, report)?;
    program.lines.insert(0, format!("command = {}", strings(&command, 3)));
    left(spec, report);
    Ok(program)
}

/// Reads a program that is a template of the blueprint.
pub(crate) fn of_template(
    template: &Fields<'_>,
    cwd: Option<&str>,
    vars: &Vars<'_>,
    report: &mut Report,
) -> Result<Program, ImportError> {
    template.get("name");
    let mut program = Program::default();
    let mut render = |text: &str, at: &str| -> Result<String, ImportError> {
        let (text, file) = rendered(text, vars, at)?;
        program.system_file |= file;
        Ok(text)
    };
    let mut command = Vec::new();
    for part in template.texts("argv")? {
        command.push(render(&part, &template.at("argv"))?);
    }
    if command.is_empty() {
        return Err(ImportError::new(template.at("argv"), "a program is missing"));
    }
    let mut variables = Vec::new();
    if let Some(map) = template.get("env") {
        let map = map
            .as_object()
            .ok_or_else(|| ImportError::new(template.at("env"), "an object is expected"))?;
        for (name, value) in map {
            let value = value
                .as_str()
                .ok_or_else(|| ImportError::new(template.at("env"), "a string is expected"))?;
            variables.push((name.clone(), render(value, &template.at("env"))?));
        }
    }
    if let Some(text) = template.text("stdin")? {
        variables.push(("MSE_STDIN".to_owned(), render(text, &template.at("stdin"))?));
        command = piped(command);
    }
    program.lines.push(format!("command = {}", strings(&command, 3)));
    if !variables.is_empty() {
        program.lines.push(env(&variables));
    }
    match cwd.map_or_else(|| template.text("cwd"), |cwd| template.text("cwd").map(|_| Some(cwd)))? {
        None | Some("{work_dir}" | ".") => {}
        Some(cwd) => {
            let what = format!(
                "the directory {} is left out: a program works in the run's directory, or in `cwd` below it",
                shown(cwd)
            );
            report.decide(template.at("cwd"), what);
        }
    }
    if let Some(ms) = template.whole("timeout_ms")? {
        program.lines.push(format!("timeout = {}", quote(&duration(ms))));
    }
    let (check, printed) = output(template, report)?;
    program.printed = printed;
    if !check {
        program.lines.push("check = false".to_owned());
    }
    streams(template, report)?;
    left(template, report);
    Ok(program)
}

fn left(fields: &Fields<'_>, report: &mut Report) {
    for key in fields.rest() {
        report.differs(fields.at(key), "left out: an unknown key");
    }
}

/// Reads the rules for stdout: true if the exit code counts, and the arguments of `printed`.
fn output(template: &Fields<'_>, report: &mut Report) -> Result<(bool, String), ImportError> {
    let Some(output) = template.object("output")? else { return Ok((true, String::new())) };
    let format = output.text("format")?;
    let pointer = |key| -> Result<String, ImportError> {
        let Some(text) = output.text(key)? else { return Ok("nil".to_owned()) };
        if text == "exit_code" && key == "ok_from" {
            return Ok("nil".to_owned());
        }
        if !(text.is_empty() || text.starts_with('/')) {
            return Err(ImportError::new(output.at(key), "a JSON pointer is expected"));
        }
        let keys = text.split('/').skip(1).map(|it| it.replace("~1", "/").replace("~0", "~"));
        Ok(strings(&keys.collect::<Vec<_>>(), 0))
    };
    let (result, ok) = (pointer("result_ptr")?, pointer("ok_from")?);
    if output.get("stats").is_some() {
        report.differs(
            output.at("stats"),
            "left out: a program reports its usage with its handle, over HTTP",
        );
    }
    left(&output, report);
    let check = ok == "nil";
    let format = format.map_or_else(|| "nil".to_owned(), quote);
    Ok((check, format!(", {format}, {result}, {ok}")))
}

fn streams(fields: &Fields<'_>, report: &mut Report) -> Result<(), ImportError> {
    if let Some(mode) = fields.text("stream_mode")? {
        let what = format!(
            "{} is left out: what a program prints is read once it has ended; it reports progress with its handle",
            shown(mode)
        );
        report.decide(fields.at("stream_mode"), what);
    }
    Ok(())
}

/// A command whose standard input is the variable `MSE_STDIN`. Here a program gets its input as JSON.
fn piped(command: Vec<String>) -> Vec<String> {
    let shell = ["sh", "-c", "printf %s \"$MSE_STDIN\" | \"$@\"", "sh"].map(str::to_owned);
    shell.into_iter().chain(command).collect()
}

fn env(variables: &[(String, String)]) -> String {
    let entries: Vec<_> =
        variables.iter().map(|(name, value)| format!("{} = {}", key(name), quote(value))).collect();
    format!("env = {}", braces(&entries, 3))
}

/// Stands for a brace that is text, until it is known what follows it. No argument holds it.
const BRACE: char = '\0';

/// Replaces placeholders in one pass; other braces stay. Also whether the file is used.
fn rendered(text: &str, vars: &Vars<'_>, at: &str) -> Result<(String, bool), ImportError> {
    let (mut out, mut rest, mut file) = (String::new(), text, false);
    while let Some(start) = rest.find('{') {
        out.push_str(&rest[..start]);
        let after = &rest[start + 1..];
        let value = match after.find('}').map(|end| &after[..end]) {
            Some("system") => Some(vars.system.to_owned()),
            Some("system_file") => {
                file = true;
                Some(vars.system_file.to_owned())
            }
            Some("prompt") => Some("{{ input }}".to_owned()),
            Some("model") => {
                let missing =
                    || ImportError::new(at, "`{model}` is used, and the agent has no model");
                Some(marked(vars.model.ok_or_else(missing)?))
            }
            Some("tools_csv") => Some(marked(&vars.tools.join(","))),
            Some("work_dir") => Some(".".to_owned()),
            Some("task_id") => Some("{{ run.id }}".to_owned()),
            Some("attempt") => Some("{{ attempt }}".to_owned()),
            Some(_) | None => None,
        };
        match value {
            Some(value) => {
                out.push_str(&value);
                rest = after.split_once('}').map_or("", |(_, rest)| rest);
            }
            None => {
                out.push(BRACE);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    if text.contains(BRACE) || vars.system.contains(BRACE) {
        return Err(ImportError::new(at, "a NUL character is in it"));
    }
    Ok((unmarked(&out), file))
}

fn marked(text: &str) -> String {
    text.replace('{', &BRACE.to_string())
}

/// Writes braces that are text so that no tag begins with them.
fn unmarked(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            (BRACE, Some(&('{' | '%' | '#' | BRACE))) => out.push_str("{{ \"{\" }}"),
            (BRACE, _) => out.push('{'),
            (c, _) => out.push(c),
        }
    }
    out
}

/// Text that is no template, as a template.
pub(crate) fn escaped(text: &str) -> String {
    unmarked(&marked(text))
}

/// A duration as blueprints write it.
pub(crate) fn duration(ms: u64) -> String {
    let mut rest = ms;
    let mut out = String::new();
    for (unit, size) in
        [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)]
    {
        if rest >= size {
            out.push_str(&format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    if out.is_empty() { "0s".to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_become_templates_and_other_braces_stay_text() {
        let tools = ["Read".to_owned(), "{{ x }}".to_owned()];
        let vars =
            Vars { system: "Be {{ kind }}", system_file: "F", model: Some("m{"), tools: &tools };
        for (text, expected) in [
            ("{prompt}", "{{ input }}"),
            ("{\"task\": \"{prompt}\"}", "{\"task\": \"{{ input }}\"}"),
            ("{{prompt}}", "{{ \"{\" }}{{ input }}}"),
            ("{% raw %}{#x#}", "{{ \"{\" }}% raw %}{{ \"{\" }}#x#}"),
            ("{system}|{model}{attempt}", "Be {{ kind }}|m{{ \"{\" }}{{ attempt }}"),
            ("{tools_csv}", "Read,{{ \"{\" }}{ x }}"),
            ("{unknown} {", "{unknown} {"),
        ] {
            assert_eq!(rendered(text, &vars, "a").unwrap().0, expected, "{text}");
        }
        assert!(rendered("{system_file}", &vars, "a").unwrap().1);
        let none = Vars { model: None, ..vars };
        assert!(rendered("{model}", &none, "a").is_err());
    }

    #[test]
    fn a_duration_has_one_form() {
        for (ms, text) in [(0, "0s"), (500, "500ms"), (5_000, "5s"), (5_400_000, "1h30m")] {
            assert_eq!(duration(ms), text);
        }
    }
}
