// SPDX-License-Identifier: Apache-2.0
#include "bindings/nixl/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <thread>

namespace terrace::nixl {
namespace {

struct Name {
  const char* name;
  const char* fallback;
};
constexpr Name names[] = {{"socket", ""},          {"space", ""},   {"namespace", "nixl"},
                          {"existing", "replace"}, {"ttl_s", "0"},  {"leases", ""},
                          {"stores", "published"}, {"threads", ""}, {"listen", ""}};
constexpr uint64_t threads_limit = 64;

std::string environment_name(std::string_view name) {
  std::string variable = "TERRACE_NIXL_";
  for (const char letter : name)
    variable += static_cast<char>(letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter);
  return variable;
}

std::string value_of(const Parameters& parameters, const char* name, const char* fallback) {
  if (const auto given = parameters.find(name); given != parameters.end()) return given->second;
  const char* variable = std::getenv(environment_name(name).c_str());
  return variable != nullptr ? variable : fallback;
}

bool parse_number(const std::string& text, uint64_t most, uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number <= most;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

// One for four processors: the thread that asks NIXL for a transfer's state copies, too.
uint32_t usual_threads() {
  return std::clamp(std::thread::hardware_concurrency() / 4, 1u, 4u);
}

std::string unknown_name(const Parameters& parameters) {
  for (const auto& given : parameters) {
    const std::string& name = given.first;
    if (std::ranges::any_of(names, [&](const Name& known) { return name == known.name; })) continue;
    std::string all;
    for (const Name& known : names) all += (all.empty() ? "" : ", ") + std::string(known.name);
    return "no parameter " + name + "; there are " + all;
  }
  return {};
}

}  // namespace

std::string read_settings(const Parameters& parameters, Settings& settings) {
  if (std::string unknown = unknown_name(parameters); !unknown.empty()) return unknown;
  const auto value = [&](const char* name) {
    return value_of(parameters, name, std::ranges::find(names, std::string_view(name), &Name::name)->fallback);
  };
  settings.socket = value("socket");
  settings.space = value("space");
  settings.name_space = value("namespace");
  settings.leases = split(value("leases"));
  settings.listen = value("listen");
  const std::string stores = value("stores");
  if (stores != "published" && stores != "explicit") return "stores=" + stores + ": published or explicit";
  settings.publishes = stores == "published";
  const std::string existing = value("existing"), ttl = value("ttl_s"), threads = value("threads");
  if (existing != "replace" && existing != "keep") return "existing=" + existing + ": replace or keep";
  settings.replaces = existing == "replace";
  if (!parse_number(ttl, UINT64_MAX, settings.ttl_s)) return "ttl_s=" + ttl + ": seconds; 0: no end";
  uint64_t number = usual_threads();
  if (!threads.empty() && !parse_number(threads, threads_limit, number))
    return "threads=" + threads + ": 0 to 64";
  settings.threads = static_cast<uint32_t>(number);
  if (!settings.listen.empty() && settings.listen.front() != '/' &&
      settings.listen.find(':') == std::string::npos)
    return "listen=" + settings.listen + ": a folder (/run/...) for a socket, or ADDRESS:PORT";
  return {};
}

Parameters default_parameters() {
  Parameters all;
  for (const Name& name : names) all.emplace(name.name, name.fallback);
  all["threads"] = std::to_string(usual_threads());
  return all;
}

void complain(const std::string& text) {
  std::fprintf(stderr, "terrace: nixl: %s\n", text.c_str());
}

}  // namespace terrace::nixl
