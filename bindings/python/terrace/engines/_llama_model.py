# SPDX-License-Identifier: Apache-2.0
"""What a state of llama.cpp depends on, as a namespace of a KV space."""

import hashlib
import json
import os

import llama_cpp

from terrace import kv

_FORMAT = 1  # of what terrace.engines.llama_cpp stores; another one has another namespace
_PIECE, _PIECES = 256 << 10, 32
_ROPE = ("rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast",
         "yarn_beta_slow", "yarn_orig_ctx")


def _file_sample(path: str) -> str:
    """Of a file's size, and of pieces from all over its content: 8 MiB at most are read."""
    size = os.path.getsize(path)
    found = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
    with open(path, "rb") as file:
        for number in range(_PIECES):
            file.seek(max(0, size - _PIECE) * number // (_PIECES - 1))
            found.update(file.read(_PIECE))
    return found.hexdigest()


def _state_version(llama) -> str:
    """As the library itself writes it at the head of a file, whatever version its Python interface is of."""
    memory = os.memfd_create("llama-state")
    try:
        path = f"/proc/self/fd/{memory}".encode()
        llama_cpp.llama_state_seq_save_file(llama._ctx.ctx, path, 0, (llama_cpp.llama_token * 1)(), 0)
        head = os.pread(memory, 8, 0)
    finally:
        os.close(memory)
    if len(head) != 8:
        raise RuntimeError("llama_state_seq_save_file() wrote no head: the version of llama.cpp's states is not known")
    return head.hex()


def model_namespace(llama, tenant: str = "") -> str:
    """Of the model's file, what its states were computed with, and their format: a change of any never meets old states.
    The size of the context is not in it: a state fits in any that has room for its tokens."""
    context = llama.context_params
    lora = (_file_sample(llama.lora_path), llama.lora_scale) if llama.lora_path else None
    model = [sorted(llama.metadata.items()), _file_sample(llama.model_path), [getattr(context, name) for name in _ROPE], lora,
             repr(llama.kv_overrides)]
    layout = (_FORMAT, _state_version(llama), context.flash_attn_type, int(context.swa_full), int(llama._logits_all))
    return kv.namespace(tenant=tenant, model=hashlib.blake2b(json.dumps(model).encode(), digest_size=16).hexdigest(), tokenizer="gguf",
                        layout="-".join(map(str, layout)), dtype=f"{context.type_k}-{context.type_v}")
