// SPDX-License-Identifier: Apache-2.0
// How close importing and exporting tensors come to the disk: import into a tmpfs-backed mapping over a plain
// O_DIRECT read of the same file, export over a plain O_DIRECT write of as many bytes, alternating in one run.
//
//   bench_safetensors_import [--smoke] [--json FILE] [--dir DIRECTORY] [--bytes SIZE] [--rounds N]
//
// The plain transfers do what `dd bs=1M iflag=direct of=/dev/null` and `dd bs=1M oflag=direct conv=fsync` do:
// one request at a time, one buffer. Import adds the mapping's page faults, checksums and publishing; export
// adds checksums and fsync, which its plain partner does too. The file is read from the disk each time:
// O_DIRECT does not use the page cache.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/prng.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "terrace/safetensors.h"

using namespace terrace;

namespace {

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "bench_safetensors_import: %s\n", what.c_str());
  std::exit(1);
}

template <typename Work>
double gib_per_s(uint64_t bytes, Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(bytes) / static_cast<double>(gib) / seconds.count();
}

// A lease's memory as the emulated backend makes it: a tmpfs file with its size reserved, mapped shared.
class Memory {
 public:
  explicit Memory(uint64_t bytes) : fd_(::memfd_create("bench", MFD_CLOEXEC)), bytes_(bytes) {
    if (!fd_.valid() || ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)) != 0) die("no tmpfs memory");
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    if (memory == MAP_FAILED) die("mmap failed");
    memory_ = static_cast<std::byte*>(memory);
  }
  ~Memory() { ::munmap(memory_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::span<std::byte> span() { return {memory_, bytes_}; }

 private:
  UniqueFd fd_;
  std::byte* memory_ = nullptr;
  uint64_t bytes_;
};

std::byte* plain_buffer() {
  static std::byte* const buffer = [] {
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(4096, 1 * mib));
    std::fill(memory, memory + 1 * mib, std::byte{0x5a});
    return memory;
  }();
  return buffer;
}

UniqueFd open_direct(const std::string& path, int flags, bool& direct) {
  UniqueFd fd(::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, 0600));
  direct = fd.valid();
  if (!direct) fd.reset(::open(path.c_str(), flags | O_CLOEXEC, 0600));
  if (!fd.valid()) die(path + ": cannot be opened");
  return fd;
}

void plain_read(const std::string& path, bool& direct) {
  const UniqueFd fd = open_direct(path, O_RDONLY, direct);
  while (true) {
    const ssize_t count = ::read(fd.get(), plain_buffer(), 1 * mib);
    if (count < 0) die("plain read failed");
    if (count == 0) return;
  }
}

void plain_write(const std::string& path, uint64_t bytes) {
  bool direct = false;
  const UniqueFd fd = open_direct(path, O_WRONLY | O_CREAT | O_TRUNC, direct);
  // As export does; without it the two would lay out the file differently.
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0) die("no space");
  for (uint64_t done = 0; done < bytes; done += 1 * mib) {
    if (::write(fd.get(), plain_buffer(), 1 * mib) != static_cast<ssize_t>(1 * mib)) die("plain write failed");
  }
  if (::fsync(fd.get()) != 0) die("fsync failed");
}

// Tensors as in a transformer: a few large matrices, many small vectors.
void make_catalog(Memory& memory, const CatalogPlan& plan) {
  Result<CatalogWriter> writer = CatalogWriter::begin(memory.span(), plan);
  if (!writer.ok()) die(writer.error().to_string());
  for (size_t index = 0; index < plan.tensors().size(); ++index) {
    Prng prng(index);
    for (std::byte& byte : writer->data(index)) byte = static_cast<std::byte>(prng.next() >> 56);
    writer->filled(index);
  }
  if (const Status done = writer->publish(); !done.ok()) die(done.error().to_string());
}

CatalogPlan make_plan(uint64_t bytes) {
  constexpr uint64_t width = 768;
  const uint64_t layer_bytes = (4 * width * width + 4 * width) * 4;
  std::vector<TensorSpec> specs;
  for (uint64_t layer = 0; layer < std::max<uint64_t>(bytes / layer_bytes, 1); ++layer) {
    const std::string prefix = "h." + std::to_string(layer);
    specs.push_back({.name = prefix + ".weight", .shape = {width, 4 * width}});
    specs.push_back({.name = prefix + ".bias", .shape = {4 * width}});
  }
  return *CatalogPlan::make(std::move(specs));
}

