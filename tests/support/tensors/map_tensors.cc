// SPDX-License-Identifier: Apache-2.0
// A second process that uses imported tensors: attaches a lease read-only by its label, maps it, and compares
// every tensor's crc32c with a checksum file (of make_safetensors) or with a safetensors file. Then shows, from
// /proc/self/smaps, that none of the mapped pages is a copy: a private copy of a file's page is anonymous
// memory. (Private_Dirty would not show that: the kernel counts a shared page there too while one process maps
// it.)
//
//   map_tensors --label LABEL (--file SAFETENSORS | --checksums JSON) [--socket PATH] [--json]
//
// Exit code 0: all equal and nothing copied; 8: a difference or a copy; 1: anything else.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "core/base/crc32c.h"
#include "core/base/units.h"
#include "terrace/catalog.h"
#include "terrace/mapping.h"
#include "terrace/safetensors.h"
#include "terrace/session.h"

using namespace terrace;

namespace {

struct Pages {
  uint64_t mapped_bytes = 0;
  uint64_t resident_bytes = 0;
  uint64_t copied_bytes = 0;         // anonymous: private copies
  uint64_t private_dirty_bytes = 0;  // as the kernel prints it, for information
  uint64_t inode = 0;
  bool all_shared = true;  // every VMA is MAP_SHARED
  bool all_read_only = true;
};

// Sums the smaps entries that overlap [begin, begin + bytes).
Pages look_at_pages(uintptr_t begin, uint64_t bytes) {
  Pages pages;
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    uint64_t from = 0;
    uint64_t to = 0;
    uint64_t inode = 0;
    char access[8] = {};
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %7s %*x %*s %" SCNu64, &from, &to, access, &inode) ==
        4) {
      inside = from < begin + bytes && to > begin;
      if (!inside) continue;
      pages.mapped_bytes += to - from;
      pages.inode = inode;
      pages.all_shared = pages.all_shared && access[3] == 's';
      pages.all_read_only = pages.all_read_only && access[1] == '-';
      continue;
    }
    uint64_t kib = 0;
    if (!inside) continue;
    if (std::sscanf(line.c_str(), "Rss: %" SCNu64, &kib) == 1) pages.resident_bytes += kib * 1024;
    if (std::sscanf(line.c_str(), "Anonymous: %" SCNu64, &kib) == 1) pages.copied_bytes += kib * 1024;
    if (std::sscanf(line.c_str(), "Private_Dirty: %" SCNu64, &kib) == 1)
      pages.private_dirty_bytes += kib * 1024;
  }
  return pages;
}

Result<VerifyReport> compare_with_checksums(const CatalogReader& catalog, const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json expected = nlohmann::json::parse(file, nullptr, false);
  if (!expected.is_object()) {
    return Error{.code = ErrorCode::corrupt, .where = "map_tensors", .detail = path + ": not a JSON object"};
  }
  TERRACE_ASSIGN_OR_RETURN(VerifyReport report, verify(catalog));
  for (const TensorView& tensor : catalog.tensors()) {
    char text[16];
    std::snprintf(text, sizeof text, "%08x", crc32c(tensor.bytes));
    const auto found = expected.find(std::string(tensor.name));
    if (found == expected.end() || *found != text) {
      report.mismatches.push_back({std::string(tensor.name), "differs from the checksum file"});
    }
  }
  if (expected.size() != catalog.size()) report.mismatches.push_back({"", "not the same number of tensors"});
  return report;
}

Result<int> run(const std::string& socket, const std::string& label, const std::string& file,
                const std::string& checksums, bool json) {
  SessionOptions options;
  options.socket_path = socket;
  options.client_name = "map_tensors";
  TERRACE_ASSIGN_OR_RETURN(const auto session, Session::connect(std::move(options)));
  TERRACE_ASSIGN_OR_RETURN(auto lease, session->attach(LeaseId{}, label, LeaseAccess::read_only));
  TERRACE_ASSIGN_OR_RETURN(const auto mapping, Mapping::map(std::move(lease)));
  const std::span<const std::byte> memory = mapping->const_bytes();
  TERRACE_ASSIGN_OR_RETURN(const CatalogReader catalog, CatalogReader::open(memory));
  TERRACE_ASSIGN_OR_RETURN(const VerifyReport report,
                           file.empty() ? compare_with_checksums(catalog, checksums) : verify(catalog, file));
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  const Pages pages = look_at_pages(address, memory.size());
  const bool no_copy = pages.mapped_bytes >= memory.size() && pages.copied_bytes == 0 && pages.all_shared &&
                       pages.all_read_only && pages.resident_bytes >= catalog.data_bytes();
  const bool good = report.equal() && no_copy;
  const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (json) {
    nlohmann::json mismatches = nlohmann::json::array();
    for (const auto& mismatch : report.mismatches) {
      mismatches.push_back({{"name", mismatch.name}, {"reason", mismatch.reason}});
    }
    const nlohmann::json document = {{"pid", ::getpid()},
                                     {"address", address},
                                     {"bytes", memory.size()},
                                     {"tensors", catalog.size()},
                                     {"tensor_bytes", catalog.data_bytes()},
                                     {"equal", report.equal()},
                                     {"mismatches", mismatches},
                                     {"resident_bytes", pages.resident_bytes},
                                     {"private_copy_pages", pages.copied_bytes / page_bytes},
                                     {"private_dirty_bytes", pages.private_dirty_bytes},
                                     {"shared_mapping", pages.all_shared},
                                     {"read_only", pages.all_read_only},
                                     {"inode", pages.inode}};
    std::printf("%s\n", document.dump(1).c_str());
  } else {
    for (const auto& mismatch : report.mismatches) {
      std::printf("tensor %s %s\n", quoted_name(mismatch.name).c_str(), mismatch.reason.c_str());
    }
    std::printf("pid %d: %zu tensors %s, %s at 0x%" PRIxPTR ", %s read-only mapping, %" PRIu64
                " private copies of pages\n",
                ::getpid(), catalog.size(), report.equal() ? "equal" : "DIFFER",
                format_size(memory.size()).c_str(), address, pages.all_shared ? "shared" : "PRIVATE",
                pages.copied_bytes / page_bytes);
  }
  return good ? 0 : 8;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Maps imported tensors read-only and compares their checksums");
  std::string socket;
  std::string label;
  std::string file;
  std::string checksums;
  bool json = false;
  app.add_option("--socket", socket, "The manager's socket");
  app.add_option("--label", label, "The lease's label")->required();
  CLI::Option* by_file = app.add_option("--file", file, "Compare with this safetensors file");
  app.add_option("--checksums", checksums, "Compare with this file of make_safetensors")->excludes(by_file);
  app.add_flag("--json", json, "Print one JSON document");
  CLI11_PARSE(app, argc, argv);
  if (file.empty() && checksums.empty()) {
    std::fprintf(stderr, "map_tensors: one of --file and --checksums is needed\n");
    return 2;
  }
  const Result<int> result = run(socket, label, file, checksums, json);
  if (result.ok()) return *result;
  std::fprintf(stderr, "map_tensors: %s\n", result.error().to_string().c_str());
  return 1;
}
