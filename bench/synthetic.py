#!/usr/bin/env python3
"""Writes a model file with random weights, to be measured and not to be read: all matrices are of one type.

The shape is that of Qwen2.5-1.5B unless told otherwise. The tokenizer has the 256 bytes, one merge and names for the
rest of the vocabulary. Everything follows from the arguments: equal arguments write equal files. Prints the path of the
file, which is in ${XDG_CACHE_HOME:-~/.cache}/lichen/bench; a file that is there already stays. Python's standard
library is enough.
"""

import argparse
import os
import random
import struct
from dataclasses import dataclass
from pathlib import Path

# Bytes that are in memory at a time, about.
CHUNK = 1 << 24
# Where the tensors begin, and each of them, is a multiple of this.
ALIGNMENT = 32
F32 = 0
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9
NORMAL, CONTROL, UNUSED = 1, 3, 5


@dataclass
class Blocks:
    """A type of GGML whose blocks may hold any bits, but for their f16 scales.

    `scales` has the place of each scale and the first of its two bytes: sign, exponent and two bits of the fraction. The
    other byte is random, so that a scale lies between its smallest value and 1.25 times of that, or twice of it where
    f16 has no exponent left. They are chosen so that weights have a deviation of about 0.02 and a mean near zero.
    """

    type: int
    file_type: int
    values: int
    bytes: int
    scales: dict[int, int]

    def random(self, source: random.Random, count: int) -> bytes:
        data = bytearray(source.randbytes(count * self.bytes))
        for place, high in self.scales.items():
            data[place + 1::self.bytes] = bytes([high]) * count
        return bytes(data)


TYPES = {
    "Q4_0": Blocks(2, 2, 32, 18, {0: 0x1C}),
    "Q8_0": Blocks(8, 7, 32, 34, {0: 0x0C}),
    "Q4_K": Blocks(12, 14, 256, 144, {0: 0x04, 2: 0x10}),
    "Q5_K": Blocks(13, 16, 256, 176, {0: 0x02, 2: 0x10}),
    "Q6_K": Blocks(14, 18, 256, 210, {208: 0x01}),
    "IQ4_XS": Blocks(23, 30, 256, 136, {0: 0x01}),
}


@dataclass
class Tensor:
    name: str
    # The length of a row first.
    shape: list[int]
    # None for f32.
    blocks: Blocks | None
    # What all of it is, for f32.
    value: float = 0.0

    @property
    def size(self) -> int:
        values = self.shape[0] * (self.shape[1] if len(self.shape) > 1 else 1)
        return values * 4 if self.blocks is None else values // self.blocks.values * self.blocks.bytes

    def chunks(self, source: random.Random):
        if self.blocks is None:
            yield struct.pack("<f", self.value) * self.shape[0]
            return
        left, most = self.size // self.blocks.bytes, CHUNK // self.blocks.bytes
        while left:
            yield self.blocks.random(source, min(left, most))
            left -= min(left, most)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("type", choices=TYPES, help="type of all matrices")
    parser.add_argument("--arch", choices=("qwen2", "llama"), default="qwen2")
    parser.add_argument("--layers", type=int, default=28, help="(default: %(default)s)")
    parser.add_argument("--width", type=int, default=1536, help="(default: %(default)s)")
    parser.add_argument("--heads", type=int, default=12, help="(default: %(default)s)")
    parser.add_argument("--kv-heads", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--feed-forward", type=int, default=8960, help="(default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, default=151936, help="(default: %(default)s)")
    args = parser.parse_args()
    block = TYPES[args.type].values
    if args.width % args.heads or args.width // args.heads % 2 or args.heads % args.kv_heads:
        parser.error("--width must be an even multiple of --heads, and --heads a multiple of --kv-heads")
    if args.width % block or args.feed_forward % block:
        parser.error(f"--width and --feed-forward must be multiples of {block}, the values of a block of {args.type}")
    if args.vocabulary < 258:
        parser.error("--vocabulary must be at least 258, for the bytes, a merge and the end of text")
    return args


def tensors(args: argparse.Namespace) -> list[Tensor]:
    """The tensors of the architecture; the embeddings are the output head too."""
    blocks, width = TYPES[args.type], args.width
    kv_width = width // args.heads * args.kv_heads
    matrices = {"attn_q": [width, width], "attn_k": [width, kv_width], "attn_v": [width, kv_width],
                "attn_output": [width, width], "ffn_gate": [width, args.feed_forward],
                "ffn_up": [width, args.feed_forward], "ffn_down": [args.feed_forward, width]}
    biases = ("attn_q", "attn_k", "attn_v") if args.arch == "qwen2" else ()
    found = [Tensor("token_embd.weight", [width, args.vocabulary], blocks),
             Tensor("output_norm.weight", [width], None, 1.0)]
    for layer in range(args.layers):
        found += [Tensor(f"blk.{layer}.{name}.weight", [width], None, 1.0) for name in ("attn_norm", "ffn_norm")]
        found += [Tensor(f"blk.{layer}.{name}.weight", shape, blocks) for name, shape in matrices.items()]
        found += [Tensor(f"blk.{layer}.{name}.bias", matrices[name][1:], None) for name in biases]
    return found


def byte_names() -> list[str]:
    """A printable character for each byte, as in GPT-2's vocabulary."""
    itself = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte if byte in itself else next(others)) for byte in range(256)]


