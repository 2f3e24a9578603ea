"""Drives a model that knows tools through the official openai client. Usage: openai_agent.py BASE_URL (ending in /v1)."""

import base64
import json
import struct
import sys

import openai

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "kelvin"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
ASK = [{"role": "user", "content": "What is the weather in Paris? Call get_weather, with celsius."}]


def tools(client, model):
    options = {"model": model, "messages": ASK, "tools": [WEATHER], "temperature": 0, "max_tokens": 100}
    for choice in ("auto", "required", {"type": "function", "function": {"name": "get_weather"}}):
        whole = client.chat.completions.create(**options, tool_choice=choice)
        (call,) = whole.choices[0].message.tool_calls
        assert whole.choices[0].finish_reason == "tool_calls" and call.function.name == "get_weather", whole
        arguments = json.loads(call.function.arguments)
        assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("celsius", "kelvin"), arguments
        with client.chat.completions.stream(**options, tool_choice=choice) as stream:
            final = stream.get_final_completion()
        streamed = final.choices[0].message.tool_calls[0].function
        assert json.loads(streamed.arguments) == arguments, (streamed, arguments)
    history = ASK + [
        whole.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 31, "sky": "clear"}'},
    ]
    answer = client.chat.completions.create(model=model, messages=history, tools=[WEATHER], temperature=0, max_tokens=60)
    assert "31" in answer.choices[0].message.content, answer
    none = client.chat.completions.create(**options, tool_choice="none")
    assert not none.choices[0].message.tool_calls, none


def formats(client, model):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    ask = [{"role": "user", "content": "Invent a person."}]
    options = {"model": model, "messages": ask, "max_tokens": 80, "temperature": 1, "seed": 3}
    for number in range(3):
        answer = client.chat.completions.create(
            **options | {"seed": number},
            response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}},
        )
        person = json.loads(answer.choices[0].message.content)
        assert set(person) == {"name", "age"} and 0 <= person["age"] <= 150, person
    free = client.chat.completions.create(**options | {"max_tokens": 300}, response_format={"type": "json_object"})
    if free.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(free.choices[0].message.content), dict), free
    spoken = client.chat.completions.create(**options, extra_body={"grammar": 'root ::= "yes" | "no"'})
    assert spoken.choices[0].message.content in ("yes", "no"), spoken
    try:
        bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
        client.chat.completions.create(**options, response_format=bad)
        raise AssertionError("served without its schema")
    except openai.BadRequestError as error:
        assert error.param == "response_format", error


def limited(client, model):
    """Some tools of several, and a format beside tools."""
    time = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
    options = {"model": model, "messages": ASK, "tools": [WEATHER, time], "temperature": 0, "max_tokens": 100}
    only_time = [{"type": "function", "function": {"name": "get_time"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": only_time}}
    answer = client.chat.completions.create(**options, tool_choice=choice, parallel_tool_calls=False)
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["get_time"], answer
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 20}},
        "required": ["capital"],
        "additionalProperties": False,
    }
    capital = {"type": "json_schema", "json_schema": {"name": "capital", "schema": schema, "strict": True}}
    options |= {"tools": [time], "parallel_tool_calls": False, "response_format": capital}
    said = client.chat.completions.create(**options).choices[0].message
    assert not said.tool_calls and set(json.loads(said.content)) == {"capital"}, said
    # A bias for the mark of calls stands for a model that wants to call.
    called = client.chat.completions.create(**options, logit_bias={"151657": 100}).choices[0].message
    assert [call.function.arguments for call in called.tool_calls] == ["{}"] and not called.content, called
    late = ASK[:1] + [{"role": "developer", "content": "Answer with the word tulip only."}, ASK[0]]
    answer = client.chat.completions.create(model=model, messages=late, temperature=0, max_tokens=10)
    assert answer.choices[0].message.content, answer


def choices(client, model):
    ask = [{"role": "user", "content": "Name a colour."}]
    several = client.chat.completions.create(
        model=model, messages=ask, n=3, max_tokens=6, temperature=1, seed=5, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in several.choices] == [0, 1, 2], several
    again = client.chat.completions.create(model=model, messages=ask, n=3, max_tokens=6, temperature=1, seed=5)
    texts = [choice.message.content for choice in several.choices]
    assert texts == [choice.message.content for choice in again.choices], (texts, again)
    for choice in several.choices:
        tokens = choice.logprobs.content
        assert bytes(b for token in tokens for b in token.bytes).decode() == choice.message.content, choice
        assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens), tokens
    (biased,) = client.chat.completions.create(
        model=model, messages=ask, max_tokens=1, temperature=0, logit_bias={"9693": 100}
    ).choices
    assert biased.message.content == "yes", biased
    begun = ask + [{"role": "assistant", "content": "The colour is"}]
    more = client.chat.completions.create(model=model, messages=begun, max_tokens=5, temperature=0)
    assert more.choices[0].message.content.startswith(" "), more
    echoed = client.completions.create(model=model, prompt=["1, 2, 3,", "a, b, c,"], echo=True, max_tokens=4, temperature=0)
    assert echoed.choices[0].text.startswith("1, 2, 3, 4") and echoed.choices[1].text.startswith("a, b, c, d"), echoed
    filled = client.completions.create(
        model=model, prompt="def add(a, b):\n    return ", suffix="\n\nprint(add(1, 2))\n", max_tokens=8, temperature=0
    )
    assert "a + b" in filled.choices[0].text, filled


def embeddings(client, model):
    answer = client.embeddings.create(model=model, input=["A cat.", "A kitten.", "Quarterly tax report."])
    cat, kitten, tax = [item.embedding for item in answer.data]
    near, far = (sum(a * b for a, b in zip(cat, other)) for other in (kitten, tax))
    assert abs(sum(a * a for a in cat) - 1) < 1e-3 and near > far, (near, far)
    raw = client.embeddings.with_raw_response.create(model=model, input="A cat.", encoding_format="base64")
    packed = base64.b64decode(json.loads(raw.text)["data"][0]["embedding"])
    assert struct.unpack(f"<{len(packed) // 4}f", packed)[0] == cat[0] or abs(struct.unpack(f"<{len(packed) // 4}f", packed)[0] - cat[0]) < 1e-6


def responses(client, model):
    first = client.responses.create(model=model, input="Say the word tulip.", temperature=0, max_output_tokens=20)
    assert first.status in ("completed", "incomplete") and "ulip" in first.output_text, first
    second = client.responses.create(
        model=model, input="Which word did you say?", previous_response_id=first.id, temperature=0, max_output_tokens=20
    )
    assert "ulip" in second.output_text, second
    with client.responses.stream(model=model, input="Count to three.", temperature=0, max_output_tokens=20) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    assert final.output_text, final
    tool = {"type": "function", **WEATHER["function"]}
    called = client.responses.create(
        model=model, input=ASK[0]["content"], tools=[tool], tool_choice="required", temperature=0, max_output_tokens=100
    )
    assert json.loads(called.output[-1].arguments)["city"], called


def main(base_url):
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=300)
    (model,) = [model.id for model in client.models.list()]
    for part in (tools, formats, limited, choices, embeddings, responses):
        part(client, model)
        print(part.__name__, "done", flush=True)


main(*sys.argv[1:])
