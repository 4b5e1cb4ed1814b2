#pragma once
// What a Program owns, and the pools its views point into. Included by this room's .cpp files only.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aoizora/ir/program.h"
#include "aoizora/ir/scan_impl.h"

namespace aoizora::ir {

/// Bump allocator: nothing is freed before the whole, so spans into it stay valid.
class Pool {
 public:
  template <class T>
  std::span<T> copy(std::span<const T> values) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= alignof(std::max_align_t));
    if (values.empty()) return {};
    T* out = reinterpret_cast<T*>(take(values.size_bytes(), alignof(T)));
    std::uninitialized_copy(values.begin(), values.end(), out);
    return {out, values.size()};
  }
  std::string_view copy(std::string_view text) {
    const auto out = copy(std::span<const char>(text.data(), text.size()));
    return {out.data(), out.size()};
  }

 private:
  std::byte* take(std::size_t bytes, std::size_t alignment) {
    used_ = (used_ + alignment - 1) & ~(alignment - 1);
    if (used_ + bytes > size_) open_block(bytes);
    std::byte* out = block_ + used_;
    used_ += bytes;
    return out;
  }
  void open_block(std::size_t bytes) {
    size_ = std::max(bytes, std::min<std::size_t>(std::size_t{1} << 20, std::max<std::size_t>(4096, size_ * 2)));
    blocks_.emplace_back(std::make_unique_for_overwrite<std::byte[]>(size_));
    block_ = blocks_.back().get();
    used_ = 0;
  }
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::byte* block_ = nullptr;  ///< the last one
  std::size_t used_ = 0;
  std::size_t size_ = 0;
};

struct Program::Storage {
  std::string text;
  Pool pool;
  std::vector<Instruction> instructions;
  std::vector<Computation> computations;
};

/// Throws ParseError if a computation calls itself, directly or through others: everything behind the readers relies on
/// it.
void check_acyclic(const Program& program);

/// Computations so that each comes before those it calls.
std::vector<ComputationId> callers_first(const Program& program);

/// Instructions to make room for at first: one a line, but for lines too short to hold any.
inline std::size_t expected_instructions(std::string_view text, std::size_t shortest) {
  const std::size_t size = text.size();
  std::size_t lines = 0;
  while (!text.empty()) {  // in bytes first: compilers count 16 or more of them at once
    const std::string_view piece = text.substr(0, 255);
    std::uint8_t of_piece = 0;
    for (const char c : piece) of_piece = static_cast<std::uint8_t>(of_piece + (c == '\n'));
    lines += of_piece;
    text.remove_prefix(piece.size());
  }
  return std::min(lines, size / shortest) + 16;
}

/// Names to numbers, open addressing. `truncate` takes names back in the order last in, first out: the scopes of nested
/// regions.
class NameTable {
 public:
  /// `expected` names fit without growing.
  explicit NameTable(std::size_t expected = 32) : slots_(std::bit_ceil(2 * expected), 0) { entries_.reserve(expected); }

  static std::uint64_t hash(std::string_view s) {
    std::uint64_t h = s.size() + seed();
    while (s.size() >= 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, s.data(), 8);
      h = mix(h ^ word);
      s.remove_prefix(8);
    }
    return mix(h ^ up_to_7(s));
  }

  /// Returns false if the name is already there.
  bool insert(std::string_view name, std::int32_t value) {
    if ((entries_.size() + 1) * 2 > slots_.size()) grow();
    const std::uint64_t h = hash(name);
    std::size_t slot = probe(name, h);
    if (slots_[slot] != 0) return false;
    push(entries_, Entry{name, h, value});
    slots_[slot] = static_cast<std::uint32_t>(entries_.size());
    return true;
  }
  /// Returns -1 if the name is not there.
  std::int32_t find(std::string_view name) const {
    const std::uint32_t at = slots_[probe(name, hash(name))];
    return at == 0 ? -1 : entries_[at - 1].value;
  }
  std::size_t size() const { return entries_.size(); }
  void clear() {
    if (entries_.size() * 8 < slots_.size()) return truncate(0);
    std::fill(slots_.begin(), slots_.end(), 0);
    entries_.clear();
  }
  void truncate(std::size_t size) {
    while (entries_.size() > size) {
      slots_[probe(entries_.back().name, entries_.back().hash)] = 0;
      entries_.pop_back();
    }
  }

 private:
  /// Another one in each process: no text can bring names that all meet in one slot. Nothing depends on the order.
  static std::uint64_t seed() {
    static const std::uint64_t drawn = [] {
      std::random_device device;
      return (std::uint64_t{device()} << 32U) | device();
    }();
    return drawn;
  }
  static std::uint64_t mix(std::uint64_t h) {
    h *= 0x9E3779B97F4A7C15U;
    return h ^ (h >> 32);
  }
  static std::uint64_t up_to_7(std::string_view s) {
    if (s.size() >= 4) {  // two halves that may overlap
      std::uint32_t first = 0;
      std::uint32_t last = 0;
      std::memcpy(&first, s.data(), 4);
      std::memcpy(&last, s.data() + s.size() - 4, 4);
      return (std::uint64_t{last} << 32U) | first;
    }
    std::uint64_t word = 0;
    for (const char c : s) word = (word << 8U) | static_cast<unsigned char>(c);
    return word;
  }
  struct Entry {
    std::string_view name;
    std::uint64_t hash;
    std::int32_t value;
  };
  std::size_t probe(std::string_view name, std::uint64_t h) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = h & mask;
    while (slots_[slot] != 0) {
      const Entry& e = entries_[slots_[slot] - 1];
      if (e.hash == h && e.name.size() == name.size() &&
          (name.size() < 8 || std::memcmp(e.name.data(), name.data(), name.size()) == 0))
        break;  // every step of hash() can be undone: below 8 bytes the same hash is the same name
      slot = (slot + 1) & mask;
    }
    return slot;
  }
  void grow() {
    slots_.assign(slots_.size() * 2, 0);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      slots_[probe(entries_[i].name, entries_[i].hash)] = static_cast<std::uint32_t>(i + 1);
    }
  }
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_;  ///< 1 + index into entries_; 0 is free
};

/// dtype_from_name, which goes over all names, remembering the last ones asked for.
class KnownDTypes {
 public:
  DType of(std::string_view name) {
    auto& [spelled, dtype] = known_[NameTable::hash(name) % known_.size()];
    if (spelled != name) {
      spelled = name;
      dtype = dtype_from_name(name);
    }
    return dtype;
  }

 private:
  std::array<std::pair<std::string_view, DType>, 16> known_ = make();
  static constexpr std::array<std::pair<std::string_view, DType>, 16> make() {
    std::array<std::pair<std::string_view, DType>, 16> none_yet{};
    none_yet.fill({{}, DType::unknown});
    return none_yet;
  }
};

}  // namespace aoizora::ir
