"""Lists the files of a directory, or its recent churn: what must be known before counting."""
import os, re, stat, subprocess, sys

sys.dont_write_bytecode = True  # the bundle is not ours to write to
from worker import serve

OURS = {b".git", b".moonswarm"}


def text(path):
    """A path as text: %XX for bytes that are not UTF-8, control characters and %."""
    path = path.decode("utf-8", "surrogateescape")
    return re.sub(
        "[\x00-\x1f\x7f%\udc80-\udcff]", lambda m: "%%%02X" % (ord(m[0]) & 0xFF), path
    )


def git(root, *arguments):
    try:
        ran = subprocess.run(["git", *arguments], cwd=root, capture_output=True)
    except FileNotFoundError:
        return None
    return ran.stdout.split(b"\0") if ran.returncode == 0 else None


def walk(root):
    for directory, directories, names in os.walk(root):
        directories[:] = [name for name in directories if name not in OURS]
        links = [name for name in directories if os.path.islink(os.path.join(directory, name))]
        for name in names + links:
            yield os.path.relpath(os.path.join(directory, name), root)


def survey(task):
    root = os.fsencode(task["root"])
    if not os.path.isdir(root):
        raise NotADirectoryError("there is no such directory: " + task["root"])
    return churn(root) if task["mode"] == "churn" else listing(root)


def listing(root):
    names = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    paths = set(filter(None, names or [])) or set(walk(root))
    files, links = [], 0
    for path in sorted(paths):
        if not OURS.isdisjoint(path.split(b"/")):
            continue
        try:
            mode = os.lstat(os.path.join(root, path)).st_mode
        except OSError:
            continue
        links += stat.S_ISLNK(mode)
        if stat.S_ISREG(mode):
            files.append(text(path))
    return {"files": files, "links": links, "git": bool(names and any(names))}


def churn(root):
    log = git(root, "log", "--since=90.days", "--numstat", "-z", "--no-renames", "--relative", "--format=")
    files = {}
    for entry in log or []:
        fields = entry.lstrip(b"\n").split(b"\t", 2)
        if len(fields) == 3:
            row = files.setdefault(text(fields[2]), [0, 0, 0])
            added, deleted = (int(n) if n.isdigit() else 0 for n in fields[:2])
            row[0], row[1], row[2] = row[0] + 1, row[1] + added, row[2] + deleted
    top = sorted(files.items(), key=lambda f: (-f[1][1] - f[1][2], f[0].encode()))[:15]
    return {"git": log is not None, "files": [[name, *row] for name, row in top]}


if __name__ == "__main__":
    serve(survey)
