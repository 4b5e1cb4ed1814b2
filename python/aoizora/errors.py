"""What goes wrong, one exception a kind, as in the C++ library; each carries the exit code of the command line."""


class Error(Exception):
    """Base of every error AoiZora raises on purpose. Its message says what was given, what is allowed, what to do."""

    exit_code = 1


class InvalidRequest(Error):
    """The request itself is wrong: an unknown name, a size the model cannot take."""

    exit_code = 2


class ParseError(Error):
    """A text from outside does not read; `line` and `column` count from 1."""

    exit_code = 2

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message, line, column)
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return str(self.args[0])


class Infeasible(Error):
    """The request is well formed but nothing satisfies it: no legal mesh, nothing fits in HBM."""

    exit_code = 3


class CompilerFailed(Error):
    """The compiler is missing, crashed, hung or refused where an answer was needed."""

    exit_code = 4


class Interrupted(Error):
    """The person waiting asked to stop."""

    exit_code = 130
