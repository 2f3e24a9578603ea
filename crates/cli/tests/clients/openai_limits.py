"""What the official openai client does about keys and full queues. Usage: openai_limits.py BASE_URL (ending in /v1) KEY.

The server takes one request at a time and lets none wait.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import openai

ASK = [{"role": "user", "content": "Tell me about the sea."}]


def main(base_url, key):
    stranger = openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0)
    try:
        stranger.models.list()
        raise AssertionError("a stranger was let in")
    except openai.AuthenticationError as error:
        assert error.status_code == 401 and error.request_id, error

    impatient = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=120)
    (model,) = [model.id for model in impatient.models.list()]

    def ask(client):
        try:
            options = {"model": model, "messages": ASK, "max_tokens": 60, "extra_body": {"ignore_eos": True}}
            return client.chat.completions.create(**options).usage.completion_tokens
        except openai.RateLimitError as error:
            assert 1 <= int(error.response.headers["retry-after"]) <= 60 and error.code == "queue_full", error
            return None

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: ask(impatient), range(4)))
        assert 60 in answers and None in answers, answers
        patient = openai.OpenAI(base_url=base_url, api_key=key, max_retries=30, timeout=120)
        assert list(pool.map(lambda _: ask(patient), range(3))) == [60] * 3


main(*sys.argv[1:])
