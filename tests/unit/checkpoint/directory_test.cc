// SPDX-License-Identifier: Apache-2.0
// A directory of checkpoints: damage, leftovers of dead writers, files in and out.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "core/base/prng.h"
#include "libclient/checkpoint/folder.h"
#include "terrace/checkpoint.h"
#include "tests/unit/io/temporary_directory.h"
#include "tests/unit/placement/pools.h"

using namespace terrace;
using namespace terrace::test;

namespace {

struct Fixture {
  Fixture() : checkpoints(take(CheckpointDirectory::open(directory.file("c")))), pools(0, 64 * mib) {
    tensors = {pools.tensor("a", 20 * mib), pools.tensor("b", 1000)};
    fill(tensors[0]->bytes(), 1);
    fill(tensors[1]->bytes(), 2);
    const auto write = take(checkpoints->checkpoint("good", *pools.pool, tensors));
    const Status done = write->wait(patience_ns);
    REQUIRE_MESSAGE(done.ok(), (done.ok() ? std::string() : done.error().to_string()));
  }
  std::string path(const std::string& name) const { return directory.file("c/" + name); }
  // A second one to do harm to.
  void copy(const std::string& name) const {
    CHECK(checkpoints->import_file(path("good/tensors.safetensors"), name).ok());
  }
  Error damage_of(const std::string& name) const {
    const CheckpointList list = take(checkpoints->list());
    CHECK(list.checkpoints.size() == 1);
    REQUIRE(list.damaged.size() == 1);
    CHECK(list.damaged[0].name == name);
    CHECK(!checkpoints->find(name).ok());
    Pools target(0, 64 * mib);
    CHECK(!checkpoints->restore(name, *target.pool).ok());
    CHECK(target.pool->statistics().tensors == 0);
    CHECK(checkpoints->remove(name).ok());
    return list.damaged[0].error;
  }

