// SPDX-License-Identifier: Apache-2.0
// A checkpoint's manifest, also as somebody else might write it.
#include "libclient/checkpoint/manifest.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>

#include "core/base/crc32c.h"
#include "core/base/prng.h"

using namespace terrace;
using namespace terrace::checkpoint;

namespace {

Manifest example() {
  Manifest manifest;
  manifest.name = "step-7";
  manifest.created_unix_ns = 1'700'000'000'000'000'000;
  manifest.tensors = 3;
  manifest.tensor_bytes = 33 * mib;
  manifest.file_bytes = 33 * mib + 4096;
  manifest.crc32c = {1, 0xdeadbeef, 0xffffffff};
  return manifest;
}

// With its checksum, so that what is behind it is looked at.
std::string sealed(const nlohmann::json& document) {
  const std::string line = document.dump() + "\n";
  char trailer[24];
  std::snprintf(trailer, sizeof trailer, "crc32c %08x\n",
                crc32c(std::as_bytes(std::span(line.data(), line.size()))));
  return line + trailer;
}

}  // namespace

TEST_CASE("checkpoint manifest: what was written is read") {
  const Manifest manifest = example();
  const auto read = read_manifest(write_manifest(manifest), "x");
  REQUIRE(read.ok());
  CHECK(read->name == manifest.name);
  CHECK(read->created_unix_ns == manifest.created_unix_ns);
  CHECK(read->tensors == 3);
  CHECK(read->tensor_bytes == manifest.tensor_bytes);
  CHECK(read->file_bytes == manifest.file_bytes);
  CHECK(read->chunk_bytes == chunk_bytes);
  CHECK(read->crc32c == manifest.crc32c);
}

TEST_CASE("checkpoint manifest: any changed byte, and any missing one, is noticed") {
  const std::string text = write_manifest(example());
  Prng prng(1);
  for (size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ static_cast<char>(1 + prng.below(255)));
    const auto read = read_manifest(damaged, "x");
    REQUIRE(!read.ok());
    CHECK(read.error().code == ErrorCode::corrupt);
    CHECK(!read_manifest(text.substr(0, at), "x").ok());
  }
}

TEST_CASE("checkpoint manifest: fields that lie are refused, whatever their checksum says") {
  const std::string text = write_manifest(example());
  const nlohmann::json good = nlohmann::json::parse(text.substr(0, text.find('\n')));
  CHECK(read_manifest(sealed(good), "x").ok());
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = good;
    changed[key] = value;
    const auto read = read_manifest(sealed(changed), "x");
    REQUIRE(!read.ok());
    return read.error().code;
  };
  for (const char* key :
       {"name", "file", "file_bytes", "tensors", "tensor_bytes", "chunk_bytes", "crc32c", "created_unix_ns"}) {
    CHECK(refused(key, nullptr) == ErrorCode::corrupt);
    CHECK(refused(key, -1) == ErrorCode::corrupt);
    CHECK(refused(key, 1.5) == ErrorCode::corrupt);
  }
  CHECK(refused("terrace_checkpoint", 2) == ErrorCode::version_mismatch);
  CHECK(refused("file", "../../etc/passwd") == ErrorCode::corrupt);
  CHECK(refused("chunk_bytes", 0) == ErrorCode::corrupt);
  CHECK(refused("chunk_bytes", 3 * mib) == ErrorCode::corrupt);
  CHECK(refused("file_bytes", UINT64_MAX) == ErrorCode::corrupt);
  CHECK(refused("crc32c", nlohmann::json::array({"00000001", "00000002"})) == ErrorCode::corrupt);
  CHECK(refused("crc32c", nlohmann::json::array({"00000001", "00000002", "0000000G"})) == ErrorCode::corrupt);
  CHECK(!read_manifest(sealed(nlohmann::json::array()), "x").ok());
}

TEST_CASE("checkpoint names: no path, no hidden file, nothing that a shell would take amiss") {
  for (const char* name : {"a", "step-1000", "A.b_c-9", "0"}) CHECK(check_name(name).ok());
  for (const char* name : {"", ".", "..", ".hidden", "a/b", "a b", "a\n", "\xc3\xa4", "a*"})
    CHECK(!check_name(name).ok());
  CHECK(check_name(std::string(128, 'x')).ok());
  CHECK(!check_name(std::string(129, 'x')).ok());
}
