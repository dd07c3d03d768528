// SPDX-License-Identifier: Apache-2.0
#include "bindings/nixl/registrations.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <cctype>

#include "bindings/nixl/copy_job.h"
#include "bindings/nixl/settings.h"

namespace terrace::nixl {
namespace {

constexpr size_t shown_bytes_max = 100;

// Another agent may say anything: only lines of what is registered are touched.
void acquire_written(const Registration& one, const WrittenRange& written) {
  const auto* const memory = reinterpret_cast<const std::byte*>(one.address);
  if (written.lease == 0) return acquire(memory, one.bytes);
  if (written.lease != one.leased->lease->id().value) return;
  const uint64_t begin = std::max(written.offset, one.leased->offset);
  const uint64_t written_end = written.offset + std::min(written.bytes, UINT64_MAX - written.offset);
  const uint64_t end = std::min(written_end, one.leased->offset + one.bytes);
  if (begin < end) acquire(memory + (begin - one.leased->offset), end - begin);
}

}  // namespace

void NoncoherentMemory::add(const Registration& one) {
  const MutexLock lock(mutex_);
  if (one.leased && !one.leased->coherent) all_.insert(&one);
}

void NoncoherentMemory::remove(const Registration& one) {
  const MutexLock lock(mutex_);
  all_.erase(&one);
}

void NoncoherentMemory::publish_all() {
  const MutexLock lock(mutex_);
  for (const Registration* one : all_) publish(reinterpret_cast<const std::byte*>(one->address), one->bytes);
}

void NoncoherentMemory::acquire(const std::string& enclosure) {
  const MutexLock lock(mutex_);
  for (size_t at = 0; at + sizeof(WrittenRange) <= enclosure.size(); at += sizeof(WrittenRange)) {
    WrittenRange written;
    std::memcpy(&written, enclosure.data() + at, sizeof written);
    for (const Registration* one : all_) acquire_written(*one, written);
  }
}

std::string to_enclosure(const std::vector<WrittenRange>& ranges) {
  std::string words(ranges.size() * sizeof(WrittenRange), '\0');
  if (!ranges.empty()) std::memcpy(words.data(), ranges.data(), words.size());
  return words;
}

std::vector<WrittenRange> merged(std::vector<WrittenRange> ranges) {
  std::ranges::sort(ranges, {}, [](const WrittenRange& one) { return std::pair(one.lease, one.offset); });
  std::vector<WrittenRange> all;
  for (const WrittenRange& one : ranges) {
    if (all.empty() || all.back().lease != one.lease || all.back().offset + all.back().bytes < one.offset)
      all.push_back(one);
    else
      all.back().bytes = std::max(all.back().bytes, one.offset + one.bytes - all.back().offset);
  }
  return all;
}

nixl_status_t status_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::invalid_argument: return NIXL_ERR_INVALID_PARAM;
    case ErrorCode::not_found: return NIXL_ERR_NOT_FOUND;
    case ErrorCode::permission_denied: return NIXL_ERR_NOT_ALLOWED;
    case ErrorCode::limit_exceeded:
    case ErrorCode::corrupt: return NIXL_ERR_MISMATCH;
    case ErrorCode::unsupported: return NIXL_ERR_NOT_SUPPORTED;
    default: return NIXL_ERR_BACKEND;
  }
}

nixl_status_t fail(const Error& error) {
  complain(error.to_string());
  return status_of(error);
}

nixl_status_t fail(nixl_status_t status, const std::string& text) {
  complain(text);
  return status;
}

std::string shown(const std::string& key) {
  std::string text;
  for (const char one : key.substr(0, shown_bytes_max)) {
    const auto value = static_cast<unsigned char>(one);
    if (value >= 0x20 && value < 0x7f)
      text += one;
    else
      text += std::string("\\x") + hex_digits[value / 16] + hex_digits[value % 16];
  }
  return key.size() > shown_bytes_max ? text + "..." : text;
}

}  // namespace terrace::nixl
