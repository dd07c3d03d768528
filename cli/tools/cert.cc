// SPDX-License-Identifier: Apache-2.0
// `terrace cert`: a small private CA for managers, agents and clients. Everything is done here with libcrypto; no
// certificate and no key that exists is ever overwritten.
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "cli/terminal/verb.h"
#include "cli/tools/cert_addresses.h"
#include "cli/tools/cert_files.h"
#include "cli/tools/cert_pkcs12.h"
#include "cli/tools/cert_renew.h"
#include "cli/tools/cert_revoke.h"
#include "cli/tools/cert_show.h"
#include "core/base/host_names.h"
#include "core/identity/client_certificate.h"

namespace terrace::cli {
namespace {

// --- certificates -----------------------------------------------------------------------------------------

struct Wanted {
  std::string common_name;
  std::string alternative_names;  // empty: none
  const char* extended_usage = nullptr;
  bool ca = false;
  int64_t days = 0;
};

Status add_extension(X509& certificate, X509& issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, &issuer, &certificate, nullptr, nullptr, 0);
  const Ssl<X509_EXTENSION> extension(X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str()));
  if (extension == nullptr || X509_add_ext(&certificate, extension.get(), -1) != 1)
    return openssl_error("cannot add '" + value + "' to a certificate");
  return {};
}

Status fill_in(X509& certificate, EVP_PKEY& key, X509* issuer, const Wanted& wanted) {
  unsigned char random[16];
  if (RAND_bytes(random, sizeof(random)) != 1) return openssl_error("no random numbers");
  random[0] &= 0x7f;
  const Ssl<BIGNUM> serial(BN_bin2bn(random, sizeof(random), nullptr));
  X509_NAME* name = X509_get_subject_name(&certificate);
  const auto* text = reinterpret_cast<const unsigned char*>(wanted.common_name.c_str());
  // A few minutes back: clocks of hosts differ.
  const bool made =
      X509_set_version(&certificate, X509_VERSION_3) == 1 &&
      BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(&certificate)) != nullptr &&
      X509_gmtime_adj(X509_getm_notBefore(&certificate), -300) != nullptr &&
      X509_gmtime_adj(X509_getm_notAfter(&certificate), static_cast<long>(wanted.days) * cert_day_s) !=
          nullptr &&
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, text, -1, -1, 0) == 1 &&
      X509_set_pubkey(&certificate, &key) == 1 &&
      X509_set_issuer_name(&certificate, issuer == nullptr ? name : X509_get_subject_name(issuer)) == 1;
  if (!made) return openssl_error("cannot make a certificate");
  X509& signer = issuer == nullptr ? certificate : *issuer;
  TERRACE_RETURN_IF_ERROR(add_extension(certificate, signer, NID_basic_constraints,
                                        wanted.ca ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE"));
  TERRACE_RETURN_IF_ERROR(
      add_extension(certificate, signer, NID_key_usage,
                    wanted.ca ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature"));
  TERRACE_RETURN_IF_ERROR(add_extension(certificate, signer, NID_subject_key_identifier, "hash"));
  TERRACE_RETURN_IF_ERROR(add_extension(certificate, signer, NID_authority_key_identifier, "keyid"));
  if (wanted.extended_usage != nullptr)
    TERRACE_RETURN_IF_ERROR(add_extension(certificate, signer, NID_ext_key_usage, wanted.extended_usage));
  if (!wanted.alternative_names.empty())
    TERRACE_RETURN_IF_ERROR(add_extension(certificate, signer, NID_subject_alt_name, wanted.alternative_names));
  return {};
}

struct Made {
  std::string certificate, key;  // PEM
};

// Signed by `issuer`, or by itself when there is none.
Result<Made> make(const Wanted& wanted, X509* issuer, EVP_PKEY* issuer_key) {
  const Ssl<EVP_PKEY> key(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
  const Ssl<X509> certificate(X509_new());
  if (key == nullptr || certificate == nullptr) return openssl_error("cannot make a key");
  TERRACE_RETURN_IF_ERROR(fill_in(*certificate, *key, issuer, wanted));
  if (X509_sign(certificate.get(), issuer_key == nullptr ? key.get() : issuer_key, EVP_sha256()) == 0)
    return openssl_error("cannot sign a certificate");
  Made made;
  TERRACE_ASSIGN_OR_RETURN(made.certificate,
                           to_pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate.get()); }));
  TERRACE_ASSIGN_OR_RETURN(made.key, to_pem([&](BIO* bio) {
                             return PEM_write_bio_PKCS8PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr,
                                                                  nullptr);
                           }));
  return made;
}

// --- verbs ------------------------------------------------------------------------------------------------

struct CertArguments {
  std::string directory = ".", name, out;
  int64_t ca_days = 3650, days = 90;
  bool manager = false;
  std::vector<std::string> addresses;     // of a manager
  std::string role = "operator", tenant;  // of a client
  bool pkcs12 = false;
  std::string password_file;

  bool for_browser() const { return pkcs12 || !password_file.empty(); }
};

