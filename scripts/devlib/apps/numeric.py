# SPDX-License-Identifier: Apache-2.0
"""numpy and torch (Debian's, for /usr/bin/python3), llama.cpp: what is computed from a fixed seed, every byte of it."""

import os
import random
import shutil
import struct

from devlib.apps.registry import App
from devlib.apps.side import PYTHON, Side, digest

NUMPY = """
import hashlib, sys
import numpy as np
rounds = int(sys.argv[1])
def hashed(*arrays): return hashlib.sha256(b''.join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()
chance = np.random.default_rng(5)
x = chance.standard_normal((4000, 400)); w = chance.standard_normal((400, 10)); y = (x @ w).argmax(1)
a, b = chance.standard_normal((400, 256)) * .05, chance.standard_normal((256, 10)) * .05
for step in range(rounds):
    h = np.maximum(x @ a, 0); z = h @ b; z -= z.max(1, keepdims=True)
    p = np.exp(z); p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(4000), y]).mean()
    p[np.arange(4000), y] -= 1; p /= 4000
    gb = h.T @ p; ga = x.T @ ((p @ b.T) * (h > 0))
    a -= .5 * ga; b -= .5 * gb
print('weights', hashed(a, b), repr(float(loss)))
big = chance.integers(0, 1 << 40, 3_000_000)
print('sorted', hashed(np.sort(big), np.unique(big % 100003), np.cumsum(big)))
print('fft', hashed(np.fft.rfft(big[:1 << 20].astype(float))))
grid = chance.standard_normal((1500, 1500))
print('strided', hashed(grid.T[::3, ::2].copy(), grid.reshape(-1)[::7] * 2, np.concatenate([grid, grid.T])))
print('solve', hashed(np.linalg.solve(grid[:500, :500], grid[:500, 500])))
kept = [chance.standard_normal(int(n)) for n in chance.integers(1, 200000, 300)]
for at in chance.permutation(300)[:150]: kept[at] = None
kept += [chance.standard_normal(int(n)) for n in chance.integers(1, 200000, 150)]
print('churn', hashed(*[k for k in kept if k is not None]))
"""
TORCH = """
import hashlib, sys
import torch
torch.manual_seed(3); torch.set_num_threads(2); torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Conv2d(16, 32, 3),
                            torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32 * 11 * 11, 128), torch.nn.ReLU(),
                            torch.nn.Linear(128, 10))
optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
images = torch.randn(640, 1, 28, 28); labels = (images.mean((1, 2, 3)) * 100).long().remainder(10)
for epoch in range(int(sys.argv[1])):
    total = 0.0
    for first in range(0, 640, 64):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[first:first + 64]), labels[first:first + 64])
        loss.backward(); optimiser.step(); total += loss.item()
    print(f'loss{epoch}', repr(total))
print('weights', hashlib.sha256(b''.join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
torch.save(model.state_dict(), 'model.pt')
again = torch.load('model.pt')
print('saved', all(torch.equal(v, again[k]) for k, v in model.state_dict().items()))
"""


def _lines(out: bytes) -> dict:
    return dict(line.split(" ", 1) for line in out.decode().splitlines())


def _numpy(side: Side) -> dict:
    return _lines(side.run(PYTHON, side.script("train.py", NUMPY), "10" if side.quick else "60"))


def _torch(side: Side) -> dict:
    return _lines(side.run(PYTHON, side.script("train.py", TORCH), "1" if side.quick else "4"))


# llama.cpp's example of the library: greedy sampling, no options. Not a Debian package (docs/operations/apps.md).
LLAMA = os.environ.get("TERRACE_LLAMA_SIMPLE") or shutil.which("llama-simple") or "/opt/llama/llama-simple"
_Q4_0, _F32, _WORDS = 2, 0, 4096


def _gguf_value(value) -> bytes:
    """With the number of its type in front: u32, f32, text, or an array of texts, f32 or i32."""
    if isinstance(value, list):
        items = [_gguf_value(one) for one in value]
        kind = struct.pack("<I", 5) if isinstance(value[0], int) else items[0][:4]
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)
    if isinstance(value, bytes):
        return struct.pack("<IQ", 8, len(value)) + value
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def _gguf(width: int, layers: int) -> bytes:
    """A llama model of random weights of 4 bits. Its words tell which number each of them has."""
    chance = random.Random(7)
    tokens = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256))]
    tokens += ["\u2581w{}".format(number).encode() for number in range(len(tokens), _WORDS)]
    values = {"general.architecture": b"llama", "llama.context_length": 2048, "llama.embedding_length": width,
              "llama.block_count": layers, "llama.feed_forward_length": 3 * width,
              "llama.attention.head_count": width // 64, "llama.rope.dimension_count": 64,
              "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.model": b"llama",
              "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [-float(number) for number in range(_WORDS)],
              "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (_WORDS - 259)],
              "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    shapes = {"token_embd": (width, _WORDS), "output_norm": (width,), "output": (width, _WORDS)}
    for layer in range(layers):
        shapes.update({f"blk.{layer}.{name}": (width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output")})
        shapes.update({f"blk.{layer}.{name}": (width, 3 * width) for name in ("ffn_gate", "ffn_up")})
        shapes.update({f"blk.{layer}.ffn_down": (3 * width, width), f"blk.{layer}.attn_norm": (width,),
                       f"blk.{layer}.ffn_norm": (width,)})
    head, data = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(values)), bytearray()
    for name, value in values.items():
        head += struct.pack("<Q", len(name)) + name.encode() + _gguf_value(value)
    for name, shape in shapes.items():
        name += ".weight"
        head += struct.pack("<Q", len(name)) + name.encode()
        head += struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, _Q4_0 if len(shape) == 2 else _F32, len(data))
        if len(shape) == 1:
            data += struct.pack("<f", 1.0) * width
        else:  # 32 weights: a scale, of which the sign is by chance, and 16 bytes
            part = bytearray(chance.randbytes(shape[0] * shape[1] // 32 * 18))
            low, high = struct.pack("<e", 0.5 / width ** 0.5)
            part[0::18] = bytes([low]) * len(part[0::18])
            part[1::18] = bytes(high | byte & 128 for byte in part[1::18])
            data += part
        data += bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32) + data


def _llama(side: Side) -> dict:
    model = side.folder / "model.gguf"
    model.write_bytes(_gguf(*((512, 8) if side.quick else (1024, 8))))
    prompt = " ".join(f"w{number * 31 % 3000 + 300}" for number in range(20 if side.quick else 100))
    # The example would start four threads that spin at each barrier: on a small machine mostly for each other.
    env = {"OMP_THREAD_LIMIT": "2", "OMP_WAIT_POLICY": "passive"}
    out = side.run(LLAMA, "-m", model, "-n", "60" if side.quick else "200", prompt, env=env)
    return {"last words": " ".join(out.decode(errors="replace").split()[-20:]), "all": digest(out)}


APPS = [
    App("numpy", "a training loop, sort, fft, solve; every byte of the results", _numpy,
        modules={"numpy": "python3-numpy"}),
    App("torch", "a small convolutional model, four epochs; every byte of the weights", _torch,
        modules={"torch": "python3-torch"}),
    App("llama", "llama.cpp: words from a model of random weights", _llama, built={LLAMA: "llama-simple"}),
]
