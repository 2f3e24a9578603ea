"""Control groups with a cap on memory, servers that run in them, and requests to those. Python's standard library is
enough; the right to make control groups (version 1 or 2) is needed."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
WORDS = ("river stone cloud market winter letter garden copper evening bridge window harbour forest silver morning paper "
         "island candle mirror station thunder orchard valley engine feather marble lantern meadow compass saddle").split()
# A program that takes memory step by step, keeps it, and gives it back.
BALLOON = """
import sys, time
mib, seconds, keep = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
taken = []
for _ in range(mib):
    taken.append(bytearray(b"x") * 1048576)
    time.sleep(seconds / mib)
time.sleep(keep)
"""


class Group:
    """A control group with a cap on memory."""

    def __init__(self, cap_mib: int):
        self.old = Path("/sys/fs/cgroup/memory").is_dir()
        base = Path("/sys/fs/cgroup/memory" if self.old else "/sys/fs/cgroup")
        key = "memory:" if self.old else "0::"
        own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if key in line)
        self.path = base / own.split(":", 2)[2].lstrip("/") / f"survival-{os.getpid()}-{free_port()}"
        self.path.mkdir()
        self.cap(cap_mib)

    def cap(self, mib: int) -> None:
        """Sets the cap. The system may refuse one that is below what can't be taken back."""
        (self.path / ("memory.limit_in_bytes" if self.old else "memory.max")).write_text(str(mib * MIB))

    def enter(self) -> None:
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def number(self, old: str, new: str) -> int:
        return int((self.path / (old if self.old else new)).read_text())

    def used_mib(self) -> int:
        return self.number("memory.usage_in_bytes", "memory.current") // MIB

    def facts(self) -> dict:
        events = self.path / ("memory.oom_control" if self.old else "memory.events")
        kills = [int(line.split()[1]) for line in events.read_text().splitlines() if line.startswith("oom_kill ")]
        return {"peak_mib": self.number("memory.max_usage_in_bytes", "memory.peak") // MIB, "oom_kills": sum(kills)}

    def remove(self) -> None:
        for _ in range(50):
            with contextlib.suppress(OSError):
                return self.path.rmdir()
            time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def forget(file: Path) -> None:
    """Drops the pages of a file from the cache, so that whoever reads it next is charged for them."""
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def prompt(number: int, words: int) -> str:
    return f"Number {number}. " + " ".join(WORDS[(i * 7 + i * i * number + number) % len(WORDS)] for i in range(words))


@dataclass
class Answer:
    """What became of one request."""

    outcome: str
    seconds: float
    body: dict = field(default_factory=dict)


class Arena:
    """One engine under one cap: its servers, the processes beside them, and what was asked of them."""

    def __init__(self, engine: str, program: str, threads: int, cap_mib: int, seconds: float):
        self.engine, self.program, self.threads = engine, program, threads
        self.group = Group(cap_mib)
        self.folder = Path(tempfile.mkdtemp(prefix="survival"))
        self.until = time.monotonic() + seconds
        self.children: list[subprocess.Popen] = []
        self.servers: list[tuple[subprocess.Popen, str]] = []
        self.answers: list[Answer] = []
        self.notes: list[str] = []
        self.log = open(self.folder / "log", "w+b")

    def __enter__(self) -> "Arena":
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.kill()
            child.wait()
        self.group.remove()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def copy(self, model: Path) -> Path:
        """A copy of a model whose pages nobody has in the cache."""
        copy = self.folder / model.name
        shutil.copyfile(model, copy)
        forget(copy)
        return copy

    def start(self, models: list[Path], slots: int, ctx: int = 0, args: str = "") -> bool:
        """Starts one server (llama.cpp: one for each model), and waits until it is ready. The arguments are Lichen's."""
        copies = [self.copy(model) for model in models]
        if self.engine == "lichen":
            named = [part for model, copy in zip(models, copies) for part in ("--model", str(copy), "--name", model.stem)]
            named = named if len(models) > 1 else ["--model", str(copies[0]), "--name", "bench"]
            commands = [["serve", "--access-log", "off", "--max-concurrent", str(slots), *named, *args.split()]]
            commands[0] += ["--ctx-cap", str(ctx)] if ctx else []
        else:
            commands = [["-m", str(copy), "-c", str(ctx), "-np", str(slots), "--kv-unified", "-fa", "on"] for copy in copies]
        return all(self.serve([self.program, *command, "-t", str(self.threads)]) for command in commands)

    def serve(self, command: list[str]) -> bool:
        port = free_port()
        environment = os.environ | {"LICHEN_HOME": str(self.folder / "home")}
        server = self.spawn([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=self.log, env=environment)
        address, began = f"http://127.0.0.1:{port}", time.monotonic()
        self.servers.append((server, address))
        while server.poll() is None and time.monotonic() < self.until:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(address + "/health", timeout=5).close()
                self.notes.append(f"ready after {time.monotonic() - began:.1f} s")
                return True
            time.sleep(0.1)
        return False

    def spawn(self, command: list[str], **how: object) -> subprocess.Popen:
        child = subprocess.Popen(command, preexec_fn=self.group.enter, **how)
        self.children.append(child)
        return child

    def balloon(self, mib: int, seconds: float, keep: float) -> None:
        """Another process in the group, which takes memory, keeps it for so many seconds and ends."""
        self.spawn([sys.executable, "-c", BALLOON, str(mib), str(seconds), str(keep)])

    def memory(self) -> dict:
        with contextlib.suppress(OSError, ValueError):
            with urllib.request.urlopen(self.servers[0][1] + "/admin/memory", timeout=5) as answer:
                return json.load(answer)
        return {}

    def ask(self, text: str, tokens: int, model: str = "bench", retries: bool = True, server: int = 0) -> Answer:
        """One completion. What is refused for a while is asked again, as clients do."""
        body = {"model": model, "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(self.servers[server][1] + "/v1/completions", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        began = time.monotonic()
        while True:
            outcome, told, wait = attempt(request, tokens, self.until)
            if not (wait and retries and time.monotonic() + wait < self.until):
                break
            time.sleep(wait)
        answer = Answer(outcome, time.monotonic() - began, told)
        self.answers.append(answer)
        return answer

    def together(self, prompts: list[str], tokens: int) -> list[Answer]:
        threads = [threading.Thread(target=self.ask, args=(text, tokens)) for text in prompts]
        first = len(self.answers)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.answers[first:]

    def result(self) -> dict:
        """What there is to tell, once everything was asked."""
        with contextlib.suppress(subprocess.TimeoutExpired, IndexError):
            # One that was killed while it answered needs a moment to be gone.
            self.servers[0][0].wait(timeout=1)
        memory = self.memory()
        ends = [server.poll() for server, _ in self.servers]
        self.log.seek(0)
        words = self.log.read()[-600:].decode(errors="replace") if any(end is not None for end in ends) else ""
        counts: dict[str, int] = {}
        for answer in self.answers:
            counts[answer.outcome] = counts.get(answer.outcome, 0) + 1
        return {
            "engine": self.engine, "outcomes": counts, "exits": ends, "notes": self.notes, "last_words": words,
            "levels": [change["to"] for change in memory.get("transitions", [])],
            "actions": {action["action"]: action["freed_bytes"] for action in memory.get("actions", [])},
        } | self.group.facts()


def attempt(request: urllib.request.Request, tokens: int, until: float) -> tuple[str, dict, float | None]:
    """What became of it, what was told, and the seconds after which it may be asked again."""
    try:
        with urllib.request.urlopen(request, timeout=max(1.0, until - time.monotonic())) as answer:
            told = json.load(answer)
            got = told["usage"]["completion_tokens"]
            return ("answered" if got == tokens else f"cut at {got} tokens"), told, None
    except urllib.error.HTTPError as error:
        told = json.loads(error.read() or b"{}").get("error", {})
        retry = error.headers.get("retry-after") if error.code in (429, 503) else None
        return f"{error.code} {told.get('type', 'untyped')}", told, float(retry) if retry else None
    except TimeoutError:
        return "no answer in time", {}, None
    except OSError:
        return "connection lost", {}, None
