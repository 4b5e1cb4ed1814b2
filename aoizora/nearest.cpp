#include "aoizora/nearest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace aoizora {
namespace {

// Edits (insert, delete, replace) from a to b, one row of the table at a time.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] != b[j] ? 1 : 0);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(std::string_view given, std::span<const std::string> known) {
  const std::string_view head = given.substr(0, 64);  // a word from outside may be of any length
  std::string result;
  std::size_t least = 0;
  for (const std::string& word : known) {
    const std::size_t distance = edits(head, word);
    if (!result.empty() && distance >= least) continue;
    result = word;
    least = distance;
  }
  return result;
}

std::string joined(std::span<const std::string> words) {
  std::string result;
  for (const std::string& word : words) result += (result.empty() ? "" : ", ") + word;
  return result;
}

}  // namespace aoizora
