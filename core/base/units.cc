// SPDX-License-Identifier: Apache-2.0
#include "core/base/units.h"

#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>

namespace terrace {
namespace {

struct Suffix {
  std::string_view text;
  uint64_t factor;
};

constexpr std::array<Suffix, 14> size_suffixes{{{"", 1},
                                                {"b", 1},
                                                {"k", kib},
                                                {"kb", kib},
                                                {"kib", kib},
                                                {"m", mib},
                                                {"mb", mib},
                                                {"mib", mib},
                                                {"g", gib},
                                                {"gb", gib},
                                                {"gib", gib},
                                                {"t", gib * 1024},
                                                {"tb", gib * 1024},
                                                {"tib", gib * 1024}}};

constexpr std::array<Suffix, 7> duration_suffixes{{{"ns", 1},
                                                   {"us", ns_per_us},
                                                   {"ms", ns_per_ms},
                                                   {"s", ns_per_s},
                                                   {"m", 60 * ns_per_s},
                                                   {"h", 3600 * ns_per_s},
                                                   {"d", 86400 * ns_per_s}}};

Error refused(std::string_view text, const char* where, const char* hint) {
  return Error{.code = ErrorCode::invalid_argument,
               .where = where,
               .detail = "'" + std::string(text) + "' is not a " + hint};
}

// Splits "1.5G" into 1.5 and the factor of "g". Whole numbers stay exact; fractions go through double.
Result<uint64_t> parse_scaled(std::string_view text, std::span<const Suffix> suffixes, const char* where,
                              const char* hint) {
  size_t digits = 0;
  bool fraction = false;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) || (text[digits] == '.' && !fraction))) {
    fraction |= text[digits] == '.';
    ++digits;
  }
  const std::string number(text.substr(0, digits));
  if (number.empty() || number == "." || number.size() > 30) return refused(text, where, hint);

  std::string suffix(text.substr(digits));
  while (!suffix.empty() && suffix.front() == ' ') suffix.erase(0, 1);
  for (char& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));

  for (const Suffix& known : suffixes) {
    if (known.text != suffix) continue;
    constexpr double limit = 9.2e18;
    const double scaled = std::strtod(number.c_str(), nullptr) * static_cast<double>(known.factor);
    if (!(scaled < limit)) return refused(text, where, hint);
    if (fraction) return static_cast<uint64_t>(std::llround(scaled));
    return std::strtoull(number.c_str(), nullptr, 10) * known.factor;
  }
  return refused(text, where, hint);
}

std::string format_scaled(uint64_t value, uint64_t factor, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.2f", static_cast<double>(value) / static_cast<double>(factor));
  std::string number(text);
  while (number.back() == '0') number.pop_back();
  if (number.back() == '.') number.pop_back();
  return number + " " + unit;
}

}  // namespace

Result<uint64_t> parse_size(std::string_view text) {
  return parse_scaled(text, size_suffixes, "parse_size", "size; write it as 4096, 64M, 2GiB or 1.5G");
}

Result<uint64_t> parse_duration(std::string_view text) {
  return parse_scaled(text, duration_suffixes, "parse_duration",
                      "duration; write it with its unit, as 250ms, 30s, 10m, 2h or 1d");
}

std::string format_size(uint64_t bytes) {
  if (bytes >= gib * 1024) return format_scaled(bytes, gib * 1024, "TiB");
  if (bytes >= gib) return format_scaled(bytes, gib, "GiB");
  if (bytes >= mib) return format_scaled(bytes, mib, "MiB");
  if (bytes >= kib) return format_scaled(bytes, kib, "KiB");
  return std::to_string(bytes) + " B";
}

std::string format_duration(uint64_t ns) {
  if (ns >= 86400 * ns_per_s) return format_scaled(ns, 86400 * ns_per_s, "d");
  if (ns >= 3600 * ns_per_s) return format_scaled(ns, 3600 * ns_per_s, "h");
  if (ns >= 60 * ns_per_s) return format_scaled(ns, 60 * ns_per_s, "min");
  if (ns >= ns_per_s) return format_scaled(ns, ns_per_s, "s");
  if (ns >= ns_per_ms) return format_scaled(ns, ns_per_ms, "ms");
  if (ns >= ns_per_us) return format_scaled(ns, ns_per_us, "us");
  return std::to_string(ns) + " ns";
}

}  // namespace terrace
