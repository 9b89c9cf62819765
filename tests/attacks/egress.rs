//! Names that resolve to one address when they are checked, and to another when they are used.

use std::{
    fs,
    net::{TcpListener, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::json;

use crate::support::{Daemon, send};

/// An address of the resolver that nobody else listens at.
const RESOLVER: &str = "127.0.0.77";

/// The answer to a question for addresses of version 4; none for others.
fn answer(question: &[u8], asked: &AtomicUsize) -> Option<Vec<u8>> {
    let end = 12 + question[12..].iter().position(|byte| *byte == 0)? + 5;
    let first = usize::from(question[12]);
    let name = String::from_utf8_lossy(&question[13..13 + first]).into_owned();
    let is_v4 = question[end - 4..end - 2] == [0, 1];
    let public = [203, 0, 114, 7];
    let addresses: Vec<[u8; 4]> = match (is_v4, name.as_str()) {
        (false, _) => Vec::new(),
        // Both at once.
        (true, "both") => vec![public, [127, 0, 0, 1]],
        // A public one for the check, this machine for the connection.
        (true, _) if asked.fetch_add(1, Ordering::SeqCst) == 0 => vec![public],
        (true, _) => vec![[127, 0, 0, 1]],
    };
    let mut text = question[..2].to_vec();
    text.extend([0x81, 0x80, 0, 1, 0, u8::try_from(addresses.len()).unwrap(), 0, 0, 0, 0]);
    text.extend(&question[12..end]);
    for address in addresses {
        // The name as above, an address, no time to live.
        text.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        text.extend(address);
    }
    Some(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_changes_its_address_leads_to_no_private_one() {
    if !rustix::process::geteuid().is_root() {
        crate::support::note_skipped("a name that changes its address", "only root may do this");
        return;
    }
    let Ok(socket) = UdpSocket::bind((RESOLVER, 53)) else { return };
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut question) {
            if let Some(text) = answer(&question[..length], &count) {
                let _ = socket.send_to(&text, from);
            }
        }
    });
    let inside = TcpListener::bind("127.0.0.1:0").unwrap();
    inside.set_nonblocking(true).unwrap();
    let port = inside.local_addr().unwrap().port();
    let dir = tempfile::tempdir().unwrap();
    let resolv = dir.path().join("resolv.conf");
    fs::write(&resolv, format!("nameserver {RESOLVER}\noptions timeout:2 attempts:1\n")).unwrap();
    let operator = |name: &str| {
        format!(
            "[operators.{name}]\nkind = \"http\"\nurl = \"https://{name}.rebind.test:{port}/\"\n"
        )
    };
    let config = dir.path().join("moonswarm.toml");
    fs::write(&config, format!("{}{}", operator("turns"), operator("both"))).unwrap();
    let data = dir.path().join("data");
    let seen = format!("mount --bind {} /etc/resolv.conf && exec \"$0\" \"$@\"", resolv.display());
    let env = [("MOONSWARM_CONFIG", config.to_str().unwrap())];
    let daemon = Daemon::start_through(&["unshare", "-m", "sh", "-c", &seen], &data, &env);
    let source = r#"local swarm = require("swarm")
local function h(operator) return { operator = operator, timeout = "1500ms", retry = { max_attempts = 1 } } end
return swarm.blueprint {
  name = "rebinds",
  agents = { turns = h("turns"), both = h("both") },
  flow = function(ctx)
    local said = {}
    for _, agent in { "turns", "turns", "turns", "both" } do
      local ok, why = pcall(ctx.run, ctx, agent, {})
      table.insert(said, if ok then "reached" else why.message)
    end
    return said
  end,
}"#;
    let body = json!({ "source": source, "input": {}, "wait": "30s" });
    let (status, view) = send(daemon.post("/v1/runs", &body)).await;
    assert_eq!(status, 201, "{view}");
    let said: Vec<_> =
        view["output"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert!(asked.load(Ordering::SeqCst) >= 2, "each connection asks anew: {said:?}");
    assert!(!said[0].contains("not public"), "the first address was good: {said:?}");
    for why in &said[1..] {
        assert!(why.contains("127.0.0.1 is not public"), "{said:?}");
    }
    assert!(inside.accept().is_err(), "nobody came to this machine's own port");
}
