//! Bubblewrap around the helper, where the kernel gives this program no namespaces.
//!
//! The `bwrap` of these tests is a script that notes how it was called. It does with `unshare` what
//! it is asked for, or nothing of it.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use moonswarm::{
    clock::Clock,
    environment::{Config, Environments, Helper, Process},
    protocol::{
        Content, EnvError, Environment as _, EnvironmentSpec, IsolationBoundary, NetworkAction,
        NetworkPolicy, OperatorInput, ResourceLimits, TriggerType,
    },
};
use serde_json::json;

use super::enforced;

/// Says that the kernel gives nothing, and is the program itself otherwise.
const NO_NAMESPACES: &str = r#"#!/bin/sh
if [ "$2" = --probe ]; then
  echo '{"network":"the kernel gives no network","disk":"the kernel gives no mounts"}'
  exit 0
fi
exec PROGRAM "$@"
"#;

/// Does what it is asked for.
const HONEST: &str = r#"#!/bin/sh
echo "$*" >> LOG
size= room= net=
while [ "$1" != -- ]; do
  case "$1" in
    --unshare-net) net=--net; shift ;;
    --size) size=$2; shift 2 ;;
    --tmpfs) room=$2; shift 2 ;;
    --dev-bind) shift 3 ;;
    --perms) shift 2 ;;
    --die-with-parent) shift ;;
    *) echo "bwrap: Unknown option $1" >&2; exit 1 ;;
  esac
done
shift
export BWRAP_ROOM="$room" BWRAP_SIZE="$size"
exec unshare $net --mount sh -c '
  [ -z "$BWRAP_ROOM" ] || mount -t tmpfs -o size="$BWRAP_SIZE",mode=0700 tmpfs "$BWRAP_ROOM" || exit 1
  exec "$@"' sh "$@"
"#;

/// Does nothing of it, and says that all went well.
const IDLE: &str = r#"#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"#;

/// Fails as a `bwrap` does that may make no namespaces either.
const REFUSED: &str =
    "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n";

struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn script(&self, name: &str, text: &str) -> PathBuf {
        let file = self.dir.path().join(name);
        let log = self.dir.path().join("calls");
        let text = text
            .replace("PROGRAM", env!("CARGO_BIN_EXE_moonswarm"))
            .replace("LOG", log.to_str().unwrap());
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    /// The environments of a machine without namespaces, with this `bwrap`.
    fn environments(&self, bwrap: Option<&str>) -> Arc<Environments> {
        let bwrap = bwrap.map(|text| self.script("bwrap", text));
        let helper = Helper::at(self.script("helper", NO_NAMESPACES)).with_bubblewrap(bwrap);
        let data = self.dir.path().join("data");
        let environments = Environments::new(Config::default(), &data, Clock::system());
        Arc::new(environments.with_helper(helper))
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default()
    }
}

fn closed() -> EnvironmentSpec {
    EnvironmentSpec::new()
        .with_isolation(vec![IsolationBoundary::Process])
        .with_network(NetworkPolicy::new(NetworkAction::Deny, Vec::new()))
}

fn sized() -> EnvironmentSpec {
    let disk: ResourceLimits = serde_json::from_value(json!({ "disk": "1Mi" })).unwrap();
    closed().with_resources(disk)
}

async fn run(
    environments: Arc<Environments>,
    script: &str,
    spec: &EnvironmentSpec,
) -> Result<String, EnvError> {
    let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    let input = OperatorInput::new(Content::text("hello"), TriggerType::Task);
    let output = Process::new(environments, argv).run(input, spec).await?;
    Ok(output.message.as_text().unwrap().to_owned())
}

/// Whether the script can do here what a `bwrap` does.
fn can_unshare() -> bool {
    let tried = Command::new("unshare").args(["--net", "--mount", "true"]).output();
    let can = tried.is_ok_and(|tried| tried.status.success());
    if !can {
        println!("cannot enforce: namespaces (unshare is not permitted)");
    }
    can && enforced("paths")
}

fn network(of: &Path) -> String {
    fs::read_link(of).unwrap().to_string_lossy().into_owned()
}

