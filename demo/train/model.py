"""The gpt-oss architecture in PyTorch, for training: attention sinks, sliding and full layers, YaRN, top-4 experts.

All experts run on all tokens as two dense products with zero routing weights for those not chosen: at this size
that is faster than gathering. Several documents share a row; attention never crosses from one to another.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

import mxfp4


@dataclasses.dataclass
class Config:
    """Sizes; the names are those of config.json."""

    vocab_size: int = 3072
    hidden_size: int = 256
    intermediate_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 64
    num_local_experts: int = 8
    num_experts_per_tok: int = 4
    sliding_window: int = 128
    rms_norm_eps: float = 1e-5
    rope_theta: float = 150000.0
    rope_factor: float = 32.0
    rope_original: int = 4096
    swiglu_limit: float = 7.0


def yarn(config, length):
    """`(cos, sin)` of shape [length, head_dim/2], scaled as YaRN asks (arXiv:2309.00071)."""
    dim, base, original = config.head_dim, config.rope_theta, config.rope_original
    position = base ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def rotations(count):
        return dim * math.log(original / (count * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(rotations(32.0), 0), min(rotations(1.0), dim - 1)
    keep = 1 - ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    frequency = (1 - keep) / (config.rope_factor * position) + keep / position
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    scale = 0.1 * math.log(config.rope_factor) + 1.0
    return (angle.cos() * scale).float(), (angle.sin() * scale).float()


def rotate(x, cos, sin):
    """Rotary embedding of `x` [batch, length, heads, head_dim], first half against second half."""
    first, second = x.float().chunk(2, -1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.eps = config.rms_norm_eps

    def forward(self, x):
        x = x.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def sink_softmax(scores, mask, sinks):
    """Softmax over the last axis with one more logit per head that takes weight but has no value."""
    scores = torch.where(mask, scores.float(), float("-inf"))
    top = torch.maximum(scores.amax(-1, keepdim=True), sinks).detach()
    weights = torch.exp(scores - top)
    return weights / (weights.sum(-1, keepdim=True) + torch.exp(sinks - top))


class Attention(nn.Module):
    """Grouped-query attention with sinks; `window` is 0 for a full layer."""

    def __init__(self, config, window):
        super().__init__()
        self.heads, self.kv, self.dim, self.window = config.num_attention_heads, config.num_key_value_heads, config.head_dim, window
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.dim)
        self.k_proj = nn.Linear(config.hidden_size, self.kv * self.dim)
        self.v_proj = nn.Linear(config.hidden_size, self.kv * self.dim)
        self.o_proj = nn.Linear(self.heads * self.dim, config.hidden_size)
        self.sinks = nn.Parameter(torch.zeros(self.heads))

    def forward(self, x, cos, sin, document):
        batch, length, _ = x.shape
        q = rotate(self.q_proj(x).view(batch, length, self.heads, self.dim), cos, sin)
        k = rotate(self.k_proj(x).view(batch, length, self.kv, self.dim), cos, sin)
        v = self.v_proj(x).view(batch, length, self.kv, self.dim)
        q = q.view(batch, length, self.kv, self.heads // self.kv, self.dim)
        position = torch.arange(length, device=x.device)
        sinks = self.sinks.float().view(self.kv, -1, 1, 1)
        if self.window and length % self.window == 0 and length > self.window:
            out = self.blocked(q, k, v, position, document, sinks)
        else:
            scores = torch.einsum("bqgrd,bkgd->bgrqk", q, k) * self.dim**-0.5
            mask = (position[:, None] >= position) & (document[:, :, None] == document[:, None, :])
            if self.window:
                mask = mask & (position[:, None] - position < self.window)
            weights = sink_softmax(scores, mask[:, None, None], sinks).to(v.dtype)
            out = torch.einsum("bgrqk,bkgd->bqgrd", weights, v)
        return self.o_proj(out.reshape(batch, length, -1))

    def blocked(self, q, k, v, position, document, sinks):
        """The sliding window in blocks of its own size: each block of queries sees its own and the previous block."""
        w = self.window

        def pairs(x, fill):
            now = x.unflatten(1, (-1, w))
            before = F.pad(now[:, :-1], [0, 0] * (now.dim() - 2) + [1, 0], value=fill)
            return torch.cat((before, now), 2)

        keys, values, other = pairs(k, 0.0), pairs(v, 0.0), pairs(document, -1)
        queries, mine = q.unflatten(1, (-1, w)), document.unflatten(1, (-1, w))
        distance = (position[:w, None] + w) - torch.arange(2 * w, device=q.device)
        mask = (distance >= 0) & (distance < w) & (mine[..., :, None] == other[..., None, :])
        scores = torch.einsum("bnqgrd,bnkgd->bngrqk", queries, keys) * self.dim**-0.5
        weights = sink_softmax(scores, mask[:, :, None, None], sinks).to(v.dtype)
        return torch.einsum("bngrqk,bnkgd->bnqgrd", weights, values).flatten(1, 2)


class Experts(nn.Module):
    """Router, experts with clamped interleaved SwiGLU, weighted sum."""

    def __init__(self, config):
        super().__init__()
        e, h, i = config.num_local_experts, config.hidden_size, config.intermediate_size
        self.top, self.limit, self.sizes = config.num_experts_per_tok, config.swiglu_limit, (e, h, i)
        self.router = nn.Linear(h, e)
        self.gate_up_proj = nn.Parameter(torch.empty(e, 2 * i, h))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(e, 2 * i))
        self.down_proj = nn.Parameter(torch.empty(e, h, i))
        self.down_proj_bias = nn.Parameter(torch.zeros(e, h))

    def forward(self, x, quantised):
        e, h, i = self.sizes
        logits = self.router(x).float()
        chosen, ids = logits.topk(self.top, -1)
        routing = torch.zeros_like(logits).scatter(-1, ids, chosen.softmax(-1))
        # Evenness of the load, as in Switch Transformers (arXiv:2101.03961).
        load = (routing > 0).float().mean((0, 1))
        balance = e * (load / self.top * logits.softmax(-1).mean((0, 1))).sum()
        # Straight-through: the forward pass sees the exported values once `quantised` is 1.
        gate_up = self.gate_up_proj + quantised * (mxfp4.fake_quantise(self.gate_up_proj) - self.gate_up_proj).detach()
        down = self.down_proj + quantised * (mxfp4.fake_quantise(self.down_proj) - self.down_proj).detach()
        inner = F.linear(x, gate_up.reshape(e * 2 * i, h), self.gate_up_proj_bias.reshape(-1)).unflatten(-1, (e, i, 2))
        gate, up = inner[..., 0].float().clamp(max=self.limit), inner[..., 1].float().clamp(-self.limit, self.limit)
        act = (up + 1) * gate * torch.sigmoid(1.702 * gate) * routing[..., None]
        out = F.linear(act.to(inner.dtype).flatten(-2), down.permute(1, 0, 2).reshape(h, e * i))
        return out + routing.to(out.dtype) @ self.down_proj_bias.to(out.dtype), balance


class Layer(nn.Module):
    """Attention and experts, each behind a norm and beside the residual."""

    def __init__(self, config, index):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(config), Norm(config)
        self.self_attn = Attention(config, config.sliding_window if index % 2 == 0 else 0)
        self.mlp = Experts(config)

    def forward(self, x, cos, sin, document, quantised):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, document)
        out, balance = self.mlp(self.post_attention_layernorm(x), quantised)
        return x + out, balance


class Model(nn.Module):
    """Tokens [batch, length] and document numbers of the same shape to logits [batch, length, vocabulary]."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = Norm(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.register_buffer("quantised", torch.zeros(()), persistent=False)
        residual = 0.05 / math.sqrt(2 * config.num_hidden_layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                out = name.endswith(("o_proj.weight", "down_proj"))
                nn.init.normal_(parameter, std=residual if out else 0.5 if "embed" in name else 0.05)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens, document):
        cos, sin = (t.to(tokens.device) for t in yarn(self.config, tokens.shape[1])) if not hasattr(self, "rope") else \
            (self.rope[0][: tokens.shape[1]], self.rope[1][: tokens.shape[1]])
        x, balance = self.embed_tokens(tokens), 0.0
        for layer in self.layers:
            x, more = layer(x, cos, sin, document, self.quantised)
            balance = balance + more
        return self.lm_head(self.norm(x)), balance / len(self.layers)
