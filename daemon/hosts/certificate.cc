#include "daemon/hosts/certificate.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "core/base/unique_fd.h"
#include "daemon/hosts/x509.h"

namespace terrace::daemon {
namespace {

constexpr int64_t day_s = 86'400;
constexpr size_t credential_bytes_max = 8 * 1024 * 1024;  // a list of a hundred thousand revoked ones

}  // namespace

std::string serial_text(const ASN1_INTEGER& serial) {
  const Ssl<BIGNUM> number(ASN1_INTEGER_to_BN(&serial, nullptr));
  char* hex = number == nullptr ? nullptr : BN_bn2hex(number.get());
  std::string text = hex == nullptr ? "" : hex;
  OPENSSL_free(hex);
  for (char& c : text)
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

int64_t unix_time(const ASN1_TIME& time) {
  std::tm broken{};
  return ASN1_TIME_to_tm(&time, &broken) == 1 ? static_cast<int64_t>(::timegm(&broken)) : 0;
}

CertificateFacts facts_of(x509_st& certificate) {
  char name[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(&certificate), NID_commonName, name, sizeof(name));
  return {.name = name,
          .serial = serial_text(*X509_get0_serialNumber(&certificate)),
          .begins_s = unix_time(*X509_get0_notBefore(&certificate)),
          .ends_s = unix_time(*X509_get0_notAfter(&certificate))};
}

int64_t days_left(int64_t ends_s, int64_t now_s) {
  return std::max<int64_t>(ends_s - now_s, 0) / day_s;
}

bool ends_soon(int64_t begins_s, int64_t ends_s, int64_t now_s) {
  constexpr int64_t soon_s = 30 * day_s;
  const int64_t life_s = std::max<int64_t>(ends_s - begins_s, 0);
  return ends_s - now_s < std::min(soon_s, life_s / 4);
}

Result<std::string> read_credential(const std::string& path, const char* what, bool secret) {
  constexpr const char* at = "tls";
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return os_error(errno, at, std::string("the ") + what + " " + path + " cannot be read");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return os_error(errno, at, "cannot look at " + path);
  if (secret && (status.st_mode & 077) != 0) {
    return Error{.code = ErrorCode::permission_denied,
                 .where = at,
                 .detail = std::string("the ") + what + " " + path +
                           " can be read by others; whoever has it is this machine. chmod 600 it"};
  }
  std::string content;
  char part[16 * 1024];
  for (;;) {
    const ssize_t bytes = ::read(file.get(), part, sizeof(part));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return os_error(errno, at, "cannot read " + path);
    if (bytes == 0) return content;
    content.append(part, static_cast<size_t>(bytes));
    if (content.size() > credential_bytes_max) {
      return Error{.code = ErrorCode::invalid_argument,
                   .where = at,
                   .detail = std::string("the ") + what + " " + path + " is larger than any should be"};
    }
  }
}

}  // namespace terrace::daemon
