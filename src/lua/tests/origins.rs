//! The lines and branches that steps come from.

use super::*;

/// The origins of the steps that a flow asks for first: `key line (branch)`.
fn origins(body: &str) -> Vec<String> {
    origins_of(&flow_source(body))
}

fn origins_of(source: &Arc<Source>) -> Vec<String> {
    let mut bench = Bench::new();
    let mut flow = bench.flow(source);
    let commands = flow.advance(Input::Start, 0).commands;
    let shown = commands.iter().filter_map(|command| match command {
        Command::Schedule(request) => {
            let Origin { line, node, branch } = flow.origin(&request.key);
            let line = line.or(node);
            let branch = branch.map(|name| format!(" ({name})")).unwrap_or_default();
            Some(format!("{} {}{branch}", request.key, line.unwrap_or_default()))
        }
        Command::CancelScope(_) | Command::Note { .. } => None,
    });
    shown.collect()
}

#[test]
fn a_step_comes_from_the_authors_line_and_not_from_the_library() {
    assert_eq!(origins("\n\nctx:run('e', {})"), ["0 main.lua:3"]);
    let deep = "local function ask(n)\nreturn ctx:try('e', n)\nend\nlocal x = ask(1)\nreturn x";
    assert_eq!(origins(deep), ["0 main.lua:2"]);
    assert_eq!(origins("ctx:sleep(5)"), ["0 main.lua:1"]);
}

#[test]
fn a_step_of_a_branch_names_it_and_those_around_it() {
    let found = origins(
        "ctx:map({ 'a', 'b' }, function(x)\nctx:race({\nfunction() ctx:run('e', x) end,\nfunction() ctx:wait('go') end })\nend)",
    );
    assert_eq!(
        found,
        [
            "0.0/0.0/0 main.lua:3 (map, item 1 › race, branch 1)",
            "0.0/0.1/0 main.lua:4 (map, item 1 › race, branch 2)",
            "0.1/0.0/0 main.lua:3 (map, item 2 › race, branch 1)",
            "0.1/0.1/0 main.lua:4 (map, item 2 › race, branch 2)",
        ]
    );
    let found = origins(
        "ctx:timeout(9, function()\nctx:all({ function()\nctx:run('e', 1) end })\nend)\nlocal f = ctx:spawn(print)",
    );
    assert_eq!(
        found,
        ["0.1/0 main.lua:1", "0.0/0.0/0 main.lua:3 (timeout › all, branch 1)"],
        "the timer of a timeout is where the timeout is"
    );
    assert_eq!(
        origins("ctx:spawn(function()\nctx:run('e', 1)\nend)\nctx:sleep(1)"),
        ["1 main.lua:4", "0.0/0 main.lua:2 (spawned function)"]
    );
}

#[test]
fn a_step_of_a_flow_that_is_a_table_comes_from_its_node() {
    let source = "local swarm = require('swarm')\nlocal n = swarm.nodes\n\
                  return swarm.blueprint { name = 'b', agents = { e = { operator = 'echo' } }, flow = n.seq {\n\
                  n.parallel { branches = { ['a/b'] = n.step { agent = 'e' }, c = n.branch { if_ = 'true',\n\
                  then_ = n.sleep { for_ = '1s' } } } },\n\
                  n.map { over = { 1 }, body = n.step { agent = 'e' } } } }";
    assert_eq!(
        origins_of(&bundle(&[("main.lua", source)])),
        [
            "0.0/0 /flow/children/0/branches/a~1b (all, branch 1)",
            "0.1/0 /flow/children/0/branches/c/then (all, branch 2)",
        ]
    );
}

#[test]
fn what_a_flow_does_not_wait_for_has_no_origin() {
    let mut bench = Bench::new();
    let flow = bench.flow(&flow_source("ctx:run('e', 1)"));
    let key = StepKey::new(crate::journal::ScopePath::main(), 0);
    assert_eq!(flow.origin(&key), Origin::default());
}
