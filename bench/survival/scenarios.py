"""What servers are put through. Each scenario gets an arena with a cap, starts what it needs in it, asks, and notes what
the counts of outcomes don't tell."""

import random
import threading
import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from harness import MIB, Answer, Arena, forget, prompt


@dataclass(frozen=True)
class Scenario:
    """A run and the caps that it is worth running under, in MiB."""

    run: Callable[[Arena, Namespace], None]
    caps: list[int]
    seconds: float = 240


def four(arena: Arena, args: Namespace) -> None:
    """Four long prompts at once."""
    if arena.start([args.model], slots=args.requests, ctx=args.ctx, args=args.lichen_args):
        timed(arena, lambda: arena.together([prompt(i, args.words) for i in range(args.requests)], args.tokens))


def overload(arena: Arena, args: Namespace) -> None:
    """32 clients at once, prompts of 100 to 900 words. Clients that are refused for a while come again."""
    if not arena.start([args.model], slots=4, ctx=args.ctx, args=args.lichen_args):
        return
    words = random.Random(1)
    prompts = [prompt(i, words.randrange(100, 900)) for i in range(32)]
    seconds = timed(arena, lambda: arena.together(prompts, args.tokens))
    longest = max(answer.seconds for answer in arena.answers)
    arena.notes.append(f"longest wait {longest:.0f} of {seconds:.0f} s")


def exhaustion(arena: Arena, args: Namespace) -> None:
    """Four prompts, of which each fits alone, and no two together."""
    if not arena.start([args.model], slots=4, ctx=2048, args=args.lichen_args):
        return
    timed(arena, lambda: arena.together([prompt(i, 1400) for i in range(4)], args.tokens))


def churn(arena: Arena, args: Namespace) -> None:
    """Distinct prompts of 900 words, one after another; then the first ten again."""
    if not arena.start([args.model], slots=1, ctx=2048, args=args.lichen_args):
        return
    first = [arena.ask(prompt(i, 900), 1) for i in range(args.churn)]
    time.sleep(1)
    again = [arena.ask(prompt(i, 900), 1) for i in range(10)]
    cold, warm = (median([answer.seconds for answer in answers]) for answers in (first, again))
    cached = sum(cached_tokens(answer) > 0 for answer in again)
    arena.notes.append(f"first time {cold:.2f} s, again {warm:.2f} s ({warm / cold:.0%}), {cached} of 10 known")


