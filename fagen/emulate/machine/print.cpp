// printf and assert of kernels.
#include <cstdio>

#include "machine.h"

namespace fagen::emulate {
namespace {

std::string text_at(Thread& t, u64 address) {
  std::string text;
  for (;; ++address) {
    char c;
    std::memcpy(&c, find(t, Space::kGeneric, address, 1, false).data, 1);
    if (c == 0) return text;
    text += c;
  }
}

template <typename T>
T next(Thread& t, u64& at) {
  at = (at + sizeof(T) - 1) / sizeof(T) * sizeof(T);
  T value;
  std::memcpy(&value, find(t, Space::kGeneric, at, sizeof(T), false).data, sizeof(T));
  at += sizeof(T);
  return value;
}

template <typename T>
std::string formatted(const std::string& conversion, T value) {
  char out[512];
  const int length = std::snprintf(out, sizeof(out), conversion.c_str(), value);
  return std::string(out, static_cast<size_t>(length < 0 ? 0 : length < 512 ? length : 511));
}

}  // namespace

s32 print(Thread& t, u64 format, u64 arguments) {
  const std::string text = text_at(t, format);
  std::string out;
  s32 count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const size_t end = text.find_first_of("diouxXcsfFeEgGaAp%", i + 1);
    if (end == std::string::npos) break;
    const std::string conversion = text.substr(i, end - i + 1);
    const char kind = text[end];
    i = end;
    count += kind != '%';
    const bool wide = conversion.find('l') != std::string::npos;
    std::string plain;
    for (const char c : conversion) {
      if (c != 'l' && c != 'h') plain += c;
    }
    // Integers of either size are printed by 64 bits.
    const std::string longer = plain.substr(0, plain.size() - 1) + "ll" + kind;
    const auto signed_next = [&] {
      return static_cast<long long>(wide ? next<s64>(t, arguments) : next<s32>(t, arguments));
    };
    const auto unsigned_next = [&] {
      return static_cast<unsigned long long>(wide ? next<u64>(t, arguments) : next<u32>(t, arguments));
    };
    switch (kind) {
      case '%': out += '%'; break;
      case 's': out += formatted(plain, text_at(t, next<u64>(t, arguments)).c_str()); break;
      case 'd': case 'i': out += formatted(longer, signed_next()); break;
      case 'o': case 'u': case 'x': case 'X': out += formatted(longer, unsigned_next()); break;
      case 'c': out += formatted(plain, next<s32>(t, arguments)); break;
      case 'p': out += formatted("%#llx", static_cast<unsigned long long>(next<u64>(t, arguments))); break;
      default: out += formatted(plain, next<double>(t, arguments)); break;
    }
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
  std::fflush(stdout);
  return count;
}

void assert_failed(Thread& t, u64 message, u64 file, u32 line) {
  raise(*t.machine, t, FaultKind::kTrap,
        "assertion `" + text_at(t, message) + "` failed at " + text_at(t, file) + ":" + std::to_string(line));
}

}  // namespace fagen::emulate
