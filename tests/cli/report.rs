//! The main job: a report on a directory of code, whatever is in it.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    path::Path,
};

use crate::support::{Done, Shell, repository};

fn report(shell: &Shell, path: &Path) -> Done {
    command(shell, path).output().unwrap().into()
}

fn command(shell: &Shell, path: &Path) -> std::process::Command {
    let file = repository("blueprints/repo-report.lua");
    shell.command(&["run", file.to_str().unwrap(), &format!("path={}", path.display())])
}

/// Takes Python away from a command, and leaves what else it needs.
fn without_python(shell: &Shell, mut command: std::process::Command) -> Done {
    let bin = shell.path("bin");
    std::fs::create_dir_all(&bin).unwrap();
    for tool in ["sh", "git"] {
        let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|dir| dir.join(tool))
            .find(|file| file.is_file())
            .unwrap();
        symlink(found, bin.join(tool)).unwrap();
    }
    command.env("PATH", &bin).output().unwrap().into()
}

#[track_caller]
fn shows(done: &Done, parts: &[&str]) {
    for part in parts {
        assert!(done.stdout.contains(part), "{part:?} is not in:\n{}", done.stdout);
    }
}

/// A directory with everything that has surprised a report.
fn odd_files(shell: &Shell) {
    for (name, data) in [
        (&b"code/src/main.rs"[..], &b"// TODO: one\nfn main() {}\n"[..]),
        (b"code/two words.py", b"x = 1  # FIXME quoted \"text\"\nlast"),
        (b"code/new\nline.txt", b"\n\n"),
        (b"code/quote's\".js", b"let a\n"),
        (b"code/-dash.lua", b"--TODO\n"),
        (b"code/.hidden.sh", b"true\n"),
        (b"code/b\xe9\xff.c", b"/* TODO caf\xe9 */"),
        (b"code/data.bin", b"\x00\x01\n"),
        (b"code/pi|pe`tick.md", b"# hi\n"),
    ] {
        shell.write(OsStr::from_bytes(name), data);
    }
    symlink("nowhere", shell.path("code/broken")).unwrap();
    symlink("src", shell.path("code/linked")).unwrap();
}

#[test]
fn this_repositorys_blueprints_are_reported_and_the_report_is_an_artifact() {
    let shell = Shell::new();
    let done = report(&shell, &repository("blueprints")).ok();
    let dirs = ["blueprints", "blueprints/cookbook", "blueprints/gallery"];
    let blueprints = dirs.map(|dir| fs::read_dir(repository(dir)));
    let files = blueprints.into_iter().flat_map(|dir| dir.unwrap().map(|it| it.unwrap().path()));
    let lua = files.filter(|file| file.extension() == Some(OsStr::new("lua"))).count();
    let lua = format!("| Lua | {lua} |");
    shows(&done, &["# Report on ", &lua, "| Python | 2 |", "`repo-report.lua`", "## To do"]);
    let runs = shell.run(&["ps", "--json"]).ok().json();
    let run = runs[0]["id"].as_str().unwrap();
    let files = shell.run(&["artifacts", "list", run, "--json"]).ok().json();
    assert_eq!(files[0]["name"], "report.md");
    assert_eq!(files[0]["size"], done.stdout.len());
}

#[test]
fn an_empty_directory_has_an_empty_report() {
    let shell = Shell::new();
    std::fs::create_dir(shell.path("empty")).unwrap();
    let done = report(&shell, &shell.path("empty")).ok();
    shows(
        &done,
        &["0 text files with 0 lines, 0 binary", "There are no text files.", "no git history"],
    );
}

#[test]
fn a_directory_that_is_not_there_fails_the_run_with_a_reason() {
    let shell = Shell::new();
    report(&shell, Path::new("/nonexistent/dir")).exits(1).says(&["/nonexistent/dir"]);
}

#[test]
fn five_thousand_files_are_counted() {
    let shell = Shell::new();
    for at in 0..5_000 {
        let (kind, lines) = [("rs", 3), ("py", 2), ("md", 1), ("c", 4), ("go", 5)][at % 5];
        shell.write(format!("code/d{}/f{at}.{kind}", at % 70), "x\n".repeat(lines));
    }
    let done = report(&shell, &shell.path("code")).ok();
    shows(
        &done,
        &[
            "5000 text files with 15000 lines, 0 binary or huge files, 0 symbolic links.",
            "| Go | 1000 | 5000 |\n| C | 1000 | 4000 |\n| Rust | 1000 | 3000 |",
        ],
    );
}

#[test]
fn odd_names_binary_files_and_broken_links_are_told_apart() {
    let shell = Shell::new();
    odd_files(&shell);
    let done = report(&shell, &shell.path("code")).ok();
    shows(
        &done,
        &[
            "8 text files with ",
            "1 binary or huge files, 2 symbolic links.",
            "`two words.py`",
            "`new%0Aline.txt`",
            "`quote's\".js`",
            "`-dash.lua`",
            "`.hidden.sh`",
            "`pi|pe'tick.md`",
            "`src/main.rs`:1: `TODO: one`",
        ],
    );
}

#[test]
fn without_python_the_built_in_worker_says_so_and_reports_the_same() {
    let shell = Shell::new();
    odd_files(&shell);
    let with = report(&shell, &shell.path("code")).ok();
    let without = without_python(&shell, command(&shell, &shell.path("code"))).ok();
    assert!(!with.stderr.contains("python3 not found"), "{}", with.stderr);
    let without = without.says(&["python3 not found: counting with the built-in worker"]);
    assert_eq!(without.stdout, with.stdout);
}
