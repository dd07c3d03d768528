// SPDX-License-Identifier: Apache-2.0
// Uses a piece of every part of the installed library; exits with 0 when each answers as documented.
#include <terrace/arena.h>
#include <terrace/catalog.h>
#include <terrace/mapping.h>
#include <terrace/safetensors.h>
#include <terrace/session.h>
#include <terrace/tensor.h>
#include <terrace/version.h>

#include <cstdio>
#include <cstring>
#include <string>

int main() {
  terrace::SessionOptions nobody;
  nobody.socket_path = "/nonexistent/terraced.sock";
  const auto session = terrace::Session::connect(nobody);
  if (session.ok() || session.error().code != terrace::ErrorCode::unavailable) return 1;
  if (session.error().to_string().find("unavailable") == std::string::npos) return 2;

  terrace::ArenaOptions options;
  options.range_bytes = 64 << 20;
  options.ddr_bytes = 4 << 20;
  auto arena = terrace::Arena::make(options);
  if (!arena.ok()) return 3;
  auto memory = (*arena)->allocate(1 << 20, 64, terrace::TierPreference::ddr_first);
  if (!memory.ok() || (*arena)->tier_of(*memory) != terrace::Tier::ddr) return 4;
  std::memset(*memory, 1, 1 << 20);
  if (!(*arena)->free(*memory).ok()) return 5;

  std::printf("terrace %s\n", terrace::library_version());
  return 0;
}
