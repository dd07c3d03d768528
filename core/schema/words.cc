// SPDX-License-Identifier: Apache-2.0
#include "core/schema/words.h"

#include <map>
#include <mutex>

namespace terrace::schema {

std::string snake_case(std::string_view name) {
  std::string words;
  for (const char letter : name) {
    const bool upper = letter >= 'A' && letter <= 'Z';
    if (upper && !words.empty()) words += '_';
    words += upper ? static_cast<char>(letter - 'A' + 'a') : letter;
  }
  return words;
}

const std::vector<std::string>& words_of(capnp::EnumSchema type) {
  // Never destroyed: a thread may still ask while the process ends.
  static auto* const lock = new std::mutex();
  static auto* const known = new std::map<uint64_t, std::vector<std::string>>();
  const std::lock_guard<std::mutex> guard(*lock);
  const auto [found, made] = known->try_emplace(type.getProto().getId());
  if (made)
    for (const auto enumerant : type.getEnumerants())
      found->second.push_back(snake_case(enumerant.getProto().getName().cStr()));
  return found->second;
}

}  // namespace terrace::schema
