// SPDX-License-Identifier: Apache-2.0
// The example of docs/library.md, as it stands there: it compiles, runs, and is the same text.
#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/skip.h"
#include "tests/unit/placement/pools.h"

using namespace terrace::test;

namespace {

// Without indentation and empty lines: the page has neither where the test has.
std::string plain(const std::string& text) {
  std::istringstream lines(text);
  std::string line, result;
  while (std::getline(lines, line)) {
    line.erase(0, line.find_first_not_of(' '));
    if (!line.empty()) result += line + "\n";
  }
  return result;
}

std::string between(const std::string& file, const std::string& from, const std::string& to) {
  std::ifstream in(std::string(TERRACE_SOURCE_FOLDER) + "/" + file);
  std::stringstream text;
  text << in.rdbuf();
  const std::string all = text.str();
  const size_t begin = all.find(from);
  REQUIRE_MESSAGE(begin != std::string::npos, (file + " has no " + from));
  const size_t end = all.find(to, begin + from.size());
  REQUIRE(end != std::string::npos);
  return plain(all.substr(begin + from.size(), end - begin - from.size()));
}

terrace::Status example(terrace::Session& its_session, std::vector<std::shared_ptr<terrace::Lease>> leases) {
  terrace::Session* session = &its_session;
  // clang-format off
  // The example begins.
  terrace::TensorPoolOptions options;
  options.session = session;
  options.ddr_bytes = 64 << 20;                                // the rest lies in the leases
  auto pool = terrace::TensorPool::make(options, leases);
  if (!pool.ok()) return pool.error();

  auto weight = (*pool)->create({.name = "layer.0.weight", .dtype = terrace::DType::bf16, .shape = {1024, 1024},
                                 .hint = terrace::TensorHint::weights});
  if (!weight.ok()) return weight.error();                     // capacity_exhausted says how much is short
  {
    auto guard = (*weight)->write();                           // notes the use; optional
    if (!guard.ok()) return guard.error();
    for (uint16_t& value : guard->as<uint16_t>()) value = 0x3f80;
  }
  auto rows = (*weight)->slice(0, 0, 16);                      // a view; it keeps the weight alive
  if (!rows.ok()) return rows.error();

  auto move = (*rows)->move_to(terrace::Tier::cxl);            // begins; loads and stores go on meanwhile
  if (!move.ok()) return move.error();
  if (terrace::Status moved = (*move)->wait(1'000'000'000); !moved.ok()) return moved;

  auto pinned = (*weight)->pin(terrace::Tier::ddr);            // stays there until unpin()
  if (!pinned.ok()) return pinned.error();
  const terrace::TensorResidency residency = (*weight)->residency();   // bytes in each tier, now

  (*pool)->step();                                             // once a training step, or request
  // The example ends.
  // clang-format on
  CHECK(residency.ddr_bytes + residency.cxl_bytes == 2 * terrace::mib);
  return (*pinned)->wait(patience_ns);
}

}  // namespace

TEST_CASE("docs/library.md: the example of tensor pools runs, and is what the page says") {
  FakeSession session(terrace::gib);
  terrace::LeaseRequest request;
  request.bytes = 64 << 20;
  const terrace::Status ran = example(session, {*session.grant(request)});
  if (!ran.ok()) {
    // Where nothing moves the example ends at its move.
    CHECK_MESSAGE(ran.error().code == terrace::ErrorCode::unsupported, ran.error().to_string());
    TERRACE_SKIP_IN_PART(migration, ran.error().to_string());
  }
  const std::string tested =
      between("tests/unit/placement/example_test.cc", "// The example begins.\n", "// The example ends.");
  const std::string page = between("docs/library.md", "## Tensors that move between tiers\n\n```cpp\n", "```");
  CHECK(page == plain("#include <terrace/tensor_pool.h>\n" + tested));
}
