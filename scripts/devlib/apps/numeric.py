"""numpy and torch (Debian's, for /usr/bin/python3): a training loop with a fixed seed ends in the same bytes."""

from devlib.apps.registry import App
from devlib.apps.side import PYTHON, Side

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


APPS = [
    App("numpy", "a training loop, sort, fft, solve; every byte of the results", _numpy,
        modules={"numpy": "python3-numpy"}),
    App("torch", "a small convolutional model, four epochs; every byte of the weights", _torch,
        modules={"torch": "python3-torch"}),
]
