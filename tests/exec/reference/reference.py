# SPDX-License-Identifier: Apache-2.0
"""Losses and gradients of tiny models in float64, by PyTorch from plain tensor operations.

Written to reference.h:  python3 reference.py > reference.h   (python3-torch of Debian 12)
Parameters and tokens come from a formula that tests/exec/test_reference.c has too, so only
results are stored: the loss, of the logits of each token and of each gradient the norm and
the product with a pattern.
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
    values = noise(name, n) / 2
    if "norm" in short and short.endswith("_w"):
        values = 1.0 + values
    return values.reshape(shape).requires_grad_()


def layer_norm(x, w, b, eps):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    y = (x - mean) / torch.sqrt(var + eps) * w
    return y if b is None else y + b


def rms_norm(x, w, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * w


# ---- rotary positions ----


def yarn(c, s, f, rotated):
    def pair(turns):
        old = s["original_max_position_embeddings"]
        return rotated * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(c["rope_theta"]))

    low, high = pair(s.get("beta_fast", 32)), pair(s.get("beta_slow", 1))
    if s.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    out = []
    for i, x in enumerate(f):
        slow = min(max((i - low) / (high - low if high > low else 0.001), 0), 1)
        out.append(x * (1 - slow) + x / s["factor"] * slow)
    return out


def llama3(s, f):
    out = []
    old = s["original_max_position_embeddings"]
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    for x in f:
        wave = 2 * math.pi / x
        if wave > old / low:
            out.append(x / s["factor"])
        elif wave < old / high:
            out.append(x)
        else:
            part = (old / wave - low) / (high - low)
            out.append((1 - part) * x / s["factor"] + part * x)
    return out


def mscale(factor, m):
    return 0.1 * m * math.log(factor) + 1 if factor > 1 else 1.0


def frequencies(c, rotated, seq):
    """Frequency of each pair, and the factor of cosine and sine."""
    f = [c["rope_theta"] ** (-2 * i / rotated) for i in range(rotated // 2)]
    s = c.get("rope_scaling")
    kind = s["rope_type"] if s else "default"
    if kind == "llama3":
        return llama3(s, f), 1.0
    if kind == "linear":
        return [x / s["factor"] for x in f], 1.0
    if kind == "dynamic":
        most = c["max_positions"]
        grown = s["factor"] * max(seq, most) / most - (s["factor"] - 1)
        theta = c["rope_theta"] * grown ** (rotated / (rotated - 2))
        return [theta ** (-2 * i / rotated) for i in range(rotated // 2)], 1.0
    if kind == "yarn":
        scale = mscale(s["factor"], 1)
        if "mscale_all_dim" in s:
            scale = mscale(s["factor"], s["mscale"]) / mscale(s["factor"], s["mscale_all_dim"])
        return yarn(c, s, f, rotated), scale
    if kind == "longrope":
        old = c["original_positions"]
        factors = s["long_factor"] if seq > old else s["short_factor"]
        factor = c["positions_new"] / old
        return [x / y for x, y in zip(f, factors)], math.sqrt(
            1 + math.log(factor) / math.log(old))
    return f, 1.0


def rope(x, c, rotated):
    """x: [batch, heads, seq, d]; pairs (i, i + rotated / 2), or neighbours."""
    f, scale = frequencies(c, rotated, x.shape[2])
    angle = torch.arange(x.shape[2])[:, None] * torch.tensor(f)[None, :]
    cos, sin = scale * torch.cos(angle), scale * torch.sin(angle)
    if c.get("woven"):
        a, b = x[..., 0:rotated:2], x[..., 1:rotated:2]
        y = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        return torch.cat([y, x[..., rotated:]], -1)
    a, b = x[..., : rotated // 2], x[..., rotated // 2 : rotated]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., rotated:]], -1)


def activation(kind, x):
    if kind == "silu":
        return x / (1 + torch.exp(-x))
    if kind == "relu":
        return x * (x > 0)
    if kind == "gelu":
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def cap(x, c):
    return c * torch.tanh(x / c) if c else x


def largest(x, k):
    """Indices of the k largest of each row; what is chosen must be clear."""
    values, order = x.sort(-1, descending=True)
    if k < x.shape[-1]:
        assert (values[..., k - 1] - values[..., k]).min() > 1e-4
    return order[..., :k]


class Model:
    def __init__(self, c):
        self.c = c
        self.p = {}
        self.extra = 0.0

    def get(self, name, *shape):
        if name not in self.p:
            self.p[name] = parameter(name, *shape)
        return self.p[name]

    def linear(self, x, name, out, bias=False):
        y = x @ self.get(name + "_w", out, x.shape[-1]).T
        return y + self.get(name + "_b", out) if bias else y

    def norm(self, x, name, shape=None, bias=None):
        c = self.c
        shape = shape or (x.shape[-1],)
        w = self.get(name + "_w", *shape) + c.get("norm_offset", 0)
        if c["layer_norm"]:
            bias = c.get("norm_bias", True) if bias is None else bias
            return layer_norm(x, w, self.get(name + "_b", *shape) if bias else None, c["eps"])
        return rms_norm(x, w, c["eps"])

    def qk_norm(self, x, name, form):
        """x: [batch, heads, seq, d]."""
        b, n, s, d = x.shape
        if form == "whole":
            flat = x.transpose(1, 2).reshape(b, s, n * d)
            return self.norm(flat, name).view(b, s, n, d).transpose(1, 2)
        if form == "own":
            return self.norm(x.transpose(1, 2), name, (n, d), False).transpose(1, 2)
        return self.norm(x, name)

    def latent(self, x, at):
        """q, k, v of latent attention."""
        c, m = self.c, self.c["latent"]
        b, s, _ = x.shape
        n, nope, turned, v = c["heads"], m["nope"], m["rope"], m["v"]
        if m["q"]:
            q = self.linear(x, at + "q_down", m["q"])
            q = self.linear(self.norm(q, at + "q_down_norm"), at + "q_up", n * (nope + turned))
        else:
            q = self.linear(x, at + "q", n * (nope + turned))
        q = q.view(b, s, n, nope + turned).transpose(1, 2)
        down = self.linear(x, at + "kv_down", m["kv"] + turned)
        kv = self.norm(down[..., : m["kv"]], at + "kv_down_norm")
        kv = self.linear(kv, at + "kv_up", n * (nope + v)).view(b, s, n, nope + v).transpose(1, 2)
        shared = rope(down[..., m["kv"] :][:, None], c, turned).expand(b, n, s, turned)
        q = torch.cat([q[..., :nope], rope(q[..., nope:], c, turned)], -1)
        return q, torch.cat([kv[..., :nope], shared], -1), kv[..., nope:]

    def turns(self, layer):
        every = self.c.get("no_rope_every")
        return self.c.get("rope_theta") and not (every and (layer + 1) % every == 0)

    def after_rope(self, q, k, turned):
        """llama4: norms without weights where q and k turned, else q scaled by position."""
        c = self.c
        if turned and c.get("qk_rms"):
            return rms_norm(q, 1.0, c["eps"]), rms_norm(k, 1.0, c["eps"])
        if not turned and c.get("temperature"):
            scale, floor = c["temperature"]
            steps = torch.floor((torch.arange(q.shape[2]) + 1.0) / floor)
            q = q * (torch.log1p(steps) * scale + 1)[:, None]
        return q, k

    def qkv(self, x, at, window, layer):
        c = self.c
        b, s, _ = x.shape
        n, kv, d = c["heads"], c["kv_heads"], c["head_dim"]
        q = self.linear(x, at + "q", n * d, c["qkv_bias"]).view(b, s, n, d).transpose(1, 2)
        k = self.linear(x, at + "k", kv * d, c["qkv_bias"]).view(b, s, kv, d).transpose(1, 2)
        v = self.linear(x, at + "v", kv * d, c["qkv_bias"]).view(b, s, kv, d).transpose(1, 2)
        if c.get("clip"):
            q, k, v = (t.clamp(-c["clip"], c["clip"]) for t in (q, k, v))
        if c.get("qk_norm"):
            q = self.qk_norm(q, at + "q_norm", c["qk_norm"])
            k = self.qk_norm(k, at + "k_norm", c["qk_norm"])
        if self.turns(layer):
            rotated = int(d * c.get("rotary", 1.0))
            if window and "local_theta" in c:
                c = dict(c, rope_theta=c["local_theta"], rope_scaling=None)
            q, k = rope(q, c, rotated), rope(k, c, rotated)
        q, k = self.after_rope(q, k, self.turns(layer))
        return q, k.repeat_interleave(n // kv, 1), v.repeat_interleave(n // kv, 1)

    def attention(self, x, at, window, layer):
        c = self.c
        b, s, _ = x.shape
        q, k, v = self.latent(x, at) if "latent" in c else self.qkv(x, at, window, layer)
        logits = q @ k.transpose(2, 3) * c.get("scale", 1 / math.sqrt(q.shape[-1]))
        logits = cap(logits, c.get("softcap"))
        i = torch.arange(s)
        if c.get("slopes"):
            logits = logits - torch.tensor(c["slopes"])[:, None, None] * (
                i[:, None] - i[None, :])
        seen = i[None, :] <= i[:, None]
        if window and c.get("chunked"):
            seen &= i[None, :] // window == i[:, None] // window
        elif window:
            seen &= i[:, None] - i[None, :] < window
        p = torch.exp(logits - logits.max()) * seen
        total = p.sum(-1, keepdim=True)
        if c.get("sinks"):
            sinks = self.get(at + "sinks", c["heads"])
            total = total + torch.exp(sinks[:, None, None] - logits.max())
        y = (p / total) @ v
        y = y.transpose(1, 2).reshape(b, s, -1)
        return self.linear(y, at + "o", c["hidden"], c["out_bias"])

    def mlp(self, x, at, ffn, bias, name=""):
        c = self.c
        up = self.linear(x, at + name + "up", ffn, bias)
        if c["gated"]:
            gate = self.linear(x, at + name + "gate", ffn, bias)
            up = activation(c["act"], gate) * up
        else:
            up = activation(c["act"], up)
        return self.linear(up, at + name + "down", c["hidden"], bias)

    # ---- experts ----

    def scores(self, logits, at):
        """Scores, and what the choice is made by."""
        m = self.c["moe"]
        if not m.get("sigmoid"):
            scores = torch.softmax(logits, -1)
            return scores, scores.detach()
        scores = sigmoid(logits)
        if m.get("uncorrected"):
            return scores, scores.detach()
        return scores, scores.detach() + self.get(at + "router_correction", m["experts"])

    def choose(self, by):
        m = self.c["moe"]
        groups = m.get("groups", 1)
        if groups > 1:
            parts = by.view(by.shape[0], groups, -1)
            two = 2 if m.get("sigmoid") else 1
            best = largest(parts.topk(two, -1).values.sum(-1), m["topk_groups"])
            keep = torch.zeros_like(parts[..., 0]).scatter(1, best, 1.0)
            by = (parts - 1e9 * (1 - keep[..., None])).flatten(1)
        return largest(by, m["top_k"])

    def losses(self, logits, chosen):
        """Balancing and z loss [Megatron-LM, moe_utils.py], added to the loss's gradient."""
        m = self.c["moe"]
        tokens, experts = logits.shape
        n = torch.zeros(experts).scatter_add(0, chosen.flatten(), torch.ones(chosen.numel()))
        p = torch.softmax(logits, -1).sum(0)
        aux = experts / (tokens**2 * m["top_k"]) * (p * n).sum()
        z = (torch.logsumexp(logits, -1) ** 2).mean()
        self.extra = self.extra + m.get("aux", 0) * aux + m.get("z", 0) * z

    def experts(self, x, at):
        c, m = self.c, self.c["moe"]
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        e, f, h = m["experts"], m["ffn"], c["hidden"]
        logits = self.linear(x, at + "router", e, m.get("bias"))
        scores, by = self.scores(logits, at)
        chosen = self.choose(by)
        self.losses(logits, chosen)
        weights = scores.gather(1, chosen)
        if m.get("norm_topk"):
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = weights * m.get("scale", 1.0)
        gate, up = self.get(at + "expert_gate_w", e, f, h), self.get(at + "expert_up_w", e, f, h)
        down = self.get(at + "expert_down_w", e, h, f)
        y = torch.zeros_like(x)
        for k in range(m["top_k"]):
            of, weight = chosen[:, k], weights[:, k : k + 1]
            row = x
            if m.get("weighs_input"):
                row, weight = weight * x, 1.0
            a = torch.einsum("th,tfh->tf", row, gate[of])
            b = torch.einsum("th,tfh->tf", row, up[of])
            if m.get("bias"):
                a = a + self.get(at + "expert_gate_b", e, f)[of]
                b = b + self.get(at + "expert_up_b", e, f)[of]
            if c["act"] == "clamped":
                a, b = a.clamp(max=7), b.clamp(-7, 7) + 1
                inner = a * sigmoid(1.702 * a) * b
            else:
                inner = activation(c["act"], a) * b
            d = torch.einsum("tf,thf->th", inner, down[of])
            if m.get("bias"):
                d = d + self.get(at + "expert_down_b", e, h)[of]
            y = y + weight * d
        if m.get("shared"):
            shared = self.mlp(x, at, m["shared"], False, "shared_")
            if m.get("shared_gate"):
                shared = shared * sigmoid(self.linear(x, at + "shared_router", 1))
            y = y + shared
        return y.view(shape)

    # ---- the whole ----

    def branch(self, x, at, attention, layer):
        c = self.c
        place, n = c.get("place", "before"), "1" if attention else "2"
        y = self.norm(x, at + "norm" + n) if place in ("before", "around") else x
        if attention:
            windows = c.get("windows")
            y = self.attention(y, at, windows[layer] if windows else c.get("window"), layer)
        elif "moe" in c and layer >= c["moe"].get("first", 0) and (
                (layer + 1) % c["moe"].get("every", 1) == 0):
            y = self.experts(y, at)
        else:
            y = self.mlp(y, at, c["ffn"], c["mlp_bias"])
        return self.norm(y, at + "post_norm" + n) if place in ("after", "around") else y

    def block(self, x, layer):
        c, at = self.c, f"{layer}."
        if not c.get("parallel"):
            x = x + self.branch(x, at, True, layer)
            return x + self.branch(x, at, False, layer)
        if c.get("single_norm"):
            y = self.norm(x, at + "norm1")
            m = self.mlp(y, at, c["ffn"], c["mlp_bias"])
            return x + self.attention(y, at, c.get("window"), layer) + m
        return x + self.branch(x, at, True, layer) + self.branch(x, at, False, layer)

    def loss(self, ids, targets):
        c = self.c
        x = self.get("embed_w", c["vocab"], c["hidden"])[ids] * c.get("embedding_scale", 1.0)
        if c.get("positions"):
            first = c.get("first_position", 0)
            table = self.get("position_w", c["positions"] + first, c["hidden"])
            x = x + table[first : first + ids.shape[1]]
        if c.get("embed_norm"):
            x = self.norm(x, "embed_norm")
        for layer in range(c["layers"]):
            x = self.block(x, layer)
        x = self.norm(x, "final_norm")
        head = self.p["embed_w"] if c["tied"] else self.get("head_w", c["vocab"], c["hidden"])
        logits = x @ head.T
        if c.get("head_bias"):
            logits = logits + self.get("head_b", c["vocab"])
        logits = cap(logits * c.get("logit_scale", 1.0), c.get("final_cap"))
        self.logits = logits.detach().flatten(0, 1)
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
LATENT = dict(q=0, kv=9, nope=6, rope=4, v=5)
LATENT_HF = dict(LLAMA_HF, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=9,
                 qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5)