// What was written, and how to use it.
struct Written {
  std::string certificate, key;  // paths
  std::string pkcs12, password;  // empty: there is none; it is known already
};

void tell(const Context& context, const Written& written, const std::string& more) {
  nlohmann::json document = {{"certificate", written.certificate}, {"key", written.key}};
  std::string text = written.certificate + "\n" + written.key + "\n";
  if (!written.pkcs12.empty()) {
    document["pkcs12"] = written.pkcs12;
    text += written.pkcs12 + "\n";
  }
  if (!written.password.empty()) {
    document["password"] = written.password;
    text += "Password of " + written.pkcs12 + ", shown this once: " + written.password + "\n";
  }
  if (context.json) {
    print_json(document);
  } else {
    print_text(text + more);
  }
}

// The password of the file for a browser, and whether it is to be shown.
Result<std::string> choose_password(const CertArguments& arguments) {
  return arguments.password_file.empty() ? new_password() : read_password(arguments.password_file);
}

Status init(const Context& context, const CertArguments& arguments) {
  const std::string& directory = arguments.directory;
  const int64_t days = arguments.ca_days;
  TERRACE_RETURN_IF_ERROR(check_days(days));
  const std::string certificate = directory + "/ca.pem", key = directory + "/ca.key";
  for (const std::string& path : {certificate, key}) {
    if (path_exists(path)) {
      return Error{.code = ErrorCode::already_exists,
                   .where = cert_where,
                   .detail = path +
                             " exists: there is a CA already, and another one would shut out everything that "
                             "it issued. Choose another directory"};
    }
  }
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return os_error(errno, cert_where, "cannot make " + directory);
  Wanted wanted;
  wanted.common_name = "Terrace private CA";
  wanted.ca = true;
  wanted.days = days;
  TERRACE_ASSIGN_OR_RETURN(const Made made, make(wanted, nullptr, nullptr));
  TERRACE_RETURN_IF_ERROR(write_new_file(key, made.key));
  TERRACE_RETURN_IF_ERROR(write_new_file(certificate, made.certificate));
  TERRACE_ASSIGN_OR_RETURN(const Ca ca, open_ca(directory));
  TERRACE_RETURN_IF_ERROR(write_first_list(ca));
  tell(context, {certificate, key, "", ""},
       "A CA for " + std::to_string(days) +
           " days. Keep ca.key here, and nowhere else: whoever has it can be any "
           "host.\nNext: terrace cert issue NAME --manager --ca " +
           directory + ", then one for each host.\n");
  return {};
}

Status check_cert_name(const std::string& name, const char* whose) {
  if (valid_agent_name(name) && name != "ca" && name != tls_server_name) return {};
  return cert_error("'" + name + "' is no " + whose + "'s name: letters, digits and -_., at most " +
                    std::to_string(agent_name_bytes_max) + ", and neither 'ca' nor '" + tls_server_name + "'");
}

// Signs `wanted` and writes both files; `what` it is for, in words.
Status sign_and_write(const Context& context, const CertArguments& arguments, Wanted wanted,
                      const std::string& what) {
  const int64_t days = arguments.days;
  TERRACE_RETURN_IF_ERROR(check_days(days));
  TERRACE_ASSIGN_OR_RETURN(const Ca ca, open_ca(arguments.directory));
  const int64_t ca_left_s = seconds_until(*X509_get0_notAfter(ca.certificate.get()));
  if (ca_left_s < days * cert_day_s) {
    return cert_error("the CA is valid for another " + std::to_string(ca_left_s / cert_day_s) +
                      " days only, less than " + std::to_string(days) + "; give --days, or make a new CA");
  }
  wanted.days = days;
  const std::string out = arguments.out.empty() ? arguments.directory : arguments.out;
  const std::string certificate = out + "/" + arguments.name + ".pem",
                    key = out + "/" + arguments.name + ".key";
  Written written{certificate, key, arguments.for_browser() ? out + "/" + arguments.name + ".p12" : "", ""};
  for (const std::string& path : {certificate, written.pkcs12}) {
    if (path.empty() || !path_exists(path)) continue;
    return Error{.code = ErrorCode::already_exists,
                 .where = cert_where,
                 .detail = path + " exists; nothing is overwritten. Move it away first, or give --out DIR"};
  }
  TERRACE_ASSIGN_OR_RETURN(const Made made, make(wanted, ca.certificate.get(), ca.key.get()));
  std::string browser;
  if (arguments.for_browser()) {
    TERRACE_ASSIGN_OR_RETURN(const std::string password, choose_password(arguments));
    TERRACE_ASSIGN_OR_RETURN(browser, make_pkcs12("Terrace " + wanted.common_name, made.certificate, made.key,
                                                  *ca.certificate, password));
    if (arguments.password_file.empty()) written.password = password;
  }
  // First, so that there is no certificate that cannot be taken back by its name.
  TERRACE_RETURN_IF_ERROR(note_issued(arguments.directory, made.certificate));
  TERRACE_RETURN_IF_ERROR(write_new_file(key, made.key));
  TERRACE_RETURN_IF_ERROR(write_new_file(certificate, made.certificate));
  if (!browser.empty()) TERRACE_RETURN_IF_ERROR(write_new_file(written.pkcs12, browser));
  tell(context, written,
       "For the " + what + ", " + std::to_string(days) +
           " days. Copy both and ca.pem there, the key by a safe way.\n");
  return {};
}

