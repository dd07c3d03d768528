#include "daemon/hosts/tls.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "core/base/unique_fd.h"
#include "core/base/units.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "tls";
constexpr size_t file_bytes_max = 256 * 1024;

Error wrong(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = std::move(detail)};
}

Result<std::string> read_pem(const std::string& path, const char* what, bool secret) {
  if (path.empty()) {
    return wrong(std::string("no ") + what +
                 " is given; [tls] in the configuration, or --tls-ca, --tls-cert and "
                 "--tls-key name the files that `terrace cert` makes");
  }
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return os_error(errno, where, std::string("the ") + what + " " + path + " cannot be read");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return os_error(errno, where, "cannot look at " + path);
  if (secret && (status.st_mode & 077) != 0) {
    return Error{.code = ErrorCode::permission_denied,
                 .where = where,
                 .detail = std::string("the ") + what + " " + path +
                           " can be read by others; whoever has it is this machine. chmod 600 it"};
  }
  std::string content(file_bytes_max, '\0');
  const ssize_t bytes = ::read(file.get(), content.data(), content.size());
  if (bytes < 0) return os_error(errno, where, "cannot read " + path);
  content.resize(static_cast<size_t>(bytes));
  return content;
}

struct FreeX509 {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509_STORE* store) const { X509_STORE_free(store); }
  void operator()(X509_STORE_CTX* context) const { X509_STORE_CTX_free(context); }
};
template <typename T>
using Ssl = std::unique_ptr<T, FreeX509>;

Ssl<X509> parse_certificate(const std::string& pem) {
  const Ssl<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return Ssl<X509>(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
}

Ssl<EVP_PKEY> parse_key(const std::string& pem) {
  const Ssl<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return Ssl<EVP_PKEY>(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
}

std::string prefix_of(TlsRole role) {
  return std::string(role == TlsRole::manager ? manager_certificate_prefix : host_certificate_prefix);
}

std::string common_name(X509& certificate) {
  char name[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(&certificate), NID_commonName, name, sizeof(name));
  return name;
}

// What the peer would find wrong, said here first.
Status check(const TlsFiles& files, X509& ca, X509& certificate, EVP_PKEY& key, TlsRole role) {
  if (X509_check_private_key(&certificate, &key) != 1)
    return wrong("the key " + files.key + " does not belong to the certificate " + files.certificate);
  if (const std::string name = common_name(certificate); !name.starts_with(prefix_of(role))) {
    return wrong("the certificate " + files.certificate + " is for '" + name + "', and this is " +
                 (role == TlsRole::manager ? "a manager; `terrace cert issue NAME --manager` makes one"
                                           : "an agent; `terrace cert issue NAME` makes one"));
  }
  const Ssl<X509_STORE> store(X509_STORE_new());
  const Ssl<X509_STORE_CTX> context(X509_STORE_CTX_new());
  X509_STORE_add_cert(store.get(), &ca);
  X509_STORE_CTX_init(context.get(), store.get(), &certificate, nullptr);
  X509_STORE_CTX_set_purpose(context.get(),
                             role == TlsRole::manager ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
  if (X509_verify_cert(context.get()) != 1) {
    return wrong("the certificate " + files.certificate + " cannot be used with the CA " + files.ca + ": " +
                 X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get())) +
                 "; `terrace cert show` tells its dates and names, `terrace cert issue` makes a new one");
  }
  return {};
}

}  // namespace

Result<kj::Own<kj::TlsContext>> make_tls_context(const TlsFiles& files, TlsRole role, kj::Timer& timer) {
  TERRACE_ASSIGN_OR_RETURN(const std::string ca_pem, read_pem(files.ca, "CA certificate", false));
  TERRACE_ASSIGN_OR_RETURN(const std::string certificate_pem,
                           read_pem(files.certificate, "certificate", false));
  TERRACE_ASSIGN_OR_RETURN(const std::string key_pem, read_pem(files.key, "key", true));
  const Ssl<X509> ca = parse_certificate(ca_pem);
  if (ca == nullptr) return wrong(files.ca + " is no PEM certificate");
  const Ssl<X509> certificate = parse_certificate(certificate_pem);
  if (certificate == nullptr) return wrong(files.certificate + " is no PEM certificate");
  const Ssl<EVP_PKEY> key = parse_key(key_pem);
  if (key == nullptr) return wrong(files.key + " is no PEM key without a password");
  TERRACE_RETURN_IF_ERROR(check(files, *ca, *certificate, *key, role));
  const kj::TlsCertificate trusted{kj::StringPtr(ca_pem.c_str(), ca_pem.size())};
  const kj::TlsKeypair pair{kj::TlsPrivateKey(kj::StringPtr(key_pem.c_str(), key_pem.size())),
                            kj::TlsCertificate(kj::StringPtr(certificate_pem.c_str(), certificate_pem.size()))};
  kj::TlsContext::Options options;
  options.useSystemTrustStore = false;
  options.verifyClients = true;
  options.trustedCertificates = kj::arrayPtr(&trusted, 1);
  options.minVersion = kj::TlsVersion::TLS_1_2;
  options.defaultKeypair = pair;
  options.timer = timer;
  options.acceptTimeout = 5 * kj::SECONDS;
  return kj::heap<kj::TlsContext>(options);
}

Result<std::string> peer_name(kj::PeerIdentity& identity, TlsRole role) {
  auto* peer = dynamic_cast<kj::TlsPeerIdentity*>(&identity);
  const auto refused = [&](const std::string& why) {
    return Error{.code = ErrorCode::permission_denied, .where = where, .detail = why};
  };
  if (peer == nullptr || !peer->hasCertificate()) return refused("it showed no certificate");
  const std::string name = peer->getCommonName().cStr();
  const std::string prefix = prefix_of(role);
  if (!name.starts_with(prefix))
    return refused("its certificate is for '" + name + "', not for a " + prefix.substr(0, prefix.size() - 1));
  return name.substr(prefix.size());
}

std::string tls_failure(const kj::Exception& exception) {
  const std::string text = exception.getDescription().cStr();
  const auto says = [&text](const char* part) { return text.find(part) != std::string::npos; };
  if (says("alert certificate expired"))
    return "the other side refused our certificate: it has expired. `terrace cert issue` makes a new one";
  if (says("alert unknown ca") || says("alert bad certificate") || says("alert unsupported certificate"))
    return "the other side refused our certificate: it is of another CA than its own";
  if (says("certificate verify failed") || says("not trusted"))
    return "the other side's certificate was refused: it is of another CA than ours, has expired, or is not "
           "for "
           "what it does (" +
           text + ")";
  if (says("peer did not return a certificate")) return "the other side showed no certificate";
  if (says("wrong version number") || says("http request") || says("unknown protocol") || says("packet length"))
    return "the other side does not speak TLS";
  return text;
}

void set_keep_alive(int fd, uint64_t give_up_ns) {
  const int on = 1;
  const int seconds = static_cast<int>(std::max<uint64_t>(give_up_ns / ns_per_s, 1));
  const unsigned milliseconds = static_cast<unsigned>(give_up_ns / ns_per_ms);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace terrace::daemon
