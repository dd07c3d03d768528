// SPDX-License-Identifier: Apache-2.0
#include "cli/tools/cert_revoke.h"

#include <dirent.h>
#include <openssl/err.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "cli/terminal/verb.h"
#include "cli/tools/cert_crl.h"
#include "core/base/host_names.h"
#include "core/identity/client_certificate.h"
#include "core/identity/pem_blocks.h"

namespace terrace::cli {
namespace {

// The longest serial of X.509: 20 octets.
constexpr size_t serial_digits_max = 40;

std::string issued_path(const std::string& directory) {
  return directory + "/issued.pem";
}

// All certificates in a file. One that was being written counts for nothing, and hides none behind it.
std::vector<Ssl<X509>> certificates_in(const std::string& pem) {
  std::vector<Ssl<X509>> all;
  for (const std::string_view block : pem_blocks(pem)) {
    const Ssl<BIO> bio(BIO_new_mem_buf(block.data(), static_cast<int>(block.size())));
    if (Ssl<X509> one{PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)}) all.push_back(std::move(one));
  }
  ERR_clear_error();
  return all;
}

std::string serial_of(const X509& certificate) {
  return serial_text(*X509_get0_serialNumber(&certificate));
}

// What the CA issued: its notes, and what lies beside it from before it kept any.
Result<std::vector<Ssl<X509>>> known_certificates(const Ca& ca) {
  std::vector<Ssl<X509>> all;
  std::set<std::string> serials;
  const auto add = [&](std::vector<Ssl<X509>> more) {
    for (Ssl<X509>& one : more) {
      if (X509_NAME_cmp(X509_get_issuer_name(one.get()), X509_get_subject_name(ca.certificate.get())) != 0)
        continue;
      if (X509_verify(one.get(), X509_get0_pubkey(ca.certificate.get())) != 1) continue;
      if (X509_cmp(one.get(), ca.certificate.get()) != 0 && serials.insert(serial_of(*one)).second)
        all.push_back(std::move(one));
    }
    ERR_clear_error();
  };
  if (path_exists(issued_path(ca.directory))) {
    TERRACE_ASSIGN_OR_RETURN(const std::string pem, read_pem_file(issued_path(ca.directory)));
    add(certificates_in(pem));
  }
  std::vector<std::string> beside;
  if (DIR* directory = ::opendir(ca.directory.c_str())) {
    while (const dirent* entry = ::readdir(directory))
      if (const std::string name = entry->d_name; name.ends_with(".pem")) beside.push_back(name);
    ::closedir(directory);
  }
  std::sort(beside.begin(), beside.end());
  for (const std::string& name : beside)
    if (auto pem = read_pem_file(ca.directory + "/" + name); pem.ok()) add(certificates_in(*pem));
  return all;
}

// --- verbs ------------------------------------------------------------------------------------------------

struct RevokeArguments {
  std::string directory = ".", name, file, serial;
  int64_t days = 365;
  bool manager = false, client = false, none = false;
};

Result<std::string> read_serial(std::string text) {
  std::erase(text, ':');
  if (text.starts_with("0x") || text.starts_with("0X")) text.erase(0, 2);
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c);
  if (text.empty() || text.size() > serial_digits_max ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos)
    return cert_error("'" + text + "' is no serial: up to " + std::to_string(serial_digits_max) +
                      " hexadecimal digits, as `terrace cert list` and `terrace cert show` print them");
  // As OpenSSL prints numbers: whole bytes, none of them in front for nothing.
  text.erase(0, std::min(text.find_first_not_of('0'), text.size() - 1));
  return text.size() % 2 == 0 ? text : "0" + text;
}