  TemporaryDirectory directory;
  std::unique_ptr<CheckpointDirectory> checkpoints;
  Pools pools;
  std::vector<std::shared_ptr<Tensor>> tensors;
};

void change_byte(const std::string& path, uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(file.get() ^ 0x40);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

}  // namespace

TEST_CASE("checkpoints: what is damaged is never offered, and says what is wrong") {
  const Fixture f;
  f.copy("x");
  std::filesystem::remove(f.path("x/manifest.json"));
  CHECK(f.damage_of("x").detail.find("no manifest") != std::string::npos);
  f.copy("x");
  std::filesystem::remove(f.path("x/tensors.safetensors"));
  CHECK(f.damage_of("x").code == ErrorCode::corrupt);
  f.copy("x");
  std::filesystem::resize_file(f.path("x/tensors.safetensors"), 1 * mib);
  CHECK(f.damage_of("x").detail.find("bytes, not") != std::string::npos);
  f.copy("x");
  change_byte(f.path("x/manifest.json"), 30);
  CHECK(f.damage_of("x").detail.find("checksum") != std::string::npos);
  f.copy("y");
  std::filesystem::rename(f.path("y"), f.path("x"));
  CHECK(f.damage_of("x").detail.find("that of 'y'") != std::string::npos);
  std::filesystem::create_directory(f.path("x"));
  CHECK(f.damage_of("x").detail.find("no manifest") != std::string::npos);
}

TEST_CASE("checkpoints: garbage in the place of a manifest is an error, whatever it is") {
  const Fixture f;
  f.copy("x");
  Prng prng(3);
  for (int round = 0; round < 50; ++round) {
    std::string garbage(prng.below(5000), '\0');
    for (char& c : garbage) c = static_cast<char>(prng.next());
    std::ofstream(f.path("x/manifest.json"), std::ios::binary) << garbage;
    CHECK(f.checkpoints->find("x").error().code == ErrorCode::corrupt);
  }
  std::filesystem::remove(f.path("x/manifest.json"));
  REQUIRE(::mkfifo(f.path("x/manifest.json").c_str(), 0600) == 0);
  CHECK(f.checkpoints->find("x").error().code == ErrorCode::corrupt);
}

TEST_CASE("checkpoints: a changed byte of the file is found, named, and costs no tensor") {
  const Fixture f;
  f.copy("x");
  change_byte(f.path("x/tensors.safetensors"), 17 * mib);
  CHECK(f.checkpoints->find("x").ok());
  const CheckpointVerification checked = take(f.checkpoints->verify("x"));
  REQUIRE(checked.damaged.size() == 1);
  CHECK(checked.damaged[0].begin == 16 * mib);
  Pools target(0, 64 * mib);
  const auto back = f.checkpoints->restore("x", *target.pool);
  REQUIRE(!back.ok());
  CHECK(back.error().code == ErrorCode::corrupt);
  CHECK(back.error().detail.find("bytes 16777216 to") != std::string::npos);
  CHECK(target.pool->statistics().tensors == 0);
  const std::string out = f.directory.write("out", "older");
  CHECK(f.checkpoints->export_file("x", out, true).error().code == ErrorCode::corrupt);
  CHECK(read_file(out) == "older");
}

TEST_CASE("checkpoints: files go in and come out as they are") {
  const Fixture f;
  const std::string out = f.directory.file("out.safetensors");
  CHECK(take(f.checkpoints->export_file("good", out, false)).tensors == 2);
  CHECK(f.checkpoints->export_file("good", out, false).error().code == ErrorCode::already_exists);
  CHECK(take(f.checkpoints->import_file(out, "again")).file_bytes == std::filesystem::file_size(out));
  CHECK(read_file(f.path("again/tensors.safetensors")) == read_file(out));
  Pools target(0, 64 * mib);
  const PoolImport back = take(f.checkpoints->restore("again", *target.pool));
  CHECK(whole(take(target.pool->find("a"))->bytes(), 1));
  CHECK(whole(take(target.pool->find("b"))->bytes(), 2));
  const std::string bad = f.directory.write("bad", "no safetensors file at all");
  CHECK(f.checkpoints->import_file(bad, "bad").error().code == ErrorCode::corrupt);
  CHECK(f.checkpoints->import_file(out, "again").error().code == ErrorCode::already_exists);
  CHECK(f.checkpoints->import_file(f.directory.file("absent"), "bad").error().code == ErrorCode::not_found);
  CHECK(take(f.checkpoints->list()).checkpoints.size() == 2);
}

TEST_CASE("checkpoints: what dead writers left is removed, what living ones write is not") {
  const Fixture f;
  std::filesystem::create_directory(f.path(".dead.tmp"));
  std::ofstream(f.path(".dead.tmp/tensors.safetensors")) << "half";
  std::filesystem::create_directory(f.path(".old.deleted"));
  std::filesystem::create_directory(f.path(".alive.tmp"));
  const UniqueFd alive(::open(f.path(".alive.tmp").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(::flock(alive.get(), LOCK_EX | LOCK_NB) == 0);
  // Not of a checkpoint: never removed.
  std::filesystem::create_directory(f.path(".stranger.tmp"));
  std::ofstream(f.path(".stranger.tmp/thesis.txt")) << "mine";
  const CheckpointList list = take(f.checkpoints->list());
  CHECK(list.checkpoints.size() == 1);
  CHECK(list.damaged.empty());
  CHECK(list.half_written == 2);
  CHECK(list.being_written == 1);
  CHECK(!std::filesystem::exists(f.path(".dead.tmp")));
  CHECK(!std::filesystem::exists(f.path(".old.deleted")));
  CHECK(std::filesystem::exists(f.path(".alive.tmp")));
  CHECK(std::filesystem::exists(f.path(".stranger.tmp/thesis.txt")));
  std::filesystem::create_directory(f.path(".again.tmp"));
  f.copy("again");
  CHECK(f.checkpoints->remove("again").ok());
  CHECK(f.checkpoints->remove("again").error().code == ErrorCode::not_found);
}

TEST_CASE("checkpoints: nothing but a checkpoint is removed") {
  const Fixture f;
  std::filesystem::create_directory(f.path("papers"));
  std::ofstream(f.path("papers/thesis.txt")) << "mine";
  CHECK(f.checkpoints->remove("papers").error().code == ErrorCode::invalid_argument);
  CHECK(f.checkpoints->remove("../c").error().code == ErrorCode::invalid_argument);
  CHECK(std::filesystem::exists(f.path("papers/thesis.txt")));
  CHECK(f.checkpoints->remove("good").ok());
  CHECK(take(f.checkpoints->list()).checkpoints.empty());
}

TEST_CASE("checkpoints: a directory that is none is refused") {
  const TemporaryDirectory directory;
  const std::string file = directory.write("file", "");
  CHECK(CheckpointDirectory::open(file).error().code == ErrorCode::invalid_argument);
  CHECK(CheckpointDirectory::open("").error().code == ErrorCode::invalid_argument);
  CHECK(CheckpointDirectory::open(directory.file("a/b")).error().code == ErrorCode::not_found);
}

TEST_CASE("checkpoints: links are not offered, wherever they lead") {
  const Fixture f;
  std::filesystem::create_directory_symlink(f.path("good"), f.path("link"));
  std::filesystem::create_directory_symlink(f.path("nowhere"), f.path("dangling"));
  std::filesystem::create_directory_symlink(f.path("loop"), f.path("loop"));
  const CheckpointList list = take(f.checkpoints->list());
  REQUIRE(list.checkpoints.size() == 1);
  CHECK(list.checkpoints[0].name == "good");
  CHECK(list.damaged.empty());
  CHECK(f.checkpoints->find("link").error().detail.find("is a link") != std::string::npos);
  CHECK(!f.checkpoints->remove("link").ok());
  CHECK(f.checkpoints->find("good").ok());
}

TEST_CASE("checkpoints: a child of fork keeps no lock of the directory") {
  const Fixture f;
  pid_t child = -1;
  {
    const auto lock = take(checkpoint::lock_directory(f.path("")));
    child = ::fork();
    if (child == 0) {
      ::alarm(120);
      for (;;) ::pause();
    }
  }
  REQUIRE(child > 0);
  const UniqueFd file(::open(f.path(".lock").c_str(), O_RDWR | O_CLOEXEC));
  CHECK(::flock(file.get(), LOCK_EX | LOCK_NB) == 0);
  ::kill(child, SIGKILL);
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
}
