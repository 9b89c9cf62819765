"""The official Python SDK against a daemon, with each revision that it speaks, over both transports. Run by
tests/mcp/clients.rs: MCP_URL and MCP_TOKEN say where a daemon is, MCP_PROGRAM and MCP_DATA what is started for stdio."""

import asyncio
import os

import httpx2
import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

URL, TOKEN = os.environ["MCP_URL"], os.environ["MCP_TOKEN"]
PROGRAM, DATA = os.environ["MCP_PROGRAM"], os.environ["MCP_DATA"]
FLOW = 'return require("swarm").blueprint { name = "two", flow = function() return { sum = 1 + 1 } end }'


def http():
    client = httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60, trust_env=False)
    return streamable_http_client(URL, http_client=client)


def stdio():
    env = {"MOONSWARM_TOKEN": TOKEN}
    return StdioServerParameters(command=PROGRAM, args=["mcp", "--data", DATA], env=env)


async def person(_context, question):
    assert question.message == "Who are you?", question
    return types.ElicitResult(action="accept", content={"name": "moon"})


async def value(client, tool, arguments=None):
    """What a tool returns, which fits its output schema: the client checks that."""
    result = await client.call_tool(tool, arguments or {})
    assert not result.is_error, result
    assert result.structured_content is not None and result.content[0].type == "text", result
    return result.structured_content


async def lists(client):
    assert client.server_info.name == "moonswarm"
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert len(tools) > 25 and {"start_run", "next_task", "greet", "slow"} <= tools.keys()
    assert tools["list_runs"].annotations.read_only_hint
    assert tools["start_run"].output_schema["type"] == "object"
    assert tools["greet"].description == "Greets whom it asks."


async def calls(client):
    checked = await value(client, "check_blueprint", {"source": FLOW})
    assert checked["ok"] is True, checked
    started = await value(client, "start_run", {"source": FLOW})
    ended = await value(client, "get_run", {"run": started["id"], "wait_seconds": 45})
    assert (ended["status"], ended["output"]) == ("completed", {"sum": 2}), ended
    steps = await value(client, "list_steps", {"run": started["id"]})
    assert isinstance(steps["items"], list)
    docs = await value(client, "search_docs", {"query": "retry"})
    assert docs["sections"]
    run = await client.read_resource(f"moonswarm://runs/{started['id']}")
    assert '"completed"' in run.contents[0].text


async def refuses(client):
    wrong = await client.call_tool("get_run", {"run": "run_aaaaaaaaaaaaaaaaaaaaaaaaaa"})
    assert wrong.is_error and "Next:" in wrong.content[0].text, wrong
    try:
        await client.call_tool("no_such_tool", {})
        raise AssertionError("an unknown tool is an error")
    except MCPError as error:
        assert error.code == -32602, error


async def reads(client):
    resources = (await client.list_resources()).resources
    page = next(it for it in resources if str(it.uri) == "moonswarm://docs/mcp.md")
    contents = (await client.read_resource(str(page.uri))).contents[0]
    assert contents.mime_type == "text/markdown" and contents.text.startswith("# "), contents
    templates = (await client.list_resource_templates()).resource_templates
    assert any(it.uri_template == "moonswarm://runs/{run}" for it in templates)
    prompts = (await client.list_prompts()).prompts
    assert any(it.name == "debug-run" for it in prompts)
    prompt = await client.get_prompt("debug-run", {"run": "run_x"})
    assert "run_x" in prompt.messages[0].content.text


async def asks(client):
    said = await value(client, "greet")
    assert said["output"] == "hello, moon", said


async def tells(client):
    """Progress comes during the call: the run goes on only once the client has seen it."""
    told = []

    async def progress(_done, _total, message):
        told.append(message)
        run = (await value(client, "list_runs", {"blueprint": "slow"}))["items"][0]["id"]
        await value(client, "control_run", {"run": run, "action": "signal", "signal": "go"})

    result = await client.call_tool("slow", {}, progress_callback=progress)
    assert result.structured_content["output"] == "done" and told == ["halfway"], (result, told)


async def cancels(client):
    seen = asyncio.Event()

    async def progress(_done, _total, _message):
        seen.set()

    call = asyncio.create_task(client.call_tool("slow", {}, progress_callback=progress))
    await asyncio.wait_for(seen.wait(), 30)
    run = (await value(client, "list_runs", {"blueprint": "slow"}))["items"][0]["id"]
    call.cancel()
    ended = await value(client, "get_run", {"run": run, "wait_seconds": 30})
    assert ended["status"] == "canceled", ended


async def walk(name, server, mode):
    async with Client(server, mode=mode, elicitation_callback=person, read_timeout_seconds=60) as client:
        for check in (lists, calls, refuses, reads, asks, tells, cancels):
            print(name, mode, client.protocol_version, check.__name__, flush=True)
            await asyncio.wait_for(check(client), 60)


async def main():
    for mode in ("auto", "legacy"):
        await walk("http", http(), mode)
        await walk("stdio", stdio(), mode)


asyncio.run(main())
