# SPDX-License-Identifier: Apache-2.0
"""Which blocks of vLLM are the same: the namespace of an engine's blocks, and what goes into it."""

import hashlib
import json
import os
import pathlib
import platform

import torch
import vllm
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import get_offload_group_idx

from terrace import kv

__all__ = ["UNSTABLE", "chains", "check_hashes", "check_numbers", "check_texts", "keys_identity", "model_identity", "name_space", "parents"]

UNSTABLE = ("vLLM's hashes of blocks begin with a random number of this process, so that no other engine finds them: use "
            "--prefix-caching-hash-algo sha256_cbor (or sha256), or set PYTHONHASHSEED to the same number for all engines")
_STABLE = ("sha256", "sha256_cbor")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
RUN_MAX = 64
_PIECES, _PIECE_BYTES = 256, 4096  # of each file of weights


def parents(req_context, keys) -> list:
    """The key of the block before each in its prompt, or None: a prompt's beginning stays longest in the space. vLLM tells the
    ends of all blocks of a request, also of those that the engine itself still has."""
    ends = dict(getattr(req_context, "_offload_key_positions", None) or {key: req_context.get_offload_key_position(key) for key in keys})
    groups = {}  # (end, key), in order
    for key, end in ends.items():
        groups.setdefault(get_offload_group_idx(key), []).append((end or 0, key))
    before = {}
    for chain in groups.values():
        chain.sort()
        before.update({key: earlier for (_, earlier), (_, key) in zip(chain, chain[1:])})
    return [before.get(key) for key in keys]


def chains(blocks):
    """Runs of (key, chunk, parent) of which each is the parent of the next one, and which wait for room together."""
    run = []
    for block in blocks:
        if run and (block[2] != run[-1][0] or len(run) == RUN_MAX):
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def check_hashes(algorithm: str) -> None:
    if algorithm not in _STABLE and os.getenv("PYTHONHASHSEED") is None:
        raise ValueError(f"prefix_caching_hash_algo {algorithm}: {UNSTABLE}")


def check_texts(tier_type: str, **texts) -> None:
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ValueError(f"{name}={value!r} of the tier {tier_type} is no text")


def check_numbers(tier_type: str, **numbers) -> None:
    for name, value in numbers.items():
        lowest = 1 if name.endswith("_threads") else 0
        kinds = (int, float) if name == "wait_s" else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds) or not lowest <= value < float("inf"):
            raise ValueError(f"{name}={value!r} of the tier {tier_type} is no number from {lowest} on")


def keys_identity():
    """Of vLLM's hash function and its seed, by what every chain of hashes begins with. None: the seed is random."""
    if os.getenv("PYTHONHASHSEED") is None and kv_cache_utils.get_none_hash_seed() != kv_cache_utils.DEFAULT_NONE_HASH_SEED:
        return None
    return hashlib.sha256(kv_cache_utils.NONE_HASH).hexdigest()[:16]


def model_identity(vllm_config) -> str:
    """Of a model's configuration, as vLLM sees it, and of its weights, by pieces of their files."""
    model = vllm_config.model_config
    digest = hashlib.sha256(f"{model.compute_hash()} {vllm_config.load_config.load_format}".encode())
    files = _files_of_weights(model)
    if not files:
        raise ValueError(f"no files of weights of the model {model.model} on this machine, by which the tier TerraceTier could know it: "
                         "give the tier variant, a text of your own that changes whenever weights or configuration do")
    for file in files:
        size = file.stat().st_size
        digest.update(f" {file.name} {size} ".encode())
        with file.open("rb") as opened:
            for piece in range(_PIECES):
                opened.seek(piece * max(_PIECE_BYTES, (size - _PIECE_BYTES) // (_PIECES - 1)))
                digest.update(opened.read(_PIECE_BYTES))
    return digest.hexdigest()


def _files_of_weights(model) -> list:
    place = pathlib.Path(model.model)
    if place.is_file():
        return [place]
    if not place.is_dir():
        from huggingface_hub import try_to_load_from_cache
        found = try_to_load_from_cache(model.model, "config.json", revision=model.revision)
        if not isinstance(found, str):
            return []
        place = pathlib.Path(found).parent
    return sorted(file for pattern in _WEIGHTS for file in place.glob(pattern))


def _machine() -> str:
    """What else the order of bytes in a block may depend on: kernels are chosen by it."""
    if not current_platform.is_cpu():
        return current_platform.get_device_name()
    able = [name for name in ("_is_amx_tile_supported", "_is_avx512_supported") if getattr(torch.cpu, name, lambda: False)()]
    return " ".join([platform.machine(), *able])


def name_space(spec, *, tenant: str, variant: str, layout_version: str, row_bytes: int, keys: str) -> str:
    """TENANT/MODEL/HASHES/LAYOUT/DTYPE. Engines whose blocks are the same byte for byte have the same one."""
    config = spec.config
    layout = {
        "groups": [[group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        "tokens_per_hash": config.cache.tokens_per_hash, "blocks_per_chunk": spec.blocks_per_chunk,
        "bytes": [config.worker_kv_bytes_per_block, row_bytes], "layout": config.kv_cache_layout,
        "canonical": config.canonical_layout, "replicated": spec.replicated_layout,
        "ranks": [config.parallel.world_size, config.parallel.tp_size, config.parallel.pp_size, config.parallel.pcp_size,
                  config.parallel.dcp_size],
        "machine": _machine(),
    }
    short = hashlib.sha256(json.dumps(layout, sort_keys=True).encode()).hexdigest()[:16]
    model = hashlib.sha256(json.dumps([config.model.name, str(variant)]).encode()).hexdigest()[:16]
    version = layout_version or ".".join(vllm.__version__.split(".")[:2])
    return kv.namespace(tenant=tenant, model=f"{pathlib.PurePath(config.model.name).name[:48]}-{model}", tokenizer=f"keys-{keys}",
                        layout=f"vllm-{version}-{short}", dtype=config.model.dtype)
