//! Checks a blueprint with the library of moonswarm.

use moonswarm::{
    blueprint::Bundle,
    host,
    lua::{Limits, Program},
};

const SOURCE: &str = r#"
local swarm = require("swarm")
return swarm.blueprint {
  name = "outside",
  agents = { e = { operator = "echo" } },
  flow = function(ctx) return ctx:run("e", 1) end,
}
"#;

fn main() {
    let bundle = Bundle::from_source("outside.lua", SOURCE).expect("a small source is a bundle");
    let compiled = Program::compile(bundle, &host::builtin_operators(), &Limits::default());
    let (program, _) = compiled.expect("the source is right");
    println!("{}", program.blueprint().name());
}
