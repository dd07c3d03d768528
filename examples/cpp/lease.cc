// SPDX-License-Identifier: Apache-2.0
// A lease: leased memory, mapped and written to. See docs/tutorials/cpp.md.
#include <terrace/mapping.h>
#include <terrace/session.h>

#include <cstdio>
#include <cstring>

namespace {

int failed(const terrace::Error& error) {
  std::fprintf(stderr, "lease: %s\n", error.to_string().c_str());
  return 1;
}

}  // namespace

int main() {
  auto session = terrace::Session::connect();  // $TERRACE_SOCKET says where the manager is
  if (!session.ok()) return failed(session.error());

  terrace::LeaseRequest request;
  request.bytes = 64 << 20;
  request.label = "first";
  auto lease = (*session)->grant(request);  // durable once it returns; renewed until `lease` is destroyed
  if (!lease.ok()) return failed(lease.error());

  auto mapping = terrace::Mapping::map(*lease);
  if (!mapping.ok()) return failed(mapping.error());
  std::memset((*mapping)->bytes().data(), 0x5a, (*mapping)->bytes().size());  // plain memory from here on

  auto info = (*lease)->info();
  if (!info.ok()) return failed(info.error());
  std::printf("lease '%s': %zu MiB of pool '%s', %s\n", info->label.c_str(), (*mapping)->bytes().size() >> 20,
              info->pool.c_str(), info->phase.c_str());
  return 0;  // the lease goes back, and its bytes are erased before anybody else has them
}
