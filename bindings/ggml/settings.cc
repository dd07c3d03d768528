// SPDX-License-Identifier: Apache-2.0
#include "bindings/ggml/settings.h"

#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "terrace/terrace_c.h"

namespace terrace::plugin {
namespace {

constexpr uint64_t ddr_unknown_bytes = 1ull << 30;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Half of what the kernel says is available to new programs.
uint64_t half_of_free_memory() {
  std::FILE* file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return ddr_unknown_bytes;
  std::array<char, 256> line{};
  unsigned long long kib = 0;
  while (std::fgets(line.data(), line.size(), file) != nullptr)
    if (std::sscanf(line.data(), "MemAvailable: %llu kB", &kib) == 1) break;
  std::fclose(file);
  return kib > 0 ? kib * 1024 / 2 : ddr_unknown_bytes;
}

std::string read_size(const char* name, uint64_t& bytes) {
  const std::string text = variable(name);
  if (text.empty() || parse_size(text, bytes)) return {};
  return std::string(name) + "='" + text + "' is no size; write it as 64M, 1.5G or a number of bytes";
}

template <size_t N>
std::string read_word(const char* name, const std::array<const char*, N>& words, int& chosen) {
  const std::string text = variable(name);
  if (text.empty()) return {};
  std::string known;
  for (size_t i = 0; i < N; ++i) {
    if (text == words[i]) {
      chosen = static_cast<int>(i);
      return {};
    }
    known += (i == 0 ? "" : i + 1 == N ? " or " : ", ") + std::string(words[i]);
  }
  return std::string(name) + "='" + text + "' is not known; it is " + known;
}

}  // namespace

std::string read_settings(Settings& settings) {
  settings.pool = variable("TERRACE_GGML_POOL");
  settings.lease = variable("TERRACE_GGML_LEASE");
  settings.label = variable("TERRACE_GGML_LABEL");
  settings.ddr_bytes = UINT64_MAX;
  int weights = 0, steps = 0, required = 0, verbose = 0;
  constexpr std::array<const char*, 2> no_yes = {"0", "1"};
  for (const std::string& wrong :
       {read_size("TERRACE_GGML_DDR", settings.ddr_bytes), read_size("TERRACE_GGML_CXL", settings.cxl_bytes),
        read_word("TERRACE_GGML_WEIGHTS", std::array<const char*, 2>{"pool", "mapped"}, weights),
        read_word("TERRACE_GGML_STEPS", std::array<const char*, 2>{"off", "follow"}, steps),
        read_word("TERRACE_GGML_WAIT", std::array<const char*, 3>{"cost", "always", "never"},
                  settings.guard_wait),
        read_word("TERRACE_GGML_REQUIRED", no_yes, required),
        read_word("TERRACE_GGML_VERBOSE", no_yes, verbose)})
    if (!wrong.empty()) return wrong;
  if (!settings.lease.empty() && settings.cxl_bytes > 0)
    return "TERRACE_GGML_LEASE and TERRACE_GGML_CXL are both set; a lease that is there has its own size: "
           "unset one";
  if (settings.ddr_bytes == UINT64_MAX) settings.ddr_bytes = half_of_free_memory();
  settings.mapped = weights == 1;
  settings.steps = steps == 1;
  settings.required = required == 1;
  settings.verbose = verbose == 1;
  return {};
}

bool parse_size(const std::string& text, uint64_t& bytes) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) == 0) return false;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  static constexpr char units[] = "KMGT";
  double factor = 1;
  if (*end != '\0') {
    const char* unit = std::strchr(units, std::toupper(static_cast<unsigned char>(*end)));
    if (unit == nullptr || *unit == '\0') return false;
    for (const char* at = units; at <= unit; ++at) factor *= 1024;
    ++end;
    if (end[0] == 'i' && end[1] == 'B') end += 2;
    if (end[0] == 'B') ++end;
  }
  const double value = number * factor;
  if (*end != '\0' || !std::isfinite(value) || value >= 9e18) return false;
  bytes = static_cast<uint64_t>(value);
  return true;
}

std::string size_text(uint64_t bytes) {
  static constexpr std::array<const char*, 5> units = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text.data();
}

void complain(const std::string& text) {
  std::fprintf(stderr, "terrace: %s\n", text.c_str());
}

}  // namespace terrace::plugin
