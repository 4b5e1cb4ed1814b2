// Ranks the placements of a recorded program without Python: which device order of the slice serves this HLO text best?
#include "aoizora/ranking/rank_program.h"

#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "aoizora/candidates/candidate.h"
#include "aoizora/errors.h"
#include "aoizora/ir/readers.h"
#include "aoizora/topology/slice.h"

namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw aoizora::InvalidRequest("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// "context=4"
aoizora::candidates::MeshAxis read_axis(std::string_view text) {
  const auto equals = text.find('=');
  const std::string size(equals == text.npos ? "" : text.substr(equals + 1));
  if (size.empty() || size.size() > 6 || size.find_first_not_of("0123456789") != size.npos) {
    throw aoizora::InvalidRequest("a mesh axis is written name=size, not \"" + std::string(text) + "\"");
  }
  return {std::string(text.substr(0, equals)), std::stoi(size)};
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 2) {
    std::cerr << "usage: rank_program HLO_TEXT SLICE [AXIS=SIZE ...]\n"
                 "for example: rank_program program.txt v5e:2x4 data=2 context=2 tensor=2\n";
    return 2;
  }
  try {
    std::vector<aoizora::candidates::MeshAxis> mesh;
    for (std::size_t i = 2; i < arguments.size(); ++i) mesh.push_back(read_axis(arguments[i]));
    const auto program = aoizora::ir::read_program(read_file(arguments[0]));
    const auto slice = aoizora::topology::make_slice(arguments[1]);
    std::cout << aoizora::ranking::rank_json(program, slice, mesh) << '\n';
  } catch (const aoizora::Error& error) {
    std::cerr << "rank_program: " << error.what() << '\n';
    return 1;
  }
}