YARN = dict(rope_type="yarn", factor=4.0, mscale=1.0, mscale_all_dim=0.7, beta_fast=4.0,
            beta_slow=1.0, original_max_position_embeddings=16)
LINEAR = dict(rope_type="linear", factor=3.0)
PLAIN_YARN = dict(rope_type="yarn", factor=4.0, beta_fast=4.0, beta_slow=1.0,
                  original_max_position_embeddings=16)
OSS_YARN = dict(PLAIN_YARN, truncate=False)
LONG = dict(rope_type="longrope", short_factor=[1.0, 1.5], long_factor=[1.2, 3.0])
GPT2 = dict(vocab=29, hidden=16, ffn=64, layers=2, heads=4, kv_heads=4, head_dim=4, eps=1e-5,
            layer_norm=True, qkv_bias=True, out_bias=True, mlp_bias=True, gated=False,
            act="gelu_new", positions=16, tied=True)
FALCON = dict(GPT2, qkv_bias=False, out_bias=False, mlp_bias=False, act="gelu", ffn=24,
              positions=0)
FALCON_HF = dict(model_type="falcon", vocab_size=29, hidden_size=16, num_hidden_layers=2,
                 num_attention_heads=4, ffn_hidden_size=24, max_position_embeddings=16,
                 rope_theta=100.0)
