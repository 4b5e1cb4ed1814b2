#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace aoizora {

/// Base of every error the library throws; each kind has a Python exception of the same name and an exit code.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The request itself is wrong: unknown name, size the model cannot take. Says what was given, what is allowed. Exit
/// code 2.
class InvalidRequest : public Error {
 public:
  using Error::Error;
};

/// The request is well formed but nothing satisfies it: no legal mesh, nothing fits in HBM. Says by how much. Exit
/// code 3.
class Infeasible : public Error {
 public:
  using Error::Error;
};

/// The compiler is missing, crashed, hung or refused where an answer was needed. Exit code 4.
class CompilerFailed : public Error {
 public:
  using Error::Error;
};

/// The person waiting asked to stop. Exit code 130.
class Interrupted : public Error {
 public:
  using Error::Error;
};

/// A text from outside does not read. `line` and `column` count from 1. Exit code 2.
class ParseError : public Error {
 public:
  ParseError(const std::string& what, std::int64_t at_line, std::int64_t at_column)
      : Error("line " + std::to_string(at_line) + ", column " + std::to_string(at_column) + ": " + what),
        line(at_line),
        column(at_column) {}
  std::int64_t line;
  std::int64_t column;
};

}  // namespace aoizora
