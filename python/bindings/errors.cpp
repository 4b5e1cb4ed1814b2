#include "aoizora/errors.h"

#include <nanobind/nanobind.h>

#include <exception>

namespace nb = nanobind;

namespace {

// The classes live in aoizora/errors.py, so that code that never loads the library can raise and catch them. They are
// looked up when an error is thrown: the module itself imports nothing.
void raise(const char* kind, const nb::object& arguments) {
  const nb::object type = nb::module_::import_("aoizora.errors").attr(kind);
  const nb::object error = type(*arguments);
  PyErr_SetObject(type.ptr(), error.ptr());
}

void raise(const char* kind, const aoizora::Error& error) { raise(kind, nb::make_tuple(error.what())); }

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const aoizora::InvalidRequest& error) {
    raise("InvalidRequest", error);
  } catch (const aoizora::Infeasible& error) {
    raise("Infeasible", error);
  } catch (const aoizora::CompilerFailed& error) {
    raise("CompilerFailed", error);
  } catch (const aoizora::Interrupted& error) {
    raise("Interrupted", error);
  } catch (const aoizora::ParseError& error) {
    raise("ParseError", nb::make_tuple(error.what(), error.line, error.column));
  } catch (const aoizora::Error& error) {
    raise("Error", error);
  }
}

}  // namespace

void bind_errors() { nb::register_exception_translator(translate); }
