// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/aes_gcm.h"

#include <cpuid.h>
#include <openssl/evp.h>

#include "libs/base/check.h"
#include "libs/transport/tcp/ipsec_mb.h"

namespace talweg::transport {
namespace {

const unsigned char* Raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* Raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

const EVP_CIPHER* CipherFor(std::span<const std::byte> key) {
  if (key.size() == 16) return EVP_aes_128_gcm();
  TALWEG_CHECK(key.size() == 32);
  return EVP_aes_256_gcm();
}

// Except for the call that compares tags, OpenSSL's calls fail only if there is no memory.
class OpenSslAesGcm final : public AesGcm {
 public:
  OpenSslAesGcm(std::span<const std::byte> key, Use use) : context_(EVP_CIPHER_CTX_new()) {
    TALWEG_CHECK(context_ != nullptr);
    TALWEG_CHECK(EVP_CipherInit_ex(context_.get(), CipherFor(key), nullptr, Raw(key.data()),
                                   nullptr, use == Use::kSeals ? 1 : 0) == 1);
  }

  void Begin(const AesNonce& nonce, std::span<const std::byte> header) override {
    TALWEG_CHECK(
        EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, Raw(nonce.data()), -1) == 1);
    Crypt(header, nullptr);
  }

  void Crypt(std::span<const std::byte> from, std::byte* to) override {
    if (from.empty()) return;
    int done = 0;
    TALWEG_CHECK(EVP_CipherUpdate(context_.get(), Raw(to), &done, Raw(from.data()),
                                  static_cast<int>(from.size())) == 1);
  }

  Tag MakeTag() override {
    Tag tag;
    TALWEG_CHECK(End());
    TALWEG_CHECK(
        EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()) == 1);
    return tag;
  }

  bool IsTag(const Tag& tag) override {
    Tag expected = tag;
    TALWEG_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes,
                                     expected.data()) == 1);
    return End();
  }

 private:
  struct ContextFreer {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };

  bool End() {
    int ignored = 0;
    std::array<unsigned char, kTagBytes> none;
    return EVP_CipherFinal_ex(context_.get(), none.data(), &ignored) == 1;
  }

  std::unique_ptr<EVP_CIPHER_CTX, ContextFreer> context_;
};

// Clang 16 has no names for the first two features.
bool CpuHasVaes() {
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_VAES) != 0 &&
         (ecx & bit_VPCLMULQDQ) != 0 && __builtin_cpu_supports("avx512f") != 0;
}

}  // namespace

AesCode FastestAesCode() { return HasIpsecMb() ? AesCode::kIpsecMb : AesCode::kOpenSsl; }

FasterAes LookForFasterAes() { return {.cpu_can = CpuHasVaes(), .problem = IpsecMbProblem()}; }

std::unique_ptr<AesGcm> MakeAesGcm(AesCode code, std::span<const std::byte> key, AesGcm::Use use) {
  if (code == AesCode::kIpsecMb) return MakeIpsecMbAesGcm(key, use);
  return std::make_unique<OpenSslAesGcm>(key, use);
}

}  // namespace talweg::transport
