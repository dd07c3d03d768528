// SPDX-License-Identifier: Apache-2.0
// One tensor, several processes, no copy: `share write` makes a space in a lease, `share read` reads it in place.
// See docs/tutorials/cpp.md.
#include <terrace/mapping.h>
#include <terrace/session.h>
#include <terrace/tensor_space.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string_view>

namespace {

int failed(const terrace::Error& error) {
  std::fprintf(stderr, "share: %s\n", error.to_string().c_str());
  return 1;
}

// What both have: the lease's memory, and the space in it.
int with_space(std::shared_ptr<terrace::Lease> lease, bool writer) {
  auto mapping = terrace::Mapping::map(lease);
  if (!mapping.ok()) return failed(mapping.error());
  if (writer) {
    if (auto made = terrace::TensorSpace::format((*mapping)->bytes()); !made.ok()) return failed(made.error());
  }
  auto ownership = terrace::ownership_by_manager(lease);  // the manager knows which process owns which part
  if (!ownership.ok()) return failed(ownership.error());
  auto space =
      terrace::TensorSpace::attach((*mapping)->bytes(), {.ownership = *ownership, .own_a_part = writer});
  if (!space.ok()) return failed(space.error());

  if (writer) {
    auto block = (*space)->create({.name = "kv/17", .dtype = terrace::DType::u8, .shape = {1 << 20}});
    if (!block.ok()) return failed(block.error());
    auto write = (*space)->write(*block);
    if (!write.ok()) return failed(write.error());
    std::ranges::fill(write->bytes(), std::byte{7});
    std::printf("published version %llu\n", (unsigned long long)write->publish());
    return 0;
  }
  auto block = (*space)->open("kv/17");
  if (!block.ok()) return failed(block.error());
  auto pin = (*space)->pin(*block);  // in place; stays as it is while `pin` lives
  if (!pin.ok()) return failed(pin.error());
  const auto sevens = std::ranges::count(pin->bytes(), std::byte{7});
  std::printf("version %llu: %lld of %zu bytes are 7\n", (unsigned long long)pin->version(), (long long)sevens,
              pin->bytes().size());
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::string_view what = count == 2 ? words[1] : "";
  if (what != "write" && what != "read") {
    std::fprintf(stderr, "usage: share write|read\n");
    return 2;
  }
  auto session = terrace::Session::connect();
  if (!session.ok()) return failed(session.error());
  if (what == "read") {
    auto lease = (*session)->attach({}, "kv", terrace::LeaseAccess::read_write);  // a pin is a store
    return lease.ok() ? with_space(*lease, false) : failed(lease.error());
  }
  terrace::LeaseRequest request;
  request.bytes = 64 << 20;
  request.label = "kv";
  request.mode = terrace::LeaseMode::shared_coherent;
  request.detached = true;  // outlives this process, until its TTL ends or somebody releases it
  request.ttl_ns = 600'000'000'000;
  auto lease = (*session)->grant(request);
  return lease.ok() ? with_space(*lease, true) : failed(lease.error());
}
