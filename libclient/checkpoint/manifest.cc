// SPDX-License-Identifier: Apache-2.0
#include "libclient/checkpoint/manifest.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/base/crc32c.h"
#include "terrace/tensor.h"

namespace terrace::checkpoint {
namespace {

constexpr size_t name_bytes_max = 128;

std::string hex(uint32_t number) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", number);
  return text;
}

bool from_hex(std::string_view text, uint32_t* number) {
  if (text.size() != 8) return false;
  *number = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    if (!digit && !letter) return false;
    *number = *number << 4 | static_cast<uint32_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return true;
}

uint32_t crc_of(std::string_view text) {
  return crc32c(std::as_bytes(std::span(text.data(), text.size())));
}

Error corrupt(std::string_view file, std::string what) {
  return {
      .code = ErrorCode::corrupt, .where = "checkpoint", .detail = std::string(file) + ": " + std::move(what)};
}

bool take_number(const nlohmann::json& document, const char* key, uint64_t* number) {
  const auto found = document.find(key);
  if (found == document.end() || !found->is_number_unsigned()) return false;
  *number = found->get<uint64_t>();
  return true;
}

}  // namespace

Status check_name(std::string_view name) {
  bool good = !name.empty() && name.size() <= name_bytes_max && name[0] != '.';
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    good = good && (letter || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-');
  }
  if (good) return {};
  return Error{
      .code = ErrorCode::invalid_argument,
      .where = "checkpoint",
      .detail = quoted_name(name) +
                " is no name of a checkpoint: 1 to 128 letters, digits, '.', '_', '-', the first one no dot"};
}

std::string write_manifest(const Manifest& manifest) {
  std::vector<std::string> checksums;
  checksums.reserve(manifest.crc32c.size());
  for (const uint32_t each : manifest.crc32c) checksums.push_back(hex(each));
  const nlohmann::json document = {{"terrace_checkpoint", manifest_version},
                                   {"name", manifest.name},
                                   {"created_unix_ns", manifest.created_unix_ns},
                                   {"file", data_name},
                                   {"file_bytes", manifest.file_bytes},
                                   {"tensors", manifest.tensors},
                                   {"tensor_bytes", manifest.tensor_bytes},
                                   {"chunk_bytes", manifest.chunk_bytes},
                                   {"crc32c", std::move(checksums)}};
  const std::string line = document.dump() + "\n";
  return line + "crc32c " + hex(crc_of(line)) + "\n";
}

Result<Manifest> read_manifest(std::string_view text, std::string_view file) {
  constexpr size_t trailer_bytes = 16;  // "crc32c ", eight digits, "\n"
  if (text.size() <= trailer_bytes || text.size() > manifest_bytes_max)
    return corrupt(file, "a manifest of " + std::to_string(text.size()) + " bytes");
  const std::string_view line = text.substr(0, text.size() - trailer_bytes);
  const std::string_view trailer = text.substr(line.size());
  uint32_t recorded = 0;
  if (trailer.substr(0, 7) != "crc32c " || trailer.back() != '\n' || !from_hex(trailer.substr(7, 8), &recorded))
    return corrupt(file, "the manifest does not end with its checksum");
  if (recorded != crc_of(line)) return corrupt(file, "the manifest does not have its checksum");
  const nlohmann::json document = nlohmann::json::parse(line, nullptr, false);
  if (!document.is_object()) return corrupt(file, "the manifest is no JSON object");
  uint64_t version = 0;
  if (!take_number(document, "terrace_checkpoint", &version))
    return corrupt(file, "the manifest is not one of a checkpoint");
  if (version != manifest_version)
    return Error{.code = ErrorCode::version_mismatch,
                 .where = "checkpoint",
                 .detail = std::string(file) + ": the manifest is of version " + std::to_string(version) +
                           ", this program reads version " + std::to_string(manifest_version)};
  Manifest manifest;
  const auto name = document.find("name"), data = document.find("file"), sums = document.find("crc32c");
  if (name == document.end() || !name->is_string() || data == document.end() || *data != data_name ||
      !take_number(document, "created_unix_ns", &manifest.created_unix_ns) ||
      !take_number(document, "file_bytes", &manifest.file_bytes) ||
      !take_number(document, "tensors", &manifest.tensors) ||
      !take_number(document, "tensor_bytes", &manifest.tensor_bytes) ||
      !take_number(document, "chunk_bytes", &manifest.chunk_bytes) || sums == document.end() ||
      !sums->is_array())
    return corrupt(file, "the manifest lacks a field, or has one of another kind");
  manifest.name = name->get<std::string>();
  if (!is_power_of_two(manifest.chunk_bytes) || manifest.chunk_bytes < 4 * kib ||
      manifest.chunk_bytes > 64 * mib)
    return corrupt(file, "chunks of " + std::to_string(manifest.chunk_bytes) + " bytes");
  const uint64_t chunks =
      manifest.file_bytes / manifest.chunk_bytes + (manifest.file_bytes % manifest.chunk_bytes != 0 ? 1 : 0);
  if (sums->size() != chunks)
    return corrupt(file, std::to_string(sums->size()) + " checksums in the place of " + std::to_string(chunks));
  for (const nlohmann::json& each : *sums) {
    uint32_t sum = 0;
    if (!each.is_string() || !from_hex(each.get_ref<const std::string&>(), &sum))
      return corrupt(file, "a checksum that is none");
    manifest.crc32c.push_back(sum);
  }
  return manifest;
}

}  // namespace terrace::checkpoint
