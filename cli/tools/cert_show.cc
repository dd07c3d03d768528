// SPDX-License-Identifier: Apache-2.0
#include "cli/tools/cert_show.h"

#include <openssl/evp.h>
#include <openssl/x509v3.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "cli/terminal/verb.h"
#include "cli/tools/cert_addresses.h"
#include "cli/tools/cert_files.h"
#include "core/identity/client_certificate.h"

namespace terrace::cli {
namespace {

// What the certificate of a client gives; empty: it is none, or says nothing that can be used.
std::optional<ClientRights> rights_of(const X509& certificate) {
  if (role_of(certificate) != "client") return std::nullopt;
  auto rights = client_rights_in(uris_of(certificate));
  return rights.ok() ? std::optional(std::move(rights).value()) : std::nullopt;
}

std::string fingerprint(const X509& certificate) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned bytes = 0;
  if (X509_digest(&certificate, EVP_sha256(), digest, &bytes) != 1) return "";
  static constexpr const char* hex = "0123456789abcdef";
  std::string text;
  for (unsigned i = 0; i < bytes; ++i) {
    text += hex[digest[i] >> 4];
    text += hex[digest[i] & 15];
  }
  return text;
}

Status show_certificate(const Context& context, const std::string& file) {
  TERRACE_ASSIGN_OR_RETURN(const Ssl<X509> certificate, read_certificate(file));
  char issuer[256] = "";
  X509_NAME_get_text_by_NID(X509_get_issuer_name(certificate.get()), NID_commonName, issuer, sizeof(issuer));
  const std::string plain = plain_name(*certificate), role = role_of(*certificate);
  const std::string serial = serial_text(*X509_get0_serialNumber(certificate.get()));
  const int64_t left = seconds_until(*X509_get0_notAfter(certificate.get()));
  const std::string from = cert_moment(*X509_get0_notBefore(certificate.get()));
  const std::string until = cert_moment(*X509_get0_notAfter(certificate.get()));
  const std::optional<ClientRights> rights = rights_of(*certificate);
  const std::vector<std::string> addresses = addresses_of(*certificate);
  if (context.json) {
    print_json({{"file", file},
                {"name", plain},
                {"role", role},
                {"client_role", rights ? nlohmann::json(client_role_name(rights->role)) : nullptr},
                {"tenant", rights && !rights->tenant.empty() ? nlohmann::json(rights->tenant) : nullptr},
                {"addresses", addresses},
                {"issuer", issuer},
                {"not_before", from},
                {"not_after", until},
                {"expired", left <= 0},
                {"days_left", left / cert_day_s},
                {"serial", serial},
                {"sha256", fingerprint(*certificate)}});
    return {};
  }
  std::string may;
  if (rights.has_value()) {
    may = std::string("gives   the role ") + client_role_name(rights->role) +
          (rights->tenant.empty() ? "" : " of tenant " + rights->tenant) + ", within what the socket gives\n";
  }
  std::string found_at;
  for (const std::string& address : addresses) found_at += (found_at.empty() ? "for     " : ", ") + address;
  if (!found_at.empty()) found_at += "\n";
  print_text(format_table({"NAME", "ROLE", "FROM", "UNTIL", "LEFT", "ISSUER"},
                          {{plain, role, from, until,
                            left <= 0 ? "expired" : std::to_string(left / cert_day_s) + " days", issuer}}) +
             may + found_at + "serial  " + serial + "\nSHA-256 " + fingerprint(*certificate) + "\n");
  return {};
}

}  // namespace

void add_cert_show_verb(Command cert, Context& context) {
  const auto file = std::make_shared<std::string>();
  Command look = cert.add_subcommand("show", "Whose a certificate is, and until when");
  look.add_option("file", *file, "A PEM certificate").type_name("FILE").required();
  on_verb(look, context, [&context, file] { return show_certificate(context, *file); });
}

}  // namespace terrace::cli
