// SPDX-License-Identifier: Apache-2.0
#include "bench/lease/scrape.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"

namespace terrace::bench {
namespace {

using Clock = std::chrono::steady_clock;

UniqueFd connect_http(const Manager& manager) {
  const std::string& rpc = manager.socket();
  const std::string path = rpc.substr(0, rpc.rfind('/')) + "/http.sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) die(path + " is too long");
  std::memcpy(address.sun_path, path.c_str(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() || ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    die("cannot connect to " + path);
  return socket;
}

// How long the answer is as a whole, once its head is there; 0: not yet. kj's server keeps the connection for the next request,
// whatever was asked, so the end of the stream tells nothing.
size_t whole_length(const std::string& answer) {
  const size_t head = answer.find("\r\n\r\n");
  const size_t length = answer.find("Content-Length: ");
  if (head == std::string::npos) return 0;
  if (length == std::string::npos || length > head) die("an answer without Content-Length");
  return head + 4 + std::stoul(answer.substr(length + 16));
}

// Bytes of the answer, head and all.
uint64_t get(const Manager& manager, const std::string& path) {
  const UniqueFd socket = connect_http(manager);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  if (::write(socket.get(), request.data(), request.size()) != static_cast<ssize_t>(request.size()))
    die("cannot ask for " + path);
  std::string answer;
  char buffer[1 << 16];
  while (whole_length(answer) == 0 || answer.size() < whole_length(answer)) {
    const ssize_t n = ::read(socket.get(), buffer, sizeof(buffer));
    if (n <= 0) die(path + ": the answer ends early");
    answer.append(buffer, static_cast<size_t>(n));
  }
  if (!answer.starts_with("HTTP/1.1 200")) die(path + ": " + answer.substr(0, 80));
  return answer.size();
}

double get_us(const Manager& manager, const std::string& path) {
  const auto begin = Clock::now();
  get(manager, path);
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median_us(const Manager& manager, const std::string& path, int times) {
  std::vector<double> taken;
  for (int i = 0; i < times; ++i) taken.push_back(get_us(manager, path));
  std::sort(taken.begin(), taken.end());
  return taken[taken.size() / 2];
}

}  // namespace

void measure_scrape(const Manager& manager, bool smoke, nlohmann::json& figures) {
  const int scrapes = smoke ? 10 : 300, pages = smoke ? 2 : 20;
  std::vector<double> times;
  const double cpu_before = manager.cpu_seconds();
  for (int i = 0; i < scrapes; ++i) times.push_back(get_us(manager, "/metrics"));
  const double cpu = manager.cpu_seconds() - cpu_before;
  std::sort(times.begin(), times.end());
  figures["scrape_us_p50"] = times[times.size() / 2];
  figures["scrape_us_p99"] = times[times.size() * 99 / 100];
  figures["scrape_core_pct"] = 100 * cpu / scrapes;
  figures["scrape_bytes"] = get(manager, "/metrics");
  const std::string page = "/api/v1/leases?limit=1000", use = page + "&fields=id,pool,tenant,phase,bytes";
  figures["page_of_1000_ms"] = median_us(manager, page, pages) / 1000;
  figures["page_of_1000_bytes"] = get(manager, page);
  figures["page_of_1000_five_fields_ms"] = median_us(manager, use, pages) / 1000;
  figures["page_of_1000_five_fields_bytes"] = get(manager, use);
}

}  // namespace terrace::bench
