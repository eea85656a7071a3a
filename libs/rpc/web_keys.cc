// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/util/json_util.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>

#include <memory>
#include <utility>

#include <google/protobuf/struct.pb.h>

#include "absl/strings/escaping.h"
#include "libs/rpc/openssl_types.h"
#include "libs/rpc/tokens.h"

namespace talweg::rpc {
namespace {

using KeyContext = Owned<EVP_PKEY_CTX, EVP_PKEY_CTX_free>;
using DigestContext = Owned<EVP_MD_CTX, EVP_MD_CTX_free>;
using Number = Owned<BIGNUM, BN_free>;
using ParameterBuilder = Owned<OSSL_PARAM_BLD, OSSL_PARAM_BLD_free>;
using Parameters = Owned<OSSL_PARAM, OSSL_PARAM_free>;
using EcSignature = Owned<ECDSA_SIG, ECDSA_SIG_free>;

constexpr size_t kP256Bytes = 32;
constexpr int kRsaBitsMin = 2048;

std::string Field(const google::protobuf::Struct& object, const std::string& name) {
  const auto field = object.fields().find(name);
  return field == object.fields().end() ? "" : field->second.string_value();
}

std::string Decoded(const google::protobuf::Struct& object, const std::string& name) {
  std::string bytes;
  return absl::WebSafeBase64Unescape(Field(object, name), &bytes) ? bytes : "";
}

const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

OwnedKey FromParameters(const char* type, OSSL_PARAM_BLD* builder) {
  const Parameters parameters(OSSL_PARAM_BLD_to_param(builder));
  const KeyContext context(EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr));
  EVP_PKEY* key = nullptr;
  if (parameters == nullptr || context == nullptr || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, parameters.get()) != 1) {
    return nullptr;
  }
  return OwnedKey(key);
}

OwnedKey RsaKey(const google::protobuf::Struct& object) {
  const std::string modulus = Decoded(object, "n");
  const std::string exponent = Decoded(object, "e");
  const Number n(BN_bin2bn(Bytes(modulus), static_cast<int>(modulus.size()), nullptr));
  const Number e(BN_bin2bn(Bytes(exponent), static_cast<int>(exponent.size()), nullptr));
  if (BN_num_bits(n.get()) < kRsaBitsMin || BN_is_zero(e.get())) return nullptr;
  const ParameterBuilder builder(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, n.get());
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, e.get());
  return FromParameters("RSA", builder.get());
}

OwnedKey P256Key(const google::protobuf::Struct& object) {
  const std::string x = Decoded(object, "x");
  const std::string y = Decoded(object, "y");
  if (Field(object, "crv") != "P-256" || x.size() != kP256Bytes || y.size() != kP256Bytes) {
    return nullptr;
  }
  const std::string point = '\x04' + x + y;  // 4: uncompressed.
  const ParameterBuilder builder(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0);
  OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                   point.size());
  return FromParameters("EC", builder.get());
}

// JSON Web Tokens have r and s one after the other; OpenSSL takes them in DER.
std::string DerSignature(std::string_view signature) {
  if (signature.size() != 2 * kP256Bytes) return "";
  const EcSignature parts(ECDSA_SIG_new());
  ECDSA_SIG_set0(parts.get(), BN_bin2bn(Bytes(signature), kP256Bytes, nullptr),
                 BN_bin2bn(Bytes(signature) + kP256Bytes, kP256Bytes, nullptr));
  unsigned char* der = nullptr;
  const int length = i2d_ECDSA_SIG(parts.get(), &der);
  if (length <= 0) return "";
  std::string text(reinterpret_cast<const char*>(der), static_cast<size_t>(length));
  OPENSSL_free(der);
  return text;
}

}  // namespace

struct WebKeys::Key {
  std::string id;
  std::string algorithm;
  OwnedKey key;
};

WebKeys::WebKeys() = default;
WebKeys::WebKeys(WebKeys&&) noexcept = default;
WebKeys& WebKeys::operator=(WebKeys&&) noexcept = default;
WebKeys::~WebKeys() = default;

absl::StatusOr<WebKeys> WebKeys::Parse(const std::string& json) {
  google::protobuf::Struct set;
  if (!google::protobuf::util::JsonStringToMessage(json, &set).ok()) {
    return absl::InvalidArgumentError("the key set is not a JSON object");
  }
  WebKeys keys;
  const auto list = set.fields().find("keys");
  if (list != set.fields().end()) {
    for (const google::protobuf::Value& value : list->second.list_value().values()) {
      const google::protobuf::Struct& object = value.struct_value();
      const std::string type = Field(object, "kty");
      if (type == "RSA") {
        keys.keys_.push_back({Field(object, "kid"), "RS256", RsaKey(object)});
      } else if (type == "EC") {
        keys.keys_.push_back({Field(object, "kid"), "ES256", P256Key(object)});
      }
      if (!keys.keys_.empty() && keys.keys_.back().key == nullptr) keys.keys_.pop_back();
    }
  }
  if (!keys.keys_.empty()) return keys;
  return absl::InvalidArgumentError(
      "the key set has no key of a known kind (RSA with 2048 bits or more, EC on P-256)");
}

bool WebKeys::Verify(std::string_view algorithm, std::string_view key_id, std::string_view text,
                     std::string_view signature) const {
  const std::string der = algorithm == "ES256" ? DerSignature(signature) : std::string(signature);
  for (const Key& each : keys_) {
    // The key decides the algorithm, never the token.
    if (each.algorithm != algorithm || (!key_id.empty() && each.id != key_id)) continue;
    const DigestContext context(EVP_MD_CTX_new());
    if (EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, each.key.get()) == 1 &&
        EVP_DigestVerify(context.get(), Bytes(der), der.size(), Bytes(text), text.size()) == 1) {
      return true;
    }
  }
  return false;
}

}  // namespace talweg::rpc
