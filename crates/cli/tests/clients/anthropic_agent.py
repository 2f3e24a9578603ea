"""Drives a model that knows tools through the official anthropic client. Usage: anthropic_agent.py BASE_URL."""

import sys

import anthropic

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
ASK = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]


def chat(client, model):
    options = {
        "model": model,
        "max_tokens": 16,
        "extra_body": {"temperature": 0},
        "system": [{"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    whole = client.messages.create(**options)
    assert "Paris" in whole.content[0].text and whole.stop_reason in ("end_turn", "max_tokens"), whole
    with client.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text, (text, whole)
    assert final.usage.cache_read_input_tokens > 0 and final.stop_reason == whole.stop_reason, final
    counted = client.messages.count_tokens(**{k: options[k] for k in ("model", "system", "messages")})
    total = final.usage.input_tokens + final.usage.cache_read_input_tokens
    assert counted.input_tokens == total, (counted, final.usage)
    stopped = client.messages.create(**options | {"stop_sequences": ["Paris"]})
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris"), stopped


def tools(client, model):
    options = {"model": model, "max_tokens": 100, "extra_body": {"temperature": 0}, "tools": [WEATHER], "messages": ASK}
    for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_weather"}):
        whole = client.messages.create(**options, tool_choice=choice)
        use = whole.content[-1]
        assert whole.stop_reason == "tool_use" and use.name == "get_weather" and use.input["city"], whole
        with client.messages.stream(**options, tool_choice=choice) as stream:
            final = stream.get_final_message()
        assert final.content[-1].input == use.input and final.stop_reason == "tool_use", final
    history = ASK + [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in whole.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "31 degrees"}]},
    ]
    answer = client.messages.create(
        model=model, max_tokens=60, extra_body={"temperature": 0}, tools=[WEATHER],
        tool_choice={"type": "none"}, messages=history,
    )
    assert answer.content[0].text and answer.stop_reason in ("end_turn", "max_tokens"), answer


def nonce(client, model):
    """A header that changes with every request must not cost the reuse of all that follows."""
    def ask(hash):
        system = f"x-anthropic-billing-header: version=1; cch={hash};\n" + "You answer questions about birds. " * 30
        return client.messages.create(
            model=model, max_tokens=4, system=system, messages=[{"role": "user", "content": "Do they fly?"}]
        ).usage
    ask("a1b2c")
    second = ask("0f9e8")
    assert second.cache_read_input_tokens > 20 * second.input_tokens, second


def errors(client, model):
    def refused(kind, **options):
        try:
            client.messages.create(**{"model": model, "max_tokens": 5, "messages": ASK} | options)
        except kind as error:
            assert error.request_id and error.body["type"] == "error", error
            return error
        raise AssertionError(f"served instead of refused: {options}")
    refused(anthropic.NotFoundError, model="no-such-model")
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    error = refused(anthropic.BadRequestError, messages=[{"role": "user", "content": [image]}])
    assert "image" in str(error), error
    error = refused(anthropic.BadRequestError, messages=[{"role": "user", "content": "word " * 60_000}])
    assert "prompt is too long" in str(error), error


def main(base_url):
    client = anthropic.Anthropic(base_url=base_url, api_key="none", max_retries=0, timeout=300)
    (model,) = [model.id for model in client.models.list()]
    for part in (chat, tools, nonce, errors):
        part(client, model)
        print(part.__name__, "done", flush=True)


main(*sys.argv[1:])
