// SPDX-License-Identifier: Apache-2.0
// import_gib_per_s_over_dd, export_gib_per_s_over_dd: safetensors into tensors that lie in CXL leases and back,
// over a plain O_DIRECT read or write of as many bytes in the same round.
#include <cstdio>
#include <cstring>

#include "bench/tensor/disk.h"
#include "bench/tensor/passes.h"
#include "core/base/kernel_clock.h"
#include "core/base/prng.h"
#include "core/base/units.h"
#include "terrace/transfer.h"

namespace terrace::bench {
namespace {

// Without DDR: all tensors lie in the lease.
struct CxlPool {
  explicit CxlPool(uint64_t bytes) : session(8 * gib) {
    LeaseRequest request;
    request.bytes = bytes;
    auto lease = must(session.grant(request), "grant");
    populate(lease->fd(), lease->bytes());
    TensorPoolOptions options;
    options.session = &session;
    options.name = "bench-files";
    pool = must(TensorPool::make(options, {lease}), "pool");
  }
  test::FakeSession session;
  std::unique_ptr<TensorPool> pool;
};

constexpr uint64_t width = 1024;

// As in a transformer: large matrices, and vectors beside them.
std::vector<std::shared_ptr<Tensor>> make_tensors(CxlPool& cxl, uint64_t bytes) {
  std::vector<std::shared_ptr<Tensor>> tensors;
  Prng prng(1);
  for (uint64_t layer = 0; layer < bytes / (4 * width * width * 4); ++layer) {
    const std::string prefix = "layer." + std::to_string(layer);
    tensors.push_back(
        must(cxl.pool->create({.name = prefix + ".weight", .shape = {width, 4 * width}}), "tensor"));
    tensors.push_back(must(cxl.pool->create({.name = prefix + ".bias", .shape = {4 * width}}), "tensor"));
  }
  for (const auto& tensor : tensors) {
    auto* words = reinterpret_cast<uint64_t*>(tensor->data());
    for (uint64_t i = 0; i < tensor->bytes().size() / 8; ++i) words[i] = prng.next();
  }
  return tensors;
}

void compare(const std::vector<std::shared_ptr<Tensor>>& before, TensorPool& pool) {
  for (const auto& tensor : before) {
    const auto after = must(pool.find(tensor->name()), "find");
    if (std::memcmp(after->data(), tensor->data(), tensor->bytes().size()) != 0)
      die("tensor " + tensor->name() + " came back with other bytes");
  }
}

}  // namespace

void measure_files(const Sizes& sizes, nlohmann::json& out) {
  const uint64_t bytes = sizes.smoke ? 32 * mib : 512 * mib;
  const int rounds = sizes.smoke ? 1 : 7;
  const BenchDirectory directory(sizes.directory);
  const std::string file = directory.file("t.safetensors"), plain = directory.file("plain");
  CxlPool source(bytes + 32 * mib);
  const auto tensors = make_tensors(source, bytes);
  std::vector<double> read, imported, written, exported;
  TransferReport import_report, export_report;
  bool direct = false;
  for (int round = 0; round < rounds; ++round) {
    uint64_t begin = monotonic_ns();
    export_report = must(export_safetensors(*source.pool, tensors, file), "export");
    exported.push_back(gib_per_s(export_report.tensor_bytes, seconds_since(begin)));
    written.push_back(gib_per_s(export_report.total_bytes, plain_write_s(plain, export_report.total_bytes)));
    read.push_back(gib_per_s(export_report.total_bytes, plain_read_s(file, &direct)));
    CxlPool target(bytes + 32 * mib);
    begin = monotonic_ns();
    const PoolImport back = must(import_safetensors(*target.pool, file), "import");
    imported.push_back(gib_per_s(back.report.tensor_bytes, seconds_since(begin)));
    import_report = back.report;
    if (round == 0) compare(tensors, *target.pool);
  }
  const double import_ratio = median(imported) / median(read);
  const double export_ratio = median(exported) / median(written);
  std::printf("import into CXL: %.2f GiB/s, a plain read %.2f: %.2f times (aim: at least 0.9)\n",
              median(imported), median(read), import_ratio);
  std::printf("export from CXL: %.2f GiB/s, a plain write %.2f: %.2f times (aim: at least 0.9)\n",
              median(exported), median(written), export_ratio);
  if (!direct) std::printf("this file system has no O_DIRECT: all went through the page cache\n");
  out["import_gib_per_s_over_dd"] = import_ratio;
  out["export_gib_per_s_over_dd"] = export_ratio;
  out["import_gib_per_s"] = median(imported);
  out["export_gib_per_s"] = median(exported);
  out["dd_read_gib_per_s"] = median(read);
  out["dd_write_gib_per_s"] = median(written);
  out["files_o_direct"] = direct;
  out["import_straight_share"] = static_cast<double>(import_report.straight_bytes) /
                                 static_cast<double>(std::max<uint64_t>(import_report.tensor_bytes, 1));
  out["files_note"] = import_report.note.empty() ? export_report.note : import_report.note;
}

}  // namespace terrace::bench
