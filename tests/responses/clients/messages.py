"""Anthropic's official Python client against a daemon: what it sends is understood, and every answer has
the types that it declares. Run by tests/responses/clients.rs; BASE_URL and API_KEY say where."""

import os

import anthropic
from anthropic import Anthropic

client = Anthropic(
    base_url=os.environ["BASE_URL"].removesuffix("/v1"),
    api_key=os.environ["API_KEY"],
    max_retries=0,
    timeout=60,
    _strict_response_validation=True,
)
AGENT, FLOW = "desk/helper", "mirror"
WEATHER = {
    "name": "weather",
    "description": "The weather in a town.",
    "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
}


def user(content):
    return {"role": "user", "content": content}


def creates():
    message = client.messages.create(model=AGENT, max_tokens=99, system="Be brief.", messages=[user("hello")])
    assert message.content[-1].text == "Hello to you.", message
    assert message.usage.input_tokens == 10 and message.usage.output_tokens == 4, message.usage
    assert message.stop_reason == "end_turn" and message.role == "assistant"
    cut = client.messages.create(model=FLOW, max_tokens=99, stop_sequences=["hi"], messages=[user("hi")])
    assert cut.content[0].text == "You said: " and cut.stop_sequence == "hi", cut


def streams():
    with client.messages.stream(model=AGENT, max_tokens=99, messages=[user("hello")]) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "Hello to you." == final.content[-1].text, final
    assert final.usage.output_tokens == 4 and final.stop_reason == "end_turn", final


def calls_tools():
    messages = [user("weather?")]
    first = client.messages.create(
        model=AGENT, max_tokens=99, tools=[WEATHER], tool_choice={"type": "any"}, messages=messages
    )
    calls = [block for block in first.content if block.type == "tool_use"]
    assert [call.input for call in calls] == [{"town": "Lagos"}, {"town": "Faro"}], first
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "sun"} for call in calls]
    messages += [{"role": "assistant", "content": first.content}, user(results)]
    second = client.messages.create(model=AGENT, max_tokens=99, tools=[WEATHER], messages=messages)
    assert second.content[0].text == "Sunny in both.", second


def refuses():
    for model, kind in [("nobody", anthropic.NotFoundError)]:
        try:
            client.messages.create(model=model, max_tokens=9, messages=[user("x")])
        except kind as error:
            assert error.body["error"]["type"] == "not_found_error", error.body
        else:
            raise AssertionError(model)
    try:
        client.with_options(api_key="sk-wrong").messages.create(model=FLOW, max_tokens=9, messages=[user("x")])
    except anthropic.AuthenticationError:
        pass
    else:
        raise AssertionError("a wrong key was taken")


for check in [creates, streams, calls_tools, refuses]:
    check()
    print(check.__name__)
