#include <nanobind/nanobind.h>

#define AOIZORA_ROOM(room) void bind_##room(nanobind::module_&);
#include "rooms.inc"
#undef AOIZORA_ROOM

void bind_errors();

NB_MODULE(_core, m) {
  m.doc() = "The C++ library: everything of AoiZora but asking JAX and drawing the report.";
  m.attr("__version__") = AOIZORA_VERSION;
  bind_errors();
#define AOIZORA_ROOM(room) bind_##room(m);
#include "rooms.inc"
#undef AOIZORA_ROOM
}
