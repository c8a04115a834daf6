"""What an agent asks for; running code is here at once, the brokered operations in `ringfence.operation.brokered`."""

from ringfence.operation.code import (
    IN_A_BOX,
    MAX_CODE_BYTES,
    MAX_ENVIRONMENT_BYTES,
    MAX_INPUT_BYTES,
    MAX_INPUT_FILES,
    MAX_STDIN_BYTES,
    WORKING_DIRECTORY,
    CodeRun,
    Language,
    check,
    parse_language,
)

__all__ = [
    "IN_A_BOX",
    "MAX_CODE_BYTES",
    "MAX_ENVIRONMENT_BYTES",
    "MAX_INPUT_BYTES",
    "MAX_INPUT_FILES",
    "MAX_STDIN_BYTES",
    "WORKING_DIRECTORY",
    "CodeRun",
    "Language",
    "check",
    "parse_language",
]
