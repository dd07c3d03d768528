// SPDX-License-Identifier: Apache-2.0
// Import, export and verify, with real files.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "core/base/crc32c.h"
#include "core/base/prng.h"
#include "terrace/safetensors.h"
#include "tests/unit/io/temporary_directory.h"
#include "tests/unit/tensor/aligned_memory.h"

using namespace terrace;

namespace {

// A file as other writers make it: header padded to 8, tensors in the given order.
std::string safetensors_text(const std::vector<std::pair<std::string, std::string>>& tensors,
                             size_t padding = 8) {
  std::string json = R"({"__metadata__":{"format":"pt","by":"test"})";
  std::string data;
  for (const auto& [name, bytes] : tensors) {
    json += ",\"" + name + R"(":{"dtype":"U8","shape":[)" + std::to_string(bytes.size()) +
            R"(],"data_offsets":[)" + std::to_string(data.size()) + "," +
            std::to_string(data.size() + bytes.size()) + "]}";
    data += bytes;
  }
  json += '}';
  while ((8 + json.size()) % padding != 0) json += ' ';
  const uint64_t size = json.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + json + data;
}

std::string random_bytes(uint64_t seed, size_t bytes) {
  Prng prng(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(prng.next());
  return text;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("import: every tensor is in memory as in the file, aligned, checksummed, with the file's metadata") {
  const TemporaryDirectory directory;
  const std::vector<std::pair<std::string, std::string>> tensors = {{"big", random_bytes(1, 3'000'001)},
                                                                    {"small", random_bytes(2, 3)},
                                                                    {"none", ""},
                                                                    {"more", random_bytes(3, 100'000)}};
  for (const size_t padding : {size_t{8}, size_t{64}, size_t{4096}}) {
    for (const bool io_uring : {true, false}) {
      const std::string path = directory.write("m.safetensors", safetensors_text(tensors, padding));
      AlignedMemory memory(*required_bytes(path));
      ImportOptions options;
      options.io_uring = io_uring;
      options.block_bytes = 64 << 10;
      options.verify = true;
      options.hint = TensorHint::kv_cache;
      options.lease_epoch = {12};
      uint64_t last = 0;
      options.progress = [&](uint64_t done, uint64_t) { last = done; };
      const auto report = import_safetensors(path, memory.span(), options);
      REQUIRE_MESSAGE(report.ok(), report.error().to_string());
      CHECK(report->tensors == 4);
      CHECK(report->tensor_bytes == 3'100'004);
      CHECK(report->io_uring == io_uring);
      CHECK(last == 3'100'004);
      const CatalogReader reader = *CatalogReader::open(memory.span());
      for (const auto& [name, bytes] : tensors) {
        const TensorView view = *reader.find(name);
        CHECK(text_of(view.bytes) == bytes);
        CHECK(view.crc32c == crc32c(std::as_bytes(std::span(bytes))));
        CHECK(view.hint == TensorHint::kv_cache);
        CHECK(reinterpret_cast<uintptr_t>(view.bytes.data()) % 64 == 0);
      }
      CHECK(reader.metadata() == TensorMetadata{{"format", "pt"}, {"by", "test"}});
      CHECK(reader.lease_epoch().value == 12);
      CHECK(verify(reader, path)->equal());
      CHECK(verify(reader)->equal());
    }
  }
}

TEST_CASE("import: a refused, cancelled or too large file leaves no catalog") {
  const TemporaryDirectory directory;
  const std::string path =
      directory.write("m.safetensors", safetensors_text({{"t", random_bytes(1, 2'000'000)}}));
  AlignedMemory memory(*required_bytes(path));
  ImportOptions options;
  options.block_bytes = 4096;
  options.cancelled = [] { return true; };
  CHECK(import_safetensors(path, memory.span(), options).error().code == ErrorCode::cancelled);
  CHECK(CatalogReader::open(memory.span()).error().code == ErrorCode::busy);
  CHECK(import_safetensors(path, memory.span().first(memory.span().size() - 64)).error().code ==
        ErrorCode::capacity_exhausted);

  AlignedMemory untouched(8192);
  const std::string bad = directory.write("bad", safetensors_text({{"t", "abc"}}) + "trailing");
  CHECK(import_safetensors(bad, untouched.span()).error().code == ErrorCode::corrupt);
  CHECK(CatalogReader::open(untouched.span()).error().code == ErrorCode::not_found);
}

TEST_CASE("import: an interrupt after the last byte and before the publication still counts") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("m.safetensors", safetensors_text({{"t", ""}}));
  AlignedMemory memory(*required_bytes(path));
  int asked = 0;
  ImportOptions options;
  options.cancelled = [&] { return ++asked > 1; };  // first by the read, which has nothing to do
  CHECK(import_safetensors(path, memory.span(), options).error().code == ErrorCode::cancelled);
  CHECK(CatalogReader::open(memory.span()).error().code == ErrorCode::busy);
}

TEST_CASE("import: a file that is written to meanwhile is refused") {
  const TemporaryDirectory directory;
  const std::string path =
      directory.write("m.safetensors", safetensors_text({{"t", random_bytes(1, 100'000)}}));
  AlignedMemory memory(*required_bytes(path));
  ImportOptions options;
  options.progress = [&](uint64_t, uint64_t) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    CHECK(::write(fd, "x", 1) == 1);
    ::close(fd);
  };
  CHECK(import_safetensors(path, memory.span(), options).error().code == ErrorCode::busy);
  CHECK(CatalogReader::open(memory.span()).error().code == ErrorCode::busy);
}

TEST_CASE("index: files that are none say so") {
  const TemporaryDirectory directory;
  CHECK(read_safetensors_index(directory.file("missing")).error().code == ErrorCode::not_found);
  CHECK(read_safetensors_index(directory.file("")).error().code == ErrorCode::invalid_argument);
  CHECK(read_safetensors_index(directory.write("empty", "")).error().detail.find("too few") !=
        std::string::npos);
  CHECK(read_safetensors_index(directory.write("seven", "1234567")).error().detail.find("too few") !=
        std::string::npos);
  CHECK(read_safetensors_index(directory.write("text", "this is a text file"))
            .error()
            .detail.find("is it a safetensors file?") != std::string::npos);
  const std::string cut = safetensors_text({{"t", "abc"}}).substr(0, 30);
  CHECK(read_safetensors_index(directory.write("cut", cut)).error().detail.find("cut short") !=
        std::string::npos);
  const std::string pipe = directory.file("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(read_safetensors_index(pipe).error().detail.find("not a regular file") != std::string::npos);
}

TEST_CASE("export: import and export give the same file again and again, and nothing else stays behind") {
  const TemporaryDirectory directory;
  const std::string path = directory.write(
      "m.safetensors",
      safetensors_text({{"zz", random_bytes(1, 70'000)}, {"aa", random_bytes(2, 1'000'001)}, {"e", ""}}));
  AlignedMemory memory(*required_bytes(path));
  REQUIRE(import_safetensors(path, memory.span()).ok());
  const CatalogReader reader = *CatalogReader::open(memory.span());
  const std::string out = directory.file("out.safetensors");
  for (const bool direct : {true, false}) {
    ExportOptions options;
    options.direct = direct;
    const auto report = export_safetensors(reader, out, options);
    REQUIRE_MESSAGE(report.ok(), report.error().to_string());
    CHECK(report->total_bytes == std::filesystem::file_size(out));
    CHECK(verify(reader, out)->equal());
    AlignedMemory second(*required_bytes(out));
    REQUIRE(import_safetensors(out, second.span()).ok());
    const CatalogReader again = *CatalogReader::open(second.span());
    const std::string third = directory.file("third.safetensors");
    REQUIRE(export_safetensors(again, third).ok());
    CHECK(read_file(third) == read_file(out));
    const SafetensorsIndex index = *read_safetensors_index(out);
    CHECK(index.buffer_offset % 4096 == 0);
    CHECK(index.tensors[0].name == "aa");  // by name, among equal element sizes
    CHECK(index.metadata == TensorMetadata{{"by", "test"}, {"format", "pt"}});
  }
  CHECK(directory.entries() == 3);
  struct stat status {};
  REQUIRE(::stat(out.c_str(), &status) == 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  CHECK((status.st_mode & 0777) == (0666 & ~mask));
}

TEST_CASE("export: chosen tensors, and refusals that leave the older file") {
  const TemporaryDirectory directory;
  const std::string path = directory.write(
      "m.safetensors",
      safetensors_text({{"a", random_bytes(1, 5000)}, {"b", random_bytes(2, 5000)}, {"c", "c"}}));
  AlignedMemory memory(*required_bytes(path));
  REQUIRE(import_safetensors(path, memory.span()).ok());
  const CatalogReader reader = *CatalogReader::open(memory.span());
  const std::string out = directory.file("out.safetensors");
  ExportOptions options;
  options.tensors = {"c", "a", "c"};
  REQUIRE(export_safetensors(reader, out, options).ok());
  const SafetensorsIndex index = *read_safetensors_index(out);
  REQUIRE(index.tensors.size() == 2);
  CHECK(index.tensors[0].name == "a");
  const VerifyReport report = *verify(reader, out);
  REQUIRE(report.mismatches.size() == 1);
  CHECK(report.mismatches[0].name == "b");
  CHECK(report.mismatches[0].reason == "is missing in the file");

  const std::string older = read_file(out);
  options.tensors = {"nope"};
  CHECK(export_safetensors(reader, out, options).error().code == ErrorCode::not_found);
  options.tensors = {};
  options.replace = false;
  CHECK(export_safetensors(reader, out, options).error().code == ErrorCode::already_exists);
  options.replace = true;
  options.cancelled = [] { return true; };
  CHECK(export_safetensors(reader, out, options).error().code == ErrorCode::cancelled);
  CHECK(export_safetensors(reader, directory.file("no/such/out")).error().code == ErrorCode::not_found);
  CHECK(export_safetensors(reader, directory.file("")).error().code == ErrorCode::invalid_argument);
  const size_t at = static_cast<size_t>(reader.find("b")->bytes.data() - memory.span().data());
  memory.span()[at] ^= std::byte{1};
  const Error damaged = export_safetensors(reader, out).error();
  CHECK(damaged.code == ErrorCode::corrupt);
  CHECK(damaged.detail.find("'b'") != std::string::npos);
  CHECK(read_file(out) == older);
  CHECK(directory.entries() == 2);
}

TEST_CASE("export: replaces regular files only, and what a symbolic link leads to, never the link") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("m", safetensors_text({{"a", random_bytes(1, 1000)}}));
  AlignedMemory memory(*required_bytes(path));
  REQUIRE(import_safetensors(path, memory.span()).ok());
  const CatalogReader reader = *CatalogReader::open(memory.span());
  ExportOptions options;
  options.replace = true;

  const std::string fifo = directory.file("fifo");
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const std::string to_fifo = directory.file("to_fifo");
  REQUIRE(::symlink("fifo", to_fifo.c_str()) == 0);
  const std::string nowhere = directory.file("nowhere");
  REQUIRE(::symlink("missing", nowhere.c_str()) == 0);
  const std::string folder = directory.file("folder");
  REQUIRE(::mkdir(folder.c_str(), 0700) == 0);
  const size_t entries = directory.entries();
  CHECK(export_safetensors(reader, fifo, options).error().code == ErrorCode::invalid_argument);
  CHECK(export_safetensors(reader, to_fifo, options).error().code == ErrorCode::invalid_argument);
  CHECK(export_safetensors(reader, folder, options).error().code == ErrorCode::invalid_argument);
  CHECK(export_safetensors(reader, nowhere, options).error().code == ErrorCode::not_found);
  struct stat found {};
  REQUIRE(::lstat(fifo.c_str(), &found) == 0);
  CHECK(S_ISFIFO(found.st_mode));
  CHECK(directory.entries() == entries);

  const std::string old = directory.write("old", "older");
  const std::string link = directory.file("link");
  REQUIRE(::symlink("old", link.c_str()) == 0);
  REQUIRE(export_safetensors(reader, link, options).ok());
  REQUIRE(::lstat(link.c_str(), &found) == 0);
  CHECK(S_ISLNK(found.st_mode));
  CHECK(read_file(old).size() > 1000);
}

TEST_CASE("verify: one changed bit, in memory or in the file, is found and named") {
  const TemporaryDirectory directory;
  const std::string text = safetensors_text({{"a", random_bytes(1, 3'000'000)}, {"b", random_bytes(2, 5000)}});
  const std::string path = directory.write("m.safetensors", text);
  AlignedMemory memory(*required_bytes(path));
  REQUIRE(import_safetensors(path, memory.span()).ok());
  const CatalogReader reader = *CatalogReader::open(memory.span());
  std::string changed = text;
  changed[changed.size() - 1] = static_cast<char>(changed[changed.size() - 1] ^ 4);
  const std::string other = directory.write("other.safetensors", changed);
  VerifyReport report = *verify(reader, other);
  REQUIRE(report.mismatches.size() == 1);
  CHECK(report.mismatches[0].name == "b");
  CHECK(report.mismatches[0].reason == "differs from the file");

  memory.span()[static_cast<size_t>(reader.find("a")->bytes.data() - memory.span().data()) + 2'999'999] ^=
      std::byte{1};
  report = *verify(reader, path, {.threads = 3, .progress = {}, .cancelled = {}});
  REQUIRE(report.mismatches.size() == 1);
  CHECK(report.mismatches[0].reason ==
        "does not have its recorded checksum in memory, and differs from the file");
  CHECK(verify(reader)->mismatches.size() == 1);

  const std::string shapes = directory.write("shapes.safetensors", safetensors_text({{"a", "x"}, {"z", "y"}}));
  report = *verify(reader, shapes);
  CHECK(report.mismatches.size() == 3);  // a: shape; b: missing in the file; z: missing in memory
  VerifyOptions options;
  options.cancelled = [] { return true; };
  CHECK(verify(reader, path, options).error().code == ErrorCode::cancelled);
}

TEST_CASE("export: tensors that are not row-major are refused") {
  const std::vector<std::byte> bytes(16);
  TensorView view{.name = "t", .dtype = DType::f32, .shape = {2, 2}, .bytes = bytes};
  view.strides = row_major_strides(view.shape);
  CHECK(view.row_major());
  std::swap(view.strides[0], view.strides[1]);
  CHECK_FALSE(view.row_major());
}

TEST_CASE("safetensors_header: escapes names and reads back") {
  const std::vector<std::byte> bytes(8);
  const TensorView views[] = {
      {.name = "quote\" \\ \xc3\xa9 \n", .dtype = DType::f64, .shape = {}, .bytes = bytes}};
  const std::string header = *safetensors_header(views, {{"k\t", "v\""}});
  const auto index =
      parse_safetensors_header(std::as_bytes(std::span(header)).subspan(8), header.size() + 8, "f");
  REQUIRE_MESSAGE(index.ok(), index.error().to_string());
  CHECK(index->tensors[0].name == views[0].name);
  CHECK(index->metadata == TensorMetadata{{"k\t", "v\""}});
}
