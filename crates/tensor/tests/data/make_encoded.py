"""Makes the files of this folder with llama.cpp's quantisers: make_encoded.py PATH_OF_LIBGGML_BASE

source.f32       rows of 512 little-endian f32 values, `importance.f32` one weight per column
<type>.plain     the rows as ggml_quantize_chunk stores them without importance
<type>.weighted  and with it

Made with llama.cpp 0.6.0-dev (ggml 0.26.0) built for x86-64; ggml-base has no fused multiply-add there.
"""

import ctypes
import random
import sys
from array import array
from pathlib import Path

COLUMNS = 512
TYPES = {"q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q2_k": 10, "q3_k": 11, "q4_k": 12, "q5_k": 13,
         "q6_k": 14, "iq4_nl": 20, "iq4_xs": 23}


def source(r):
    normal = lambda scale: [r.gauss(0, scale) for _ in range(COLUMNS)]
    return [
        normal(1.0),
        [x * (9 if j % 41 == 0 else 1) for j, x in enumerate(normal(0.02))],
        [0.0] * COLUMNS,
        [0.5] * (COLUMNS // 2) + [-0.25] * (COLUMNS // 2),
        [r.uniform(1, 2) for _ in range(COLUMNS)],
        [-abs(x) for x in normal(3.0)],
        # One value per part, and parts of zeros.
        [x if j % 16 == 5 and j % 64 < 48 else 0.0 for j, x in enumerate(normal(1.0))],
        # What counts as zero next to what nearly does.
        [x * 10.0 ** -(j // 32) for j, x in enumerate(normal(1e-4))],
        # Halves, to be rounded to even.
        [r.randint(-16, 16) / 2 for _ in range(COLUMNS)],
    ]


def main():
    ggml = ctypes.CDLL(sys.argv[1])
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    out = Path(__file__).parent
    r = random.Random(1)
    rows = source(r)
    # Columns, and a whole block, without importance are allowed.
    importance = array("f", [0.0 if j % 19 == 0 or 64 <= j < 96 else r.gauss(0, 1) ** 2 for j in range(COLUMNS)])
    values = array("f", [x for row in rows for x in row])
    (out / "source.f32").write_bytes(values.tobytes())
    (out / "importance.f32").write_bytes(importance.tobytes())
    address = lambda a: a.buffer_info()[0]
    for name, number in TYPES.items():
        for form, weights in ("plain", None), ("weighted", address(importance)):
            buffer = ctypes.create_string_buffer(len(values) * 4)
            size = ggml.ggml_quantize_chunk(number, address(values), buffer, 0, len(rows), COLUMNS, weights)
            (out / f"{name}.{form}").write_bytes(buffer.raw[:size])


main()
