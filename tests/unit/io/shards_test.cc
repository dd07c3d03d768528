// SPDX-License-Identifier: Apache-2.0
// Models of several files: the index that names them, import, verify, and files that are written from any memory.
#include <doctest/doctest.h>

#include <algorithm>

#include "libclient/io/shard_index.h"
#include "terrace/model.h"
#include "terrace/safetensors.h"
#include "tests/unit/io/temporary_directory.h"
#include "tests/unit/tensor/aligned_memory.h"

using namespace terrace;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Of texts that outlive it.
TensorView view_of(std::string_view name, std::string_view bytes, DType dtype = DType::u8) {
  const Shape shape{bytes.size() / dtype_element_bytes(dtype)};
  return {.name = name,
          .dtype = dtype,
          .shape = shape,
          .strides = row_major_strides(shape),
          .bytes = bytes_of(bytes)};
}

// Two files of three tensors.
struct Shards {
  TemporaryDirectory directory;
  std::string a = std::string(100'000, 'a'), b = "bb", c = std::string(5000, 'c');

  Shards() {
    REQUIRE(write_safetensors(std::vector{view_of("a", a), view_of("b", b)}, {{"format", "pt"}, {"part", "1"}},
                              directory.file("m-1.safetensors"))
                .ok());
    REQUIRE(write_safetensors(std::vector{view_of("c", c)}, {{"format", "pt"}, {"part", "2"}},
                              directory.file("m-2.safetensors"))
                .ok());
  }
  std::string index(const std::string& map) const {
    return directory.write(
        "m.safetensors.index.json",
        R"({"metadata": {"total_size": 105002, "deep": [[{"weight_map": 1}]]}, "weight_map": )" + map + "}");
  }
  std::string good() const {
    return index(R"({"a": "m-1.safetensors", "c": "m-2.safetensors", "b": "m-1.safetensors"})");
  }
};

}  // namespace

TEST_CASE("model: all tensors of all shards, by the index or by its folder") {
  const Shards shards;
  const std::string index = shards.good();
  for (const std::string& path : {index, shards.directory.file("")}) {
    CAPTURE(path);
    const auto files = *read_safetensors_model(path);
    REQUIRE(files.size() == 2);
    CHECK(files[0].index.tensors.size() == 2);
    AlignedMemory memory(*required_bytes(path));
    uint64_t last = 0, of = 0;
    const auto report = import_safetensors(path, memory.span(),
                                           {{.progress =
                                                 [&](uint64_t done, uint64_t total) {
                                                   CHECK(done >= last);
                                                   last = done;
                                                   of = total;
                                                 }},
                                            TensorHint::weights,
                                            0,
                                            true,
                                            {},
                                            {}});
    REQUIRE(report.ok());
    CHECK(report->tensors == 3);
    CHECK(report->tensor_bytes == 105'002);
    CHECK(last == 105'002);
    CHECK(of == 105'002);
    const CatalogReader reader = *CatalogReader::open(memory.span());
    CHECK(std::ranges::equal(reader.find("c")->bytes, bytes_of(shards.c)));
    CHECK(std::ranges::equal(reader.find("a")->bytes, bytes_of(shards.a)));
    CHECK(reader.metadata() == TensorMetadata{{"format", "pt"}, {"part", "1"}});
    CHECK(verify(reader, path)->equal());
  }
}

TEST_CASE("model: a verify names the tensor that differs in the second file") {
  const Shards shards;
  const std::string index = shards.good();
  AlignedMemory memory(*required_bytes(index));
  REQUIRE(import_safetensors(index, memory.span()).ok());
  const std::string other(5000, 'd');
  REQUIRE(
      write_safetensors(std::vector{view_of("c", other)}, {}, shards.directory.file("m-2.safetensors")).ok());
  const VerifyReport report = *verify(*CatalogReader::open(memory.span()), index);
  REQUIRE(report.mismatches.size() == 1);
  CHECK(report.mismatches[0].name == "c");
}

TEST_CASE("model: files in place are the same tensors, and a store stays in this process") {
  const Shards shards;
  const auto model = *Model::open_files(shards.good());
  CHECK(model->tensors().size() == 3);
  CHECK(model->lease() == nullptr);
  CHECK(model->takes_stores());
  const TensorView c = *model->find("c");
  CHECK(std::ranges::equal(c.bytes, bytes_of(shards.c)));
  const_cast<std::byte*>(c.bytes.data())[0] = std::byte{'x'};
  CHECK(c.bytes[0] == std::byte{'x'});
  CHECK((*Model::open_files(shards.good()))->find("c")->bytes[0] == std::byte{'c'});
  CHECK(model->find("d").error().code == ErrorCode::not_found);
  CHECK(model->verify().error().code == ErrorCode::unsupported);
}

TEST_CASE("model: an index that lies, or names what is elsewhere, is refused") {
  const Shards shards;
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"a": "m-1.safetensors", "c": "m-1.safetensors"})", "'c' is not in"},
      {R"({"a": "m-1.safetensors", "d": "m-2.safetensors"})", "'d' is not in"},
      {R"({"a": "../m-1.safetensors"})", "no name of a file beside the index"},
      {R"({"a": ".."})", "no name of a file beside the index"},
      {R"({"a": ""})", "no name of a file beside the index"},
      {R"({"a": "m-3.safetensors"})", "cannot be opened"},
      {R"({"a": 7})", "no file's name for tensor 'a'"},
      {R"({"a": ["m-1.safetensors"]})", "no file's name for tensor 'a'"},
      {R"({"a": {"b": "m-1.safetensors"}})", "no file's name for tensor 'a'"},
      {R"({"a": "m-1.safetensors", "a": "m-1.safetensors"})", "'a' twice"},
      {R"("m-1.safetensors")", "weight_map is no object"},
      {R"([])", "weight_map is no object"},
      {R"({}, "weight_map": {})", "weight_map twice"},
      {R"({)", "not valid JSON"},
  };
  for (const auto& [map, says] : wrong) {
    CAPTURE(map);
    const auto refused = read_safetensors_model(shards.index(map));
    REQUIRE_FALSE(refused.ok());
    CHECK_MESSAGE(refused.error().detail.find(says) != std::string::npos, refused.error().detail);
  }
  CHECK(parse_shard_index("[1]", "x").error().code == ErrorCode::corrupt);
  CHECK(parse_shard_index("7", "x").error().code == ErrorCode::corrupt);
  CHECK(parse_shard_index("{}", "x").error().detail.find("no weight_map") != std::string::npos);
  CHECK(parse_shard_index("\xff", "x").error().detail.find("not UTF-8") != std::string::npos);
  CHECK(parse_shard_index(std::string(1 << 20, '['), "x").error().code == ErrorCode::corrupt);
}