// The serials of what is to be revoked, each with its name.
Result<std::vector<std::string>> chosen_serials(const Ca& ca, const RevokeArguments& arguments) {
  std::vector<std::string> serials;
  if (arguments.none) return serials;
  if (!arguments.serial.empty()) {
    TERRACE_ASSIGN_OR_RETURN(std::string serial, read_serial(arguments.serial));
    serials.push_back(std::move(serial));
    return serials;
  }
  if (!arguments.file.empty()) {
    TERRACE_ASSIGN_OR_RETURN(const Ssl<X509> certificate, read_certificate(arguments.file));
    if (X509_verify(certificate.get(), X509_get0_pubkey(ca.certificate.get())) != 1) {
      ERR_clear_error();
      return cert_error(arguments.file + " is not of the CA in " + ca.directory);
    }
    if (X509_cmp(certificate.get(), ca.certificate.get()) == 0)
      return cert_error(arguments.file + " is the CA itself; where its key is lost, make a new CA");
    serials.push_back(serial_of(*certificate));
    return serials;
  }
  const char* kind = arguments.manager ? "manager " : arguments.client ? "client " : "host ";
  const std::string wanted = std::string(arguments.manager  ? manager_certificate_prefix
                                         : arguments.client ? client_certificate_prefix
                                                            : host_certificate_prefix) +
                             arguments.name;
  TERRACE_ASSIGN_OR_RETURN(const auto all, known_certificates(ca));
  for (const Ssl<X509>& one : all)
    if (common_name(*one) == wanted) serials.push_back(serial_of(*one));
  if (serials.empty()) {
    return Error{.code = ErrorCode::not_found,
                 .where = cert_where,
                 .detail = "no certificate of " + std::string(kind) + arguments.name + " is known in " +
                           ca.directory +
                           "; give --certificate FILE or --serial NUMBER (the manager's log and `terrace cert "
                           "show` tell it)"};
  }
  return serials;
}

Status revoke(const Context& context, const RevokeArguments& arguments) {
  const int chosen = static_cast<int>(!arguments.name.empty()) + static_cast<int>(!arguments.file.empty()) +
                     static_cast<int>(!arguments.serial.empty()) + static_cast<int>(arguments.none);
  if (chosen != 1) return cert_error("say whose: NAME, --certificate FILE, --serial NUMBER, or --none");
  if (arguments.manager && arguments.client) return cert_error("NAME is a manager's or a client's, not both");
  TERRACE_RETURN_IF_ERROR(check_days(arguments.days));
  TERRACE_ASSIGN_OR_RETURN(const Ca ca, open_ca(arguments.directory));
  TERRACE_ASSIGN_OR_RETURN(const std::optional<RevokedList> before, read_list(ca));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> serials, chosen_serials(ca, arguments));
  RevokedList list = before.value_or(RevokedList{});
  const Ssl<ASN1_TIME> now(ASN1_GENERALIZEDTIME_set(nullptr, std::time(nullptr)));
  std::vector<std::string> added;
  for (const std::string& serial : serials) {
    const bool there = std::any_of(list.entries.begin(), list.entries.end(),
                                   [&serial](const RevokedOne& one) { return one.serial == serial; });
    if (there) continue;
    list.entries.push_back({serial, reinterpret_cast<const char*>(ASN1_STRING_get0_data(now.get()))});
    added.push_back(serial);
  }
  const int64_t days = list_days(ca, arguments.days);
  TERRACE_ASSIGN_OR_RETURN(const std::string pem, sign_list(ca, list, days));
  const std::string path = revoked_list_path(ca.directory);
  TERRACE_RETURN_IF_ERROR(replace_file(path, pem));
  if (context.json) {
    print_json({{"list", path}, {"revoked", added}, {"entries", list.entries.size()}, {"days_left", days}});
    return {};
  }
  std::string text;
  for (const std::string& serial : added) text += "revoked " + serial + "\n";
  if (added.empty() && !arguments.none) text += "revoked already; the list was signed anew\n";
  print_text(text + path + " has " + count_text(list.entries.size(), "revoked certificate") + ", for " +
             std::to_string(days) +
             " days.\nCopy it to the manager, over the file that [tls] revoked names there: it takes effect "
             "within seconds.\n");
  return {};
}

struct Listed {
  std::string name, role, serial, until, state;
  int64_t left_s = 0;
};

