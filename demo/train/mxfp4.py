"""MXFP4: blocks of 32 E2M1 codes under one power-of-two scale (OCP Microscaling formats specification)."""

import torch

BLOCK = 32
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _round(scaled):
    """The nearest E2M1 magnitude of non-negative values."""
    step = torch.where(scaled < 2.0, 0.5, torch.where(scaled < 4.0, 1.0, 2.0))
    return (torch.round(scaled / step) * step).clamp(max=6.0)


def _scaled(weight):
    """`(signed E2M1 values, exponents)` of blocks along the last axis; the better of two scales by squared error."""
    blocks = weight.float().unflatten(-1, (-1, BLOCK))
    top = torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True).clamp(min=2.0**-100) / 6.0))
    best, exponent = None, None
    for candidate in (top, top - 1.0):
        scale = torch.exp2(candidate)
        rounded = _round(blocks.abs() / scale) * blocks.sign()
        error = ((rounded * scale - blocks) ** 2).sum(-1, keepdim=True)
        if best is None:
            best, exponent, best_error = rounded, candidate, error
        else:
            better = error < best_error
            best, exponent = torch.where(better, rounded, best), torch.where(better, candidate, exponent)
    return best, exponent


def fake_quantise(weight):
    """The values that the exported weight will have."""
    values, exponent = _scaled(weight)
    return (values * torch.exp2(exponent)).flatten(-2)


def pack(weight):
    """`[..., n]` to `(blocks [..., n/32, 16] u8, low nibble first; scales [..., n/32] u8, E8M0)`."""
    values, exponent = _scaled(weight)
    table = torch.tensor(VALUES, device=weight.device)
    codes = torch.bucketize(values.abs(), table) + 8 * (values < 0).long()
    pairs = codes.to(torch.uint8).unflatten(-1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4), (exponent.squeeze(-1) + 127).to(torch.uint8)


def unpack(blocks, scales):
    """The inverse of `pack`, in float32."""
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()
    table = torch.tensor(VALUES + tuple(-v for v in VALUES), device=blocks.device)
    return (table[codes] * torch.exp2(scales.float() - 127.0)[..., None]).flatten(-2)
