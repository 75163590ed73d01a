"""Loads pipelines from files: the only one in a file, or the one that is named."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from lockstep.errors import InvalidRequest, LockstepError, NotFound
from lockstep.spark.pipelines.pipeline import Pipeline

_NO_SPARK_YET = (
    " While the file is loaded there is no Spark yet: give the types of UDFs as objects, as in udf(StringType()), and "
    "use columns within the steps."
)
_ENDS_ITSELF = 'it ends the program while it is loaded: what runs the pipeline belongs under if __name__ == "__main__"'


def load(place: str) -> Pipeline:
    """The pipeline of `orders.py`, or of `orders.py:name`. Raises NotFound, or InvalidRequest with the reason."""
    file, _, name = place.partition(":") if not Path(place).exists() else (place, "", "")
    path = Path(file)
    if not path.is_file():
        raise NotFound(f"there is no file {file}", file=file)
    found = _pipelines(path)
    if name and name not in found:
        raise NotFound(f"{file} defines no pipeline {name!r}; it has {', '.join(found) or 'none'}", pipeline=name)
    if not found:
        raise InvalidRequest(f'{file} defines no pipeline: orders = Pipeline("orders")')
    if not name and len(found) > 1:
        raise InvalidRequest(f"{file} defines several pipelines: say {file}:NAME, of {', '.join(found)}")
    return found[name] if name else next(iter(found.values()))


def _pipelines(path: Path) -> dict[str, Pipeline]:
    """By name. Raises InvalidRequest if two have the same name: they would share checkpoints and positions."""
    found: dict[str, Pipeline] = {}
    for one in vars(_executed(path)).values():
        if isinstance(one, Pipeline) and found.setdefault(one.name, one) is not one:
            raise InvalidRequest(f"{path} defines two pipelines with the name {one.name!r}")
    return found


def _executed(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"lockstep_pipeline_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InvalidRequest(f"{path} is no Python")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module; and the file may import modules beside it.
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except LockstepError:
        raise
    except SystemExit as error:
        raise InvalidRequest(f"{path} cannot be loaded{_line(error, path)}: {_ENDS_ITSELF}") from error
    except Exception as error:
        said = type(error).__name__ + (f": {error}" if str(error) else "")
        hint = f".{_NO_SPARK_YET}" if _misses_spark(error) else ""
        raise InvalidRequest(f"{path} cannot be loaded{_line(error, path)}: {said}{hint}") from error
    finally:
        sys.path.pop(0)
    _travels_by_value(module)
    return module


def _line(error: BaseException, path: Path) -> str:
    """The line of the error in the file, if known."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


def _misses_spark(error: Exception) -> bool:
    """Whether PySpark missed a session. When a column is created, it only asserts that there is one."""
    if not isinstance(error, AssertionError):
        return "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error)
    return any("pyspark" in Path(frame.filename).parts for frame in traceback.extract_tb(error.__traceback__))


def _travels_by_value(module: ModuleType) -> None:
    """Spark's workers cannot import the file, so its definitions are sent to them with the step."""
    try:
        from pyspark.cloudpickle import register_pickle_by_value
    except ModuleNotFoundError:  # a plan can be drawn without Spark
        return
    register_pickle_by_value(module)  # type: ignore[no-untyped-call]
