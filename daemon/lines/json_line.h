// SPDX-License-Identifier: Apache-2.0
// One JSON object in one line, key by key, without the cost of a document. Its keys are ours; its texts may be anybody's.
//
// Threads   As any value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace::daemon {

class JsonLine {
 public:
  void number(std::string_view key, uint64_t value) {
    begin(key);
    line_ += std::to_string(value);
  }
  void text(std::string_view key, std::string_view value) {
    begin(key);
    line_ += '"';
    escape(value);
    line_ += '"';
  }
  // `value` is JSON already.
  void raw(std::string_view key, std::string_view value) {
    begin(key);
    line_ += value;
  }
  void null(std::string_view key) {
    begin(key);
    line_ += "null";
  }
  // Without a line feed.
  std::string object() const { return line_.empty() ? "{}" : line_ + "}"; }

 private:
  void begin(std::string_view key) {
    line_ += line_.empty() ? "{\"" : ", \"";
    line_ += key;
    line_ += "\": ";
  }
  void escape(std::string_view text) {
    static constexpr const char* hex = "0123456789abcdef";
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        line_ += {'\\', c};
      } else if (byte < 0x20) {
        line_ += {'\\', 'u', '0', '0', hex[byte >> 4], hex[byte & 15]};
      } else {
        line_ += c;
      }
    }
  }

  std::string line_;
};

}  // namespace terrace::daemon
