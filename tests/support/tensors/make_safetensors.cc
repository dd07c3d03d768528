// SPDX-License-Identifier: Apache-2.0
// Writes a safetensors file of GPT-2-small's shape with deterministic values, without holding it in memory. It
// shares no code with Terrace's reader or writer, so that each is a check on the other.
//
//   make_safetensors FILE [--seed N] [--layers N] [--scale N] [--dtype F32|BF16] [--checksums FILE]
//
// --scale divides width, vocabulary and positions. --checksums writes {"name": "crc32c in hex"} as JSON.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/crc32c.h"
#include "core/base/prng.h"

namespace {

struct Tensor {
  std::string name;
  std::vector<uint64_t> shape;

  uint64_t elements() const {
    uint64_t product = 1;
    for (const uint64_t dimension : shape) product *= dimension;
    return product;
  }
};

std::vector<Tensor> gpt2(uint64_t layers, uint64_t scale) {
  const auto scaled = [scale](uint64_t full) { return full / scale > 0 ? full / scale : uint64_t{1}; };
  const uint64_t width = scaled(768);
  std::vector<Tensor> tensors = {{"wte.weight", {scaled(50257), width}}, {"wpe.weight", {scaled(1024), width}}};
  const auto pair = [&](const std::string& name, std::vector<uint64_t> shape) {
    const uint64_t out = shape.back();
    tensors.push_back({name + ".weight", std::move(shape)});
    tensors.push_back({name + ".bias", {out}});
  };
  for (uint64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "h." + std::to_string(layer) + ".";
    pair(prefix + "ln_1", {width});
    pair(prefix + "attn.c_attn", {width, 3 * width});
    pair(prefix + "attn.c_proj", {width, width});
    pair(prefix + "ln_2", {width});
    pair(prefix + "mlp.c_fc", {width, 4 * width});
    pair(prefix + "mlp.c_proj", {4 * width, width});
  }
  pair("ln_f", {width});
  return tensors;
}

std::string header_for(const std::vector<Tensor>& tensors, const std::string& dtype, uint64_t element_bytes) {
  std::string json = "{\"__metadata__\":{\"format\":\"pt\"}";
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    json += ",\"" + tensor.name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[";
    for (size_t index = 0; index < tensor.shape.size(); ++index) {
      json += (index > 0 ? "," : "") + std::to_string(tensor.shape[index]);
    }
    const uint64_t end = offset + tensor.elements() * element_bytes;
    json += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  return json;
}

// Small numbers around zero, as weights are: 24 random bits, scaled to [-0.0625, 0.0625).
void fill(terrace::Prng& prng, bool bf16, std::vector<std::byte>& buffer, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes;) {
    uint64_t bits = prng.next();
    for (int half = 0; half < 2 && at < bytes; ++half, bits >>= 32) {
      const float value = static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(bits)) >> 8) * 0x1p-27f;
      uint32_t pattern = 0;
      std::memcpy(&pattern, &value, sizeof pattern);
      if (bf16) pattern >>= 16;
      const size_t width = bf16 ? 2 : 4;
      std::memcpy(buffer.data() + at, &pattern, width);
      at += width;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Writes a safetensors file of GPT-2-small's shape");
  std::string path;
  std::string checksums_path;
  std::string dtype = "F32";
  uint64_t seed = 1;
  uint64_t layers = 12;
  uint64_t scale = 1;
  app.add_option("file", path)->required();
  app.add_option("--seed", seed, "Other values for another seed");
  app.add_option("--layers", layers, "Transformer blocks (12)")->check(CLI::Range(0, 1000));
  app.add_option("--scale", scale, "Divide width, vocabulary and positions by this")->check(CLI::Range(1, 768));
  app.add_option("--dtype", dtype, "F32 or BF16")->check(CLI::IsMember({"F32", "BF16"}));
  app.add_option("--checksums", checksums_path, "Write each tensor's crc32c there, as JSON");
  CLI11_PARSE(app, argc, argv);

  const bool bf16 = dtype == "BF16";
  const uint64_t element_bytes = bf16 ? 2 : 4;
  const std::vector<Tensor> tensors = gpt2(layers, scale);
  const std::string header = header_for(tensors, dtype, element_bytes);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    std::perror(path.c_str());
    return 1;
  }
  const uint64_t header_bytes = header.size();
  bool good = std::fwrite(&header_bytes, sizeof header_bytes, 1, file) == 1 &&
              std::fwrite(header.data(), 1, header.size(), file) == header.size();
  std::string checksums = "{";
  std::vector<std::byte> buffer(1 << 20);
  uint64_t total = 0;
  for (size_t index = 0; good && index < tensors.size(); ++index) {
    terrace::Prng prng(seed * 1'000'003 + index);
    uint64_t left = tensors[index].elements() * element_bytes;
    total += left;
    uint32_t checksum = 0;
    while (good && left > 0) {
      const uint64_t bytes = left < buffer.size() ? left : buffer.size();
      fill(prng, bf16, buffer, bytes);
      checksum = terrace::crc32c(std::span(buffer).first(bytes), checksum);
      good = std::fwrite(buffer.data(), 1, bytes, file) == bytes;
      left -= bytes;
    }
    char text[16];
    std::snprintf(text, sizeof text, "%08x", checksum);
    checksums += (index > 0 ? ",\n \"" : "\n \"") + tensors[index].name + "\": \"" + text + "\"";
  }
  if (std::fclose(file) != 0 || !good) {
    std::perror(path.c_str());
    return 1;
  }
  if (!checksums_path.empty()) {
    std::FILE* out = std::fopen(checksums_path.c_str(), "w");
    if (out == nullptr || std::fprintf(out, "%s\n}\n", checksums.c_str()) < 0 || std::fclose(out) != 0) {
      std::perror(checksums_path.c_str());
      return 1;
    }
  }
  std::printf("%s: %zu tensors, %llu bytes of values\n", path.c_str(), tensors.size(),
              static_cast<unsigned long long>(total));
  return 0;
}
