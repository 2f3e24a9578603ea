"""Drives `lichen serve` through the official openai client. Usage: openai_client.py BASE_URL (ending in /v1) [--real].

With --real the model is expected to know what it says, and the last thing done is to hang up on a long answer.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import openai

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
USAGE = {"include_usage": True}


def text(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def chat(client, model):
    options = {"model": model, "messages": QUESTION, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**options)
    choice = whole.choices[0]
    assert choice.message.role == "assistant", whole
    assert choice.finish_reason in ("stop", "length"), whole
    assert whole.usage.prompt_tokens > 0 and whole.usage.completion_tokens <= 12, whole
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, whole

    chunks = list(client.chat.completions.create(**options, stream=True, stream_options=USAGE))
    assert text(chunks) == choice.message.content, (chunks, whole)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == choice.finish_reason and not any(reasons[:-1]), reasons
    counted, first = chunks[-1].usage, whole.usage
    assert not chunks[-1].choices and counted.total_tokens == first.total_tokens, (chunks[-1], first)
    # The second time all of the prompt is there already but its last token, whose logits are needed.
    assert counted.prompt_tokens_details.cached_tokens == first.prompt_tokens - 1, counted
    assert len({chunk.id for chunk in chunks}) == 1, chunks

    exact = client.chat.completions.create(**options, extra_body={"ignore_eos": True})
    assert (exact.usage.completion_tokens, exact.choices[0].finish_reason) == (12, "length"), exact

    sampled = [
        client.chat.completions.create(model=model, messages=QUESTION, max_tokens=8, temperature=1, seed=7)
        for _ in range(2)
    ]
    assert sampled[0].choices[0].message.content == sampled[1].choices[0].message.content, sampled

    with ThreadPoolExecutor(3) as pool:
        together = pool.map(lambda _: client.chat.completions.create(**options), range(3))
        assert all(answer.usage.prompt_tokens == whole.usage.prompt_tokens for answer in together)


def completions(client, model, real):
    prompt = "The capital of France is Paris. The capital of Italy is Rome. The capital of Japan is"
    options = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**options)
    if real:
        assert whole.choices[0].text.startswith(" Tokyo"), whole
    chunks = list(client.completions.create(**options, stream=True))
    streamed = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert streamed == whole.choices[0].text, (streamed, whole)


def refused(kind, create, **options):
    try:
        create(**options)
    except kind as error:
        assert error.request_id, error
        return error
    raise AssertionError(f"served instead of refused: {options}")


def errors(client, model):
    create = client.chat.completions.create
    error = refused(openai.NotFoundError, create, model="no/such-model", messages=QUESTION)
    assert error.code == "model_not_found", error
    error = refused(openai.BadRequestError, create, model=model, messages=QUESTION, n=0)
    assert error.param == "n", error
    error = refused(openai.BadRequestError, create, model=model, messages=QUESTION, temperature=-1)
    assert error.param == "temperature", error
    refused(openai.BadRequestError, create, model=model, messages=[])
    long = [{"role": "user", "content": "word " * 20_000}]
    for stream in (False, True):
        error = refused(openai.BadRequestError, create, model=model, messages=long, stream=stream)
        assert error.code == "context_length_exceeded", error


def hang_up(client, model):
    """Leaves a long answer after its first pieces. The caller sees whether the server goes on computing it."""
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
    )
    for _ in range(8):
        assert next(stream).choices[0].finish_reason is None
    stream.close()


def main(base_url, *mode):
    real = "--real" in mode
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=120)
    (model,) = [model.id for model in client.models.list()]
    assert client.models.retrieve(model).id == model
    chat(client, model)
    completions(client, model, real)
    errors(client, model)
    if real:
        hang_up(client, model)


main(*sys.argv[1:])
