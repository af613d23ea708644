# SPDX-License-Identifier: Apache-2.0
# Steps of GPT-2 124M in PyTorch on the processor: gpt2_torch.py B T STEPS THREADS
# Prints the seconds of each step: forward, loss, backward, clipping, AdamW; fp32, no dropout.
# The numbers of the optimizer are smp-exec's defaults.
import ctypes
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, VOCAB, POSITIONS = 12, 12, 768, 50257, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attention(self, x):
        b, t, _ = x.shape
        q, k, v = (part.view(b, t, HEADS, -1).transpose(1, 2)
                   for part in self.qkv(x).split(WIDTH, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:  # before PyTorch 2
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
            y = scores.masked_fill(hidden, -math.inf).softmax(dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        # PyTorch 1.12 and later have GPT-2's GELU
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def initialize(module):
    """GPT-2's: with PyTorch's own, tied logits are so large that softmax leaves denormal numbers,
    which made a step take five times as long."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.apply(initialize)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.t()
        return F.cross_entropy(logits.view(-1, VOCAB), targets.reshape(-1))


def blas():
    """The kernels that OpenBLAS chose, where it is what the process has loaded."""
    try:
        loaded = ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL | 4)  # RTLD_NOLOAD
        loaded.openblas_get_corename.restype = ctypes.c_char_p
        return (f"OpenBLAS {loaded.openblas_get_corename().decode()}, "
                f"{loaded.openblas_get_num_threads()} threads")
    except (OSError, AttributeError):
        return "MKL" if torch.backends.mkl.is_available() else "unknown"


def main():
    batch, seq, steps, threads = (int(word) for word in sys.argv[1:5])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = GPT2()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=6e-4, betas=(0.9, 0.95), eps=1e-8)
    print(f"# PyTorch {torch.__version__}, {torch.get_num_threads()} threads; BLAS: {blas()}")
    for _ in range(steps):
        rows = torch.randint(VOCAB, (batch, seq + 1))
        start = time.perf_counter()
        loss = model(rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(time.perf_counter() - start, flush=True)


main()
