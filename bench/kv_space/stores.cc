// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_space/stores.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "bench/kv_space/processes.h"

namespace terrace::bench::kv {
namespace {

bool is_installed(const std::string& program) {
  const char* const path = ::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/bin" : path);
  std::error_code ignored;
  for (std::string folder; std::getline(folders, folder, ':');)
    if (std::filesystem::exists(folder + "/" + program, ignored)) return true;
  return false;
}

class Files final : public Store {
 public:
  explicit Files(std::string folder) : folder_(std::move(folder)) {
    std::filesystem::create_directory(folder_);
  }
  void get(const std::string& key, std::span<std::byte> into) override {
    const UniqueFd file(::open(path_of(key).c_str(), O_RDONLY | O_CLOEXEC));
    if (::read(file.get(), into.data(), into.size()) != static_cast<ssize_t>(into.size()))
      give_up("a file cannot be read");
  }
  void set(const std::string& key, std::span<const std::byte> bytes) override {
    const std::string path = path_of(key), fresh = path + ".new";
    {
      const UniqueFd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
      if (::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
        give_up("a file cannot be written");
    }
    if (::rename(fresh.c_str(), path.c_str()) != 0) give_up("a file cannot be renamed");
  }

 private:
  std::string path_of(const std::string& key) const {
    std::string name = key;
    std::replace(name.begin(), name.end(), '/', '-');
    return folder_ + "/" + name;
  }
  const std::string folder_;
};

// One connection. What an answer has before and behind a block is known, so the block goes straight to its place.
class Connection {
 public:
  explicit Connection(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
    for (int attempt = 0; attempt < 1000; ++attempt, sleep_ns(10 * ns_per_ms)) {
      socket_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) break;
    }
    const timeval patience{5, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  void send(const std::string& head, std::span<const std::byte> block, const std::string& tail) {
    move(head.data(), head.size(), const_cast<std::byte*>(block.data()), block.size(), tail.data(), tail.size(),
         [this](msghdr* message) { return ::sendmsg(socket_.get(), message, MSG_NOSIGNAL); });
  }
  void expect(const std::string& head, std::span<std::byte> block, const std::string& tail) {
    std::array<char, 128> before{}, behind{};
    move(before.data(), head.size(), block.data(), block.size(), behind.data(), tail.size(),
         [this](msghdr* message) { return ::recvmsg(socket_.get(), message, 0); });
    if (std::memcmp(before.data(), head.data(), head.size()) != 0 ||
        std::memcmp(behind.data(), tail.data(), tail.size()) != 0)
      give_up("a server answered '" + std::string(before.data(), head.size()) + "'");
  }

 private:
  template <typename Call>
  static void move(const char* head, size_t head_bytes, std::byte* block, size_t block_bytes, const char* tail,
                   size_t tail_bytes, Call call) {
    std::array<iovec, 3> pieces{
        {{const_cast<char*>(head), head_bytes}, {block, block_bytes}, {const_cast<char*>(tail), tail_bytes}}};
    size_t left = head_bytes + block_bytes + tail_bytes;
    while (left != 0) {
      msghdr message{};
      message.msg_iov = pieces.data();
      message.msg_iovlen = pieces.size();
      const ssize_t moved = call(&message);
      if (moved <= 0) give_up("a server does not answer");
      left -= static_cast<size_t>(moved);
      auto done = static_cast<size_t>(moved);
      for (iovec& piece : pieces) {
        const size_t part = std::min(done, piece.iov_len);
        piece.iov_base = static_cast<char*>(piece.iov_base) + part;
        piece.iov_len -= part;
        done -= part;
      }
    }
  }
  UniqueFd socket_;
};

std::string counted(const std::string& text) {
  return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
}

class Redis final : public Store {
 public:
  explicit Redis(const std::string& folder)
      : server_({"redis-server", "--port", "0", "--unixsocket", folder + "/redis", "--dir", folder, "--save",
                 "", "--appendonly", "no"}),
        connection_(folder + "/redis") {}
  void get(const std::string& key, std::span<std::byte> into) override {
    connection_.send("*2\r\n$3\r\nGET\r\n" + counted(key), {}, "");
    connection_.expect("$" + std::to_string(into.size()) + "\r\n", into, "\r\n");
  }
  void set(const std::string& key, std::span<const std::byte> bytes) override {
    connection_.send("*3\r\n$3\r\nSET\r\n" + counted(key) + "$" + std::to_string(bytes.size()) + "\r\n", bytes,
                     "\r\n");
    connection_.expect("+OK\r\n", {}, "");
  }

 private:
  Program server_;
  Connection connection_;
};

class Memcached final : public Store {
 public:
  explicit Memcached(const std::string& folder)
      : server_({"memcached", "-u", "root", "-s", folder + "/memcached", "-m", "1024"}),
        connection_(folder + "/memcached") {}
  void get(const std::string& key, std::span<std::byte> into) override {
    connection_.send("get " + key + "\r\n", {}, "");
    connection_.expect("VALUE " + key + " 0 " + std::to_string(into.size()) + "\r\n", into, "\r\nEND\r\n");
  }
  void set(const std::string& key, std::span<const std::byte> bytes) override {
    connection_.send("set " + key + " 0 0 " + std::to_string(bytes.size()) + "\r\n", bytes, "\r\n");
    connection_.expect("STORED\r\n", {}, "");
  }

 private:
  Program server_;
  Connection connection_;
};

}  // namespace

std::unique_ptr<Store> files_store(const std::string& folder) {
  return std::make_unique<Files>(folder + "/files");
}
std::unique_ptr<Store> redis_store(const std::string& folder) {
  if (!is_installed("redis-server")) return nullptr;
  return std::make_unique<Redis>(folder);
}
std::unique_ptr<Store> memcached_store(const std::string& folder) {
  if (!is_installed("memcached")) return nullptr;
  return std::make_unique<Memcached>(folder);
}

}  // namespace terrace::bench::kv
