# SPDX-License-Identifier: Apache-2.0
"""A llama model of random weights as a GGUF file, by gguf-py: `model.py FILE [--width N] [--layers N] [--type f16|q8_0] [--seed N]`."""

import argparse
import pathlib

import gguf
import numpy

WORDS = 1024


def write(path: pathlib.Path, width: int, layers: int, kind: str, seed: int) -> None:
    chance = numpy.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(3 * width)
    writer.add_head_count(width // 64)
    writer.add_head_count_kv(width // 64)
    writer.add_rope_dimension_count(64)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"\u2581w{number}" for number in range(len(tokens), WORDS)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(number) for number in range(WORDS)])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (WORDS - 259)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def add(name: str, *shape: int) -> None:
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", numpy.ones(shape, dtype=numpy.float32))
            return
        values = (chance.standard_normal(shape, dtype=numpy.float32) * shape[-1] ** -0.5).astype(numpy.float32)
        if kind == "q8_0":
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(f"{name}.weight", values.astype(numpy.float16))

    add("token_embd", WORDS, width)
    add("output_norm", width)
    add("output", WORDS, width)
    for layer in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}", width, width)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{name}", 3 * width, width)
        add(f"blk.{layer}.ffn_down", width, 3 * width)
        add(f"blk.{layer}.attn_norm", width)
        add(f"blk.{layer}.ffn_norm", width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes a llama model of random weights.")
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--type", default="f16", choices=("f16", "q8_0"))
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    write(asked.file, asked.width, asked.layers, asked.type, asked.seed)


if __name__ == "__main__":
    main()
