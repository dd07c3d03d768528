// SPDX-License-Identifier: Apache-2.0
// Tensors that move between DDR and leased memory while their addresses stay. See docs/tutorials/cpp.md.
#include <terrace/session.h>
#include <terrace/tensor_pool.h>

#include <cstdio>

namespace {

int failed(const terrace::Error& error) {
  std::fprintf(stderr, "tensors: %s\n", error.to_string().c_str());
  return 1;
}

void show(const char* when, const terrace::Tensor& tensor) {
  const terrace::TensorResidency at = tensor.residency();
  std::printf("%s: %llu MiB in DDR, %llu MiB in CXL\n", when, (unsigned long long)at.ddr_bytes >> 20,
              (unsigned long long)at.cxl_bytes >> 20);
}

}  // namespace

int main() {
  auto session = terrace::Session::connect();
  if (!session.ok()) return failed(session.error());

  terrace::LeaseRequest request;
  request.bytes = 128 << 20;
  request.label = "weights";
  auto lease = (*session)->grant(request);
  if (!lease.ok()) return failed(lease.error());

  terrace::TensorPoolOptions options;
  options.session = session->get();
  options.ddr_bytes = 32 << 20;  // the rest lies in the lease
  auto pool = terrace::TensorPool::make(options, {*lease});
  if (!pool.ok()) return failed(pool.error());

  auto weight = (*pool)->create({.name = "w0", .dtype = terrace::DType::f32, .shape = {1024, 4096}});
  if (!weight.ok()) return failed(weight.error());
  {
    auto guard = (*weight)->write();  // says what is used when; stores are allowed without it
    if (!guard.ok()) return failed(guard.error());
    for (float& value : guard->as<float>()) value = 1.5F;
  }
  for (const terrace::Tier tier : {terrace::Tier::cxl, terrace::Tier::ddr}) {
    auto move = (*weight)->move_to(tier);  // begins; loads and stores go on
    if (!move.ok()) return failed(move.error());
    if (auto done = (*move)->wait(30'000'000'000); !done.ok()) return failed(done.error());
    show(tier == terrace::Tier::cxl ? "sent down" : "brought up", **weight);
  }

  auto guard = (*weight)->read();
  if (!guard.ok()) return failed(guard.error());
  double sum = 0;
  for (const float value : guard->as<float>()) sum += value;
  std::printf("the sum is %.0f\n", sum);
  return 0;
}
