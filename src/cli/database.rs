//! The PostgreSQL database that a flag, a variable or the configuration names.

use anyhow::Result;

use crate::{
    cli::exit::{Exit, Stop},
    environment::Text,
    store::{DatabaseAddress, Durability, PostgresOptions},
};

/// The variable that names the database.
pub const VARIABLE: &str = "MOONSWARM_STORE";

/// Returns the reference to an address that came as a flag or in its variable. One in the variable may
/// have a password.
pub fn named(address: &str) -> Text {
    let in_variable = std::env::var(VARIABLE).is_ok_and(|value| value == address);
    let on_command_line = std::env::args().any(|arg| arg.contains(address));
    match (in_variable, on_command_line) {
        (true, false) if address != "sqlite" => {
            Text::Env { name: VARIABLE.to_owned(), prefix: String::new() }
        }
        _ => Text::Plain(address.to_owned()),
    }
}

/// Reads the address of a configuration and returns the options of its database.
///
/// # Errors
/// Fails when the reference cannot be read, or the address is none, or has a password in a place that
/// others can read.
pub fn options(text: &Text, durability: Durability) -> Result<PostgresOptions> {
    let secret = text.resolve()?;
    let address = DatabaseAddress::parse(secret.expose())?;
    if matches!(text, Text::Plain(_)) && address.has_password() {
        let message = "the password of the database is where others can read it";
        let next = format!(
            "put the address into the variable {VARIABLE}, or name a variable or a file in the \
             configuration: store = {{ file = \"/run/secrets/database\" }}"
        );
        return Err(Stop::new(Exit::Usage, message).next(next).into());
    }
    Ok(PostgresOptions { durability, ..PostgresOptions::new(address) })
}
