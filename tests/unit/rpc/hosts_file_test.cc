// SPDX-License-Identifier: Apache-2.0
// The names of hosts that outlive the manager, and when a certificate ends soon.
#include <doctest/doctest.h>

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "daemon/hosts/hosts_file.h"
#include "daemon/tls/certificate.h"

using namespace terrace;
using daemon::HostsFile;

namespace {

struct HostsFolder {
  HostsFolder() {
    char name[] = "/tmp/terrace-hosts-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~HostsFolder() { std::filesystem::remove_all(path); }
  std::string file() const { return path + "/state.db.hosts"; }
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(file()).rdbuf();
    return all.str();
  }
  std::string path;
};

using Names = std::set<std::string>;

}  // namespace

TEST_CASE("HostsFile: known and removed hosts are there for the next manager") {
  const HostsFolder folder;
  {
    HostsFile hosts(folder.file());
    CHECK(hosts.remember("hostb").ok());
    CHECK(hosts.remember("hostc").ok());
    CHECK(hosts.remove("hostc").ok());
    CHECK(hosts.remove("hostd").ok());
    CHECK(folder.text() == "hostb\nhostc\n!hostc\n!hostd\n");
  }
  HostsFile hosts(folder.file());
  CHECK(hosts.known() == Names{"hostb", "hostc"});
  CHECK(hosts.removed() == Names{"hostc", "hostd"});
  CHECK(hosts.forget("hostc").ok());
  CHECK(hosts.allow("hostd").ok());
  CHECK(folder.text() == "hostb\n!hostc\n");
}

TEST_CASE("HostsFile: what an earlier version wrote is read, and what is no name is nobody's") {
  const HostsFolder folder;
  std::ofstream(folder.file()) << "hostb\n-x\n!../y\n! \nhost";
  const HostsFile hosts(folder.file());
  CHECK(hosts.known() == Names{"host", "hostb"});
  CHECK(hosts.removed().empty());
}

TEST_CASE("HostsFile: what cannot be written has not happened") {
  const HostsFolder folder;
  HostsFile hosts(folder.path + "/none/state.db.hosts");
  CHECK_FALSE(hosts.remember("hostb").ok());
  CHECK_FALSE(hosts.remove("hostb").ok());
  CHECK(hosts.known().empty());
  CHECK(hosts.removed().empty());
}

TEST_CASE("certificates: thirty days before their end it is soon, or a quarter of their life") {
  constexpr int64_t day = 86'400;
  CHECK_FALSE(ends_soon(0, 730 * day, 699 * day));
  CHECK(ends_soon(0, 730 * day, 701 * day));
  CHECK_FALSE(ends_soon(0, 8 * day, 5 * day));
  CHECK(ends_soon(0, 8 * day, 6 * day + 1));
  CHECK(ends_soon(0, 8 * day, 9 * day));
  CHECK(days_left(8 * day, 6 * day + 1) == 1);
  CHECK(days_left(8 * day, 9 * day) == 0);
}
