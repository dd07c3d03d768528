// SPDX-License-Identifier: Apache-2.0
#include "core/identity/machine_name.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <cstdio>
#include <fstream>

#include "core/base/limits.h"

namespace terrace {
namespace {

bool usable(std::string_view host) {
  return !host.empty() && host.size() <= limits::name_bytes_max && host[0] != '-' && host[0] != '.' &&
         std::all_of(host.begin(), host.end(), [](unsigned char c) {
           return (c < 0x80 && std::isalnum(c) != 0) ||
                  std::string_view("-_.:@").find(static_cast<char>(c)) != std::string_view::npos;
         });
}

}  // namespace

std::string machine_name_of(std::string_view host, std::string_view machine_id) {
  if (usable(host)) return std::string(host);
  if (machine_id.empty()) return "localhost";
  // The id itself is nobody's business (machine-id(5)): FNV-1a of it.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : machine_id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char name[32];
  std::snprintf(name, sizeof name, "machine-%016" PRIx64, hash);
  return name;
}

std::string machine_name() {
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = 0;
  std::string machine_id;
  std::ifstream file("/etc/machine-id");
  std::getline(file, machine_id);
  return machine_name_of(host, machine_id);
}

}  // namespace terrace