// The same file with a header padded to 8 only, as most writers do: tensors then cannot be read straight into
// place.
void copy_with_short_header(const std::string& from, const std::string& to) {
  std::ifstream in(from, std::ios::binary);
  uint64_t header_bytes = 0;
  in.read(reinterpret_cast<char*>(&header_bytes), 8);
  std::string header(header_bytes, '\0');
  in.read(header.data(), static_cast<std::streamsize>(header_bytes));
  header.resize(header.find_last_not_of(' ') + 1);
  header.append((8 - header.size() % 8) % 8 + 8, ' ');  // + 8: never a multiple of 64 by accident
  if ((8 + header.size()) % 64 == 0) header.append(8, ' ');
  header_bytes = header.size();
  std::ofstream out(to, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&header_bytes), 8);
  out.write(header.data(), static_cast<std::streamsize>(header.size()));
  out << in.rdbuf();
  if (!out.flush()) die(to + ": cannot be written");
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Import and export of safetensors files against plain O_DIRECT transfers");
  bool smoke = false;
  std::string json_path;
  std::string parent = "/var/tmp";
  uint64_t bytes = 475 * mib;
  size_t rounds = 5;
  app.add_flag("--smoke", smoke, "A small size, one round");
  app.add_option("--json", json_path, "Write the numbers there");
  app.add_option("--dir", parent, "Where to put the files (/var/tmp)");
  app.add_option_function<std::string>("--bytes", [&](const std::string& text) {
    const auto size = parse_size(text);
    if (!size.ok()) throw CLI::ValidationError("--bytes", size.error().detail);
    bytes = *size;
  });
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  if (smoke) {
    bytes = 16 * mib;
    rounds = 1;
  }
  std::string directory = parent + "/terrace-bench-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) die(parent + ": no directory can be made there");
  const std::string file = directory + "/a.safetensors";
  const std::string short_header = directory + "/b.safetensors";
  const std::string plain = directory + "/plain";

  const CatalogPlan plan = make_plan(bytes);
  Memory source(plan.required_bytes());
  make_catalog(source, plan);
  const CatalogReader catalog = *CatalogReader::open(source.span());
  std::vector<double> read, import, staged, write, exported;
  TransferReport import_report, staged_report;
  uint64_t file_bytes = 0;
  bool direct = false;
  for (size_t round = 0; round < rounds; ++round) {
    exported.push_back(gib_per_s(catalog.data_bytes(), [&] {
      const auto report = export_safetensors(catalog, file);
      if (!report.ok()) die(report.error().to_string());
      file_bytes = report->total_bytes;
    }));
    write.push_back(
        gib_per_s(round_up(file_bytes, 1 * mib), [&] { plain_write(plain, round_up(file_bytes, 1 * mib)); }));
    if (round == 0) {
      copy_with_short_header(file, short_header);
      ::sync();
    }
    read.push_back(gib_per_s(file_bytes, [&] { plain_read(file, direct); }));
    const auto import_from = [&](const std::string& path, std::vector<double>& speeds, TransferReport& last) {
      Memory target(plan.required_bytes());
      speeds.push_back(gib_per_s(catalog.data_bytes(), [&] {
        auto report = import_safetensors(path, target.span());
        if (!report.ok()) die(report.error().to_string());
        last = std::move(report).value();
      }));
    };
    import_from(file, import, import_report);
    import_from(short_header, staged, staged_report);
  }
  for (const std::string& path : {file, short_header, plain}) ::unlink(path.c_str());
  ::rmdir(directory.c_str());

  const nlohmann::json result = {{"bytes", catalog.data_bytes()},
                                 {"rounds", rounds},
                                 {"o_direct", direct},
                                 {"dd_read_gib_per_s", median(read)},
                                 {"dd_write_gib_per_s", median(write)},
                                 {"import_gib_per_s", median(import)},
                                 {"import_staged_gib_per_s", median(staged)},
                                 {"export_gib_per_s", median(exported)},
                                 {"import_gib_per_s_over_dd", median(import) / median(read)},
                                 {"import_staged_gib_per_s_over_dd", median(staged) / median(read)},
                                 {"export_gib_per_s_over_dd", median(exported) / median(write)},
                                 {"straight_share", static_cast<double>(import_report.straight_bytes) /
                                                        static_cast<double>(catalog.data_bytes())},
                                 {"note", import_report.note}};
  std::printf("%s, median of %zu\n", format_size(catalog.data_bytes()).c_str(), rounds);
  std::printf("%-34s %8.3f GiB/s\n", "plain read, O_DIRECT", median(read));
  std::printf("%-34s %8.3f GiB/s  %5.2f x plain\n", "import, aligned header", median(import),
              median(import) / median(read));
  std::printf("%-34s %8.3f GiB/s  %5.2f x plain\n", "import, 8-byte header (staged)", median(staged),
              median(staged) / median(read));
  std::printf("%-34s %8.3f GiB/s\n", "plain write, O_DIRECT, fsync", median(write));
  std::printf("%-34s %8.3f GiB/s  %5.2f x plain\n", "export", median(exported),
              median(exported) / median(write));
  if (!direct)
    std::printf("this file system has no O_DIRECT: the plain transfers went through the page cache\n");
  if (!json_path.empty()) {
    std::ofstream(json_path) << result.dump(1) << "\n";
  }
  return 0;
}
