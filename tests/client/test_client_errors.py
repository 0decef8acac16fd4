"""Every error is the same after a journey to another process."""

from __future__ import annotations

import copy
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from typing import Any

import pytest

import alpo
import alpo.client

#: Fields of the errors that have some.
FIELDS: dict[str, dict[str, Any]] = {
    "NotGuaranteed": {"client": "billing", "serial": 7, "epoch": 3, "too_old": True},
    "Fenced": {"epoch": 9},
    "SerialExpected": {"expected": 4},
    "Conflict": {"last_lsn": 6},
    "OutOfRange": {"first_lsn": 5, "last_lsn": 8},
    "NotEverywhere": {"lsn": 12, "behind": (2, 3)},
    "NoSuchLog": {"log": "billing"},
    "LogExists": {"log": "billing"},
}


def kinds(of: type[alpo.AlpoError] = alpo.AlpoError) -> list[type[alpo.AlpoError]]:
    """The library's own errors, whatever else this process has loaded: Spark's errors are made otherwise."""
    for module in pkgutil.iter_modules(alpo.client.__path__):
        import_module(f"alpo.client.{module.name}")
    below = [kind for kind in of.__subclasses__() if kind.__module__ == "alpo.errors" or "client" in kind.__module__]
    return [of, *(kind for each in below for kind in kinds(each))]


def told(error: BaseException) -> tuple[object, ...]:
    return type(error), error.args, str(error), vars(error)


def make(kind: type[alpo.AlpoError]) -> alpo.AlpoError:
    return kind("what was the matter", **FIELDS.get(kind.__name__, {}))


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_and_copied(kind: type[alpo.AlpoError], protocol: int) -> None:
    error = make(kind)
    error.add_note("seen at noon")
    assert vars(error).keys() == {"__notes__", *FIELDS.get(kind.__name__, {})}
    for twin in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
        assert twin is not error
        assert told(twin) == told(error)


def fail(kind: type[alpo.AlpoError]) -> None:
    raise make(kind)


def test_raised_in_another_process() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for kind in kinds():
            with pytest.raises(kind) as caught:
                pool.submit(fail, kind).result(60)
            assert (type(caught.value), caught.value.args) == (kind, ("what was the matter",))
            assert {k: v for k, v in vars(caught.value).items() if k in FIELDS.get(kind.__name__, {})} == FIELDS.get(
                kind.__name__, {}
            )


def test_every_error_is_a_name_of_the_package() -> None:
    inside = {"Overtaken", "OtherCluster"}  # a Log raises neither: `alpo backup` has the first
    assert {kind.__name__ for kind in kinds()} - inside <= set(alpo.__all__)