TEST_CASE("model: one tensor in two files is refused, and so is a folder that leaves a choice") {
  const Shards shards;
  REQUIRE(write_safetensors(std::vector{view_of("a", "x")}, {}, shards.directory.file("m-3.safetensors")).ok());
  const auto twice =
      read_safetensors_model(shards.index(R"({"a": "m-1.safetensors", "b": "m-3.safetensors"})"));
  REQUIRE_FALSE(twice.ok());
  CHECK(twice.error().detail.find("tensor 'a' is in ") != std::string::npos);
  const TemporaryDirectory other;
  CHECK(read_safetensors_model(other.file("")).error().code == ErrorCode::not_found);
  REQUIRE(write_safetensors(std::vector{view_of("a", "x")}, {}, other.file("one.safetensors")).ok());
  CHECK(read_safetensors_model(other.file("."))->size() == 1);
  REQUIRE(write_safetensors(std::vector{view_of("b", "x")}, {}, other.file("two.safetensors")).ok());
  CHECK(read_safetensors_model(other.file(".")).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("write_safetensors: wrong names and sizes are refused, and the older file stands") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("m.safetensors", "older");
  const auto refused = [&](std::vector<TensorView> tensors) {
    const auto report = write_safetensors(tensors, {}, path);
    REQUIRE_FALSE(report.ok());
    CHECK(read_file(path) == "older");
    CHECK(directory.entries() == 1);
    return report.error();
  };
  CHECK(refused({view_of("a", "x"), view_of("a", "y")}).detail.find("twice") != std::string::npos);
  CHECK(refused({view_of("", "x")}).code == ErrorCode::invalid_argument);
  TensorView short_one = view_of("a", "1234", DType::f32);
  short_one.bytes = short_one.bytes.first(3);
  CHECK(refused({short_one}).detail.find("3 bytes, but its dtype and shape need 4") != std::string::npos);
  TensorView strided = view_of("a", "1234");
  strided.strides[0] = 2;
  CHECK(refused({strided}).code == ErrorCode::unsupported);
}