Status list_certificates(const Context& context, const RevokeArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const Ca ca, open_ca(arguments.directory));
  TERRACE_ASSIGN_OR_RETURN(const auto all, known_certificates(ca));
  TERRACE_ASSIGN_OR_RETURN(const std::optional<RevokedList> list, read_list(ca));
  std::set<std::string> revoked;
  if (list.has_value())
    for (const RevokedOne& one : list->entries) revoked.insert(one.serial);
  std::vector<Listed> listed;
  for (const Ssl<X509>& one : all) {
    Listed line;
    line.name = plain_name(*one);
    line.role = role_of(*one);
    line.serial = serial_of(*one);
    line.until = cert_moment(*X509_get0_notAfter(one.get()));
    line.left_s = seconds_until(*X509_get0_notAfter(one.get()));
    line.state = revoked.erase(line.serial) != 0 ? "revoked" : line.left_s <= 0 ? "expired" : "valid";
    listed.push_back(std::move(line));
  }
  for (const std::string& serial : revoked) listed.push_back({"", "", serial, "", "revoked", 0});
  if (context.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const Listed& one : listed) {
      const bool known = !one.name.empty();
      rows.push_back({{"name", known ? nlohmann::json(one.name) : nullptr},
                      {"role", known ? nlohmann::json(one.role) : nullptr},
                      {"serial", one.serial},
                      {"state", one.state},
                      {"not_after", known ? nlohmann::json(one.until) : nullptr},
                      {"days_left", known ? nlohmann::json(one.left_s / cert_day_s) : nullptr}});
    }
    nlohmann::json of_list = nullptr;
    if (list.has_value())
      of_list = {{"file", revoked_list_path(ca.directory)},
                 {"next_update", list->until},
                 {"days_left", list->seconds_left / cert_day_s}};
    print_json({{"certificates", rows}, {"list", of_list}});
    return {};
  }
  std::vector<std::vector<std::string>> rows;
  for (const Listed& one : listed) {
    const bool known = !one.name.empty();
    rows.push_back({known ? one.name : "-", known ? one.role : "-", one.state, known ? one.until : "-",
                    known ? std::to_string(one.left_s / cert_day_s) + " days" : "-", one.serial});
  }
  std::string text = rows.empty() ? "no certificate was issued here yet\n"
                                  : format_table({"NAME", "ROLE", "STATE", "UNTIL", "LEFT", "SERIAL"}, rows);
  text += !list.has_value() ? "there is no list of revoked ones; `terrace cert revoke --none` makes one\n"
                            : revoked_list_path(ca.directory) + " is to be signed anew within " +
                                  std::to_string(list->seconds_left / cert_day_s) + " days\n";
  print_text(text);
  return {};
}

}  // namespace

Status check_days(int64_t days) {
  if (days >= 1 && days <= cert_days_max) return {};
  return cert_error("a certificate is valid for 1 to " + std::to_string(cert_days_max) + " days, not " +
                    std::to_string(days));
}

Status note_issued(const std::string& directory, const std::string& certificate_pem) {
  return append_file(issued_path(directory), certificate_pem);
}

Status write_first_list(const Ca& ca) {
  TERRACE_ASSIGN_OR_RETURN(const std::string pem,
                           sign_list(ca, RevokedList{}, list_days(ca, RevokeArguments{}.days)));
  return write_new_file(revoked_list_path(ca.directory), pem);
}

void add_cert_revocation_verbs(Command cert, Context& context) {
  const auto arguments = std::make_shared<RevokeArguments>();
  Command take =
      cert.add_subcommand("revoke", "Take certificates back: puts them on the list that managers read");
  take.add_option("name", arguments->name, "All certificates of this host").type_name("NAME");
  take.add_flag("--manager", arguments->manager, "NAME is a manager's");
  take.add_flag("--client", arguments->client, "NAME is a client's");
  take.add_option("--certificate", arguments->file, "This one, a PEM file").type_name("FILE");
  take.add_option("--serial", arguments->serial, "The one with this serial").type_name("NUMBER");
  take.add_flag("--none", arguments->none,
                "No further one: the list is signed anew, and made if there is none");
  take.add_option("--ca", arguments->directory, "Directory of the CA (default: here)").type_name("DIR");
  take.add_option("--days", arguments->days, "When the list should be signed anew (default 365)")
      .type_name("N");
  on_verb(take, context, [&context, arguments] { return revoke(context, *arguments); });

  Command list = cert.add_subcommand("list", "What was issued and what was revoked");
  list.add_option("--ca", arguments->directory, "Directory of the CA (default: here)").type_name("DIR");
  on_verb(list, context, [&context, arguments] { return list_certificates(context, *arguments); });
}

}  // namespace terrace::cli
