// SPDX-License-Identifier: Apache-2.0
// Sockets with roles: what whoever connects may do follows from the socket, not from the uid.
#include <doctest/doctest.h>

#include <capnp/dynamic.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/schema/litmus.capnp.h"
#include "daemon/rpc/admin/rights.h"
#include "daemon/rpc/connection/listen.h"
#include "tests/unit/rpc/rpc_fixture.h"

using namespace terrace;
using namespace terrace::test;
using daemon::Authority;
using daemon::SocketRole;

namespace {

using SharedSocket = std::shared_ptr<const daemon::ServedSocket>;

SharedSocket made_socket(SocketRole role, std::string tenant = "", uint32_t number = 1) {
  return std::make_shared<const daemon::ServedSocket>(
      daemon::ServedSocket{"/run/x/s.sock", role, std::move(tenant), number});
}

std::string detail_of(terrace::rpc::Error::Reader error) {
  return error.getDetail().cStr();
}

bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

class PeersOfTest final : public daemon::Peers {
 public:
  using daemon::Peers::Peers;
  uint64_t now_ns() const override { return 1; }
};

daemon::PeerOptions peer_options_of_test() {
  daemon::PeerOptions options;
  options.admin_uids = {0};
  options.tenants = {{1000, "alice"}};
  options.allow_unmapped_uids = false;
  return options;
}

// Calls a method of Admin with nothing in its parameters; the code of its answer's error.
uint16_t call_by_name(terrace::rpc::Admin::Client& admin, const char* interface_method, kj::WaitScope& scope,
                      std::string* detail) {
  const auto schema = capnp::Schema::from<terrace::rpc::LitmusAdmin>();
  auto dynamic = admin.castAs<capnp::DynamicCapability>(schema);
  auto reply = dynamic.newRequest(interface_method).send().wait(scope);
  const auto error = reply.get("error").as<capnp::DynamicStruct>().as<terrace::rpc::Error>();
  *detail = detail_of(error);
  return error.getCode();
}

std::vector<std::string> all_methods() {
  std::vector<std::string> names;
  for (const auto& interface : {capnp::InterfaceSchema(capnp::Schema::from<terrace::rpc::Admin>()),
                                capnp::InterfaceSchema(capnp::Schema::from<terrace::rpc::LitmusAdmin>())})
    for (const auto method : interface.getMethods()) names.emplace_back(method.getProto().getName().cStr());
  return names;
}

struct Folder {
  Folder() {
    char name[] = "/tmp/terrace-sockets-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~Folder() {
    for (const char* file : {"/s.sock", "/other"}) ::unlink((path + file).c_str());
    ::rmdir(path.c_str());
  }
  std::string path;
};

mode_t mode_of(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 ? found.st_mode : 0;
}

bool connects(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

}  // namespace

TEST_CASE("Rights: every method of the operator's interface is in the table, and has an error to refuse with") {
  CHECK_MESSAGE(daemon::admin_methods_without_rights().empty(),
                "add it to daemon/rpc/admin/rights.cc and to docs/operations/configuration.md: "
                    << daemon::admin_methods_without_rights().front());
  CHECK(daemon::rights_without_admin_method().empty());
  for (const auto& interface : {capnp::InterfaceSchema(capnp::Schema::from<terrace::rpc::Admin>()),
                                capnp::InterfaceSchema(capnp::Schema::from<terrace::rpc::LitmusAdmin>())}) {
    const auto methods = interface.getMethods();
    for (uint16_t i = 0; i < methods.size(); ++i) {
      const std::string name = methods[i].getProto().getName().cStr();
      const auto found = daemon::find_admin_method(interface.getProto().getId(), i);
      REQUIRE(found.name != nullptr);
      CHECK(name == found.name);
      CHECK(found.needed != Authority::none);
      const auto error = methods[i].getResultType().findFieldByName("error");
      REQUIRE_MESSAGE(error != nullptr, name);
      KJ_IF_MAYBE (field, error)
        CHECK(field->getType().asStruct() == capnp::Schema::from<terrace::rpc::Error>());
    }
    CHECK(daemon::find_admin_method(interface.getProto().getId(), static_cast<uint16_t>(methods.size())).name ==
          nullptr);
  }
  CHECK(daemon::find_admin_method(1, 0).needed == Authority::administrator);
}

TEST_CASE("Rights: the manual says the same as the table") {
  std::ifstream manual(TERRACE_SOURCE_FOLDER "/docs/operations/configuration.md");
  REQUIRE(manual.good());
  std::string of_operator, of_administrator;
  for (std::string line; std::getline(manual, line);) {
    if (line.starts_with("| an operator, ")) of_operator += line;
    if (line.starts_with("| an administrator only, ")) of_administrator += line;
  }
  for (const auto& interface : {capnp::InterfaceSchema(capnp::Schema::from<terrace::rpc::Admin>()),
                                capnp::InterfaceSchema(capnp::Schema::from<terrace::rpc::LitmusAdmin>())}) {
    for (uint16_t i = 0; i < interface.getMethods().size(); ++i) {
      const auto method = daemon::find_admin_method(interface.getProto().getId(), i);
      const std::string quoted = "`" + std::string(method.name) + "`";
      const bool administrators = method.needed == Authority::administrator;
      CHECK_MESSAGE(says(administrators ? of_administrator : of_operator, quoted.c_str()), method.name);
      CHECK_MESSAGE(!says(administrators ? of_operator : of_administrator, quoted.c_str()), method.name);
    }
  }
}

TEST_CASE("Sockets: an operator's caller is answered exactly what the table gives it, an administrator's all") {
  Rpc t;
  FixtureClient root(t, 0, 1);
  auto whole = t.admin(root);
  t.make_pool(whole);
  FixtureClient watcher(t, 0, 2, made_socket(SocketRole::oversight));  // root, as in a container
  auto part = t.admin(watcher);
  FixtureClient master(t, 4321, 3, made_socket(SocketRole::administrator));
  auto by_socket = t.admin(master);
  size_t refused = 0;
  for (const std::string& name : all_methods()) {
    std::string detail;
    const uint16_t answer = call_by_name(part, name.c_str(), t.io.waitScope, &detail);
    const bool denied = answer == code(ErrorCode::permission_denied);
    if (denied) {
      ++refused;
      CHECK_MESSAGE(says(detail, "the socket /run/x/s.sock has the role operator, whatever the caller's uid"),
                    detail);
      CHECK_MESSAGE(
          says(detail, (name + " needs the role administrator; connect to a socket that has it").c_str()),
          detail);
    }
    const auto method =
        capnp::InterfaceSchema(capnp::Schema::from<terrace::rpc::LitmusAdmin>()).getMethodByName(name);
    const auto right = daemon::find_admin_method(method.getContainingInterface().getProto().getId(),
                                                 static_cast<uint16_t>(method.getIndex()));
    CHECK_MESSAGE(denied == (right.needed == Authority::administrator), name);
    CHECK_MESSAGE(
        call_by_name(by_socket, name.c_str(), t.io.waitScope, &detail) != code(ErrorCode::permission_denied),
        name);
  }
  CHECK(refused == 19);
}

TEST_CASE("Sockets: an operator moves a lease to another host, and gives none to another tenant") {
  Rpc t;
  FixtureClient root(t, 0, 1);
  auto whole = t.admin(root);
  t.make_pool(whole);
  FixtureClient holder(t, 1000, 2);
  auto tenant = t.session(holder);
  const uint64_t lease = t.grant(tenant, 2 * mib).getInfo().getId();
  FixtureClient watcher(t, 0, 3, made_socket(SocketRole::oversight));
  auto part = t.admin(watcher);
  auto give = part.transferRequest();
  give.setLease(lease);
  give.setTenant("uid-0");
  const auto given = t.call(kj::mv(give));
  CHECK(given.getError().getCode() == code(ErrorCode::permission_denied));
  CHECK(says(detail_of(given.getError()), "transfer to another tenant needs the role administrator"));
  auto move = part.transferRequest();
  move.setLease(lease);
  move.setHost("elsewhere");
  const auto moved = t.call(kj::mv(move));
  CHECK(moved.getError().getCode() == 0);
  CHECK(std::string(moved.getInfo().getTenant().cStr()) == "uid-1000");
  CHECK(std::string(moved.getInfo().getHost().cStr()) == "elsewhere");
}

TEST_CASE("Sockets: root at a tenants' socket is no administrator, and is told which socket is") {
  Rpc t;
  t.options.allow_unmapped_uids = true;
  FixtureClient inside(t, 0, 1, made_socket(SocketRole::tenant));
  auto hello = inside.gateway.helloRequest();
  hello.setOldest(1);
  hello.setNewest(1);
  hello.setClient("x[1]) on administrator socket (");
  const auto greeted = t.call(kj::mv(hello));
  CHECK_FALSE(greeted.getAdmin());
  CHECK(std::string(greeted.getRole().cStr()) == "tenant");
  CHECK(std::string(greeted.getTenant().cStr()) == "uid-0");
  const auto refused = t.call(inside.gateway.openAdminRequest());
  CHECK(refused.getError().getCode() == code(ErrorCode::permission_denied));
  CHECK(detail_of(refused.getError()) ==
        "the socket /run/x/s.sock has the role tenant, whatever the caller's uid, and openAdmin needs the role "
        "operator or administrator; connect to a socket that has it, or change the roles in the daemon's "
        "configuration ([[sockets]])");
  auto other = inside.gateway.openSessionRequest();
  other.setTenant("uid-1000");
  CHECK(t.call(kj::mv(other)).getError().getCode() == code(ErrorCode::permission_denied));
  // The log names the role before what the peer calls itself.
  FixtureClient root(t, 0, 2);
  auto admin = t.admin(root);
  const auto page = t.call(admin.auditRequest());
  size_t denials = 0;
  for (const auto entry : page.getEntries()) {
    if (!std::string(entry.getVerb().cStr()).starts_with("denied")) continue;
    ++denials;
    CHECK(std::string(entry.getActor().cStr()).starts_with("uid 0 on tenant socket ("));
    CHECK(std::string(entry.getTenant().cStr()) == "uid-0");
  }
  CHECK(denials == 2);
}

TEST_CASE("Sockets: one tenant's socket gives that tenant to any uid, and no other to any") {
  Rpc t;
  for (const uint32_t uid : {0u, 1000u}) {
    FixtureClient client(t, uid, 1, made_socket(SocketRole::tenant, "training"));
    t.hello(client);
    std::vector<CollectingListener::Notice> told;
    for (const char* asked : {"", "training", "uid-0", "uid-1000", "serving"}) {
      auto open = client.gateway.openSessionRequest();
      open.setTenant(asked);
      open.setListener(kj::heap<CollectingListener>(told));
      const auto reply = t.call(kj::mv(open));
      const bool own = std::string(asked).empty() || std::string(asked) == "training";
      CHECK(reply.getError().getCode() == (own ? 0 : code(ErrorCode::permission_denied)));
      if (own) CHECK(std::string(reply.getTenant().cStr()) == "training");
      if (!own)
        CHECK(says(detail_of(reply.getError()),
                   "has the role tenant of training only, whatever the caller's uid, and not of "));
    }
    CHECK(t.call(client.gateway.openAdminRequest()).getError().getCode() == code(ErrorCode::permission_denied));
  }
}

TEST_CASE("Peers: the socket's role says what a peer may, and whom it is counted for") {
  daemon::PeerOptions options = peer_options_of_test();
  const SharedSocket training = made_socket(SocketRole::tenant, "training", 1);
  options.sockets = {made_socket(SocketRole::by_uid, "", 0), training};
  const PeersOfTest peers(options);
  const daemon::PeerCredentials root{0, 1}, alice{1000, 1}, stranger{7, 1};
  CHECK(peers.authority_of(root) == Authority::administrator);
  CHECK(peers.authority_of(alice) == Authority::none);
  const daemon::PeerCredentials contained{0, 1, made_socket(SocketRole::tenant)};
  CHECK(peers.authority_of(contained) == Authority::none);
  CHECK_FALSE(peers.tenant_of(contained).has_value());
  CHECK(peers.tenant_of(root) == "uid-0");
  CHECK(peers.tenant_of({1000, 1, made_socket(SocketRole::tenant)}) == "alice");
  const daemon::PeerCredentials watcher{7, 1, made_socket(SocketRole::oversight)};
  CHECK(peers.authority_of(watcher) == Authority::oversight);
  CHECK_FALSE(peers.tenant_of(watcher).has_value());
  CHECK_FALSE(peers.may_act_for(watcher, "alice").ok());
  const daemon::PeerCredentials master{7, 1, made_socket(SocketRole::administrator)};
  CHECK(peers.is_admin(master));
  CHECK(peers.may_act_for(master, "alice").ok());
  for (const uint32_t uid : {0u, 7u, 1000u}) {
    CHECK(peers.tenant_of({uid, 1, training}) == "training");
    CHECK(peers.key_of({uid, 1, training}) == peers.key_of({7, 2, training}));
  }
  CHECK(peers.key_of({7, 1, training}) != peers.key_of({7, 1, made_socket(SocketRole::tenant, "training", 2)}));
  CHECK(peers.names_tenant("training"));
  CHECK_FALSE(peers.names_tenant(""));
  CHECK_FALSE(peers.names_tenant("serving"));
  CHECK(peers.key_of(alice) == 1000);
  CHECK(peers.key_of(alice) == peers.key_of({1000, 2, made_socket(SocketRole::tenant)}));
  CHECK(peers.key_of(contained) != peers.key_of(root));
  CHECK(says(peers.refused_authority(stranger, Authority::oversight, "openAdmin").detail,
             "uid 7 is no administrator here; list it under admin_uids"));
}

TEST_CASE(
    "Peers: what is kept for administrators is kept for their sockets, whatever the uid, and not for root") {
  daemon::PeerOptions options = peer_options_of_test();
  options.descriptors_max = 1024;
  options.connections_max = 64;
  PeersOfTest peers(options);
  const daemon::PeerCredentials contained{0, 1, made_socket(SocketRole::tenant, "training", 1)};
  const daemon::PeerCredentials watcher{7, 1, made_socket(SocketRole::oversight, "", 2)};
  const daemon::PeerCredentials master{7, 1, made_socket(SocketRole::administrator, "", 3)};

  uint32_t opened = 0;
  while (peers.connection_opened(contained)) ++opened;
  CHECK(opened == 64 / limits::rpc_connections_uid_share);  // root's in a container: a share, as anybody's
  for (uint32_t uid = 2000; peers.connection_opened({uid, 1}); ++uid) ++opened;
  CHECK(opened == 64 - limits::rpc_connections_reserved);
  CHECK_FALSE(peers.connection_opened({0, 1, made_socket(SocketRole::tenant)}));
  CHECK(peers.connection_opened(watcher));
  CHECK(peers.connection_opened(master));
  CHECK(peers.connection_opened({0, 1}));  // by uid
  peers.connection_closed(contained);
  CHECK(peers.connections() == 64 - limits::rpc_connections_reserved + 2);

  const auto memory = std::make_shared<const UniqueFd>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<std::shared_ptr<daemon::HandedMemory>> handed;
  while (peers.may_open_memory(contained).ok()) handed.push_back(peers.hand(contained, memory));
  for (uint32_t uid = 2000; uid < 2010; ++uid)
    while (peers.may_open_memory({uid, 1}).ok()) handed.push_back(peers.hand({uid, 1}, memory));
  CHECK(peers.may_open_memory(contained).error().code == ErrorCode::limit_exceeded);
  CHECK(peers.may_open_memory(watcher).ok());
  CHECK(peers.may_open_memory(master).ok());
  CHECK(peers.may_open_memory({0, 1}).ok());

  peers.looked_at(contained, 10 * options.rows_looked_at_per_s);
  peers.looked_at(watcher, 10 * options.rows_looked_at_per_s);
  CHECK(peers.may_look(contained).error().code == ErrorCode::limit_exceeded);
  CHECK(peers.may_look(watcher).ok());
  CHECK(peers.may_look({0, 1}).ok());
}

TEST_CASE("Sockets: a file has its mode and group before anybody connects, and goes only while it is ours") {
  const Folder folder;
  const std::string path = folder.path + "/s.sock";
  const auto bind = [&](uint32_t mode) { return daemon::listen_unix({path, mode, std::nullopt, ::getegid()}); };
  {
    auto bound = bind(0640);
    REQUIRE(bound.ok());
    CHECK(mode_of(path) == (S_IFSOCK | 0640));
    CHECK(connects(path));
    CHECK(bind(0600).error().code == ErrorCode::busy);
    bound->listener.reset();  // as a daemon that was killed leaves it
    CHECK_FALSE(connects(path));
    auto next = bind(0600);
    REQUIRE(next.ok());
    CHECK(mode_of(path) == (S_IFSOCK | 0600));
    bound->file.remove();  // no longer its own
    CHECK(connects(path));
  }
  CHECK(mode_of(path) == 0);
  // What somebody who may write to the folder puts there is neither taken for ours nor changed.
  const std::string other = folder.path + "/other";
  std::ofstream(other) << "x";
  REQUIRE(::chmod(other.c_str(), 0600) == 0);
  REQUIRE(::symlink(other.c_str(), path.c_str()) == 0);
  CHECK(bind(0666).error().code == ErrorCode::already_exists);
  CHECK(mode_of(other) == (S_IFREG | 0600));
  ::unlink(path.c_str());
  if (::geteuid() != 0) return;
  const auto owned = daemon::listen_unix({path, 0660, 1000, 12});
  REQUIRE(owned.ok());
  struct stat found {};
  REQUIRE(::lstat(path.c_str(), &found) == 0);
  CHECK(found.st_uid == 1000);
  CHECK(found.st_gid == 12);
}
