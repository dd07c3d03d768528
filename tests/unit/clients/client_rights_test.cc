// SPDX-License-Identifier: Apache-2.0
// What the certificate of a client says, and what it gives at a socket: the lesser of the two, or nothing with a reason.
#include <doctest/doctest.h>

#include "core/identity/client_certificate.h"
#include "daemon/clients/client_rights.h"
#include "daemon/rpc/peer_limits.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

CertificateFacts certificate_of(const std::string& name, const std::string& rights) {
  CertificateFacts facts;
  facts.name = name;
  facts.serial = "12ab";
  if (!rights.empty()) facts.uris = {"terrace:" + rights};
  return facts;
}

ServedSocket made_port(SocketRole role, std::string tenant = "") {
  return {"tls://10.0.0.1:7443", role, std::move(tenant), 3};
}

RemoteClient client_at(SocketRole role, const std::string& rights, const std::string& tenant = "") {
  return remote_client(certificate_of("client:ops", rights), made_port(role, tenant), "10.0.0.9");
}

class PeersOfClients final : public Peers {
 public:
  using Peers::Peers;
  uint64_t now_ns() const override { return 1; }
};

PeerCredentials peer_of(const RemoteClient& client) {
  PeerCredentials peer;
  peer.uid = no_uid;
  peer.socket = std::make_shared<const ServedSocket>(made_port(SocketRole::administrator));
  peer.remote = std::make_shared<const RemoteClient>(client);
  return peer;
}

}  // namespace

TEST_CASE("client rights: what is written is what is read") {
  for (const ClientRights& rights :
       {ClientRights{ClientRole::tenant, "training"}, ClientRights{ClientRole::oversight, ""},
        ClientRights{ClientRole::oversight, "a.b-c_d:e@f"}, ClientRights{ClientRole::administrator, ""}}) {
    REQUIRE(check_client_rights(rights).ok());
    const auto read = client_rights_in({"https://example.org", client_uri(rights)});
    REQUIRE(read.ok());
    CHECK(*read == rights);
  }
  CHECK(client_uri({ClientRole::tenant, "training"}) == "terrace:role=tenant;tenant=training");
}

TEST_CASE("client rights: what says anything else is refused, and says what is wrong") {
  const struct {
    std::vector<std::string> uris;
    const char* why;
  } cases[] = {
      {{}, "it says no rights"},
      {{"https://example.org"}, "it says no rights"},
      {{"terrace:"}, "it says no role"},
      {{"terrace:tenant=training"}, "it says no role"},
      {{"terrace:role=root"}, "its role 'root' is none that is known here"},
      {{"terrace:role=Operator"}, "its role 'Operator' is none"},
      {{"terrace:role="}, "its role '' is none"},
      {{"terrace:role=operator;role=administrator"}, "'role=administrator', which is not known here, or twice"},
      {{"terrace:role=tenant;tenant=a;tenant=b"}, "'tenant=b', which is not known here, or twice"},
      {{"terrace:role=operator;until=noon"}, "'until=noon', which is not known here"},
      {{"terrace:role=operator;"}, "its rights end with ';'"},
      {{"terrace:role=tenant"}, "the role tenant needs the name of one"},
      {{"terrace:role=tenant;tenant="}, "its tenant is empty"},
      {{"terrace:role=tenant;tenant=../x"}, "needs letters, digits"},
      {{"terrace:role=tenant;tenant=a b"}, "needs letters, digits"},
      {{"terrace:role=operator;tenant=uid-0"}, "kept for users without one"},
      {{"terrace:role=operator", "terrace:role=administrator"}, "it says its rights twice"},
  };
  for (const auto& one : cases) {
    const auto read = client_rights_in(one.uris);
    CAPTURE(one.why);
    REQUIRE_FALSE(read.ok());
    CHECK_MESSAGE(says(read.error().detail, one.why), read.error().detail);
  }
}

