#!/usr/bin/env python3
"""Measures what masks cost and what guessing gains in `lichen serve`, one client, tokens per second while decoding.

Masks: the same request free, with any JSON object, with a JSON schema and with a grammar, guessing off. Guessing: a
text that repeats itself (code with names changed) and one that does not (an essay), with `--draft ngram` and
`--draft off`. Modes run in turns; the table has medians. Python's standard library is enough.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
import urllib.request
from pathlib import Path

from serve import free_port, server

SCHEMA = {
    "type": "array", "minItems": 40,
    "items": {"type": "object", "additionalProperties": False, "required": ["city", "country", "inhabitants", "rivers"],
              "properties": {"city": {"type": "string"}, "country": {"type": "string"},
                             "inhabitants": {"type": "integer"}, "rivers": {"type": "array", "items": {"type": "string"}}}},
}
GRAMMAR = 'root ::= "[" item ("," item)* "]"\nitem ::= " "? "{\\"city\\": \\"" [a-zA-Z .-]+ "\\", \\"inhabitants\\": " [0-9]+ "}"'
CITIES = "Give a JSON array of 40 cities with country, inhabitants and rivers. Write JSON only."
CODE = ("Rewrite this Python code with the class named Stack instead of Queue, and change nothing else. Answer with the "
        "whole code only.\n\n" + "\n".join(
            f"class Queue{kind}:\n    def __init__(self, limit):\n        self.items = []\n        self.limit = limit\n\n"
            f"    def push_{kind.lower()}(self, item):\n        if len(self.items) >= self.limit:\n"
            f"            raise OverflowError('the {kind.lower()} queue is full')\n        self.items.append(item)\n\n"
            f"    def size(self):\n        return len(self.items)\n" for kind in ["Numbers", "Words", "Dates"]))
ESSAY = "Write a long and careful essay about how tides are made. Use plain words and never say the same thing twice."


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="model file (.gguf)")
    parser.add_argument("--lichen", default="target/release/lichen", help="the lichen program (default: %(default)s)")
    parser.add_argument("-n", "--tokens", type=int, default=256, help="tokens of each answer (default: %(default)s)")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="threads (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each mode (default: %(default)s)")
    return parser.parse_args()


def rate(address: str, prompt: str, tokens: int, **fields) -> tuple[float, str]:
    """Tokens per second from the first token to the last, and the text."""
    body = {"model": "bench", "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "stream": True,
            "temperature": 0, "stream_options": {"include_usage": True}, **fields}
    request = urllib.request.Request(address + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    first, last, text, usage = None, None, "", None
    with urllib.request.urlopen(request, timeout=600) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if event.get("choices") and event["choices"][0]["delta"].get("content"):
                last = time.perf_counter()
                first = first or last
                text += event["choices"][0]["delta"]["content"]
    return (usage["completion_tokens"] - 1) / (last - first), text


def main() -> None:
    args = arguments()
    masks = {"free": {}, "any object": {"response_format": {"type": "json_object"}},
             "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "cities", "schema": SCHEMA}}},
             "grammar": {"grammar": GRAMMAR}}
    rates: dict[tuple[str, str], list[float]] = {}
    texts: dict[tuple[str, str], str] = {}
    with contextlib.ExitStack() as stack:
        addresses = {}
        for draft in ("off", "ngram"):
            port = free_port()
            command = [args.lichen, "serve", "--port", str(port), "--threads", str(args.threads), "--access-log", "off",
                       "--draft", draft, "--model", str(args.model), "--name", "bench", "--ctx-cap", "4096"]
            addresses[draft] = stack.enter_context(server(command, port))
        # The first request with a mask builds what all later ones share.
        for name, fields in masks.items():
            rate(addresses["off"], CITIES, 4, **fields)
        for turn in range(args.rounds):
            for name, fields in masks.items():
                rates.setdefault(("mask", name), []).append(rate(addresses["off"], CITIES, args.tokens, **fields)[0])
            for text, prompt in (("code", CODE), ("essay", ESSAY)):
                for draft in sorted(addresses, reverse=turn % 2 == 1):
                    measured, texts[text, draft] = rate(addresses[draft], prompt, args.tokens)
                    rates.setdefault((text, draft), []).append(measured)
            print({key: values[-1] for key, values in rates.items()}, file=sys.stderr)
    for text in ("code", "essay"):
        if texts[text, "off"] != texts[text, "ngram"]:
            raise SystemExit(f"guessing changed the {text}")
    medians = {key: statistics.median(values) for key, values in rates.items()}
    print("| mask | tokens/s | of free |\n|---|---|---|")
    for name in masks:
        print(f"| {name} | {medians['mask', name]:.1f} | {medians['mask', name] / medians['mask', 'free']:.2f} |")
    print("\n| text | off | ngram | ratio |\n|---|---|---|---|")
    for text in ("code", "essay"):
        off, on = medians[text, "off"], medians[text, "ngram"]
        print(f"| {text} | {off:.1f} | {on:.1f} | {on / off:.2f} |")


if __name__ == "__main__":
    main()
