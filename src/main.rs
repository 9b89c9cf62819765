//! The `moonswarm` program: everything is in the library's `cli` room.

use std::process::ExitCode;

fn main() -> ExitCode {
    moonswarm::cli::main()
}
