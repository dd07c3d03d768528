// SPDX-License-Identifier: Apache-2.0
#include "cli/tools/cert_addresses.h"

#include <arpa/inet.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <set>

#include "core/base/host_names.h"

namespace terrace::cli {
namespace {

constexpr size_t addresses_max = 32, dns_name_bytes_max = 253, dns_label_bytes_max = 63;

bool is_ip_address(const std::string& text) {
  unsigned char bytes[sizeof(in6_addr)];
  return ::inet_pton(AF_INET, text.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, text.c_str(), bytes) == 1;
}

bool is_dns_label(const std::string& label) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  };
  return !label.empty() && label.size() <= dns_label_bytes_max && label.front() != '-' && label.back() != '-' &&
         std::all_of(label.begin(), label.end(), plain);
}

// What has digits and dots only is an address that somebody mistyped.
bool is_dns_name(const std::string& text) {
  if (text.size() > dns_name_bytes_max || text.find_first_not_of("0123456789.") == std::string::npos)
    return false;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('.', at), text.size());
    if (!is_dns_label(text.substr(at, end - at))) return false;
    at = end + 1;
  }
  return true;
}

// 4 or 16 bytes as one writes them.
std::string ip_text(const ASN1_OCTET_STRING& address) {
  char text[INET6_ADDRSTRLEN] = "";
  const int bytes = ASN1_STRING_length(&address);
  if (bytes != sizeof(in_addr) && bytes != sizeof(in6_addr)) return "";
  ::inet_ntop(bytes == sizeof(in_addr) ? AF_INET : AF_INET6, ASN1_STRING_get0_data(&address), text,
              sizeof(text));
  return text;
}

}  // namespace

Result<std::string> manager_names(const std::string& name, const std::vector<std::string>& addresses) {
  if (addresses.size() > addresses_max)
    return cert_error("a certificate has at most " + std::to_string(addresses_max) + " addresses");
  std::string names = std::string("DNS:") + tls_server_name + ",DNS:" + name;
  std::set<std::string> seen{tls_server_name, name};
  for (const std::string& address : addresses) {
    if (!seen.insert(address).second) continue;
    if (is_ip_address(address)) {
      names += ",IP:" + address;
    } else if (is_dns_name(address)) {
      names += ",DNS:" + address;
    } else {
      return cert_error("--address '" + address +
                        "' is neither a DNS name nor an IP address; give it as a browser's address bar has it, "
                        "without a port");
    }
  }
  return names;
}

std::vector<std::string> addresses_of(const X509& certificate) {
  std::vector<std::string> found;
  auto* names =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    std::string text;
    if (name->type == GEN_IPADD) {
      text = ip_text(*name->d.iPAddress);
    } else if (name->type == GEN_DNS) {
      text.assign(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                  static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)));
    }
    if (!text.empty() && text != tls_server_name) found.push_back(std::move(text));
  }
  GENERAL_NAMES_free(names);
  return found;
}

}  // namespace terrace::cli
