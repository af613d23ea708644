# SPDX-License-Identifier: Apache-2.0
"""Losses and gradients of tiny models in float64, by PyTorch from plain tensor operations.

Written to reference.h:  python3 reference.py > reference.h   (python3-torch of Debian 12)
Parameters and tokens come from a formula that tests/exec/test_reference.c has too, so only
results are stored: the loss, and of each gradient its norm and its product with a pattern.
"""
import json
import math
import torch

torch.set_default_dtype(torch.float64)
M = 0xFFFFFFFF


def mix(x):
    """A 32-bit hash of a 32-bit number (the finalizer of MurmurHash3)."""
    x ^= x >> 16
    x = x * 0x85EBCA6B & M
    x ^= x >> 13
    x = x * 0xC2B2AE35 & M
    return x ^ x >> 16


def seed_of(name):
    seed = 2166136261
    for c in name.encode():
        seed = (seed ^ c) * 16777619 & M
    return seed


def noise(name, n):
    """n numbers in [-1/2, 1/2), exact in fp32."""
    seed = seed_of(name)
    return torch.tensor([(mix(seed + i & M) >> 8) / 2.0**24 - 0.5 for i in range(n)])


def parameter(name, *shape):
    n = math.prod(shape)
    short = name.split(".")[-1]
    values = noise(name, n)
    if "norm" in short and short.endswith("_w"):
        values = 1.0 + values / 2
    else:
        values = values / 2
    return values.reshape(shape).requires_grad_()


def layer_norm(x, w, b, eps):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    y = (x - mean) / torch.sqrt(var + eps) * w
    return y + b


