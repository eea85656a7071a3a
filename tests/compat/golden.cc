// SPDX-License-Identifier: Apache-2.0
#include "tests/compat/golden.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <catch2/catch.hpp>

namespace talweg {
namespace {

std::string ToText(std::span<const std::byte> bytes) {
  std::string text = "bytes: " + std::to_string(bytes.size()) + "\n";
  for (size_t offset = 0; offset < bytes.size(); offset += 16) {
    const auto line = bytes.subspan(offset, std::min<size_t>(16, bytes.size() - offset));
    if (std::all_of(line.begin(), line.end(), [](std::byte b) { return b == std::byte{0}; }))
      continue;
    char hex[32];
    std::snprintf(hex, sizeof(hex), "%06zx:", offset);
    text += hex;
    for (const std::byte b : line) {
      std::snprintf(hex, sizeof(hex), " %02x", static_cast<unsigned>(b));
      text += hex;
    }
    text += "\n";
  }
  return text;
}

std::map<std::string, std::string> Read(const std::string& path) {
  std::map<std::string, std::string> texts;
  std::ifstream in(path);
  std::string name;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("== ", 0) == 0) {
      name = line.substr(3);
    } else if (!name.empty() && !line.empty()) {
      texts[name] += line + "\n";
    }
  }
  return texts;
}

}  // namespace

void Golden::Add(const std::string& name, std::span<const std::byte> bytes) {
  texts_[name] = ToText(bytes);
}

std::map<std::string, std::vector<std::byte>> Golden::Load(const std::string& file) {
  std::map<std::string, std::vector<std::byte>> loaded;
  for (const auto& [name, text] : Read("tests/compat/golden/" + file)) {
    std::vector<std::byte>& bytes = loaded[name];
    std::istringstream lines(text);
    std::string line;
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string head;
      words >> head;
      if (head == "bytes:") {
        size_t count = 0;
        words >> count;
        bytes.resize(count);
        continue;
      }
      size_t offset = std::stoul(head, nullptr, 16);
      for (std::string byte; words >> byte; ++offset) {
        bytes.at(offset) = std::byte(std::stoul(byte, nullptr, 16));
      }
    }
  }
  return loaded;
}

void Golden::Check() const {
  if (const char* directory = std::getenv("TALWEG_GOLDEN_OUT"); directory != nullptr) {
    std::ofstream out(std::string(directory) + "/" + file_);
    for (const auto& [name, text] : texts_) out << "== " << name << "\n" << text;
    REQUIRE(out.good());
    return;
  }
  const std::map<std::string, std::string> golden = Read("tests/compat/golden/" + file_);
  for (const auto& [name, text] : texts_) {
    CAPTURE(name);
    const auto it = golden.find(name);
    REQUIRE(it != golden.end());
    CHECK(text == it->second);
  }
  for (const auto& [name, text] : golden) {
    CAPTURE(name);
    CHECK(texts_.contains(name));
  }
}

}  // namespace talweg
