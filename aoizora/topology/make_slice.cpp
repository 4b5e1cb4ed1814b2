#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "aoizora/errors.h"
#include "aoizora/nearest.h"
#include "aoizora/topology/device_kinds.h"
#include "aoizora/topology/slice.h"

namespace aoizora::topology {
namespace {

constexpr std::uintmax_t kMostBytes = std::uintmax_t{4} << 20;

std::string shape_name(std::span<const int> dims) {
  std::string result;
  for (const int size : dims) result += (result.empty() ? "" : "x") + std::to_string(size);
  return result;
}

// "4x8" to {4, 8}; nothing for any other text, "04x8" among it: a slice has one name.
std::optional<std::vector<int>> read_shape(std::string_view text) {
  std::vector<int> dims;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('x', at), text.size());
    const std::string_view digits = text.substr(at, end - at);
    int size = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
    if (error != std::errc() || stop != digits.data() + digits.size() || digits.front() == '-') return std::nullopt;
    if (digits.size() > 1 && digits.front() == '0') return std::nullopt;
    dims.push_back(size);
    if (dims.size() > 8) return std::nullopt;
    at = end + 1;
  }
  return dims;
}

// Allowed shapes that differ least from `dims` in the sum over dimensions, in ascending order; at most four.
std::vector<std::string> neighbours(const DeviceKind& kind, std::span<const int> dims) {
  std::vector<std::string> result;
  std::int64_t least = -1;
  std::vector<int> at(dims.size(), 1);
  while (true) {
    if (kind.takes(at)) {
      std::int64_t distance = 0;
      for (std::size_t d = 0; d < dims.size(); ++d) distance += std::abs(std::int64_t{at[d]} - dims[d]);
      if (least < 0 || distance < least) result.clear();
      if (least < 0 || distance <= least) {
        least = distance;
        if (result.size() < 4) result.push_back(std::string(kind.name) + ":" + shape_name(at));
      }
    }
    std::size_t d = dims.size();
    while (d > 0 && ++at[d - 1] > kind.largest_dimension) at[--d] = 1;
    if (d == 0) return result;
  }
}

const DeviceKind& find_kind(const std::string& given) {
  for (const DeviceKind& kind : device_kind_table()) {
    if (kind.name == given) return kind;
  }
  const std::vector<std::string> known = device_kinds();
  throw InvalidRequest("unknown device kind \"" + given + "\"; known: " + joined(known) + " (did you mean \"" +
                       nearest(given, known) + "\"?); a descriptor file describes any other (docs/topology.md)");
}

std::string form(const DeviceKind& kind) {
  std::string result;
  for (int d = 0; d < kind.dimensions; ++d) result += std::string(d == 0 ? "" : "x") + static_cast<char>('A' + d);
  return std::string(kind.name) + ":" + result;
}

Slice make_known(const std::string& name) {
  const std::size_t colon = name.find(':');
  const DeviceKind& kind = find_kind(name.substr(0, colon));
  const auto dims = read_shape(std::string_view(name).substr(colon + 1));
  if (!dims || dims->size() != static_cast<std::size_t>(kind.dimensions)) {
    throw InvalidRequest("\"" + name + "\" is no slice of " + std::string(kind.name) + "; write " + form(kind) + ", " +
                         std::string(kind.shapes));
  }
  if (!kind.takes(*dims)) {
    throw InvalidRequest("there is no slice \"" + name + "\": " + form(kind) + ", " + std::string(kind.shapes) +
                         "; nearest: " + joined(neighbours(kind, *dims)));
  }
  return build_slice(name, *dims, kind.wraps(*dims), kind.cores_per_chip, kind.hardware);
}

std::string read_file(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw InvalidRequest("cannot read the slice descriptor \"" + path + "\": " + error.message());
  if (size > kMostBytes) throw InvalidRequest("the slice descriptor \"" + path + "\" has more than 4 MiB");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw InvalidRequest("cannot read the slice descriptor \"" + path + "\"");
  return text.str();
}

bool looks_like_path(const std::string& text) { return text.find('/') != std::string::npos || text.ends_with(".json"); }

}  // namespace

std::vector<std::string> device_kinds() {
  std::vector<std::string> result;
  for (const DeviceKind& kind : device_kind_table()) result.emplace_back(kind.name);
  return result;
}

Slice make_slice(const std::string& name_or_path) {
  if (looks_like_path(name_or_path)) return read_descriptor(read_file(name_or_path));
  if (name_or_path.find(':') != std::string::npos) return make_known(name_or_path);
  std::error_code error;
  if (std::filesystem::is_regular_file(name_or_path, error)) return read_descriptor(read_file(name_or_path));
  throw InvalidRequest(
      "\"" + name_or_path + "\" is neither a slice nor a descriptor file; write a kind and a shape, for example \"" +
      std::string(device_kind_table().front().name) + ":4x4\" (known kinds: " + joined(device_kinds()) +
      "), or the path of a descriptor (docs/topology.md)");
}

}  // namespace aoizora::topology
