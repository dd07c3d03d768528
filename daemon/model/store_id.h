// SPDX-License-Identifier: Apache-2.0
// Who a store is: 128 random bits, drawn when it is made. What the manager keeps outside of the store (directories
// of objects, records of devices, agents) carries the id of its store: nobody destroys, erases or obeys across ids.
//
// Place     Between daemon/store, which has it, and daemon/memory and daemon/hosts, which compare it. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::daemon {

struct StoreId {
  uint64_t high = 0;
  uint64_t low = 0;

  bool valid() const { return high != 0 || low != 0; }  // a store in memory, of tests, has none
  bool operator==(const StoreId&) const = default;
};

inline constexpr size_t store_id_digits = 32;

// 32 hexadecimal digits.
inline std::string store_id_text(const StoreId& id) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text(store_id_digits, '0');
  for (size_t i = 0; i < store_id_digits; ++i) {
    const uint64_t word = i < 16 ? id.high : id.low;
    text[i] = digits[(word >> (60 - 4 * (i % 16))) & 15];
  }
  return text;
}

// nullopt: not what store_id_text() writes of a valid id.
inline std::optional<StoreId> parse_store_id(std::string_view text) {
  if (text.size() != store_id_digits) return std::nullopt;
  std::array<uint64_t, 2> words{};
  for (size_t i = 0; i < store_id_digits; ++i) {
    const char c = text[i];
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) return std::nullopt;
    words[i / 16] = words[i / 16] << 4 | static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  const StoreId id{words[0], words[1]};
  return id.valid() ? std::optional(id) : std::nullopt;
}

}  // namespace terrace::daemon