#[tokio::test]
async fn a_child_is_closed_in_by_bubblewrap_where_the_kernel_gives_nothing() {
    if !can_unshare() {
        crate::support::note_skipped(
            "a_child_is_closed_in_by_bubblewrap_where_the_kernel_gives_nothing",
            "this user may make no namespaces",
        );
        return;
    }
    let machine = Machine::new();
    let environments = machine.environments(Some(HONEST));
    let said: Vec<_> =
        environments.machine().enforces().into_iter().map(|it| (it.what, it.how)).collect();
    for what in ["network", "disk"] {
        let (_, how) = said.iter().find(|(name, _)| *name == what).unwrap();
        assert!(how.as_ref().unwrap().ends_with("that bubblewrap makes"), "{how:?}");
    }
    let script = "cat; readlink /proc/self/ns/net; ls /root >/dev/null 2>&1 && echo OPEN
        dd if=/dev/zero of=big bs=1024 count=2048 2>/dev/null; wc -c < big; grep CapEff /proc/self/status";
    let text = run(environments, script, &sized()).await.unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("hellonet:["), "{text}");
    assert_ne!(lines[0], format!("hello{}", network(Path::new("/proc/self/ns/net"))));
    let written: u64 = lines[1].trim().parse().unwrap();
    assert!(written <= 1 << 20, "{text}");
    assert_eq!(lines[2], "CapEff:\t0000000000000000", "Landlock and the rest are the helper's");
    let calls = machine.calls();
    let begins =
        "--die-with-parent --dev-bind / / --unshare-net --perms 0700 --size 1048576 --tmpfs ";
    let asked = |line: &str| line.starts_with(begins) && line.contains("/room -- ");
    assert!(calls.lines().any(asked), "{calls}");
}

#[tokio::test]
async fn who_asks_for_no_namespace_gets_no_bubblewrap() {
    if !can_unshare() {
        crate::support::note_skipped(
            "who_asks_for_no_namespace_gets_no_bubblewrap",
            "this user may make no namespaces",
        );
        return;
    }
    let machine = Machine::new();
    let environments = machine.environments(Some(HONEST));
    environments.machine();
    let probes = machine.calls().lines().count();
    let spec = EnvironmentSpec::new().with_isolation(vec![IsolationBoundary::Process]);
    assert_eq!(run(environments, "cat", &spec).await.unwrap(), "hello");
    assert_eq!(machine.calls().lines().count(), probes);
}

#[tokio::test]
async fn a_bubblewrap_that_closes_nothing_is_found_out() {
    let machine = Machine::new();
    let environments = machine.environments(Some(IDLE));
    let refused = run(environments, "cat", &sized()).await.unwrap_err().to_string();
    assert!(refused.contains("the kernel gives no network"), "{refused}");
    assert!(refused.contains("the network is the same as outside"), "{refused}");
}

#[tokio::test]
async fn a_bubblewrap_that_stops_doing_it_begins_no_child() {
    if !can_unshare() {
        crate::support::note_skipped(
            "a_bubblewrap_that_stops_doing_it_begins_no_child",
            "this user may make no namespaces",
        );
        return;
    }
    let machine = Machine::new();
    let environments = machine.environments(Some(HONEST));
    environments.machine();
    machine.script("bwrap", IDLE);
    let failed = run(Arc::clone(&environments), "cat", &closed()).await.unwrap_err();
    assert!(matches!(&failed, EnvError::ProvisionFailed(_)), "{failed}");
    assert!(failed.to_string().contains("trust the namespaces"), "{failed}");
    machine.script("bwrap", REFUSED);
    let failed = run(environments, "cat", &closed()).await.unwrap_err();
    assert!(failed.to_string().contains("bubblewrap did not begin the child"), "{failed}");
}

#[tokio::test]
async fn without_a_working_bubblewrap_it_is_refused_with_what_would_help() {
    let machine = Machine::new();
    let refused = run(machine.environments(None), "cat", &closed()).await.unwrap_err();
    assert!(matches!(&refused, EnvError::IsolationViolation(_)), "{refused}");
    let refused = refused.to_string();
    assert!(refused.contains("the kernel gives no network"), "{refused}");
    assert!(refused.contains("install bubblewrap"), "{refused}");
    let refused = run(machine.environments(Some(REFUSED)), "cat", &closed()).await.unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("No permissions to create new namespace"), "{refused}");
}