TEST_CASE("client rights: a socket gives no more than its role, and a certificate no more than its own") {
  const struct {
    SocketRole socket;
    const char* rights;
    SocketRole got;
    bool refused;
  } cases[] = {
      {SocketRole::administrator, "role=administrator", SocketRole::administrator, false},
      {SocketRole::administrator, "role=operator", SocketRole::oversight, false},
      {SocketRole::administrator, "role=tenant;tenant=t", SocketRole::tenant, false},
      {SocketRole::oversight, "role=administrator", SocketRole::oversight, false},
      {SocketRole::oversight, "role=operator", SocketRole::oversight, false},
      {SocketRole::oversight, "role=tenant;tenant=t", SocketRole::tenant, false},
      {SocketRole::tenant, "role=administrator", SocketRole::tenant, true},
      {SocketRole::tenant, "role=operator", SocketRole::tenant, true},
      {SocketRole::tenant, "role=operator;tenant=t", SocketRole::tenant, false},
      {SocketRole::tenant, "role=tenant;tenant=t", SocketRole::tenant, false},
  };
  for (const auto& one : cases) {
    const RemoteClient client = client_at(one.socket, one.rights);
    CAPTURE(one.rights);
    CAPTURE(socket_role_name(one.socket));
    CHECK(client.role == one.got);
    CHECK(client.refused.empty() != one.refused);
    CHECK(client.name == "ops");
  }
  CHECK(client_at(SocketRole::tenant, "role=tenant;tenant=t", "t").refused.empty());
  CHECK(says(client_at(SocketRole::tenant, "role=tenant;tenant=u", "t").refused,
             "is of tenant t only, and the certificate of client ops is of tenant u"));
  CHECK(says(client_at(SocketRole::tenant, "role=administrator", "t").refused, "names no tenant"));
}

TEST_CASE("client rights: a host's or manager's certificate is no client's, nor one without rights") {
  const ServedSocket port = made_port(SocketRole::administrator);
  for (const char* name : {"host:hostb", "manager:m", "ops", "", "client:", "client:a/b", "Client:ops",
                           "client:name-of-more-than-twenty-four"}) {
    CAPTURE(name);
    const RemoteClient client = remote_client(certificate_of(name, "role=administrator"), port, "10.0.0.9");
    CHECK_FALSE(client.refused.empty());
    CHECK(client.role == SocketRole::tenant);
    CHECK(client.tenant.empty());
  }
  CHECK(says(remote_client(certificate_of("host:hostb", ""), port, "").refused,
             "its certificate is for 'host:hostb', not for a client"));
  const RemoteClient bare = remote_client(certificate_of("client:ops", ""), port, "");
  CHECK(says(bare.refused, "the certificate of client ops cannot be used: it says no rights"));
  CHECK(bare.role == SocketRole::tenant);
}

TEST_CASE("Peers: a client is nobody's uid, and is counted by its name") {
  PeerOptions options;
  options.admin_uids = {0, no_uid};
  options.allow_unmapped_uids = true;
  const PeersOfClients peers(options);
  RemoteClient client = client_at(SocketRole::administrator, "role=tenant;tenant=training");
  client.number = 5;
  const PeerCredentials tenant = peer_of(client);
  CHECK(peers.authority_of(tenant) == Authority::none);
  CHECK(peers.tenant_of(tenant) == "training");
  CHECK(peers.may_act_for(tenant, "training").ok());
  CHECK(
      says(peers.may_act_for(tenant, "uid-0").error().detail, "client ops is tenant training's, not uid-0's"));
  CHECK(peers.name_for_audit(tenant) == "training");
  CHECK(says(peers.refused_authority(tenant, Authority::oversight, "openAdmin").detail,
             "client ops has the role tenant at tls://10.0.0.1:7443"));

  RemoteClient watching = client_at(SocketRole::administrator, "role=operator");
  watching.number = 6;
  const PeerCredentials watcher = peer_of(watching);
  CHECK(peers.authority_of(watcher) == Authority::oversight);
  CHECK_FALSE(peers.tenant_of(watcher).has_value());
  CHECK_FALSE(peers.may_act_for(watcher, "training").ok());
  CHECK(peers.name_for_audit(watcher) == "client:ops");
  CHECK(says(peers.refused_authority(watcher, Authority::administrator, "setQuota").detail,
             "setQuota needs the role administrator; use another certificate"));

  const PeerCredentials root{.uid = 0}, same_number{.uid = 6};
  CHECK(peers.key_of(tenant) != peers.key_of(watcher));
  CHECK(peers.key_of(watcher) != peers.key_of(root));
  CHECK(peers.key_of(watcher) != peers.key_of(same_number));
  RemoteClient again = client;
  again.serial = "99";
  CHECK(peers.key_of(peer_of(again)) == peers.key_of(tenant));

  const RemoteClient refused =
      remote_client(certificate_of("host:hostb", ""), made_port(SocketRole::administrator), "");
  CHECK(peers.authority_of(peer_of(refused)) == Authority::none);
  CHECK_FALSE(peers.tenant_of(peer_of(refused)).has_value());
}
