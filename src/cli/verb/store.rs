//! `store`: moves all that is stored from one kind of store to the other.

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use crate::{
    cli::{
        connect::explain,
        context::Context,
        database,
        exit::{Exit, Stop},
        render::fitted,
    },
    environment::Text,
    host::HostError,
    store::{self, CopyProgress, CopyTo, StoreCopied},
};

/// Copy all runs into a PostgreSQL database, or back
#[derive(Debug, Args)]
pub struct Store {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Copy everything that is stored, while no daemon has it; ids, handles and tokens stay valid
    Copy(Copy),
}

#[derive(Debug, Args)]
struct Copy {
    /// Where the runs go: postgres, from the data directory; sqlite, back into it
    #[arg(long, value_enum)]
    to: To,
    /// The PostgreSQL database, postgres://HOST/NAME
    #[arg(long, value_name = "ADDRESS", env = database::VARIABLE, hide_env_values = true)]
    store: Option<String>,
    /// Only report what would be copied
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum To {
    Postgres,
    Sqlite,
}

impl Store {
    /// The database that the flag or its variable names.
    pub fn store(&self) -> Option<Text> {
        let Action::Copy(copy) = &self.action;
        copy.store.as_deref().map(database::named)
    }

    /// Runs the command.
    ///
    /// # Errors
    /// A store that somebody has, a target that is not empty, a database that cannot be reached.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        let Action::Copy(copy) = &self.action;
        if cx.target.server.is_some() {
            let message = "a store is copied on the machine of its data directory";
            return Err(Stop::usage(message).next("drop --server, name it with --data DIR").into());
        }
        let Some(address) = &cx.config.store else {
            let next = format!(
                "put postgres://HOST/NAME into the variable {}, or name it with --store",
                database::VARIABLE
            );
            return Err(Stop::usage("no database is named").next(next).into());
        };
        copy.execute(cx, address)
    }
}

impl Copy {
    fn execute(&self, cx: &Context, address: &Text) -> Result<Exit> {
        let options = database::options(address, cx.config.durability)?;
        let (to, data) = (self.to, &cx.config.data);
        let side = match to {
            To::Postgres => CopyTo::Postgres,
            To::Sqlite => CopyTo::Sqlite,
        };
        let mut said = None;
        let copied = store::copy(data, &options, side, self.dry_run, &mut |at| {
            let tenth = (at.work, at.part, (10 * at.done).checked_div(at.of).unwrap_or(10));
            if said.replace(tenth) != Some(tenth) {
                cx.terminal.say(&told(&at));
            }
        });
        let copied = copied.map_err(|error| explain(data, HostError::Store(error)))?;
        if cx.terminal.json {
            cx.terminal.print_json(&as_json(&copied, self.dry_run))?;
            return Ok(Exit::Ok);
        }
        let rows = copied.tables.iter().filter(|it| it.rows > 0);
        let rows = rows.map(|it| vec![it.name.into(), it.rows.to_string(), it.bytes.to_string()]);
        cx.terminal.print(&fitted(cx.terminal.width(), &["table", "rows", "bytes"], rows))?;
        if self.dry_run {
            cx.terminal.say("nothing was copied");
            return Ok(Exit::Ok);
        }
        cx.terminal.say("everything was copied, and compared with the original");
        let aside = copied.aside.unwrap_or_default();
        match to {
            To::Postgres => {
                cx.terminal.say(&format!(
                    "  the runs go on with `moonswarm serve` over {}",
                    options.address
                ));
                cx.terminal
                    .say(&format!("  the former database is {}", data.join(aside).display()));
            }
            To::Sqlite => {
                cx.terminal.say(&format!(
                    "  the runs go on with `moonswarm serve` without --store, in {}",
                    data.display()
                ));
                cx.terminal.say(&format!("  {aside} refuses to serve until it is emptied"));
            }
        }
        Ok(Exit::Ok)
    }
}

fn told(at: &CopyProgress) -> String {
    let CopyProgress { work, part, done, of } = at;
    match *work {
        "check" => format!("checking {part}: {done} of {of}"),
        "compare" => format!("comparing {part}: {done} of {of} rows"),
        _ => format!("copying {part}: {done} of {of} rows"),
    }
}

fn as_json(copied: &StoreCopied, dry_run: bool) -> serde_json::Value {
    let tables = copied.tables.iter();
    let tables = tables.map(|it| json!({ "name": it.name, "rows": it.rows, "bytes": it.bytes }));
    json!({
        "dry_run": dry_run,
        "tables": tables.collect::<Vec<_>>(),
        "set_aside": copied.aside,
    })
}
