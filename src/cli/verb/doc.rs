//! `doc`: a page of the library's manual.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::{
    blueprint::{did_you_mean, library::FUNCTIONS, manual},
    cli::{
        context::Context,
        exit::{Exit, Stop},
        render::fitted,
    },
};

/// Show the manual of a function of the Lua library
#[derive(Debug, Args)]
pub struct Doc {
    /// The function, such as ctx:run or swarm.fail; without it, all are listed
    name: Option<String>,
}

impl Doc {
    /// Runs the command.
    ///
    /// # Errors
    /// A function that does not exist, a closed stdout.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        let Some(wanted) = &self.name else { return list(cx) };
        let plain = |text: &str| text.replace(':', ".").to_ascii_lowercase();
        let wanted = written_out(plain(wanted.trim_end_matches("()")));
        let found: Vec<_> = FUNCTIONS
            .iter()
            .filter(|it| plain(&manual::name_of(it)) == wanted || it.name == wanted)
            .collect();
        if found.is_empty() {
            let names: Vec<_> = FUNCTIONS.iter().map(|it| plain(&manual::name_of(it))).collect();
            let near = did_you_mean(&wanted, names.iter().map(String::as_str));
            let near = near.map(|name| format!("moonswarm doc {name}"));
            let stop = Stop::new(Exit::NotFound, format!("the library has no {wanted}"));
            return Err(stop.next(near.unwrap_or_else(|| "moonswarm doc".to_owned())).into());
        }
        if cx.terminal.json {
            let all = found.iter().map(|it| {
                json!({ "name": manual::name_of(it), "about": it.about, "page": manual::page(it) })
            });
            cx.terminal.print_json(&all.collect::<Vec<_>>())?;
            return Ok(Exit::Ok);
        }
        for function in found {
            let page = manual::page(function).unwrap_or_default();
            // In a terminal there is no other page to go to.
            let page = page.replace("\n[All functions](README.md)\n", "");
            cx.terminal.print(&page)?;
        }
        Ok(Exit::Ok)
    }
}

/// A name without the short forms that pages use: `local t = require("swarm.test")`.
fn written_out(name: String) -> String {
    let short = [("t.", "swarm.test."), ("s.", "swarm.schema."), ("n.", "swarm.nodes.")];
    let long = short.iter().find_map(|(short, long)| Some((long, name.strip_prefix(short)?)));
    long.map_or_else(|| name.clone(), |(long, rest)| format!("{long}{rest}"))
}

fn list(cx: &Context) -> Result<Exit> {
    if cx.terminal.json {
        let all =
            FUNCTIONS.iter().map(|it| json!({"name": manual::name_of(it), "about": it.about}));
        cx.terminal.print_json(&all.collect::<Vec<_>>())?;
        return Ok(Exit::Ok);
    }
    let rows = FUNCTIONS.iter().map(|it| vec![manual::name_of(it), it.about.to_owned()]);
    cx.terminal.print(&fitted(cx.terminal.width(), &["function", "what it does"], rows))?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_forms_of_pages_are_names_too() {
        for (short, long) in
            [("t.failure", "swarm.test.failure"), ("s.object", "swarm.schema.object")]
        {
            assert_eq!(written_out(short.to_owned()), long);
            let known = |name: &str| FUNCTIONS.iter().any(|it| manual::name_of(it) == name);
            assert!(known(long), "{long}");
        }
        assert_eq!(written_out("ctx.run".to_owned()), "ctx.run");
    }
}
