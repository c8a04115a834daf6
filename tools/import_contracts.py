"""The contract type that holds Ringfence's core to no I/O, module by module as the modules arrive."""

from __future__ import annotations

from typing import cast

from grimp import ImportGraph
from importlinter import ContractCheck
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.domain.imports import ModuleExpression


class ForbiddenWhenPresentContract(ForbiddenContract):
    """A forbidden contract that names the modules still to come instead of failing on them."""

    type_name = "forbidden_when_present"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Check the source modules that exist, and warn about those that do not."""
        listed = cast("set[ModuleExpression]", self.source_modules)
        missing = {module for module in listed if module.expression not in graph.modules}
        self.source_modules = listed - missing  # type: ignore[assignment]  # a field holds its value once parsed
        outcome = super().check(graph, verbose)
        outcome.warnings += [f"{module.expression} is not there yet" for module in sorted(missing, key=str)]
        return outcome