def distinct(arena: Arena, args: Namespace) -> None:
    """200 distinct prompts of about 2,000 tokens, four at a time."""
    if not arena.start([args.model], slots=4, ctx=4096, args=args.lichen_args):
        return

    def client(first: int) -> None:
        for number in range(first, 200, 4):
            if alive(arena):
                arena.ask(prompt(number, 1750), 8)

    def all_of_them() -> None:
        clients = [threading.Thread(target=client, args=(first,)) for first in range(4)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()

    timed(arena, all_of_them)
    tokens = [answer.body["usage"]["prompt_tokens"] for answer in arena.answers if "usage" in answer.body]
    if tokens:
        arena.notes.append(f"{min(tokens)} to {max(tokens)} tokens a prompt")


def balloon(arena: Arena, args: Namespace) -> None:
    """Four clients ask on and on; another process takes 30 % of the cap in 3 s, keeps it for 5 s and ends; then in 1 s."""
    if not arena.start([args.model], slots=4, ctx=args.ctx, args=args.lichen_args):
        return
    done = threading.Event()

    def client(first: int) -> None:
        number = first
        while not done.is_set() and alive(arena):
            arena.ask(prompt(number, 300), args.tokens)
            number += 4

    clients = [threading.Thread(target=client, args=(first,)) for first in range(4)]
    for each in clients:
        each.start()
    time.sleep(5)
    for seconds in (3, 1):
        arena.balloon(args.cap * 3 // 10, seconds, keep=5)
        time.sleep(seconds + 5 + 10)
    done.set()
    for each in clients:
        each.join()
    note_calm(arena)


def shrink(arena: Arena, args: Namespace) -> None:
    """The cap falls to 60 % while four prompts are answered."""
    if not arena.start([args.model], slots=4, ctx=args.ctx, args=args.lichen_args):
        return

    def tighten() -> None:
        time.sleep(2)
        try:
            arena.group.cap(args.cap * 6 // 10)
        except OSError as error:
            arena.notes.append(f"the cap stays: {error}")

    tightening = threading.Thread(target=tighten)
    tightening.start()
    timed(arena, lambda: arena.together([prompt(i, args.words) for i in range(4)], args.tokens))
    tightening.join()


def over_budget(arena: Arena, args: Namespace) -> None:
    """A prompt over the context, a prompt and an answer that are over it together, and one that fits."""
    if not arena.start([args.model], slots=4, ctx=2048, args=args.lichen_args):
        return
    for what, words, tokens in (("prompt over the context", 2600, 16), ("with its answer over it", 1400, 1500),
                                ("within it", 1400, 16)):
        answer = arena.ask(prompt(1, words), tokens)
        arena.notes.append(f"{what}: {answer.outcome}")


def two_models(arena: Arena, args: Namespace) -> None:
    """Two models that are asked in turn. llama.cpp gets a server for each of them in the same group."""
    models = [args.model, args.second]
    if not arena.start(models, slots=2, ctx=2048, args=args.lichen_args):
        return
    for number in range(6):
        model = number % 2
        server = model if arena.engine != "lichen" else 0
        name = models[model].stem if arena.engine == "lichen" else "bench"
        arena.ask(prompt(number, 400), args.tokens, model=name, server=server)


def foreign_cache(arena: Arena, args: Namespace) -> None:
    """Another process of the group has filled the page cache up to the cap. Then four prompts at once."""
    other = arena.folder / "other"
    other.write_bytes(bytes(args.cap * MIB))
    forget(other)
    arena.spawn(["cat", str(other)], stdout=-3).wait()
    arena.notes.append(f"{arena.group.used_mib()} MiB of cache before")
    if arena.start([args.model], slots=4, ctx=args.ctx, args=args.lichen_args):
        memory = arena.memory()
        if memory:
            arena.notes.append(f"level {memory['level']}, headroom {memory['headroom_bytes'] // MIB} MiB")
        timed(arena, lambda: arena.together([prompt(i, args.words) for i in range(4)], args.tokens))


def too_large(arena: Arena, args: Namespace) -> None:
    """A model that is larger than the cap."""
    began = time.monotonic()
    if arena.start([args.model], slots=1, ctx=2048, args=args.lichen_args):
        arena.ask(prompt(1, 100), args.tokens)
    else:
        peak = arena.group.facts()["peak_mib"]
        arena.notes.append(f"ended after {time.monotonic() - began:.1f} s, had touched at most {peak} MiB")


SCENARIOS = {
    "four": Scenario(four, [700, 500]),
    "overload": Scenario(overload, [700]),
    "exhaustion": Scenario(exhaustion, [600]),
    "churn": Scenario(churn, [190]),
    "distinct": Scenario(distinct, [260], seconds=1500),
    "balloon": Scenario(balloon, [1000]),
    "shrink": Scenario(shrink, [1000]),
    "over_budget": Scenario(over_budget, [700]),
    "two_models": Scenario(two_models, [900]),
    "foreign_cache": Scenario(foreign_cache, [700]),
    "too_large": Scenario(too_large, [300], seconds=60),
}


def timed(arena: Arena, work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    seconds = time.monotonic() - began
    arena.notes.append(f"{seconds:.1f} s")
    return seconds


def note_calm(arena: Arena) -> None:
    """How long it takes until memory is called plentiful again."""
    began = time.monotonic()
    while alive(arena) and arena.memory() and time.monotonic() < began + 60:
        if arena.memory()["level"] == "normal":
            arena.notes.append(f"normal again {time.monotonic() - began:.0f} s after the last answer")
            return
        time.sleep(0.5)


def alive(arena: Arena) -> bool:
    return all(server.poll() is None for server, _ in arena.servers) and time.monotonic() < arena.until


def cached_tokens(answer: Answer) -> int:
    usage = answer.body.get("usage", {})
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
