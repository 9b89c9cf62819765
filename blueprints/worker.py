"""A moonswarm worker: fetches its prompt over HTTP, counts lines, reports the result."""
import json, os, re, sys, urllib.parse, urllib.request

LARGEST = 16 * 1024 * 1024
MARK = re.compile(rb"[#/*\-;!%][ \t]*((?:TODO|FIXME)(?![A-Za-z0-9_]).*)")


def call(method, path, body=None):
    request = urllib.request.Request(
        os.environ["MOONSWARM_URL"] + path,
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={
            "Authorization": "Bearer " + os.environ["MOONSWARM_HANDLE"],
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def serve(work):
    task = call("GET", "/v1/worker/prompt")
    try:
        report = {"output": work(task["input"])}
    except OSError as error:
        report = {"ok": False, "error": {"message": str(error)}}
    call("POST", "/v1/worker/result", report)


def count(task):
    root, files, todos, skipped = os.fsencode(task["root"]), [], [], 0
    for name in task["files"]:  # names are text; %XX stands for a byte that is none
        try:
            with open(os.path.join(root, urllib.parse.unquote_to_bytes(name)), "rb") as file:
                data = file.read(LARGEST + 1)
        except OSError:
            skipped += 1
            continue
        if b"\0" in data[:8000] or len(data) > LARGEST:
            files.append([name, -1])  # binary, or too large to be code
            continue
        lines = data.split(b"\n")
        files.append([name, len(lines) - (lines[-1] == b"")])
        for number, line in enumerate(lines, 1):
            mark = MARK.search(line)
            if mark:
                text = mark[1].decode("utf-8", "replace").strip(" \t\r")[:120]
                todos.append([name, number, text])
    return {"files": files, "todos": todos[:200], "todos_found": len(todos), "skipped": skipped}


if __name__ == "__main__":
    serve(count)
    sys.exit(0)
