"""Writes a trained model as a Hugging Face gpt-oss checkpoint: experts in MXFP4, everything else in bfloat16."""

import json
import struct

import torch

import mxfp4


def config_json(config, end, pad):
    """config.json of the checkpoint."""
    layers = config.num_hidden_layers
    return {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": end, "pad_token_id": pad,
        "experts_per_token": config.num_experts_per_tok, "num_experts_per_tok": config.num_experts_per_tok, "head_dim": config.head_dim,
        "hidden_act": "silu", "hidden_size": config.hidden_size, "initial_context_length": config.rope_original, "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "layer_types": ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(layers)], "max_position_embeddings": 131072,
        "model_type": "gpt_oss", "num_attention_heads": config.num_attention_heads, "num_hidden_layers": layers,
        "num_key_value_heads": config.num_key_value_heads, "num_local_experts": config.num_local_experts, "output_router_logits": False,
        "rms_norm_eps": config.rms_norm_eps, "rope_theta": int(config.rope_theta),
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": config.rope_factor, "original_max_position_embeddings": config.rope_original,
                         "rope_type": "yarn", "truncate": False},
        "router_aux_loss_coef": 0.9, "sliding_window": config.sliding_window, "swiglu_limit": config.swiglu_limit, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": config.vocab_size,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                                      "model.embed_tokens", "lm_head"]},
    }


def tensors(state):
    """The checkpoint's tensors by name, from a state dictionary of `model.Model`."""
    out = {}
    for name, value in state.items():
        value = value.detach().float().cpu()
        for expert in ("gate_up_proj", "down_proj"):
            if name.endswith(f"mlp.{expert}"):
                base = name.replace(f"mlp.{expert}", f"mlp.experts.{expert}")
                out[f"model.{base}_blocks"], out[f"model.{base}_scales"] = mxfp4.pack(value)
                break
            if name.endswith(f"mlp.{expert}_bias"):
                name = name.replace("mlp.", "mlp.experts.")
        else:
            out[name if name.startswith("lm_head") else f"model.{name}"] = value.to(torch.bfloat16)
    return out


def save_tensors(tensors_by_name, path):
    """A safetensors file, written by hand: a JSON header, then the data in the order of the header."""
    kinds = {torch.uint8: "U8", torch.bfloat16: "BF16"}
    header, data, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors_by_name):
        tensor = tensors_by_name[name].contiguous()
        raw = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().tobytes()
        header[name] = {"dtype": kinds[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def write(model, folder, end, pad):
    """config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(tensors(model.state_dict()), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_json(model.config, end, pad), indent=1) + "\n")
