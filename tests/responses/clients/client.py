"""The official Python client against a daemon: what it sends is understood, and every answer has the
types that it declares. Run by tests/responses/clients.rs; BASE_URL and API_KEY say where."""

import os

import openai
from openai import OpenAI

client = OpenAI(
    base_url=os.environ["BASE_URL"],
    api_key=os.environ["API_KEY"],
    max_retries=0,
    timeout=60,
    _strict_response_validation=True,
)
AGENT, FLOW = "desk/helper", "mirror"
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a town.",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    "strict": False,
}


def creates():
    response = client.responses.create(model=AGENT, input="hello", instructions="Be brief.", metadata={"a": "b"})
    assert response.output_text == "Hello to you.", response
    assert response.usage and response.usage.total_tokens == 14, response.usage
    assert response.metadata == {"a": "b"} and response.status == "completed"
    assert client.responses.retrieve(response.id) == response
    assert client.responses.create(model=FLOW, input="hi").output_text == "You said: hi"


def streams():
    events = list(client.responses.create(model=AGENT, input="hello", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "Hello to you." == events[-1].response.output_text
    rest = list(client.responses.retrieve(events[-1].response.id, stream=True, starting_after=3))
    assert rest == events[4:], rest
    with client.responses.stream(model=AGENT, input="hello") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "Hello to you."


def calls_tools():
    first = client.responses.create(model=AGENT, input="weather?", tools=[WEATHER], tool_choice="required")
    calls = [item for item in first.output if item.type == "function_call"]
    assert [call.arguments for call in calls] == ['{"town":"Lagos"}', '{"town":"Faro"}'], calls
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "sun"} for call in calls]
    second = client.responses.create(
        model=AGENT, input=outputs, tools=[WEATHER], previous_response_id=first.id
    )
    assert second.output_text == "Sunny in both.", second
    items = list(client.responses.input_items.list(second.id, order="asc"))
    assert [item.type for item in items][:2] == ["message", "function_call"], items


def works_in_the_background():
    response = client.responses.create(model=FLOW, input="wait", background=True)
    assert response.status in ("queued", "in_progress"), response
    canceled = client.responses.cancel(response.id)
    assert canceled.status == "cancelled", canceled
    done = client.responses.create(model=AGENT, input="hello", background=True)
    for event in client.responses.retrieve(done.id, stream=True):
        last = event
    assert last.type == "response.completed"
    client.responses.delete(done.id)
    try:
        client.responses.retrieve(done.id)
    except openai.NotFoundError as error:
        assert error.code == "not_found", error
    else:
        raise AssertionError("it is still there")


def sees_images():
    content = [{"type": "input_text", "text": "picture"}, {"type": "input_image", "image_url": PIXEL, "detail": "low"}]
    response = client.responses.create(model=AGENT, input=[{"role": "user", "content": content}])
    assert response.output_text == "A pixel.", response


def goes_on():
    first = client.responses.create(model=AGENT, input="hello")
    second = client.responses.create(model=AGENT, input="again", previous_response_id=first.id)
    assert second.output_text == "Hello again.", second
    assert second.previous_response_id == first.id
    compacted = client.responses.compact(model=AGENT, previous_response_id=second.id)
    assert compacted.output[-1].type == "compaction", compacted


def converses():
    conversation = client.conversations.create(metadata={"a": "b"}, items=[{"role": "user", "content": "hello"}])
    assert client.conversations.retrieve(conversation.id) == conversation
    assert client.conversations.update(conversation.id, metadata={"c": "d"}).metadata == {"c": "d"}
    response = client.responses.create(model=FLOW, input="hi", conversation=conversation.id)
    assert response.conversation and response.conversation.id == conversation.id, response
    items = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [item.role for item in items] == ["user", "user", "assistant"], items
    assert client.conversations.items.retrieve(items[1].id, conversation_id=conversation.id).id == items[1].id
    added = client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "more"}])
    assert len(added.data) == 1, added
    client.conversations.items.delete(added.data[0].id, conversation_id=conversation.id)
    assert client.conversations.delete(conversation.id).deleted


def is_refused():
    for body, kind, param in [
        ({"model": "nobody", "input": "x"}, openai.NotFoundError, "model"),
        ({"model": AGENT, "input": "x", "temperature": 9}, openai.BadRequestError, "temperature"),
    ]:
        try:
            client.responses.create(**body)
        except kind as error:
            assert error.param == param, error
        else:
            raise AssertionError(body)
    try:
        OpenAI(base_url=os.environ["BASE_URL"], api_key="no", max_retries=0).models.list()
    except openai.AuthenticationError as error:
        assert error.code == "unauthenticated", error


def lists_models():
    ids = [model.id for model in client.models.list()]
    assert AGENT in ids and FLOW in ids, ids
    assert client.models.retrieve(AGENT).id == AGENT


def chats():
    messages = [{"role": "user", "content": "hello"}]
    whole = client.chat.completions.create(model=AGENT, messages=messages)
    assert whole.choices[0].message.content == "Hello to you." and whole.choices[0].finish_reason == "stop"
    cut = client.chat.completions.create(model=AGENT, messages=messages, stop=[" you"])
    assert cut.choices[0].message.content == "Hello to" and cut.choices[0].finish_reason == "stop", cut
    chunks = list(
        client.chat.completions.create(
            model=AGENT, messages=messages, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Hello to you." and chunks[-1].usage.total_tokens == 14
    function = {key: WEATHER[key] for key in ("name", "description", "parameters")}
    called = client.chat.completions.create(
        model=AGENT,
        messages=[{"role": "user", "content": "weather?"}],
        tools=[{"type": "function", "function": function}],
    )
    calls = called.choices[0].message.tool_calls
    assert called.choices[0].finish_reason == "tool_calls" and len(calls) == 2, called
    more = [{"role": "user", "content": "weather?"}, called.choices[0].message.model_dump(exclude_none=True)]
    more += [{"role": "tool", "tool_call_id": call.id, "content": "sun"} for call in calls]
    assert client.chat.completions.create(model=AGENT, messages=more).choices[0].message.content == "Sunny in both."


for check in [creates, streams, calls_tools, works_in_the_background, sees_images, goes_on, is_refused, lists_models, chats]:
    check()
    print(f"{check.__name__}: ok")
