"""Drives a node through the official openai client. Usage: openai_client.py BASE_URL (ending in /v1)."""

import sys

import openai


def main(base_url: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=30)
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model
    messages = [{"role": "user", "content": "hi"}]

    whole = client.chat.completions.create(model=model, messages=messages, max_tokens=8, temperature=0)
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model=model, messages=messages, max_tokens=8, temperature=0, stream=True, stream_options=options
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content, (text, whole)
    assert chunks[-1].usage is not None and not chunks[-1].choices

    completion = client.completions.create(model=model, prompt="a", max_tokens=8, temperature=0)
    assert isinstance(completion.choices[0].text, str)

    try:
        client.chat.completions.create(model="no/such-model", messages=messages)
        raise AssertionError("an unknown model was served")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found" and error.request_id

    try:
        client.chat.completions.create(model=model, messages=messages, n=0)
        raise AssertionError("n=0 was served")
    except openai.BadRequestError as error:
        assert error.param == "n"


main(sys.argv[1])