def rms_norm(x, w, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * w


def frequencies(c, rotated):
    f = [c["rope_theta"] ** (-2 * i / rotated) for i in range(rotated // 2)]
    scaling = c.get("rope_scaling")
    if scaling is None:
        return torch.tensor(f)
    out = []
    old = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    for x in f:
        wave = 2 * math.pi / x
        if wave > old / low:
            out.append(x / scaling["factor"])
        elif wave < old / high:
            out.append(x)
        else:
            s = (old / wave - low) / (high - low)
            out.append((1 - s) * x / scaling["factor"] + s * x)
    return torch.tensor(out)


def rope(x, c, rotated):
    """x: [batch, heads, seq, d]; pairs (i, i + rotated / 2)."""
    angle = torch.arange(x.shape[2])[:, None] * frequencies(c, rotated)[None, :]
    cos, sin = torch.cos(angle), torch.sin(angle)
    a, b = x[..., : rotated // 2], x[..., rotated // 2 : rotated]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., rotated:]], -1)


def activation(kind, x):
    if kind == "silu":
        return x / (1 + torch.exp(-x))
    if kind == "gelu":
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Model:
    def __init__(self, c):
        self.c = c
        self.p = {}

    def get(self, name, *shape):
        if name not in self.p:
            self.p[name] = parameter(name, *shape)
        return self.p[name]

    def linear(self, x, name, out, bias):
        y = x @ self.get(name + "_w", out, x.shape[-1]).T
        return y + self.get(name + "_b", out) if bias else y

    def norm(self, x, name):
        w = self.get(name + "_w", x.shape[-1])
        if self.c["layer_norm"]:
            return layer_norm(x, w, self.get(name + "_b", x.shape[-1]), self.c["eps"])
        return rms_norm(x, w, self.c["eps"])

    def attention(self, x, at):
        c = self.c
        b, s, _ = x.shape
        n, kv, d = c["heads"], c["kv_heads"], c["head_dim"]
        q = self.linear(x, at + "q", n * d, c["qkv_bias"]).view(b, s, n, d).transpose(1, 2)
        k = self.linear(x, at + "k", kv * d, c["qkv_bias"]).view(b, s, kv, d).transpose(1, 2)
        v = self.linear(x, at + "v", kv * d, c["qkv_bias"]).view(b, s, kv, d).transpose(1, 2)
        if c.get("qk_norm"):
            q = rms_norm(q, self.get(at + "q_norm_w", d), c["eps"])
            k = rms_norm(k, self.get(at + "k_norm_w", d), c["eps"])
        if c.get("rope_theta"):
            rotated = int(d * c.get("rotary", 1.0))
            q, k = rope(q, c, rotated), rope(k, c, rotated)
        k = k.repeat_interleave(n // kv, 1)
        v = v.repeat_interleave(n // kv, 1)
        logits = q @ k.transpose(2, 3) / math.sqrt(d)
        i = torch.arange(s)
        seen = i[None, :] <= i[:, None]
        if c.get("window"):
            seen &= i[:, None] - i[None, :] < c["window"]
        p = torch.exp(logits - logits.max()) * seen
        y = (p / p.sum(-1, keepdim=True)) @ v
        y = y.transpose(1, 2).reshape(b, s, n * d)
        return self.linear(y, at + "o", c["hidden"], c["out_bias"])

    def mlp(self, x, at):
        c = self.c
        up = self.linear(x, at + "up", c["ffn"], c["mlp_bias"])
        if c["gated"]:
            up = activation(c["act"], self.linear(x, at + "gate", c["ffn"], False)) * up
        else:
            up = activation(c["act"], up)
        return self.linear(up, at + "down", c["hidden"], c["mlp_bias"])

    def loss(self, ids, targets):
        c = self.c
        x = self.get("embed_w", c["vocab"], c["hidden"])[ids]
        if c.get("positions"):
            x = x + self.get("position_w", c["positions"], c["hidden"])[: ids.shape[1]]
        for layer in range(c["layers"]):
            at = f"{layer}."
            a = self.attention(self.norm(x, at + "norm1"), at)
            if c.get("parallel"):
                x = x + a + self.mlp(self.norm(x, at + "norm2"), at)
            else:
                x = x + a
                x = x + self.mlp(self.norm(x, at + "norm2"), at)
        x = self.norm(x, "final_norm")
        head = self.p["embed_w"] if c["tied"] else self.get("head_w", c["vocab"], c["hidden"])
        logits = x @ head.T
        lse = torch.log(torch.exp(logits).sum(-1))
        return (lse - logits.gather(2, targets[..., None])[..., 0]).mean()


LLAMA = dict(vocab=29, hidden=16, ffn=24, layers=2, heads=4, kv_heads=2, head_dim=4, eps=1e-5,
             layer_norm=False, qkv_bias=False, out_bias=False, mlp_bias=False, gated=True,
             act="silu", rope_theta=100.0, tied=False)
LLAMA_HF = dict(model_type="llama", vocab_size=29, hidden_size=16, intermediate_size=24,
                num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                max_position_embeddings=16, rms_norm_eps=1e-5, rope_theta=100.0,
                tie_word_embeddings=False)
SCALING = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=64)

CASES = {
    "llama": (LLAMA, LLAMA_HF),
    "llama3": (dict(LLAMA, rope_scaling=SCALING), dict(LLAMA_HF, rope_scaling=SCALING)),
    "qwen2": (dict(LLAMA, qkv_bias=True, tied=True),
              dict(LLAMA_HF, model_type="qwen2", tie_word_embeddings=True)),
    "qwen3": (dict(LLAMA, qk_norm=True, head_dim=6, tied=True),
              dict(LLAMA_HF, model_type="qwen3", head_dim=6, tie_word_embeddings=True)),
    "mistral": (dict(LLAMA, window=5), dict(LLAMA_HF, model_type="mistral", sliding_window=5)),
    "gpt2": (dict(vocab=29, hidden=16, ffn=64, layers=2, heads=4, kv_heads=4, head_dim=4,
                  eps=1e-5, layer_norm=True, qkv_bias=True, out_bias=True, mlp_bias=True,
                  gated=False, act="gelu_new", positions=16, tied=True),
             dict(model_type="gpt2", vocab_size=29, n_embd=16, n_layer=2, n_head=4,
                  n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
    "gpt_neox": (dict(vocab=29, hidden=16, ffn=24, layers=2, heads=2, kv_heads=2, head_dim=8,
                      eps=1e-5, layer_norm=True, qkv_bias=True, out_bias=True, mlp_bias=True,
                      gated=False, act="gelu", rope_theta=100.0, rotary=0.5, parallel=True,
                      tied=False),
                 dict(model_type="gpt_neox", vocab_size=29, hidden_size=16,
                      intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                      max_position_embeddings=16, rotary_pct=0.5, rotary_emb_base=100,
                      layer_norm_eps=1e-5, hidden_act="gelu", use_parallel_residual=True,
                      tie_word_embeddings=False)),
}


HEAD = """/* SPDX-License-Identifier: Apache-2.0 */
/* Made by reference.py beside it; not to be edited. */
#ifndef TESTS_EXEC_REFERENCE_REFERENCE_H
#define TESTS_EXEC_REFERENCE_REFERENCE_H

typedef struct reference_gradient { const char *name; double norm, dot; } reference_gradient;"""


def main():
    print(HEAD)
    for name, (c, hf) in CASES.items():
        model = Model(c)
        ids = torch.tensor([[mix(7919 * b + i) % c["vocab"] for i in range(12)]
                            for b in range(2)])
        targets = torch.tensor([[mix(104729 + 7919 * b + i) % c["vocab"] for i in range(12)]
                                for b in range(2)])
        loss = model.loss(ids, targets)
        loss.backward()
        print(f"\nstatic const reference_gradient {name}_gradients[] = {{")
        for key in sorted(model.p):
            g = model.p[key].grad.flatten()
            dot = (g * noise("probe." + key, len(g))).sum().item()
            print(f'    {{ "{key}", {g.norm().item():.15e}, {dot:.15e} }},')
        print("};")
        text = json.dumps(hf).replace('"', '\\"')
        lines = [text[i : i + 80] for i in range(0, len(text), 80)]
        while any(line.endswith("\\") for line in lines[:-1]):
            i = next(i for i, line in enumerate(lines[:-1]) if line.endswith("\\"))
            lines[i], lines[i + 1] = lines[i][:-1], "\\" + lines[i + 1]
        print(f"static const char {name}_config[] =")
        print("\n".join(f'    "{line}"' for line in lines) + ";")
        print(f"static const double {name}_loss = {loss.item():.15e};")
    print("\n#endif")


main()
