// SPDX-License-Identifier: Apache-2.0
// Bytes that a client sends to `terrace kv serve`. The first byte says how they are cut, and whether long values are
// diverted. Cut or whole, kept or diverted, they must be the same requests, within their limits.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/kv/serve/glob.h"
#include "cli/kv/serve/resp.h"
#include "core/base/check.h"

using namespace terrace::kv_serve;

namespace {

constexpr RespLimits limits{
    .arguments_max = 20, .request_bytes_max = 4096, .line_bytes_max = 256, .large_bytes = 32};

struct Outcome {
  std::vector<std::vector<std::string>> requests;
  bool wrong = false;
  bool operator==(const Outcome&) const = default;
};

void add_request(const RespParser& parser, std::string_view buffer, const std::string& value,
                 Outcome& outcome) {
  TERRACE_CHECK(parser.arguments() <= limits.arguments_max, "a request has no more arguments than are allowed");
  TERRACE_CHECK(parser.request_bytes() <= buffer.size(), "a request lies in the buffer");
  std::vector<std::string> words;
  for (size_t index = 0; index < parser.arguments(); ++index)
    words.push_back(parser.diverted(index) ? value : std::string(parser.argument(buffer, index)));
  if (words.size() == 2) (void)glob_matches(words[0], words[1]);
  outcome.requests.push_back(std::move(words));
}

Outcome run(std::string_view bytes, size_t piece_bytes, bool divert) {
  RespParser parser(limits);
  Outcome outcome;
  std::string buffer, value;
  uint64_t to_come = 0;
  while (!bytes.empty()) {
    std::string_view piece = bytes.substr(0, piece_bytes);
    bytes.remove_prefix(piece.size());
    const size_t part = static_cast<size_t>(std::min<uint64_t>(to_come, piece.size()));
    value += piece.substr(0, part);
    to_come -= part;
    buffer += piece.substr(part);
    while (to_come == 0) {
      const RespStep step = parser.advance(buffer);
      if (step == RespStep::more) break;
      if (step == RespStep::wrong) {
        TERRACE_CHECK(!parser.problem().empty(), "a problem has a text");
        outcome.wrong = true;
        return outcome;
      }
      if (step == RespStep::large) {
        TERRACE_CHECK(buffer.size() - parser.position() < parser.large_bytes(),
                      "a large value is not complete");
        // As a server does: one for which there is no room is not taken elsewhere.
        if (!divert || parser.large_bytes() + parser.position() > limits.request_bytes_max) continue;
        value = buffer.substr(parser.position());
        to_come = parser.large_bytes() - value.size();
        buffer.resize(parser.position());
        parser.divert();
        break;
      }
      add_request(parser, buffer, value, outcome);
      buffer.erase(0, parser.request_bytes());
      parser.restart();
    }
    TERRACE_CHECK(buffer.size() <= limits.request_bytes_max + limits.line_bytes_max + piece_bytes,
                  "what waits in the buffer is bounded");
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = run(bytes, bytes.size() + 1, false);
  const Outcome cut = run(bytes, data[0] % 64 + size_t{1}, false);
  TERRACE_CHECK(whole == cut, "requests are the same wherever they are cut");
  const Outcome diverted = run(bytes, data[0] % 64 + size_t{1}, true);
  // A value that is taken elsewhere is no part of its request's bytes: what is too long otherwise may pass.
  if (!whole.wrong) TERRACE_CHECK(whole == diverted, "a diverted value is the value");
  return 0;
}