LLAMA4 = dict(LLAMA, layers=4, woven=True, no_rope_every=3, temperature=(0.7, 3), chunked=True,
              windows=[5, 5, None, 5])
LLAMA4_MOE = dict(experts=4, ffn=10, shared=10, sigmoid=True, uncorrected=True,
                  weighs_input=True)
LLAMA4_HF = dict(LLAMA_HF, model_type="llama4_text", num_hidden_layers=4, head_dim=4,
                 intermediate_size=10, intermediate_size_mlp=24, num_local_experts=4,
                 no_rope_layer_interval=3, attention_chunk_size=5, attn_scale=0.7,
                 floor_scale=3)

CASES = {
    "llama": (LLAMA, LLAMA_HF),
    "llama3": (dict(LLAMA, rope_scaling=SCALING), dict(LLAMA_HF, rope_scaling=SCALING)),
    "qwen2": (dict(LLAMA, qkv_bias=True, tied=True),
              dict(LLAMA_HF, model_type="qwen2", tie_word_embeddings=True)),
    "qwen3": (dict(LLAMA, qk_norm="shared", head_dim=6, tied=True),
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
    "mixtral": (dict(LLAMA, moe=dict(experts=4, top_k=2, ffn=24, norm_topk=True)),
                dict(LLAMA_HF, model_type="mixtral", num_local_experts=4)),
    "mixtral_losses": (dict(LLAMA, moe=dict(experts=4, top_k=2, ffn=24, norm_topk=True,
                                            aux=0.5, z=0.25)),
                       dict(LLAMA_HF, model_type="mixtral", num_local_experts=4)),
    "qwen3_moe": (dict(LLAMA, qk_norm="shared", head_dim=6,
                       moe=dict(experts=6, top_k=3, ffn=10)),
                  dict(LLAMA_HF, model_type="qwen3_moe", head_dim=6, num_experts=6,
                       num_experts_per_tok=3, moe_intermediate_size=10)),
    "qwen2_moe": (dict(LLAMA, qkv_bias=True,
                       moe=dict(experts=4, top_k=2, ffn=10, shared=14, shared_gate=True)),
                  dict(LLAMA_HF, model_type="qwen2_moe", num_experts=4, num_experts_per_tok=2,
                       moe_intermediate_size=10, shared_expert_intermediate_size=14)),
    "deepseek": (dict(LLAMA, moe=dict(experts=4, top_k=2, ffn=10, shared=20, first=1)),
                 dict(LLAMA_HF, model_type="deepseek", n_routed_experts=4,
                      num_experts_per_tok=2, moe_intermediate_size=10, n_shared_experts=2,
                      first_k_dense_replace=1, norm_topk_prob=False)),
    "deepseek_v2": (dict(LLAMA, kv_heads=4, woven=True, latent=LATENT, rope_scaling=YARN,
                         scale=mscale(4.0, 0.7) ** 2 / math.sqrt(10),
                         moe=dict(experts=6, top_k=2, ffn=10, shared=10, first=1, groups=3,
                                  topk_groups=2, scale=1.5)),
                    dict(LATENT_HF, model_type="deepseek_v2", rope_scaling=YARN, n_group=3,
                         topk_group=2, n_routed_experts=6, num_experts_per_tok=2,
                         moe_intermediate_size=10, n_shared_experts=1,
                         first_k_dense_replace=1, routed_scaling_factor=1.5)),
    "deepseek_v3": (dict(LLAMA, kv_heads=4, woven=True, latent=dict(LATENT, q=7),
                         moe=dict(experts=8, top_k=3, ffn=10, shared=10, first=1, groups=4,
                                  topk_groups=2, scale=2.5, sigmoid=True, norm_topk=True)),
                    dict(LATENT_HF, model_type="deepseek_v3", q_lora_rank=7, n_group=4,
                         topk_group=2, n_routed_experts=8, num_experts_per_tok=3,
                         moe_intermediate_size=10, n_shared_experts=1,
                         first_k_dense_replace=1, routed_scaling_factor=2.5)),
    "llama_linear": (dict(LLAMA, rope_scaling=LINEAR), dict(LLAMA_HF, rope_scaling=LINEAR)),
    "llama_yarn": (dict(LLAMA, head_dim=12, rope_scaling=PLAIN_YARN),
                   dict(LLAMA_HF, head_dim=12, rope_scaling=PLAIN_YARN)),
    "gemma": (dict(LLAMA, norm_offset=1, act="gelu_tanh", embedding_scale=4.0, head_dim=6,
                   tied=True),
              dict(LLAMA_HF, model_type="gemma", head_dim=6, tie_word_embeddings=True)),
    "gemma2": (dict(LLAMA, norm_offset=1, act="gelu_tanh", embedding_scale=4.0, head_dim=6,
                    tied=True, place="around", windows=[5, None], softcap=1.5, final_cap=2.0,
                    scale=1 / math.sqrt(8)),
               dict(LLAMA_HF, model_type="gemma2", head_dim=6, tie_word_embeddings=True,
                    sliding_window=5, attn_logit_softcapping=1.5, query_pre_attn_scalar=8,
                    final_logit_softcapping=2.0)),
    "gemma3": (dict(LLAMA, norm_offset=1, act="gelu_tanh", embedding_scale=4.0, head_dim=6,
                    tied=True, place="around", windows=[5, None], scale=1 / math.sqrt(8),
                    qk_norm="shared", local_theta=7.0, rope_scaling=LINEAR),
               dict(LLAMA_HF, model_type="gemma3_text", head_dim=6, tie_word_embeddings=True,
                    sliding_window=5, query_pre_attn_scalar=8, sliding_window_pattern=2,
                    rope_local_base_freq=7.0, rope_scaling=LINEAR)),
    "phi3": (dict(LLAMA, heads=2, kv_heads=1, head_dim=8, rotary=0.5, window=5,
                  rope_scaling=LONG, original_positions=8, positions_new=16),
             dict(LLAMA_HF, model_type="phi3", num_attention_heads=2, num_key_value_heads=1,
                  partial_rotary_factor=0.5, sliding_window=5, rope_scaling=LONG,
                  original_max_position_embeddings=8)),
    "olmo2": (dict(LLAMA, place="after", qk_norm="whole"),
              dict(LLAMA_HF, model_type="olmo2")),
    "falcon": (dict(FALCON, kv_heads=1, parallel=True, single_norm=True, rope_theta=100.0),
               dict(FALCON_HF)),
    "falcon_new": (dict(FALCON, kv_heads=2, parallel=True, rope_theta=100.0),
                   dict(FALCON_HF, new_decoder_architecture=True, num_kv_heads=2)),
    "falcon_alibi": (dict(FALCON, hidden=18, heads=3, head_dim=6, kv_heads=3, qkv_bias=True,
                          out_bias=True, mlp_bias=True,
                          slopes=[2 ** -x / math.sqrt(6) for x in (4, 8, 2)]),
                     dict(FALCON_HF, hidden_size=18, num_attention_heads=3, alibi=True,
                          bias=True, multi_query=False, parallel_attn=False)),
    "cohere": (dict(LLAMA, layer_norm=True, norm_bias=False, woven=True, parallel=True,
                    single_norm=True, logit_scale=0.5, qk_norm="own", tied=True),
               dict(LLAMA_HF, model_type="cohere", layer_norm_eps=1e-5, use_qk_norm=True,
                    logit_scale=0.5, tie_word_embeddings=True)),
    "stablelm": (dict(LLAMA, layer_norm=True, heads=2, kv_heads=1, head_dim=8, rotary=0.5,
                      qk_norm="own", qkv_bias=True),
                 dict(LLAMA_HF, model_type="stablelm", layer_norm_eps=1e-5,
                      num_attention_heads=2, num_key_value_heads=1, qk_layernorm=True,
                      partial_rotary_factor=0.5, use_qkv_bias=True)),
    "starcoder2": (dict(LLAMA, layer_norm=True, gated=False, act="gelu_tanh", qkv_bias=True,
                        out_bias=True, mlp_bias=True, window=5, tied=True),
                   dict(LLAMA_HF, model_type="starcoder2", norm_epsilon=1e-5,
                        sliding_window=5, tie_word_embeddings=True)),
    "bloom": (dict(GPT2, hidden=18, heads=3, kv_heads=3, head_dim=6, ffn=72, positions=0,
                   slopes=[2 ** -x for x in (4, 8, 2)], embed_norm=True),
              dict(model_type="bloom", vocab_size=29, hidden_size=18, n_layer=2, n_head=3)),
    "mpt": (dict(GPT2, norm_bias=False, qkv_bias=False, out_bias=False, mlp_bias=False,
                 act="gelu", positions=0, slopes=[2 ** -x for x in (2, 4, 6, 8)], clip=0.4),
            dict(model_type="mpt", vocab_size=29, d_model=16, n_layers=2, n_heads=4,
                 max_seq_len=16, attn_config=dict(clip_qkv=0.4))),
    "opt": (dict(GPT2, act="relu", ffn=24, first_position=2),
            dict(model_type="opt", vocab_size=29, hidden_size=16, num_hidden_layers=2,
                 num_attention_heads=4, ffn_dim=24, max_position_embeddings=16, dropout=0.0)),
    "gptj": (dict(GPT2, heads=2, kv_heads=2, head_dim=8, ffn=24, positions=0, qkv_bias=False,
                  out_bias=False, rope_theta=10000.0, rotary=0.5, woven=True, parallel=True,
                  single_norm=True, head_bias=True, tied=False),
             dict(model_type="gptj", vocab_size=29, n_embd=16, n_layer=2, n_head=2,
                  n_positions=16, n_inner=24, rotary_dim=4, tie_word_embeddings=False)),
    "phi": (dict(GPT2, heads=2, kv_heads=1, head_dim=8, ffn=24, positions=0, rope_theta=100.0,
                 rotary=0.5, parallel=True, single_norm=True, head_bias=True, tied=False,
                 qk_norm="shared"),
            dict(model_type="phi", vocab_size=29, hidden_size=16, intermediate_size=24,
                 num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                 max_position_embeddings=16, rope_theta=100.0, qk_layernorm=True)),
    "gpt_bigcode": (dict(GPT2, kv_heads=1),
                    dict(model_type="gpt_bigcode", vocab_size=29, n_embd=16, n_layer=2,
                         n_head=4, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0,
                         attn_pdrop=0.0)),
    "gpt_oss": (dict(LLAMA, head_dim=12, qkv_bias=True, out_bias=True, sinks=True,
                     act="clamped", windows=[5, None], rope_scaling=OSS_YARN,
                     moe=dict(experts=4, top_k=2, ffn=24, norm_topk=True, bias=True)),
                dict(LLAMA_HF, model_type="gpt_oss", head_dim=12, num_local_experts=4,
                     num_experts_per_tok=2, sliding_window=5, rope_scaling=OSS_YARN)),
    "dbrx": (dict(LLAMA, layer_norm=True, norm_bias=False, clip=0.4,
                  moe=dict(experts=4, top_k=2, ffn=10, norm_topk=True)),
             dict(model_type="dbrx", vocab_size=29, d_model=16, n_layers=2, n_heads=4,
                  max_seq_len=16, attn_config=dict(clip_qkv=0.4, kv_n_heads=2,
                                                   rope_theta=100.0),
                  ffn_config=dict(ffn_hidden_size=10, moe_num_experts=4, moe_top_k=2))),
    "qwen3_vl_moe": (dict(LLAMA, qk_norm="shared", head_dim=6,
                          moe=dict(experts=6, top_k=3, ffn=10, norm_topk=True)),
                     dict(LLAMA_HF, model_type="qwen3_vl_moe_text", head_dim=6, num_experts=6,
                          num_experts_per_tok=3, moe_intermediate_size=10)),
    "kimi_k2": (dict(LLAMA, kv_heads=4, woven=True, latent=LATENT,
                     moe=dict(experts=8, top_k=3, ffn=10, shared=10, first=1, groups=1,
                              topk_groups=1, scale=2.5, sigmoid=True, norm_topk=True)),
                dict(LATENT_HF, model_type="kimi_k2", n_group=1, topk_group=1,
                     n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=10,
                     n_shared_experts=1, first_k_dense_replace=1,
                     routed_scaling_factor=2.5)),
    "llama4": (dict(LLAMA4, qk_rms=True,
                    moe=dict(LLAMA4_MOE, top_k=1, every=2)),
               dict(LLAMA4_HF, interleave_moe_layer_step=2)),
    "llama4_two": (dict(LLAMA4, layers=2, no_rope_every=2, windows=[5, None],
                        moe=dict(LLAMA4_MOE, top_k=2)),
                   dict(LLAMA4_HF, num_hidden_layers=2, no_rope_layer_interval=2,
                        num_experts_per_tok=2, use_qk_norm=False)),
}


HEAD = """/* SPDX-License-Identifier: Apache-2.0 */
/* Made by reference.py beside it; not to be edited. */
#ifndef TESTS_EXEC_REFERENCE_REFERENCE_H
#define TESTS_EXEC_REFERENCE_REFERENCE_H

#include <stddef.h>

typedef struct reference_gradient { const char *name; double norm, dot; } reference_gradient;
typedef struct reference_logits { double norm, dot; } reference_logits;
typedef struct reference {
    const char *name, *family, *config, *settings;
    double loss;
    const reference_logits *logits; /* of each token */
    const reference_gradient *gradients;
    size_t n;
} reference;"""


def main():
    print(HEAD)
    for name, (c, hf) in CASES.items():
        model = Model(c)
        ids = torch.tensor([[mix(7919 * b + i) % c["vocab"] for i in range(12)]
                            for b in range(2)])
        targets = torch.tensor([[mix(104729 + 7919 * b + i) % c["vocab"] for i in range(12)]
                                for b in range(2)])
        loss = model.loss(ids, targets)
        (loss + model.extra).backward()
        print(f"\nstatic const reference_gradient {name}_gradients[] = {{")
        for key in sorted(model.p):
            g = model.p[key].grad
            g = torch.zeros(model.p[key].numel()) if g is None else g.flatten()
            dot = (g * noise("probe." + key, len(g))).sum().item()
            print(f'    {{ "{key}", {g.norm().item():.15e}, {dot:.15e} }},')
        print("};")
        print(f"static const reference_logits {name}_logits[] = {{")
        for row in model.logits:
            dot = (row * noise("logits.", len(row))).sum().item()
            print(f"    {{ {row.norm().item():.9e}, {dot:.9e} }},")
        print("};")
        text = json.dumps(hf).replace('"', '\\"')
        lines = [text[i : i + 80] for i in range(0, len(text), 80)]
        while any(line.endswith("\\") for line in lines[:-1]):
            i = next(i for i, line in enumerate(lines[:-1]) if line.endswith("\\"))
            lines[i], lines[i + 1] = lines[i][:-1], "\\" + lines[i + 1]
        print(f"static const char {name}_config[] =")
        print("\n".join(f'    "{line}"' for line in lines) + ";")
        print(f"static const double {name}_loss = {loss.item():.15e};")
    print("\nstatic const reference references[] = {")
    for name, (c, hf) in CASES.items():
        m = c.get("moe", {})
        settings = "moe_load_balancing=none moe_z_loss_coeff=0" if m else ""
        if "aux" in m:
            settings = (f"moe_load_balancing=aux_loss moe_aux_loss_coeff={m['aux']} "
                        f"moe_z_loss_coeff={m['z']}")
        print(f'    {{ "{name}", "{hf["model_type"]}", {name}_config,\n      "{settings}",')
        print(f"      {name}_loss, {name}_logits, {name}_gradients,")
        print(f"      sizeof {name}_gradients / sizeof {name}_gradients[0] }},")
    print("};\n\n#endif")


main()
