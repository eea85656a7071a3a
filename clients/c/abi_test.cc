// SPDX-License-Identifier: Apache-2.0

// What libtalweg.so promises to its user: it needs only libc, an old one will do, and it exports
// talweg_* and nothing else.

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/talweg.h"

namespace {

constexpr char kLibrary[] = "clients/c/libtalweg.so";
// This header includes talweg.h.
constexpr char kHeader[] = "clients/c/talweg_exchange.h";

// Returns a command's standard output. A command that fails fails the test.
std::string Output(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  std::array<char, 4096> bytes;
  for (size_t count; (count = std::fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) {
    output.append(bytes.data(), count);
  }
  INFO(command << "\n" << output);
  REQUIRE(::pclose(pipe) == 0);
  return output;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Sanitizers bring their own libraries, symbols and versions.
bool Sanitized() {
  const std::string symbols = Output(std::string("nm -D --undefined-only ") + kLibrary);
  const bool sanitized = symbols.find("__asan") != std::string::npos ||
                         symbols.find("__tsan") != std::string::npos ||
                         symbols.find("__ubsan") != std::string::npos;
  if (sanitized) std::cout << "SKIPPED: a sanitized library needs the sanitizer's runtime\n";
  return sanitized;
}

TEST_CASE("The library needs libc and its loader, and nothing else") {
  if (Sanitized()) return;
  int needed = 0;
  for (const std::string& line : Lines(Output(std::string("readelf -dW ") + kLibrary))) {
    if (line.find("(NEEDED)") == std::string::npos) continue;
    CAPTURE(line);
    ++needed;
    CHECK((line.find("[libc.so.6]") != std::string::npos ||
           line.find("[ld-linux") != std::string::npos));
  }
  CHECK(needed >= 1);
}

TEST_CASE("The library runs with glibc 2.17 and newer") {
  if (Sanitized()) return;
  // manylinux2014 wheels may need version 2.17 (2012), and no newer one.
  int versions = 0;
  for (const std::string& line : Lines(Output(std::string("nm -D --undefined-only ") + kLibrary))) {
    const size_t at = line.find("@GLIBC_");
    if (at == std::string::npos) {
      // Weak symbols that libc may or may not have are not needed.
      CAPTURE(line);
      CHECK(line.find(" w ") != std::string::npos);
      continue;
    }
    CAPTURE(line);
    ++versions;
    int major = 0;
    int minor = 0;
    REQUIRE(std::sscanf(line.c_str() + at, "@GLIBC_%d.%d", &major, &minor) == 2);
    CHECK((major == 2 && minor <= 17));
  }
  CHECK(versions > 10);
}

TEST_CASE("The library exports what its headers declare, and nothing else") {
  std::set<std::string> exported;
  for (const std::string& line : Lines(Output(std::string("nm -D --defined-only ") + kLibrary))) {
    std::istringstream words(line);
    std::string address, kind, name;
    words >> address >> kind >> name;
    name = name.substr(0, name.find('@'));
    if (kind == "A" || name.empty()) continue;  // This is the version itself.
    exported.insert(name);
  }
  std::set<std::string> declared;
  for (const std::string& line :
       Lines(Output(std::string("gcc -E -P -I. -x c ") + kHeader +
                    " | tr '\\n' ' ' | tr ';' '\\n' | grep -o 'talweg_[a-z_]*(' "))) {
    declared.insert(line.substr(0, line.size() - 1));
  }
  CHECK(declared.size() > 20);
  CHECK(exported == declared);
}

TEST_CASE("The header is C99 and C++") {
  const std::string flags = " -pedantic -Wall -Wextra -Werror -fsyntax-only -I. ";
  Output("gcc -std=c99" + flags + "-x c " + kHeader + " 2>&1");
  Output("g++ -std=c++98" + flags + "-Wno-variadic-macros -Wno-long-long -x c++ " + kHeader +
         " 2>&1");
}

TEST_CASE("The library can be loaded, and asked for its version") {
  if (Sanitized()) return;
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  INFO((library == nullptr ? ::dlerror() : ""));
  REQUIRE(library != nullptr);
  const auto version = reinterpret_cast<uint32_t (*)()>(::dlsym(library, "talweg_abi_version"));
  REQUIRE(version != nullptr);
  CHECK(version() == TALWEG_VERSION_MAJOR * 65536u + TALWEG_VERSION_MINOR);
  const auto connect = reinterpret_cast<talweg_status (*)(const talweg_options*, talweg_client**)>(
      ::dlsym(library, "talweg_connect"));
  const auto last_error =
      reinterpret_cast<const char* (*)()>(::dlsym(library, "talweg_last_error"));
  talweg_client* client = nullptr;
  ::unsetenv("TALWEG_AGENT_SOCKET");
  CHECK(connect(nullptr, &client) == TALWEG_NO_AGENT);
  CHECK(std::string(last_error()).find("TALWEG_AGENT_SOCKET") != std::string::npos);
  ::dlclose(library);
}

}  // namespace