Status issue(const Context& context, const CertArguments& arguments) {
  const std::string& name = arguments.name;
  TERRACE_RETURN_IF_ERROR(check_cert_name(name, "host"));
  Wanted wanted;
  wanted.common_name =
      std::string(arguments.manager ? manager_certificate_prefix : host_certificate_prefix) + name;
  wanted.extended_usage = arguments.manager ? "serverAuth" : "clientAuth";
  if (!arguments.manager && !arguments.addresses.empty())
    return cert_error("--address is for a manager's certificate (--manager): nothing connects to an agent");
  if (arguments.manager) {
    TERRACE_ASSIGN_OR_RETURN(wanted.alternative_names, manager_names(name, arguments.addresses));
  }
  return sign_and_write(context, arguments, std::move(wanted),
                        (arguments.manager ? "manager " : "agent of host ") + name);
}

Status issue_client(const Context& context, const CertArguments& arguments) {
  const std::string& name = arguments.name;
  TERRACE_RETURN_IF_ERROR(check_cert_name(name, "client"));
  const auto role = client_role_of(arguments.role);
  if (!role.has_value())
    return cert_error("'" + arguments.role + "' is none of operator, administrator, tenant");
  const ClientRights rights{.role = *role, .tenant = arguments.tenant};
  if (Status status = check_client_rights(rights); !status.ok())
    return cert_error(status.error().detail + (rights.tenant.empty() ? ": --tenant NAME" : ""));
  Wanted wanted;
  wanted.common_name = std::string(client_certificate_prefix) + name;
  wanted.extended_usage = "clientAuth";
  wanted.alternative_names = "URI:" + client_uri(rights);
  return sign_and_write(
      context, arguments, std::move(wanted),
      "client " + name + ", " + arguments.role + (rights.tenant.empty() ? "" : " of tenant " + rights.tenant));
}

}  // namespace

void add_cert_verbs(Command app, Context& context) {
  Command cert =
      app.add_subcommand("cert", "Certificates by which managers, agents and clients know each other");
  cert.require_subcommand();

  const auto arguments = std::make_shared<CertArguments>();
  Command begin = cert.add_subcommand("init", "Make a small private CA");
  begin.add_option("dir", arguments->directory, "Where it is kept (made if need be, for you alone)")
      .type_name("DIR")
      .required();
  begin.add_option("--days", arguments->ca_days, "How long it is valid (default 3650)").type_name("N");
  on_verb(begin, context, [&context, arguments] { return init(context, *arguments); });

  Command one = cert.add_subcommand("issue", "Make the certificate and key of an agent, or of a manager");
  one.add_option("name", arguments->name, "The host's name: what its agent is, whatever it says")
      .type_name("NAME")
      .required();
  one.add_flag("--manager", arguments->manager, "For a manager");
  one.add_option("--address", arguments->addresses,
                 "A DNS name or IP address under which browsers find the manager; repeatable")
      .type_name("NAME|IP")
      .allow_extra_args(false);
  one.add_option("--ca", arguments->directory, "Directory of the CA (default: here)").type_name("DIR");
  one.add_option("--out", arguments->out, "Where the files go (default: beside the CA)").type_name("DIR");
  one.add_option("--days", arguments->days, "How long it is valid (default 90)").type_name("N");
  on_verb(one, context, [&context, arguments] { return issue(context, *arguments); });

  Command client = cert.add_subcommand("client", "Make the certificate and key of a client on another machine");
  client.add_option("name", arguments->name, "Who it is: the audit log has this name")
      .type_name("NAME")
      .required();
  client
      .add_option("--role", arguments->role,
                  "What it may do, where the manager's socket gives as much (default operator)")
      .type_name("operator|administrator|tenant");
  client.add_option("--tenant", arguments->tenant, "The tenant that it acts for; the role tenant needs one")
      .type_name("TENANT");
  client.add_option("--ca", arguments->directory, "Directory of the CA (default: here)").type_name("DIR");
  client.add_option("--out", arguments->out, "Where the files go (default: beside the CA)").type_name("DIR");
  client.add_flag("--pkcs12", arguments->pkcs12,
                  "Write NAME.p12, too, for a browser, and show its password once");
  client
      .add_option("--pkcs12-password-file", arguments->password_file,
                  "The same with the password in the first line of a file")
      .type_name("FILE");
  client.add_option("--days", arguments->days, "How long it is valid (default 90)").type_name("N");
  on_verb(client, context, [&context, arguments] { return issue_client(context, *arguments); });

  add_cert_show_verb(cert, context);
  add_cert_renew_verb(cert, context);
  add_cert_revocation_verbs(cert, context);
}

}  // namespace terrace::cli
