// SPDX-License-Identifier: Apache-2.0
#include "tests/support/holder.h"

#include <signal.h>
#include <unistd.h>

#include <cstring>

namespace terrace::test {
namespace {

uint64_t page_stamp(uint64_t owner, size_t page) {
  uint64_t value = owner * 0x9e3779b97f4a7c15ull + page;  // an owner's pages differ, and so do two owners'
  value ^= value >> 29;
  value *= 0xbf58476d1ce4e5b9ull;
  return (value ^ (value >> 32)) | 1;  // never zero: a scrubbed page is told from a stamped one
}

void on_sigbus(int number) {
  if (detail::guard != nullptr) siglongjmp(*detail::guard, 1);
  ::signal(number, SIG_DFL);  // not ours: the access repeats and kills
}

}  // namespace

namespace detail {
thread_local sigjmp_buf* guard = nullptr;
}

void say(const std::string& line) {
  const std::string whole = line + '\n';
  [[maybe_unused]] const ssize_t n = ::write(STDOUT_FILENO, whole.data(), whole.size());
}

std::string extents_text(const LeaseInfo& info) {
  std::string text;
  for (const ExtentInfo& extent : info.extents) {
    if (!text.empty()) text += ',';
    text +=
        extent.device + ':' + std::to_string(extent.offset_bytes) + ':' + std::to_string(extent.length_bytes);
  }
  return text;
}

size_t first_nonzero(std::span<const std::byte> bytes) {
  static const std::byte zeros[page_bytes]{};
  for (size_t at = 0; at < bytes.size(); at += page_bytes) {
    const size_t length = std::min(page_bytes, bytes.size() - at);
    if (std::memcmp(&bytes[at], zeros, length) == 0) continue;
    for (size_t in_page = 0; in_page < length; ++in_page)
      if (bytes[at + in_page] != std::byte{0}) return at + in_page;
  }
  return bytes.size();
}

void stamp(std::span<std::byte> bytes, uint64_t owner) {
  for (size_t at = 0; at + sizeof(uint64_t) <= bytes.size(); at += page_bytes) {
    const uint64_t value = page_stamp(owner, at / page_bytes);
    std::memcpy(&bytes[at], &value, sizeof value);
  }
}

size_t first_unstamped(std::span<const std::byte> bytes, uint64_t owner) {
  for (size_t at = 0; at + sizeof(uint64_t) <= bytes.size(); at += page_bytes) {
    uint64_t value = 0;
    std::memcpy(&value, &bytes[at], sizeof value);
    if (value != page_stamp(owner, at / page_bytes)) return at;
  }
  return bytes.size();
}

void install_sigbus_guard() {
  struct sigaction action {};
  action.sa_handler = on_sigbus;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace terrace::test
