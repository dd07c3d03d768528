// SPDX-License-Identifier: Apache-2.0
// bench_tensor_device: what a copy to and from a device reaches of what the memory gives, and what a replica
// costs that is there already. On a GPU where there is one; on an emulated device elsewhere, which says so.
//
//   bench_tensor_device [--smoke] [--json FILE] [--device auto|cuda|emulated] [--rounds N] [--staging-bytes N]
//
// On a GPU the yardstick are the driver's own calls (driver_link.h): a bare cuMemcpyHtoDAsync, or DtoH, of
// memory that it has pinned, and cuStreamSynchronize. On the emulated device, whose memory is this process's,
// it is memcpy, of as many bytes at once: a large one goes around the caches and is faster.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>

#include "bench/tensor_device/support.h"

int main(int argc, char** argv) {
  using namespace terrace;
  using namespace terrace::bench;
  Sizes sizes;
  bool smoke = false;
  std::string json_file, kind = "auto";
  CLI::App app("Copies to a device, and replicas in it");
  app.add_flag("--smoke", smoke, "A short run, to see that it works");
  app.add_option("--json", json_file, "Also write the numbers there");
  app.add_option("--device", kind, "auto, cuda or emulated")
      ->check(CLI::IsMember({"auto", "cuda", "emulated"}));
  app.add_option("--rounds", sizes.rounds, "Of each measurement; medians are printed");
  app.add_option("--staging-bytes", sizes.staging_bytes, "Of each pinned buffer of a stream, on a GPU")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  CudaDeviceOptions options;
  options.staging_bytes = sizes.staging_bytes;
  if (smoke)
    sizes = {.copy_bytes = 4 * mib, .small_bytes = 4096, .hits = 20'000, .rounds = 1, .limit_bytes = 4 * mib};
  auto device = kind == "emulated" ? DeviceMemory::make_emulated({.capacity_bytes = 2 * gib})
                                   : DeviceMemory::open_cuda(options);
  if (!device.ok() && kind == "auto") {
    std::printf("no GPU: %s\n", device.error().to_string().c_str());
    device = DeviceMemory::make_emulated({.capacity_bytes = 2 * gib});
  }
  if (!device.ok()) die(device.error().to_string());
  std::printf("%s\n", (*device)->info().description.c_str());
  nlohmann::json out;
  out["device"] = (*device)->info().description;
  out["emulated"] = (*device)->info().kind == DeviceKind::emulated;
  measure_copies(**device, sizes, out);
  measure_replicas(*device, sizes, out);
  measure_limits(sizes, out);
  if (!json_file.empty()) {
    std::ofstream file(json_file);
    file << out.dump(2) << "\n";
    if (!file.flush()) die("cannot write " + json_file);
  }
  return 0;
}
