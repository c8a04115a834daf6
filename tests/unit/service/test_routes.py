"""Every route of the service reads a body and a query the one way, whoever adds it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute

from ringfence.interfaces.http import aio
from ringfence.interfaces.http.app import RESOURCES
from ringfence.interfaces.http.routes import PlainRoute

# what a guest's own server is asked is its own matter, and is passed on as it came
PASSED_ON = "/ports/{port}"


def routes(router: APIRouter) -> Iterator[APIRoute]:
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        elif isinstance(inner := getattr(route, "original_router", None), APIRouter):
            yield from routes(inner)


MODULES = (*RESOURCES, *(f"aio.{found.name}" for found in pkgutil.iter_modules(aio.__path__)))


@pytest.mark.parametrize("name", MODULES)
def test_no_route_takes_one_of_two_keys_that_are_the_same(name: str) -> None:
    router = getattr(importlib.import_module(f"ringfence.interfaces.http.{name}"), "router", APIRouter())
    assert not [
        route.path for route in routes(router) if not isinstance(route, PlainRoute) and PASSED_ON not in route.path
    ]


def test_a_route_that_is_no_such_one_is_found() -> None:
    router = APIRouter()
    router.add_api_route("/x", lambda: None)
    outer = APIRouter()
    outer.include_router(router)
    assert [type(route) for route in routes(outer)] == [APIRoute]
