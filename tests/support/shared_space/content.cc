// SPDX-License-Identifier: Apache-2.0
#include "tests/support/shared_space/content.h"

#include <cstring>

#include "core/base/crc32c.h"

namespace terrace::shared_space {
namespace {

uint64_t mixed(uint64_t first, uint64_t place) {
  const uint64_t value = (first + place) * 0x9e3779b97f4a7c15ull;
  return value ^ (value >> 29);
}

uint64_t sum_of(std::span<const uint64_t> words) {
  return crc32c(std::as_bytes(words));
}

uint64_t first_word(uint64_t number, uint32_t host, uint32_t index) {
  return number << 16 | uint64_t{host} << 8 | index;
}

}  // namespace

std::vector<uint64_t> compose(uint32_t host, uint32_t index, const Content& content) {
  std::vector<uint64_t> words(tensor_words[index]);
  words[0] = first_word(content.number, host, index);
  std::memcpy(&words[1], content.known, sizeof content.known);
  for (size_t place = 1 + known_words; place + 1 < words.size(); ++place) words[place] = mixed(words[0], place);
  words.back() = sum_of(std::span(words).first(words.size() - 1));
  return words;
}

std::optional<Content> examine(std::span<const std::byte> bytes, uint32_t host, uint32_t index,
                               std::string* why) {
  std::vector<uint64_t> words(bytes.size() / sizeof(uint64_t));
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(uint64_t));
  Content content{.number = words[0] >> 16};
  if (words[0] != first_word(content.number, host, index)) {
    *why = "is not this tensor's: it begins with " + std::to_string(words[0]);
    return std::nullopt;
  }
  for (size_t place = 1 + known_words; place + 1 < words.size(); ++place) {
    if (words[place] == mixed(words[0], place)) continue;
    *why = "torn: it begins with number " + std::to_string(content.number) + ", word " + std::to_string(place) +
           " of " + std::to_string(words.size()) + " is not of it";
    return std::nullopt;
  }
  if (words.back() != sum_of(std::span(words).first(words.size() - 1))) {
    *why = "torn: number " + std::to_string(content.number) + " without its checksum";
    return std::nullopt;
  }
  std::memcpy(content.known, &words[1], sizeof content.known);
  return content;
}

}  // namespace terrace::shared_space