def metadata(args: argparse.Namespace) -> dict[str, tuple[int, object]]:
    """Keys with the type and the value of each; an array has the type of its items before them."""
    names, arch = byte_names(), args.arch
    merge = [names[ord(" ")], "t"]
    tokens = [*names, "".join(merge), "<|endoftext|>"]
    tokens += [f"[unused{index}]" for index in range(args.vocabulary - len(tokens))]
    kinds = [NORMAL] * 257 + [CONTROL] + [UNUSED] * (args.vocabulary - 258)
    sizes = {"context_length": 32768, "embedding_length": args.width, "block_count": args.layers,
             "feed_forward_length": args.feed_forward, "attention.head_count": args.heads,
             "attention.head_count_kv": args.kv_heads, "rope.dimension_count": args.width // args.heads,
             "vocab_size": args.vocabulary}
    return {
        "general.architecture": (STRING, arch),
        "general.name": (STRING, f"Random weights, {args.type}"),
        "general.file_type": (UINT32, TYPES[args.type].file_type),
        **{f"{arch}.{name}": (UINT32, size) for name, size in sizes.items()},
        f"{arch}.attention.layer_norm_rms_epsilon": (FLOAT32, 1e-6),
        f"{arch}.rope.freq_base": (FLOAT32, 1e6),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "qwen2"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
        "tokenizer.ggml.token_type": (ARRAY, (INT32, kinds)),
        "tokenizer.ggml.merges": (ARRAY, (STRING, [" ".join(merge)])),
        "tokenizer.ggml.eos_token_id": (UINT32, 257),
    }


def encoded(kind: int, value) -> bytes:
    """A value of GGUF without its type."""
    if kind == STRING:
        text = value.encode()
        return struct.pack("<Q", len(text)) + text
    if kind == ARRAY:
        item, items = value
        return struct.pack("<IQ", item, len(items)) + b"".join(encoded(item, each) for each in items)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f"}[kind], value)


def padding(size: int) -> bytes:
    return bytes(-size % ALIGNMENT)


def head(args: argparse.Namespace, found: list[Tensor]) -> bytes:
    """All of version 3 of GGUF before the tensors' data."""
    values = metadata(args)
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(found), len(values))]
    for key, (kind, value) in values.items():
        parts += [encoded(STRING, key), struct.pack("<I", kind), encoded(kind, value)]
    offset = 0
    for tensor in found:
        kind = F32 if tensor.blocks is None else tensor.blocks.type
        parts += [encoded(STRING, tensor.name), struct.pack("<I", len(tensor.shape)),
                  struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape), struct.pack("<IQ", kind, offset)]
        offset += tensor.size + len(padding(tensor.size))
    data = b"".join(parts)
    return data + padding(len(data))


def path(args: argparse.Namespace) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    shape = f"{args.layers}x{args.width}-{args.heads}-{args.kv_heads}-{args.feed_forward}-{args.vocabulary}"
    return cache / "lichen" / "bench" / f"random-{args.arch}-{shape}-{args.type}.gguf"


def main() -> None:
    args = arguments()
    target, found = path(args), tensors(args)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(".part")
        source = random.Random(target.name)
        with open(unfinished, "wb") as file:
            file.write(head(args, found))
            for tensor in found:
                for chunk in tensor.chunks(source):
                    file.write(chunk)
                file.write(padding(tensor.size))
        unfinished.rename(target)
    print(target)


if __name__ == "__main__":
    main()
